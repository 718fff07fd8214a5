"""The console's built files: all are read at once and served from memory by name, so no path reaches another file."""

from __future__ import annotations

import asyncio
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

INDEX = "index.html"
IMMUTABLE_BELOW = "assets/"  # the build names these files by their content
FILES_MAX = 1000
BYTES_MAX = 64 * 1024 * 1024
ENCODINGS = {"br": ".br", "gzip": ".gz"}  # in order of preference
MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".ico": "image/x-icon",
    ".js": "text/javascript",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}


class BuildRefused(Exception):
    """The build is over a limit, which the message names."""


@dataclass(frozen=True, slots=True)
class ConsoleFile:
    """`contents`: by content encoding; "" is the file itself."""

    media_type: str
    immutable: bool
    etag: str
    contents: dict[str, bytes]

    def encoding(self, accepted: str) -> str:
        """The preferred available encoding that an Accept-Encoding header accepts; "" if none."""
        names = set()
        for part in accepted.split(","):
            name, _, weight = part.partition(";")
            if weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
                names.add(name.strip().lower())
        return next((encoding for encoding in ENCODINGS if encoding in self.contents and encoding in names), "")


class ConsoleFiles:
    """The files of one directory, read again when INDEX changes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[str, ConsoleFile] = {}
        self._stamp: tuple[int, int, int] | None = None
        self._loading = asyncio.Lock()

    async def files(self) -> dict[str, ConsoleFile]:
        """The files by path below the directory; empty without a build. Raises BuildRefused, OSError."""
        async with self._loading:
            stamp = self._index_stamp()
            if stamp != self._stamp:
                self._files = {} if stamp is None else await asyncio.to_thread(_read_all, self.directory)
                self._stamp = stamp
            return self._files

    def _index_stamp(self) -> tuple[int, int, int] | None:
        try:
            index = os.stat(self.directory / INDEX)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return index.st_mtime_ns, index.st_size, index.st_ino


def _read_all(directory: Path) -> dict[str, ConsoleFile]:
    """Read regular files only: a symbolic link may point outside the directory."""
    contents: dict[str, bytes] = {}
    size = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            if path.is_symlink() or not path.is_file():
                continue
            contents[path.relative_to(directory).as_posix()] = content = path.read_bytes()
            size += len(content)
            if len(contents) > FILES_MAX or size > BYTES_MAX:
                raise BuildRefused(f"{directory} has over {FILES_MAX} files or {BYTES_MAX} bytes")
    return {
        name: _file(name, content, contents)
        for name, content in contents.items()
        if not name.endswith(tuple(ENCODINGS.values()))
    }


def _file(name: str, content: bytes, contents: dict[str, bytes]) -> ConsoleFile:
    encoded = {encoding: contents[name + end] for encoding, end in ENCODINGS.items() if name + end in contents}
    return ConsoleFile(
        media_type=MEDIA_TYPES.get(Path(name).suffix, "application/octet-stream"),
        immutable=name.startswith(IMMUTABLE_BELOW),
        etag=f'W/"{hashlib.sha256(content).hexdigest()[:32]}"',
        contents={"": content} | encoded,
    )
