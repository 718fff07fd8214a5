"""`python -m migrations URL`: upgrade the schema to the newest revision. Without URL: the URL in LANEWAY_DATABASE_URL.
A URL with a password belongs there, since other users of the host can read command lines."""

from __future__ import annotations

import argparse
import os
import sys

from migrations.upgrade import new_revision, revisions, upgrade

EXIT_NOT_CURRENT = 3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m migrations", description=__doc__)
    parser.add_argument(
        "url",
        nargs="?",
        default=os.environ.get("LANEWAY_DATABASE_URL"),
        help="sqlite:///path or postgresql+psycopg://user@host/database",
    )
    parser.add_argument(
        "--draft",
        metavar="MESSAGE",
        help="write a draft revision: the difference between our tables and the schema",
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit status 3 unless the schema is the newest"
    )
    arguments = parser.parse_args()
    if not arguments.url:
        parser.error("a URL is needed")
    if arguments.check:
        found, newest = revisions(arguments.url)
        sys.stdout.write(f"the schema has revision {found or 'none'}, and the newest is {newest}\n")
        sys.exit(0 if found == newest else EXIT_NOT_CURRENT)
    if arguments.draft:
        new_revision(arguments.url, arguments.draft)
    else:
        upgrade(arguments.url)


if __name__ == "__main__":
    main()
