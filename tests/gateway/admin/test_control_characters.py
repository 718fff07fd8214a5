"""Control characters, line ends and direction marks are refused in every name, and names stored earlier with them are
escaped for a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from billing.errors import InvalidValue
from billing.texts import check_text, visible
from gateway.access import keys
from gateway.cli import main
from gateway.commands.console import escaped_json
from gateway.tables import adapters
from gateway.tables import keys as keys_table
from support.stack import MODEL, Stack

BAD = {
    "osc": "a\x1b]0;owned\x07",
    "csi": "a\x9b31m",
    "line": "a\nkey_forged",
    "return": "a\rb",
    "rtl": "a\u202eb",
    "separator": "a\u2028b",
    "delete": "a\x7f",
}
# Writes of texts, and the field that the refusal names.
WRITES: dict[str, tuple[str, str, Callable[[str], dict[str, Any]], str]] = {
    "tenant": ("POST", "tenants", lambda bad: {"slug": "evil", "name": bad, "tier": "premium"}, "name"),
    "slug": ("POST", "tenants", lambda bad: {"slug": bad, "tier": "premium"}, "slug"),
    "tenant's change": ("PATCH", "tenants/{acme}", lambda bad: {"name": bad}, "name"),
    "project": ("POST", "projects", lambda bad: {"tenant": "acme", "name": bad}, "name"),
    "project's change": ("PATCH", "projects/{project}", lambda bad: {"name": bad}, "name"),
    "key": ("POST", "keys", lambda bad: {"tenant": "acme", "name": bad}, "name"),
    "admin key": ("POST", "keys", lambda bad: {"name": bad, "kind": "admin"}, "name"),
    "webhook": ("POST", "webhooks", lambda bad: {"url": f"https://example.com/{bad}"}, "url"),
    "adapter's notes": ("PATCH", "adapters/{adapter}", lambda bad: {"notes": bad}, "notes"),
    "alias": ("PUT", "aliases/{bad}", lambda bad: {"models": [{"model": MODEL}]}, "name"),
    "model": ("POST", "models", lambda bad: {"name": bad, "path": "x"}, "name"),
    "model's path": ("POST", "models", lambda bad: {"name": "x", "path": bad}, "path"),
    "correction": ("POST", "corrections", lambda bad: {"tenant": "acme", "picos": "5", "reason": bad}, "reason"),
    "price": ("POST", "prices", lambda bad: {"subject": bad, "input": "1", "cached_input": "1", "output": "1"}, ""),
}


@pytest.fixture
def operator(stack: Stack) -> dict[str, str]:
    made = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin"))
    return {"Authorization": f"Bearer {made.secret}"}


@pytest.mark.parametrize("where", WRITES)
def test_no_name_is_written_with_one(stack: Stack, operator: dict[str, str], where: str) -> None:
    method, path, body, param = WRITES[where]
    projects = httpx.get(f"{stack.url}/v1/admin/projects", headers=operator, params={"tenant": "acme"}).json()
    known = {
        "acme": stack.tenants["acme"],
        "project": projects["data"][0]["id"],
        "adapter": stack.adapters["acme-style"],
    }
    for name, bad in BAD.items():
        if where == "adapter's notes" and name == "line":
            continue
        quoted = "".join(f"%{byte:02x}" for byte in bad.encode())
        url = f"{stack.url}/v1/admin/{path.format(bad=quoted, **known)}"
        answer = httpx.request(method, url, json=body(bad), headers=operator, timeout=30)
        assert answer.status_code in (400, 404), (name, answer.text)
        error = answer.json()["error"]
        assert not param or (answer.status_code, error["param"]) == (400, param), (name, answer.text)
    log = httpx.get(f"{stack.url}/v1/admin/audit_log", headers=operator).text
    assert not any(escaped in log for escaped in ("\\u001b", "\u202e", "forged"))


def test_notes_may_have_several_lines(stack: Stack, operator: dict[str, str]) -> None:
    url = f"{stack.url}/v1/admin/adapters/{stack.adapters['acme-style']}"
    answer = httpx.patch(url, json={"notes": "one\ntwo\r\nthree"}, headers=operator)
    assert answer.status_code == 200, answer.text
    assert answer.json()["notes"] == "one\ntwo\r\nthree"


def test_what_is_stored_already_is_escaped_on_a_terminal(stack: Stack, operator: dict[str, str]) -> None:
    made = stack.new_key("acme")
    adapter_id = stack.adapters["acme-style"]
    for number, bad in enumerate(BAD.values()):
        stack.write(
            lambda c, bad=bad: c.execute(sa.update(keys_table).where(keys_table.c.id == made.key.id).values(name=bad))
        )
        stack.write(
            lambda c, bad=bad: c.execute(sa.update(adapters).where(adapters.c.id == adapter_id).values(notes=bad))
        )
        for command in (
            ["keys", "list"],
            ["keys", "list", "--json"],
            ["adapters", "list"],
            ["adapters", "list", "--json"],
        ):
            result = CliRunner().invoke(main, ["--config", str(stack.config_file), *command])
            assert result.exit_code == 0, result.output
            lines = result.output.splitlines()
            assert all(line.isprintable() for line in lines), (number, command)
            assert not any(line.startswith("key_forged") for line in lines)
            if "--json" in command:
                assert bad in {one.get("name") for one in json.loads(result.output)} | {
                    one.get("notes") for one in json.loads(result.output)
                }
    # A rotation writes the name again.
    url = f"{stack.url}/v1/admin/keys/{made.key.id}/rotate"
    answer = httpx.post(url, json={"overlap_s": 0}, headers=operator)
    assert (answer.status_code, answer.json()["name"]) == (201, "a\\x7f")


def test_the_one_check() -> None:
    check_text("a" * 5, "f", "it has", 5)
    check_text("", "f", "it has", 5, chars_min=0)
    check_text("a\nb\r\nc", "f", "it has", 10, lines=True)
    for text, lines in (
        ("", False),
        ("a" * 6, False),
        ("a\nb", False),
        ("a\rb", True),
        ("\ud800", False),
        ("\0", True),
    ):
        with pytest.raises(InvalidValue) as refused:
            check_text(text, "f", "it has", 5, lines=lines)
        assert refused.value.param == "f"
        assert "1 to 5 printable characters" in str(refused.value)


def test_escapes() -> None:
    assert visible("Zürich 東京 😀") == "Zürich 東京 😀"
    assert visible("a\x1b[31m\nb\u202e") == "a\\x1b[31m\\nb\\u202e"
    for text in ("\x7f\x9b", "\u2028", "\U000e0001", "\ud83d"[:0]):
        escaped = escaped_json(json.dumps({"a": text}, ensure_ascii=False))
        assert escaped.isprintable()
        assert json.loads(escaped) == {"a": text}
