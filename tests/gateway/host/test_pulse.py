"""An engine that is alive and stands still: how its keeper sees it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from billing.timeouts import within_timeout
from engine.text.tokenizer import Tokenizer
from gateway.host.pulse import EnginePulse
from support.stack import Stack, body

MakeStack = Callable[..., Stack]
STALL_ID = 28470  # a word at which the fake engine is told to stand still
STILL_S = 3.0


def ask(stack: Stack, text: str) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.post(
            f"{stack.url}/v1/chat/completions",
            headers=stack.headers(),
            json=body(messages=[{"role": "user", "content": text}]),
            timeout=8,
        )


def test_a_step_that_does_not_end_is_seen_and_work_is_not(make_stack: MakeStack, model_dir: Path) -> None:
    stack = make_stack(fake={"step_ms": 20.0, "faults": {"stall_id": STALL_ID, "stall_s": 60.0}})
    pulse = EnginePulse(stack.config.socket_path, STILL_S)

    async def lost_within(seconds: float) -> str | None:
        try:
            async with asyncio.timeout(seconds):
                return await pulse.lost()
        except TimeoutError:
            return None

    working = threading.Thread(target=lambda: stack.chat(max_tokens=250))
    working.start()
    assert asyncio.run(lost_within(4.5)) is None
    working.join()
    text = "x" + Tokenizer.load(model_dir).decode([STALL_ID])
    stuck = threading.Thread(target=ask, args=(stack, text))
    stuck.start()
    assert asyncio.run(lost_within(60)) == "was busy with one step for 3 s"
    stuck.join()
    stack.kill_engine()


def test_one_that_is_frozen_is_seen(make_stack: MakeStack) -> None:
    stack = make_stack()
    assert stack.engine is not None
    pulse = EnginePulse(stack.config.socket_path, STILL_S)
    os.kill(stack.engine.pid, signal.SIGSTOP)
    try:
        assert asyncio.run(within_timeout(60, pulse.lost())) == "did not answer for 3 s"
    finally:
        os.kill(stack.engine.pid, signal.SIGCONT)
