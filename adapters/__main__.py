"""`python -m adapters check DIRECTORY` prints the facts of an adapter, or why it is refused, as JSON, and writes its
`modules-1.json`; `… resolve` writes that file for stored adapters without it; `… slab` makes the slab of a stored
adapter; `… generate` makes random adapters.

It runs in a separate process, so that a hostile file costs the gateway and the engine no time and no memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from adapters.files.check import FILES, check_numbers, read_spec, write_resolved_modules
from adapters.files.config import RANK_MAX
from adapters.files.facts import facts_of, names_of_base
from adapters.files.generate import recipes, write_random
from adapters.files.header import AdapterRefused
from adapters.files.spec import BaseShape
from adapters.files.store import AdapterStore, slab_of

EXIT_REFUSED = 3
NICENESS = 10
# CPU time for configuration and header; the largest real adapters need 50 ms. The rest of the check is linear in the
# file's size, and bounded by the caller's timeout.
CONFIG_CPU_S_MAX = 2


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
    resolve = commands.add_parser("resolve", help="write modules-1.json for stored adapters without it")
    resolve.add_argument("store", type=Path)
    resolve.add_argument("digests", nargs="+")
    slab = commands.add_parser("slab", help="make the slab of a stored adapter that lacks it")
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
    return {"check": _check, "resolve": _resolve, "slab": _slab, "generate": _generate}[options.command](options)


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Raises AdapterRefused in the block after CONFIG_CPU_S_MAX of CPU time, by SIGXCPU: Python's `re` checks for
    signals too."""

    def over(*_: object) -> None:
        raise AdapterRefused(
            f"adapter_config.json: resolving its patterns takes more than {CONFIG_CPU_S_MAX} s of processor time"
        )

    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    before = signal.signal(signal.SIGXCPU, over)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + CONFIG_CPU_S_MAX), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
        signal.signal(signal.SIGXCPU, before)


def _check(options: argparse.Namespace) -> int:
    os.nice(NICENESS)
    directory, base = options.directory, BaseShape.from_directory(options.model)
    try:
        with _limited():
            spec = read_spec(directory, base, options.rank_max)
        checked = check_numbers(directory, spec, options.dtype)
    except AdapterRefused as error:
        print(json.dumps({"refused": error.reason}))  # noqa: T201 - the answer
        return EXIT_REFUSED
    write_resolved_modules(directory, spec)
    size = sum((directory / name).stat().st_size for name in FILES)
    facts = facts_of(checked, size, names_of_base(options.name, options.model))
    if options.slab:
        slab_of(directory, checked, base, options.dtype)
    print(facts.to_json())  # noqa: T201 - the answer
    return 0


def _resolve(options: argparse.Namespace) -> int:
    """Print the reason of each refusal, by digest."""
    os.nice(NICENESS)
    store, refused = AdapterStore(options.store), {}
    for digest in options.digests:
        try:
            with _limited():
                store.resolve(digest)
        except (AdapterRefused, OSError, ValueError) as error:
            refused[digest] = str(error)
    print(json.dumps({"refused": refused}))  # noqa: T201 - the answer
    return EXIT_REFUSED if refused else 0


def _slab(options: argparse.Namespace) -> int:
    os.nice(NICENESS)
    store = AdapterStore(options.store)
    try:
        with _limited():
            store.resolve(options.digest)
        store.add_slab(options.digest, BaseShape.from_directory(options.model), options.dtype)
    except (AdapterRefused, OSError) as error:
        print(json.dumps({"refused": str(error)}))  # noqa: T201 - the answer
        return EXIT_REFUSED
    return 0


def _generate(options: argparse.Namespace) -> int:
    base = BaseShape.from_directory(options.model)
    for number, recipe in enumerate(recipes(options.count, options.seed)):
        write_random(options.directory / f"random-{number:04}", base, recipe, options.model.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
