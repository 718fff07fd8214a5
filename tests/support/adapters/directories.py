"""Adapters stored from a directory that peft wrote, for tests and benchmarks below the gateway."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from adapters.files.check import check_adapter, write_resolved_modules
from adapters.files.spec import AdapterSpec, BaseShape
from adapters.files.store import AdapterStore


@dataclass(slots=True, frozen=True)
class StoredAdapter:
    digest: str
    spec: AdapterSpec
    bytes: int  # of both files
    path: Path


def add_directory(store: AdapterStore, source: Path, base: BaseShape) -> StoredAdapter:
    """Copy, check and keep the two files of `source`, as an upload does. The same content again changes nothing.
    Raises AdapterRefused, OSError; then nothing is left behind."""
    with store.begin_incoming() as incoming:
        incoming.copy_files(source)
        checked = check_adapter(incoming.path, base)
        write_resolved_modules(incoming.path, checked.spec)
        size = incoming.bytes
        incoming.sync()
        path = store.keep_content(incoming, checked.digest)
    return StoredAdapter(checked.digest, checked.spec, size, path)
