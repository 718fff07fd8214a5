"""The example adapters, for benchmarks on a CPU: the adapters that fit a model are loaded for it."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from adapters.files.check import read_spec
from adapters.files.header import AdapterRefused
from adapters.files.spec import BaseShape
from adapters.files.store import AdapterStore
from benchmarks.rows import REPO

sys.path.insert(0, str(REPO / "tests"))

from support.adapters.directories import add_directory

EXAMPLES = REPO / "examples" / "adapters"


def fitting(base: BaseShape) -> list[Path]:
    """Directories; each example was trained for one base."""
    found = []
    for config in sorted(EXAMPLES.glob("*/adapter_config.json")):
        try:
            read_spec(config.parent, base)
        except AdapterRefused:
            continue
        found.append(config.parent)
    return found


def load(runner: Any, model: str, directory: Path) -> list[str]:
    """Into host memory, for the model that has its files there; their digests."""
    base = BaseShape.from_config(json.loads((directory / "config.json").read_bytes()))
    digests = []
    with tempfile.TemporaryDirectory() as scratch:
        store = AdapterStore(Path(scratch))
        for path in fitting(base):
            stored = add_directory(store, path, base)
            runner.load_adapter(stored.digest, model, str(stored.path))
            runner.adapters.bring(stored.digest)
            digests.append(stored.digest)
    return digests
