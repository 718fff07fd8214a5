"""Reads the small files of a model directory whole, within a size limit."""

from __future__ import annotations

import os
from pathlib import Path

# tokenizer.json: the largest vocabularies, of 262,144 tokens, take 33 MB.
TOKENIZER_BYTES_MAX = 64 * 1024 * 1024
# Any other: config.json, a template and the like.
SMALL_BYTES_MAX = 4 * 1024 * 1024


def read_small(path: Path, bytes_max: int = SMALL_BYTES_MAX) -> bytes:
    """Raises OSError, and ValueError with the file's name if it is larger or not a regular file (reading a pipe could
    block)."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: not a file")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > bytes_max:
            raise ValueError(f"{path}: {size} bytes, more than {bytes_max}")
        return file.read(size)
