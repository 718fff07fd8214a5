"""Every check of an adapter's two files, and the digest of the adapter's meaning, in one pass over the numbers.

It reads in small blocks, so that memory does not grow with the file. It loads no torch, runs nothing it reads, and must
never know about tenants or names of adapters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from adapters.files.config import CONFIG_BYTES_MAX, RANK_MAX, parse_config, parse_stored_config
from adapters.files.header import FILE_BYTES_MAX, AdapterRefused, Tensor, header_digest, read_header
from adapters.files.resolved import ResolvedModules, read_resolved, write_resolved
from adapters.files.spec import AdapterSpec, BaseShape, fit, resolve, validate

if TYPE_CHECKING:
    from hashlib import _Hash

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
FILES = {CONFIG_FILE: CONFIG_BYTES_MAX, WEIGHTS_FILE: FILE_BYTES_MAX}
BLOCK_BYTES = 1024 * 1024  # a multiple of every item's size

Progress = Callable[[int], None]


@dataclass(slots=True, frozen=True)
class CheckedAdapter:
    """A valid adapter. `digest`: SHA-256, lowercase hex, over the content that changes the arithmetic: each module's
    rank and scale, and the tensors' names, dtypes, shapes and bytes in the order of their names. The order in the file
    and the rest of the configuration do not count."""

    spec: AdapterSpec
    digest: str


def read_adapter(path: Path, base: BaseShape) -> AdapterSpec:
    """Every check of the two files in a directory, weights included. Raises AdapterRefused, OSError."""
    spec = read_spec(path, base)
    _scan(path, spec, "float32", None, None)
    return spec


def check_adapter(
    path: Path,
    base: BaseShape,
    *,
    rank_max: int = RANK_MAX,
    dtype: str = "float32",
    on_bytes: Progress | None = None,
) -> CheckedAdapter:
    """As `read_adapter`, for a base that takes ranks up to `rank_max` and computes in `dtype` (float32, bfloat16 or
    float16), with the digest. `on_bytes(count)` is called after each `count` bytes of weights."""
    return check_numbers(path, read_spec(path, base, rank_max), dtype, on_bytes)


def check_numbers(path: Path, spec: AdapterSpec, dtype: str, on_bytes: Progress | None = None) -> CheckedAdapter:
    """The second part of `check_adapter`, after `read_spec`: the numbers. Raises AdapterRefused, OSError."""
    modules = [(m.layer, m.module, m.rank, m.scale) for m in spec.modules]
    digest = hashlib.sha256(_meaning(modules, _by_name(spec)))
    _scan(path, spec, dtype, digest, on_bytes)
    return CheckedAdapter(spec, digest.hexdigest())


def check_stored(directory: Path, base: BaseShape, dtype: str) -> CheckedAdapter:
    """As `check_adapter`, for a resolved directory of the store. Raises AdapterRefused, ModulesUnresolved,
    OSError."""
    return check_numbers(directory, read_stored(directory, base), dtype)


def stored_digest(directory: Path) -> str:
    """The digest of a resolved directory, whatever base it fits; `read_stored` checks the rest. Raises AdapterRefused,
    OSError."""
    resolved, weights = read_resolved(directory), directory / WEIGHTS_FILE
    if header_digest(weights) != resolved.header:
        raise AdapterRefused(f"{weights.name}: it is not the file that was checked")
    tensors = sorted(read_header(weights).values(), key=lambda tensor: tensor.name)
    modules = [(layer, module, *found) for (layer, module), found in sorted(resolved.modules.items())]
    digest = hashlib.sha256(_meaning(modules, tensors))
    buffer = bytearray(BLOCK_BYTES)
    with memoryview(buffer) as view, weights.open("rb", buffering=0) as file:
        for tensor in tensors:
            file.seek(tensor.start)
            for start in range(tensor.start, tensor.stop, BLOCK_BYTES):
                with view[: min(BLOCK_BYTES, tensor.stop - start)] as block:
                    _fill(file, block, tensor)
                    digest.update(block)
    return digest.hexdigest()


def read_spec(path: Path, base: BaseShape, rank_max: int = RANK_MAX) -> AdapterSpec:
    """Read configuration, header and shapes, without the numbers. It evaluates the configuration's patterns: only the
    check of an adapter may call it. Raises AdapterRefused, OSError."""
    with (path / CONFIG_FILE).open("rb") as file:
        config = parse_config(file.read(CONFIG_BYTES_MAX + 1))
    return validate(config, read_header(path / WEIGHTS_FILE), base, rank_max)


def read_stored(directory: Path, base: BaseShape) -> AdapterSpec:
    """As `read_spec`, for a resolved directory: it reads no configuration and evaluates no pattern. Raises
    AdapterRefused, ModulesUnresolved, OSError."""
    resolved, weights = read_resolved(directory), directory / WEIGHTS_FILE
    header = read_header(weights)
    if header_digest(weights) != resolved.header:
        raise AdapterRefused(f"{weights.name}: it is not the file that was checked")
    return fit(resolved, header, base)


def write_resolved_modules(directory: Path, spec: AdapterSpec) -> None:
    """Write the modules that the check of this directory found, for engines to load. Raises OSError."""
    modules = {(module.layer, module.module): (module.rank, module.scale) for module in spec.modules}
    write_resolved(directory, ResolvedModules(header_digest(directory / WEIGHTS_FILE), modules))


def resolve_stored(directory: Path) -> None:
    """Resolve a directory of the store that was checked before `modules-1.json` existed. Matching its patterns may
    take unlimited time: call it in a process with a CPU limit. Raises AdapterRefused, OSError."""
    with (directory / CONFIG_FILE).open("rb") as file:
        config = parse_stored_config(file.read(CONFIG_BYTES_MAX + 1))
    weights = directory / WEIGHTS_FILE
    modules = resolve(config, read_header(weights))
    write_resolved(directory, ResolvedModules(header_digest(weights), modules))


def _by_name(spec: AdapterSpec) -> list[Tensor]:
    return sorted((t for m in spec.modules for t in (m.a, m.b)), key=lambda tensor: tensor.name)


def _meaning(modules: Iterable[tuple[int, str, int, float]], tensors: Iterable[Tensor]) -> bytes:
    """The input of the digest before the numbers. `modules`: layer, name, rank and scale; both are sorted."""
    meaning = {
        "format": "laneway-adapter-1",
        "modules": [[layer, module, rank, scale.hex()] for layer, module, rank, scale in modules],
        "tensors": [[t.name, t.dtype, list(t.shape)] for t in tensors],
    }
    return json.dumps(meaning, separators=(",", ":"), sort_keys=True).encode() + b"\0"


def _scan(path: Path, spec: AdapterSpec, dtype: str, digest: _Hash | None, on_bytes: Progress | None) -> None:
    """Read every number, block by block. Raises AdapterRefused for the first that is not finite."""
    from adapters.files.finite import check_finite  # numpy takes longer to load than most refusals take

    buffer = bytearray(BLOCK_BYTES)
    with memoryview(buffer) as view, (path / WEIGHTS_FILE).open("rb", buffering=0) as file:
        for tensor in _by_name(spec):
            file.seek(tensor.start)
            for start in range(tensor.start, tensor.stop, BLOCK_BYTES):
                with view[: min(BLOCK_BYTES, tensor.stop - start)] as block:
                    _fill(file, block, tensor)
                    check_finite(block, tensor, start - tensor.start, dtype)
                    if digest is not None:
                        digest.update(block)
                    if on_bytes is not None:
                        on_bytes(len(block))


def _fill(file: BinaryIO, block: memoryview, tensor: Tensor) -> None:
    done = 0
    while done < len(block):
        with block[done:] as rest:
            read: int | None = file.readinto(rest)  # type: ignore[attr-defined]  # a raw file has it
        if not read:
            raise AdapterRefused(f"{tensor.name}: the file became shorter while it was read")
        done += read
