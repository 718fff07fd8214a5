"""Device memory for the weights of models. A model's slab has the same addresses for as long as the model is known;
memory is mapped behind them while its weights are resident.

Captured graphs hold addresses, so a model that is evicted and loaded again needs its own. Nothing here copies weights.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

CHUNK_BYTES = 32 << 20
# Minimum number of chunks: a small budget has smaller chunks.
CHUNKS_MIN = 64


@dataclass(frozen=True, slots=True, eq=False)
class WeightAllocation:
    """Device bytes of a model from `allocate_weights` to `free_weights`."""

    model: str
    chunks: tuple[int, ...] = ()


class WeightSpace(Protocol):
    """`allocate_weights` and `free_weights` are for the loop's thread; `add_slab`, `remove_slab` and `prepare` run on
    other threads."""

    bytes_max: int | None

    def add_slab(self, model: str, needed: int) -> Tensor:
        """Register a model. Returns its slab, uint8 [needed], whose bytes are undefined until an allocation of the
        model is prepared and filled. Raises MemoryError."""
        ...

    def remove_slab(self, model: str) -> None:
        """Forget a model without an allocation, whose slab no step reads."""
        ...

    def allocation_bytes(self, model: str) -> int:
        """Device bytes of one allocation of the model."""
        ...

    def free_bytes(self) -> int: ...

    def allocate_weights(self, model: str) -> WeightAllocation:
        """`free_bytes` is at least the model's `allocation_bytes`."""
        ...

    def free_weights(self, allocation: WeightAllocation) -> None:
        """Free an allocation whose bytes nothing reads or writes."""
        ...

    def prepare(self, allocation: WeightAllocation) -> None:
        """Map the allocation behind the model's slab, which nothing reads meanwhile."""
        ...

    def check_integrity(self) -> None:
        """AssertionError names the mismatch."""
        ...


class UnboundedSpace:
    """No budget: every registered model has its own bytes."""

    bytes_max: int | None = None

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sizes: dict[str, int] = {}

    def add_slab(self, model: str, needed: int) -> Tensor:
        try:
            slab = torch.empty(needed, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError as error:
            raise MemoryError(f"its weights take {needed} bytes and do not fit into device memory") from error
        self._sizes[model] = needed
        return slab

    def remove_slab(self, model: str) -> None:
        del self._sizes[model]

    def allocation_bytes(self, model: str) -> int:
        return self._sizes[model]

    def free_bytes(self) -> int:
        return 1 << 62

    def allocate_weights(self, model: str) -> WeightAllocation:
        return WeightAllocation(model)

    def free_weights(self, allocation: WeightAllocation) -> None:
        pass

    def prepare(self, allocation: WeightAllocation) -> None:
        pass

    def check_integrity(self) -> None:
        pass


class Mapper(Protocol):
    """Implemented by engine.gpu.driver.DriverMemory."""

    def create(self, size: int) -> int: ...
    def release_chunk(self, handle: int) -> None: ...
    def reserve_addresses(self, size: int) -> int: ...
    def free_addresses(self, address: int, size: int) -> None: ...
    def map(self, address: int, size: int, handle: int) -> None: ...
    def unmap(self, address: int, size: int) -> None: ...
    def tensor(self, address: int, size: int, owner: object) -> Tensor: ...


@dataclass(slots=True)
class _Slab:
    address: int
    needed: int
    mapped: list[int | None]  # by position: the mapped chunk; None: the mapping failed
    planned: list[int]  # likewise, once all allocations made so far are prepared


class ChunkedSpace:
    """A budget of physical chunks of one size, all taken at the start: models of any size share them without gaps.

    Every address of every known model has a chunk mapped at any time. A chunk may be mapped into several models' slabs
    and belongs to the model that has it allocated. A model that gets the same chunks again therefore needs no mapping,
    and two models that alternate on the same chunks are mapped once each. (After a failed mapping there is a gap until
    an allocation of the model is prepared; nothing reads the slab before.)"""

    def __init__(self, mapper: Mapper, budget: int, chunk_bytes: int, lock: threading.Lock) -> None:
        """`lock` is held while anything is mapped. Raises the mapper's error if the device lacks memory."""
        count = budget // chunk_bytes
        assert count > 0
        self.bytes_max: int | None = count * chunk_bytes
        self._chunk_bytes = chunk_bytes
        self._mapper = mapper
        self._lock = lock
        self._handles: list[int] = []
        self._slabs: dict[str, _Slab] = {}
        self._free: dict[int, None] = dict.fromkeys(range(count))  # in the order in which they were freed
        self._allocations: list[WeightAllocation] = []
        self._next = 0  # preferred first chunk of the next model
        finalizer = weakref.finalize(self, _release, mapper, self._handles, self._slabs, chunk_bytes)
        finalizer.atexit = False  # the process's end frees all
        for _ in range(count):
            self._handles.append(mapper.create(chunk_bytes))

    def add_slab(self, model: str, needed: int) -> Tensor:
        assert model not in self._slabs
        assert self.bytes_max is not None
        if needed > self.bytes_max:
            raise MemoryError(f"its weights take {needed} bytes; weights_bytes is {self.bytes_max}")
        size = self._chunk_bytes
        count = -(-needed // size)
        chunks = [(self._next + place) % len(self._handles) for place in range(count)]
        self._next = (self._next + count) % len(self._handles)
        with self._lock:
            address = self._mapper.reserve_addresses(count * size)
        slab = _Slab(address, needed, [None] * count, list(chunks))
        try:
            for place, chunk in enumerate(chunks):
                self._map(slab, place, chunk)
            tensor = self._mapper.tensor(address, needed, self)
        except BaseException:
            _unmap(self._mapper, slab, size, self._lock)
            raise
        self._slabs[model] = slab
        return tensor

    def remove_slab(self, model: str) -> None:
        assert not any(allocation.model == model for allocation in self._allocations)
        _unmap(self._mapper, self._slabs.pop(model), self._chunk_bytes, self._lock)

    def allocation_bytes(self, model: str) -> int:
        return len(self._slabs[model].planned) * self._chunk_bytes

    def free_bytes(self) -> int:
        return len(self._free) * self._chunk_bytes

    def allocate_weights(self, model: str) -> WeightAllocation:
        planned = self._slabs[model].planned
        assert len(self._free) >= len(planned)
        chunks: list[int | None] = []
        for chunk in planned:  # prefer the chunks of its previous allocation
            own = chunk in self._free
            if own:
                del self._free[chunk]
            chunks.append(chunk if own else None)
        rest = iter([*self._free][: chunks.count(None)])
        found = tuple(next(rest) if chunk is None else chunk for chunk in chunks)
        for chunk in found:
            self._free.pop(chunk, None)
        planned[:] = found
        allocation = WeightAllocation(model, found)
        self._allocations.append(allocation)
        return allocation

    def free_weights(self, allocation: WeightAllocation) -> None:
        self._allocations.remove(allocation)
        self._free.update(dict.fromkeys(allocation.chunks))

    def prepare(self, allocation: WeightAllocation) -> None:
        slab = self._slabs[allocation.model]
        for place, chunk in enumerate(allocation.chunks):
            if slab.mapped[place] != chunk:
                self._map(slab, place, chunk)

    def _map(self, slab: _Slab, place: int, chunk: int) -> None:
        """Map a chunk at a position, unmapping the chunk that is there."""
        size = self._chunk_bytes
        address = slab.address + place * size
        with self._lock:  # per position: a capture must not wait for all
            if slab.mapped[place] is not None:
                self._mapper.unmap(address, size)
                slab.mapped[place] = None  # in case the next call fails
            self._mapper.map(address, size, self._handles[chunk])
            slab.mapped[place] = chunk

    def check_integrity(self) -> None:
        """Raises AssertionError unless every chunk is free or in one allocation, and each model's plan is its newest
        allocation."""
        found = [*self._free, *(chunk for allocation in self._allocations for chunk in allocation.chunks)]
        assert sorted(found) == list(range(len(self._handles))), "a chunk is in two allocations, or in none"
        newest = {allocation.model: allocation for allocation in self._allocations}
        for model, allocation in newest.items():
            assert self._slabs[model].planned == list(allocation.chunks), f"{model}: planned other chunks"
        for slab in self._slabs.values():
            assert len(slab.mapped) == len(slab.planned) == -(-slab.needed // self._chunk_bytes)

    def check_mapped(self, allocation: WeightAllocation) -> None:
        """Raises AssertionError if the mapped chunks differ from the chunks of a prepared allocation."""
        assert self._slabs[allocation.model].mapped == list(allocation.chunks), (
            f"{allocation.model}: mapped other chunks"
        )


def chunk_size(budget: int, granularity: int) -> int:
    """Bytes of a chunk: CHUNK_BYTES, or a CHUNKS_MIN-th of a small budget, as a multiple of `granularity`."""
    wanted = min(CHUNK_BYTES, budget // CHUNKS_MIN)
    return max(granularity, wanted // granularity * granularity)


def _unmap(mapper: Mapper, slab: _Slab, chunk_bytes: int, lock: threading.Lock | None = None) -> None:
    lock = lock or threading.Lock()
    for place, chunk in enumerate(slab.mapped):
        if chunk is not None:
            with lock:
                mapper.unmap(slab.address + place * chunk_bytes, chunk_bytes)
    with lock:
        mapper.free_addresses(slab.address, len(slab.planned) * chunk_bytes)


def _release(mapper: Mapper, handles: list[int], slabs: dict[str, _Slab], chunk_bytes: int) -> None:
    """Finalizer, once no tensor uses the memory."""
    for slab in slabs.values():
        _unmap(mapper, slab, chunk_bytes)
    for handle in handles:
        mapper.release_chunk(handle)
