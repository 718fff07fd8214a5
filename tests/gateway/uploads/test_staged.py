"""An adapter that is staged from a directory: its copy is checked, not the source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adapters.files.config import RANK_MAX
from adapters.files.store import AdapterStore
from gateway.uploads import staged
from support.adapters.files import WEIGHTS, write_adapter

SHAPE = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
}


def test_a_source_that_changes_after_it_was_copied_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(SHAPE))
    source = write_adapter(tmp_path / "source")
    good = (source / WEIGHTS).read_bytes()
    check = staged.check_adapter

    def check_while_it_changes(*arguments: object, **options: object) -> object:
        (source / WEIGHTS).write_bytes(b"something else")
        return check(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(staged, "check_adapter", check_while_it_changes)
    store = AdapterStore(tmp_path / "store")
    base = staged.AdapterBase("base", model, "float32", RANK_MAX)
    with staged.stage_directory(store, base, source) as adapter:
        adapter.keep_content()
        assert (store.path(adapter.facts.digest) / WEIGHTS).read_bytes() == good
