"""The digest of a model directory's content, computed once and kept beside the files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

from engine.contents.manifests import CONFIG, digest_of_files, weight_names

DIGEST_CACHE = ".laneway-digest.json"


def model_digest(directory: Path) -> str:
    """SHA-256 over config.json and the weights, in hex. Cached in DIGEST_CACHE until a file's size or modification time
    changes, since hashing a large model takes longer than loading it. Raises ValueError, OSError."""
    files = _files(directory)
    seen = _stamps(files)
    if (kept := _cached(directory, seen)) is not None:
        return kept
    digest = digest_of_files(map(_file_sum, files))
    _write_beside(directory / DIGEST_CACHE, json.dumps({"files": seen, "digest": digest}))
    return digest


def cached_digest(directory: Path) -> str | None:
    """The same without reading the weights; None: it is not known."""
    try:
        return _cached(directory, _stamps(_files(directory)))
    except (OSError, ValueError):
        return None


def _files(directory: Path) -> list[Path]:
    return [directory / name for name in (CONFIG, *weight_names(directory))]


def _stamps(files: list[Path]) -> list[list[object]]:
    """Name, size and modification time of each file."""
    return [[path.name, (found := path.stat()).st_size, found.st_mtime_ns] for path in files]


def _cached(directory: Path, seen: list[list[object]]) -> str | None:
    try:
        kept = json.loads((directory / DIGEST_CACHE).read_bytes())
        return str(kept["digest"]) if kept["files"] == seen else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no cache, or an invalid one


def _file_sum(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _write_beside(path: Path, text: str) -> None:
    """Best effort: a model directory may be read-only."""
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        scratch.write_text(text)
        scratch.replace(path)
    except OSError:
        # A read-only file system refuses to remove even a file that does not exist.
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
