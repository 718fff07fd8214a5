"""A batch of the largest size: 50,000 lines of 200 MB are validated within a minute and 256 MB of memory."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from gateway.batches.validation import LINES_MAX
from support.gateway.batch_client import BatchClient, chat_line
from support.stack import Stack

FILE_BYTES = 200_000_000
VALIDATION_S_MAX = 120.0  # on a busy machine
MEMORY_BYTES_MAX = 256 * 1024 * 1024


def input_file(path: Path) -> IO[bytes]:
    """50,000 lines, 200 MB in all."""
    words = "word " * ((FILE_BYTES // LINES_MAX - 200) // len("word "))
    with path.open("wb") as file:
        for number in range(LINES_MAX):
            line = chat_line(number, messages=[{"role": "user", "content": words}])
            file.write(json.dumps(line).encode() + b"\n")
    return path.open("rb")


def peak_bytes(pid: int) -> int:
    """The greatest resident memory of a process since its start."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith("VmHWM:")).split()[1])


def test_the_largest_batch_is_validated(make_stack: Callable[..., Stack], tmp_path: Path) -> None:
    stack = make_stack()  # its own: the peak of a shared gateway includes the memory of other tests
    assert stack.gateway is not None
    with BatchClient(stack, stack.keys["acme"]) as client, input_file(tmp_path / "input.jsonl") as file:
        uploaded = client.http.post("/files", data={"purpose": "batch"}, files={"file": ("input.jsonl", file)})
        assert uploaded.status_code == 200, uploaded.text
        assert uploaded.json()["bytes"] > 0.95 * FILE_BYTES
        began = time.monotonic()
        batch = client.post(uploaded.json()["id"]).json()
        while batch["status"] == "validating":
            assert time.monotonic() - began < VALIDATION_S_MAX
            time.sleep(0.1)
            batch = client.http.get(f"/batches/{batch['id']}").json()
        assert batch["status"] == "in_progress", batch
        assert batch["request_counts"]["total"] == LINES_MAX
        assert peak_bytes(stack.gateway.pid) < MEMORY_BYTES_MAX
        assert client.http.post(f"/batches/{batch['id']}/cancel").status_code == 200
