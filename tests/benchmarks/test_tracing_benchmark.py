"""The benchmark of tracing, small."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.tracing import run, telemetry
from support.gateway.otlp_receiver import OtlpReceiver
from support.stack import Stack


def test_it_compares_recorded_requests_with_others(tmp_path: Path, model_dir: Path) -> None:
    receiver = OtlpReceiver()
    url = f"sqlite:///{tmp_path}/laneway.db"
    stack = Stack(tmp_path, url, model_dir, {"stop_after": 10**6}, toml=telemetry(receiver))
    try:
        stack.start()
        figures = asyncio.run(run(stack, receiver, requests=64, at_once=16, rounds=1))
    finally:
        stack.stop()
        receiver.stop()
    assert all(value > 0 for value in figures.values())
    assert figures["recorded_beside_unrecorded"] == figures["recorded_beside_unrecorded_median"]
    assert len(stack.log_lines("request")) >= 2 * (64 + 16)
