"""`laneway models list|show|add|set|remove|restore`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar, get_args

import click
import msgspec

from billing.database import Database
from engine.protocol.frames import ModelInfo
from gateway.admin.model_rollout import ModelRollout
from gateway.admin.models import NewModel
from gateway.catalog.adapters import EVERYONE
from gateway.catalog.base_models import (
    BaseModel,
    Dtype,
    KvDtype,
    ModelChange,
    NoSuchDirectory,
    Quantize,
    list_models,
    model_named,
)
from gateway.commands.console import Command, Console, fail, json_option, pass_console, show_row, show_rows
from gateway.commands.database import read_database, sentence, with_database, write_database
from gateway.engines.engine import Engine, EngineUnavailable
from gateway.engines.local import LocalEngine
from gateway.views.models import ModelQualityView, quality_view

CONNECT_S_MAX = 5.0
LOOK_S_MAX = 1.0
COLUMNS = (
    "name", "state", "origin", "pinned", "tenants", "fallbacks", "dtype", "weights_format", "kv_format", "path",
    "reason",
)  # fmt: skip
T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class EngineState:
    """The models that a running engine serves, and the models that it refuses, with reasons."""

    served: Mapping[str, ModelInfo]
    refused: Mapping[str, str]


model_argument = click.argument("model")


def settings_options(command: Command) -> Command:
    """The options of `ModelChange`, for `add` and `set`."""
    for option in (
        click.option("--max-tokens-default", type=int, help="For requests without max_tokens; 0: as configured."),
        click.option("--no-fallbacks", is_flag=True, help="No other model serves in its place."),
        click.option(
            "--fallback", "fallbacks", multiple=True, help="A model that serves in its place; repeatable, in order."
        ),
        click.option(
            "--tenant", "tenants", multiple=True, help="A tenant that may call it, slug or id; repeatable. '*': all."
        ),
        click.option("--pinned/--not-pinned", default=None, help="Never evict its weights from the device."),
    ):
        command = option(command)
    return command


@click.group("models")
def models_group() -> None:
    """Base models: the models of laneway.toml, and models added while the engine serves."""


@models_group.command("list")
@json_option
@pass_console
def list_command(console: Console, as_json: bool) -> None:
    """All base models, removed models too, with each model's state in a running engine of this host."""
    models = read_database(console, lambda c: list_models(c, console.config))
    engine = asyncio.run(_engine_state(console))
    rows = [_shown(model) | _state(model, engine, as_json=as_json) for model in models]
    show_rows(rows, COLUMNS, as_json=as_json)


@models_group.command("show")
@model_argument
@json_option
@pass_console
def show_command(console: Console, model: str, as_json: bool) -> None:
    """One base model: its settings, its state in a running engine of this host, and the report of its quality."""
    found = read_database(console, lambda c: model_named(c, console.config, model))
    engine = asyncio.run(_engine_state(console))
    show_row(_shown(found) | _state(found, engine, as_json=as_json), as_json=as_json)


@models_group.command("add")
@click.argument("path")
@click.option("--name", help="The name that callers write as `model`. Default: PATH.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Default: the other models'.")
@click.option(
    "--quantize", type=click.Choice(get_args(Quantize)), help="Format to make of unquantised weights. Default: none."
)
@click.option("--kv-dtype", type=click.Choice(get_args(KvDtype)), help="Format of KV. Default: auto, the dtype.")
@click.option("--context-tokens", type=int, help="Limit of the context. Default: by the model's config.json.")
@settings_options
@json_option
@pass_console
def add_command(
    console: Console,
    path: str,
    name: str | None,
    dtype: str | None,
    quantize: str | None,
    kv_dtype: str | None,
    context_tokens: int | None,
    pinned: bool | None,
    tenants: tuple[str, ...],
    fallbacks: tuple[str, ...],
    no_fallbacks: bool,
    max_tokens_default: int | None,
    as_json: bool,
) -> None:
    """Serve the model in the directory PATH of gateway.models_dir. The name needs a price before: laneway prices
    publish NAME --ahead. A running engine checks the files first; every gateway serves the model within a second.

    For a model that was added already, settings that are not given do not change."""
    new = NewModel(
        name=name or path,
        path=path,
        dtype=None if dtype is None else msgspec.convert(dtype, type=Dtype),
        quantize=None if quantize is None else msgspec.convert(quantize, type=Quantize),
        kv_dtype=None if kv_dtype is None else msgspec.convert(kv_dtype, type=KvDtype),
        context_tokens=context_tokens,
        change=_change(pinned, tenants, fallbacks, no_fallbacks, max_tokens_default),
    )
    added = _with_engine(console, lambda rollout: rollout.add_model(new, lambda name, files: None))
    show_row(_shown(added), as_json=as_json)


@models_group.command("set")
@model_argument
@settings_options
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
    """Change settings of MODEL. A setting that is not given does not change."""
    change = _change(pinned, tenants, fallbacks, no_fallbacks, max_tokens_default)
    if change == ModelChange():
        fail("nothing was given to change; see: laneway models set --help")
    administration = console.administration
    show_row(_shown(write_database(console, lambda c: administration.models.update(c, model, change))), as_json=as_json)


@models_group.command("remove")
@model_argument
@pass_console
def remove_command(console: Console, model: str) -> None:
    """Remove MODEL. New requests for it and its adapters are refused; running requests finish."""
    administration = console.administration
    after = write_database(console, lambda c: administration.models.remove(c, model))
    click.echo(f"{after.name}: removed; a running engine drains it. Undo with: laneway models restore {after.name}")


@models_group.command("restore")
@model_argument
@json_option
@pass_console
def restore_command(console: Console, model: str, as_json: bool) -> None:
    """Serve the removed MODEL and its adapters again, after a running engine has registered the model."""
    after = _with_engine(console, lambda rollout: rollout.restore(model, lambda name, files: None))
    show_row(_shown(after), as_json=as_json)


def _change(
    pinned: bool | None,
    tenants: tuple[str, ...],
    fallbacks: tuple[str, ...],
    no_fallbacks: bool,
    max_tokens_default: int | None,
) -> ModelChange:
    """The options of `settings_options` as a change: an option that is not given leaves its field UNSET."""
    if fallbacks and no_fallbacks:
        fail("--fallback and --no-fallbacks exclude each other")
    given: dict[str, object] = {}
    if pinned is not None:
        given["pinned"] = pinned
    if tenants:
        given["tenants"] = None if EVERYONE in tenants else tenants
    if fallbacks or no_fallbacks:
        given["fallbacks"] = fallbacks
    if max_tokens_default is not None:
        given["max_tokens_default"] = max_tokens_default or None
    return msgspec.convert(given, ModelChange)


def _with_engine(console: Console, work: Callable[[ModelRollout], Awaitable[T]]) -> T:
    """Run `work` with the engine of this host; its stages are written to stderr. A refusal, or an engine that is
    unavailable, ends the command with one sentence."""

    async def run(database: Database) -> T:
        async with _engine(console, CONNECT_S_MAX) as engine:
            rollout = ModelRollout(database, engine, console.administration, lambda stage: click.echo(stage, err=True))
            return await work(rollout)

    def run_or_fail(database: Database) -> T:
        try:
            return asyncio.run(run(database))
        except NoSuchDirectory as error:  # the error does not name the folder, since HTTP answers must not
            fail(f"{sentence(error)}; the folder is {console.config.models_dir}")

    try:
        return with_database(console.config, run_or_fail)
    except EngineUnavailable as error:
        fail(f"nothing was changed: {error}; start one with: laneway serve")


@contextlib.asynccontextmanager
async def _engine(console: Console, wait_s: float) -> AsyncIterator[Engine]:
    """A connection to the engine of this host. Raises EngineUnavailable."""
    engine = LocalEngine(console.config.socket_path)
    await engine.start()
    try:
        await engine.wait_ready(wait_s)
        yield engine
    finally:
        await engine.close()


async def _engine_state(console: Console) -> EngineState | None:
    """None: no engine runs."""
    try:
        async with _engine(console, LOOK_S_MAX) as engine:
            return EngineState(dict(engine.models), dict(engine.refused))
    except EngineUnavailable:
        return None


def _state(model: BaseModel, engine: EngineState | None, *, as_json: bool) -> dict[str, object]:
    """A running engine's view of the model; without `as_json` its quality as a sentence."""
    info = None if engine is None else engine.served.get(model.name)
    quality = None if info is None else quality_view(info.quality)
    state, reason = "active" if model.active else "removed", None
    if model.active and engine is not None:
        reason = engine.refused.get(model.name) if info is None else None
        state = "serving" if info is not None else "loading" if reason is None else "refused"
    return {
        "state": state,
        "reason": reason,
        "weights_format": None if info is None else info.weights_format or None,
        "kv_format": None if info is None else info.kv_format or None,
        "quality": quality if quality is None or as_json else _quality_sentence(quality),
    }


def _quality_sentence(quality: ModelQualityView) -> str:
    return (
        f"KL {quality.mean_kl:.4f}, top-1 {quality.top1:.1%}, perplexity {quality.perplexity:.2f} "
        f"({quality.reference_perplexity:.2f}), layer {quality.worst_layer} off by {quality.worst_layer_error:.1%}"
    )


def _shown(model: BaseModel) -> dict[str, object]:
    row: dict[str, object] = msgspec.to_builtins(model)
    return row | {"tenants": "*" if model.tenants is None else list(model.tenants)}
