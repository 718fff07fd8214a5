"""The file with the rank and the scale of each module of a stored adapter. The check of the adapter computes them from
the patterns of its configuration, so that no engine evaluates patterns (docs/decisions/0017).

An engine reads this file and the header of the weights, and never the configuration. This module evaluates no pattern,
loads no torch, and must never know about tenants or names of adapters.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.files.header import AdapterRefused

RESOLVED_FORMAT = 1
RESOLVED_FILE = f"modules-{RESOLVED_FORMAT}.json"
RESOLVED_BYTES_MAX = 4 * 1024 * 1024  # 16,384 tensors are 8,192 modules of at most 64 bytes

Key = tuple[int, str]  # layer, module


class ModulesUnresolved(AdapterRefused):
    """The file is missing or damaged. It can be made again from the adapter's configuration and weights."""


@dataclass(slots=True, frozen=True)
class ResolvedModules:
    """`header`: SHA-256, lowercase hex, of the bytes of the weights' file before its first tensor data."""

    header: str
    modules: dict[Key, tuple[int, float]]  # → rank, scale


def write_resolved(directory: Path, resolved: ResolvedModules) -> None:
    """Write the file into the adapter's `directory`, atomically. Raises OSError."""
    modules = [[layer, module, *_spelled(*found)] for (layer, module), found in sorted(resolved.modules.items())]
    body = {"format": RESOLVED_FORMAT, "header": resolved.header, "modules": modules}
    text = json.dumps({**body, "sum": _sum(body)}, separators=(",", ":"))
    target = directory / RESOLVED_FILE
    begun = target.with_name(f".{RESOLVED_FILE}.{os.getpid()}")  # two gateways may write it at the same time
    try:
        with begun.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        begun.rename(target)
    except BaseException:
        begun.unlink(missing_ok=True)
        raise


def read_resolved(directory: Path) -> ResolvedModules:
    """Read what `write_resolved` wrote. Raises ModulesUnresolved, OSError."""
    path = directory / RESOLVED_FILE
    try:
        with path.open("rb") as file:
            data = file.read(RESOLVED_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ModulesUnresolved(
            f"{RESOLVED_FILE}: missing; the gateway makes it from the adapter's configuration"
        ) from None
    try:
        found = json.loads(data)
        written = found.pop("sum")
        modules = {(int(layer), str(module)): _read(rank, scale) for layer, module, rank, scale in found["modules"]}
        if found["format"] != RESOLVED_FORMAT or written != _sum(found):
            raise ValueError("its checksum does not match")
        return ResolvedModules(str(found["header"]), modules)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModulesUnresolved(f"{RESOLVED_FILE}: damaged ({str(error)[:64]}); the gateway makes it again") from error


def is_resolved(directory: Path) -> bool:
    return (directory / RESOLVED_FILE).exists()


def _spelled(rank: int, scale: float) -> tuple[int, str]:
    return rank, scale.hex()


def _read(rank: Any, scale: Any) -> tuple[int, float]:
    found = float.fromhex(scale)
    if type(rank) is not int or rank < 1 or not math.isfinite(found):
        raise ValueError("an invalid rank or scale")
    return rank, found


def _sum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, separators=(",", ":"), sort_keys=True).encode()).hexdigest()
