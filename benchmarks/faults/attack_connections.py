"""Attacks with unfinished heads (F4) and uploads (F5, F6), and with an adapter whose patterns stall a matcher (F1)."""

from __future__ import annotations

import asyncio
import json
import math
import resource
import tempfile
import time
from pathlib import Path

import aiohttp

from adapters.files.check import CONFIG_FILE, WEIGHTS_FILE
from adapters.files.generate import Recipe, write_random
from adapters.files.spec import BaseShape
from benchmarks.faults.attack_stage import MODEL, Row, Seen, Setting, Stage, Victim, body, figures, note
from benchmarks.faults.attackers import Flood, Paced, Trickle

# ---- F4: heads that never end

DESCRIPTORS = 1024
HEADS = 1300
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: laneway\r\n"


async def endless_heads(stage: Stage, seconds: float, addresses: int) -> Row:
    """A third each: silent; half a head; one field a second. The gateway has 1,024 descriptors."""
    third = HEADS // 3
    weapons = [
        Trickle(b"", b"", 1.0, third, addresses),
        Trickle(HEAD, b"", 1.0, third, addresses),
        Trickle(HEAD, b"X-Field: a\r\n", 1.0, HEADS - 2 * third, addresses),
    ]
    _, hard = resource.prlimit(stage.gateway_pid, resource.RLIMIT_NOFILE)
    before = resource.prlimit(stage.gateway_pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    try:
        victim = stage.chat_victim(10.0, new_connections=True)
        return await stage.assault(weapons, victim, (12 if addresses == 1 else 4) * seconds, 2 * seconds)
    finally:
        resource.prlimit(stage.gateway_pid, resource.RLIMIT_NOFILE, before)


# ---- uploads


def adapter_files(stage: Stage, **config: object) -> tuple[bytes, bytes]:
    """Configuration, with changes, and weights of a small valid adapter for the served model."""
    base = BaseShape.from_config(json.loads((stage.stack.model_dir / "config.json").read_bytes()))
    with tempfile.TemporaryDirectory() as name:
        made = write_random(Path(name), base, Recipe(7, 1, ("k_proj",)), MODEL)
        known = json.loads((made / CONFIG_FILE).read_bytes())
        return json.dumps(known | config).encode(), (made / WEIGHTS_FILE).read_bytes()


BOUNDARY = "attack-7c1f0b"
FORM = f"multipart/form-data; boundary={BOUNDARY}"


def form(config: bytes, weights: bytes, **fields: str) -> bytes:
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    for name, content in ((CONFIG_FILE, config), (WEIGHTS_FILE, weights)):
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}"\r\n\r\n'
        parts.append(head.encode() + content + b"\r\n")
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def half_upload(stage: Stage, secret: str, bytes_now: int) -> bytes:
    """The beginning of an upload's request: the head, and the first bytes of the weights."""
    whole = form(b"{}", b"\0" * (bytes_now + 1024 * 1024), name="half")
    request = stage.request(secret, "/v1/admin/adapters", whole, FORM)
    return request[: len(request) - 1024 * 1024]


# ---- F5: every place for uploads

PLACES = 4
UPLOAD_EVERY_S = 10.0
UPLOADS_PER_S = 0.8  # uploads of all victims together; the victims send in turn


async def trickled_uploads(stage: Stage, seconds: float) -> Row:
    """One tenant's admin sends four uploads, a byte every 10 s. Victims: the owner and another tenant's admin, who
    check adapters, which takes an upload place too."""
    weapon = Trickle(half_upload(stage, stage.admin("globex"), 1000), b"\0", UPLOAD_EVERY_S, PLACES)
    config, weights = adapter_files(stage)
    content, turns = form(config, weights, base=MODEL), [stage.admin(None), stage.admin("acme")]

    async def ask(session: aiohttp.ClientSession, due: float, seen: Seen) -> None:
        turns.append(turns.pop(0))
        headers = {"Authorization": f"Bearer {turns[0]}", "Content-Type": FORM}
        url = f"{stage.stack.url}/v1/admin/adapters/check"
        async with session.post(url, data=content, headers=headers) as answer:
            await note(answer, due, seen)

    return await stage.assault([weapon], Victim(ask, UPLOADS_PER_S), 6 * seconds, 6 * seconds)


# ---- F6: a disk full of unfinished uploads

DISK_MIB, UNFINISHED_MIB, UNFINISHED = 240, 53, 3
SMALL_DISK = Setting(disk_mib=DISK_MIB)


async def unfinished_uploads(stage: Stage, seconds: float) -> Row:
    """Three uploads stop after 53 MB each, on a disk without room for them beside the journal's minimum."""
    first = half_upload(stage, stage.admin("globex"), UNFINISHED_MIB * 1024 * 1024)
    weapon = Trickle(first, b"\0", 1.0, UNFINISHED)
    return await stage.assault([weapon], stage.chat_victim(), 3 * seconds, seconds)


# ---- F1: an adapter with an exponential pattern

OPTIONALS, OPTIONALS_MIN = 28, 12
START_S_MAX = 300.0
REAL_ENGINE = Setting(real_engine=True)
STREAM_TOKENS = 200


def exponential_adapter(stage: Stage, seconds: float) -> bytes:
    """An adapter whose pattern takes 2 · 2^OPTIONALS steps to match with `re`; fewer in a shorter run."""
    optionals = max(OPTIONALS_MIN, OPTIONALS + round(math.log2(seconds / 5)))
    pattern = "(?=model.layers.0.self_attn.k_proj)" + ".?" * optionals + "X"
    return form(*adapter_files(stage, rank_pattern={pattern: 4}), name="stalls", base=MODEL)


async def stalling_adapter(stage: Stage, seconds: float) -> list[Row]:
    """A tenant's admin uploads the adapter and the tenant requests it while another tenant's streams run. Latencies are
    gaps between tokens, the stall is the longest gap, and a broken stream is a refusal. Then measures how long an
    engine's restart takes with this adapter."""
    without_s = await restart_s(stage)
    upload = stage.request(stage.admin("globex"), "/v1/admin/adapters", exponential_adapter(stage, seconds), FORM)
    named = stage.request(stage.stack.keys["globex"], "/v1/chat/completions", json.dumps(body(model="stalls")).encode())
    victim = stream_victim(stage)
    attack = await stage.half([Flood(upload, 1, times=1)], victim, 0.1, stage.stack.port)
    use = await stage.half([Flood(named, 1, times=1)], victim, seconds, stage.stack.port)
    quiet = await stage.half([Paced(upload, 1, 1 / max(seconds, 0.1))], victim, seconds, stage.quiet_port)
    row = figures(attack.with_more(use), quiet) | {"cpu_ms_per_refusal": math.nan}
    row["loop_stall_ms"] = max(attack.seen.seconds + use.seen.seconds, default=math.nan) * 1000
    row["quiet_stall_ms"] = max(quiet.seen.seconds, default=math.nan) * 1000
    with_s = await restart_s(stage)
    return [row, restart_row(with_s, without_s)]


def restart_row(with_s: float, without_s: float) -> Row:
    return {
        "attack": "F1/restart",
        "loop_stall_ms": math.nan,
        "cpu_ms_per_refusal": math.nan,
        "victim_p99_ms": with_s * 1000,
        "quiet_p99_ms": without_s * 1000,
        "refused": 0,
        "detail": "an engine's start, until the gateway is ready",
    }


async def restart_s(stage: Stage) -> float:
    """Seconds from the engine's start after a SIGKILL until the gateway is ready."""
    await asyncio.to_thread(stage.stack.kill_engine)
    await asyncio.sleep(0.3)  # time for the gateway to notice the lost engine
    began = time.monotonic()
    stage.stack.start_engine()
    await asyncio.to_thread(stage.stack.wait_ready, START_S_MAX)
    return time.monotonic() - began


def stream_victim(stage: Stage) -> Victim:
    """Run overlapping streams; each gap before a token is one latency."""
    asked, headers = body(max_tokens=STREAM_TOKENS, stream=True), stage.stack.headers("acme")

    async def ask(session: aiohttp.ClientSession, due: float, seen: Seen) -> None:
        url, last = f"{stage.stack.url}/v1/chat/completions", due
        async with session.post(url, json=asked, headers=headers) as answer:
            if answer.status != 200:
                await note(answer, due, seen)
                return
            async for line in answer.content:
                if not line.startswith(b"data: "):
                    continue
                now = time.monotonic()
                seen.seconds.append(now - last)
                last = now
                if line.startswith(b'data: {"error"'):
                    seen.refused["broken stream"] += 1
                    return

    return Victim(ask, per_s=4.0)
