"""Texts of adapters that a database cannot hold: refused by their field's name, or kept as what can be shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adapters.files.check import CONFIG_FILE
from adapters.files.generate import Recipe, write_random
from adapters.files.spec import BaseShape
from gateway.access import keys
from support.gateway.adapter_uploads import AdapterOperator, files_of
from support.stack import MODEL, Stack

Served = tuple[Stack, AdapterOperator, Path]


@pytest.fixture
def served(make_stack: Callable[..., Stack], database_url: str, model_dir: Path, tmp_path: Path) -> Iterator[Served]:
    """On PostgreSQL and on SQLite."""
    stack = make_stack(database_url)
    secret = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin")).secret
    operator = AdapterOperator(stack.url, secret)
    base = BaseShape.from_config(json.loads((model_dir / "config.json").read_bytes()))
    yield stack, operator, write_random(tmp_path / "made", base, Recipe(1, 1, ("k_proj",)), MODEL)
    operator.close()


def test_no_text_of_an_adapter_is_too_odd_for_the_database(served: Served) -> None:
    stack, operator, directory = served
    config = json.loads((directory / CONFIG_FILE).read_bytes())
    for number, odd in enumerate(("a\0b", "a\ud800b", "a\x1b[2Jb", "a\nb\u202e")):
        (directory / CONFIG_FILE).write_text(json.dumps(config | {"base_model_name_or_path": odd}))
        made = operator.upload(directory, f"odd{number}", tenant="acme")
        shown = json.dumps(operator.ok("GET", f"adapters/odd{number}/versions"))
        for text in (json.dumps(made), shown):
            assert not any(bad in text for bad in ("\\u0000", "\\ud800", "\\u001b", "\\u202e"))
    (directory / CONFIG_FILE).write_text(json.dumps(config))
    for field, value in (("notes", "a\0b"), ("tenant", "a\0b"), ("shared", "ac\0me"), ("base", "a\0b"), ("name", "\0")):
        answer = operator.post_files(files_of(directory), **{"name": "plain", field: value})
        assert answer.status_code in (400, 404), f"{field}: {answer.status_code} {answer.text}"
        assert answer.json()["error"]["param"] in (field, "tenant")
    for change in ({"notes": "a\0b"}, {"shared": ["ac\0me"]}):
        answer = operator.send("PATCH", "adapters/odd0", change)
        assert answer.status_code in (400, 404), f"{change}: {answer.status_code} {answer.text}"
    operator.ok("PATCH", "adapters/odd0", {"notes": "two\nlines, and ü"})
    assert not stack.log_lines("error")
