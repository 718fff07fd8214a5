"""Decides which models' weights are on the device: which weights are loaded, and which are evicted for them. A
WeightsTable moves the bytes. weight_wait.py predicts the wait for an absent model.

Each model is in one of four states:

    state     weights                          next state
    absent    in host memory or on disk        loading: its load begins
    loading   being copied to the device       resident: the load completed; absent: it failed or was cancelled
    resident  on the device, requests join     absent: evicted without requests; leaving: chosen to be evicted
    leaving   on the device, no request joins  absent: nothing runs on it; resident: the eviction was cancelled

This module knows the number of requests by model and tier, not the requests. Decision 0014 gives the reasons.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ordered
from itertools import islice

from engine.memory.eviction import Eviction, EvictionValue, ModelWeights, WeightDemand, by_use
from engine.step import WeightsTable

# A model with requests is resident for RESIDENCE_LOADS_MIN × its load time before another model of its tier may
# evict it.
RESIDENCE_LOADS_MIN = 4.0
# A leaving model has this part of its residence to end its running requests; then they are preempted.
DRAIN_PART = 0.5
NO_MODELS: frozenset[str] = frozenset()
# Highest number of times that the load of a waiting model is cancelled for higher tiers.
CANCELLED_LOADS_MAX = 2
# Loads that are remembered until `take_loads`.
LOADS_MAX = 10_000

# Evacuate(model, rank) prepares the eviction of the model's weights and returns whether the model runs no request.
# With a rank it preempts all running requests of the model, for a request of the tier of that rank. If one of them must
# finish, it preempts none, since the weights remain until that request has ended. With None it preempts nothing and
# only answers.
Evacuate = Callable[[str, int | None], bool]


class WeightResidency:
    """The device's bytes for weights, by these rules. A model's residence is max(`residence_s`, RESIDENCE_LOADS_MIN ·
    `load_s`) seconds.

    - Load: the model with the highest waiting tier, then the model that has waited longest; one load at a time. A model
      that cannot fit, because pinned or higher-tier models hold the device, does not block the others.
    - Evict: never a pinned model, nor a model with requests of a tier above the demand's. Models without requests are
      evicted first, in the order of `eviction_value`; then models with requests of lower tiers only, whose requests are
      preempted at once. A model with requests of the demand's tier remains for its residence, and is then evicted: no
      request joins, and running requests have DRAIN_PART of the residence to end before they are preempted. Requests
      that cannot be preempted run to their end.
    - Cancel: a load for a lower tier, if its bytes are needed or more than half of it is still to be copied. After
      CANCELLED_LOADS_MAX cancelled loads a model is loaded, and remains for at least as long as the load took.
    - Nothing is evicted unless the evicted models together free enough bytes.

    Bound: among n models of one tier that compete for the bytes of one, each is resident within n · (1 + DRAIN_PART)
    residences and n loads. The longest run replaces DRAIN_PART of the residence where requests cannot be preempted.
    There is no bound behind higher tiers.
    """

    def __init__(
        self,
        table: WeightsTable | None,
        tiers: int,
        live: Mapping[str, Ordered[int]],
        clock: Callable[[], float],
        evacuate: Evacuate,
        *,
        residence_s: float,
        eviction_value: EvictionValue = by_use,
    ) -> None:
        """`live`: requests by model and tier; the caller updates it in place. `table` None: all weights remain on the
        device. `evacuate(model, rank)`: see Evacuate."""
        self.models: dict[str, ModelWeights] = {}
        self.hits = Counter(device=0, host=0, disk=0)  # requests by the location of their model on arrival
        self.failures = 0  # loads that failed
        self.evictions: Counter[str] = Counter()  # by model, removed models included
        self.table = table
        self.tiers = tiers
        self.live = live
        self.clock = clock
        self._evacuate = evacuate
        self._residence_s = residence_s
        self._eviction_value = eviction_value
        self._off_device: dict[str, None] = {}  # absent and loading models, in the order of `models`
        self._eviction: Eviction | None = None
        self._loads: list[tuple[str, str, float]] = []  # model, source, seconds
        self._added = 0
        self._load_byte_s = 0.0  # seconds per byte of the last load; 0: unknown

    @property
    def bytes_max(self) -> int | None:
        """Device bytes for all weights; None: no limit."""
        return self.table.bytes_max if self.table else None

    # ---- models

    def add_weights(self, model: str) -> None:
        """The model becomes known: resident if the table has its weights on the device, otherwise absent."""
        self._added += 1
        on_device = self.table is None or self.table.weights_location(model) == "device"
        now = self.clock()
        bytes_ = self.table.weights_bytes(model) if self.table else 0
        self.models[model] = ModelWeights(model, self._added, bytes_, False, on_device, resident_since=now, used_at=now)
        if not on_device:
            self._off_device[model] = None

    def pin_weights(self, model: str, pinned: bool) -> str:
        """A pinned model is loaded without a request, and never evicted. Returns why it cannot be pinned, or ""."""
        weights = self.models[model]
        bytes_max = self.table.bytes_max if self.table else None
        if pinned and not weights.pinned and bytes_max is not None:
            left = bytes_max - self._pinned_bytes() - weights.bytes
            if left < 0:
                return f"pinned models would take {bytes_max - left} bytes of the device; the limit is {bytes_max}"
            for name, other in self.models.items():
                if name != model and not other.pinned and left < other.bytes <= bytes_max - self._pinned_bytes():
                    return f"pinned models would leave {left} bytes of the device; model {name!r} needs {other.bytes}"
        weights.pinned, weights.load_failed = pinned, False
        return ""

    def forget_weights(self, model: str) -> None:
        """Evict or stop loading the weights of a model without requests and steps, and forget the model."""
        weights = self.models[model]
        if self.table and (weights.on_device or weights.loading):
            self.table.evict_weights(model)
        del self.models[model]
        self._off_device.pop(model, None)
        if self._eviction and model in (self._eviction.model, *self._eviction.victims):
            self._cancel_eviction()

    def why_impossible(self, model: str) -> str:
        """Why the weights can never be loaded, or ""."""
        if self.table is None or self.table.bytes_max is None:
            return ""
        weights = self.models[model]
        left = self.table.bytes_max - self._pinned_bytes() + (weights.bytes if weights.pinned else 0)
        if weights.on_device or weights.bytes <= left:
            return ""
        return f"its weights take {weights.bytes} bytes of the device; {left} are available"

    # ---- requests

    def note_request(self, model: str, rank: int) -> None:
        """A request of tier `rank` was queued, and is counted in `live`."""
        weights, now = self.models[model], self.clock()
        weights.note_use(now)
        if self.live[model][rank] == 1:
            weights.busy_since[rank] = now
        weights.load_failed = False
        location = "device" if weights.on_device and not weights.leaving else self._off_device_location(model)
        self.hits[location] += 1

    def note_step(self, model: str) -> None:
        """A step of the model begins."""
        self.models[model].used_at = self.clock()

    def is_resident(self, model: str) -> bool:
        """The weights are on the device, so that steps of the model can run: resident or leaving."""
        return self.models[model].on_device

    def loading_models(self) -> list[ModelWeights]:
        return [weights for weights in map(self.models.__getitem__, self._off_device) if weights.loading]

    def can_join(self, model: str) -> bool:
        """Waiting requests of the model may join the batch: resident, and not leaving."""
        weights = self.models[model]
        return weights.on_device and not weights.leaving

    @property
    def has_blocked_requests(self) -> bool:
        """Requests wait for weights that are not on the device."""
        return any(any(self.live[model]) for model in self._off_device)

    @property
    def has_background_loads(self) -> bool:
        """A load without a request is under way or due, or bytes of evicted weights are not free yet: `poll_loads` and
        `schedule_loads` must be called although no request waits."""
        if self.table is not None and self.table.is_reclaiming:
            return True
        return any(
            weights.loading or self._is_due_without_request(weights)
            for weights in map(self.models.__getitem__, self._off_device)
        )

    # ---- before each step

    def poll_loads(self) -> dict[str, str]:
        """Make the models resident whose loads completed. Returns model → reason for the loads that failed."""
        failed = {}
        for move in self.table.poll_weights() if self.table else ():
            weights = self.models.get(move.model)
            if weights is None:
                continue
            weights.loading = False
            if move.error:
                self.failures += 1
                weights.load_failed = True
                failed[move.model] = move.error
                continue
            self._off_device.pop(move.model, None)
            weights.on_device, weights.leaving = True, False
            weights.resident_since = weights.used_at = self.clock()
            weights.loads += 1
            self._load_byte_s = move.seconds / max(1, weights.bytes)
            if move.source == "host" or not weights.load_s:
                weights.load_s = move.seconds
            if len(self._loads) < LOADS_MAX:
                self._loads.append((move.model, move.source, move.seconds))
        return failed

    def schedule_loads(self) -> frozenset[str]:
        """Begin the load that is due, and evict models for it. Returns the models that no request can join: absent,
        loading and leaving ones."""
        if not self._off_device or self.table is None:
            return NO_MODELS
        demands = self.demands()
        if demands:
            self._serve_demands(demands, self.table)
        else:
            self._cancel_eviction()
        leaving = [model for model in (self._eviction.victims if self._eviction else ()) if self.models[model].leaving]
        return frozenset((*self._off_device, *leaving))

    def _serve_demands(self, demands: list[WeightDemand], table: WeightsTable) -> None:
        """Begin the first load that can fit, and read the next two models from disk into host memory."""
        loadable = list(islice((demand for demand in demands if not self.cannot_fit(demand)), 2))
        if not loadable:
            self._cancel_eviction()
        else:
            self._serve_first_demand(loadable[0], table)
        for demand in (loadable or demands)[:2]:
            weights = self.models[demand.model]
            if not weights.loading and table.weights_location(demand.model) == "disk":
                table.prefetch_weights(demand.model)

    def cannot_fit(self, demand: WeightDemand) -> bool:
        """Pinned models, and models with requests of higher tiers, leave the model too few bytes."""
        on_device = (weights for weights in self.models.values() if weights.on_device or weights.loading)
        evictable_bytes = sum(
            weights.bytes for weights in on_device if self.evictable_in_s(weights, demand.rank) < math.inf
        )
        return self.free_bytes() + evictable_bytes < self.models[demand.model].bytes

    def _serve_first_demand(self, first: WeightDemand, table: WeightsTable) -> None:
        """Begin the load, unless another load continues."""
        loading = self.loading_models()
        for weights in loading:
            if self.may_cancel_load(weights, first):
                table.evict_weights(weights.name)
                weights.loading = False
                weights.cancelled_loads += self.best_rank(weights.name) < self.tiers or self._is_kept_resident(weights)
        if not any(weights.loading for weights in loading):
            self._begin_load(first)

    def may_cancel_load(self, loading: ModelWeights, demand: WeightDemand) -> bool:
        """Whether the load of `loading` is cancelled for a demand of a higher tier."""
        best_rank = self.best_rank(loading.name)
        if best_rank <= demand.rank:
            return False
        if best_rank == self.tiers and not self._is_kept_resident(loading):
            return True
        if loading.cancelled_loads >= CANCELLED_LOADS_MAX:
            return False
        # If both models fit, a load that is nearly done only delays the other's copy for a moment. Otherwise its model
        # would be evicted as soon as it is resident.
        resident = (weights for weights in self.models.values() if weights.on_device)
        evictable_bytes = sum(weights.bytes for weights in resident if self.evictable_in_s(weights, demand.rank) == 0)
        both_fit = self.free_bytes() + evictable_bytes >= self.models[demand.model].bytes
        assert self.table is not None
        return not both_fit or self.table.load_seconds(loading.name) > loading.load_expected_s / 2

    def demands(self) -> list[WeightDemand]:
        """Absent models to be loaded, first the most urgent. Updates since when requests of each tier wait."""
        now, demands = self.clock(), []
        for model in self._off_device:
            weights, rank = self.models[model], self.best_rank(model)
            if not any(self.live[model]):
                weights.waiting_since.clear()
            for tier, requests in enumerate(self.live[model]):
                if requests:
                    weights.waiting_since.setdefault(tier, now)
                else:
                    weights.waiting_since.pop(tier, None)
            if weights.loading or self.why_impossible(model):
                continue
            if rank < self.tiers or self._is_due_without_request(weights):
                demands.append(WeightDemand(rank, weights.waiting_since.get(rank, now), weights.number, model))
        return sorted(demands)

    def best_rank(self, model: str) -> int:
        """The highest tier with requests of the model; the number of tiers if there is none."""
        return next((rank for rank, count in enumerate(self.live[model]) if count), self.tiers)

    def _is_due_without_request(self, weights: ModelWeights) -> bool:
        """The model is absent, and to be loaded although no request waits for it."""
        return (
            self._is_kept_resident(weights)
            and not weights.on_device
            and not weights.loading
            and not weights.load_failed
        )

    def _is_kept_resident(self, weights: ModelWeights) -> bool:
        """The model is resident with or without requests: it is pinned, or the device has no limit."""
        return weights.pinned or (self.table is not None and self.table.bytes_max is None)

    def _begin_load(self, demand: WeightDemand) -> None:
        """Begin the load if its bytes are free; otherwise evict models for it."""
        assert self.table is not None
        model = self.models[demand.model]
        if self.free_bytes() < model.bytes:
            self._evict_for(demand, model.bytes - self.free_bytes())
        else:
            self._cancel_eviction()
        # A step in flight may still read evicted weights: then the load begins at a later call.
        if self.free_bytes() >= model.bytes and (
            self.table.bytes_max is None or self.table.free_bytes() >= model.bytes
        ):
            self._cancel_eviction()
            model.load_expected_s = self.table.load_seconds(demand.model)
            self.table.begin_load(demand.model)
            model.loading = True

    def free_bytes(self) -> float:
        """Bytes that no resident or loading model has. Steps in flight may still read some of them."""
        assert self.table is not None
        if self.table.bytes_max is None:
            return math.inf
        return self.table.bytes_max - sum(h.bytes for h in self.models.values() if h.on_device or h.loading)

    # ---- evictions

    def _evict_for(self, demand: WeightDemand, missing_bytes: float) -> None:
        """Choose the models to evict for a demand, unless the last choice still suffices, and evict or drain them."""
        now, eviction = self.clock(), self._eviction
        if (
            eviction is None
            or eviction.model != demand.model
            or eviction.rank != demand.rank
            or not self._is_eviction_sufficient(eviction, missing_bytes)
        ):
            victims = self._victims(demand.rank, missing_bytes)
            if eviction and (eviction.model, eviction.victims) == (demand.model, victims):
                eviction.rank = demand.rank
            else:
                self._cancel_eviction()
                eviction = Eviction(demand.model, demand.rank, victims, now)
            self._eviction = eviction if victims else None
            if not victims:
                return
        assert eviction is not None
        idle = [model for model in eviction.victims if self.best_rank(model) == self.tiers]
        # Models without requests are evicted last, when all other models have been drained.
        without_requests = [
            self._evict_or_drain(model, eviction, now) for model in eviction.victims if model not in idle
        ]  # drain all of them, before asking for the result
        if all(without_requests):
            for model in idle:
                self._evict_or_drain(model, eviction, now)

    def _evict_or_drain(self, model: str, eviction: Eviction, now: float) -> bool:
        """Evict the model, or drain it of its requests first. Whether it is off the device."""
        weights = self.models[model]
        if not weights.on_device:
            return True
        best_rank = self.best_rank(model)
        if best_rank < self.tiers:
            weights.leaving = True
            drain_is_over = best_rank > eviction.rank or now - eviction.began_at >= DRAIN_PART * self.min_residence_s(
                weights
            )
            if not self._evacuate(model, eviction.rank if drain_is_over else None):
                return False
        self._evict_weights(model)
        return True

    def _evict_weights(self, model: str) -> None:
        """A resident or leaving model becomes absent."""
        assert self.table is not None
        weights = self.models[model]
        weights.on_device = weights.leaving = False
        self.evictions[model] += 1
        weights.cancelled_loads = 0
        weights.waiting_since.clear()
        self.table.evict_weights(model)
        self._off_device[model] = None
        weights.load_s = self.table.load_seconds(model) or weights.load_s

    def _cancel_eviction(self) -> None:
        """Leaving models become resident again."""
        if self._eviction:
            for model in self._eviction.victims:
                if model in self.models:
                    self.models[model].leaving = False
        self._eviction = None

    def _is_eviction_sufficient(self, eviction: Eviction, missing_bytes: float) -> bool:
        """The chosen models may still be evicted, and together free `missing_bytes`."""
        victims = [self.models[model] for model in eviction.victims if self.models[model].on_device]
        evictable = all(self.evictable_in_s(weights, eviction.rank) == 0 for weights in victims)
        return evictable and sum(weights.bytes for weights in victims) >= missing_bytes

    def _victims(self, rank: int, missing_bytes: float) -> list[str]:
        """The models to evict for a demand of tier `rank`; empty if all evictable models together are too small."""
        now = self.clock()
        evictable = [
            weights for weights in self.models.values() if weights.on_device and self.evictable_in_s(weights, rank) == 0
        ]
        chosen: list[ModelWeights] = []
        for weights in sorted(evictable, key=lambda weights: self._eviction_order(weights, rank, now)):
            if sum(other.bytes for other in chosen) >= missing_bytes:
                break
            chosen.append(weights)
        if sum(weights.bytes for weights in chosen) < missing_bytes:
            return []
        for weights in chosen[:-1]:  # a smaller model that a larger one, chosen later, makes unnecessary
            if sum(other.bytes for other in chosen) - weights.bytes >= missing_bytes:
                chosen.remove(weights)
        return [weights.name for weights in chosen]

    def _eviction_order(self, weights: ModelWeights, rank: int, now: float) -> tuple[int, float, float]:
        """Sort key: models without requests by their value, then lower tiers from the lowest up, then the demand's tier
        by the start of the residence."""
        best_rank = self.best_rank(weights.name)
        weights.load_s = weights.load_s or self._load_byte_s * weights.bytes
        if best_rank == rank < self.tiers:
            return 0, weights.resident_since, 0.0
        return -best_rank, self._eviction_value(weights, now), weights.used_at

    def evictable_in_s(self, weights: ModelWeights, rank: int) -> float:
        """Seconds until the model may be evicted, or begin to leave, for a demand of tier `rank`; inf: pinned, or in
        use by a higher tier."""
        best_rank = self.best_rank(weights.name)
        if weights.pinned or best_rank < rank:
            return math.inf
        if best_rank == self.tiers or (best_rank > rank and weights.cancelled_loads < CANCELLED_LOADS_MAX):
            return 0.0
        residence_s = self.min_residence_s(weights) if best_rank == rank else weights.load_s
        return max(0.0, weights.resident_since + residence_s - self.clock())

    def drained_in_s(self, weights: ModelWeights) -> float | None:
        """Seconds until the running requests of a leaving model are preempted; None: the model is not leaving."""
        if not weights.leaving or not self._eviction:
            return None
        drain_s = DRAIN_PART * self.min_residence_s(weights)
        return max(0.0, self._eviction.began_at + drain_s - self.clock())

    def min_residence_s(self, weights: ModelWeights) -> float:
        return max(self._residence_s, RESIDENCE_LOADS_MIN * weights.load_s)

    def _pinned_bytes(self) -> int:
        return sum(weights.bytes for weights in self.models.values() if weights.pinned)

    # ---- counts

    def weights_location(self, model: str) -> str:
        """ "device", "host" or "disk"."""
        return "device" if self.models[model].on_device else self._off_device_location(model)

    def take_loads(self) -> list[tuple[str, str, float]]:
        """(model, source, seconds) of each load since the last call."""
        loads, self._loads = self._loads, []
        return loads

    def check_integrity(self, running: set[str]) -> None:
        """Raises AssertionError. `running`: models of running requests."""
        for name, weights in self.models.items():
            assert weights.on_device == (name not in self._off_device)
            assert not (weights.on_device and weights.loading)
            assert weights.on_device or name not in running, f"a request runs on {name}, which is not on the device"
            assert not weights.leaving or (self._eviction and name in self._eviction.victims), (
                f"{name} leaves, and no eviction has chosen it"
            )
            assert not weights.on_device or not self.table or self.table.weights_location(name) == "device", (
                f"{name} is not there"
            )

    def _off_device_location(self, model: str) -> str:
        """ "host" or "disk": where the weights are whole and nearest while they are not on the device."""
        return self.table.weights_location(model) if self.table and not self.models[model].on_device else "host"
