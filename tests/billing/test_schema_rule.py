"""Expand and contract: a migration only adds what code of the version before can ignore (docs/contributors/schema.md).

A migration that takes something away is in CONTRACTS, with the release that stopped using it.
"""

from __future__ import annotations

import msgspec
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory

import gateway.tables  # noqa: F401 - its tables are in the metadata too
from migrations.upgrade import _migrating, configuration, upgrade
from support.billing.schema_facts import ColumnFacts, SchemaFacts, contract_faults, read_schema
from support.paths import REPO

FIRST = "0024"  # the rule holds from here on
# Revision → the release whose code was the last that used what the migration removes.
CONTRACTS: dict[str, str] = {}
# The tables and columns of the oldest code that may run on today's schema: tests/programs/write_older_schema.py.
OLDER = REPO / "tests/data/older_schema.json"


def revisions_from(first: str) -> list[str]:
    scripts = [script.revision for script in ScriptDirectory.from_config(configuration(None)).walk_revisions()]
    return sorted(revision for revision in scripts if revision >= first)


def test_each_migration_only_expands(empty_database_url: str) -> None:
    """Run one by one, the schema before and after each compared."""
    scripts = ScriptDirectory.from_config(configuration(None))
    with _migrating(empty_database_url) as connection:
        command.upgrade(configuration(connection), str(scripts.get_revision(FIRST).down_revision))
        before = read_schema(connection)
    for revision in revisions_from(FIRST):
        with _migrating(empty_database_url) as connection:
            command.upgrade(configuration(connection), revision)
            after = read_schema(connection)
        if revision not in CONTRACTS:
            assert contract_faults(before, after) == [], f"migration {revision}; CONTRACTS says how to remove something"
        before = after


def test_every_contract_is_a_migration_and_names_a_release() -> None:
    assert CONTRACTS.keys() <= set(revisions_from(FIRST))
    assert all(CONTRACTS.values())


def test_the_oldest_code_finds_its_columns_and_may_leave_out_the_others(empty_database_url: str) -> None:
    """The statements of older code name the columns of its own tables: each is there, and what it does not name fills
    itself."""
    upgrade(empty_database_url)
    engine = sa.create_engine(empty_database_url, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        now = read_schema(connection).columns
    older: dict[str, list[str]] = msgspec.json.decode(OLDER.read_bytes())["tables"]
    assert older.keys() <= now.keys()
    for table, names in older.items():
        assert set(names) <= now[table].keys(), table
        unknown = [column for name, column in now[table].items() if name not in names]
        assert all(column.nullable or column.filled for column in unknown), table


TEXT = ColumnFacts("VARCHAR(8)", nullable=False, filled=False)
NUMBER = ColumnFacts("BIGINT", nullable=True, filled=False)
KEY = frozenset({("t", "id")})
BEFORE = SchemaFacts({"t": {"id": TEXT, "n": NUMBER}}, KEY, checks={("t", "ck"): "id IN ('a', 'b')"})


def changed(**columns: ColumnFacts | None) -> SchemaFacts:
    merged = {**BEFORE.columns["t"], **columns}
    kept = {name: column for name, column in merged.items() if column is not None}
    return SchemaFacts({"t": kept}, KEY, checks=BEFORE.checks)


@pytest.mark.parametrize(
    ("after", "fault"),
    [
        (SchemaFacts({}), "the table t is removed"),
        (changed(n=None), "the column t.n is removed"),
        (changed(m=TEXT), "the new column t.m is neither nullable nor has a default of the server"),
        (changed(n=ColumnFacts("BIGINT", nullable=False, filled=True)), "the column t.n refuses nulls"),
        (changed(n=ColumnFacts("INTEGER", nullable=True, filled=False)), "the type of t.n changes from BIGINT"),
        (changed(id=ColumnFacts("VARCHAR(4)", nullable=False, filled=False)), "the type of t.id changes"),
        (SchemaFacts(BEFORE.columns, KEY | {("t", "n")}, checks=BEFORE.checks), "more of uniques: n"),
        (
            SchemaFacts(BEFORE.columns, KEY, frozenset({("t", "n", "u")}), BEFORE.checks),
            "foreign_keys: n, u",
        ),
        (SchemaFacts(BEFORE.columns, KEY, checks={("t", "ck"): "id IN ('a')"}), "gets the check ck"),
        (SchemaFacts(BEFORE.columns, KEY, checks={("t", "c2"): "n > 0"}), "gets the check c2"),
        (SchemaFacts(BEFORE.columns, KEY, triggers=frozenset({("t", "no")})), "more of triggers: no"),
    ],
)
def test_what_contracts_is_found(after: SchemaFacts, fault: str) -> None:
    assert fault in " ".join(contract_faults(BEFORE, after))


@pytest.mark.parametrize(
    "after",
    [
        BEFORE,
        changed(m=NUMBER),
        changed(m=ColumnFacts("BIGINT", nullable=False, filled=True)),
        changed(id=ColumnFacts("VARCHAR(16)", nullable=False, filled=False)),
        SchemaFacts({**BEFORE.columns, "u": {"id": TEXT}}, KEY | {("u", "id")}, checks=BEFORE.checks),
        SchemaFacts(BEFORE.columns, KEY, checks={("t", "ck"): "id IN ('a', 'b', 'c')"}),
        SchemaFacts(BEFORE.columns, KEY),
    ],
)
def test_what_expands_is_no_fault(after: SchemaFacts) -> None:
    assert contract_faults(BEFORE, after) == []
