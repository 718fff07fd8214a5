"""What the engine's process logs, in whichever of our packages, is one JSON object a line."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import logging
from engine import log
log.configure()
for name in ("engine.main", "adapters.device.host_weights"):
    logging.getLogger(name).warning("something.happened", extra={"fields": {"of": name}})
"""


def test_records_of_all_our_packages_are_json_lines() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["event"], line["of"]) for line in lines] == [
        ("something.happened", "engine.main"),
        ("something.happened", "adapters.device.host_weights"),
    ]
