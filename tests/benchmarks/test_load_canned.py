"""The load tool on a canned server: every fault counted under its name, nothing delayed, a run that can be stopped."""

from __future__ import annotations

import os
import pty
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.canned_server import FAULTS
from support.benchmarks.load_tool import Bench, canned_server

GAP_MS = 5


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with canned_server(GAP_MS) as url:
        yield url


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """File descriptors of a terminal: the end that a person sees, and the end that a program writes to."""
    ours, theirs = pty.openpty()
    try:
        yield ours, theirs
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.fixture
def bench(server: str, tmp_path: Path) -> Bench:
    return Bench(tmp_path, "--base-url", server, "--api-key", "k")


def test_every_fault_is_counted_under_its_name(bench: Bench) -> None:
    ran = bench(
        *("--models", ",".join(FAULTS), "--popularity", "distinct", "--concurrency", "10", "--requests", "20"),
        *("--max-tokens", "6", "--timeout", "2", "--warmup", "3"),
    )
    assert ran.code == 0, ran.err
    assert ran.report["errors"] == {
        "broken stream": 4,  # cut, and no-done
        "error event engine_lost": 2,
        "bad stream": 2,
        "503 server_is_overloaded": 2,
        "500": 2,
        "timeout": 2,
    }
    assert {name for name, group in ran.report["models"].items() if group["succeeded"] == 2} == {
        "canned",
        "no-usage",
        "no-space",
    }
    total = ran.report["total"]
    assert (total["requests"], total["succeeded"], total["failed"]) == (20, 6, 14)
    assert (total["completion_tokens"], total["prompt_tokens"], total["cached_tokens"]) == (36, 28, 12)
    assert ran.report["usage_missing"] == 2
    assert total["inter_token_ms"]["count"] == 6 * 5
    assert total["inter_token_ms"]["p50"] >= GAP_MS * 0.8
    assert "503 server_is_overloaded" in ran.out
    assert list(ran.report["tiers"]) == ["default", "(none)"]  # as served, where none was asked for


def test_completions_are_read_as_chat_is(bench: Bench) -> None:
    ran = bench("--endpoint", "completions", "--models", "canned", "--concurrency", "2", "--requests", "4")
    assert ran.report["total"]["succeeded"] == 4
    assert ran.report["total"]["inter_token_ms"]["count"] == 4 * 31


def test_the_tool_sustains_5000_events_a_second_of_one_core(bench: Bench) -> None:
    ran = bench("--models", "canned", "--concurrency", "100", "--duration", "2", "--max-tokens", "64")
    tool = ran.report["tool"]
    assert ran.report["total"]["failed"] == 0
    assert tool["events"] > 5000
    # In its own CPU time: what a busy machine leaves to it is not its doing.
    assert tool["events"] / tool["cpu_s"] >= 5000


def test_an_open_loop_waits_for_nobody(bench: Bench) -> None:
    """Nothing is ever answered, and yet all is sent when it is due."""
    ran = bench("--models", "silent", "--rate", "100", "--duration", "1", "--timeout", "2")
    assert ran.code == 1  # nothing was answered
    assert 60 < ran.report["total"]["failed"] < 140
    assert ran.report["errors"] == {"timeout": ran.report["total"]["failed"]}
    assert ran.report["tool"]["in_flight_max"] == ran.report["total"]["failed"]
    assert ran.report["tool"]["send_lateness_ms"]["p50"] < 100


def test_too_many_outstanding_are_errors_not_delays(bench: Bench) -> None:
    ran = bench("--models", "silent", "--rate", "100", "--requests", "50", "--timeout", "2", "--max-outstanding", "8")
    assert ran.report["errors"] == {"not sent: too many outstanding": 42, "timeout": 8}
    assert ran.report["tool"]["in_flight_max"] == 8


@pytest.mark.parametrize("loop", [("--rate", "40"), ("--concurrency", "20")])
def test_an_interrupted_run_reports_what_it_has(bench: Bench, loop: tuple[str, str]) -> None:
    with terminal() as (ours, theirs):
        arguments = ("--models", "canned,silent", "--popularity", "distinct", *loop, "--duration", "60")
        process = bench.start(*arguments, "--max-tokens", "2", stderr=theirs)
        shown = ""
        while not re.search(r"sent, [1-9]\d* done", shown):
            shown += os.read(ours, 65536).decode()
        process.send_signal(signal.SIGINT)
        ran = bench.finish(process)
    assert ran.code == 130
    assert ran.report["interrupted"] is True
    assert ran.report["total"]["succeeded"] > 0
    assert ran.report["total"]["failed"] == 0
    assert ran.report["abandoned"] > 0
    assert "abandoned when it was interrupted" in ran.out


def test_a_server_that_is_not_there_or_refuses_is_one_sentence(tmp_path: Path, bench: Bench) -> None:
    ran = Bench(tmp_path, "--base-url", "http://127.0.0.1:9", "--api-key", "k")("--rate", "1", "--requests", "1")
    assert ran.code == 1
    assert ran.err.startswith("Error: nothing usable answers at http://127.0.0.1:9/v1/models")
    assert "Traceback" not in ran.err
    ran = Bench(tmp_path, "--base-url", "http://127.0.0.1:9", "--api-key", "k")(
        "--rate", "100", "--requests", "5", "--models", "m"
    )
    assert ran.code == 1
    assert ran.report["errors"] == {"cannot connect": 5}


def test_progress_on_a_terminal_rewrites_its_line(bench: Bench) -> None:
    with terminal() as (ours, theirs):
        arguments = ("--models", "canned", "--concurrency", "2", "--duration", "1.4", "--max-tokens", "4")
        bench.finish(bench.start(*arguments, stderr=theirs))
        shown = os.read(ours, 65536).decode()
    lines = shown.split("\r\x1b[K")
    assert len(lines) >= 3
    assert "in flight" in lines[1]
    assert "TTFT p50" in lines[1]
    assert "\n" not in shown
    assert lines[-1] == ""  # the line is cleared before the report
