"""Paths in this checkout, and the demo model's directory."""

from __future__ import annotations

import os
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
TESTS = REPO / "tests"
EXAMPLES = REPO / "examples"
MODEL_DIR = Path(os.environ.get("LANEWAY_TEST_MODEL", REPO / ".laneway" / "models" / "smollm2-135m-instruct"))
