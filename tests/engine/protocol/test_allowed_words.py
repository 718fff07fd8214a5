"""A refusal of a word names the words that are allowed there, wherever the field is."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from engine.protocol.allowed_words import explain_wrong_word, name_allowed_words
from engine.protocol.config import EngineConfig, EngineConfigError, ModelConfig, parse_engine_config


class Inner(msgspec.Struct):
    word: Literal["a", "b", "c"] = "a"
    text: str = ""


class Outer(msgspec.Struct):
    inner: Inner | None = None
    rows: Annotated[list[Inner], Meta(max_length=3)] = []
    named: dict[str, Inner] = {}
    maybe: Literal["only"] | msgspec.UnsetType | None = msgspec.UNSET
    number: int = 0


@pytest.mark.parametrize(
    ("path", "choices"),
    [
        ("inner.word", "; it must be a, b or c"),
        ("rows[2].word", "; it must be a, b or c"),
        ("rows[...].word", "; it must be a, b or c"),
        ("named.x.word", "; it must be a, b or c"),
        ("maybe", "; it must be only"),
        ("inner.text", ""),
        ("inner.absent", ""),
        ("number", ""),
        ("number.word", ""),
        ("", ""),
    ],
)
def test_the_allowed_words_of_a_path(path: str, choices: str) -> None:
    assert name_allowed_words(Outer, path) == choices


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"rows":[{"word":"d"}]}', "Invalid enum value 'd' - at `$.rows[0].word`; it must be a, b or c"),
        (b'{"maybe":"d"}', "Invalid enum value 'd' - at `$.maybe`; it must be only"),
        (b'{"number":"d"}', "Expected `int`, got `str` - at `$.number`"),
    ],
)
def test_only_the_message_of_a_wrong_word_gets_them(body: bytes, message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(body, type=Outer)
    assert explain_wrong_word(refused.value, Outer) == message


@pytest.mark.parametrize(
    ("field", "choices"), [("quantize", "fp8, int4, int8 or none"), ("kv_dtype", "auto or fp8")], ids=str
)
def test_the_formats_of_a_model_are_named(field: str, choices: str) -> None:
    assert (
        name_allowed_words(ModelConfig, field)
        == name_allowed_words(EngineConfig, f"models[0].{field}")
        == f"; it must be {choices}"
    )
    with pytest.raises(EngineConfigError, match=rf"'int3' - at `\$\.models\[0\]\.{field}`; it must be {choices}$"):
        parse_engine_config(f'{{"models": [{{"name": "m", "{field}": "int3"}}]}}'.encode())
