"""Installs laneway-tiny, the small model of our own: its files are kept with the code, their weights as float16.

It needs numpy alone. It must never know how the model was trained, which is the part of examples/models/train.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

import engine
from engine.models.packaged.directory import MODEL_FILES, ConversionError, Progress, make, write_weights

OWN_MODEL = "laneway-tiny"
_ENGINE = Path(engine.__path__[0]).resolve()


def install_own_model(directory: Path, progress: Progress | None = None) -> None:
    """Makes `directory` hold laneway-tiny, as float32. Does nothing when it is complete. Raises ConversionError."""
    source = kept_files()

    def write(partial: Path, say: Progress) -> None:
        widen(source, partial, say)

    make(directory, source, write, progress)


def kept_files() -> Path:
    """Inside the package where a wheel put them, else where a checkout has them."""
    inside = _ENGINE / "models" / OWN_MODEL
    return inside if inside.is_dir() else _ENGINE.parent / "examples" / "models" / OWN_MODEL


def widen(source: Path, directory: Path, say: Progress) -> None:
    """Copies a model's files, its weights as float32. Raises ConversionError, OSError."""
    try:
        tensors = load_file(source / "model.safetensors")
    except SafetensorError as error:
        raise ConversionError(f"{source / 'model.safetensors'}: {error}; install Laneway again") from error
    for name in MODEL_FILES:
        if name != "model.safetensors":
            shutil.copyfile(source / name, directory / name)
    write_weights({name: tensor.astype(np.float32) for name, tensor in tensors.items()}, directory, say)
