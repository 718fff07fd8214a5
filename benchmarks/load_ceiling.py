"""The limits of the load tool: stream events per second of its own CPU time, and how late it sends.

    python -m benchmarks.load_ceiling [--note TEXT]

It drives the canned server with few streams, where nearly every event is a separate read, and with many, where one read
returns several. Appends rows to benchmarks/results/load_ceiling.csv.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.rows import REPO, append_rows

GAP_MS, SECONDS = 5, 5
RUN_S_MAX = 60


def run(base_url: str, *arguments: str) -> dict[str, Any]:
    """One run of the tool; its report's `tool`."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "report.json"
        argv = [sys.executable, "-m", "benchmarks.load", "--base-url", base_url, "--api-key", "none", "--quiet"]
        argv += ["--models", "canned", "--duration", str(SECONDS), "--warmup", "10", "--json", str(file), *arguments]
        subprocess.run(argv, cwd=REPO, check=True, stdout=subprocess.DEVNULL, timeout=RUN_S_MAX)
        report = json.loads(file.read_bytes())
    assert report["total"]["failed"] == 0, report["errors"]
    tool: dict[str, Any] = report["tool"]
    return tool


def measure(base_url: str) -> dict[str, float]:
    few = run(base_url, "--concurrency", "10", "--max-tokens", "64")
    many = run(base_url, "--concurrency", "300", "--max-tokens", "64")
    arrivals = run(base_url, "--rate", "200", "--max-tokens", "1")
    return {
        "few_streams_events_per_cpu_s": few["events"] / few["cpu_s"],
        "many_streams_events_per_cpu_s": many["events"] / many["cpu_s"],
        "many_streams_events_per_s": many["events_per_s"],
        "requests_per_cpu_s": arrivals["send_lateness_ms"]["count"] / arrivals["cpu_s"],
        "sent_late_p50_ms": arrivals["send_lateness_ms"]["p50"],
        "sent_late_p99_ms": arrivals["send_lateness_ms"]["p99"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--note", default="")
    note = parser.parse_args().note
    argv = [sys.executable, "-m", "benchmarks.canned_server", "--gap-ms", str(GAP_MS)]
    with subprocess.Popen(argv, cwd=REPO, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = measure(f"http://127.0.0.1:{int(server.stdout.readline())}/v1")
        finally:
            server.terminate()
    machine = f"{platform.machine()} {os.cpu_count()} cores, Python {platform.python_version()}"
    workload = f"canned server, {GAP_MS} ms between events, 10 and 300 streams of 64, and 200 requests/s of 1"
    append_rows("load_ceiling", found, machine, workload, note)


if __name__ == "__main__":
    main()
