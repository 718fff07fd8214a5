"""The load in heartbeats: what a gateway needs to predict a request's wait on this engine."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import pytest

from engine.protocol.frames import (
    Abort,
    AdapterState,
    Heartbeat,
    LoadAdapter,
    Status,
    StatusReport,
    Tokens,
)
from engine.protocol.snapshot_parts import EngineLoad
from engine.protocol.tiers import Tier
from engine.scheduler.admission import PREDICTED_MAX
from support.engine.process import EngineProcess, Peer
from support.engine.scheduler_auditor import House

Start = Callable[..., EngineProcess]
Connect = Callable[[EngineProcess], Awaitable[Peer]]
TIERS = (
    Tier(name="high", service_tier="priority", preemptible=False, crowd_part=1.0),
    Tier(name="low", service_tier="default", preemptible=False, crowd_part=1.0),
)


async def beat_after(peer: Peer, is_wanted: Callable[[EngineLoad], bool]) -> Heartbeat:
    """The first heartbeat from now on whose load is as wanted."""
    peer.heartbeats.clear()
    deadline = time.monotonic() + 40
    while True:
        for beat in peer.heartbeats:
            if beat.load is not None and is_wanted(beat.load):
                return beat
        assert time.monotonic() < deadline, peer.heartbeats
        try:
            await peer.next(0.3)
        except TimeoutError:
            continue


async def test_the_load_follows_the_engine_and_is_fresh_when_it_is_idle(start_engine: Start, connect: Connect) -> None:
    engine = start_engine({"step_ms": 4.0, "prefill_ms_per_1k_tokens": 100.0, "tokens_per_page": 16}, sequences_max=2)
    peer, watcher = await connect(engine), await connect(engine)
    load = (await beat_after(watcher, lambda _: True)).load
    assert load is not None
    assert load.waits == {"premium": 0.0, "standard": 0.0, "batch": 0.0}
    assert load.queued == {"premium": 0, "standard": 0, "batch": 0}
    assert (load.models, load.adapters, load.tokens_per_s, load.queries) == ({}, [], 0.0, 0)
    # An idle engine whose adapters and pages change.
    peer.send(LoadAdapter("a" * 64, "fake-model", "/nowhere"))
    await peer.expect(AdapterState)
    prompt = [300 + i % 500 for i in range(400)]
    peer.send(*(peer.submit(n, adapter="a" * 64, prompt_ids=[n, *prompt], share=f"s{n}") for n in range(1, 31)))
    await peer.until_ended(*range(1, 31))
    load = (await beat_after(watcher, lambda load: load.queries > 0 and not load.tokens_per_s)).load
    assert load is not None
    assert load.adapters == ["a" * 64]
    assert load.queries == 30 * 401
    assert 0 < load.prefill_token_s["fake-model"] < 0.01
    assert not any(load.queued.values())
    # A busy one: two long requests in the slots, and others behind them.
    peer.send(*(peer.submit(n, max_tokens=3000, stop_ids=[], share=f"s{n}") for n in (31, 32)))
    await peer.expect(Tokens)
    peer.send(*(peer.submit(n, share=f"s{n}") for n in range(33, 39)))
    load = (await beat_after(watcher, lambda load: load.queued["standard"] == 6)).load
    assert load is not None
    assert load.waits["standard"] > 0
    load = (await beat_after(watcher, lambda load: load.tokens_per_s > 50)).load
    peer.send(*(Abort(n) for n in range(31, 39)))
    await peer.until_ended(*range(31, 39))
    load = (await beat_after(watcher, lambda load: not load.tokens_per_s and not load.queued["standard"])).load
    assert load is not None
    assert load.waits["standard"] == 0.0
    watcher.send(Status())
    assert isinstance(await watcher.expect(StatusReport), StatusReport)


def test_the_wait_of_a_new_share_is_what_admission_predicts_and_a_start_more_without_a_free_slot() -> None:
    house = House(tiers=TIERS, sequences_max=2, pages=400)
    admission, queue = house.scheduler.admission, house.scheduler._queues[0]
    assert admission.queue_waits_s() == {"high": 0.0, "low": 0.0}
    # Starts, whose rate is measured: two slots, and requests of three shares.
    for number in range(12):
        house.submit(4, 6, share=f"share {number % 3}", tier="high")
    house.run(steps=20)
    assert len(queue) > 2
    start_s = queue.next_start_s()
    shares = {sequence.share for sequence in house.live() if not sequence.pages}
    assert start_s > 0
    assert queue.wait_s("new") == pytest.approx(len(shares) * start_s)
    assert admission.queue_waits_s()["high"] == pytest.approx((len(shares) + 1) * start_s)
    assert admission.queue_waits_s()["low"] == 0.0, "nothing started there, so nothing is known"
    house.run()
    house.check_the_end()
    assert admission.queue_waits_s() == {"high": 0.0, "low": 0.0}


def test_the_waits_for_weights_are_predicted_for_few_models_and_the_loads_alone_for_many() -> None:
    for count in (PREDICTED_MAX + 1, PREDICTED_MAX + 2):
        names = tuple("abcdefghijklmnop"[:count])
        house = House(models=names, weights=dict.fromkeys(names, 1), weights_max=1, load_s=0.5, residence_s=4.0)
        house.submit(8, 100, model="a")
        house.schedule()
        waits = house.scheduler.admission.weights_waits_s()
        assert waits.keys() == set(names) - {"a"}
        assert all(wait == 0.5 if count > PREDICTED_MAX + 1 else wait > 0.5 for wait in waits.values())
        house.complete()
        house.abort(house.books[0].sequence)
