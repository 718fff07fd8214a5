"""A server that streams canned chunks at a steady pace: to measure the load tool itself, and to test its judgement.

    python -m benchmarks.canned_server [--gap-ms 5]

Prints its port. The model's name selects a fault; see FAULTS. Its figures must never be compared with a real server's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from typing import Any

import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
BODY_BYTES_MAX = 16 * 1024 * 1024
FAULTS = {
    "canned": "no fault",
    "no-usage": "no usage chunk",
    "cut": "the connection closes after three chunks",
    "no-done": "the stream ends in order, without [DONE]",
    "error-event": "after three chunks an error event",
    "garbage": "the chunks are not JSON",
    "refused": "503 with an error body",
    "bare-500": "500 with a body that is no JSON",
    "silent": "it never answers",
    "no-space": "`data:` without the space, lines end in CRLF, comments between",
}


def event(fields: dict[str, Any] | str) -> bytes:
    text = fields if isinstance(fields, str) else json.dumps(fields, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


def frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def plain(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def chunk(text: str, asked: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    is_chat = "messages" in asked
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
    choice |= {"delta": {"content": text}} if is_chat else {"text": text}
    return {
        "id": "cmpl-canned",
        "object": "chat.completion.chunk" if is_chat else "text_completion",
        "model": asked["model"],
        "service_tier": asked.get("service_tier", "default"),
        "choices": [choice],
        "usage": None,
    }


class Server:
    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._one(reader, writer):
                pass
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False ends the connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lengths = [line.split(":")[1] for line in head.splitlines() if line.lower().startswith("content-length:")]
        if not head.startswith("POST"):
            models = {"object": "list", "data": [{"id": name, "object": "model"} for name in FAULTS]}
            writer.write(plain("200 OK", json.dumps(models).encode()))
            return True
        length = int(lengths[0])
        if length > BODY_BYTES_MAX:
            return False
        asked = json.loads(await reader.readexactly(length))
        return await self._answer(asked, writer)

    async def _answer(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        fault, count = asked["model"], asked["max_tokens"]
        if fault == "refused":
            error = {"message": "Full.", "type": "service_unavailable_error", "param": None}
            writer.write(plain("503 No", json.dumps({"error": {**error, "code": "server_is_overloaded"}}).encode()))
            return True
        if fault == "bare-500":
            writer.write(plain("500 No", b"<html>"))
            return True
        if fault == "silent":
            await asyncio.sleep(3600)
        writer.write(HEAD)
        whole = "no JSON" if fault == "garbage" else chunk(" word", asked)
        words = event(whole)
        if fault == "no-space":
            words = b": keep-alive\r\n\r\n" + words.replace(b"data: ", b"data:").replace(b"\n", b"\r\n")
        words = frame(words)
        for made in range(count):
            await asyncio.sleep(self._gap_s)
            if made == 3 and fault == "cut":
                return False
            if made == 3 and fault == "error-event":
                writer.write(frame(event({"error": {"message": "", "type": "server_error", "code": "engine_lost"}})))
                break
            writer.write(words)
        else:
            self._end(asked, fault, count, writer)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _end(self, asked: dict[str, Any], fault: str, count: int, writer: asyncio.StreamWriter) -> None:
        usage = {"prompt_tokens": 7, "completion_tokens": count, "prompt_tokens_details": {"cached_tokens": 3}}
        writer.write(frame(event(chunk("", asked, "length"))))
        if fault != "no-usage":
            writer.write(frame(event({**chunk("", asked), "choices": [], "usage": usage})))
        if fault != "no-done":
            writer.write(frame(event("[DONE]")))


async def main(gap_s: float) -> None:
    server = await asyncio.start_server(Server(gap_s).serve, "127.0.0.1", 0, limit=BODY_BYTES_MAX, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gap-ms", type=float, default=5.0)
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(main(parser.parse_args().gap_ms / 1000))
