"""Tags of keys: names and values by which a tenant splits its bill.

The tags of a key are a tag set, stored once for each tenant under an id made from its content, and never changed. A
hold and its usage row copy the id: later edits of the key do not change them. The holds of lines of batches have a tag
set of their own: the key's tags and SOURCE_TAG. So every report that splits usage by tags separates lines from other
requests.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import sqlalchemy as sa

from billing.bulk import BulkInsert
from billing.errors import InvalidValue
from billing.tables import tag_sets
from billing.texts import check_text

TAGS_MAX = 16  # of one key
NAME_CHARS_MAX = 64
VALUE_CHARS_MAX = 256
RESERVED_PREFIX = "laneway/"  # of the tags that Laneway adds
SOURCE_TAG = RESERVED_PREFIX + "source"
BATCH_LINE = "batch_line"  # the value of SOURCE_TAG; usage of other requests lacks the tag

_NAME = re.compile(rf"[a-zA-Z0-9][a-zA-Z0-9._/-]{{0,{NAME_CHARS_MAX - 1}}}")
_INSERT = BulkInsert(tag_sets, keep=True)


def check_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """The tags in the order of their names. Raises InvalidValue."""
    if len(tags) > TAGS_MAX:
        raise InvalidValue(f"a key has at most {TAGS_MAX} tags, not {len(tags)}", "tags")
    for name, value in tags.items():
        check_tag_name(name)
        check_text(value, "tags", f"the value of tag {name!r} has", VALUE_CHARS_MAX)
    return dict(sorted(tags.items()))


def check_tag_name(name: str, field: str = "tags") -> None:
    """Raises InvalidValue."""
    if not _NAME.fullmatch(name):
        raise InvalidValue(
            f"{name[:NAME_CHARS_MAX]!r} is no name of a tag: 1 to {NAME_CHARS_MAX} of a-z, A-Z, 0-9, '.', '_', '/', "
            "'-', the first a letter or a digit",
            field,
        )
    if name.lower().startswith(RESERVED_PREFIX):
        raise InvalidValue(f"{name!r}: names that begin with {RESERVED_PREFIX!r} are reserved", field)


def store_tag_set(connection: sa.Connection, tenant_id: str, tags: Mapping[str, str]) -> str | None:
    """The id of the tenant's tag set with these checked tags, which is stored if it is new. None: no tags."""
    if not tags:
        return None
    content = msgspec.json.encode([tenant_id, sorted(tags.items())])
    tag_set_id = f"tag_{hashlib.sha256(content).hexdigest()[:40]}"
    rows = {"tag_set_id": tag_set_id, "tenant_id": tenant_id}
    named = [rows | {"name": name, "value": value} for name, value in tags.items()]
    _INSERT.run(connection, [[row[column] for column in _INSERT.columns] for row in named])
    return tag_set_id


def store_line_tag_set(connection: sa.Connection, tenant_id: str, tag_set_id: str | None) -> str:
    """The id of the tag set of a key's lines of batches: the tags of the key's own set, and SOURCE_TAG."""
    own = {} if tag_set_id is None else tags_of(connection, [tag_set_id]).get(tag_set_id, {})
    found = store_tag_set(connection, tenant_id, own | {SOURCE_TAG: BATCH_LINE})
    assert found is not None, "the set has a tag"
    return found


def source_filter(of_batch: bool | None) -> tuple[tuple[str, str], ...]:
    """The tags that select lines of batches (True), all other requests (False), or every request (None)."""
    return () if of_batch is None else ((SOURCE_TAG, BATCH_LINE if of_batch else ""),)


def has_tags(tag_set_id: sa.ColumnElement[Any], wanted: Collection[tuple[str, str]]) -> list[sa.ColumnElement[bool]]:
    """Conditions for the tag set of a row: for each name one of the wanted values. "" matches rows that lack the
    name."""
    conditions: list[sa.ColumnElement[bool]] = []
    for name in dict.fromkeys(name for name, _ in wanted):
        values = [value for name_, value in wanted if name_ == name]
        named = sa.select(tag_sets.c.tag_set_id).where(tag_sets.c.name == name)
        one_of: sa.ColumnElement[bool] = tag_set_id.in_(named.where(tag_sets.c.value.in_(values)))
        if "" in values:
            one_of = sa.or_(one_of, tag_set_id.is_(None), tag_set_id.not_in(named))
        conditions.append(one_of)
    return conditions


def tags_of(
    connection: sa.Connection, tag_set_ids: Collection[str], *, with_source: bool = False
) -> dict[str, dict[str, str]]:
    """The key's tags of these sets by id, each in the order of its names; with SOURCE_TAG only if `with_source`."""
    found: dict[str, dict[str, str]] = {}
    if not tag_set_ids:
        return found
    query = sa.select(tag_sets.c.tag_set_id, tag_sets.c.name, tag_sets.c.value)
    query = query.where(tag_sets.c.tag_set_id.in_(tag_set_ids))
    if not with_source:
        query = query.where(tag_sets.c.name != SOURCE_TAG)
    for tag_set_id, name, value in sorted(tuple(row) for row in connection.execute(query)):
        found.setdefault(tag_set_id, {})[name] = value
    return found
