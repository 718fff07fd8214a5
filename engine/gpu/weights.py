"""Where each model's weights are, and the loads in flight: the WeightsTable of a GPU.

It connects the engine's loop with the thread that copies. It never blocks, and the scheduler decides which weights are
loaded.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from adapters.device.staging import Mark
from engine.gpu.memory import WeightAllocation, WeightSpace
from engine.gpu.weights_host import HostSlab, HostSlabs
from engine.gpu.weights_loader import PASSING, Copies, SlabLoad, SlabLoader
from engine.models.slab_source import SlabSource
from engine.step import WeightsMove

# Bytes per second, assumed until a load was measured.
HOST_RATE, DISK_RATE = 20e9, 1.5e9
# Seconds for which weights that were read into host memory for a waiting request are not evicted from there for another
# waiting request.
AWAITED_S = 20.0
# Files that could not be read ahead are not tried again at once.
RETRY_S = 10.0
# Smaller loads do not predict the rate of others.
RATED_BYTES_MIN = 64 << 20
LOOK_S = 0.002


@dataclass(slots=True, eq=False)
class _KnownModel:
    """`key`: unique; a later model of the same name has another."""

    name: str
    key: str
    source: SlabSource
    slab: Tensor
    allocation: WeightAllocation | None = None  # while it is resident or loading
    loading: SlabLoad | None = None
    gathering: SlabLoad | None = None
    awaited: float = 0.0  # time until which its slab is not evicted from host memory
    unread: float = 0.0  # time until which a failed read of its files is not repeated
    forgotten: bool = False
    leaving: list[tuple[WeightAllocation, Mark]] = field(default_factory=list)
    stopping: list[tuple[WeightAllocation, SlabLoad]] = field(default_factory=list)

    def uses_host(self) -> bool:
        return self.loading is not None or self.gathering is not None or bool(self.stopping)


class GpuWeights:
    """Implements engine.step.WeightsTable. One thread uses it; `register_model`, and `forget_weights` of a model that
    was registered but never served, may run on another."""

    def __init__(
        self, room: WeightSpace, copies: Copies, host: list[Tensor], passing: list[Tensor], piece_bytes: int
    ) -> None:
        """`host` and `passing`: page-locked pieces uint8 [piece_bytes], for slabs kept in host memory and for slabs on
        their way to the device."""
        self.bytes_max = room.bytes_max
        self.rates = {"host": HOST_RATE, "disk": DISK_RATE}
        self.host = HostSlabs(host)
        self.room = room
        self._copies = copies
        self._piece_bytes = piece_bytes
        self._loader = SlabLoader(copies, passing[:PASSING], piece_bytes)
        self._known: dict[str, _KnownModel] = {}
        self._busy: dict[str, _KnownModel] = {}  # by key: models with work in flight, forgotten ones too
        self._numbers = itertools.count()

    # ---- registration

    def register_model(self, model: str, source: SlabSource) -> Tensor:
        """Register a model. Returns its slab on the device, with undefined contents. Raises MemoryError."""
        key = f"{model}/{next(self._numbers)}"
        slab = self.room.add_slab(key, source.layout.bytes)
        self._known[model] = _KnownModel(model, key, source, slab)
        return slab

    def forget_weights(self, model: str) -> None:
        """Forget an evicted model. Its work in flight ends by itself."""
        known = self._known.pop(model)
        assert known.allocation is None
        known.forgotten = True
        if known.gathering is not None:
            known.gathering.stopped = True
        # A model without a load or copy in flight is not busy and may be removed on another thread.
        self._tidy(known)

    def load_models(self, models: list[str]) -> dict[str, str]:
        """Load as many of these models as fit, in this order, and wait for them. Returns errors by model. For the
        start."""
        for model in models:
            if self.weights_bytes(model) <= self.free_bytes():
                self.begin_load(model)
        errors: dict[str, str] = {}
        while any(self._known[model].loading is not None for model in models):
            errors.update((move.model, move.error) for move in self.poll_weights() if move.error)
            time.sleep(LOOK_S)
        return errors

    # ---- the table

    def weights_bytes(self, model: str) -> int:
        return self.room.allocation_bytes(self._known[model].key)

    def free_bytes(self) -> int:
        return self.room.free_bytes()

    def weights_location(self, model: str) -> Literal["device", "host", "disk"]:
        known = self._known[model]
        if known.allocation is not None and known.loading is None:
            return "device"
        slab = self.host.get(known.key)
        return "host" if slab is not None and slab.is_filled else "disk"

    def load_seconds(self, model: str) -> float:
        known = self._known[model]
        if known.allocation is not None and known.loading is None:
            return 0.0
        before = 0.0  # seconds of earlier loads of the thread
        for other in self._busy.values():
            if other is not known and other.loading is not None and _earlier(other.loading, known.loading):
                before += self._remaining_s(other)
        return before + self._remaining_s(known)

    def prefetch_weights(self, model: str) -> None:
        known = self._known[model]
        now = time.monotonic()
        known.awaited = now + AWAITED_S
        self.host.touch(known.key)
        if known.allocation is not None or known.gathering is not None or now < known.unread:
            return
        slab = self.host.get(known.key) or self._host_slab(known)
        if slab is not None and not slab.is_filled:
            known.gathering = SlabLoad(model, known.source, slab, None)
            self._busy[known.key] = known
            self._loader.put(known.gathering)

    def begin_load(self, model: str) -> None:
        known = self._known[model]
        assert known.allocation is None
        slab = self.host.get(known.key) or self._host_slab(known)
        self.host.touch(known.key)
        known.awaited = 0.0
        allocation = known.allocation = self.room.allocate_weights(known.key)
        known.loading = SlabLoad(
            model,
            known.source,
            slab,
            known.slab,
            prepare=lambda: self.room.prepare(allocation),
            # Steps from before its eviction may still read the memory.
            after=known.leaving[-1][1] if known.leaving else None,
            from_host=slab is not None and slab.is_filled,
        )
        self._busy[known.key] = known
        self._loader.put(known.loading)

    def evict_weights(self, model: str) -> None:
        known = self._known[model]
        if known.allocation is None:
            return
        if known.loading is not None:
            known.loading.stopped = True
            known.stopping.append((known.allocation, known.loading))
        else:
            known.leaving.append((known.allocation, self._copies.mark()))
        known.allocation = known.loading = None
        self.host.touch(known.key)
        self._busy[known.key] = known

    def poll_weights(self) -> Iterable[WeightsMove]:
        if not self._busy:
            return ()
        found = []
        while not self._loader.ended.empty():
            move = self._take_in(self._loader.ended.get())
            if move is not None:
                found.append(move)
        for known in list(self._busy.values()):
            self._tidy(known)
        return found

    @property
    def is_reclaiming(self) -> bool:
        return any(known.leaving or known.stopping or known.forgotten for known in self._busy.values())

    def check_integrity(self) -> None:
        """Raises AssertionError with the fault. For idle moments and tests."""
        self.room.check_integrity()
        self.host.check_integrity()
        for known in self._known.values():
            assert known.loading is None or known.allocation is not None
            assert known.key in self._busy or not (known.loading or known.gathering or known.leaving or known.stopping)

    # ---- private

    def _host_slab(self, known: _KnownModel) -> HostSlab | None:
        """A slab in host memory for the model, evicting slabs that no load needs."""
        now = time.monotonic()
        needed = {other.key for other in self._busy.values() if other.uses_host()}
        needed |= {other.key for other in list(self._known.values()) if other.awaited > now}
        return self.host.allocate_slab(
            known.key, -(-known.source.layout.bytes // self._piece_bytes), lambda other: other not in needed
        )

    def _take_in(self, load: SlabLoad) -> WeightsMove | None:
        """Handle the end of a load. Returns the move to report to the scheduler, if any."""
        known = next(own for own in self._busy.values() if load in (own.loading, own.gathering, *_loads(own)))
        if load is known.gathering:
            known.gathering = None
            if load.error:  # a load to the device will report the reason
                known.unread = time.monotonic() + RETRY_S
            return None
        if load is not known.loading:  # it was cancelled
            (allocation,) = (allocation for allocation, own in known.stopping if own is load)
            known.stopping.remove((allocation, load))
            self.room.free_weights(allocation)
            return None
        known.loading = None
        if load.error:
            assert known.allocation is not None
            self.room.free_weights(known.allocation)
            known.allocation = None
        else:
            self._rate(load)
        source = "host" if load.from_host else "disk"
        return WeightsMove(known.name, source, time.monotonic() - load.asked, load.error)

    def _tidy(self, known: _KnownModel) -> None:
        """Free the allocations whose last reading step has completed."""
        for allocation, mark in list(known.leaving):
            if mark.query():
                known.leaving.remove((allocation, mark))
                self.room.free_weights(allocation)
        slab = self.host.get(known.key)
        if slab is not None and not known.uses_host() and (known.forgotten or not slab.is_filled):
            self.host.free_slab(known.key)
        if known.loading or known.gathering or known.leaving or known.stopping:
            return
        self._busy.pop(known.key, None)
        if known.forgotten:
            # On a thread, because remove_slab makes hundreds of driver calls.
            threading.Thread(
                target=self.room.remove_slab, args=(known.key,), name="weights-remove", daemon=True
            ).start()

    def _rate(self, load: SlabLoad) -> None:
        size = load.source.layout.bytes
        if size >= RATED_BYTES_MIN and load.seconds > 0:
            self.rates["host" if load.from_host else "disk"] = size / load.seconds

    def _remaining_s(self, known: _KnownModel) -> float:
        """Seconds of the thread's remaining work for the model."""
        slab, size = self.host.get(known.key), known.source.layout.bytes
        done = 0 if known.loading is None else known.loading.pieces * self._piece_bytes
        unread = size - done if slab is None else slab.filled.count(False) * self._piece_bytes
        return max(0.0, (size - done) / self.rates["host"], min(unread, size) / self.rates["disk"])


def _loads(known: _KnownModel) -> list[SlabLoad]:
    return [load for _, load in known.stopping]


def _earlier(one: SlabLoad, other: SlabLoad | None) -> bool:
    return other is None or one.asked < other.asked
