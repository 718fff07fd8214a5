"""Models that an installed package contains: which packages, and the model directory made from each, once.

`python -m engine.models.packaged.install PACKAGE DIRECTORY` is run beside a gateway, which loads no numpy for it.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from engine.models.packaged.convert import DEMO_PACKAGE, convert_demo_model, print_line
from engine.models.packaged.directory import ConversionError, Progress
from engine.models.packaged.own_model import install_own_model

KNOWN: Mapping[str, Callable[[Path, Progress | None], None]] = MappingProxyType(
    {
        "laneway": install_own_model,  # laneway-tiny
        DEMO_PACKAGE: convert_demo_model,  # SmolLM2-135M-Instruct
    }
)


def install(package: str, directory: Path, progress: Progress | None = None) -> None:
    """Makes `directory` hold the model of that package. Does nothing when it is complete. Raises ConversionError."""
    if package not in KNOWN:
        advice = "for any other model leave `package` out and name its Hugging Face directory as `path`"
        raise ConversionError(f"{_why_not(package)}; models come from {', '.join(sorted(KNOWN))}: {advice}")
    KNOWN[package](directory, progress)


def _why_not(package: str) -> str:
    try:
        importlib.metadata.distribution(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return f"no package {package!r} is known or installed"
    return f"the package {package!r} is installed, but it has no model that is known"


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m engine.models.packaged.install PACKAGE DIRECTORY\n")
        return 2
    try:
        install(arguments[0], Path(arguments[1]), print_line)
    except ConversionError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
