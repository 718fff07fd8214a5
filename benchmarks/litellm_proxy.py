"""LiteLLM's proxy under the same load, for comparison: its own process on a core, a canned upstream on the other.

It runs with everything off that a proxy may leave out: no keys, no limits, no database, no log of requests.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.pinned_stack import GATEWAY_CORE, OTHER_CORE, cpu_s, pin, rss_bytes
from benchmarks.rows import REPO

PORT = 14_000
URL = f"http://127.0.0.1:{PORT}"
START_S_MAX = 120.0
WARM_S, SECONDS = 2, 10
MIB = 1024 * 1024
CONFIG = """
model_list:
  - model_name: canned
    litellm_params: {{model: openai/canned, api_base: "{upstream}", api_key: none}}
litellm_settings: {{num_retries: 0, telemetry: false}}
general_settings: {{disable_spend_logs: true}}
"""


def measure(program: str, shape: tuple[str, ...], at_once: int, gap_ms: float) -> dict[str, float]:
    """Requests per CPU-second of the proxy in a closed loop; `program` is its executable."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        proxy = stack.enter_context(_proxy(program, directory, stack.enter_context(_upstream(gap_ms))))
        _load(directory, shape, at_once, WARM_S)
        cpu = cpu_s(proxy.pid)
        total = _load(directory, shape, at_once, SECONDS)
        return {
            "litellm_requests_per_cpu_s": total["requests"] / (cpu_s(proxy.pid) - cpu),
            "litellm_requests_per_s": total["requests_per_s"],
            "litellm_ttft_p50_ms": total["ttft_ms"]["p50"],
            "litellm_rss_mb": rss_bytes(proxy.pid) / MIB,
        }


@contextlib.contextmanager
def _upstream(gap_ms: float) -> Iterator[str]:
    argv = [sys.executable, "-m", "benchmarks.canned_server", "--gap-ms", str(gap_ms)]
    with subprocess.Popen(argv, cwd=REPO, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.terminate()


@contextlib.contextmanager
def _proxy(program: str, directory: Path, upstream: str) -> Iterator[subprocess.Popen[bytes]]:
    """The proxy's process, ready."""
    config = directory / "litellm.yaml"
    config.write_text(CONFIG.format(upstream=upstream))
    argv = [program, "--config", str(config), "--port", str(PORT), "--num_workers", "1"]
    environ = {**os.environ, "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    environ["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"  # it has no key to check
    os.sched_setaffinity(0, {GATEWAY_CORE})
    process = subprocess.Popen(
        argv, cwd=directory, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    pin(os.getpid(), OTHER_CORE)
    try:
        _wait_ready(process)
        yield process
    finally:
        process.terminate()
        process.wait(20)


def _wait_ready(process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline:
        assert process.poll() is None, "LiteLLM's proxy ended"
        try:
            urllib.request.urlopen(f"{URL}/health/liveliness", timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
        else:
            return
    raise TimeoutError("LiteLLM's proxy did not start")


def _load(directory: Path, shape: tuple[str, ...], at_once: int, seconds: int) -> dict[str, Any]:
    """The load tool's figures of all requests."""
    file = directory / "report.json"
    argv = [sys.executable, "-m", "benchmarks.load", "--base-url", f"{URL}/v1", "--api-key", "sk-none", "--quiet"]
    argv += ["--models", "canned", "--json", str(file), "--concurrency", str(at_once), "--duration", str(seconds)]
    subprocess.run([*argv, *shape], cwd=REPO, stdout=subprocess.DEVNULL, check=True)
    report = json.loads(file.read_bytes())
    assert report["total"]["failed"] == 0, report["errors"]
    total: dict[str, Any] = report["total"]
    return total
