"""Each field of the chat, messages and completions dialects: accepted, or refused by its name."""

from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest
from support.gateway.dialect_requests import ACCEPTED, DIALECTS, REFUSED, Fields


@pytest.mark.parametrize(
    ("dialect", "fields"), [(dialect, fields) for dialect, table in ACCEPTED.items() for fields in table], ids=str
)
def test_accepted(dialect: str, fields: Fields) -> None:
    parse, _, _ = DIALECTS[dialect]
    parse(**fields).to_generation()


@pytest.mark.parametrize(
    ("dialect", "field"),
    [
        (dialect, field)
        for dialect, (_, request, required) in DIALECTS.items()
        for field in request.__struct_fields__
        if field not in required
    ],
)
def test_null_is_neutral_for_every_field(dialect: str, field: str) -> None:
    parse, _, _ = DIALECTS[dialect]
    parse(**{field: None}).to_generation()


@pytest.mark.parametrize(
    ("dialect", "fields", "param"),
    [(dialect, fields, param) for dialect, table in REFUSED.items() for fields, param in table],
    ids=lambda value: str(value)[:60],
)
def test_refused_by_name(dialect: str, fields: Fields, param: str) -> None:
    parse, _, _ = DIALECTS[dialect]
    with pytest.raises(InvalidRequest) as refused:
        parse(**fields)
    assert refused.value.param == param
    assert param in refused.value.message
