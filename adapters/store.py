"""Adapters on disk, named by their content: a directory of two files per digest, complete or not there.

It loads no torch, runs nothing it reads, and must never know about tenants or names of adapters.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import shutil
import stat
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adapters.config import CONFIG_BYTES_MAX, parse_config
from adapters.header import FILE_BYTES_MAX, AdapterRefused, Tensor, read_header
from adapters.spec import AdapterSpec, BaseShape, validate

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
FILES = {CONFIG_FILE: CONFIG_BYTES_MAX, WEIGHTS_FILE: FILE_BYTES_MAX}
DIGEST = re.compile(r"[0-9a-f]{64}")
COPY_BYTES = 1024 * 1024
# What an import that was killed left behind is deleted by the next one, once it is this old.
INCOMING_AGE_S_MAX = 3600.0
CHECK_ITEMS = 4 * 1024 * 1024
# dtype → (unsigned integer of its size, exponent bits): all of them set means infinite or not a number.
EXPONENT = {"F32": (np.uint32, 0x7F800000), "F16": (np.uint16, 0x7C00), "BF16": (np.uint16, 0x7F80)}


@dataclass(slots=True, frozen=True)
class StoredAdapter:
    digest: str
    spec: AdapterSpec
    bytes: int  # of both files
    path: Path


class AdapterStore:
    """`<root>/<digest>/{adapter_config.json,adapter_model.safetensors}`. Processes and threads may share a root."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._incoming = root / ".incoming"

    def add_directory(self, source: Path, base: BaseShape) -> StoredAdapter:
        """Import a directory that peft wrote; only its two files are read. What is kept is what was checked: the files
        are copied first. The same content again is the same digest and changes nothing.
        Raises AdapterRefused with the reason, OSError; then nothing is left behind."""
        self._sweep()
        copy = self._incoming / uuid.uuid4().hex
        copy.mkdir(parents=True)
        try:
            for name, bytes_max in FILES.items():
                _copy(source / name, copy / name, bytes_max)
            spec = read_adapter(copy, base)
            digest = content_digest(copy / WEIGHTS_FILE, spec)
            self._commit(copy, self._root / digest)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        path = self._root / digest
        return StoredAdapter(digest, spec, sum((path / name).stat().st_size for name in FILES), path)

    def path(self, digest: str) -> Path:
        """The directory of a digest. ValueError when that is no digest; whether it is there is not asked."""
        if not DIGEST.fullmatch(digest):
            raise ValueError(f"not an adapter digest: {digest[:80]!r}")
        return self._root / digest

    def remove(self, digest: str) -> None:
        """Forget a digest. Idempotent."""
        path = self.path(digest)
        self._incoming.mkdir(parents=True, exist_ok=True)
        trash = self._incoming / uuid.uuid4().hex
        try:
            path.rename(trash)  # gone at once, and never half there
        except FileNotFoundError:
            return
        shutil.rmtree(trash)

    def _commit(self, copy: Path, path: Path) -> None:
        for name in FILES:
            _sync(copy / name)
        _sync(copy)
        try:
            copy.rename(path)
        except OSError:
            if not path.is_dir():
                raise
            return  # somebody stored the same content before
        _sync(self._root)

    def _sweep(self) -> None:
        if self._incoming.is_dir():
            for left in self._incoming.iterdir():
                try:
                    age_s = time.time() - left.lstat().st_mtime
                except FileNotFoundError:
                    continue  # another import was done with it just now
                if age_s > INCOMING_AGE_S_MAX:
                    shutil.rmtree(left, ignore_errors=True)


def read_adapter(path: Path, base: BaseShape) -> AdapterSpec:
    """Every check of the two files in a directory, weights included. Raises AdapterRefused, OSError."""
    with (path / CONFIG_FILE).open("rb") as file:
        config = parse_config(file.read(CONFIG_BYTES_MAX + 1))
    spec = validate(config, read_header(path / WEIGHTS_FILE), base)
    with (path / WEIGHTS_FILE).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for tensor in (tensor for module in spec.modules for tensor in (module.a, module.b)):
            bad = _first_not_finite(data, tensor)
            if bad is not None:
                raise AdapterRefused(f"{tensor.name}: number {bad} is NaN or infinite")
    return spec


def content_digest(weights: Path, spec: AdapterSpec) -> str:
    """SHA-256, lowercase hex, over what changes the arithmetic: each module's rank and scale, and the tensors' names,
    dtypes, shapes and bytes in the order of their names. The order in the file and the rest of the configuration do
    not count."""
    tensors = sorted((t for m in spec.modules for t in (m.a, m.b)), key=lambda tensor: tensor.name)
    meaning = {
        "format": "laneway-adapter-1",
        "modules": [[m.layer, m.module, m.rank, m.scale.hex()] for m in spec.modules],
        "tensors": [[t.name, t.dtype, list(t.shape)] for t in tensors],
    }
    digest = hashlib.sha256(json.dumps(meaning, separators=(",", ":"), sort_keys=True).encode() + b"\0")
    with (
        weights.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        memoryview(data) as v,
    ):
        for tensor in tensors:
            with v[tensor.start : tensor.stop] as part:
                digest.update(part)
    return digest.hexdigest()


def _first_not_finite(data: mmap.mmap, tensor: Tensor) -> int | None:
    """Index of the first NaN or infinity, by bit pattern: numpy has no bfloat16."""
    integer, exponent = EXPONENT[tensor.dtype]
    size = np.dtype(integer).itemsize
    count = (tensor.stop - tensor.start) // size
    for first in range(0, count, CHECK_ITEMS):
        bits = np.frombuffer(data, integer, min(CHECK_ITEMS, count - first), tensor.start + first * size)
        bad = (bits & exponent) == exponent
        if bad.any():
            return first + int(bad.argmax())
    return None


def _copy(source: Path, target: Path, bytes_max: int) -> None:
    """One regular file, not through a symbolic link, and no more bytes than allowed."""
    try:
        fileno = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise AdapterRefused(f"{source.name}: {_why_not_opened(source, error)}") from error
    if not stat.S_ISREG(os.fstat(fileno).st_mode):
        os.close(fileno)
        raise AdapterRefused(f"{source.name}: not a regular file")
    with os.fdopen(fileno, "rb") as reader, target.open("xb") as writer:
        copied = 0
        while block := reader.read(COPY_BYTES):
            copied += len(block)
            if copied > bytes_max:
                raise AdapterRefused(f"{source.name}: more than {bytes_max} bytes")
            writer.write(block)


def _why_not_opened(source: Path, error: OSError) -> str:
    if source.is_symlink():
        return "a symbolic link"
    if source.with_suffix(".bin").exists():
        return "missing; a pickled .bin is never read, save the adapter with safe_serialization"
    return os.strerror(error.errno or 0)


def _sync(path: Path) -> None:
    fileno = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fileno)
    finally:
        os.close(fileno)
