"""The gateway's cost of a streamed token in each dialect: the CPU-seconds of /v1/responses and /v1/messages beside the
CPU-seconds of chat completions, with everything on.

    python -m benchmarks.events_by_dialect [--streams 64] [--tokens 600] [--rounds 3] [--note TEXT]

The gateway has a separate core; the engine, which is fake, and the clients share another. Each round runs every
dialect once, and a ratio is of two dialects of one round. Appends rows to benchmarks/results/events_by_dialect.csv.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from typing import Any

from benchmarks.pinned_stack import Stack, cpu_s, gateway_pid, lacks, machine, pinned_stack
from benchmarks.rows import append_rows
from support.stack import MODEL

STEP_MS = 10.0
TEXT = "Why is the sky blue?"
AIM = 1.25  # of responses, beside chat completions
MESSAGES = [{"role": "user", "content": TEXT}]


def requests(tokens: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """The path and the body of a stream of `tokens` tokens, by dialect."""
    common = {"model": MODEL, "stream": True}
    return {
        "chat": ("/v1/chat/completions", {**common, "messages": MESSAGES, "max_tokens": tokens}),
        "responses": ("/v1/responses", {**common, "input": TEXT, "max_output_tokens": tokens}),
        "messages": ("/v1/messages", {**common, "messages": MESSAGES, "max_tokens": tokens}),
    }


async def read_stream(stack: Stack, path: str, body: dict[str, Any]) -> int:
    """The bytes of one stream, read to its end over a separate connection."""
    data = json.dumps(body).encode()
    key = stack.keys["acme"]
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
        f"connection: close\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(head.encode() + data)
    status = await reader.readline()
    assert b" 200 " in status, status
    size = 0
    while part := await reader.read(1 << 16):
        size += len(part)
    writer.close()
    return size


async def cpu_per_token(stack: Stack, path: str, body: dict[str, Any], streams: int, tokens: int) -> float:
    """Microseconds of the gateway's CPU for each token of `streams` streams at once."""
    pid = gateway_pid(stack)
    before = cpu_s(pid)
    await asyncio.gather(*(read_stream(stack, path, body) for _ in range(streams)))
    return (cpu_s(pid) - before) / (streams * tokens) * 1e6


async def run(stack: Stack, streams: int, tokens: int, rounds: int) -> dict[str, float]:
    asked = requests(tokens)
    for path, body in asked.values():
        await read_stream(stack, path, body)
    found: dict[str, list[float]] = {dialect: [] for dialect in asked}
    for _ in range(rounds):
        for dialect, (path, body) in asked.items():
            found[dialect].append(await cpu_per_token(stack, path, body, streams, tokens))
    figures = {f"{dialect}_us_per_token": statistics.median(values) for dialect, values in found.items()}
    for dialect in ("responses", "messages"):
        ratios = [value / chat for value, chat in zip(found[dialect], found["chat"], strict=True)]
        figures[f"{dialect}_beside_chat"] = statistics.median(ratios)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--note", default="")
    given = parser.parse_args()
    if why := lacks():
        print(why, file=sys.stderr)
        return 2
    with pinned_stack({"step_ms": STEP_MS, "stop_after": 10**6}) as stack:
        figures = asyncio.run(run(stack, given.streams, given.tokens, given.rounds))
    workload = f"{given.streams} streams of {given.tokens} tokens at once"
    append_rows("events_by_dialect", figures, machine(), workload, given.note)
    print(f"aim: responses_beside_chat <= {AIM}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
