"""The fake runner's weights: loads from host memory or disk that take configured times, one model after another.

Nothing is copied. No torch, and no clock but the caller's.
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from engine.protocol.config import FakeConfig
from engine.step import WeightsMove, WeightsTable


@dataclass(slots=True, frozen=True)
class _FakeLoad:
    source: Literal["host", "disk"]
    began: float
    due: float


class FakeWeights(WeightsTable):
    """A load from disk passes through host memory and leaves a copy there, evicting the least recently used."""

    def __init__(
        self, config: FakeConfig, clock: Callable[[], float], bytes_max: int | None = None, host_bytes: int = 0
    ) -> None:
        self.bytes_max = bytes_max
        self._each = config.weights_bytes
        self._host_max = host_bytes // self._each
        self._host_s, self._disk_s = config.weights_host_ms / 1000, config.weights_disk_ms / 1000
        self._fails = config.faults.weights_error_model
        self._clock = clock
        self._known: set[str] = set()
        self._device: set[str] = set()
        self._host: OrderedDict[str, None] = OrderedDict()  # least recently used first
        self._coming: dict[str, _FakeLoad] = {}
        self._fetching: dict[str, float] = {}  # from disk to host memory: when the read ends
        self._idle_at = -math.inf  # when all queued loads end

    # ---- for the runner

    def know(self, model: str) -> None:
        self._known.add(model)

    def forget_weights(self, model: str) -> None:
        self.evict_weights(model)
        self._known.discard(model)
        self._host.pop(model, None)
        self._fetching.pop(model, None)

    def put(self, model: str) -> None:
        """Make it resident at once, before requests are served."""
        if not self._made_to_fail(model):
            self._device.add(model)

    # ---- the table

    def weights_bytes(self, model: str) -> int:
        return self._each

    def free_bytes(self) -> int:
        if self.bytes_max is None:
            return sys.maxsize
        return self.bytes_max - self._each * (len(self._device) + len(self._coming))

    def weights_location(self, model: str) -> Literal["device", "host", "disk"]:
        if model in self._device:
            return "device"
        return "host" if model in self._host else "disk"

    def load_seconds(self, model: str) -> float:
        if model in self._device:
            return 0.0
        now = self._clock()
        if model in self._coming:
            return max(0.0, self._coming[model].due - now)
        begins = max(self._idle_at, now) - now
        if model in self._host or model in self._fetching:
            return begins + self._host_s
        return begins + self._disk_s + self._host_s

    def prefetch_weights(self, model: str) -> None:
        self._take_in()
        if model in self._host or model in self._fetching or model in self._coming or not self._has_host_room():
            return
        self._idle_at = self._fetching[model] = max(self._idle_at, self._clock()) + self._disk_s

    def begin_load(self, model: str) -> None:
        assert model in self._known, f"{model} is not known"
        assert model not in self._device, f"{model} is on the device"
        assert model not in self._coming, f"{model} is on its way"
        assert self.free_bytes() >= self._each, "there is no room"
        self._take_in()
        now = self._clock()
        source: Literal["host", "disk"] = "host" if model in self._host or model in self._fetching else "disk"
        takes = self._host_s if source == "host" else self._disk_s + self._host_s
        self._idle_at = max(self._idle_at, now) + takes
        self._coming[model] = _FakeLoad(source, now, self._idle_at)

    def evict_weights(self, model: str) -> None:
        self._device.discard(model)
        self._coming.pop(model, None)

    def poll_weights(self) -> Iterable[WeightsMove]:
        self._take_in()
        now, moved = self._clock(), []
        for model, coming in list(self._coming.items()):
            if coming.due > now:
                continue
            del self._coming[model]
            error = "its weights were made to fail" if self._made_to_fail(model) else ""
            if not error:
                self._device.add(model)
                self._keep_in_host(model)
            moved.append(WeightsMove(model, coming.source, coming.due - coming.began, error))
        return moved

    @property
    def is_reclaiming(self) -> bool:
        return False

    # ---- host memory

    def _take_in(self) -> None:
        now = self._clock()
        for model, due in list(self._fetching.items()):
            if due <= now:
                del self._fetching[model]
                self._keep_in_host(model)

    def _has_host_room(self) -> bool:
        """Whether host memory can hold one more model, evicting models that are not loading."""
        kept = sum(1 for model in self._host if model in self._coming)
        return kept + len(self._fetching) < self._host_max

    def _keep_in_host(self, model: str) -> None:
        self._host[model] = None
        self._host.move_to_end(model)
        while len(self._host) > self._host_max:
            del self._host[next((one for one in self._host if one not in self._coming), model)]

    def _made_to_fail(self, model: str) -> bool:
        return self._fails is not None and model.startswith(self._fails)

    def check_integrity(self) -> None:
        """Raises AssertionError with the fault."""
        assert self._device | self._coming.keys() | self._host.keys() | self._fetching.keys() <= self._known
        assert not self._device & self._coming.keys()
        assert self.free_bytes() >= 0, "more weights are on the device than it has room for"
