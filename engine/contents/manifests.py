"""The manifest of an adapter's or a model's directory: the files that an engine needs, and how their digest follows.

A gateway writes it, an engine on another host reads it. No torch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from adapters.files.check import WEIGHTS_FILE
from adapters.files.header import FILE_BYTES_MAX
from adapters.files.resolved import RESOLVED_BYTES_MAX, RESOLVED_FILE
from engine.text.small_files import read_small

ContentKind = Literal["adapters", "models"]

# The manifest's own name, beside the files.
MANIFEST = "manifest"
MANIFEST_BYTES_MAX = 1024 * 1024
DIGEST = re.compile(r"[0-9a-f]{64}")
# An engine evaluates no pattern of an adapter's configuration, and makes slab files itself: it needs these two.
ADAPTER_FILES = {RESOLVED_FILE: RESOLVED_BYTES_MAX, WEIGHTS_FILE: FILE_BYTES_MAX}

CONFIG = "config.json"
SINGLE = "model.safetensors"  # the one file of a model without shards
INDEX = "model.safetensors.index.json"  # names the file of each tensor of a model in shards
INDEX_BYTES_MAX = 8 * 1024 * 1024
WEIGHTS_SUFFIX = ".safetensors"


class ManifestFile(msgspec.Struct, frozen=True):
    """A file of the directory itself. `sha256` in hex; "": the digest of an adapter covers it."""

    # One path segment that no shell, URL or object store reads in a second way, and no hidden file.
    name: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")]
    bytes: Annotated[int, Meta(ge=0, le=2**48)]
    sha256: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")] = ""


class ContentManifest(msgspec.Struct, frozen=True):
    """Sorted by name."""

    files: Annotated[tuple[ManifestFile, ...], Meta(min_length=1, max_length=2048)]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def file(self, name: str) -> ManifestFile | None:
        return next((file for file in self.files if file.name == name), None)


class ManifestRefused(ValueError):
    """The manifest does not have this digest; the message has the reason."""


def encode_manifest(manifest: ContentManifest) -> bytes:
    """Equal manifests have equal bytes."""
    return msgspec.json.encode(manifest)


def read_manifest(data: bytes, kind: ContentKind, digest: str) -> ContentManifest:
    """The manifest in `data`, checked without any of its files. A model's digest is recomputed from the files' own.
    Raises ManifestRefused."""
    try:
        manifest = msgspec.json.decode(data, type=ContentManifest)
    except msgspec.MsgspecError as error:
        raise ManifestRefused(f"its manifest is invalid: {error}") from error
    names = [file.name for file in manifest.files]
    if len(set(names)) != len(names) or MANIFEST in names:
        raise ManifestRefused("its manifest names a file twice, or itself")
    if kind == "adapters":
        _check_adapter(manifest)
    elif (found := manifest_digest(manifest)) != digest:
        raise ManifestRefused(f"it has the model {found}")
    return manifest


def _check_adapter(manifest: ContentManifest) -> None:
    if {file.name for file in manifest.files} != ADAPTER_FILES.keys():
        raise ManifestRefused(f"an adapter's files are {' and '.join(ADAPTER_FILES)}")
    for file in manifest.files:
        if file.bytes > ADAPTER_FILES[file.name]:
            raise ManifestRefused(f"{file.name}: {file.bytes} bytes, more than {ADAPTER_FILES[file.name]}")


def manifest_digest(manifest: ContentManifest) -> str:
    """The digest of a model, from the digests of its files. Raises ManifestRefused if the manifest lacks one."""
    weights = sorted(file.name for file in manifest.files if file.name.endswith(WEIGHTS_SUFFIX))
    sums = {file.name: file.sha256 for file in manifest.files}
    if CONFIG not in sums or not weights or not all(sums.values()):
        raise ManifestRefused(f"a model has {CONFIG}, *{WEIGHTS_SUFFIX} and the SHA-256 of each file")
    return digest_of_files(bytes.fromhex(sums[name]) for name in [CONFIG, *weights])


def digest_of_files(sums: Iterable[bytes]) -> str:
    """The digest of a model: SHA-256, in hex, over the SHA-256 of config.json and of each weight file, by name."""
    total = hashlib.sha256()
    for found in sums:
        total.update(found)
    return total.hexdigest()


class _Index(msgspec.Struct):
    """INDEX. `weight_map`: the file of each tensor."""

    weight_map: dict[str, str]


def weight_names(directory: Path) -> list[str]:
    """Names of the model's weight files, sorted. They are the files that INDEX names. A directory without an index has
    the file SINGLE, or else every *.safetensors. A second copy of the weights, such as Mistral's
    consolidated.safetensors, is therefore not read. Raises ValueError if the directory has no weight file, or if the
    index is invalid or names a missing file."""
    index = directory / INDEX
    if index.exists():
        names = _read_index(index)
    elif (directory / SINGLE).exists():
        names = [SINGLE]
    else:
        names = sorted(path.name for path in directory.glob(f"*{WEIGHTS_SUFFIX}"))
    if not names:
        raise ValueError(f"{directory}: no *.safetensors")
    for path in (directory / name for name in names):
        if not path.is_file():  # opening a pipe could block without limit
            raise ValueError(f"{path}: {'not a file' if path.exists() else 'missing'}")
    return names


def _read_index(path: Path) -> list[str]:
    """The names of the files in an index, sorted. Raises ValueError."""
    try:
        index = msgspec.json.decode(read_small(path, INDEX_BYTES_MAX), type=_Index)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error
    for name in index.weight_map.values():
        if Path(name).name != name or not name.endswith(WEIGHTS_SUFFIX):
            raise ValueError(f"{path}: {name!r} is not the name of a *.safetensors beside it")
    return sorted(set(index.weight_map.values()))
