"""`python -m adapters check DIRECTORY` says as JSON what is in an adapter, or why it is refused; `… generate` makes
random ones.

A process of its own, so that whatever a file makes it do takes no time and no memory from whoever serves.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from adapters.check import check_adapter
from adapters.config import RANK_MAX
from adapters.facts import facts_of, names_of_base
from adapters.generate import recipes, write_random
from adapters.header import AdapterRefused
from adapters.spec import BaseShape

EXIT_REFUSED = 3
NICENESS = 10


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m adapters", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="is this an adapter for that base?")
    check.add_argument("directory", type=Path)
    check.add_argument("--model", type=Path, required=True, help="the base's directory")
    check.add_argument("--name", default="", help="what the base is called")
    check.add_argument("--rank-max", type=int, default=RANK_MAX)
    check.add_argument("--dtype", default="float32")
    generate = commands.add_parser("generate", help="write random adapters")
    generate.add_argument("directory", type=Path)
    generate.add_argument("--model", type=Path, required=True, help="the base's directory")
    generate.add_argument("--count", type=int, default=1)
    generate.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    return _check(options) if options.command == "check" else _generate(options)


def _base(model: Path) -> BaseShape:
    return BaseShape.from_config(json.loads((model / "config.json").read_bytes()))


def _check(options: argparse.Namespace) -> int:
    os.nice(NICENESS)
    try:
        checked = check_adapter(options.directory, _base(options.model), rank_max=options.rank_max, dtype=options.dtype)
    except AdapterRefused as error:
        print(json.dumps({"refused": error.reason}))  # noqa: T201 - the answer
        return EXIT_REFUSED
    size = sum(path.stat().st_size for path in options.directory.iterdir())
    facts = facts_of(checked, size, names_of_base(options.name, options.model))
    print(facts.to_json())  # noqa: T201 - the answer
    return 0


def _generate(options: argparse.Namespace) -> int:
    base = _base(options.model)
    for number, recipe in enumerate(recipes(options.count, options.seed)):
        write_random(options.directory / f"random-{number:04}", base, recipe, options.model.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
