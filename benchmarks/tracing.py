"""The gateway's cost of a recorded trace: CPU-seconds of requests that are recorded and exported beside requests that
are not, on one gateway and in turns.

    python -m benchmarks.tracing [--requests 800] [--at-once 32] [--rounds 6] [--note TEXT]

The gateway has a separate core and follows the sampled flag of its callers; the engine, which is fake, the clients
and a receiver that decodes every span share the other core. A request is 200 prompt tokens in and 32 streamed out. Each
round sends as many requests with the flag as without it, in alternating order, and checks that the receiver has the
spans. The figures are of the cheapest round of each kind, because other processes of the machine only add to a round;
the median of the rounds' ratios is beside them. Appends rows to benchmarks/results/tracing.csv.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from pathlib import Path

from benchmarks.pinned_stack import Stack, gateway_pid, lacks, machine, pinned_stack
from benchmarks.rows import append_rows
from support.gateway.otlp_receiver import OtlpReceiver
from support.stack import MODEL

STEP_MS = 10.0
WORDS, MAX_TOKENS = 195, 32
AIM = 1.03
EXPORTED_S = 2.5  # after its end, each request's spans are at the receiver
END_OF_STREAM = b"\r\n0\r\n\r\n"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SPANS = 7  # of a request with one text


def request(stack: Stack, recorded: bool) -> bytes:
    body = json.dumps(
        {
            "model": MODEL, "stream": True, "max_tokens": MAX_TOKENS,
            "messages": [{"role": "user", "content": "word " * WORDS}],
        }
    ).encode()  # fmt: skip
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {stack.keys['acme']}\r\n"
        f"content-type: application/json\r\ntraceparent: 00-{TRACE}-{SPAN}-0{int(recorded)}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def send(stack: Stack, recorded: bool, requests: int, at_once: int) -> None:
    """`requests` in all, over `at_once` connections."""
    data = request(stack, recorded)

    async def client(count: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        for _ in range(count):
            writer.write(data)
            answer = b""
            while not answer.endswith(END_OF_STREAM):
                part = await reader.read(1 << 16)
                assert part, answer[-1000:]
                answer += part
            assert answer.startswith(b"HTTP/1.1 200"), answer[:1000]
        writer.close()

    await asyncio.gather(*(client(requests // at_once) for _ in range(at_once)))


async def cpu_per_request(stack: Stack, receiver: OtlpReceiver, recorded: bool, requests: int, at_once: int) -> float:
    """Milliseconds of the gateway's CPU, the export of the spans included."""
    pid = gateway_pid(stack)
    before = cpu_ns(pid)
    await send(stack, recorded, requests, at_once)
    # Both wait as long: an idle gateway uses CPU too.
    await asyncio.sleep(EXPORTED_S)
    found = (cpu_ns(pid) - before) / requests / 1e6
    received, receiver.bodies[:] = len(receiver.spans()), []
    assert received == SPANS * requests * recorded, f"{received} spans of {requests} requests"
    return found


def cpu_ns(pid: int) -> int:
    """CPU time that the threads of a process have used, finer than the kernel's ticks."""
    return sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat"))


async def run(stack: Stack, receiver: OtlpReceiver, requests: int, at_once: int, rounds: int) -> dict[str, float]:
    requests -= requests % at_once
    for recorded in (False, True):
        await cpu_per_request(stack, receiver, recorded, at_once, at_once)
    found: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds):
        for recorded in (False, True) if number % 2 else (True, False):
            found[recorded].append(await cpu_per_request(stack, receiver, recorded, requests, at_once))
    ratios = [one / other for one, other in zip(found[True], found[False], strict=True)]
    least = {recorded: min(values) for recorded, values in found.items()}
    return {
        "unrecorded_ms_per_request": least[False],
        "recorded_ms_per_request": least[True],
        "recorded_beside_unrecorded": least[True] / least[False],
        "recorded_beside_unrecorded_median": statistics.median(ratios),
    }


def telemetry(receiver: OtlpReceiver) -> str:
    return f'\n[telemetry]\nendpoint = "{receiver.url}"\nsample_ratio = 0\nfollow_callers = true\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=800)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--note", default="")
    given = parser.parse_args()
    if why := lacks():
        print(why, file=sys.stderr)
        return 2
    receiver = OtlpReceiver()
    fake = {"step_ms": STEP_MS, "stop_after": 10**6}
    with pinned_stack(fake, toml=telemetry(receiver)) as stack:
        figures = asyncio.run(run(stack, receiver, given.requests, given.at_once, given.rounds))
    receiver.stop()
    workload = f"{given.requests} requests of 200 in, 32 streamed, {given.at_once} at once, SQLite, all on"
    append_rows("tracing", figures, machine(), workload, given.note)
    print(f"aim: recorded_beside_unrecorded <= {AIM}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
