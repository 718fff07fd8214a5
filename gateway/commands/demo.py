"""`laneway demo seed` makes everything that `laneway serve --demo` makes, without starting the processes.
`laneway demo adapters` makes and registers many random adapters, as `laneway adapters add` would one by one.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import sqlalchemy as sa

from adapters.files.generate import recipes, write_random
from adapters.files.store import AdapterStore
from billing.errors import BillingRefused
from gateway.catalog.adapters import Adapter, Registration
from gateway.catalog.registry import base_shape
from gateway.commands.console import Console, fail, json_option, pass_console, show_rows
from gateway.commands.database import base_models, sentence, write_database
from gateway.commands.demo_seed import EXAMPLES, Demo
from gateway.host.supervisor import CannotStart
from gateway.uploads.staged import AdapterBase, StagedAdapter, base_of, stage_directory

COUNT_MAX = 10_000
TOGETHER_MAX = 100  # adapters in one transaction; each has a file open until its end
SHOWN = 10
COLUMNS = ("name", "tenant_id", "shared", "base_model", "version", "id", "digest")


@click.group("demo")
def demo_group() -> None:
    """Data to try Laneway with."""


@demo_group.command("seed")
@click.option(
    "--examples",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with a folder for each adapter. Without it: examples/adapters of the checkout.",
)
@pass_console
def seed_command(console: Console, examples: Path | None) -> None:
    """Migrate the database, make the models, three tenants, their keys, prices and adapters, and print the keys.

    Safe to run again. For a gateway and an engine that are started apart; `laneway serve --demo` does it too."""
    try:
        Demo(console.config, say=click.echo, examples=examples or EXAMPLES).seed()
    except CannotStart as error:
        fail(str(error))


@demo_group.command("adapters")
@click.option("--count", type=click.IntRange(1, COUNT_MAX), default=200, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, help="The same seed gives the same bytes.")
@click.option("--prefix", default="random", show_default=True, help="Their names are PREFIX-0000, PREFIX-0001, …")
@click.option("--tenant", help="The owning tenant, a slug or an id. Default: none; all tenants may call them.")
@click.option("--model", "base_model", help="The base model. Default: the first.")
@json_option
@pass_console
def adapters_command(
    console: Console, count: int, seed: int, prefix: str, tenant: str | None, base_model: str | None, as_json: bool
) -> None:
    """Make COUNT valid LoRA adapters with random numbers, of mixed ranks and modules, and register them."""
    try:
        models = base_models(console)
        base = base_of(console.config, models, base_model or (models[0].name if models else None))
        names = [f"{prefix}-{number:04}" for number in range(count)]
        registered = list(_registered(console, base, tenant, names, seed))
    except BillingRefused as error:
        fail(sentence(error))
    except (OSError, ValueError, KeyError) as error:
        fail(f"the adapters cannot be made: {error}")
    rows = [msgspec.to_builtins(adapter) for adapter in registered]
    show_rows(rows if as_json else rows[:SHOWN], COLUMNS, as_json=as_json)
    if not as_json:
        click.echo(f"{count} adapters of {base.name}, {names[0]} to {names[-1]}")


def _registered(
    console: Console, base: AdapterBase, tenant: str | None, names: list[str], seed: int
) -> Iterator[Adapter]:
    store, shape = AdapterStore(console.config.adapters_dir), base_shape(base.path)
    with (
        tempfile.TemporaryDirectory() as scratch,
        click.progressbar(
            recipes(len(names), seed),
            length=len(names),
            label="making adapters",
            file=sys.stderr,
            hidden=not sys.stderr.isatty(),
        ) as bar,
    ):
        made = zip(names, bar, strict=True)
        while batch := list(itertools.islice(made, TOGETHER_MAX)):
            with contextlib.ExitStack() as held:
                staged = []
                for _, recipe in batch:
                    written = write_random(Path(scratch), shape, recipe, base.name)
                    staged.append(held.enter_context(stage_directory(store, base, written)))
                together = [name for name, _ in batch]
                yield from write_database(
                    console,
                    lambda c, together=together, staged=staged: _register(c, console, base, tenant, together, staged),  # type: ignore[misc]
                )


def _register(
    connection: sa.Connection,
    console: Console,
    base: AdapterBase,
    tenant: str | None,
    names: list[str],
    staged: list[StagedAdapter],
) -> list[Adapter]:
    """Register these adapters in one transaction."""
    administration = console.administration
    return [
        administration.adapters.register(
            connection, Registration(name=name, tenant_id=tenant, base_model=base.name), one.facts, one.keep_content
        )[0]
        for name, one in zip(names, staged, strict=True)
    ]
