"""`python -m adapters check DIRECTORY` says as JSON what is in an adapter, or why it is refused; `… slab` makes the
slab of one that is stored; `… generate` makes random ones.

A process of its own, so that whatever a file makes it do takes no time and no memory from whoever serves.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from adapters.check import FILES, check_adapter
from adapters.config import RANK_MAX
from adapters.facts import facts_of, names_of_base
from adapters.generate import recipes, write_random
from adapters.header import AdapterRefused
from adapters.spec import BaseShape
from adapters.store import AdapterStore, slab_of

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
    check.add_argument("--slab", action="store_true", help="make its slab beside it, if there is room")
    slab = commands.add_parser("slab", help="make the slab of a stored adapter that has none")
    slab.add_argument("store", type=Path)
    slab.add_argument("digest")
    slab.add_argument("--model", type=Path, required=True, help="the base's directory")
    slab.add_argument("--dtype", default="float32")
    generate = commands.add_parser("generate", help="write random adapters")
    generate.add_argument("directory", type=Path)
    generate.add_argument("--model", type=Path, required=True, help="the base's directory")
    generate.add_argument("--count", type=int, default=1)
    generate.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    return {"check": _check, "slab": _slab, "generate": _generate}[options.command](options)


def _base(model: Path) -> BaseShape:
    return BaseShape.from_config(json.loads((model / "config.json").read_bytes()))


def _check(options: argparse.Namespace) -> int:
    os.nice(NICENESS)
    try:
        checked = check_adapter(options.directory, _base(options.model), rank_max=options.rank_max, dtype=options.dtype)
    except AdapterRefused as error:
        print(json.dumps({"refused": error.reason}))  # noqa: T201 - the answer
        return EXIT_REFUSED
    size = sum((options.directory / name).stat().st_size for name in FILES)
    facts = facts_of(checked, size, names_of_base(options.name, options.model))
    if options.slab:
        slab_of(options.directory, checked, _base(options.model), options.dtype)
    print(facts.to_json())  # noqa: T201 - the answer
    return 0


def _slab(options: argparse.Namespace) -> int:
    os.nice(NICENESS)
    store = AdapterStore(options.store)
    try:
        store.add_slab(options.digest, _base(options.model), options.dtype)
    except (AdapterRefused, OSError) as error:
        print(json.dumps({"refused": str(error)}))  # noqa: T201 - the answer
        return EXIT_REFUSED
    return 0


def _generate(options: argparse.Namespace) -> int:
    base = _base(options.model)
    for number, recipe in enumerate(recipes(options.count, options.seed)):
        write_random(options.directory / f"random-{number:04}", base, recipe, options.model.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
