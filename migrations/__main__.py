"""`python -m migrations URL`: bring the schema to the newest revision."""

from __future__ import annotations

import argparse

from migrations.upgrade import new_revision, upgrade


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m migrations", description=__doc__)
    parser.add_argument("url", help="sqlite:///path or postgresql+psycopg://user@host/database")
    parser.add_argument(
        "--draft", metavar="MESSAGE", help="write a new revision from what the tables have and it lacks"
    )
    arguments = parser.parse_args()
    if arguments.draft:
        new_revision(arguments.url, arguments.draft)
    else:
        upgrade(arguments.url)


if __name__ == "__main__":
    main()
