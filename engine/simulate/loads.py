"""Adapters and weights that take their time: they are loaded while steps go on, adapters a few at once.

It must never look at a real clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered
from typing import Literal

from engine.fake.runner import FakeAdapters
from engine.step import AdapterMove, WeightsMove, WeightsTable

# As many as the engine reads at once: adapters.device.host_weights.READS_MAX, which this must not load.
LOADS_MAX = 4


class SimulatedAdapters(FakeAdapters):
    """`load_s`: from when one is wanted until it may join, wherever it was. There is no host memory here: what leaves
    the arena is loaded again."""

    def __init__(self, pages_each: int, load_s: float, now: Callable[[], float]) -> None:
        super().__init__(pages_each)
        self._load_s = load_s
        self._now = now
        self._ready_at: dict[str, float] = {}  # of adapters that load, and of loaded ones that no request has used yet

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
        """When the next load ends; None: none is in flight."""
        return min((at for at in self._ready_at.values() if at > self._now()), default=None)


class SimulatedWeights(WeightsTable):
    """Models of equal size, of which `resident` fit on the device: the first of them are there. All others are in host
    memory, `load_s` away."""

    def __init__(
        self,
        models: Ordered[str],
        bytes_each: int,
        resident: int,
        load_s: float,
        now: Callable[[], float],
        idle_at: Callable[[], float],
    ) -> None:
        """`idle_at()`: when the device is done with all steps that were begun."""
        self.bytes_max = resident * bytes_each
        self._bytes = bytes_each
        self._load_s = load_s
        self._now = now
        self._idle_at = idle_at
        self._there = set(models[:resident])
        self._comes_at: dict[str, float] = {}
        self._read_until: list[float] = []  # of evicted models: until when steps read them

    def weights_bytes(self, model: str) -> int:
        return self._bytes

    def free_bytes(self) -> int:
        self._read_until = [until for until in self._read_until if until > self._now()]
        return self.bytes_max - self._bytes * (len(self._there) + len(self._comes_at) + len(self._read_until))

    def weights_location(self, model: str) -> Literal["device", "host", "disk"]:
        return "device" if model in self._there else "host"

    def load_seconds(self, model: str) -> float:
        if model in self._there:
            return 0.0
        return max(0.0, self._comes_at[model] - self._now()) if model in self._comes_at else self._load_s

    def prefetch_weights(self, model: str) -> None:
        pass

    def begin_load(self, model: str) -> None:
        assert self.free_bytes() >= self._bytes, f"no room for {model}"
        self._comes_at[model] = self._now() + self._load_s

    def evict_weights(self, model: str) -> None:
        self._comes_at.pop(model, None)
        if model in self._there:
            self._there.remove(model)
            self._read_until.append(self._idle_at())

    def poll_weights(self) -> Iterable[WeightsMove]:
        came = [model for model, at in self._comes_at.items() if at <= self._now()]
        for model in came:
            del self._comes_at[model]
            self._there.add(model)
        return [WeightsMove(model, "host", self._load_s) for model in came]

    @property
    def is_reclaiming(self) -> bool:
        return any(until > self._now() for until in self._read_until)

    def next_at(self) -> float | None:
        """When the next one will have come, or bytes be free; None: nothing is under way."""
        return min((at for at in (*self._comes_at.values(), *self._read_until) if at > self._now()), default=None)
