"""The console's built files, as they lie on disk: read whole, then served from memory by name alone, so that no path
reaches anything else. It must never know what the console does.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

INDEX = "index.html"
IMMUTABLE_BELOW = "assets/"  # where the build names files by their content
FILES_MAX = 1000
BYTES_MAX = 64 * 1024 * 1024
ENCODINGS = {"br": ".br", "gzip": ".gz"}  # the preferred one first
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
    """What lies there cannot be served; the message names the limit."""


@dataclass(frozen=True, slots=True)
class ConsoleFile:
    """`contents` by content encoding; "" is the file itself."""

    media_type: str
    immutable: bool
    etag: str
    contents: dict[str, bytes]

    def encoding(self, accepted: str) -> str:
        """The smallest available encoding that an Accept-Encoding header accepts."""
        names = set()
        for part in accepted.split(","):
            name, _, weight = part.partition(";")
            if weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
                names.add(name.strip().lower())
        return next((one for one in ENCODINGS if one in self.contents and one in names), "")


class ConsoleFiles:
    """Those of one directory. A new build is noticed by its index."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[str, ConsoleFile] = {}
        self._stamp: tuple[int, int, int] | None = None
        self._loading = asyncio.Lock()

    async def files(self) -> dict[str, ConsoleFile]:
        """By path below the directory; empty where nothing is built. Raises BuildRefused, OSError."""
        async with self._loading:
            stamp = self._look()
            if stamp != self._stamp:
                self._files = {} if stamp is None else await asyncio.to_thread(_read_all, self.directory)
                self._stamp = stamp
            return self._files

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.directory / INDEX)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _read_all(directory: Path) -> dict[str, ConsoleFile]:
    """Ordinary files alone: what a link points at may lie anywhere."""
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
                raise BuildRefused(f"{directory} holds over {FILES_MAX} files or {BYTES_MAX} bytes")
    return {
        name: _file(name, content, contents)
        for name, content in contents.items()
        if not name.endswith(tuple(ENCODINGS.values()))
    }


def _file(name: str, content: bytes, contents: dict[str, bytes]) -> ConsoleFile:
    encoded = {one: contents[name + ending] for one, ending in ENCODINGS.items() if name + ending in contents}
    return ConsoleFile(
        media_type=MEDIA_TYPES.get(Path(name).suffix, "application/octet-stream"),
        immutable=name.startswith(IMMUTABLE_BELOW),
        etag=f'W/"{hashlib.sha256(content).hexdigest()[:32]}"',
        contents={"": content} | encoded,
    )
