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
# Of a budget that is this small, a chunk is a smaller part.
CHUNKS_MIN = 64


@dataclass(frozen=True, slots=True, eq=False)
class WeightAllocation:
    """Bytes that a model has from `take` to `give`."""

    model: str
    chunks: tuple[int, ...] = ()


class WeightSpace(Protocol):
    """`take` and `give` are the loop's; `add`, `remove` and `prepare` run on threads of their own beside them."""

    bytes_max: int | None

    def add_slab(self, model: str, needed: int) -> Tensor:
        """Register a model. Returns its slab, uint8 [needed], whose bytes are undefined until an allocation of the
        model is prepared and filled. Raises MemoryError."""
        ...

    def remove_slab(self, model: str) -> None:
        """It has no lease, and no step reads its slab."""
        ...

    def allocation_bytes(self, model: str) -> int:
        """Bytes that it has of the device with a lease."""
        ...

    def free_bytes(self) -> int: ...

    def allocate_weights(self, model: str) -> WeightAllocation:
        """`free` is at least its `size`."""
        ...

    def free_weights(self, lease: WeightAllocation) -> None:
        """Nothing reads or writes those bytes any more."""
        ...

    def prepare(self, lease: WeightAllocation) -> None:
        """Its bytes are behind its slab from now on. Nothing reads the slab meanwhile."""
        ...

    def check_integrity(self) -> None:
        """AssertionError says what is wrong."""
        ...


class UnboundedSpace:
    """No budget: every known model has its bytes."""

    bytes_max: int | None = None

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sizes: dict[str, int] = {}

    def add_slab(self, model: str, needed: int) -> Tensor:
        try:
            slab = torch.empty(needed, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError as error:
            raise MemoryError(f"its weights take {needed} bytes of the device, which has no such room") from error
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

    def free_weights(self, lease: WeightAllocation) -> None:
        pass

    def prepare(self, lease: WeightAllocation) -> None:
        pass

    def check_integrity(self) -> None:
        pass


class Mapper(Protocol):
    """What engine.gpu.driver.DriverMemory does."""

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
    mapped: list[int | None]  # by place: the chunk behind it; None: mapping one failed
    planned: list[int]  # likewise, once the leases given until now are prepared


class ChunkedSpace:
    """A budget of physical chunks of one size, all taken at the start: models of any size share them without gaps.

    Every address of every known model has a chunk mapped at any time. A chunk may be mapped into several models' slabs
    and belongs to the model that has it allocated. A model that gets the same chunks again therefore needs no mapping,
    and two models that alternate on the same chunks are mapped once each. (After a failed mapping there is a gap until
    an allocation of the model is prepared; nothing reads the slab before.)"""

    def __init__(self, mapper: Mapper, budget: int, chunk_bytes: int, lock: threading.Lock) -> None:
        """`lock` is held while anything is mapped. Raises what the mapper raises where the device has no such room."""
        count = budget // chunk_bytes
        assert count > 0
        self.bytes_max: int | None = count * chunk_bytes
        self._chunk_bytes = chunk_bytes
        self._mapper = mapper
        self._lock = lock
        self._handles: list[int] = []
        self._slabs: dict[str, _Slab] = {}
        self._free: dict[int, None] = dict.fromkeys(range(count))  # in the order in which they were given back
        self._leases: list[WeightAllocation] = []
        self._next = 0  # where the next model's chunks begin, if it may choose
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
        assert not any(lease.model == model for lease in self._leases)
        _unmap(self._mapper, self._slabs.pop(model), self._chunk_bytes, self._lock)

    def allocation_bytes(self, model: str) -> int:
        return len(self._slabs[model].planned) * self._chunk_bytes

    def free_bytes(self) -> int:
        return len(self._free) * self._chunk_bytes

    def allocate_weights(self, model: str) -> WeightAllocation:
        planned = self._slabs[model].planned
        assert len(self._free) >= len(planned)
        chunks: list[int | None] = []
        for chunk in planned:  # the chunks that it had, where they are free
            own = chunk in self._free
            if own:
                del self._free[chunk]
            chunks.append(chunk if own else None)
        rest = iter([*self._free][: chunks.count(None)])
        found = tuple(next(rest) if chunk is None else chunk for chunk in chunks)
        for chunk in found:
            self._free.pop(chunk, None)
        planned[:] = found
        lease = WeightAllocation(model, found)
        self._leases.append(lease)
        return lease

    def free_weights(self, lease: WeightAllocation) -> None:
        self._leases.remove(lease)
        self._free.update(dict.fromkeys(lease.chunks))

    def prepare(self, lease: WeightAllocation) -> None:
        slab = self._slabs[lease.model]
        for place, chunk in enumerate(lease.chunks):
            if slab.mapped[place] != chunk:
                self._map(slab, place, chunk)

    def _map(self, slab: _Slab, place: int, chunk: int) -> None:
        """In place of what is there, if anything is."""
        size = self._chunk_bytes
        address = slab.address + place * size
        with self._lock:  # not for all places at once: a capture would wait
            if slab.mapped[place] is not None:
                self._mapper.unmap(address, size)
                slab.mapped[place] = None  # should the next call fail
            self._mapper.map(address, size, self._handles[chunk])
            slab.mapped[place] = chunk

    def check_integrity(self) -> None:
        """Every chunk is free or in one lease, and what is planned is what the newest lease of a model says."""
        found = [*self._free, *(chunk for lease in self._leases for chunk in lease.chunks)]
        assert sorted(found) == list(range(len(self._handles))), "a chunk is in two leases, or in none"
        newest = {lease.model: lease for lease in self._leases}
        for model, lease in newest.items():
            assert self._slabs[model].planned == list(lease.chunks), f"{model}: planned otherwise than leased"
        for slab in self._slabs.values():
            assert len(slab.mapped) == len(slab.planned) == -(-slab.needed // self._chunk_bytes)

    def check_mapped(self, lease: WeightAllocation) -> None:
        """AssertionError when a prepared lease has another's bytes behind it."""
        assert self._slabs[lease.model].mapped == list(lease.chunks), f"{lease.model}: mapped otherwise than leased"


def chunk_size(budget: int, granularity: int) -> int:
    """Of a chunk: CHUNK_BYTES, or of a small budget a part. Never more than `budget`, if that has one grain."""
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
    """Once no tensor lies there any more."""
    for slab in slabs.values():
        _unmap(mapper, slab, chunk_bytes)
    for handle in handles:
        mapper.release_chunk(handle)
