"""Readers who hardly read: they cost a bounded amount of memory for a bounded time, and nobody else a token.

What they cost others in milliseconds is `benchmarks/slow_readers.py`'s to say.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from billing.tables import usage
from support.gateway.slow_readers import ask, slow_readers
from support.stack import Stack, body, events
from support.waiting import eventually

READERS = 200
TOKENS = 4000  # about a megabyte as a stream
PATIENCE_S = 3.0
# A slow reader may cost: what its connection holds back (64 KiB, and a chunk), its text, and its request's objects.
READER_BYTES_MAX = 256 * 1024
OTHERS = 4
OTHER_TOKENS = 60
END_S_MAX = 25.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("readers")
    made = Stack(
        directory,
        f"sqlite:///{directory}/laneway.db",
        model_dir,
        fake={"step_ms": 8.0},
        engine_json={"sequences_max": 256, "step_tokens_max": 2048},
        gateway_toml=f"reader_patience_s = {PATIENCE_S}\n",
    )
    try:
        made.start()
        yield made
    finally:
        made.stop()


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def read_on(stack: Stack, over: threading.Event) -> list[int]:
    """Streams one after another, read as they come; the completion tokens that each had by its own usage."""
    found: list[int] = []
    with httpx.Client(timeout=30) as client:
        while not over.is_set() or not found:
            asked = body(stream=True, max_tokens=OTHER_TOKENS, stream_options={"include_usage": True})
            answer = client.post(f"{stack.url}/v1/chat/completions", headers=stack.headers("acme"), json=asked)
            *_, last, done = events(answer.text)
            assert done == "[DONE]"
            found.append(last["usage"]["completion_tokens"])
    return found


def endings(stack: Stack) -> list[str]:
    """Of globex's requests that were settled."""
    query = sa.select(usage.c.ending).where(usage.c.tenant_id == stack.tenants["globex"])
    return list(stack.read(lambda connection: connection.execute(query).scalars().all()))


def peak_until(check: Callable[[], bool], pid: int, timeout_s: float) -> int:
    """The most memory that was seen until `check()`."""
    peak, deadline = 0, time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, "the slow readers are still there"
        peak = max(peak, rss_bytes(pid))
        time.sleep(0.1)
    return peak


def test_two_hundred_readers_at_a_byte_a_second(stack: Stack) -> None:
    assert stack.gateway is not None
    pid, over = stack.gateway.pid, threading.Event()
    with concurrent.futures.ThreadPoolExecutor(OTHERS) as threads:
        readers = [threads.submit(read_on, stack, over) for _ in range(OTHERS)]
        eventually(lambda: stack.holds() >= 2 * OTHERS)
        rss, files = rss_bytes(pid), open_files(pid)
        try:
            with slow_readers(stack, "globex", READERS, TOKENS):
                eventually(lambda: stack.open_holds() >= READERS)
                peak = peak_until(lambda: len(endings(stack)) == READERS, pid, END_S_MAX)
        finally:
            over.set()
        seen = [tokens for reader in readers for tokens in reader.result(30)]
    assert seen == [OTHER_TOKENS] * len(seen)
    assert set(endings(stack)) == {"client_left"}
    grown = (peak - rss) / READERS
    assert grown <= READER_BYTES_MAX, f"{grown / 1024:.0f} KiB for each slow reader"
    eventually(lambda: open_files(pid) <= files)  # nothing of theirs stays
    eventually(lambda: stack.open_holds() == 0)
    cut = stack.log_lines("reader.cut")
    assert len(cut) == READERS
    assert all(line["unread_bytes"] < READER_BYTES_MAX for line in cut)


def test_a_reader_who_leaves_a_whole_answer_unread(stack: Stack) -> None:
    """It was made, settled and sent; what the kernel does not take of it does not stay for ever."""
    assert stack.gateway is not None
    pid, cut = stack.gateway.pid, len(stack.log_lines("reader.cut"))
    files, before = open_files(pid), len(endings(stack))
    with ask(stack, "globex", close=True, max_tokens=400):
        eventually(lambda: len(endings(stack)) == before + 1)
        assert endings(stack).count("length") == 1
        eventually(lambda: len(stack.log_lines("reader.cut")) == cut + 1, timeout_s=PATIENCE_S + 30)
        eventually(lambda: open_files(pid) <= files)
