"""The clients' pages as data: docs/users/clients.md, responses.md and agents.md have the snippets,
docs/users/fields-*.md the tables of fields, and the console's page Connect is built from all of them.

programs/write_clients_page.py writes the tables from the wire types, and the console's file. Run it after a change of a
wire type or a snippet.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gateway.field_tables import STATES, FieldRow, tables
from support.documents import SNIPPET_PAGES
from support.paths import REPO, TESTS
from support.services import missing_service

TABLE_PAGES = {
    "/v1/chat/completions": REPO / "docs" / "users" / "fields-chat-completions.md",
    "/v1/completions": REPO / "docs" / "users" / "fields-completions.md",
    "/v1/messages": REPO / "docs" / "users" / "fields-messages.md",
    "/v1/responses": REPO / "docs" / "users" / "fields-responses.md",
}
README = REPO / "README.md"
CONSOLE_FILE = REPO / "admin_ui" / "src" / "pages" / "serve" / "connect.json"
TABLE_HEAD = """# Fields of `{path}`

Generated from the wire types by `python tests/programs/write_clients_page.py`. The states: [Endpoints and
fields](fields.md).

"""
PACKAGES = TESTS / "clients" / "connect"  # of npm, for the snippets in JavaScript
SNIPPET_S_MAX = 60
# Placeholders that the console replaces by the values of its gateway.
URL_PLACE, MODEL_PLACE = "{{url}}", "{{model}}"
DEFAULT_MODEL = "smollm2-135m-instruct"
AGENT_MODEL = "tool-agent"  # the default of the snippets with tools
# By language: how a snippet reads the base URL and the model from the environment. `{}`: its default.
FROM_ENVIRONMENT = {
    "sh": ("$LANEWAY_URL", "${{MODEL:-{}}}"),
    "python": ('os.environ["LANEWAY_URL"]', 'os.environ.get("MODEL", "{}")'),
    "js": ("process.env.LANEWAY_URL", 'process.env.MODEL ?? "{}"'),
}
_SNIPPET = re.compile(
    r"^### (?P<title>[^\n]+)\n\n`(?P<install>[^`\n]+)`\n\n```(?P<language>\w+)\n(?P<text>.+?)^```", re.M | re.S
)


@dataclass(frozen=True)
class Snippet:
    title: str
    install: str
    language: str
    text: str

    @property
    def id(self) -> str:
        return re.sub(r"[^a-z]+", "-", self.title.lower()).strip("-")

    @property
    def is_agent(self) -> bool:
        """Whether the client calls tools."""
        return self.title.endswith(", an agent") or self.title == "Claude Code"

    def filled(self, url: str, model: str) -> str:
        """The text with this base URL and model in place of the environment variables that it reads. Raises ValueError
        where it reads one in another way."""
        text, quote = self.text, "" if self.language == "sh" else '"'
        url_read, model_read = FROM_ENVIRONMENT[self.language]
        default = AGENT_MODEL if self.is_agent else DEFAULT_MODEL
        for read, value in ((url_read, url), (model_read.format(default), model)):
            if text.count(read) != 1:
                raise ValueError(f"{self.title}: {read} must occur once")
            text = text.replace(read, f"{quote}{value}{quote}")
        return text

    def with_places(self) -> str:
        """The text with placeholders for the base URL and the model. Raises ValueError as `filled`."""
        return self.filled(URL_PLACE, MODEL_PLACE)


def snippets() -> list[Snippet]:
    return [snippet for page in SNIPPET_PAGES for snippet in _snippets_of(page)]


def _snippets_of(page: Path) -> list[Snippet]:
    part = page.read_text().split("\n## Snippets\n", 1)[1].split("\n## ", 1)[0]
    found = [Snippet(**match.groupdict()) for match in _SNIPPET.finditer(part)]
    if len(found) != part.count("\n### "):
        raise ValueError("a section of Snippets has no install line in backticks, or no snippet below it")
    return found


def command(language: str, text: str, directory: Path) -> list[str]:
    """The command line that runs the text. Skips where an interpreter or its packages are missing."""
    if language == "sh":
        if shutil.which("curl") is None:
            missing_service("curl", "it is not in the path")
        return ["sh", "-c", text]
    if language == "python":
        return [sys.executable, "-c", text]
    if shutil.which("node") is None or not (PACKAGES / "node_modules" / "ai").exists():
        missing_service("npm", "tests/clients/connect/node_modules is not installed: make client-packages")
    (directory / "node_modules").symlink_to(PACKAGES / "node_modules")
    (directory / "snippet.mjs").write_text(text)
    return ["node", str(directory / "snippet.mjs")]


def readme_snippet() -> str:
    """The first Python block of the README."""
    return README.read_text().split("```python\n", 1)[1].split("```", 1)[0]


def table_pages() -> dict[Path, str]:
    """The expected text of each page with a table of fields, by file."""
    return {TABLE_PAGES[table.path]: TABLE_HEAD.format(path=table.path) + _table(table.rows) for table in tables()}


def _table(rows: list[FieldRow]) -> str:
    lines = ["| field | | values | why |", "|---|---|---|---|"]
    for row in rows:
        field = f"`{row.field}`" + (" (required)" if row.required else "")
        lines.append(f"| {field} | {STATES[row.state]} | {row.values} | {row.why} |")
    return "\n".join([line.replace("  ", " ") for line in lines]) + "\n"


def console_file() -> str:
    """The expected text of admin_ui/src/pages/serve/connect.json."""
    data: dict[str, Any] = {
        "snippets": [
            {
                "id": one.id,
                "title": one.title,
                "install": one.install,
                "language": one.language,
                "agent": one.is_agent,
                "text": one.with_places(),
            }
            for one in snippets()
        ],
        "states": STATES,
        "tables": msgspec.to_builtins(tables()),
    }
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"
