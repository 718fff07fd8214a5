"""A model directory that appears whole: made once, by one process, beside its place, and put there in one rename.

It must never know the source of the model.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import save_file

Float32 = npt.NDArray[np.float32]
Progress = Callable[[str], None]

# The directory is complete when it has all of these: it appears in one rename, after the last was written.
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


class ConversionError(RuntimeError):
    """The model directory could not be made; the message names the missing part and the remedy."""


def make(directory: Path, source: object, write: Callable[[Path, Progress], None], progress: Progress | None) -> None:
    """Let `write` fill a directory that then becomes `directory`; `source` is what errors say it is made from.

    Does nothing when the directory is complete. Safe to run twice at once: the second waits, then finds the work done.
    Raises ConversionError."""
    if is_complete(directory):
        return
    say = progress or (lambda _line: None)
    lock = directory.with_name(f"{directory.name}.lock")
    partial = directory.with_name(f"{directory.name}.partial")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            if is_complete(directory):
                return
            refuse_to_overwrite(directory)
            shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
            partial.mkdir()
            try:
                write(partial, say)
                partial.rename(directory)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except (OSError, SafetensorError) as error:  # the latter for a full disk, too
        raise ConversionError(f"cannot convert {source} into {directory}: {error}") from error
    say(f"model ready in {directory}")


def is_complete(directory: Path) -> bool:
    return all((directory / name).is_file() for name in MODEL_FILES)


def refuse_to_overwrite(directory: Path) -> None:
    """An empty directory may be replaced; anything else in the way is not ours to delete."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        missing = [name for name in MODEL_FILES if not (directory / name).is_file()]
        raise ConversionError(
            f"{directory} exists but lacks {', '.join(missing)}: remove it to convert the model again"
        )


def write_weights(tensors: dict[str, Float32], directory: Path, say: Progress) -> None:
    say(f"writing {sum(t.nbytes for t in tensors.values()) / 1e6:.0f} MB of float32 weights")
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    # safetensors makes its file 0600; the engine may run as another user than the installer.
    (directory / "model.safetensors").chmod(0o644)
