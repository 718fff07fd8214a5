"""What every engine does with models that nobody uses: the fake, step after step and one ahead, and the real one over
small random models, with room for the weights of one of two. And engines whose models cannot make tokens."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from engine.models.config import load_config
from engine.models.cpu_loading import cpu_bytes
from engine.protocol.frames import Heartbeat, Snapshot, Status, StatusReport, Tokens, Watch
from engine.protocol.snapshot_parts import TokenAge
from support import oracle
from support.engine.process import EngineProcess, Peer

Start = Callable[..., EngineProcess]
Connect = Callable[[EngineProcess], Awaitable[Peer]]
AFTER_S = 0.2
PROBE_ID = 0


@pytest.fixture(scope="module", params=["fake", "fake_ahead", "real"])
def process(
    request: pytest.FixtureRequest, socket_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineProcess]:
    root = tmp_path_factory.mktemp("probed")
    paths = {"one": oracle.save_tiny("llama", root / "one"), "two": oracle.save_tiny("qwen3", root / "two", seed=1)}
    config: dict[str, Any] = {
        "models": [{"name": name, "path": str(path)} for name, path in paths.items()],
        "arena_bytes": 16 << 20,
        "weights_bytes": max(cpu_bytes(load_config(path), torch.float32, packed=True) for path in paths.values()),
        "threads": 1,
        "probe_after_s": AFTER_S,
    }
    flags = []
    if request.param != "real":
        config["weights_bytes"] = config["weights_host_bytes"] = 1 << 20
        config["fake"] = {"step_ms": 2.0, "steps_ahead": int(request.param == "fake_ahead")}
        flags = ["--fake"]
    process = EngineProcess(socket_dir / f"probed-{request.param}.sock", config, *flags)
    yield process
    assert process.alive(), process.log()
    assert process.stop() == 0


async def status(peer: Peer) -> StatusReport:
    peer.send(Status())
    return await peer.expect(StatusReport)


def sample(report: StatusReport, name: str) -> float:
    families = text_string_to_metric_families(report.metrics.decode())
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


async def ages_when(peer: Peer, is_wanted: Callable[[dict[str, TokenAge]], bool]) -> dict[str, TokenAge]:
    """Of the first heartbeat from now on that is as wanted. No other frame may arrive."""
    peer.heartbeats.clear()
    deadline = time.monotonic() + 40
    while True:
        for beat in peer.heartbeats:
            if beat.tokens is not None and is_wanted(beat.tokens):
                return beat.tokens
        assert time.monotonic() < deadline, peer.heartbeats[-1:]
        with contextlib.suppress(TimeoutError):
            raise AssertionError(await peer.next(0.1))


async def probed(peer: Peer, count: int) -> StatusReport:
    """Once that many probes were made."""
    deadline = time.monotonic() + 40
    while (report := await status(peer)).tokens_probed < count:
        assert time.monotonic() < deadline, report
        with contextlib.suppress(TimeoutError):
            raise AssertionError(await peer.next(0.1))
    return report


async def test_the_resident_model_makes_tokens_for_nobody_and_the_other_is_not_loaded(
    process: EngineProcess, connect: Connect
) -> None:
    peer = await connect(process)
    ids, handles = {}, itertools.count(1)
    for model in ("one", "two"):
        handle = next(handles)
        peer.send(peer.submit(handle, model=model, prompt_ids=[*range(20, 40)], stop_ids=[], share=model))
        ids[model], _ = (await peer.until_ended(handle))[handle]
        before = await status(peer)
        after = await probed(peer, before.tokens_probed + 4)
        assert after.tokens_made - before.tokens_made == after.tokens_overrun - before.tokens_overrun
        assert after.tokens_made - before.tokens_made == after.tokens_probed - before.tokens_probed >= 4
        assert after.running == 0
        assert after.pages_free + after.pages_cached == after.pages_total, "a probe holds no page"
        for name in ("laneway_model_loads_total", "laneway_model_evictions_total", "vllm:request_success_total"):
            assert sample(after, name) == sample(before, name), name
        ages = await ages_when(peer, lambda ages: bool(ages))
        assert set(ages) == {model}, "the other's weights are not resident"
        assert not ages[model].silent
        assert ages[model].age_s < 20
        peer.send(Watch())
        snapshot = await peer.expect(Snapshot)
        assert {place.name for place in snapshot.models if place.token_age_s is not None} == {model}
        # Between the probes, the model's answer is the same.
        handle = next(handles)
        peer.send(peer.submit(handle, model=model, prompt_ids=[*range(20, 40)], stop_ids=[], share=model))
        assert (await peer.until_ended(handle))[handle][0] == ids[model]


async def test_a_model_whose_step_hangs_is_silent_although_the_loop_cannot_say_so(
    start_engine: Start, connect: Connect
) -> None:
    engine = start_engine({"faults": {"stall_id": PROBE_ID, "stall_s": 600}}, probe_after_s=AFTER_S)
    peer = await connect(engine)
    ages = await ages_when(peer, lambda ages: any(age.silent for age in ages.values()))
    assert set(ages) == {"fake-model"}
    assert ages["fake-model"].age_s > 2 * AFTER_S
    later = await ages_when(peer, lambda later: later["fake-model"].age_s > ages["fake-model"].age_s)
    assert later["fake-model"].silent
    assert peer.heartbeats[-1].busy


@pytest.mark.parametrize(
    ("fault", "why"),
    [("step_error_id", "the step failed: RuntimeError: the step was made to fail"),
     ("chunk_error_id", "the chunk was made to fail")],
)  # fmt: skip
async def test_a_model_whose_probes_fail_is_silent_with_the_reason_until_it_makes_a_token(
    start_engine: Start, connect: Connect, fault: str, why: str
) -> None:
    engine = start_engine({"faults": {fault: PROBE_ID}}, models=[{"name": "good"}, {"name": "bad"}], probe_after_s=0.5)
    peer = await connect(engine)
    ages = await ages_when(peer, lambda ages: all(age.silent for age in ages.values()))
    assert {model: age.error for model, age in ages.items()} == {"good": why, "bad": why}
    assert {event["model"] for event in engine.events("probe.failed")} == {"good", "bad"}
    report = await status(peer)
    assert sample(report, "laneway_probes_failed_total") >= 2
    assert report.tokens_made == report.tokens_probed == 0
    # A request that succeeds is proof enough. The engine updates its token times once a second while it works, and a
    # heartbeat carries them within another second: the request runs for longer than both.
    peer.send(peer.submit(1, model="good", max_tokens=4000, stop_ids=[]))
    await peer.expect(Tokens)
    deadline = time.monotonic() + 30
    while not any(is_good_alone(beat) for beat in peer.heartbeats):
        assert time.monotonic() < deadline, peer.heartbeats[-3:]
        with contextlib.suppress(TimeoutError):
            await peer.next(0.1)


def is_good_alone(beat: Heartbeat) -> bool:
    return beat.tokens is not None and {model: age.silent for model, age in beat.tokens.items()} == {
        "good": False, "bad": True,
    }  # fmt: skip
