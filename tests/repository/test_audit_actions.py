"""The console's list of audit actions is the gateway's: an action without a choice cannot be found, a choice without an
action finds nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gateway.commands.alerts import CREATING
from support.paths import REPO

ACTION = re.compile(r"[a-z]+\.[a-z_]+")
RECORDERS = {"record", "record_line", "_record"}
CHOICES = REPO / "admin_ui" / "src" / "pages" / "parts" / "auditActions.ts"
TABLE = CHOICES.parent / "auditTable.tsx"


def choices() -> set[str]:
    return set(re.findall(r'^  "([a-z_.]+)",$', CHOICES.read_text(), re.M))


def recorded(tree: ast.Module) -> Iterator[str]:
    """The actions in calls of functions that write audit lines; also by the name of a constant of the module."""
    constants = {
        statement.targets[0].id: statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    }
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name not in RECORDERS:
            continue
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
            for part in ast.walk(argument):
                found = constants.get(part.id) if isinstance(part, ast.Name) else part
                if isinstance(found, ast.Constant) and isinstance(found.value, str) and ACTION.fullmatch(found.value):
                    yield found.value


def test_console_and_command_line_name_the_same_actions_as_creating() -> None:
    """`laneway audit` shows "made" and the console "created" for a line without values before."""
    source = TABLE.read_text()
    [words] = re.findall(r"const CREATING = new Set\(\[(.*?)\]\)", source, re.S)
    assert re.findall(r'"(\w+)"', words) == list(CREATING)
    last_words = {action.rpartition(".")[2] for action in choices()}
    assert set(CREATING) <= last_words, "a word that no action ends with"


def test_the_console_offers_the_actions_that_the_gateway_records() -> None:
    sources = [path.read_text() for path in (REPO / "gateway").rglob("*.py")]
    actions = {action for source in sources for action in recorded(ast.parse(source))}
    assert len(actions) > 40, "the calls were not found"
    assert actions - choices() == set()
    whole = "\n".join(sources)
    assert [action for action in choices() if f'"{action}"' not in whole] == []
