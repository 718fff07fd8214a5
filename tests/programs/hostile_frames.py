"""Sends thousands of frames that no gateway sends to real engine processes.

    python tests/programs/hostile_frames.py [--fake 4000] [--real 700] [--seed 1]

A frame is arbitrary bytes, a known frame with values of wrong types or out of range, or a valid frame at the wrong time
(a handle twice, a stale epoch, an Abort of another stream's handle). `play` raises Broken unless

- the engine is the same process of the same epoch, and logged no error;
- no Submit has a second ending;
- a well-behaved stream beside the hostile ones is answered as before, after every batch of frames.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # beside support/, and beside the packages where those are not installed
    sys.path[:0] = [str(directory) for directory in Path(__file__).resolve().parents[1:3]]

import msgspec

from engine.protocol.codec import HEADER, FrameReader, ProtocolError, decode_to_engine
from engine.protocol.frames import (
    Abort,
    Finished,
    Guide,
    LoadAdapter,
    LoadModel,
    Recorded,
    Refused,
    Sampling,
    Status,
    Submit,
    UnloadAdapter,
    UnloadModel,
    Watch,
)
from support.engine.process import EngineProcess, Peer, framed

BATCH = 20  # frames of one hostile stream; invalid bytes end it earlier, as the engine closes the stream
ANSWER_S_MAX = 60.0
SILENCE_S = 0.08  # seconds without a frame after which a stream counts as fully answered
INTEGERS = [0, -1, 1, 7, 49_152, 2**31 - 1, 2**31, 2**32, 2**63 - 1, -(2**63), 2**64 - 1]
NUMBERS: list[Any] = [*INTEGERS, 1.5, 1e-300, 1e308, -1e308, float("nan"), float("inf"), float("-inf")]
IDS: list[Any] = [[], [0], [-1], [2**31], [2**63], [49_152] * 3, [1] * 9000, [*range(300)], [5] * 17]
GUIDES = [
    Guide("start: missing"), Guide(""), Guide("{"), Guide("start: /[a-z]{3}/"),
    Guide('{"grammars": [{"json_schema": {}}]}'),
    Guide("start: " + "(" * 5000), Guide("x" * 300_000), Guide("start: /a/", [5], [6], False, 2**63),
    *(Guide(None, ids, [5], False, 3) for ids in IDS), *(Guide("start: /a/", [], ids, True, -1) for ids in IDS),
    *(Guide(None, [], [5], True, number) for number in INTEGERS),
]  # fmt: skip
# Fields of a Sampling that are integers.
WHOLE = {"top_k", "seed", "choice", "min_tokens", "logprobs"}
TEXTS: list[Any] = ["", "x", "\x00", "é☃", "a" * 100_000, "../../etc/passwd", "f" * 64, "\x1b[2J"]
OTHERS: list[Any] = [None, True, [], {}, [[]], {"a": 1}, b"\xff\x00", [None], {1: 2}]
TAGS = ["submit", "abort", "recorded", "load_adapter", "unload_adapter", "load_model", "status", "watch", "hello"]
TAGS += ["tokens", "finished", "", "x"]
ORDINARY = {"max_tokens": 4}


class Broken(AssertionError):
    """A condition of this module's docstring is violated."""


def a_submit(peer: Peer, handle: int, choose: random.Random) -> bytes:
    """A valid Submit with one to three values changed, mostly to values of the right type."""
    right = peer.submit(handle, **ORDINARY)
    changes: dict[str, Any] = {}
    sampling = Sampling(seed=choose.randrange(2**32))
    for _ in range(choose.randrange(1, 4)):
        match choose.randrange(4):
            case 0:
                changes[choose.choice(["request_id", "namespace", "share", "tier", "epoch"])] = choose.choice(TEXTS)
            case 1:
                changes |= choose.choice(
                    [
                        {"handle": choose.choice(INTEGERS)},
                        {"handle": handle - 1},
                        {"max_tokens": choose.choice(INTEGERS)},
                        {"weight": choose.choice(NUMBERS)},
                        {"guide": choose.choice(GUIDES)},
                        {"model": choose.choice(TEXTS)},
                        {"adapter": choose.choice(TEXTS)},
                        {"stop_ids": choose.choice(IDS)},
                    ]
                )
            case 2:
                changes["prompt_ids"] = choose.choice(IDS)
            case 3:
                name = choose.choice(Sampling.__struct_fields__)
                value: Any = choose.choice(INTEGERS if name in WHOLE else NUMBERS)
                if name == "logit_bias":
                    value = {choose.choice(INTEGERS): choose.choice(NUMBERS) for _ in range(3)}
                sampling = msgspec.structs.replace(sampling, **{name: value})
    frame: list[Any] = msgspec.to_builtins(msgspec.structs.replace(right, sampling=sampling, **changes))
    if choose.random() < 0.1:  # values of another type, or too few
        frame[choose.randrange(len(frame))] = choose.choice([*NUMBERS, *TEXTS, *OTHERS])
        frame = frame[: choose.randrange(1, len(frame) + 1)]
    return framed(_packed(frame))


def another(peer: Peer, handle: int, choose: random.Random) -> bytes:
    """A frame of any other kind, with values of the right types."""
    number, text = choose.choice(INTEGERS), choose.choice(TEXTS)
    frames: list[Any] = [
        Abort(choose.choice([number, handle - 1])),
        Recorded([number, handle - 1] * choose.choice([0, 1, 5000])),
        LoadAdapter(text[:128], choose.choice([text, peer.hello.models[0].name]), choose.choice(TEXTS), True),
        UnloadAdapter(text[:128]),
        LoadModel(text[:128], choose.choice(TEXTS), choose.choice(["float32", text]), number, True, text, text),
        UnloadModel(text[:128]),
        Status(),
        Watch(number),
    ]
    return framed(_packed(msgspec.to_builtins(choose.choice(frames))))


def hostile(peer: Peer, handle: int, choose: random.Random) -> bytes:
    """One hostile frame, with its header."""
    kind = choose.random()
    if kind < 0.66:
        return a_submit(peer, handle, choose)
    if kind < 0.86:
        return another(peer, handle, choose)
    if kind < 0.92:
        values = [choose.choice([*NUMBERS, *TEXTS, *OTHERS]) for _ in range(choose.randrange(6))]
        return framed(_packed([choose.choice(TAGS), *values]))
    if kind < 0.95:
        return framed(choose.randbytes(choose.randrange(200)))
    if kind < 0.97:
        return HEADER.pack(choose.choice([0, 2**32 - 1, 16 * 1024 * 1024 + 1])) + b"x"
    whole = framed(_packed(msgspec.to_builtins(peer.submit(handle, **ORDINARY))))
    return whole[: choose.randrange(len(whole))] if kind < 0.98 else whole * 2


def _packed(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (msgspec.MsgspecError, OverflowError):
        return b"\xc1"


async def play(process: EngineProcess, frames: int, seed: int) -> Counter[str]:
    """Send `frames` hostile frames. Returns how requests and streams ended. Raises Broken."""
    seen: Counter[str] = Counter()
    logged = len(process.log())
    beside = await Peer.connect(process.socket)
    try:
        handle = 1
        while handle <= frames:
            stream = Stream(await Peer.connect(process.socket), random.Random(f"{seed} {handle}"))
            try:
                if stream.peer.hello.epoch != process.ready["epoch"]:
                    raise Broken(f"frame {handle}: the engine started again")
                handle = await stream.attack(handle, min(handle + BATCH, frames + 1))
            finally:
                await stream.peer.close()
            seen.update(stream.seen)
            await ask_beside(beside, handle)
            if not process.alive():
                raise Broken(f"frame {handle}: exit status {process.process.returncode}:\n{process.log()[-3000:]}")
    finally:
        await beside.close()
    new = process.log()[logged:]
    lines = [line for line in new.split("\n") if line]  # not `splitlines`: quoted text may have other line separators
    if other := [line for line in lines if not line.startswith("{")]:
        raise Broken("the engine printed what is no line of its log:\n" + "\n".join(other)[:3000])
    if errors := [line for line in lines if json.loads(line)["level"] == "error"]:
        raise Broken(f"{len(errors)} errors in the log, the first: {errors[0][:2000]}")
    return seen


async def ask_beside(peer: Peer, handle: int) -> None:
    """Run a request on a well-behaved stream. Raises Broken."""
    peer.send(peer.submit(handle, **ORDINARY))
    ids, ending = (await peer.until_ended(handle, timeout_s=ANSWER_S_MAX))[handle]
    if not isinstance(ending, Finished) or ending.reason not in ("length", "stop") or not ids:
        raise Broken(f"frame {handle}: the request beside it ended with {ending}")


class Stream:
    """One hostile stream, with its Submits and the frames it received."""

    def __init__(self, peer: Peer, choose: random.Random) -> None:
        self.peer = peer
        self.seen: Counter[str] = Counter()
        self._choose = choose
        self._asked: Counter[int] = Counter()  # Submits by handle
        self._ended: Counter[int] = Counter()

    async def attack(self, handle: int, until: int) -> int:
        """Send a frame for each handle, up to the first invalid one. Returns the next handle. Raises Broken."""
        for number in range(handle, until):
            data = hostile(self.peer, number, self._choose)
            frames = _frames(data)
            self._asked.update([frame.handle for frame in frames or () if isinstance(frame, Submit)])
            if frames is None:  # the engine closes the stream, and answers no earlier frame any more
                await self._listen()
                self.peer.write(data)
                await self._listen()
                return number + 1
            self.peer.write(data)
        await self._listen()
        return until

    async def _listen(self) -> None:
        """Read until the engine closes the stream or sends nothing for SILENCE_S. Raises Broken."""
        with contextlib.suppress(TimeoutError):
            try:
                while True:
                    frame = await self.peer.next(timeout_s=SILENCE_S)
                    if isinstance(frame, Finished | Refused):
                        self._ended[frame.handle] += 1
                        self.seen[frame.reason if isinstance(frame, Finished) else frame.code] += 1
            except EOFError:
                self.seen["stream closed"] += 1
        if more := self._ended - self._asked:
            raise Broken(f"more endings than Submits, by handle: {dict(more)}")


def _frames(data: bytes) -> list[Any] | None:
    """None: not all bytes are frames of this protocol."""
    try:
        return [decode_to_engine(body) for body in FrameReader().feed(data)] or None
    except ProtocolError:
        return None


def fake_config() -> dict[str, Any]:
    return {"models": [{"name": "fake-model"}], "fake": {"step_ms": 0.2}}


def real_config(model_dir: Path) -> dict[str, Any]:
    tiers = [
        {"name": name, "service_tier": served, "floor": floor, "inter_token_ms": 10_000}
        for name, served, floor in (("premium", "priority", 0.3), ("standard", "default", 0.3), ("batch", "flex", 0.0))
    ]
    return {"models": [{"name": "tiny", "path": str(model_dir)}], "threads": 1, "tiers": tiers}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake", type=int, default=4000)
    parser.add_argument("--real", type=int, default=700)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    from engine.models.packaged.own_model import install_own_model

    with tempfile.TemporaryDirectory() as scratch:
        install_own_model(Path(scratch) / "tiny")
        for name, frames, config, flags in (
            ("fake", arguments.fake, fake_config(), ["--fake"]),
            ("real", arguments.real, real_config(Path(scratch) / "tiny"), []),
        ):
            process = EngineProcess(Path(scratch) / f"{name}.sock", config, *flags)
            try:
                seen = asyncio.run(play(process, frames, arguments.seed))
            finally:
                status = process.stop()
            print(f"{name}: {frames} frames, seed {arguments.seed}, exit status {status}; {dict(seen.most_common())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
