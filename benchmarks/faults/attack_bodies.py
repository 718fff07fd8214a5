"""An attack with the largest bodies of /v1/messages and /v1/responses, by a tenant whose rate limits refuse nothing."""

from __future__ import annotations

import asyncio
import contextlib
import math

from benchmarks.faults.attack_stage import MODEL, UNLIMITED, Row, Stage, figures, tree_rss_mib
from benchmarks.faults.attackers import LargeBodies, quiet

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
BODY_BYTES = 32 * 1024 * 1024 - 1024
CONNECTIONS = 100
PIECE = (b"words, and more \\n" * 4096)[
    : 64 * 1024 - 2
]  # whole escapes: a multiple of no escape's length would cut one
LOOK_S = 0.1
FORMS = {
    "declared": "with their Content-Length",
    "chunked": "in chunks",
    "responses": "of /v1/responses, with their Content-Length",
}


def weapon(secret: str, form: str, body_bytes: int = BODY_BYTES, connections: int = CONNECTIONS) -> LargeBodies:
    """Requests with one message of that size, which is too long for the model."""
    path, fields = MESSAGES, '"max_tokens": 4, "messages"'
    if form == "responses":
        path, fields = RESPONSES, '"max_output_tokens": 4, "input"'
    first = f'{{"model": "{MODEL}", {fields}: [{{"role": "user", "content": "'.encode()
    last = b'"}]}'
    piece = PIECE.rstrip(b"\\")
    pieces = (body_bytes - len(first) - len(last)) // len(piece)
    head = f"POST {path} HTTP/1.1\r\nHost: laneway\r\nx-api-key: {secret}\r\nContent-Type: application/json\r\n"
    if form != "chunked":
        length = len(first) + pieces * len(piece) + len(last)
        return LargeBodies(f"{head}Content-Length: {length}\r\n\r\n".encode() + first, piece, pieces, last, connections)
    return LargeBodies(
        f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + _chunk(first),
        _chunk(piece),
        pieces,
        _chunk(last) + _chunk(b""),
        connections,
    )


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def large_bodies(stage: Stage, seconds: float, form: str) -> Row:
    """CPU per refusal does not count: a body that is within the bounds is read and parsed before it is refused."""
    attack_with, victim = weapon(stage.key(UNLIMITED), form), stage.chat_victim()
    await stage.settle()
    before = peak = tree_rss_mib(stage.gateway_pid)

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, tree_rss_mib(stage.gateway_pid))
            await asyncio.sleep(LOOK_S)

    watching = asyncio.create_task(watch())
    attack = await stage.half([attack_with], victim, seconds, stage.stack.port)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    calm = await stage.half([quiet(attack_with, attack.report)], victim, seconds, stage.quiet_port)
    grew = peak - before
    row = figures(attack, calm) | {"cpu_ms_per_refusal": math.nan, "rss_grew_mib": grew}
    return row | {"detail": f"rss_grew_mib={grew:.0f} of gateway and processes, from {before:.0f}"}
