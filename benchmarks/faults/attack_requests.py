"""Attacks with refused requests (F2), large answers (F3), administrative writes (F7) and a crowded tier (F8)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from benchmarks.faults.attack_stage import (
    AT_LIMIT,
    DEFAULT,
    HELD_PLACES,
    MODEL,
    STARVED,
    Row,
    Seen,
    Stage,
    Victim,
    body,
    figures,
    held_places,
    note,
)
from benchmarks.faults.attackers import Flood, Unread, Weapon
from engine.protocol.client import EngineClient
from engine.protocol.frames import Sampling
from engine.protocol.tiers import SHIPPED_TIERS
from support.engine.generations import IterableGeneration  # attack_stage puts tests/ on sys.path

CHAT, TEXTS, COUNT = "/v1/chat/completions", "/v1/completions", "/v1/messages/count_tokens"
LONG_WORDS = "word " * 3000
LONG_PER_S = 4.0  # requests a second; low, because long prompts alone load the gateway

# ---- F2: refused requests


# Messages of a conversation: little text, and much work for the chat template.
LETTER = {"role": "user", "content": "a"}


def ids(prompts: int, each: int) -> dict[str, Any]:
    some = [42] * each
    return {"model": MODEL, "max_tokens": 8, "prompt": some if prompts == 1 else [some] * prompts}


# name → path, content, connections
REFUSED: dict[str, tuple[str, dict[str, Any], int]] = {
    "F2a": (CHAT, body(messages=[LETTER] * 4096), 8),
    "F2b": (TEXTS, ids(1, 650_000), 8),
    "F2c": (TEXTS, ids(16, 40_000), 8),
    "F2d": (CHAT, body(messages=[{"role": "user", "content": "word " * 51_900}]), 80),
    "F2e": (COUNT, {"model": MODEL, "messages": [LETTER] * 4096}, 80),
}
ABOUT_REFUSED = {
    "F2a": "8 connections, 4,096 one-letter messages",
    "F2b": "8 connections, 650,000 ids",
    "F2c": "8 connections, 16 x 40,000 ids",
    "F2d": "80 connections, texts of 260 KB; the victim sends 3,000 words",
    "F2e": "80 connections, count_tokens of 4,096 one-letter messages",
}
WHO = (STARVED, DEFAULT, AT_LIMIT)


async def refused_requests(stage: Stage, seconds: float, name: str, who: str) -> Row:
    """The attacker has one request a minute and an empty budget, or default limits, or no free concurrency place."""
    path, content, connections = REFUSED[name]
    secret = stage.key(who)
    weapon = Flood(stage.request(secret, path, json.dumps(content, separators=(",", ":")).encode()), connections)
    victim = stage.chat_victim()
    if name == "F2d":
        # As many requests at a lower rate take longer: of fewer than 100 requests the p99 is the slowest one.
        seconds *= victim.per_s / LONG_PER_S
        victim = stage.chat_victim(LONG_PER_S, messages=[{"role": "user", "content": LONG_WORDS}])
    async with contextlib.AsyncExitStack() as exits:
        if who == AT_LIMIT:
            await exits.enter_async_context(held_places(stage, secret, HELD_PLACES))
        return await stage.assault([weapon], victim, seconds)


# ---- F3: large answers

BOMB_TEXTS, BOMB_TOKENS, BOMB_LOGPROBS = 8, 7900, 20
BOMB_TOKENS_MIN = 8
STEPS_SLOWER = 2.5  # factor of a step's time with 20 alternatives a token


async def large_answers(stage: Stage, seconds: float, count: int, unread: bool) -> Row:
    """The largest admitted answer with n and top_logprobs. In the quiet form a client of the engine's socket requests
    the same tokens, so that the engine is equally busy."""
    secret = stage.key(DEFAULT)
    tokens = await largest_bomb(stage, secret, min(BOMB_TOKENS, max(BOMB_TOKENS_MIN, int(BOMB_TOKENS * seconds / 5))))
    request = stage.request(secret, CHAT, json.dumps(bomb(tokens, stream=unread)).encode())
    steps_s = tokens * stage.stack.fake["step_ms"] / 1000
    weapon: Weapon = Unread(request, count) if unread else Flood(request, count, times=1)
    victim = stage.chat_victim()
    unread_s = STEPS_SLOWER * steps_s + seconds  # until the whole answer is generated, and `seconds` more
    attack = await stage.half([weapon], victim, unread_s if unread else 0.1, stage.stack.port)
    async with generations(stage, count, tokens):
        quiet = await stage.half([], victim, max(seconds, steps_s), stage.quiet_port)
    return figures(attack, quiet) | {"detail": f"n={BOMB_TEXTS} top_logprobs={BOMB_LOGPROBS} max_tokens={tokens}"}


def bomb(tokens: int, **fields: Any) -> dict[str, Any]:
    return body(n=BOMB_TEXTS, logprobs=True, top_logprobs=BOMB_LOGPROBS, max_tokens=tokens, **fields)


async def largest_bomb(stage: Stage, secret: str, tokens: int) -> int:
    """Halve the size until the gateway admits a request; then abort the request at once."""
    headers = {"Authorization": f"Bearer {secret}"}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        while tokens > BOMB_TOKENS_MIN:
            asked = bomb(tokens, stream=True)
            async with session.post(f"{stage.stack.url}{CHAT}", json=asked, headers=headers) as answer:
                if answer.status != 400:
                    break
            tokens //= 2
    return tokens


@contextlib.asynccontextmanager
async def generations(stage: Stage, count: int, tokens: int) -> AsyncIterator[None]:
    """Request as many texts and alternatives per token directly from the engine."""
    client = EngineClient(stage.stack.config.socket_path, generation=IterableGeneration)
    await client.start()
    await client.wait_ready(10)

    async def drain(number: int, choice: int) -> None:
        generation = client.submit(
            request_id=f"quiet-{number}",
            model=MODEL,
            adapter=None,
            namespace="quiet",
            tier="standard",
            share="quiet",
            prompt_ids=[300] * 20,
            max_tokens=tokens,
            sampling=Sampling(choice=choice, logprobs=BOMB_LOGPROBS),
            stop_ids=[],
        )
        assert isinstance(generation, IterableGeneration)
        async for _ in generation:
            pass

    running = [asyncio.create_task(drain(number, choice)) for number in range(count) for choice in range(BOMB_TEXTS)]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        await client.close()


# ---- F7: administrative writes

WRITERS = 32


async def administrative_writes(stage: Stage, seconds: float, victim_writes: bool) -> Row:
    """A tenant's admin makes keys without pause; the victim is another tenant's chat, or the owner's writes."""
    secret = stage.admin("globex")
    weapon = Flood(stage.request(secret, "/v1/admin/keys", b'{"tenant": "globex", "name": "more"}'), WRITERS)
    victim = stage.chat_victim()
    if victim_writes:
        headers = {"Authorization": f"Bearer {stage.admin(None)}"}

        async def ask(session: aiohttp.ClientSession, due: float, seen: Seen) -> None:
            made = {"tenant": "initech", "name": "the owner's"}
            async with session.post(f"{stage.stack.url}/v1/admin/keys", json=made, headers=headers) as answer:
                await note(answer, due, seen)

        victim = Victim(ask, per_s=2.0)
    return await stage.assault([weapon], victim, 2 * seconds, seconds)


# ---- F8: one tenant fills its tier

CROWD, CROWD_TOKENS, CROWD_STEP_MS = 256, 300, 35.0
CROWDED_PER_S = 4.0


async def crowded_tier(stage: Stage, seconds: float, tier: str) -> Row:
    """One tenant sends 256 requests of 300 tokens at once; a victim in the same tier requests 3 tokens."""
    attacker, victim = stage.key(f"crowd-{tier}"), stage.key(f"single-{tier}")
    weapon = Flood(
        stage.request(attacker, CHAT, json.dumps(body(max_tokens=CROWD_TOKENS)).encode()), CROWD, leaves=True
    )
    [target_ms] = [one.ttft_base_ms for one in SHIPPED_TIERS if one.name == tier]
    row = await stage.assault([weapon], first_token_victim(stage, victim), 4 * seconds, seconds)
    # By design of the attack the victim waits for the engine: comparison with a quiet gateway would mean nothing.
    return row | {"target_ms": target_ms, "cpu_ms_per_refusal": math.nan}


def first_token_victim(stage: Stage, secret: str) -> Victim:
    """Streams of three tokens; the latency is that of the first."""
    asked, headers = body(max_tokens=3, stream=True), {"Authorization": f"Bearer {secret}"}

    async def ask(session: aiohttp.ClientSession, due: float, seen: Seen) -> None:
        async with session.post(f"{stage.stack.url}{CHAT}", json=asked, headers=headers) as answer:
            if answer.status != 200:
                await note(answer, due, seen)
                return
            async for line in answer.content:
                if line.startswith(b'data: {"error"'):
                    seen.refused["error event"] += 1
                    return
                if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                    seen.seconds.append(time.monotonic() - due)
                    return

    return Victim(ask, CROWDED_PER_S)
