"""Models' weights coming and going, on the CPU: real files, threads and books, over memory whose pages are mapped as a
GPU's chunks are."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.gpu.driver import DriverError
from engine.gpu.memory import ChunkedSpace, chunk_size
from engine.gpu.weights import GpuWeights
from engine.gpu.weights_loader import PASSING, Copies
from engine.models.config import load_config
from engine.models.slab_source import FileSource
from support import oracle
from support.engine.published_formats import PUBLISHED, quantize_directory

PAGE = mmap.PAGESIZE
PIECE = 2 * PAGE


class Pages:
    """A Mapper over pages of a file in memory, which several addresses may map."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = (
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
        )  # fmt: skip
        self._libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self._file = os.memfd_create("chunks")
        self._end = 0
        self.created = self.maps = self.mapped = 0
        self.maps_left: int | None = None  # until one fails

    def create(self, size: int) -> int:
        self.created += 1
        self._end += size
        os.ftruncate(self._file, self._end)
        return self._end - size

    def release_chunk(self, handle: int) -> None:
        self.created -= 1

    def reserve_addresses(self, size: int) -> int:
        return self._map(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)

    def free_addresses(self, address: int, size: int) -> None:
        assert self._libc.munmap(address, size) == 0

    def map(self, address: int, size: int, handle: int) -> None:
        if self.maps_left is not None:
            self.maps_left -= 1
            if self.maps_left < 0:
                raise DriverError("cuMemMap", 999, "CUDA_ERROR_UNKNOWN")
        self.maps += 1
        self.mapped += 1
        fixed = 0x10
        self._map(address, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | fixed, self._file, handle)

    def unmap(self, address: int, size: int) -> None:
        self.mapped -= 1
        fixed = 0x10
        self._map(address, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | fixed, -1, 0)

    def tensor(self, address: int, size: int, owner: object) -> torch.Tensor:
        array = (ctypes.c_uint8 * size).from_address(address)
        array.owner = owner  # type: ignore[attr-defined]
        return torch.frombuffer(array, dtype=torch.uint8)

    def _map(self, address: int | None, size: int, protection: int, flags: int, file: int, offset: int) -> int:
        found = self._libc.mmap(address, size, protection, flags, file, offset)
        assert found not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
        return int(found)


class Point:
    def __init__(self, reached: bool) -> None:
        self._event = threading.Event()
        if reached:
            self._event.set()

    def reach(self) -> None:
        self._event.set()

    def query(self) -> bool:
        return self._event.is_set()

    def wait(self) -> None:
        assert self._event.wait(30)


class Device:
    """Copies that are done at once, unless it `holds` them; steps that are done when the test says so."""

    def __init__(self) -> None:
        self.may_copy = threading.Event()
        self.may_copy.set()
        self.steps: list[Point] = []
        self.steps_done = True

    def enter(self) -> None:
        pass

    def begin_copy(self, target: torch.Tensor, source: torch.Tensor) -> Point:
        assert self.may_copy.wait(30)
        target.copy_(source)
        return Point(True)

    def mark(self) -> Point:
        self.steps.append(Point(self.steps_done))
        return self.steps[-1]

    def wait(self, mark: Point) -> None:
        mark.wait()


class Table:
    """Models of several sizes, of files, over a budget of pages."""

    def __init__(self, tmp_path: Path, *, budget: int, host: int, layers: tuple[int, ...] = (1, 2, 3)) -> None:
        self.pages, self.device, self.lock = Pages(), Device(), threading.Lock()
        self.room = ChunkedSpace(self.pages, budget * PAGE, PAGE, self.lock)
        pieces = [torch.zeros(PIECE, dtype=torch.uint8) for _ in range(host)]
        passing = [torch.zeros(PIECE, dtype=torch.uint8) for _ in range(PASSING)]
        self.weights = GpuWeights(self.room, cast(Copies, self.device), pieces, passing, PIECE)
        self.slabs: dict[str, torch.Tensor] = {}
        self.expected: dict[str, torch.Tensor] = {}
        self.files: dict[str, Path] = {}
        for count in layers:
            self.add(
                f"m{count}", oracle.save_tiny("llama", tmp_path / f"m{count}", num_hidden_layers=count, seed=count)
            )

    def add(self, name: str, directory: Path) -> None:
        source = FileSource(directory, load_config(directory, quantized=True), torch.bfloat16)
        self.files[name] = directory / "model.safetensors"
        self.slabs[name] = self.weights.register_model(name, source)
        self.expected[name] = torch.zeros(source.layout.bytes, dtype=torch.uint8)
        source.fill(0, self.expected[name])
        self._padding = source

    def right(self, name: str) -> bool:
        """All of its tensors; between them lies what was there."""
        layout = self.weights._known[name].source.layout
        return all(
            torch.equal(layout.view(self.slabs[name], part), layout.view(self.expected[name], part))
            for part in layout.parts
        )

    def until(self, condition: Callable[[], bool]) -> list[tuple[str, str, str]]:
        """Poll until it holds; what came meanwhile."""
        moved: list[tuple[str, str, str]] = []
        stop = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < stop, "it never came"
            moved += [(came.model, came.source, came.error) for came in self.weights.poll_weights()]
            time.sleep(0.0005)
        return moved

    def bring(self, name: str) -> list[tuple[str, str, str]]:
        self.weights.begin_load(name)
        return self.until(lambda: self.weights.weights_location(name) == "device")


def test_two_models_take_turns_in_the_room_of_one(tmp_path: Path) -> None:
    table = Table(tmp_path, budget=50, host=100)
    weights = table.weights
    size = weights.weights_bytes("m3")
    assert size > weights.bytes_max - size  # type: ignore[operator]
    assert weights.load_seconds("m3") > 0
    assert table.bring("m3") == [("m3", "disk", "")]
    assert table.right("m3")
    assert weights.load_seconds("m3") == 0
    assert weights.free_bytes() == weights.bytes_max - size  # type: ignore[operator]
    addresses = {name: slab.data_ptr() for name, slab in table.slabs.items()}
    mapped = 0
    for turn in range(3):
        for name, other in (("m2", "m3"), ("m3", "m2")):
            weights.evict_weights(other)
            table.until(lambda: weights.free_bytes() == weights.bytes_max)
            source = "disk" if turn == 0 and name == "m2" else "host"
            assert weights.weights_location(name) == source
            assert table.bring(name) == [(name, source, "")]
            assert table.right(name)
            weights.check_integrity()
            mapped = table.pages.maps if turn == 0 else mapped
    assert {name: table.weights._known[name].slab.data_ptr() for name in addresses} == addresses
    assert table.pages.maps == mapped, "who comes back into what it had needs no mapping"
    assert weights.weights_location("m2") == "host"


def test_a_model_that_does_not_fit_host_memory_comes_from_its_files_each_time(tmp_path: Path) -> None:
    table = Table(tmp_path, budget=60, host=3)
    for _ in range(2):
        assert table.bring("m2") == [("m2", "disk", "")]
        assert table.right("m2")
        table.weights.evict_weights("m2")
        table.until(lambda: table.weights.free_bytes() == table.weights.bytes_max)
        assert table.weights.weights_location("m2") == "disk"
        for slab in table.slabs.values():
            slab.fill_(0xAA)


def test_what_a_step_in_flight_reads_is_nobodys_until_it_is_done(tmp_path: Path) -> None:
    table = Table(tmp_path, budget=50, host=100)
    weights = table.weights
    table.bring("m3")
    table.device.steps_done = False
    free = weights.free_bytes()
    weights.evict_weights("m3")
    assert list(weights.poll_weights()) == []
    assert weights.weights_location("m3") == "host"
    assert weights.free_bytes() == free
    assert weights.is_reclaiming
    assert table.right("m3")
    table.device.steps[-1].reach()
    list(weights.poll_weights())
    assert weights.free_bytes() == weights.bytes_max
    assert not weights.is_reclaiming


def test_a_model_that_comes_back_while_its_steps_are_in_flight_waits_for_them(tmp_path: Path) -> None:
    table = Table(tmp_path, budget=100, host=100)
    weights = table.weights
    table.bring("m1")
    table.device.steps_done = False
    weights.evict_weights("m1")
    weights.begin_load("m1")
    table.slabs["m1"].fill_(7)
    for _ in range(20):
        assert list(weights.poll_weights()) == []
        time.sleep(0.001)
    assert torch.all(table.slabs["m1"] == 7), "a step still reads there"
    table.device.steps[-1].reach()
    assert table.until(lambda: weights.weights_location("m1") == "device") == [("m1", "host", "")]
    assert table.right("m1")
    table.room.check_mapped(weights._known["m1"].allocation)  # type: ignore[arg-type]
    weights.check_integrity()


def test_a_drop_on_the_way_ends_it_and_the_next_comes_whole(tmp_path: Path) -> None:
    table = Table(tmp_path, budget=50, host=100)
    weights = table.weights
    table.device.may_copy.clear()
    weights.begin_load("m3")
    weights.evict_weights("m3")
    assert weights.free_bytes() < weights.weights_bytes("m2"), "a copy of it is still under way"
    table.device.may_copy.set()
    assert table.until(lambda: weights.free_bytes() == weights.bytes_max) == []
    assert table.bring("m2")[-1][0] == "m2"
    assert table.right("m2")
    weights.check_integrity()


def test_what_waits_is_read_into_host_memory_and_gives_way_to_what_comes(tmp_path: Path) -> None:
    table = Table(tmp_path, budget=50, host=100)
    weights = table.weights
    table.bring("m3")
    weights.prefetch_weights("m2")
    weights.prefetch_weights("m2")
    assert table.until(lambda: weights.weights_location("m2") == "host") == []
    weights.prefetch_weights("m1")
    weights.evict_weights("m3")
    table.until(lambda: weights.free_bytes() == weights.bytes_max)
    assert table.bring("m1")[-1][0] == "m1"
    assert table.right("m1")
    weights.evict_weights("m1")
    table.until(lambda: weights.free_bytes() == weights.bytes_max)
    assert table.bring("m2") == [("m2", "host", "")]
    assert table.right("m2")
    weights.check_integrity()


def test_host_memory_keeps_the_most_recently_used_and_what_waits(tmp_path: Path) -> None:
    table = Table(tmp_path, budget=100, host=30, layers=(1, 2, 3))
    weights = table.weights
    needed = {name: -(-len(slab) // PIECE) for name, slab in table.slabs.items()}
    assert needed["m1"] + needed["m2"] <= 30 < needed["m2"] + needed["m3"], needed
    table.bring("m1")
    table.bring("m2")
    assert weights.host.names() == [weights._known[name].key for name in ("m1", "m2")]
    table.bring("m3")
    assert weights.host.evictions == 2
    assert weights.host.names() == [weights._known["m3"].key]
    weights.evict_weights("m3")
    table.until(lambda: not weights._busy)
    weights.prefetch_weights("m3")  # here already: it only says that somebody waits
    weights.evict_weights("m2")
    weights.prefetch_weights("m2")
    table.until(lambda: not weights._busy)
    assert weights.weights_location("m3") == "host"
    assert weights.weights_location("m2") == "disk", "it took the place of one that is waited for"


def test_files_that_went_fail_alone_and_leave_nothing_behind(tmp_path: Path) -> None:
    table = Table(tmp_path, budget=100, host=100)
    weights = table.weights
    table.files["m2"].unlink()
    weights.begin_load("m2")
    weights.begin_load("m1")
    moved = table.until(lambda: weights.weights_location("m1") == "device" and not weights._busy)
    (failed,) = [move for move in moved if move[0] == "m2"]
    assert "model.safetensors" in failed[2]
    assert weights.weights_location("m2") == "disk"
    assert weights.free_bytes() == weights.bytes_max - weights.weights_bytes("m1")  # type: ignore[operator]
    assert weights.host.names() == [weights._known["m1"].key]
    weights.check_integrity()


@pytest.mark.parametrize(
    ("published", "bad"), [("int-channel", float("nan")), ("naive-group", -1.0), ("awq", float("inf"))]
)
@pytest.mark.parametrize("host", [0, 100])
def test_numbers_that_are_refused_end_the_load_with_the_reason_alone(
    published: str, bad: float, host: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = Table(tmp_path, budget=100, host=host, layers=(1,))
    weights, widths = table.weights, {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    directory = oracle.save_tiny("llama", tmp_path / "bad", **widths)
    quantize_directory(directory, PUBLISHED[published])
    table.add("bad", directory)  # whole
    tensors = load_file(table.files["bad"])
    name = next(own for own in sorted(tensors) if "layers.2.mlp.down_proj" in own and "scale" in own)
    tensors[name].view(-1)[-1] = bad
    save_file(tensors, table.files["bad"], metadata={"format": "pt"})
    weights.forget_weights("bad")
    weights.register_model("bad", FileSource(directory, load_config(directory, quantized=True), torch.bfloat16))
    free = weights.free_bytes()
    weights.begin_load("bad")
    moved = table.until(lambda: not weights._busy)
    [(_, _, error)] = [move for move in moved if move[0] == "bad"]
    assert "layers.2.mlp.down_proj" in error
    assert "Traceback" not in error
    assert weights.weights_location("bad") == "disk"
    assert weights.free_bytes() == free
    assert weights.host.names() == []
    assert not [record for record in caplog.records if record.exc_info or record.levelname == "ERROR"]
    if host:
        weights.prefetch_weights("bad")
        table.until(lambda: not weights._busy)
        assert weights.weights_location("bad") == "disk"
        assert weights.host.names() == []
    assert table.bring("m1")[-1][0] == "m1"
    assert table.right("m1")
    weights.check_integrity()


def test_a_mapping_that_fails_half_way_is_made_whole_by_the_next_load() -> None:
    pages = Pages()
    room = ChunkedSpace(pages, 8 * PAGE, PAGE, threading.Lock())
    for name, count in (("a", 3), ("b", 3)):
        room.add_slab(name, count * PAGE)
    slab = room.add_slab("c", 4 * PAGE)
    assert pages.mapped == 10
    first, lease = room.allocate_weights("a"), room.allocate_weights("c")
    assert lease.chunks[2:] == (3, 4), "in place of 0 and 1, which are of the other"
    pages.maps_left = 0
    with pytest.raises(DriverError):
        room.prepare(lease)
    room.free_weights(first)
    room.free_weights(lease)
    room.allocate_weights("b")
    lease = room.allocate_weights("c")
    assert lease.chunks[2:] == (0, 1), "as before: the first of them is mapped no more, the second still is"
    with pytest.raises(DriverError):
        room.prepare(lease)
    assert pages.mapped == 9
    pages.maps_left = 1
    room.prepare(lease)
    room.check_mapped(lease)
    room.check_integrity()
    slab.fill_(7)
    assert slab.sum() == 7 * 4 * PAGE
    room.free_weights(lease)
    room.remove_slab("c")
    assert pages.mapped == 6


def test_a_model_whose_slab_cannot_be_mapped_leaves_nothing_behind() -> None:
    pages = Pages()
    room = ChunkedSpace(pages, 8 * PAGE, PAGE, threading.Lock())
    pages.maps_left = 2
    with pytest.raises(DriverError):
        room.add_slab("a", 4 * PAGE)
    assert pages.mapped == 0
    pages.maps_left = None
    room.add_slab("a", 4 * PAGE)
    room.prepare(room.allocate_weights("a"))
    room.check_integrity()


def test_a_forgotten_model_s_addresses_and_bytes_are_anothers(tmp_path: Path) -> None:
    table = Table(tmp_path, budget=50, host=100, layers=(1, 2))
    weights = table.weights
    table.bring("m2")
    before = table.pages.mapped
    weights.prefetch_weights("m1")
    weights.forget_weights("m1")
    weights.evict_weights("m2")
    weights.forget_weights("m2")
    table.until(lambda: not weights.is_reclaiming)
    table.until(lambda: not weights._busy and not table.pages.mapped)
    assert before
    assert weights.host.names() == []
    table.add("m2", oracle.save_tiny("llama", tmp_path / "other", num_hidden_layers=2, seed=9))
    assert table.bring("m2") == [("m2", "disk", "")]
    assert table.right("m2")
    weights.check_integrity()


def test_one_that_nobody_heard_of_goes_beside_a_loop_that_looks_who_is_busy(tmp_path: Path) -> None:
    table = Table(tmp_path, budget=50, host=100, layers=(1, 2))
    weights = table.weights
    weights.begin_load("m2")
    busy = iter(weights._busy.values())  # as the loop goes through them
    weights.forget_weights("m1")
    assert [known.name for known in busy] == ["m2"]
    assert list(weights._busy) == [weights._known["m2"].key]
    table.until(lambda: weights.weights_location("m2") == "device")
    assert table.right("m2")


def test_all_is_given_back_with_the_last_tensor(tmp_path: Path) -> None:
    table = Table(tmp_path, budget=50, host=100, layers=(1,))
    pages, slab = table.pages, table.slabs["m1"][5:]
    table.bring("m1")
    del table
    import gc

    gc.collect()
    assert pages.created == 50
    assert slab.sum() > 0
    del slab
    gc.collect()
    assert pages.created == pages.mapped == 0


def test_a_model_larger_than_the_budget_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MemoryError, match=f"weights_bytes is {5 * PAGE}"):
        Table(tmp_path, budget=5, host=0)


def test_chunks_are_whole_grains_and_a_small_part_of_a_small_budget() -> None:
    grain = 2 << 20
    assert chunk_size(40 << 30, grain) == 32 << 20
    assert chunk_size(512 << 20, grain) == 8 << 20
    assert chunk_size(3 << 20, grain) == grain


def test_whatever_is_asked_for_what_is_on_the_device_is_right(tmp_path: Path) -> None:
    """A thousand turns of begins, drops, prefetches and slow steps."""
    dice = random.Random(4)
    table = Table(tmp_path, budget=80, host=50, layers=(1, 2, 3, 4))
    weights, device = table.weights, table.device
    names = list(table.slabs)
    came = turn = 0
    while turn < 1000 or came <= 50:  # where the threads get no turn of their own, a few more
        assert turn < 20_000
        turn += 1
        device.steps_done = dice.random() < 0.5
        name = dice.choice(names)
        known = weights._known[name]
        action = dice.random()
        if action < 0.4 and known.allocation is None and weights.weights_bytes(name) <= weights.free_bytes():
            weights.begin_load(name)
        elif action < 0.5 or (known.allocation is not None and known.loading is None and action < 0.8):
            weights.evict_weights(name)
        elif action < 0.6:
            weights.prefetch_weights(name)
        if dice.random() < 0.5:
            for step in device.steps:
                step.reach()
        moved = list(weights.poll_weights())
        assert not any(move.error for move in moved)
        came += len(moved)
        if turn % 10 == 0:
            assert all(table.right(own) for own in names if weights.weights_location(own) == "device")
            weights.check_integrity()
        time.sleep(0.0005)
    for step in device.steps:
        step.reach()
    table.until(lambda: not weights._busy)
    weights.check_integrity()
