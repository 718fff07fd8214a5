"""Which base model an adapter is for, where nobody says and where somebody does."""

from __future__ import annotations

from pathlib import Path

import pytest

from billing.errors import RowNotFound
from gateway.catalog.base_models import configured_models
from gateway.config import file as configuration
from gateway.config.file import Config
from gateway.uploads.staged import base_for, base_named

SERVED = """
[[models]]
name = "small"
path = "models/SmolLM2-135M-Instruct"
[[models]]
name = "laneway-tiny"
package = "laneway"
"""


def served(toml: str = SERVED) -> Config:
    return configuration.parse_gateway_config(toml.encode(), Path("/srv"), "laneway.toml", {})


def adapter(directory: Path, content: bytes) -> Path:
    (directory / "adapter_config.json").write_bytes(content)
    return directory


@pytest.mark.parametrize(
    ("trained_for", "base"),
    [
        ("laneway-tiny", "laneway-tiny"),
        ("out/models/Laneway-Tiny/", "laneway-tiny"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "small"),  # by the directory that it is in
        ("somebody/small", "small"),
    ],
)
def test_an_adapter_goes_to_the_model_that_it_names(tmp_path: Path, trained_for: str, base: str) -> None:
    config = served()
    directory = adapter(tmp_path, f'{{"base_model_name_or_path": "{trained_for}"}}'.encode())
    assert base_for(config, configured_models(config), None, directory).name == base


def test_what_is_asked_for_holds_whatever_it_names(tmp_path: Path) -> None:
    config = served()
    directory = adapter(tmp_path, b'{"base_model_name_or_path": "laneway-tiny"}')
    assert base_for(config, configured_models(config), "small", directory).name == "small"
    with pytest.raises(RowNotFound, match="no base model 'another'; there are small, laneway-tiny"):
        base_for(config, configured_models(config), "another", directory)


@pytest.mark.parametrize(
    "content",
    [
        b'{"base_model_name_or_path": "meta-llama/Llama-3.1-8B"}',
        b'{"base_model_name_or_path": ""}',
        b'{"base_model_name_or_path": "/"}',
        b'{"base_model_name_or_path": null}',
        b'{"base_model_name_or_path": 7}',
        b"{}",
        b"[]",
        b"\xff",
        b'{"a":' * 100_000,
        None,
    ],
    ids=lambda content: repr(content)[:40],
)
def test_one_that_names_none_needs_a_base_where_there_are_several(tmp_path: Path, content: bytes | None) -> None:
    directory = tmp_path if content is None else adapter(tmp_path, content)
    several, single = served(), served('[[models]]\nname = "small"\npath = "m"')
    with pytest.raises(RowNotFound, match="choose a base model: one of small, laneway-tiny"):
        base_for(several, configured_models(several), None, directory)
    assert base_for(single, configured_models(single), None, directory).name == "small"
    assert base_named(single, configured_models(single), directory) is None


def test_a_name_that_two_have_is_no_answer(tmp_path: Path) -> None:
    config = served('[[models]]\nname = "a/tiny"\n[[models]]\nname = "b/tiny"')
    directory = adapter(tmp_path, b'{"base_model_name_or_path": "tiny"}')
    assert base_named(config, configured_models(config), directory) is None
