"""Adapters that come and go beside the steps, on the CPU engine: more than the arena, more than host memory, from a
disk that is slow, broken or gone."""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from adapters.device.host_weights import READS_MAX
from adapters.files.check import resolve_stored
from engine.cpu.runner import build_runner
from engine.loop.worker import EngineLoop
from engine.protocol.codec import FrameReader, decode_from_engine
from engine.protocol.config import EngineConfig, ModelConfig
from engine.protocol.frames import (
    PROTOCOL_VERSION,
    Finished,
    Hello,
    LoadAdapter,
    Sampling,
    Status,
    StatusReport,
    Submit,
    Tokens,
)
from engine.protocol.inbox import Inbox, LoopProgress, Stop
from engine.protocol.server import OutgoingFrames
from engine.step import Sequence
from support import oracle
from support.engine.in_process import MODEL, TIERS, Drive

COUNT, ROOM, AT_ONCE = 200, 30, 50
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("loads") / "model"
    return oracle.save_tiny("llama", directory, num_hidden_layers=2, head_dim=32, seed=3)


@pytest.fixture(scope="module")
def many(tiny: Path) -> dict[str, Path]:
    """Digest → directory of random adapters of rank 4 on all modules, 36 KB each; peft wrote the first."""
    root = tiny.parent
    first = oracle.save_tiny_adapter(oracle.load(tiny), root / "first", r=4, target_modules="all-linear")
    config, tensors = (first / "adapter_config.json").read_bytes(), load_file(first / WEIGHTS)
    found = {}
    for index in range(COUNT):
        directory = root / f"adapter{index}"
        directory.mkdir()
        generator = torch.Generator().manual_seed(index)
        fresh = {name: torch.randn(t.shape, generator=generator) * 0.2 for name, t in tensors.items()}
        (directory / "adapter_config.json").write_bytes(config)
        save_file(fresh, directory / WEIGHTS)
        resolve_stored(directory)
        found[f"{index:064x}"] = directory
    return found


def engine_of(tiny: Path, adapters: dict[str, Path], *, host_bytes: int = 1 << 20, pages: int | None = None) -> Drive:
    """An engine that knows these adapters; its scheduler has `pages` of the arena."""
    config = EngineConfig(
        models=(ModelConfig(name=MODEL, path=str(tiny)),),
        arena_bytes=16 << 20,
        adapter_host_bytes=host_bytes,
        step_tokens_max=512,
        sequences_max=AT_ONCE,
        threads=1,
    )
    runner = build_runner(config)
    runner.pages = pages or runner.pages
    engine = Drive(runner, tiny, step_tokens_max=512, sequences_max=AT_ONCE)
    for digest, directory in adapters.items():
        runner.load_adapter(digest, MODEL, str(directory))
    return engine


def pages_of(engine: Drive, count: int) -> int:
    """That so many adapters take together."""
    pool, taken = engine.runner.adapters, 0
    for index in range(count):
        needed = pool.pages_needed(f"{index:064x}")
        pool.place_adapter(f"{index:064x}", list(range(taken, taken + needed)))
        taken += needed
    for digest in pool.resident():
        pool.evict_adapter(digest)
    return taken


def prompt_of(index: int) -> list[int]:
    dice = random.Random(index)
    return [dice.randrange(1, oracle.TINY_VOCAB) for _ in range(6 + index % 20)]


def answers(engine: Drive, order: list[int], *, tokens: int = 8) -> dict[int, list[int]]:
    """What each adapter says to the prompt of its number, AT_ONCE requests at a time, in tiers in turn."""
    left, live, done = list(order), list[Sequence](), {}
    tiers = ("premium", "standard", "batch")

    def ask() -> Sequence:
        index = left.pop(0)
        live.append(engine.request(prompt_of(index), tokens, f"{index:064x}", tier=tiers[index % 3]))
        done[index] = live[-1]
        return live[-1]

    def after_step() -> None:
        live[:] = [request for request in live if len(request.output_ids) < tokens]
        while left and len(live) < AT_ONCE:
            assert engine.scheduler.submit(ask()) is None

    while left:
        engine.run([ask() for _ in range(min(AT_ONCE, len(left)))], after_step)
    engine.scheduler.check_integrity()
    return {index: request.output_ids for index, request in done.items()}


def test_two_hundred_adapters_in_room_for_thirty_answer_as_if_all_were_resident(
    tiny: Path, many: dict[str, Path]
) -> None:
    whole = engine_of(tiny, many, host_bytes=64 << 20)
    expected = answers(whole, list(range(COUNT)))
    assert len(whole.runner.adapters.resident()) == COUNT
    assert len({tuple(ids) for ids in expected.values()}) > COUNT // 2, "the adapters say something else"
    pages = pages_of(whole, ROOM) + 60
    small = engine_of(tiny, many, pages=pages)
    order = random.Random(5).choices(range(COUNT), weights=[1 / (1 + i) for i in range(COUNT)], k=COUNT)
    for round_ in (list(range(COUNT)), order):
        for index, said in answers(small, round_).items():
            assert said == expected[index], f"adapter {index}"
    counts = small.scheduler.residency.counts()
    assert counts.evicted_device > COUNT
    assert counts.evicted_host > COUNT // 2
    assert len(small.runner.adapters.resident()) < COUNT // 2
    assert counts.hits["disk"] > COUNT // 2
    assert counts.failures == 0


# ---- a disk that is slow


@pytest.fixture
def slow(tiny: Path, many: dict[str, Path], tmp_path: Path) -> Iterator[tuple[Path, bytes]]:
    """A directory whose weights are a pipe that nobody has written to yet, and what they are. Checked before, as a file
    like any other."""
    directory, source = tmp_path / "slow", many[f"{0:064x}"]
    directory.mkdir()
    data = (source / WEIGHTS).read_bytes()
    (directory / "adapter_config.json").write_bytes((source / "adapter_config.json").read_bytes())
    (directory / WEIGHTS).write_bytes(data)
    resolve_stored(directory)
    yield directory, data
    # Whoever hangs there ends: the pipe is opened, and closed again.
    if (directory / WEIGHTS).is_fifo():
        os.close(os.open(directory / WEIGHTS, os.O_RDWR | os.O_NONBLOCK))


def make_slow(directory: Path) -> Path:
    (directory / WEIGHTS).unlink()
    os.mkfifo(directory / WEIGHTS)
    return directory / WEIGHTS


def test_who_waits_for_a_slow_disk_keeps_nobody_else_waiting(
    tiny: Path, many: dict[str, Path], slow: tuple[Path, bytes]
) -> None:
    directory, data = slow
    engine = engine_of(tiny, many | {"s" * 64: directory})
    others = list(range(1, 20))
    expected = answers(engine, [0, *others])
    pipe = make_slow(directory)
    stuck = engine.request(prompt_of(0), 8, "s" * 64, tier="premium")
    assert engine.scheduler.submit(stuck) is None
    before = len(engine.steps)
    requests = [engine.request(prompt_of(index), 8, f"{index:064x}") for index in others]
    writer: list[threading.Thread] = []

    def write() -> None:
        pipe.write_bytes(data)

    def after_step() -> None:
        """The disk answers only when everybody else has all they asked for."""
        if not writer and all(len(request.output_ids) == 8 for request in requests):
            assert not stuck.output_ids
            assert stuck.started_at is None
            assert len(engine.steps) - before < 30
            writer.append(threading.Thread(target=write))
            writer[0].start()

    engine.run(requests, after_step)
    assert [request.output_ids for request in requests] == [expected[index] for index in others]
    assert stuck.output_ids == expected[0], "it has the same weights"
    writer[0].join()


def test_a_load_that_nobody_waits_for_is_cancelled(tiny: Path, many: dict[str, Path], slow: tuple[Path, bytes]) -> None:
    directory, data = slow
    engine = engine_of(tiny, many | {"s" * 64: directory})
    pool = engine.runner.adapters
    pipe = make_slow(directory)
    gone = engine.request(prompt_of(0), 8, "s" * 64)
    assert engine.scheduler.submit(gone) is None
    assert engine.scheduler.schedule() is None
    assert "s" * 64 in pool.host._reading
    assert engine.scheduler.abort(gone.gateway, gone.handle) is not None
    assert not engine.scheduler.has_work()
    writer = threading.Thread(target=lambda: pipe.write_bytes(data))
    with pytest.MonkeyPatch.context() as patch:
        # It stops between two tensors, and closes the pipe under the writer's hands.
        patch.setattr(threading, "excepthook", lambda args: None)
        writer.start()
        writer.join()
    engine.run([engine.request(prompt_of(index), 8, f"{index:064x}") for index in range(1, READS_MAX + 9)])
    assert "s" * 64 not in pool.host._reading
    assert pool.adapter_location("s" * 64) == "disk"
    assert engine.scheduler.residency.counts().failures == 0


def test_a_loop_that_waits_for_a_disk_answers_and_does_not_look_stuck(
    tiny: Path, many: dict[str, Path], slow: tuple[Path, bytes]
) -> None:
    """Stuck is busy and at the same step: the supervisor would kill the engine for its disk."""
    directory, data = slow
    engine = engine_of(tiny, many | {"s" * 64: directory})
    pipe = make_slow(directory)
    (info,) = engine.runner.models.values()
    hello = Hello(PROTOCOL_VERSION, "epoch", [info], [tier.name for tier in TIERS])
    inbox, progress, sent = Inbox(), LoopProgress(), queue.SimpleQueue[OutgoingFrames]()

    def send(batch: list[OutgoingFrames]) -> None:
        for outgoing in batch:
            sent.put(outgoing)

    worker = EngineLoop(
        hello=hello, scheduler=engine.scheduler, runner=engine.runner, inbox=inbox, progress=progress, send=send
    )
    loop = threading.Thread(target=worker.run)
    loop.start()
    try:
        greedy = Sampling(temperature=0.0)
        frame = Submit(1, "r", "epoch", MODEL, "s" * 64, "n", "standard", "", prompt_of(0), 8, greedy, [])
        inbox.receive(0, frame, time.monotonic(), 100)
        deadline = time.monotonic() + 30
        while "s" * 64 not in engine.runner.adapters.host._reading or progress.busy:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        for _ in range(20):
            time.sleep(0.002)
            assert not progress.busy
        inbox.receive(0, Status(), time.monotonic(), 10)
        (report,) = map(decode_from_engine, FrameReader().feed(sent.get(timeout=30).data))
        assert isinstance(report, StatusReport)
        assert b'laneway_adapter_requests_total{storage="disk"} 1.0' in report.metrics
        pipe.write_bytes(data)
        frames = list[object]()
        while not any(isinstance(found, Finished) for found in frames):
            frames += map(decode_from_engine, FrameReader().feed(sent.get(timeout=30).data))
        ids = [token for found in frames if isinstance(found, Tokens) for token in found.ids]
        assert len(ids) == 8
    finally:
        inbox.put(Stop("done"))
        loop.join(30)


# ---- pinned


def test_a_pinned_one_is_read_and_placed_by_an_idle_engine(tiny: Path, many: dict[str, Path]) -> None:
    """Nobody asks for it; the loop brings it all the same, then sleeps as before."""
    engine = engine_of(tiny, many)
    pool = engine.runner.adapters
    (info,) = engine.runner.models.values()
    hello = Hello(PROTOCOL_VERSION, "epoch", [info], [tier.name for tier in TIERS])
    inbox = Inbox()
    worker = EngineLoop(
        hello=hello, scheduler=engine.scheduler, runner=engine.runner, inbox=inbox, progress=LoopProgress(),
        send=lambda _: None,
    )  # fmt: skip
    loop = threading.Thread(target=worker.run)
    loop.start()
    pinned = [f"{index:064x}" for index in (3, 1, 2)]
    try:
        for digest in pinned:
            inbox.receive(0, LoadAdapter(digest, MODEL, str(many[digest]), pinned=True), time.monotonic(), 100)
        deadline = time.monotonic() + 30
        while pool.resident() != pinned:
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        inbox.put(Stop("done"))
        loop.join(30)
    assert not engine.scheduler.residency.has_background_loads
    engine.scheduler.check_integrity()
    assert [pool.adapter_location(digest) for digest in pinned] == ["device"] * 3


def test_one_that_cannot_be_read_keeps_no_other_pinned_one_waiting(
    tiny: Path, many: dict[str, Path], slow: tuple[Path, bytes]
) -> None:
    directory, _ = slow
    engine = engine_of(tiny, many | {"s" * 64: directory})
    (directory / WEIGHTS).unlink()
    good = f"{0:064x}"
    for digest in ("s" * 64, good):
        assert engine.scheduler.pin_adapter(digest, True) == ""
    deadline = time.monotonic() + 30
    while engine.scheduler.residency.has_background_loads:
        assert time.monotonic() < deadline
        engine.scheduler.poll_loads()
        time.sleep(0.001)
    assert engine.runner.adapters.resident() == [good]
    assert engine.scheduler.residency.counts().failures == 1
    engine.scheduler.check_integrity()


# ---- a disk that fails


@pytest.mark.parametrize("how", ["gone", "cut short", "another file", "not finite"])
def test_an_adapter_that_cannot_be_read_fails_its_own_requests(
    tiny: Path, many: dict[str, Path], slow: tuple[Path, bytes], how: str
) -> None:
    directory, data = slow
    bad, digest = directory / WEIGHTS, "s" * 64
    if how == "not finite":
        bad.write_bytes(data[:-4] + b"\x00\x00\xc0\x7f")
    engine = engine_of(tiny, many | {digest: directory})
    expected = answers(engine, [0, 1, 2])
    match how:
        case "gone":
            bad.unlink()
            reason = "No such file"
        case "cut short":
            bad.write_bytes(data[:-1000])
            reason = "cut short since it was checked"
        case "another file":
            bad.write_bytes(data[:8] + data[8:].replace(b"lora_A", b"lora_B", 1))
            reason = "not the file that was checked"
        case _:
            reason = "is NaN or infinite"
    failed: list[Sequence] = []
    requests = [engine.request(prompt_of(index), 8, f"{index:064x}") for index in (1, 2)]
    for tier in ("premium", "batch"):
        failed.append(engine.request(prompt_of(0), 8, digest, tier=tier))
        assert engine.scheduler.submit(failed[-1]) is None
    ended: list[Any] = []
    complete = engine.scheduler.complete

    def completed(*args: object) -> object:
        outcome = complete(*args)  # type: ignore[arg-type]
        ended.extend(ending for ending in outcome.ended if ending.reason == "error")
        return outcome

    engine.scheduler.complete = completed  # type: ignore[method-assign, assignment]
    engine.run(requests, endings=("length", "error"))
    assert [request.output_ids for request in requests] == [expected[1], expected[2]]
    assert {ending.sequence.handle for ending in ended} == {request.handle for request in failed}
    assert all(reason in ending.message for ending in ended), ended[0].message
    # Made whole, it serves.
    if how != "not finite":
        bad.write_bytes(data)
        again = engine.request(prompt_of(0), 8, digest)
        engine.run([again])
        assert again.output_ids == expected[0]


# ---- evicted while it is wanted again


def test_an_adapter_that_is_replaced_shares_no_page_with_what_replaces_it(tiny: Path, many: dict[str, Path]) -> None:
    """The same prompt under another digest finds nothing in the prefix cache, and says what the other adapter says."""
    engine = engine_of(tiny, many)
    prompt = prompt_of(0) * 4
    first, second = (engine.request(prompt, 8, f"{index:064x}") for index in (0, 1))
    engine.run([first])
    again = engine.request(prompt, 8, f"{0:064x}")
    engine.run([again, second])
    assert again.cached_tokens > 0
    assert second.cached_tokens == 0
    assert first.output_ids == again.output_ids
    engine.scheduler.remove_adapter(f"{0:064x}")
    engine.runner.unload_adapter(f"{0:064x}")
    assert not engine.runner.adapters.is_known(f"{0:064x}", MODEL)
    refusal = engine.scheduler.submit(engine.request(prompt, 8, f"{0:064x}"))
    assert refusal is not None
    assert refusal.code == "adapter_unknown"
