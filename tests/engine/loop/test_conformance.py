"""What every engine answers on its socket: the fake always, step after step and one step ahead; the real one with the
model (marked `model`)."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from adapters.files.spec import BaseShape
from adapters.files.store import AdapterStore
from engine.protocol.codec import FRAME_BYTES_MAX, HEADER, encode
from engine.protocol.frames import (
    PROTOCOL_VERSION,
    Abort,
    AdapterState,
    Finished,
    LoadAdapter,
    Logprobs,
    Pooling,
    Refused,
    Sampling,
    Snapshot,
    Status,
    StatusReport,
    Submit,
    Tokens,
    UnloadAdapter,
    UnloadModel,
    Vector,
    Watch,
)
from engine.protocol.tiers import SHIPPED_TIERS
from support.adapters.directories import add_directory
from support.engine.process import REPO, STOP_ID, EngineProcess, Peer, framed

POOLED_FIRST_ID = {"last": 600, "mean": 700}  # no pooling hits the other's pages
Connect = Callable[[EngineProcess], Awaitable[Peer]]


@dataclass
class Subject:
    """An engine under test, and what a test has to know of it."""

    process: EngineProcess
    adapter_digest: str
    adapter_path: str
    step_s: float  # a generous bound for one step on a machine that is busy with other things
    fake: bool
    many: int  # ids that take a few dozen milliseconds to make, and not seconds
    handles: Iterator[int]

    def fresh(self) -> int:
        return next(self.handles)


@pytest.fixture(scope="module", params=["fake", "fake_ahead", pytest.param("real", marks=pytest.mark.model)])
def subject(
    request: pytest.FixtureRequest, socket_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Subject]:
    fake = request.param != "real"
    if fake:
        settings = {"step_ms": 2.0, "steps_ahead": int(request.param == "fake_ahead")}
        config: dict[str, Any] = {"models": [{"name": "fake-model"}], "fake": settings}
        process = EngineProcess(socket_dir / f"conformance-{request.param}.sock", config, "--fake")
        digest, path, step_s, many = "a" * 64, "/nowhere", 0.02, 40
    else:
        model_dir = request.getfixturevalue("model_dir")
        base = BaseShape.from_config(json.loads((model_dir / "config.json").read_text()))
        store = AdapterStore(tmp_path_factory.mktemp("adapters"))
        stored = add_directory(store, REPO / "examples" / "adapters" / "pirate", base)
        # Targets that a machine busy with other things keeps: the engine starts with no others.
        tiers = [
            {"name": t.name, "service_tier": t.service_tier, "floor": t.floor, "inter_token_ms": 10_000}
            for t in SHIPPED_TIERS
        ]
        config = {"models": [{"name": "smol", "path": str(model_dir)}], "threads": 1, "tiers": tiers}
        process = EngineProcess(socket_dir / "conformance-real.sock", config)
        digest, path, step_s, many = stored.digest, str(stored.path), 2.0, 8
    yield Subject(process, digest, path, step_s, fake, many, itertools.count(1))
    assert process.alive(), process.log()
    assert process.stop() == 0


@pytest.fixture
async def peer(subject: Subject, connect: Connect) -> Peer:
    return await connect(subject.process)


async def run(peer: Peer, frame: Submit) -> tuple[list[int], Any]:
    peer.send(frame)
    return (await peer.until_ended(frame.handle))[frame.handle]


async def test_hello_comes_first_and_is_the_same_on_every_stream(subject: Subject, connect: Connect) -> None:
    first, second = await connect(subject.process), await connect(subject.process)
    assert first.hello == second.hello
    assert first.hello.version == PROTOCOL_VERSION
    assert first.hello.epoch == subject.process.ready["epoch"]
    assert first.hello.tiers == ["premium", "standard", "batch"]
    model = first.hello.models[0]
    assert model.context_tokens > 0
    assert model.vocab_size > 0
    assert model.pages > 0
    assert len(model.digest) == 64
    assert model.numerics == "fake" if subject.fake else model.numerics.startswith("cpu ")


async def test_a_request_streams_and_ends_once_with_its_usage(subject: Subject, peer: Peer) -> None:
    frame = peer.submit(subject.fresh(), max_tokens=8, stop_ids=[])
    ids, ending = await run(peer, frame)
    assert len(ids) == 8
    assert isinstance(ending, Finished)
    assert ending.reason == "length"
    assert ending.usage.prompt_tokens == len(frame.prompt_ids)
    assert ending.usage.completion_tokens == 8
    assert 0 <= ending.usage.queue_s <= ending.usage.ttft_s
    assert ending.usage.device_s > 0
    # Nothing more of that handle: what comes next is the answer to the next question.
    peer.send(Status())
    assert isinstance(await peer.next(), StatusReport)


async def test_one_frame_per_step_carries_all_requests(subject: Subject, peer: Peer) -> None:
    handles = [subject.fresh() for _ in range(8)]
    peer.send(*(peer.submit(handle, max_tokens=subject.many, stop_ids=[]) for handle in handles))
    frames: list[Tokens] = []
    ended = 0
    while ended < len(handles):
        frame = await peer.next()
        if isinstance(frame, Tokens):
            frames.append(frame)
        elif isinstance(frame, Finished):
            ended += 1
    steps = [frame.step for frame in frames]
    assert steps == sorted(set(steps)), "one frame a step"
    assert max(len(frame.handles) for frame in frames) == 8
    assert all(len(set(frame.handles)) == len(frame.handles) == len(frame.ids) for frame in frames)
    assert sum(len(frame.ids) for frame in frames) == 8 * subject.many


@pytest.mark.parametrize("temperature", [0.0, 0.9])
async def test_the_same_request_gives_the_same_ids(subject: Subject, peer: Peer, temperature: float) -> None:
    def frame(seed: int) -> Submit:
        sampling = Sampling(temperature=temperature, seed=seed)
        return peer.submit(subject.fresh(), max_tokens=12, sampling=sampling, stop_ids=[])

    first, _ = await run(peer, frame(7))
    # Neighbours in the batch change nothing.
    again, *others = frame(7), frame(8), frame(9)
    peer.send(*others, again)
    results = await peer.until_ended(again.handle, *(other.handle for other in others))
    assert results[again.handle][0] == first
    assert (results[others[0].handle][0] == first) == (temperature == 0.0)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("adapted", [False, True])
async def test_a_text_is_the_same_whichever_id_it_is_resumed_after(
    subject: Subject, peer: Peer, temperature: float, adapted: bool
) -> None:
    """Also beside each other, with pages from the prefix cache and without."""
    if adapted:
        await load(peer, subject)
    sampling = Sampling(temperature=temperature, seed=7, presence_penalty=0.5, repetition_penalty=1.1)
    adapter = subject.adapter_digest if adapted else None
    whole = peer.submit(subject.fresh(), max_tokens=20, sampling=sampling, stop_ids=[], adapter=adapter)
    ids, _ = await run(peer, whole)
    frames = {
        cut: msgspec.structs.replace(
            whole,
            handle=subject.fresh(),
            prompt_ids=[*whole.prompt_ids, *ids[:cut]],
            resumed=cut,
            attempt=1,
            namespace=f"ns {cut % 2}",
        )
        for cut in range(1, 20)
    }
    peer.send(*frames.values())
    results = await peer.until_ended(*(frame.handle for frame in frames.values()))
    for cut, frame in frames.items():
        rest, ending = results[frame.handle]
        assert ids[:cut] + rest == ids, f"resumed after {cut} ids"
        usage = ending.usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(whole.prompt_ids), 20)


async def test_logprobs_come_for_those_who_ask(subject: Subject, peer: Peer) -> None:
    counts = {subject.fresh(): count for count in (-1, 0, 20)}
    peer.send(
        *(
            peer.submit(handle, max_tokens=subject.many, stop_ids=[], sampling=Sampling(seed=3, logprobs=count))
            for handle, count in counts.items()
        )
    )
    found: dict[int, list[Logprobs | None]] = {handle: [] for handle in counts}
    ids: dict[int, list[int]] = {handle: [] for handle in counts}
    ended = 0
    while ended < len(counts):
        frame = await peer.next()
        if isinstance(frame, Tokens):
            own = frame.logprobs or [None] * len(frame.ids)
            for handle, token, reported in zip(frame.handles, frame.ids, own, strict=True):
                ids[handle].append(token)
                found[handle].append(reported)
        ended += isinstance(frame, Finished)
    silent, alone, many = counts
    assert found[silent] == [None] * subject.many
    assert ids[silent] == ids[alone] == ids[many]
    for handle in (alone, many):
        for token, reported in zip(ids[handle], found[handle], strict=True):
            assert reported is not None
            assert len(reported) == 1 + counts[handle]
            assert reported[0][0] == token
            values = [value for _, value in reported[1:]]
            assert values == sorted(values, reverse=True)
            assert all(value <= 0 for _, value in reported)
            assert sum(math.exp(value) for value in values) < 1 + 1e-5


async def test_nobody_asks_and_no_logprobs_travel(subject: Subject, peer: Peer) -> None:
    peer.send(peer.submit(subject.fresh(), max_tokens=3, stop_ids=[]))
    assert (await peer.expect(Tokens)).logprobs is None


async def test_biases_and_min_tokens_rule_what_is_drawn(subject: Subject, peer: Peer) -> None:
    if subject.fake:
        pytest.skip("the fake draws from a hash: it has no logits to bias or to rule out")
    handles = [subject.fresh() for _ in range(3)]
    stop = {"stop_ids": [STOP_ID], "max_tokens": 6}
    peer.send(
        peer.submit(handles[0], sampling=Sampling(logit_bias={4000: 100.0}), **stop),
        peer.submit(handles[1], sampling=Sampling(logit_bias={STOP_ID: 100.0}), **stop),
        peer.submit(handles[2], sampling=Sampling(logit_bias={STOP_ID: 100.0}, min_tokens=4), **stop),
    )
    (forced, _), (stopped, _), (held, ending) = (await peer.until_ended(*handles)).values()
    assert forced == [4000] * 6
    assert stopped == [STOP_ID]
    assert len(held) == 5
    assert held.index(STOP_ID) == 4
    assert ending.reason == "stop"


async def test_an_id_among_the_stop_ids_ends_the_request_and_is_counted(subject: Subject, peer: Peer) -> None:
    ids, _ = await run(peer, peer.submit(subject.fresh(), max_tokens=12, stop_ids=[]))
    at = next(i for i, token in enumerate(ids) if i >= 1 and token not in ids[:i])
    stopped, ending = await run(peer, peer.submit(subject.fresh(), max_tokens=12, stop_ids=[ids[at]]))
    assert stopped == ids[: at + 1]
    assert ending.reason == "stop"
    assert ending.usage.completion_tokens == at + 1


async def test_abort_ends_with_one_aborted_and_is_idempotent(subject: Subject, peer: Peer) -> None:
    handle = subject.fresh()
    peer.send(peer.submit(handle, max_tokens=4000, stop_ids=[]))
    await peer.expect(Tokens)
    peer.send(Abort(handle), Abort(handle), Abort(handle + 100_000))
    ending = await peer.expect(Finished)
    assert (ending.handle, ending.reason) == (handle, "aborted")
    assert 0 < ending.usage.completion_tokens < 4000
    peer.send(Abort(handle), Status())
    assert isinstance(await peer.next(), StatusReport)


async def test_abort_straight_after_submit(subject: Subject, peer: Peer) -> None:
    handle = subject.fresh()
    peer.send(peer.submit(handle, max_tokens=500, stop_ids=[]), Abort(handle))
    _, ending = (await peer.until_ended(handle))[handle]
    assert ending.reason == "aborted"


async def test_another_epoch_is_refused(subject: Subject, peer: Peer) -> None:
    ids, ending = await run(peer, peer.submit(subject.fresh(), epoch="0" * 32))
    assert isinstance(ending, Refused)
    assert (ids, ending.code) == ([], "stale_epoch")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"model": "nobody"}, "model_unknown"),
        ({"adapter": "f" * 64}, "adapter_unknown"),
        ({"tier": "gold"}, "tier_unknown"),
        ({"max_tokens": 10_000_000}, "too_long"),
        ({"max_tokens": 2**62}, "too_long"),
        ({"max_tokens": -1}, "bad_request"),
        ({"max_tokens": -5}, "bad_request"),
        ({"max_tokens": 8, "pooling": "last"}, "bad_request"),
        ({"max_tokens": 0, "pooling": "mean", "sampling": Sampling(prompt_logprobs=0)}, "bad_request"),
        ({"prompt_ids": []}, "bad_request"),
        ({"prompt_ids": [-1]}, "bad_request"),
        ({"prompt_ids": [2**40]}, "bad_request"),
        ({"prompt_ids": [5] * 1_000_000}, "too_long"),
        ({"sampling": Sampling(temperature=-1.0)}, "bad_request"),
        ({"sampling": Sampling(temperature=float("nan"))}, "bad_request"),
        ({"sampling": Sampling(temperature=float("inf"))}, "bad_request"),
        ({"sampling": Sampling(top_p=0.0)}, "bad_request"),
        ({"sampling": Sampling(top_p=1.5)}, "bad_request"),
        ({"sampling": Sampling(top_k=-1)}, "bad_request"),
        ({"sampling": Sampling(top_k=2**31)}, "bad_request"),
        ({"sampling": Sampling(top_k=2**63)}, "bad_request"),
        ({"sampling": Sampling(choice=2**31)}, "bad_request"),
        ({"sampling": Sampling(choice=-(2**40))}, "bad_request"),
        ({"sampling": Sampling(top_k=2**31 - 1, temperature=0.5)}, None),
        ({"sampling": Sampling(seed=2**64 - 1, temperature=1e300, top_p=1e-300, min_p=1e-300)}, None),
        ({"sampling": Sampling(temperature=1e-300, repetition_penalty=1e-300)}, None),
        ({"sampling": Sampling(min_p=1.5)}, "bad_request"),
        ({"sampling": Sampling(presence_penalty=-2.5)}, "bad_request"),
        ({"sampling": Sampling(frequency_penalty=float("nan"))}, "bad_request"),
        ({"sampling": Sampling(repetition_penalty=0.0)}, "bad_request"),
        ({"sampling": Sampling(logit_bias={2**40: 1.0})}, "bad_request"),
        ({"sampling": Sampling(logit_bias={-1: 1.0})}, "bad_request"),
        ({"sampling": Sampling(logit_bias={5: 101.0})}, "bad_request"),
        ({"sampling": Sampling(min_tokens=9), "max_tokens": 8}, "bad_request"),
        ({"sampling": Sampling(logprobs=21)}, "bad_request"),
        ({"sampling": Sampling(min_tokens=8, logprobs=20), "stop_ids": [-7, 2**60]}, None),
        ({"sampling": Sampling(seed=2**63, choice=-3, temperature=0.5)}, None),
        ({"stop_ids": [-7, 2**60]}, None),
        ({"namespace": "", "share": "", "request_id": ""}, None),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
async def test_a_bad_request_fails_alone(subject: Subject, peer: Peer, changes: dict[str, Any], code: str) -> None:
    bad, good = subject.fresh(), subject.fresh()
    peer.send(peer.submit(bad, **changes), peer.submit(good, max_tokens=2))
    results = await peer.until_ended(bad, good)
    assert isinstance(results[good][1], Finished)
    ending = results[bad][1]
    assert getattr(ending, "code", None) == code, ending
    if code is not None:
        assert results[bad][0] == []
        assert ending.message


async def test_a_handle_in_use_closes_the_stream(subject: Subject, peer: Peer, connect: Connect) -> None:
    handle = subject.fresh()
    peer.send(peer.submit(handle, max_tokens=4000, stop_ids=[]))
    await peer.expect(Tokens)
    peer.send(peer.submit(handle))
    assert await peer.closed()
    await quiet(await connect(subject.process))


async def quiet(peer: Peer, timeout_s: float = 30.0) -> StatusReport:
    """Wait until nothing runs."""
    deadline = time.monotonic() + timeout_s
    while True:
        peer.send(Status())
        report = await peer.expect(StatusReport)
        if report.running == 0 and sum(report.waiting.values()) == 0:
            return report
        assert time.monotonic() < deadline, report
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "data",
    [
        framed(b""),
        framed(b"\xc1"),
        framed(b"hello"),
        framed(encode(Status())[HEADER.size :] + b"more"),
        framed(b"\x92\xa5abort\xa1x"),
        framed(b"\x91\xa6submit"),
        framed(b"\x91\xa5hello"),
        encode(UnloadAdapter("f" * 129)),
        encode(UnloadModel("m" * 129)),
        HEADER.pack(FRAME_BYTES_MAX + 1),
        encode(UnloadModel("mmmm")).replace(b"mmmm", b"\xff\xfem\x80"),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 64,
    ],
    ids=[
        "empty",
        "reserved",
        "text",
        "trailing",
        "wrong type",
        "short",
        "engine's own",
        "digest",
        "model",
        "huge",
        "no UTF-8",
        "http",
        "zeros",
    ],
)
async def test_a_malformed_frame_closes_its_stream_only(
    subject: Subject, peer: Peer, connect: Connect, data: bytes
) -> None:
    other = await connect(subject.process)
    handle = subject.fresh()
    other.send(other.submit(handle, max_tokens=subject.many, stop_ids=[]))
    peer.write(data)
    assert await peer.closed()
    ids, ending = (await other.until_ended(handle))[handle]
    assert len(ids) == subject.many
    assert ending.reason == "length"
    assert subject.process.events("stream.cut")[-1]["reason"].startswith("protocol error")


async def test_random_bytes_never_hurt_the_engine(subject: Subject, connect: Connect) -> None:
    draw = random.Random(2)
    good = encode(Submit(1, "r", "e", "m", None, "n", "t", "s", [1, 2], 3, Sampling(), [2]))
    cut = len(subject.process.events("stream.cut"))
    for number in range(200):
        peer = await connect(subject.process)
        if number % 2:
            body = bytearray(good[HEADER.size :])
            for _ in range(draw.randint(1, 4)):
                body[draw.randrange(len(body))] = draw.randrange(256)
            peer.write(framed(bytes(body)))
        else:
            peer.write(draw.randbytes(draw.randint(1, 200)))
        peer.write(framed(b"\xc1"))
        await peer.closed(0.05)  # where the second frame is no part of the first
        await peer.close()
    assert subject.process.alive()
    report = await quiet(await connect(subject.process))
    assert len(subject.process.events("stream.cut")) > cut + 100
    assert report.epoch == subject.process.ready["epoch"]


async def test_frames_may_come_in_pieces(subject: Subject, peer: Peer) -> None:
    handle = subject.fresh()
    for byte in encode(peer.submit(handle, max_tokens=3, stop_ids=[])):
        peer.write(bytes([byte]))
        await asyncio.sleep(0)
    ids, _ = (await peer.until_ended(handle))[handle]
    assert len(ids) == 3


async def test_half_a_frame_and_silence_hold_up_nobody(subject: Subject, peer: Peer, connect: Connect) -> None:
    peer.write(encode(peer.submit(subject.fresh()))[:-3])
    other = await connect(subject.process)
    _, ending = await run(other, other.submit(subject.fresh(), stop_ids=[]))
    assert ending.reason == "length"


async def test_end_of_file_is_death(subject: Subject, peer: Peer, connect: Connect) -> None:
    handles = [subject.fresh() for _ in range(3)]
    other = await connect(subject.process)
    before = await quiet(other)
    peer.send(*(peer.submit(handle, max_tokens=4000, stop_ids=[]) for handle in handles))
    await peer.expect(Tokens)
    await peer.close()
    report = await quiet(other)
    assert report.tokens_made - before.tokens_made < 3 * 4000, "it did not run on to their ends"
    assert report.pages_free + report.pages_cached + report.pages_adapters == report.pages_total
    lost = metric(report, "laneway_tokens_lost_total")
    assert lost >= 1


def metric(report: StatusReport, name: str, **labels: str) -> float:
    """Sum of the samples of that name with those labels."""
    total = 0.0
    for line in report.metrics.decode().splitlines():
        sample, _, value = line.rpartition(" ")
        if sample.partition("{")[0] == name and all(f'{k}="{v}"' in sample for k, v in labels.items()):
            total += float(value)
    return total


async def test_gateways_do_not_hear_each_other(subject: Subject, connect: Connect) -> None:
    peers = [await connect(subject.process) for _ in range(2)]
    handle = subject.fresh()  # the same on both: a handle is a stream's own
    frames = [
        peer.submit(handle, max_tokens=subject.many, stop_ids=[], prompt_ids=[400 + i] * 9)
        for i, peer in enumerate(peers)
    ]
    for peer, frame in zip(peers, frames, strict=True):
        peer.send(frame)
    peers[0].send(Abort(handle + 1))
    results = [(await peer.until_ended(handle))[handle] for peer in peers]
    assert [len(ids) for ids, _ in results] == [subject.many] * 2
    assert results[0][0] != results[1][0]
    peers[0].send(peers[0].submit(handle + 1, max_tokens=1000, stop_ids=[]))
    await peers[0].expect(Tokens)
    peers[1].send(Abort(handle + 1), Status())
    report = await peers[1].expect(StatusReport)
    assert report.running == 1
    subject.handles = itertools.count(handle + 2)


async def test_the_prefix_cache_serves_its_namespace_only(subject: Subject, peer: Peer) -> None:
    prompt = [500 + i % 97 for i in range(200)]

    async def cached(namespace: str, **changes: Any) -> int:
        frame = peer.submit(
            subject.fresh(), prompt_ids=prompt, namespace=namespace, max_tokens=2, stop_ids=[], **changes
        )
        _, ending = await run(peer, frame)
        assert isinstance(ending, Finished)
        return ending.usage.cached_tokens

    await load(peer, subject)
    assert await cached("one") == 0
    again = await cached("one")
    assert 100 < again < 200
    assert await cached("two") == 0
    assert await cached("one", adapter=subject.adapter_digest) == 0
    assert await cached("one") == again


@pytest.mark.parametrize("pooling", ["last", "mean"])
async def test_a_pooled_prompt_ends_with_one_vector(subject: Subject, peer: Peer, pooling: Pooling) -> None:
    """Of length 1; the same again, whatever the prefix cache has; other ids and other adapters make another."""
    prompt = [POOLED_FIRST_ID[pooling] + i % 89 for i in range(150)]

    async def vector(ids: list[int], hits: bool, **changes: Any) -> list[float]:
        frame = peer.submit(subject.fresh(), prompt_ids=ids, max_tokens=0, stop_ids=[], pooling=pooling, **changes)
        peer.send(frame)
        found = await peer.expect(Vector)
        ending = await peer.expect(Finished)
        assert found.handle == ending.handle == frame.handle
        assert (ending.reason, ending.usage.completion_tokens) == ("length", 0)
        assert (ending.usage.cached_tokens > 100) is (hits and pooling == "last")
        return list(struct.unpack(f"<{peer.hello.models[0].vector_width}f", found.values))

    await load(peer, subject)
    one = await vector(prompt, False)
    assert math.hypot(*one) == pytest.approx(1, abs=1e-5)
    assert await vector(prompt, True) == pytest.approx(one, abs=1e-5)
    assert math.dist(await vector([*prompt[:-1], 7], True), one) > 1e-3
    assert math.dist(await vector(prompt, False, adapter=subject.adapter_digest), one) > 1e-3


async def load(peer: Peer, subject: Subject) -> None:
    peer.send(LoadAdapter(subject.adapter_digest, peer.hello.models[0].name, subject.adapter_path))
    state = await peer.expect(AdapterState)
    assert (state.digest, state.state) == (subject.adapter_digest, "loaded")


async def test_an_adapter_is_loaded_used_and_unloaded(subject: Subject, peer: Peer) -> None:
    model = peer.hello.models[0].name
    await load(peer, subject)
    read = len(subject.process.events("adapter.read"))
    await load(peer, subject)
    assert len(subject.process.events("adapter.read")) == read, "what is there is not read again"
    plain, _ = await run(peer, peer.submit(subject.fresh(), stop_ids=[]))
    adapted, _ = await run(peer, peer.submit(subject.fresh(), stop_ids=[], adapter=subject.adapter_digest))
    assert adapted != plain
    peer.send(Status())
    assert subject.adapter_digest in (await peer.expect(StatusReport)).adapters_resident
    peer.send(LoadAdapter(subject.adapter_digest, "nobody", subject.adapter_path))
    assert (await peer.expect(AdapterState)).state == "failed"

    # While it is in use: no further request, and it goes with the last one.
    user, late = subject.fresh(), subject.fresh()
    peer.send(peer.submit(user, adapter=subject.adapter_digest, max_tokens=subject.many, stop_ids=[]))
    await peer.expect(Tokens)
    peer.send(UnloadAdapter(subject.adapter_digest), peer.submit(late, adapter=subject.adapter_digest))
    order: list[object] = []
    while len(order) < 3:
        frame = await peer.next()
        if not isinstance(frame, Tokens):
            order.append(frame)
    refused, finished, unloaded = order
    assert isinstance(refused, Refused)
    assert (refused.handle, refused.code) == (late, "adapter_unknown")
    assert isinstance(finished, Finished)
    assert (finished.handle, finished.usage.completion_tokens) == (user, subject.many)
    assert isinstance(unloaded, AdapterState)
    assert unloaded.state == "unloaded"
    peer.send(Status(), UnloadAdapter(subject.adapter_digest))
    assert (await peer.expect(StatusReport)).pages_adapters == 0
    assert (await peer.expect(AdapterState)).state == "unloaded"
    peer.send(LoadAdapter(subject.adapter_digest, model, subject.adapter_path))
    await peer.expect(AdapterState)


async def test_the_status_report_adds_up(subject: Subject, peer: Peer) -> None:
    before = await quiet(peer)
    await run(peer, peer.submit(subject.fresh(), max_tokens=10, stop_ids=[]))
    after = await quiet(peer)
    overrun = after.tokens_overrun - before.tokens_overrun  # a model that was idle for a while was probed
    assert after.tokens_made - before.tokens_made - overrun == 10
    assert after.step > before.step
    assert set(after.waiting) == {"premium", "standard", "batch"}
    assert after.pages_free + after.pages_cached + after.pages_adapters == after.pages_total
    made = "vllm:generation_tokens_total"
    assert metric(after, made) + metric(after, "laneway_tokens_overrun_total") == after.tokens_made
    assert metric(after, made, tier="standard") - metric(before, made, tier="standard") == 10
    first, second = "vllm:time_to_first_token_seconds_count", "vllm:inter_token_latency_seconds_count"
    assert metric(after, first) - metric(before, first) == 1
    assert metric(after, second) - metric(before, second) == 9
    assert metric(after, "vllm:num_requests_running") == 0


async def test_a_snapshot_shows_who_holds_what(subject: Subject, peer: Peer, connect: Connect) -> None:
    await load(peer, subject)
    model, handle, user = peer.hello.models[0].name, subject.fresh(), subject.fresh()
    await quiet(peer)
    peer.send(
        peer.submit(handle, tier="batch", max_tokens=2000, stop_ids=[]),
        peer.submit(user, tier="premium", max_tokens=2000, stop_ids=[], adapter=subject.adapter_digest),
    )
    seen = {handle: 0, user: 0}
    while not all(seen.values()):
        for one in (await peer.expect(Tokens)).handles:
            seen[one] += 1
    watcher = await connect(subject.process)  # another gateway sees the same
    watcher.send(Watch(0))
    shot = await watcher.expect(Snapshot)
    assert shot.epoch == subject.process.ready["epoch"]
    assert shot.step > 0
    assert sum(length for _, length in runs(shot)) == shot.pages == sum(owner.pages for owner in shot.owners)
    assert {index for index, _ in runs(shot)} == set(range(len(shot.owners)))
    held = {(one.tier, one.model, one.adapter) for one in shot.owners if one.kind == "kv"}
    assert held == {("batch", model, None), ("premium", model, subject.adapter_digest)}
    assert any(one.kind == "adapter" and one.adapter == subject.adapter_digest for one in shot.owners)
    assert [(one.request_id, one.tier, one.state) for one in shot.requests] == [
        (f"req_{user}", "premium", "decode"),
        (f"req_{handle}", "batch", "decode"),
    ]
    assert all(one.prompt_tokens == 20 and one.completion_tokens >= 1 and one.age_s > 0 for one in shot.requests)
    assert shot.requests_total == 2
    assert {tier.name: (tier.waiting, tier.running) for tier in shot.tiers} == {
        "premium": (0, 1),
        "standard": (0, 0),
        "batch": (0, 1),
    }
    assert all(tier.held_pages > 0 for tier in shot.tiers if tier.running)
    assert [(one.digest, one.where) for one in shot.adapters] == [(subject.adapter_digest, "device")]
    assert (shot.adapters_total, shot.preemptions) == (1, [])
    peer.send(Abort(handle), Abort(user))
    await peer.until_ended(handle, user)
    report = await quiet(peer)
    peer.send(Watch())
    idle = await peer.expect(Snapshot)
    pages = {kind: sum(one.pages for one in idle.owners if one.kind == kind) for kind in ("free", "cached", "adapter")}
    assert pages == {"free": report.pages_free, "cached": report.pages_cached, "adapter": report.pages_adapters}
    assert (idle.requests, idle.requests_total) == ([], 0)


def runs(shot: Snapshot) -> list[tuple[int, int]]:
    return list(struct.iter_unpack("<II", shot.runs))


async def test_metrics_keep_vllm_s_names(subject: Subject, peer: Peer) -> None:
    peer.send(Status())
    report = await peer.expect(StatusReport)
    families = {family.name: family for family in text_string_to_metric_families(report.metrics.decode())}
    assert {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries",
        "vllm:prefix_cache_hits",
        "vllm:num_preemptions",
        "vllm:prompt_tokens",
        "vllm:generation_tokens",
        "vllm:request_success",
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:request_queue_time_seconds",
    } <= families.keys()
    ours = families.keys() - {name for name in families if name.startswith("vllm:")}
    assert all(name.startswith("laneway_") for name in ours)
    tokens = families["vllm:generation_tokens"].samples
    assert {sample.labels["tier"] for sample in tokens} == {"premium", "standard", "batch"}
    assert {sample.labels["model_name"] for sample in tokens} == {peer.hello.models[0].name}


async def test_heartbeats_come_each_second_also_while_busy(subject: Subject, peer: Peer) -> None:
    handle = subject.fresh()
    peer.send(peer.submit(handle, max_tokens=4000, stop_ids=[]))
    began = time.monotonic()
    while len(peer.heartbeats) < 3:  # the first may still be of a moment before the request
        await peer.next()
    assert time.monotonic() - began > 1.5, "two of them are two seconds apart"
    busy = peer.heartbeats[1:]
    assert all(beat.busy and beat.running == 1 for beat in busy)
    assert busy[0].step + (subject.step_s < 1) <= busy[1].step
    peer.send(Abort(handle))
    await peer.until_ended(handle)
    # Idle by an abort, without a further step: that shows too.
    seen = len(peer.heartbeats)
    while len(peer.heartbeats) < seen + 2:
        peer.send(Status())
        await peer.next()
        await asyncio.sleep(0.05)
    beat = peer.heartbeats[-1]
    assert (beat.busy, beat.running, beat.waiting) == (False, 0, 0)
