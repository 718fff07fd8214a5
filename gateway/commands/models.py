"""`laneway models list|add|set|remove|restore`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import click
import msgspec

from billing.database import Database
from gateway.admin.model_rollout import ModelRollout
from gateway.admin.models import NewModel
from gateway.catalog.base_models import BaseModel, Dtype, ModelChange, NoSuchDirectory, list_models
from gateway.commands.console import Console, fail, json_option, pass_console, show_row, show_rows
from gateway.commands.database import read, sentence, with_database, write
from gateway.engines.engine import Engine, EngineUnavailable
from gateway.engines.local import LocalEngine

CONNECT_S_MAX = 5.0
LOOK_S_MAX = 1.0
COLUMNS = ("name", "state", "origin", "pinned", "tenants", "fallbacks", "dtype", "path", "reason")
T = TypeVar("T")

model_argument = click.argument("model")


@click.group("models")
def models_group() -> None:
    """Base models: those of laneway.toml, and models added while the engine serves."""


@models_group.command("list")
@json_option
@pass_console
def list_command(console: Console, as_json: bool) -> None:
    """All base models, the removed ones too, and what a running engine of this host says of each."""
    found = read(console, lambda c: list_models(c, console.config))
    states = asyncio.run(_states(console))
    rows = [_shown(model) | _state(model, states) for model in found]
    show_rows(rows, COLUMNS, as_json=as_json)


@models_group.command("add")
@click.argument("path")
@click.option("--name", help="What callers write as `model`; without it: PATH.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Without it: the others'.")
@click.option("--context-tokens", type=int, help="At most; without it: what its config.json says.")
@click.option("--pinned", is_flag=True, help="Its weights never leave the device.")
@click.option("--tenant", "tenants", multiple=True, help="Who may call it, a slug or an id; repeatable. Else all.")
@click.option("--fallback", "fallbacks", multiple=True, help="A model that serves in its place; repeatable, in order.")
@click.option("--max-tokens-default", type=int, help="For requests that name none.")
@json_option
@pass_console
def add_command(
    console: Console,
    path: str,
    name: str | None,
    dtype: str | None,
    context_tokens: int | None,
    pinned: bool,
    tenants: tuple[str, ...],
    fallbacks: tuple[str, ...],
    max_tokens_default: int | None,
    as_json: bool,
) -> None:
    """Serve the model in PATH, a directory inside gateway.models_dir, beside the others. A running engine checks it
    first; every gateway follows within a second. It needs a price before: laneway prices publish NAME --ahead."""
    given = {
        "pinned": pinned or None,
        "tenants": tenants or None,
        "fallbacks": fallbacks or None,
        "max_tokens_default": max_tokens_default,
    }
    wanted = NewModel(
        name=name or path,
        path=path,
        dtype=None if dtype is None else msgspec.convert(dtype, type=Dtype),
        context_tokens=context_tokens,
        change=msgspec.convert({name: value for name, value in given.items() if value is not None}, ModelChange),
    )
    made = _with_engine(console, lambda changes: changes.add_model(wanted, lambda name, files: None))
    show_row(_shown(made), as_json=as_json)


@models_group.command("set")
@model_argument
@click.option("--pinned/--not-pinned", default=None, help="Its weights never leave the device.")
@click.option("--tenant", "tenants", multiple=True, help="Who may call it, a slug or an id; '*': all; repeatable.")
@click.option("--fallback", "fallbacks", multiple=True, help="A model that serves in its place; repeatable, in order.")
@click.option("--no-fallbacks", is_flag=True)
@click.option("--max-tokens-default", type=int, help="For requests that name none; 0: as it was configured.")
@json_option
@pass_console
def set_command(
    console: Console,
    model: str,
    pinned: bool | None,
    tenants: tuple[str, ...],
    fallbacks: tuple[str, ...],
    no_fallbacks: bool,
    max_tokens_default: int | None,
    as_json: bool,
) -> None:
    """Change what is given of MODEL. What is not given stays."""
    if fallbacks and no_fallbacks:
        fail("--fallback and --no-fallbacks exclude each other")
    given: dict[str, object] = {}
    if pinned is not None:
        given["pinned"] = pinned
    if tenants:
        given["tenants"] = None if "*" in tenants else tenants
    if fallbacks or no_fallbacks:
        given["fallbacks"] = fallbacks
    if max_tokens_default is not None:
        given["max_tokens_default"] = max_tokens_default or None
    if not given:
        fail("nothing was given to change; see: laneway models set --help")
    administration, change = console.administration, msgspec.convert(given, ModelChange)
    show_row(_shown(write(console, lambda c: administration.models.update(c, model, change))), as_json=as_json)


@models_group.command("remove")
@model_argument
@pass_console
def remove_command(console: Console, model: str) -> None:
    """Remove MODEL. Requests for it and for its adapters are refused; running requests continue to their end."""
    administration = console.administration
    after = write(console, lambda c: administration.models.remove(c, model))
    click.echo(f"{after.name}: removed; a running engine drains it. Back with: laneway models restore {after.name}")


@models_group.command("restore")
@model_argument
@json_option
@pass_console
def restore_command(console: Console, model: str, as_json: bool) -> None:
    """Serve the removed MODEL again, with its adapters, once a running engine has it."""
    after = _with_engine(console, lambda changes: changes.restore(model, lambda name, files: None))
    show_row(_shown(after), as_json=as_json)


def _with_engine(console: Console, work: Callable[[ModelRollout], Awaitable[T]]) -> T:
    """Stages go to stderr. Refused in one sentence, also while no engine runs."""

    async def run(database: Database) -> T:
        async with _engine(console, CONNECT_S_MAX) as engine:
            changes = ModelRollout(database, engine, console.administration, lambda stage: click.echo(stage, err=True))
            return await work(changes)

    def refused_here(database: Database) -> T:
        try:
            return asyncio.run(run(database))
        except NoSuchDirectory as error:  # an answer over HTTP does not tell where on the host the folder is
            fail(f"{sentence(error)}; the folder is {console.config.models_dir}")

    try:
        return with_database(console.config, refused_here)
    except EngineUnavailable as error:
        fail(f"nothing was changed: {error}; start one with: laneway serve")


@contextlib.asynccontextmanager
async def _engine(console: Console, wait_s: float) -> AsyncIterator[Engine]:
    """The one of this host. Raises EngineUnavailable."""
    engine = LocalEngine(console.config.socket_path)
    await engine.start()
    try:
        await engine.wait_ready(wait_s)
        yield engine
    finally:
        await engine.close()


async def _states(console: Console) -> tuple[frozenset[str], dict[str, str]] | None:
    """What the engine serves, and what it refuses and why; None: there is none."""
    try:
        async with _engine(console, LOOK_S_MAX) as engine:
            return frozenset(engine.models), dict(engine.refused)
    except EngineUnavailable:
        return None


def _state(model: BaseModel, states: tuple[frozenset[str], dict[str, str]] | None) -> dict[str, object]:
    if not model.active or states is None:
        return {"state": "active" if model.active else "removed", "reason": None}
    served, refused = states
    if model.name in served:
        return {"state": "serving", "reason": None}
    return {"state": "refused" if model.name in refused else "loading", "reason": refused.get(model.name)}


def _shown(model: BaseModel) -> dict[str, object]:
    row: dict[str, object] = msgspec.to_builtins(model)
    return row | {"tenants": "*" if model.tenants is None else list(model.tenants)}
