"""Adapters that come beside captured steps on a GPU: more than the arena and host memory hold, and nobody waits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from adapters.device.host_cache import HostMemory
from adapters.device.staging import CopyBuffer, CudaCopyLane
from engine.step import Sequence
from support.engine.gpu import GpuEngine
from support.engine.poisoned_arena import Traps, tiny_model

pytestmark = pytest.mark.gpu
ROUNDS = 12
HOST_BYTES, STAGING_BYTES = 256_000, 192_000


def ask(engine: GpuEngine, index: int, digest: str | None) -> Sequence:
    prompt = [1 + (index * 13 + i * 7) % 60 for i in range(9 + index % 5)]
    return engine.request(prompt, 12, digest, tier=("premium", "standard", "batch")[index % 3])


@pytest.mark.parametrize("capture", [True, False])
def test_what_comes_beside_the_steps_says_what_it_says_when_it_is_there(capture: bool, tmp_path: Path) -> None:
    """Nine adapters of up to 95 KB, host memory and staging memory for two or three of them, evicted from the arena
    again and again while others decode."""
    model, adapters = tiny_model(tmp_path, seed=1)
    engine = GpuEngine(
        model,
        arena_bytes=16 << 20,
        step_tokens_max=96,
        sequences_max=16,
        capture=capture,
    )
    pool, scheduler = engine.runner.adapters, engine.scheduler
    pool.host = HostMemory(torch.zeros(HOST_BYTES, dtype=torch.uint8).pin_memory())
    device = pool._arena.device
    pool.staging = CopyBuffer(torch.zeros(STAGING_BYTES, dtype=torch.uint8, device=device), CudaCopyLane(device))
    digests = list(engine.add_adapters(adapters, tmp_path / "store").values())
    expected: dict[str, list[int]] = {}
    for index, digest in enumerate(digests):
        alone = ask(engine, index, digest)
        engine.run([alone])
        expected[digest] = alone.output_ids
    assert len({tuple(ids) for ids in expected.values()}) > len(digests) // 2
    for digest in digests:
        scheduler.remove_adapter(digest)
    traps = Traps(engine)
    rounds = 0

    def cold() -> None:
        for digest in pool.resident():
            if not any(request.adapter == digest and request.pages for request in live):
                scheduler.residency._remove(digest)
                if rounds % 2:
                    pool.host.forget_adapter(digest)

    live: list[Sequence] = []
    right = 0
    for rounds in range(ROUNDS):
        live[:] = [ask(engine, index, digest) for index, digest in enumerate(digests)]
        live.append(ask(engine, rounds, None))
        engine.run(list(live), lambda: (cold(), traps.set())[1])
        right += sum(r.output_ids == expected[r.adapter] for r in live if r.adapter is not None)
        traps.check()
        pool.check_integrity()
    torch.cuda.synchronize()
    counts = scheduler.residency.counts()
    loads = scheduler.residency.take_loads()
    print(f"\ncapture={capture}: {right} of {ROUNDS * len(digests)} answers as alone, {len(loads)} loads, {counts}")
    # In batches of other sizes products are rounded otherwise: a few near ties may fall the other way.
    assert right >= 0.9 * ROUNDS * len(digests)
    assert {source for source, _ in loads} == {"disk", "host"}
    assert counts.failures == 0


def test_a_copy_from_host_memory_hides_behind_the_step_in_flight(tmp_path: Path) -> None:
    """The request joins in the very next step, and the first step that has it began before the copy was seen to end."""
    model, adapters = tiny_model(tmp_path, seed=2)
    engine = GpuEngine(model, arena_bytes=16 << 20, step_tokens_max=96, sequences_max=16)
    (digest, *_) = engine.add_adapters(adapters[:1], tmp_path / "store").values()
    alone = ask(engine, 0, digest)
    engine.run([alone])
    engine.scheduler.remove_adapter(digest)
    assert engine.runner.adapters.adapter_location(digest) == "host"
    late: list[Sequence] = []
    steps: list[int] = []

    def after_step() -> None:
        if not late and len(background.output_ids) == 4:
            late.append(ask(engine, 0, digest))
            steps.append(len(engine.steps))
            assert engine.scheduler.submit(late[0]) is None

    background = engine.request([5, 6, 7], 40)
    engine.run([background], after_step)
    assert any(chunk.sequence is late[0] for chunk in engine.steps[steps[0]].chunks), "it joined the next step"
    assert late[0].output_ids == alone.output_ids
