"""The demands of a database's schema on the code that writes to it, and whether a change demands more. If it does, code
of the version before fails on the schema, and the change is a contract step (docs/contributors/schema.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import sqlalchemy as sa

TRIGGERS = {
    "sqlite": "SELECT tbl_name, name FROM sqlite_master WHERE type = 'trigger'",
    "postgresql": "SELECT c.relname, t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
    "WHERE NOT t.tgisinternal",
}
_LITERAL = re.compile(r"'([^']*)'")


@dataclass(frozen=True)
class ColumnFacts:
    type: str
    nullable: bool
    filled: bool  # a default, or an identity, of the server


@dataclass(frozen=True)
class SchemaFacts:
    """Columns by table, and what refuses rows: by table and columns or name."""

    columns: dict[str, dict[str, ColumnFacts]]
    uniques: frozenset[tuple[str, ...]] = frozenset()
    foreign_keys: frozenset[tuple[str, ...]] = frozenset()
    checks: dict[tuple[str, str], str] = field(default_factory=dict)
    triggers: frozenset[tuple[str, str]] = frozenset()


def read_schema(connection: sa.Connection) -> SchemaFacts:
    inspector = sa.inspect(connection)
    tables = [name for name in inspector.get_table_names() if name != "alembic_version"]
    uniques, foreign_keys, checks = set(), set(), {}
    columns: dict[str, dict[str, ColumnFacts]] = {}
    for table in tables:
        key = inspector.get_pk_constraint(table)["constrained_columns"]
        uniques.add((table, *sorted(key)))
        for unique in inspector.get_unique_constraints(table):
            uniques.add((table, *sorted(unique["column_names"])))
        for index in inspector.get_indexes(table):
            if index["unique"]:
                uniques.add((table, *sorted(str(name) for name in index["column_names"])))
        for foreign in inspector.get_foreign_keys(table):
            foreign_keys.add((table, *foreign["constrained_columns"], foreign["referred_table"]))
        for check in inspector.get_check_constraints(table):
            checks[table, str(check["name"])] = check["sqltext"]
        alone = len(key) == 1
        columns[table] = {
            column["name"]: ColumnFacts(
                type=str(column["type"]),
                nullable=column["nullable"],
                filled=column["default"] is not None
                or bool(column.get("identity"))
                or (alone and column["name"] in key and str(column["type"]) == "INTEGER"),
            )
            for column in inspector.get_columns(table)
        }
    triggers = connection.execute(sa.text(TRIGGERS[connection.dialect.name])).all()
    return SchemaFacts(
        columns, frozenset(uniques), frozenset(foreign_keys), checks, frozenset((row[0], row[1]) for row in triggers)
    )


def contract_faults(before: SchemaFacts, after: SchemaFacts) -> list[str]:
    """Why code that knows the schema `before` may fail on the schema `after`. Empty: the change only expands."""
    faults = []
    for table, old in before.columns.items():
        new = after.columns.get(table)
        if new is None:
            faults.append(f"the table {table} is removed")
            continue
        faults += [f"the column {table}.{name} is removed" for name in old.keys() - new.keys()]
        for name in old.keys() & new.keys():
            if old[name].type != new[name].type and not _is_longer(old[name].type, new[name].type):
                faults.append(f"the type of {table}.{name} changes from {old[name].type} to {new[name].type}")
            if old[name].nullable and not new[name].nullable:
                faults.append(f"the column {table}.{name} refuses nulls")
            if old[name].filled and not new[name].filled:
                faults.append(f"the column {table}.{name} loses its default")
        faults += [
            f"the new column {table}.{name} is neither nullable nor has a default of the server"
            for name in new.keys() - old.keys()
            if not (new[name].nullable or new[name].filled)
        ]
    for kind in ("uniques", "foreign_keys", "triggers"):
        for added in sorted(getattr(after, kind) - getattr(before, kind)):
            if added[0] in before.columns:
                faults.append(f"{added[0]} gets one more of {kind}: {', '.join(added[1:])}")
    for (table, name), text in after.checks.items():
        if table in before.columns and not _permits_more(before.checks.get((table, name)), text):
            faults.append(f"{table} gets the check {name}: {text}")
    return sorted(faults)


def _is_longer(old: str, new: str) -> bool:
    """Whether a text column became longer."""
    lengths = [re.fullmatch(r"VARCHAR\((\d+)\)", text) for text in (old, new)]
    return all(lengths) and int(lengths[0][1]) < int(lengths[1][1])  # type: ignore[index]


def _permits_more(old: str | None, new: str) -> bool:
    """Whether a check is as it was, or permits further values of a list."""
    if old is None:
        return False
    return old == new or (
        _LITERAL.sub("", old).replace(", ", "").replace("::character varying", "")
        == _LITERAL.sub("", new).replace(", ", "").replace("::character varying", "")
        and set(_LITERAL.findall(old)) <= set(_LITERAL.findall(new))
    )
