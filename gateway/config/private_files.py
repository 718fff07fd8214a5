"""Makes the data directory and an embedded database readable by their owner only, also if they exist already.

They contain stored answers (Idempotency-Key), tenants' adapters, webhook secrets and hashes of keys.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from pathlib import Path

import sqlalchemy as sa

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
UMASK = 0o077
SQLITE_SUFFIXES = ("", "-wal", "-shm", "-journal")

_log = logging.getLogger(__name__)


def make_private(directory: Path) -> None:
    """Make `directory` unless it exists, and close it to other users. Raises OSError."""
    directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    _close(directory, DIRECTORY_MODE)


def close_file(path: Path) -> None:
    """Remove the permissions of other users from a key, if it exists and is this user's."""
    _close(path, FILE_MODE)


def close_to_others(data_dir: Path, database_url: str) -> None:
    """Close the data directory and the files of an SQLite database, which may be outside it. Raises OSError when the
    directory cannot be made."""
    make_private(data_dir)
    url = sa.make_url(database_url)
    if url.get_backend_name() == "sqlite" and url.database:
        for suffix in SQLITE_SUFFIXES:
            _close(Path(url.database + suffix), FILE_MODE)


def _close(path: Path, mode: int) -> None:
    """Remove the permissions of other users. Files of another owner and sticky directories such as /tmp are not
    changed; a warning is logged for them."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    if not stat.S_IMODE(found.st_mode) & UMASK:
        return
    if found.st_uid == os.geteuid() and not found.st_mode & stat.S_ISVTX:
        path.chmod(stat.S_IMODE(found.st_mode) & mode)
    else:
        _log.warning("files.readable", extra={"fields": {"path": str(path), "mode": f"{found.st_mode & 0o7777:o}"}})


def write_private(path: Path, text: str, *, replace: bool) -> None:
    """Write `path` atomically, with mode 0600. Without `replace`, an existing file is kept."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    try:
        if replace:
            beside.replace(path)
        else:
            with contextlib.suppress(FileExistsError):
                os.link(beside, path)
    finally:
        beside.unlink(missing_ok=True)
