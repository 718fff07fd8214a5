"""A directory on a file system that is mounted read-only, as a container's volume is."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.services import missing_service


@contextmanager
def mounted_read_only(directory: Path) -> Iterator[Path]:
    """Mount an existing directory read-only within the block. Needs the right to mount."""
    for options in (["--bind", str(directory)], ["-o", "remount,bind,ro"]):
        done = subprocess.run(["mount", *options, str(directory)], capture_output=True, check=False)
        if done.returncode:
            subprocess.run(["umount", str(directory)], capture_output=True, check=False)
            missing_service("a read-only mount", done.stderr.decode())
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)
