"""`PYTHONPATH=.:tests python tests/programs/record_quiet_day.py [MINUTES]` records tests/data/quiet_day.json.

For ten minutes, or MINUTES, a real stack serves a request every two seconds, as tests/system/test_alert_rules.py needs
it. Record again when the rules read a metric that the recording does not have.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from migrations.upgrade import upgrade
from support.gateway.monitored_stack import MonitoredStack, Samples, samples
from support.gateway.quiet_day import STEP_S, write_recording
from support.paths import MODEL_DIR
from support.services import fresh_postgres
from support.stack import TIERS

REQUESTS_EVERY_S = 2.0
SETTLE_S = 70.0  # until the books were reconciled for the first time


def record(minutes: float) -> None:
    with fresh_postgres() as url, tempfile.TemporaryDirectory() as directory:
        upgrade(url)
        stack = MonitoredStack(Path(directory) / "stack", url, MODEL_DIR)
        try:
            stack.start()
            serve(stack, SETTLE_S)
            started_at = time.time()
            pages: list[Samples] = [samples(stack.page())]
            while len(pages) <= minutes * 60 / STEP_S:
                serve(stack, started_at + len(pages) * STEP_S - time.time())
                pages.append(samples(stack.page()))
            write_recording(pages, started_at)
        finally:
            stack.stop()


def serve(stack: MonitoredStack, seconds: float) -> None:
    """Requests of all tiers, some of them for a model that does not exist."""
    until = time.monotonic() + seconds
    number = 0
    while time.monotonic() < until:
        model = {"model": "nowhere"} if number % 20 == 19 else {}
        stack.chat(list(TIERS)[number % len(TIERS)], **model)
        number += 1
        time.sleep(max(0.0, min(REQUESTS_EVERY_S, until - time.monotonic())))


if __name__ == "__main__":
    record(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
