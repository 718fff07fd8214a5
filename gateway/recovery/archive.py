"""One backup as one file: a tar archive whose last members are a manifest, with the size and SHA-256 of every other
member, and the manifest's own digest and signature.

The archive is written once from its beginning to its end and renamed when it is complete, so a file under its final
name is whole. A reader refuses a truncated or altered archive and names the member. This module knows no database.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import msgspec

BLOCK_BYTES = 1024 * 1024
FORMAT = 1
MANIFEST, SEAL = "manifest.json", "seal.json"
MANIFEST_BYTES_MAX = 256 * 1024 * 1024
_PURPOSE = b"laneway: manifest of a backup, format 1"

OnBytes = Callable[[int], None]  # the bytes of the archive so far


class ArchiveRefused(Exception):
    """The archive is truncated, altered or of another format; the message names the file and the member."""


class ArchiveMember(msgspec.Struct, frozen=True):
    name: str
    bytes: int
    sha256: str


class BackupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The database at the backup's moment, all read from one view. Moments in microseconds UTC. `engines`: the engine
    processes that were read last. `newest_entry_at` None: the ledger is empty. `tables`: rows by table."""

    taken_at: int
    database: str  # sqlite, postgresql
    schema: str  # the newest migration
    version: str  # of Laneway
    secret: str  # fingerprint of the server secret that decrypts stored texts; "": none yet
    newest_entry_at: int | None
    entries: int
    usage: int
    engines: tuple[str, ...] = ()
    missing_adapters: tuple[str, ...] = ()  # digests whose files were not in the store


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    summary: BackupSummary
    members: tuple[ArchiveMember, ...]


class ManifestSeal(msgspec.Struct, frozen=True):
    """`signatures`: HMAC-SHA-256 of the manifest, by each server secret of the deployment."""

    sha256: str
    signatures: tuple[str, ...]


def signing_purpose() -> bytes:
    """The purpose for `ServerSecrets.derive_keys`."""
    return _PURPOSE


class ArchiveWriter:
    """Writes `<folder>/.<name>.partial`, which `finish` renames to `path`. Use it in a `with` block."""

    def __init__(self, path: Path, on_bytes: OnBytes = lambda _count: None) -> None:
        """Raises OSError."""
        self.path = path
        self._partial = path.with_name(f".{path.name}.partial")
        descriptor = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self._on_bytes = on_bytes
        self._members: list[ArchiveMember] = []

    def __enter__(self) -> ArchiveWriter:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)

    def add_stream(self, name: str, source: IO[bytes]) -> None:
        """Add what `source` has until its end. Its size need not be known: the header is written after it."""
        header_at = self._file.tell()
        self._file.write(bytes(tarfile.BLOCKSIZE))
        digest, size = hashlib.sha256(), 0
        while block := source.read(BLOCK_BYTES):
            self._file.write(block)
            digest.update(block)
            size += len(block)
            self._on_bytes(self._file.tell())
        self._file.write(bytes(-size % tarfile.BLOCKSIZE))
        end = self._file.tell()
        self._file.seek(header_at)
        self._file.write(_header(name, size))
        self._file.seek(end)
        self._members.append(ArchiveMember(name, size, digest.hexdigest()))

    def add_bytes(self, name: str, data: bytes) -> None:
        self.add_stream(name, io.BytesIO(data))

    def finish(self, summary: BackupSummary, keys: list[bytes]) -> BackupManifest:
        """Add manifest and seal, and give the archive its name when all of it is on the disk. `keys`: the signing keys
        of the server secrets; none: the archive is not signed."""
        manifest = BackupManifest(format=FORMAT, summary=summary, members=tuple(self._members))
        text = msgspec.json.encode(manifest)
        seal = ManifestSeal(
            hashlib.sha256(text).hexdigest(), tuple(hmac.digest(key, text, "sha256").hex() for key in keys)
        )
        self.add_bytes(MANIFEST, text)
        self.add_bytes(SEAL, msgspec.json.encode(seal))
        self._file.write(bytes(2 * tarfile.BLOCKSIZE))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._partial.rename(self.path)
        sync_folder(self.path.parent)
        return manifest


class Archive:
    """An archive that `check` has read to its end."""

    def __init__(self, path: Path, manifest: BackupManifest, signed: bool) -> None:
        self.path = path
        self.manifest = manifest
        self.signed = signed  # by one of the keys that `check` was given

    @classmethod
    def check(cls, path: Path, keys: list[bytes], on_bytes: OnBytes = lambda _count: None) -> Archive:
        """Read the whole archive and compare it with its manifest. `keys`: the signing keys of the server secrets, one
        of which must have signed it; none: the signature is not checked. Raises ArchiveRefused, OSError."""
        found: list[ArchiveMember] = []
        texts: dict[str, bytes] = {}
        read = ["its beginning"]
        with path.open("rb") as file, _refused(path, lambda: read[-1]):
            for entry, source in _entries(file):
                read.append(entry.name)
                is_text = entry.name in (MANIFEST, SEAL)
                digest, size, kept = hashlib.sha256(), 0, bytearray()
                while block := source.read(BLOCK_BYTES):
                    digest.update(block)
                    size += len(block)
                    if is_text and len(kept) <= MANIFEST_BYTES_MAX:
                        kept += block
                    on_bytes(file.tell())
                if size < entry.size:
                    raise ArchiveRefused(f"{path} is truncated: {entry.name} has {size} of {entry.size} bytes")
                if is_text:
                    texts[entry.name] = bytes(kept)
                else:
                    found.append(ArchiveMember(entry.name, size, digest.hexdigest()))
        for name in (MANIFEST, SEAL):
            if name not in texts:
                last = f"it ends after {found[-1].name}" if found else "it is empty"
                raise ArchiveRefused(f"{path} is truncated: {last}, and has no {name}")
        return cls(path, *_checked(path, texts, found, keys))

    @contextlib.contextmanager
    def open_member(self, name: str) -> Iterator[IO[bytes]]:
        """Raises ArchiveRefused if there is no such member."""
        with self.path.open("rb") as file:
            for entry, source in _entries(file):
                if entry.name == name:
                    yield source
                    return
        raise ArchiveRefused(f"{self.path} has no {name}")

    def members(self, prefix: str) -> Iterator[tuple[str, IO[bytes]]]:
        """The members whose names begin with `prefix`; each must be read before the next one."""
        with self.path.open("rb") as file:
            for entry, source in _entries(file):
                if entry.name.startswith(prefix):
                    yield entry.name, source

    def copy_member(self, name: str, target: Path, on_bytes: OnBytes = lambda _count: None) -> None:
        """Write a member to a new private file, on the disk when this returns. Raises OSError."""
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with self.open_member(name) as source, os.fdopen(descriptor, "wb") as file:
            while block := source.read(BLOCK_BYTES):
                file.write(block)
                on_bytes(file.tell())
            file.flush()
            os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    header = info.tobuf(tarfile.GNU_FORMAT)
    assert len(header) == tarfile.BLOCKSIZE, f"the name is too long for one header: {name}"
    return header


def _entries(file: IO[bytes]) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    with tarfile.open(fileobj=file, mode="r:") as tar:
        while (entry := tar.next()) is not None:
            # A link is another member's contents, and a sparse file may have any size without bytes.
            source = tar.extractfile(entry) if entry.isreg() and not entry.issparse() else None
            if source is None:
                raise tarfile.ReadError(f"{entry.name} is no plain file")
            yield entry, source


@contextlib.contextmanager
def _refused(path: Path, last: Callable[[], str]) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, UnicodeDecodeError, ValueError) as error:
        raise ArchiveRefused(f"{path} is truncated or altered in or after {last()}: {error}") from error


def _checked(
    path: Path, texts: dict[str, bytes], found: list[ArchiveMember], keys: list[bytes]
) -> tuple[BackupManifest, bool]:
    try:
        seal = msgspec.json.decode(texts[SEAL], type=ManifestSeal)
    except msgspec.DecodeError as error:
        raise ArchiveRefused(f"{path} is altered: {SEAL}: {error}") from error
    if hashlib.sha256(texts[MANIFEST]).hexdigest() != seal.sha256:
        raise ArchiveRefused(f"{path} is altered: {MANIFEST} is not the one that was sealed")
    try:
        manifest = msgspec.json.decode(texts[MANIFEST], type=BackupManifest)
    except msgspec.DecodeError as error:
        raise ArchiveRefused(f"{path}: {MANIFEST}: {error}") from error
    if manifest.format != FORMAT:
        raise ArchiveRefused(f"{path} has format {manifest.format}; this version reads format {FORMAT}")
    expected = {member.name: member for member in manifest.members}
    for member in found:
        if expected.pop(member.name, None) != member:
            raise ArchiveRefused(f"{path} is altered: {member.name} differs from the manifest")
    if expected:
        raise ArchiveRefused(f"{path} is altered: {next(iter(expected))} is missing")
    made = {hmac.digest(key, texts[MANIFEST], "sha256").hex() for key in keys}
    signed = bool(made & set(seal.signatures))
    if keys and not signed:
        raise ArchiveRefused(
            f"{path} is not signed with the secret in gateway.secret_file: copy the file of the backup's deployment "
            "there, or move the file away if that secret is lost"
        )
    return manifest, signed
