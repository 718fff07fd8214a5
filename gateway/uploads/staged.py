"""Staged adapters: adapters whose files were copied and checked, and that have no name and no row yet.

Nothing here touches the database or the engine. A staged adapter that is closed without being kept leaves no files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import msgspec

from adapters.files.check import CONFIG_FILE, Progress, check_adapter, write_resolved_modules
from adapters.files.config import CONFIG_BYTES_MAX, RANK_MAX
from adapters.files.facts import Facts, facts_of, names_of_base, short_name
from adapters.files.store import AdapterStore, IncomingAdapter, slab_of
from billing.errors import RowNotFound
from gateway.catalog.base_models import BaseModel
from gateway.catalog.registry import base_shape
from gateway.config.file import Config


@dataclass(slots=True, frozen=True)
class AdapterBase:
    """The shape of a base model that its adapters must fit. `rank_max`: the largest rank that the engine computes.
    `slabs`: each adapter is also stored as a slab file, in the engine's memory layout."""

    name: str
    path: Path
    dtype: str
    rank_max: int
    slabs: bool = False


class StagedAdapter:
    """A checked adapter in the store's directory of incoming files."""

    def __init__(self, store: AdapterStore, incoming: IncomingAdapter, facts: Facts) -> None:
        self.facts = facts
        self._store = store
        self._incoming = incoming

    def keep_content(self) -> None:
        """Move the files into the store, unless the store has the content already. To be called in the transaction that
        writes the adapter's row: a sweep of the store takes the same lock, so it sees both or neither."""
        if not self._store.has(self.facts.digest):
            self._store.keep_content(self._incoming, self.facts.digest)

    def close(self) -> None:
        self._incoming.close()

    def __enter__(self) -> StagedAdapter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Named(msgspec.Struct):
    """The field of an adapter's configuration that names its base model."""

    base_model_name_or_path: str | None = None


def base_of(config: Config, models: Sequence[BaseModel], name: str | None) -> AdapterBase:
    """The base model with this name; without a name, the only one of `models`. Raises RowNotFound."""
    names = ", ".join(model.name for model in models)
    if name is None and len(models) != 1:
        raise RowNotFound(f"choose a base model: one of {names}", "base")
    model = models[0] if name is None else next((model for model in models if model.name == name), None)
    if model is None:
        raise RowNotFound(f"there is no base model {name!r}; there are {names}", "base")
    return _base(config, model)


def base_for(config: Config, models: Sequence[BaseModel], name: str | None, adapter: Path) -> AdapterBase:
    """The base model of an upload: as `base_of`, or without a name and with several models, the model that the files in
    `adapter` name as their base."""
    named = base_named(config, models, adapter) if name is None and len(models) > 1 else None
    return named or base_of(config, models, name)


def base_named(config: Config, models: Sequence[BaseModel], adapter: Path) -> AdapterBase | None:
    """The base model that the files in `adapter` say it was trained for, whatever the publisher's prefix. None if they
    name none of `models`, or cannot be read; the check of the adapter then gives the reason."""
    try:
        with (adapter / CONFIG_FILE).open("rb") as file:
            base_name = msgspec.json.decode(file.read(CONFIG_BYTES_MAX), type=_Named).base_model_name_or_path
    except (OSError, ValueError, RecursionError):
        return None
    wanted = short_name(base_name or "")
    found = [model for model in models if wanted in (short_name(model.name), short_name(model.path))]
    return _base(config, found[0]) if wanted and len(found) == 1 else None


def _base(config: Config, model: BaseModel) -> AdapterBase:
    rank_max = config.engine.adapter_rank_max if config.engine.device == "cuda" else RANK_MAX
    return AdapterBase(model.name, Path(model.path), model.dtype, rank_max, config.adapters.slabs)


def stage_directory(
    store: AdapterStore, base: AdapterBase, source: Path, on_bytes: Progress | None = None
) -> StagedAdapter:
    """Copy the adapter in the directory `source` and check the copy, in this process. `on_bytes` is called with the
    number of copied bytes, and again with the number of checked bytes. Raises AdapterRefused, OSError, ValueError, and
    leaves no files then."""
    incoming = store.begin_incoming()
    try:
        incoming.copy_files(source, on_bytes)
        shape = base_shape(base.path)
        checked = check_adapter(incoming.path, shape, rank_max=base.rank_max, dtype=base.dtype, on_bytes=on_bytes)
        write_resolved_modules(incoming.path, checked.spec)
        facts = facts_of(checked, incoming.bytes, names_of_base(base.name, base.path))
        if base.slabs:
            slab_of(incoming.path, checked, shape, base.dtype)
        incoming.sync()
    except BaseException:
        incoming.close()
        raise
    return StagedAdapter(store, incoming, facts)
