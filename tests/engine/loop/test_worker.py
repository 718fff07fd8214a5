"""The engine process: faults inside a step, limits, start and stop. Always the fake: what fails here is made to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.__main__ import STOP_S_MAX
from engine.loop.file_checks import CHANGES_MAX
from engine.loop.model_changes import MODELS_MAX
from engine.loop.unsettled import UnrecordedAttempt, UnrecordedRequests
from engine.loop.worker import MESSAGE_CHARS_MAX
from engine.protocol.codec import FRAME_BYTES_MAX, encode
from engine.protocol.config import EngineConfigError, parse_engine_config
from engine.protocol.frames import (
    Abort,
    AdapterState,
    EngineUsage,
    Finished,
    LoadAdapter,
    LoadModel,
    ModelState,
    Recorded,
    Refused,
    Status,
    StatusReport,
    Submit,
    Tokens,
    UnloadAdapter,
    UnloadModel,
)
from engine.protocol.inbox import INBOX_BYTES_MAX
from engine.protocol.server import OUTBOX_BYTES_MAX
from engine.protocol.tiers import SHIPPED_TIERS
from support.engine.process import REPO, EngineProcess, Peer

Start = Callable[..., EngineProcess]
Connect = Callable[[EngineProcess], Awaitable[Peer]]
CHUNK_FAILS, STEP_FAILS, STALLS, LOSES_DEVICE, DRAW_FAILS = 701, 702, 703, 704, 705
STEPS_AHEAD = pytest.mark.parametrize("steps_ahead", [0, 1])
FAULTS = {
    "chunk_error_id": CHUNK_FAILS,
    "draw_error_id": DRAW_FAILS,
    "step_error_id": STEP_FAILS,
    "stall_id": STALLS,
    "device_lost_id": LOSES_DEVICE,
}


def sample(report: StatusReport, name: str) -> float:
    return sum(
        float(line.rpartition(" ")[2])
        for line in report.metrics.decode().splitlines()
        if line.partition("{")[0].partition(" ")[0] == name
    )


async def status(peer: Peer) -> StatusReport:
    peer.send(Status())
    return await peer.expect(StatusReport)


async def stalled(peer: Peer) -> None:
    """Until the step of the only request there is has begun, and hangs: a heartbeat says so."""
    deadline = time.monotonic() + 30
    while not (peer.heartbeats and peer.heartbeats[-1].busy):
        assert time.monotonic() < deadline
        with contextlib.suppress(TimeoutError):
            await peer.next(0.05)


# ---- faults in a step


@STEPS_AHEAD
async def test_a_chunk_that_fails_ends_its_request_alone(
    start_engine: Start, connect: Connect, steps_ahead: int
) -> None:
    engine = start_engine({"faults": FAULTS, "steps_ahead": steps_ahead})
    peer = await connect(engine)
    peer.send(peer.submit(1, max_tokens=40), peer.submit(2, prompt_ids=[5, CHUNK_FAILS]), peer.submit(3, max_tokens=40))
    results = await peer.until_ended(1, 2, 3)
    assert [len(results[handle][0]) for handle in (1, 2, 3)] == [40, 0, 40]
    assert results[2][1].reason == "error"
    assert results[2][1].message == "the chunk was made to fail"
    assert sample(await status(peer), "laneway_chunk_errors_total") == 1
    assert engine.events("chunk.failed")[0]["request_id"] == "req_2"


@STEPS_AHEAD
async def test_a_row_that_cannot_be_drawn_fails_alone_and_is_counted(
    start_engine: Start, connect: Connect, steps_ahead: int
) -> None:
    engine = start_engine({"faults": FAULTS, "steps_ahead": steps_ahead})
    peer = await connect(engine)
    peer.send(peer.submit(1, max_tokens=40), peer.submit(2, prompt_ids=[5, DRAW_FAILS]), peer.submit(3, max_tokens=40))
    results = await peer.until_ended(1, 2, 3)
    assert [len(results[handle][0]) for handle in (1, 2, 3)] == [40, 0, 40]
    assert results[2][1].reason == "error"
    assert results[2][1].message.startswith("its sampling could not be prepared: OverflowError")
    report = await status(peer)
    assert sample(report, "laneway_chunk_errors_total") == 1
    assert sample(report, "laneway_step_errors_total") == 0
    assert engine.events("chunk.failed")[0]["request_id"] == "req_2"


@STEPS_AHEAD
async def test_a_step_that_raises_ends_its_requests_and_the_loop_goes_on(
    start_engine: Start, connect: Connect, steps_ahead: int
) -> None:
    engine = start_engine({"faults": FAULTS, "steps_ahead": steps_ahead})
    peer, other = await connect(engine), await connect(engine)
    peer.send(peer.submit(1, max_tokens=4000))
    await peer.expect(Tokens)
    other.send(other.submit(9, prompt_ids=[STEP_FAILS]))
    (_, ending), (_, first) = (await other.until_ended(9))[9], (await peer.until_ended(1))[1]
    for end in (ending, first):
        assert end.reason == "error"
        assert "the step was made to fail" in end.message
    assert first.usage.completion_tokens > 0
    peer.send(peer.submit(2))
    assert (await peer.until_ended(2))[2][1].reason == "length"
    report = await status(peer)
    assert sample(report, "laneway_step_errors_total") == 1 + steps_ahead, "the next had been begun with the same chunk"
    assert sample(report, "laneway_chunk_errors_total") == 0
    assert report.pages_free + report.pages_cached == report.pages_total


@STEPS_AHEAD
async def test_a_lost_device_ends_the_process(start_engine: Start, connect: Connect, steps_ahead: int) -> None:
    """Alive it would refuse every step for ever, and look healthy."""
    engine = start_engine({"faults": FAULTS, "steps_ahead": steps_ahead})
    peer = await connect(engine)
    peer.send(peer.submit(1, max_tokens=4000))
    await peer.expect(Tokens)
    peer.send(peer.submit(2, prompt_ids=[LOSES_DEVICE]))
    assert await asyncio.to_thread(engine.process.wait, 30) == 1
    assert "the device was made to be lost" in str(engine.events("engine.failed"))


async def test_heartbeats_go_on_while_a_step_takes_long(start_engine: Start, connect: Connect) -> None:
    peer = await connect(start_engine({"faults": FAULTS | {"stall_s": 3.2}}))
    peer.send(peer.submit(1, prompt_ids=[STALLS]))
    await peer.until_ended(1)
    beats = peer.heartbeats
    assert len(beats) >= 3
    assert all(beat.busy for beat in beats[-2:])
    assert beats[-1].step == beats[-2].step


# ---- limits


async def test_a_full_queue_refuses_with_when_to_try_again(start_engine: Start, connect: Connect) -> None:
    tiers = [{"name": tier.name, "service_tier": tier.service_tier, "queue_max": 2} for tier in SHIPPED_TIERS]
    peer = await connect(start_engine({"step_ms": 20.0}, tiers=tiers, sequences_max=1))
    peer.send(peer.submit(1, max_tokens=4000))
    await peer.expect(Tokens)
    peer.send(*(peer.submit(handle) for handle in (2, 3, 4)))
    refused = await peer.expect(Refused)
    assert (refused.handle, refused.code) == (4, "queue_full")
    assert refused.retry_after_s is not None
    assert refused.retry_after_s > 0
    report = await status(peer)
    assert report.waiting["standard"] == 2
    assert report.running == 1
    peer.send(Abort(1))
    results = await peer.until_ended(1, 2, 3)
    assert [results[handle][1].reason for handle in (1, 2, 3)] == ["aborted", "length", "length"]


async def test_more_requests_than_the_inbox_holds_all_end(start_engine: Start, connect: Connect) -> None:
    engine = start_engine({"faults": FAULTS | {"stall_s": 3.0}})
    peer, other = await connect(engine), await connect(engine)
    peer.send(peer.submit(1, prompt_ids=[STALLS]))
    await stalled(peer)
    big = "x" * 4_000_000
    handles = range(2, 2 + INBOX_BYTES_MAX // len(big) + 8)
    for handle in handles:
        peer.send(peer.submit(handle, request_id=big, max_tokens=1))
        await peer.drain()
    results = await peer.until_ended(1, *handles)
    assert {ending.reason for _, ending in results.values()} == {"length"}
    assert engine.events("inbox.full")
    other.send(other.submit(1))
    assert (await other.until_ended(1))[1][1].reason == "length"


async def test_what_an_answer_would_quote_at_any_length_it_cuts(start_engine: Start, connect: Connect) -> None:
    """A NUL takes four characters where it is quoted: these answers would be over the limit of a frame."""
    peer = await connect(start_engine())
    huge = "\0" * (FRAME_BYTES_MAX // 3)
    for handle, changes in enumerate(({"model": huge}, {"tier": huge}, {"adapter": huge})):
        peer.send(peer.submit(handle, **changes))
        refused = await peer.expect(Refused)
        assert (refused.handle, len(refused.message)) == (handle, MESSAGE_CHARS_MAX)
    peer.send(LoadAdapter("a" * 64, huge, "/nowhere"))
    state = await peer.expect(AdapterState)
    assert (state.state, len(state.message)) == ("failed", MESSAGE_CHARS_MAX)
    peer.send(peer.submit(9))
    assert (await peer.until_ended(9))[9][1].reason == "length"


async def test_a_gateway_that_does_not_read_is_cut(start_engine: Start, connect: Connect) -> None:
    engine = start_engine({"step_ms": 0.0, "context_tokens": 200_000}, sequences_max=400)
    deaf, other = await connect(engine), await connect(engine)
    # It never reads: reports of a few KB each fill the socket's buffer, then the outbox.
    size = len(encode(await status(other)))
    deaf._reader._transport.pause_reading()  # type: ignore[attr-defined]
    request = encode(Status())
    for _ in range((OUTBOX_BYTES_MAX + 2_000_000) // size // 100 + 1):
        deaf.write(request * 100)
        await asyncio.sleep(0)
    deadline = time.monotonic() + 30
    while not engine.events("stream.cut"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    assert "does not read" in engine.events("stream.cut")[0]["reason"]
    other.send(other.submit(1))
    assert (await other.until_ended(1))[1][1].reason == "length"


@STEPS_AHEAD
async def test_what_is_made_for_a_dead_gateway_is_counted_as_lost(
    start_engine: Start, connect: Connect, steps_ahead: int
) -> None:
    engine = start_engine({"steps_ahead": steps_ahead})
    peer, other = await connect(engine), await connect(engine)
    peer.send(peer.submit(1), peer.submit(2), peer.submit(3, max_tokens=4000))
    for _ in range(2):
        await peer.expect(Finished)
    peer.send(Recorded([1, 3, 99]))  # the third has not ended, and nobody ever heard of the last
    await status(peer)  # it was read: what lies unread when a stream breaks under a write is gone
    await peer.close()
    deadline = time.monotonic() + 30
    while not engine.events("gateway.gone") or (report := await status(other)).running:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    # All but the eight of the request that the gateway recorded, and what was made for the last one after its end.
    lost = sample(report, "laneway_tokens_lost_total")
    assert lost == report.tokens_made - sample(report, "laneway_tokens_overrun_total") - 8
    assert engine.events("gateway.gone")[0]["tokens_lost"] == lost
    assert [line["tokens"] for line in engine.events("tokens.lost")] == [lost - 8, 8]


def test_what_a_gateway_never_recorded_is_remembered_within_a_bound() -> None:
    books = UnrecordedRequests(limit=3)
    for handle in range(1, 6):
        books.add_unrecorded(1, handle, UnrecordedAttempt(f"req_{handle}", 0, 0), handle)
        books.add_unrecorded(2, handle, UnrecordedAttempt(f"req_other_{handle}", 0, 0), 0)
    books.note_recorded(1, [4, 99])
    books.note_recorded(3, [5])
    assert books.take_unrecorded(1) == {
        3: (UnrecordedAttempt("req_3", 0, 0), 3),
        5: (UnrecordedAttempt("req_5", 0, 0), 5),
    }
    assert books.take_unrecorded(1) == books.take_unrecorded(2) == {}


# ---- adapters


def load(number: int) -> LoadAdapter:
    return LoadAdapter(f"{number:064x}", "fake-model", "/nowhere")


async def test_reading_an_adapter_holds_up_nobody(start_engine: Start, connect: Connect) -> None:
    engine = start_engine({"load_ms": 1500.0})
    peer, other = await connect(engine), await connect(engine)
    peer.send(load(1), UnloadAdapter(f"{1:064x}"))
    other.send(load(1), other.submit(1, max_tokens=50, stop_ids=[]))
    while not isinstance(frame := await other.next(), Finished):
        assert isinstance(frame, Tokens), "its own request ends before the adapter is there"
    assert frame.reason == "length"
    unload = await peer.expect(AdapterState)
    assert (unload.state, unload.message) == ("failed", "it is being loaded")
    assert (await peer.expect(AdapterState)).state == "loaded"
    assert (await other.expect(AdapterState)).state == "loaded"
    assert len(engine.events("adapter.read")) == 1, "read once, for both"


async def test_too_many_changes_of_adapters_at_once(start_engine: Start, connect: Connect) -> None:
    peer = await connect(start_engine({"load_ms": 60_000.0}))
    peer.send(*(load(number) for number in range(CHANGES_MAX + 1)))
    state = await peer.expect(AdapterState)
    assert (state.digest, state.state) == (f"{CHANGES_MAX:064x}", "failed")
    assert str(CHANGES_MAX) in state.message


async def test_pinned_adapters_leave_room_for_others(start_engine: Start, connect: Connect) -> None:
    engine = start_engine({"pages": 20, "adapter_pages": 4})
    peer = await connect(engine)
    states = []
    for number, pinned in ((1, True), (2, True), (3, True), (3, False), (1, False), (3, True)):
        peer.send(LoadAdapter(f"{number:064x}", "fake-model", "/nowhere", pinned))
        state = await peer.expect(AdapterState)
        states.append((number, state.state, state.message))
    limit = "pinned adapters would take 12 pages; their limit is 10"
    assert [message for _, _, message in states] == ["", "", limit, "", "", ""]
    assert {state for _, state, _ in states} == {"loaded"}, "it serves, pinned or not"
    assert len(engine.events("adapter.not_pinned")) == 1
    peer.send(*(peer.submit(number, adapter=f"{number:064x}") for number in (1, 2, 3)))
    assert {ending.reason for _, ending in (await peer.until_ended(1, 2, 3)).values()} == {"length"}
    report = await status(peer)
    assert sample(report, "laneway_adapter_requests_total") == 3
    assert sample(report, "laneway_adapter_load_failures_total") == 0


# ---- models

ROOM_FOR_ONE = {"models": [{"name": "one"}, {"name": "two"}], "weights_bytes": 1 << 20, "weights_residence_s": 0.0}


def model(name: str, **changes: Any) -> LoadModel:
    return LoadModel(**({"name": name, "path": "/nowhere", "dtype": "float32"} | changes))


@STEPS_AHEAD
async def test_who_waits_for_a_slow_disk_alone_is_not_stuck(
    start_engine: Start, connect: Connect, steps_ahead: int
) -> None:
    """Stuck is busy and at the same step: the supervisor would kill the engine for its disk."""
    fake = {"weights_disk_ms": 2300.0, "steps_ahead": steps_ahead}
    peer = await connect(start_engine(fake, **ROOM_FOR_ONE))
    peer.send(peer.submit(1, model="one"))
    await peer.until_ended(1)
    began = time.monotonic()
    peer.send(peer.submit(2, model="two", max_tokens=8, stop_ids=[]))
    ids, ending = (await peer.until_ended(2))[2]
    assert (len(ids), ending.reason) == (8, "length")
    assert time.monotonic() - began >= ending.usage.queue_s >= 2.3
    waited = [beat for beat in peer.heartbeats if beat.waiting]
    assert waited
    assert not any(beat.busy for beat in waited)


async def test_weights_that_cannot_be_read_end_who_waits_and_nobody_else(start_engine: Start, connect: Connect) -> None:
    engine = start_engine({"faults": {"weights_error_model": "two"}, "weights_disk_ms": 30.0}, **ROOM_FOR_ONE)
    peer = await connect(engine)
    for first in (1, 11):  # it is tried again when somebody asks again
        peer.send(*(peer.submit(first + i, model=name) for i, name in enumerate(("one", "two", "two", "one"))))
        results = await peer.until_ended(*range(first, first + 4))
        assert [results[first + i][1].reason for i in range(4)] == ["length", "error", "error", "length"]
        assert "its weights were made to fail" in results[first + 1][1].message
        assert results[first + 1][1].usage.completion_tokens == 0
    report = await status(peer)
    assert sample(report, "laneway_model_load_failures_total") >= 2
    assert report.pages_free + report.pages_cached == report.pages_total


async def test_a_model_of_the_configuration_that_cannot_be_served(
    start_engine: Start, connect: Connect, tmp_path: Path
) -> None:
    """The others are, and whoever connects is told; loaded later it is no longer refused."""
    (tmp_path / "config.json").write_text("{")
    models = [{"name": "broken", "path": str(tmp_path)}, {"name": "other", "dtype": "bfloat16"}, {"name": "good"}]
    engine = start_engine(models=[models[2], *models[:2]])
    reasons = {"broken": f"{tmp_path}/config.json: Input data was truncated", "other": "dtype: the models of one "}
    reasons["other"] += "engine share one, here float32"
    assert (engine.ready["models"], engine.ready["refused"]) == (["good"], reasons)
    assert {line["model"]: line["reason"] for line in engine.events("model.refused")} == reasons
    peer = await connect(engine)
    assert ([info.name for info in peer.hello.models], peer.hello.refused) == (["good"], reasons)
    peer.send(peer.submit(1, model="broken"))
    assert (await peer.expect(Refused)).code == "model_unknown"
    (tmp_path / "config.json").write_text("{}")
    peer.send(model("broken", path=str(tmp_path)))
    assert (await peer.expect(ModelState)).state == "loaded"
    later = await connect(engine)
    assert [info.name for info in later.hello.models] == ["good", "broken"]
    assert later.hello.refused == {"other": reasons["other"]}
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(AssertionError, match=r"engine\.cannot_start.*truncated"):
        start_engine(models=models[:1])


async def test_no_more_models_than_there_may_be(start_engine: Start, connect: Connect) -> None:
    peer = await connect(start_engine())
    peer.send(*(model(f"m{number}") for number in range(MODELS_MAX)))
    states = [await peer.expect(ModelState) for _ in range(MODELS_MAX)]
    failed = [state for state in states if state.state == "failed"]
    assert [(state.name, state.message) for state in failed] == [
        (f"m{MODELS_MAX - 1}", f"{MODELS_MAX} models are served already, the limit")
    ]
    peer.send(UnloadModel("m7"), model("again"))
    assert [(await peer.expect(ModelState)).state for _ in range(2)] == ["unloaded", "loaded"]
    peer.send(*(peer.submit(handle, model=name) for handle, name in enumerate(("m0", "again", "fake-model"), 1)))
    results = await peer.until_ended(1, 2, 3)
    assert {ending.reason for _, ending in results.values()} == {"length"}


async def test_another_format_makes_another_model(start_engine: Start, connect: Connect) -> None:
    models = [{"name": "plain"}, {"name": "eight", "quantize": "fp8", "kv_dtype": "fp8"}]
    engine = start_engine(models=models)
    peer = await connect(engine)
    infos = {info.name: (info.weights_format, info.kv_format, info.quality) for info in peer.hello.models}
    assert infos == {"plain": ("float32", "float32", None), "eight": ("fp8", "fp8", None)}
    peer.send(model("eight", path="", quantize="fp8", kv_dtype="fp8"))
    assert (await peer.expect(ModelState)).state == "loaded"
    served = "path '', dtype float32, quantize fp8, kv_dtype fp8, context_tokens None"
    for changes in ({"quantize": "fp8"}, {"kv_dtype": "fp8"}, {"quantize": "int4", "kv_dtype": "fp8"}):
        peer.send(model("eight", path="", **changes))
        state = await peer.expect(ModelState)
        assert (state.state, state.code) == ("failed", "other_served")
        assert state.message == f"another model is served under this name: {served}"
    peer.send(UnloadModel("eight"), model("eight", path="", quantize="int4"))
    assert [(await peer.expect(ModelState)).state for _ in range(2)] == ["unloaded", "loaded"]
    [found] = [info for info in (await connect(engine)).hello.models if info.name == "eight"]
    assert (found.weights_format, found.kv_format) == ("int4", "float32")


async def test_a_pinned_model_comes_before_anybody_asks_and_stays(start_engine: Start, connect: Connect) -> None:
    models = [{"name": "one", "pinned": True}, {"name": "two"}, {"name": "three"}]
    engine = start_engine(models=models, weights_bytes=2 << 20, weights_residence_s=0.0)
    peer = await connect(engine)
    assert [info.pinned for info in peer.hello.models] == [True, False, False]
    for handle in range(1, 7):
        peer.send(peer.submit(handle, model=("two", "three")[handle % 2]))
        await peer.until_ended(handle)
    report = await status(peer)
    assert b'laneway_model_resident{model="one"} 1.0' in report.metrics
    assert b'laneway_model_evictions_total{model="one"} 0.0' in report.metrics
    assert sample(report, "laneway_model_evictions_total") >= 5
    # Pinned as well, "two" would leave the third no room.
    peer.send(model("two", path="", pinned=True), model("one", path="", pinned=False))
    states = [await peer.expect(ModelState) for _ in range(2)]
    assert [state.state for state in states] == ["loaded"] * 2, "it serves, pinned or not"
    assert "model 'three' needs" in states[0].message
    assert states[1].message == ""
    assert not any(info.pinned for info in (await connect(engine)).hello.models)
    peer.send(model("two", path="", pinned=True))
    assert (await peer.expect(ModelState)).message == ""
    deadline = time.monotonic() + 30
    while b'laneway_model_resident{model="two"} 1.0' not in (await status(peer)).metrics:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


# ---- the fake's settings


async def test_the_fake_takes_its_time_and_stops_when_told(start_engine: Start, connect: Connect) -> None:
    fake = {"step_ms": 10.0, "prefill_ms_per_1k_tokens": 100.0, "stop_after": 5}
    peer = await connect(start_engine(fake, step_tokens_max=2048))
    tries = []
    for handle in range(10, 30):  # a busy machine lets some of them take longer, and not every one
        began = time.monotonic()
        peer.send(peer.submit(handle, prompt_ids=[300] * 1000, max_tokens=50, namespace=f"{handle}"))
        ids, ending = (await peer.until_ended(handle))[handle]
        tries.append((time.monotonic() - began, ending.usage.ttft_s))
        assert ending.reason == "stop"
        assert len(ids) == 5
        assert ids[-1] == 2
        assert tries[-1][0] >= 0.15
        assert tries[-1][1] >= 0.11
        assert 0.149 <= ending.usage.device_s <= tries[-1][0]
        if tries[-1] < (0.30, 0.16):
            break
    assert min(took for took, _ in tries) < 0.30
    assert min(ttft_s for _, ttft_s in tries) < 0.16
    peer.send(peer.submit(2, max_tokens=50, stop_ids=[]))
    assert len((await peer.until_ended(2))[2][0]) == 50


@pytest.mark.parametrize("host_pages", [0, 64])
@STEPS_AHEAD
async def test_preempted_requests_give_the_same_ids(
    start_engine: Start, connect: Connect, steps_ahead: int, host_pages: int
) -> None:
    pool = {"host_pages": host_pages, "page_copy_ms": 0.0}
    engine = start_engine({"step_ms": 0.5, "pages": 64, "steps_ahead": steps_ahead} | pool)
    peer = await connect(engine)

    def requests(first: int) -> list[Submit]:
        tiers = ["batch", "batch", "standard", "premium"]
        return [
            peer.submit(first + i, tier=tier, prompt_ids=[310 + i] * 150, max_tokens=200, stop_ids=[], namespace=f"{i}")
            for i, tier in enumerate(tiers)
        ]

    alone: list[list[int]] = []
    for frame in requests(1):
        peer.send(frame)
        alone.append((await peer.until_ended(frame.handle))[frame.handle][0])
    preempted: list[EngineUsage] = []
    for first in range(11, 111, 10):  # until the lower tiers were still running when a higher one came
        together = requests(first)
        for frame in together:
            peer.send(frame)
            await asyncio.sleep(0.02)
        results = await peer.until_ended(*(frame.handle for frame in together))
        assert [results[frame.handle][0] for frame in together] == alone
        preempted += [results[frame.handle][1].usage for frame in together]
        if any(usage.preemptions for usage in preempted):
            break
    assert sum(usage.preemptions for usage in preempted) > 0
    assert sample(await status(peer), "vllm:num_preemptions_total") == sum(usage.preemptions for usage in preempted)
    recomputed, swapped = (sum(getattr(u, f"{how}_tokens") for u in preempted) for how in ("recomputed", "swapped"))
    assert (recomputed > 0, swapped > 0) == (not host_pages, bool(host_pages))
    assert sample(await status(peer), "laneway_tokens_swapped_total") == swapped


@pytest.mark.model
async def test_the_fake_draws_words_of_the_model_s_own_tokenizer(
    start_engine: Start, connect: Connect, model_dir: Path
) -> None:
    from engine.text.tokenizer import Tokenizer

    engine = start_engine(models=[{"name": "smol", "path": str(model_dir)}])
    peer = await connect(engine)
    shape = json.loads((model_dir / "config.json").read_text())
    assert peer.hello.models[0].vocab_size == shape["vocab_size"]
    assert peer.hello.models[0].context_tokens == shape["max_position_embeddings"]
    peer.send(peer.submit(1, max_tokens=40))
    ids, _ = (await peer.until_ended(1))[1]
    words = Tokenizer.load(model_dir).decode(ids).split()
    assert len(words) == 40
    assert all(word.isalpha() for word in words)


async def test_the_fake_holds_no_tensor_library(start_engine: Start, connect: Connect) -> None:
    engine = start_engine()
    peer = await connect(engine)
    peer.send(peer.submit(1))
    await peer.until_ended(1)
    mapped = maps(engine.pid)
    assert "libtorch" not in mapped
    assert "site-packages/numpy" not in mapped


def maps(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


async def test_idle_it_sleeps(start_engine: Start, connect: Connect) -> None:
    engine = start_engine()
    await connect(engine)
    await asyncio.sleep(2.0)  # its books are looked over once, after a second of idleness

    def cpu_ticks() -> int:
        fields = Path(f"/proc/{engine.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    found: list[int] = []
    while not found or (found[-1] > 2 and len(found) < 5):  # who comes late to the machine may find it still starting
        before = cpu_ticks()
        await asyncio.sleep(1.5)
        found.append(cpu_ticks() - before)
    assert found[-1] <= 2, "hundredths of a second in one and a half"


# ---- start and stop


async def test_the_socket_is_the_owner_s_alone_and_goes_with_the_engine(start_engine: Start) -> None:
    engine = start_engine()
    assert stat.S_IMODE(engine.socket.stat().st_mode) == 0o600
    assert engine.ready["pid"] == engine.pid
    assert engine.stop() == 0
    assert not engine.socket.exists()


@STEPS_AHEAD
async def test_sigterm_ends_what_runs_and_says_so(start_engine: Start, connect: Connect, steps_ahead: int) -> None:
    engine = start_engine({"steps_ahead": steps_ahead})
    peer = await connect(engine)
    peer.send(peer.submit(1, max_tokens=4000))
    await peer.expect(Tokens)
    engine.process.terminate()
    _, ending = (await peer.until_ended(1))[1]
    assert ending.reason == "error"
    assert ending.message == "the engine is shutting down"
    assert ending.usage.completion_tokens > 0
    assert await peer.closed()
    assert await asyncio.to_thread(engine.process.wait, 30) == 0
    assert not engine.events("engine.stop_forced"), "it stopped by itself, in good time"
    (stopped,) = engine.events("engine.stopped")
    assert 0 <= stopped["requests_s"] <= stopped["all_s"] < STOP_S_MAX
    assert 0 <= stopped["flush_s"] <= stopped["all_s"]


@STEPS_AHEAD
async def test_sigterm_in_a_step_that_hangs(start_engine: Start, connect: Connect, steps_ahead: int) -> None:
    engine = start_engine({"faults": FAULTS | {"stall_s": 60.0}, "steps_ahead": steps_ahead})
    peer = await connect(engine)
    peer.send(peer.submit(1, prompt_ids=[STALLS]))
    await stalled(peer)
    engine.process.terminate()
    assert await asyncio.to_thread(engine.process.wait, 30) == 1, "long before the step is over"
    assert engine.events("engine.stop_forced")


async def test_a_dead_engine_s_socket_is_replaced(start_engine: Start, connect: Connect) -> None:
    engine = start_engine()
    engine.stop(signal.SIGKILL)
    assert engine.socket.exists()
    engine.start()
    peer = await connect(engine)
    peer.send(peer.submit(1))
    await peer.until_ended(1)


def run_engine(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "engine", *arguments]
    return subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=60)


async def test_a_living_engine_s_socket_is_not_taken(start_engine: Start, connect: Connect) -> None:
    engine = start_engine()
    config = str(engine.socket.with_suffix(".json"))
    second = run_engine("--socket", str(engine.socket), "--config", config, "--fake")
    assert second.returncode == 2
    assert "another engine listens" in second.stderr
    await connect(engine)
    plain = engine.socket.with_suffix(".txt")
    plain.write_text("mine")
    third = run_engine("--socket", str(plain), "--config", config, "--fake")
    assert third.returncode == 2
    assert plain.read_text() == "mine"


@pytest.fixture
def pid_of_orphan(socket_dir: Path) -> Iterator[Callable[[], tuple[subprocess.Popen[bytes], int]]]:
    """A parent that starts an engine and waits; it and the engine's pid."""
    pids: list[int] = []

    def start() -> tuple[subprocess.Popen[bytes], int]:
        config = socket_dir / "orphan.json"
        config.write_text('{"models": [{"name": "fake-model"}]}')
        code = f"""
            import subprocess, sys
            engine = subprocess.Popen([sys.executable, "-m", "engine", "--socket", {str(socket_dir / "orphan.sock")!r},
                "--config", {str(config)!r}, "--fake"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            print(engine.stdout.readline().decode(), flush=True)
            engine.wait()
        """
        argv = [sys.executable, "-c", textwrap.dedent(code)]
        parent = subprocess.Popen(argv, cwd=REPO, stdout=subprocess.PIPE)
        assert parent.stdout is not None
        pids.append(json.loads(parent.stdout.readline())["pid"])
        return parent, pids[-1]

    yield start
    for pid in pids:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGKILL)


async def test_an_engine_does_not_outlive_its_parent(
    pid_of_orphan: Callable[[], tuple[subprocess.Popen[bytes], int]],
) -> None:
    parent, pid = pid_of_orphan()
    parent.kill()
    parent.wait()
    assert parent.stdout is not None
    parent.stdout.close()
    deadline = time.monotonic() + 30
    while state(pid) != "Z":
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


MODELS: dict[str, Any] = {"models": [{"name": "m"}]}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "models"),
        ({"models": []}, "models"),
        (MODELS | {"colour": "red"}, "colour"),
        (MODELS | {"fake": {"step_ms": -1}}, "step_ms"),
        (MODELS | {"fake": {"speed": 1}}, "speed"),
        (MODELS | {"arena_bytes": 1}, "arena_bytes"),
        (MODELS | {"prefill_tokens_min": 600}, "prefill_tokens_min"),
        ({"models": [{"name": "m"}, {"name": "m"}]}, "two models"),
        ({"models": [{"name": "m", "dtype": "int4"}]}, "dtype"),
        ({"models": [{"name": "m", "digest": "XYZ"}]}, "digest"),
        (MODELS | {"tiers": []}, "tiers"),
        (MODELS | {"tiers": [{"name": "a", "service_tier": "b", "floor": 2}]}, "floor"),
    ],
    ids=lambda value: "",
)
def test_a_bad_configuration_is_refused_by_name(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(EngineConfigError, match=reason):
        parse_engine_config(json.dumps(config).encode())


def test_a_bad_configuration_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "engine.json"
    path.write_text(json.dumps(MODELS | {"colour": "red"}))
    done = run_engine("--socket", str(tmp_path / "s"), "--config", str(path), "--fake")
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert line["event"] == "engine.cannot_start"
    assert "colour" in line["reason"]
    path.write_text(json.dumps(MODELS | {"sequences_max": 512}))
    done = run_engine("--socket", str(tmp_path / "s"), "--config", str(path), "--fake")
    assert done.returncode == 2
    assert "sequences_max" in done.stderr
    done = run_engine("--socket", str(tmp_path / "s"), "--config", str(tmp_path / "none.json"), "--fake")
    assert done.returncode == 2
