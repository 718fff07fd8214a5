"""On the way to the arena: host memory, and a device's staging memory, on a lane that the test drives by hand."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.device.host_cache import HostMemory
from adapters.device.host_slabs import SlabMemory
from adapters.device.host_weights import READS_MAX, Source, read_weights
from adapters.device.pool import PoolMove, TilePool
from adapters.device.staging import CopyBuffer
from adapters.files.spec import AdapterRefused
from support.adapters.files import BASE, loadable, lora_tensors, write_adapter
from support.adapters.tile_pool import GUARD, PAGE_BYTES, Books

# ---- slabs


@settings(max_examples=60, deadline=None)
@given(
    actions=st.lists(st.tuples(st.sampled_from(["take", "take", "give", "touch"]), st.integers(0, 9)), max_size=60),
    sizes=st.lists(st.integers(1, 60), min_size=10, max_size=10),
    stays=st.sets(st.integers(0, 9)),
)
def test_slabs_keep_the_books(actions: list[tuple[str, int]], sizes: list[int], stays: set[int]) -> None:
    memory = torch.zeros(100, dtype=torch.uint8)
    slabs, order = SlabMemory(memory), list[str]()
    for action, number in actions:
        key = str(number)
        if action == "take" and key not in slabs:
            gone = slabs.allocate_slab(key, sizes[number], lambda other: int(other) not in stays)
            if gone is None:
                assert sum(sizes[int(other)] for other in order if int(other) in stays) + sizes[number] > 0
                assert slabs.names() == order
                continue
            assert not any(int(other) in stays for other in gone)
            assert gone == [other for other in order if other in gone], "least recently used first"
            order = [other for other in order if other not in gone] + [key]
            slabs.view(key).fill_(number)
        elif action == "give" and key in slabs:
            slabs.free_slab(key)
            order.remove(key)
        elif action == "touch" and key in slabs:
            slabs.touch(key)
            order.remove(key)
            order.append(key)
        assert slabs.names() == order
        slabs.check_integrity()
        for other in order:
            assert slabs.view(other).tolist() == [int(other)] * sizes[int(other)], "it was overwritten"


# ---- host memory


def sources(directory: Path, count: int) -> dict[str, Path]:
    """Rank 2 on q_proj of three layers: 3 tiles of 512 bytes."""
    found = {}
    for index in range(count):
        tensors = {name: numbers + index for name, numbers in lora_tensors().items()}
        found[f"a{index}"] = loadable(write_adapter(directory / str(index), weights=tensors))
    return found


def wait_for(pool: TilePool, done: Callable[[], bool]) -> list[PoolMove]:
    """Poll until then."""
    moved, deadline = list[PoolMove](), time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        moved += pool.poll_adapters()
        time.sleep(0.001)
    return moved


class Gate:
    """A reader that waits before each file until it is let go."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.begun: list[str] = []

    def __call__(self, source: Source, slab: torch.Tensor, stopped: Callable[[], bool]) -> None:
        self.begun.append(source.file.parent.name)
        assert self.open.wait(30)
        read_weights(source, slab, stopped)


def new_pool(directory: Path, count: int, *, host_bytes: int, **how: object) -> TilePool:
    arena = torch.full((64, PAGE_BYTES), GUARD, dtype=torch.uint8)
    gate = how.pop("read", read_weights)
    host = HostMemory(torch.zeros(host_bytes, dtype=torch.uint8), gate)  # type: ignore[arg-type]
    pool = TilePool(arena, torch.float32, {"base": BASE}, host=host, **how)  # type: ignore[arg-type]
    for digest, path in sources(directory, count).items():
        pool.register_adapter(digest, "base", path)
    return pool


SLAB = 3 * 512


def test_host_memory_keeps_the_last_used_and_what_is_waited_for(tmp_path: Path) -> None:
    pool = new_pool(tmp_path, 5, host_bytes=3 * SLAB)
    for digest in ("a0", "a1", "a2"):
        assert pool.adapter_location(digest) == "disk"
        pool.bring(digest)
        assert pool.adapter_location(digest) == "host"
    pool.request_load("a0")  # waited for, and used last
    assert pool.request_load("a3")
    wait_for(pool, lambda: pool.adapter_location("a3") == "host")
    assert pool.host.held() == ["a2", "a0", "a3"]
    pool.pin_adapter("a2", True)
    assert not pool.request_load("a4"), "all are waited for, or pinned"
    pool.poll_adapters()
    assert not pool.is_adapter_ready("a4")
    wait_for(pool, lambda: pool.adapter_location("a4") == "host")
    assert pool.host.held() == ["a2", "a3", "a4"], "for the first of a queue one goes that is waited for"
    assert pool.evictions() == 2


def test_so_many_files_are_read_at_once_and_one_that_nobody_wants_gives_its_place_up(tmp_path: Path) -> None:
    gate = Gate()
    pool = new_pool(tmp_path, READS_MAX + 2, host_bytes=20 * SLAB, read=gate)
    digests = [f"a{index}" for index in range(READS_MAX + 2)]
    assert [pool.request_load(digest) for digest in digests] == [True] * READS_MAX + [False] * 2
    assert len(pool.poll_adapters()) == 0
    pool.cancel_load("a1")
    gate.open.set()
    moved = wait_for(pool, lambda: not any(digest in pool.host._reading for digest in digests))
    assert sorted(move.digest for move in moved) == ["a0", "a2", "a3"]
    assert pool.adapter_location("a1") == "disk"
    assert len(gate.begun) == READS_MAX
    assert pool.request_load("a5")
    wait_for(pool, lambda: pool.adapter_location("a5") == "host")
    pool.check_integrity()


def test_one_too_large_for_the_way_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(AdapterRefused, match=rf"it takes {SLAB} bytes; adapter_host_bytes is {SLAB - 64}"):
        new_pool(tmp_path, 1, host_bytes=SLAB - 64)
    staging = CopyBuffer(torch.zeros(64, dtype=torch.uint8), HandLane())
    with pytest.raises(AdapterRefused, match="adapter_staging_bytes is 64"):
        new_pool(tmp_path, 1, host_bytes=SLAB, staging=staging)


# ---- staging


@dataclass(eq=False)
class HandMark:
    done: bool = False

    def query(self) -> bool:
        return self.done


@dataclass
class HandLane:
    """Copies, and the device's own work, both done when the test says so."""

    copies: list[tuple[torch.Tensor, torch.Tensor, HandMark]] = field(default_factory=list)
    work: list[HandMark] = field(default_factory=list)

    def begin_copy(self, target: torch.Tensor, source: torch.Tensor) -> HandMark:
        self.copies.append((target, source, HandMark()))
        return self.copies[-1][2]

    def mark(self) -> HandMark:
        self.work.append(HandMark())
        return self.work[-1]

    def follow(self, mark: object) -> None:
        """The device waits: what the copy brings is there before the work that comes now."""
        while self.copies and not (isinstance(mark, HandMark) and mark.done):
            self.finish_copy()

    def finish_copy(self) -> None:
        target, source, mark = self.copies.pop(0)
        target.copy_(source)
        mark.done = True

    def finish_work(self) -> None:
        for mark in self.work:
            mark.done = True
        self.work.clear()


def staged_pool(directory: Path, count: int, *, places: int, host: int) -> tuple[TilePool, HandLane]:
    lane = HandLane()
    staging = CopyBuffer(torch.zeros(places * SLAB, dtype=torch.uint8), lane)
    return new_pool(directory, count, host_bytes=host * SLAB, staging=staging), lane


def place(pool: TilePool, digest: str, free: list[int]) -> None:
    pool.place_adapter(digest, [free.pop() for _ in range(pool.pages_needed(digest))])


def test_a_copy_is_waited_for_by_nobody_and_its_memory_is_used_again_only_behind_its_reader(tmp_path: Path) -> None:
    pool, lane = staged_pool(tmp_path, 3, places=1, host=3)
    free = list(range(64))
    for digest in ("a0", "a1"):
        pool.bring(digest)
    assert not pool.is_adapter_ready("a0")
    assert len(lane.copies) == 1
    assert not pool.is_adapter_ready("a1"), "the one place is being copied to"
    lane.finish_copy()
    assert [move.source for move in pool.poll_adapters()] == ["host"]
    assert pool.is_adapter_ready("a0")
    assert not pool.request_load("a1", urgent=True), "it was promised to a0"
    place(pool, "a0", free)
    pool.poll_adapters()
    assert not pool.request_load("a1", urgent=True), "a0's tiles may still be read from there"
    lane.finish_work()
    pool.poll_adapters()
    assert pool.request_load("a1", urgent=True)
    lane.finish_copy()
    pool.poll_adapters()
    place(pool, "a1", free)
    pool.check_integrity()


def test_behind_a_step_in_flight_a_copy_hides(tmp_path: Path) -> None:
    pool, lane = staged_pool(tmp_path, 2, places=2, host=2)
    pool.bring("a0")
    assert not pool.is_adapter_ready("a0", hidden=False)
    assert len(lane.copies) == 1
    assert pool.is_adapter_ready("a0", hidden=True)
    place(pool, "a0", list(range(64)))
    assert not lane.copies, "the device waited for the copy"
    assert [move.digest for move in pool.poll_adapters()] == ["a0"]
    pool.check_integrity()


def test_host_memory_stays_while_a_copy_reads_it(tmp_path: Path) -> None:
    pool, lane = staged_pool(tmp_path, 2, places=2, host=1)
    pool.bring("a0")
    pool.request_load("a0")
    pool.cancel_load("a0")  # nobody wants it; the copy goes on all the same
    assert not pool.request_load("a1", urgent=True)
    lane.finish_copy()
    pool.poll_adapters()
    pool.poll_adapters()
    assert pool.request_load("a1", urgent=True)
    wait_for(pool, lambda: pool.adapter_location("a1") == "host")


@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_and_goes_tiles_hold_what_they_should(tmp_path: Path, seed: int) -> None:
    """Random wants, drops, copies that end late, places and removals; every tile is compared with the file."""
    pool, lane = staged_pool(tmp_path, 8, places=2, host=3)
    dice = random.Random(seed)
    books = Books(pool, pool._arena, dice)
    expected = {}
    for digest in [f"a{index}" for index in range(8)]:
        expected[digest] = pool.bring(digest).clone()
        pool.host.forget_adapter(digest)
    placed = 0
    for _ in range(400):
        digest = f"a{dice.randrange(8)}"
        action = dice.choice(["want", "drop", "place", "place", "remove", "copy", "work", "poll"])
        if action == "want":
            pool.request_load(digest, urgent=dice.random() < 0.5)
        elif action == "drop":
            pool.cancel_load(digest)
        elif (
            action == "place"
            and digest not in books.placed
            and pool.is_adapter_ready(digest, hidden=dice.random() < 0.3)
        ):
            books.place(digest)
            placed += 1
        elif action == "remove" and digest in books.placed:
            books.remove(digest)
        elif action == "copy" and lane.copies:
            lane.finish_copy()
        elif action == "work":
            lane.finish_work()
        elif action == "poll":
            time.sleep(0.0005)
            assert not any(move.error for move in pool.poll_adapters())
        books.check()
        for resident in books.placed:
            layout, start = pool._known[resident].layout, 0
            for cut, (page, offset) in zip(layout.cuts, pool._resident[resident].places, strict=True):
                size = (cut.in_features + cut.out_features) * cut.rank * 4
                lies = pool._arena[page, offset : offset + size]
                assert torch.equal(lies, expected[resident][start : start + size]), f"{resident}: {cut}"
                start += cut.bytes
    assert placed > 5
