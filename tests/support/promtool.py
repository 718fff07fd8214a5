"""promtool, Prometheus' own checker, and rule tests in its form."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from support.services import missing_service


def promtool(*arguments: str | Path) -> str:
    """The output of `promtool ARGUMENTS`. Fails with it for another exit status than 0."""
    program = shutil.which("promtool")
    if program is None:
        missing_service("promtool", "it is not installed: apt-get install prometheus")
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def check_rules(directory: Path, rules: Path, tests: list[dict[str, Any]]) -> None:
    """Run `promtool test rules`. JSON is YAML, so the file is written as such."""
    file = directory / "rules_test.yml"
    file.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", file)
