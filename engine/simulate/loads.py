"""Simulated loads of adapters and weights. They take time while steps run; at most LOADS_MAX adapters load at once.

This module must never read a real clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered
from typing import Literal

from engine.fake.runner import FakeAdapters
from engine.step import AdapterMove, WeightsMove, WeightsTable

# Equal to adapters.device.host_weights.READS_MAX, which this module must not import.
LOADS_MAX = 4


class SimulatedAdapters(FakeAdapters):
    """`load_s`: seconds from the request of a load until the adapter is ready. Host memory is not simulated: an evicted
    adapter is loaded again in the same time."""

    def __init__(self, pages_each: int, load_s: float, now: Callable[[], float]) -> None:
        super().__init__(pages_each)
        self._load_s = load_s
        self._now = now
        self._ready_at: dict[str, float] = {}  # of adapters that load, and of loaded adapters without a request so far

    def request_load(self, digest: str) -> bool:
        if digest in self._resident or digest in self._ready_at:
            return True
        if sum(at > self._now() for at in self._ready_at.values()) >= LOADS_MAX:
            return False
        self._ready_at[digest] = self._now() + self._load_s
        return True

    def cancel_load(self, digest: str) -> None:
        self._ready_at.pop(digest, None)

    def is_adapter_ready(self, digest: str, *, hidden: bool) -> bool:
        if digest in self._resident:
            return True
        return self.request_load(digest) and self._ready_at[digest] <= self._now()

    def poll_adapters(self) -> Iterable[AdapterMove]:
        return ()

    def next_at(self) -> float | None:
        """When the next load ends; None: no load is in flight."""
        return min((at for at in self._ready_at.values() if at > self._now()), default=None)


class SimulatedWeights(WeightsTable):
    """Models of equal size, of which `resident` fit on the device; at first the first `resident` models are on it. All
    other models are in host memory and load in `load_s` seconds."""

    def __init__(
        self,
        models: Ordered[str],
        bytes_each: int,
        resident: int,
        load_s: float,
        now: Callable[[], float],
        idle_at: Callable[[], float],
    ) -> None:
        """`idle_at()`: when the device will have completed all steps that were begun."""
        self.bytes_max = resident * bytes_each
        self._bytes = bytes_each
        self._load_s = load_s
        self._now = now
        self._idle_at = idle_at
        self._on_device = set(models[:resident])
        self._loaded_at: dict[str, float] = {}
        self._read_until: list[float] = []  # of evicted models: when the last step that reads them ends

    def weights_bytes(self, model: str) -> int:
        return self._bytes

    def free_bytes(self) -> int:
        self._read_until = [until for until in self._read_until if until > self._now()]
        return self.bytes_max - self._bytes * (len(self._on_device) + len(self._loaded_at) + len(self._read_until))

    def weights_location(self, model: str) -> Literal["device", "host", "disk"]:
        return "device" if model in self._on_device else "host"

    def load_seconds(self, model: str) -> float:
        if model in self._on_device:
            return 0.0
        return max(0.0, self._loaded_at[model] - self._now()) if model in self._loaded_at else self._load_s

    def prefetch_weights(self, model: str) -> None:
        pass

    def begin_load(self, model: str) -> None:
        assert self.free_bytes() >= self._bytes, f"the device has too few free bytes for {model}"
        self._loaded_at[model] = self._now() + self._load_s

    def evict_weights(self, model: str) -> None:
        self._loaded_at.pop(model, None)
        if model in self._on_device:
            self._on_device.remove(model)
            self._read_until.append(self._idle_at())

    def poll_weights(self) -> Iterable[WeightsMove]:
        loaded = [model for model, at in self._loaded_at.items() if at <= self._now()]
        for model in loaded:
            del self._loaded_at[model]
            self._on_device.add(model)
        return [WeightsMove(model, "host", self._load_s) for model in loaded]

    @property
    def is_reclaiming(self) -> bool:
        return any(until > self._now() for until in self._read_until)

    def next_at(self) -> float | None:
        """When the next load ends or bytes become free; None: neither is in progress."""
        return min((at for at in (*self._loaded_at.values(), *self._read_until) if at > self._now()), default=None)
