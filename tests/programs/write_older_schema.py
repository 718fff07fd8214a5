"""Writes tests/data/older_schema.json: the tables and columns of this code, at a release.

    python tests/programs/write_older_schema.py

From then on no migration may break code that knows just these (docs/contributors/schema.md). Run it when a release is
made, and not in between.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

if __name__ == "__main__":  # beside the packages where those are not installed
    sys.path[:0] = [str(directory) for directory in Path(__file__).resolve().parents[1:3]]

from alembic.script import ScriptDirectory

import gateway.tables  # noqa: F401 - its tables are in the metadata too
from billing.tables import metadata
from migrations.upgrade import configuration

FILE = Path(__file__).resolve().parents[1] / "data/older_schema.json"


def main() -> int:
    head = ScriptDirectory.from_config(configuration(None)).get_current_head()
    tables = {str(name): sorted(map(str, table.columns.keys())) for name, table in sorted(metadata.tables.items())}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(columns)}" for name, columns in tables.items())
    FILE.write_text(f'{{\n "revision": {json.dumps(head)},\n "tables": {{\n{lines}\n }}\n}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main())
