"""Which models' weights are on the device: who comes, who goes for whom, and how long a request would wait for that.

It decides over a WeightsTable, which moves the bytes. It must never know a request, only how many of which tier a model
has, nor what a step computes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ordered
from itertools import islice

from engine.memory.eviction import Eviction, EvictionValue, ModelWeights, WeightDemand, WeightWait, by_use
from engine.step import WeightsTable

# A model in use stays at least so many times as long as it takes to come, before another of its tier has a turn.
RESIDENCE_LOADS_MIN = 4.0
# One that leaves for another of its tier has this part of its stay to finish what runs; then that is preempted.
DRAIN_PART = 0.5
NO_MODELS: frozenset[str] = frozenset()
# Who waits has its model's load given up for higher tiers so many times; then it comes, and stays as long as it took.
CANCELLED_LOADS_MAX = 2
# A model that a higher tier holds is told to be held as long again as it was, up to this.
PREDICTED_RESIDENCE_S_MAX = 600.0
# Loads whose seconds are kept until somebody takes them.
LOADS_MAX = 10_000

# Preempts what runs on a model, if all of it may be, for a request of that tier, if any; whether nothing runs any more.
Evacuate = Callable[[str, int | None], bool]


class WeightResidency:
    """The device's bytes for weights, by these rules:

    - The model with the best waiting tier comes first, of equals who has waited longest; one at a time. One that those
      who never go for it leave no room for keeps nobody waiting.
    - Pinned models never go, nor those that have requests of a tier above the asking one. Idle ones go first, those
      first that `keep` values least. One with requests of lower tiers alone goes at once: they wait again. One with
      requests of the asking tier stays for its residence; then it leaves: nobody joins, who cannot be preempted runs to
      the end, the others for DRAIN_PART of that time.
    - A load for lower tiers is given up when its bytes are wanted, or more than half of it is to come. After
      CANCELLED_LOADS_MAX times it comes, and stays for as long as it took.
    - Nobody goes in vain: room is made only where it suffices.

    So of n models of a tier that want the bytes of one, each comes within n · (1 + DRAIN_PART) stays and n loads,
    with the longest run in place of that part where it cannot be preempted; behind higher tiers, when those let it.
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
        keep: EvictionValue = by_use,
    ) -> None:
        """`live`: requests by model and tier, the caller's own. No table: all are there for ever."""
        self.models: dict[str, ModelWeights] = {}
        self.hits = Counter(device=0, host=0, disk=0)  # where a request's model was when it came
        self.failures = 0  # loads that failed
        self.evictions: Counter[str] = Counter()  # by model; removed models are included
        self._table = table
        self._tiers = tiers
        self._live = live
        self._clock = clock
        self._evacuate = evacuate
        self._residence_s = residence_s
        self._keep = keep
        self._cold: dict[str, None] = {}  # those that are not on the device, in order of the models
        self._room: Eviction | None = None
        self._loads: list[tuple[str, str, float]] = []  # model, from where, and the seconds; for whoever takes them
        self._came = 0
        self._byte_s = 0.0  # what a byte of the last load took; 0: unknown

    @property
    def bytes_max(self) -> int | None:
        """Of all weights on the device; None: no limit."""
        return self._table.bytes_max if self._table else None

    # ---- models

    def add_weights(self, model: str) -> None:
        self._came += 1
        on_device = self._table is None or self._table.weights_location(model) == "device"
        now = self._clock()
        bytes_ = self._table.weights_bytes(model) if self._table else 0
        self.models[model] = ModelWeights(model, self._came, bytes_, False, on_device, came_at=now, used_at=now)
        if not on_device:
            self._cold[model] = None

    def pin_weights(self, model: str, pinned: bool) -> str:
        """Whether it comes before anybody asks, and never goes. Why that cannot be, or ""."""
        hosted = self.models[model]
        bytes_max = self._table.bytes_max if self._table else None
        if pinned and not hosted.pinned and bytes_max is not None:
            left = bytes_max - self._pinned_bytes() - hosted.bytes
            if left < 0:
                return f"pinned models would take {bytes_max - left} bytes of the device; the limit is {bytes_max}"
            for name, other in self.models.items():
                if name != model and not other.pinned and left < other.bytes <= bytes_max - self._pinned_bytes():
                    return f"pinned models would leave {left} bytes of the device; model {name!r} needs {other.bytes}"
        hosted.pinned, hosted.failed = pinned, False
        return ""

    def forget_weights(self, model: str) -> None:
        """Nobody uses it."""
        hosted = self.models[model]
        if self._table and (hosted.on_device or hosted.coming):
            self._table.evict_weights(model)
        del self.models[model]
        self._cold.pop(model, None)
        if self._room and model in (self._room.model, *self._room.victims):
            self._cancel_eviction()

    def why_impossible(self, model: str) -> str:
        """Why its weights can never come, or ""."""
        if self._table is None or self._table.bytes_max is None:
            return ""
        hosted = self.models[model]
        left = self._table.bytes_max - self._pinned_bytes() + (hosted.bytes if hosted.pinned else 0)
        if hosted.on_device or hosted.bytes <= left:
            return ""
        return f"its weights take {hosted.bytes} bytes of the device; {left} can be had"

    # ---- requests

    def note_request(self, model: str, rank: int) -> None:
        """A request of that tier has come, and is in `live`."""
        hosted, now = self.models[model], self._clock()
        hosted.use(now)
        if self._live[model][rank] == 1:
            hosted.busy[rank] = now
        hosted.failed = False
        where = "device" if hosted.on_device and not hosted.leaving else self._is_absent(model)
        self.hits[where] += 1

    def note_step(self, model: str) -> None:
        """A step of it begins."""
        self.models[model].used_at = self._clock()

    def is_resident(self, model: str) -> bool:
        """Its weights are on the device: it takes turns."""
        return self.models[model].on_device

    def can_join(self, model: str) -> bool:
        """Requests that wait may join."""
        hosted = self.models[model]
        return hosted.on_device and not hosted.leaving

    @property
    def has_blocked_requests(self) -> bool:
        """Requests wait for weights."""
        return any(any(self._live[model]) for model in self._cold)

    @property
    def has_background_loads(self) -> bool:
        """Weights are on their way, or are to be, for no request, or bytes of those that went are not free yet: `poll`
        and `turn` go on with it."""
        if self._table is not None and self._table.is_reclaiming:
            return True
        return any(
            hosted.coming or self._is_due_unrequested(hosted) for hosted in map(self.models.__getitem__, self._cold)
        )

    # ---- before each step

    def poll_loads(self) -> dict[str, str]:
        """Take in what came; model → why one could not."""
        failed = {}
        for move in self._table.poll_weights() if self._table else ():
            hosted = self.models.get(move.model)
            if hosted is None:
                continue
            hosted.coming = False
            if move.error:
                self.failures += 1
                hosted.failed = True
                failed[move.model] = move.error
                continue
            self._cold.pop(move.model, None)
            hosted.on_device, hosted.leaving = True, False
            hosted.came_at = hosted.used_at = self._clock()
            hosted.loads += 1
            self._byte_s = move.seconds / max(1, hosted.bytes)
            if move.source == "host" or not hosted.load_s:
                hosted.load_s = move.seconds
            if len(self._loads) < LOADS_MAX:
                self._loads.append((move.model, move.source, move.seconds))
        return failed

    def schedule_loads(self) -> frozenset[str]:
        """Let who is wanted come, and others go for it. Those that nobody can join: they are not there, or leave."""
        if not self._cold or self._table is None:
            return NO_MODELS
        askers = self._demands()
        if askers:
            self._serve_demands(askers, self._table)
        else:
            self._cancel_eviction()
        leaving = [model for model in (self._room.victims if self._room else ()) if self.models[model].leaving]
        return frozenset((*self._cold, *leaving))

    def _serve_demands(self, askers: list[WeightDemand], table: WeightsTable) -> None:
        able = list(islice((asker for asker in askers if not self._cannot_fit(asker)), 2))
        if not able:
            self._cancel_eviction()
        else:
            self._serve_first_demand(able[0], table)
        for asker in (able or askers)[:2]:
            hosted = self.models[asker.model]
            if not hosted.coming and table.weights_location(asker.model) == "disk":
                table.prefetch_weights(asker.model)

    def _cannot_fit(self, asker: WeightDemand) -> bool:
        """Those that never go for it, pinned or of higher tiers, leave too little: it keeps nobody from coming beside
        them."""
        there = (hosted for hosted in self.models.values() if hosted.on_device or hosted.coming)
        may = sum(hosted.bytes for hosted in there if self._evictable_in_s(hosted, asker.rank) < math.inf)
        return self._free_bytes() + may < self.models[asker.model].bytes

    def _serve_first_demand(self, first: WeightDemand, table: WeightsTable) -> None:
        coming = [hosted for hosted in map(self.models.__getitem__, self._cold) if hosted.coming]
        for hosted in coming:
            if self._is_load_cancelled_for(hosted, first):
                table.evict_weights(hosted.name)
                hosted.coming = False
                hosted.given_up += self._rank(hosted.name) < self._tiers or self._is_kept_resident(hosted)
        if not any(hosted.coming for hosted in coming):
            self._begin_load(first)

    def _is_load_cancelled_for(self, coming: ModelWeights, asker: WeightDemand) -> bool:
        """Its load, for one that waits for better reasons."""
        best = self._rank(coming.name)
        if best <= asker.rank:
            return False
        if best == self._tiers and not self._is_kept_resident(coming):
            return True
        if coming.given_up >= CANCELLED_LOADS_MAX:
            return False
        # Where both have room, what is nearly there is only a while before the other's copy; elsewhere it would have to
        # go as soon as it came.
        there = (hosted for hosted in self.models.values() if hosted.on_device)
        may = sum(hosted.bytes for hosted in there if self._evictable_in_s(hosted, asker.rank) == 0)
        beside = self._free_bytes() + may >= self.models[asker.model].bytes
        assert self._table is not None
        return not beside or self._table.load_seconds(coming.name) > coming.coming_s / 2

    def _demands(self) -> list[WeightDemand]:
        now, askers = self._clock(), []
        for model in self._cold:
            hosted, rank = self.models[model], self._rank(model)
            if not any(self._live[model]):
                hosted.since.clear()
            for own, count in enumerate(self._live[model]):
                if count:
                    hosted.since.setdefault(own, now)
                else:
                    hosted.since.pop(own, None)
            if hosted.coming or self.why_impossible(model):
                continue
            if rank < self._tiers or self._is_due_unrequested(hosted):
                askers.append(WeightDemand(rank, hosted.since.get(rank, now), hosted.number, model))
        return sorted(askers)

    def _rank(self, model: str) -> int:
        """The best tier that has requests of it; below all of them for none."""
        return next((rank for rank, count in enumerate(self._live[model]) if count), self._tiers)

    def _is_due_unrequested(self, hosted: ModelWeights) -> bool:
        """It is to come, whether anybody asks or not."""
        return self._is_kept_resident(hosted) and not hosted.on_device and not hosted.coming and not hosted.failed

    def _is_kept_resident(self, hosted: ModelWeights) -> bool:
        """On the device, whether anybody asks or not."""
        return hosted.pinned or (self._table is not None and self._table.bytes_max is None)

    def _begin_load(self, asker: WeightDemand) -> None:
        assert self._table is not None
        model = self.models[asker.model]
        if self._free_bytes() < model.bytes:
            self._plan_eviction(asker, model.bytes - self._free_bytes())
        else:
            self._cancel_eviction()
        # Behind a step in flight that still reads what went, it waits for the next time.
        if self._free_bytes() >= model.bytes and (
            self._table.bytes_max is None or self._table.free_bytes() >= model.bytes
        ):
            self._cancel_eviction()
            model.coming_s = self._table.load_seconds(asker.model)
            self._table.begin_load(asker.model)
            model.coming = True

    def _free_bytes(self) -> float:
        """Bytes that are no model's, once all steps are done that read them."""
        assert self._table is not None
        if self._table.bytes_max is None:
            return math.inf
        return self._table.bytes_max - sum(h.bytes for h in self.models.values() if h.on_device or h.coming)

    # ---- who goes

    def _plan_eviction(self, asker: WeightDemand, lacking: float) -> None:
        now, room = self._clock(), self._room
        if (
            room is None
            or room.model != asker.model
            or room.rank != asker.rank
            or not self._is_eviction_sufficient(room, lacking)
        ):
            victims = self._victims(asker.rank, lacking)
            if room and (room.model, room.victims) == (asker.model, victims):
                room.rank = asker.rank
            else:
                self._cancel_eviction()
                room = Eviction(asker.model, asker.rank, victims, now)
            self._room = room if victims else None
            if not victims:
                return
        assert room is not None
        idle = [model for model in room.victims if self._rank(model) == self._tiers]
        # They go last, when nothing else keeps the newcomer waiting.
        going = [self._evict_or_drain(model, room, now) for model in room.victims if model not in idle]  # all begin to
        if all(going):
            for model in idle:
                self._evict_or_drain(model, room, now)

    def _evict_or_drain(self, model: str, room: Eviction, now: float) -> bool:
        """Let it go, or on its way to that."""
        hosted = self.models[model]
        if not hosted.on_device:
            return True
        best = self._rank(model)
        if best < self._tiers:
            hosted.leaving = True
            impatient = best > room.rank or now - room.since >= DRAIN_PART * self._min_residence_s(hosted)
            if not self._evacuate(model, room.rank if impatient else None):
                return False
        self._evict_weights(model)
        return True

    def _evict_weights(self, model: str) -> None:
        assert self._table is not None
        hosted = self.models[model]
        hosted.on_device = hosted.leaving = False
        self.evictions[model] += 1
        hosted.given_up = 0
        hosted.since.clear()
        self._table.evict_weights(model)
        self._cold[model] = None
        hosted.load_s = self._table.load_seconds(model) or hosted.load_s

    def _cancel_eviction(self) -> None:
        """Nobody has to leave after all."""
        if self._room:
            for model in self._room.victims:
                if model in self.models:
                    self.models[model].leaving = False
        self._room = None

    def _is_eviction_sufficient(self, room: Eviction, lacking: float) -> bool:
        """Who was to go may still go, and is enough."""
        victims = [self.models[model] for model in room.victims if self.models[model].on_device]
        may = all(self._evictable_in_s(hosted, room.rank) == 0 for hosted in victims)
        return may and sum(hosted.bytes for hosted in victims) >= lacking

    def _victims(self, rank: int, lacking: float) -> list[str]:
        """Who goes for a request of this tier, idle ones first; nobody if all together would not do."""
        now = self._clock()
        may = [
            hosted for hosted in self.models.values() if hosted.on_device and self._evictable_in_s(hosted, rank) == 0
        ]
        chosen: list[ModelWeights] = []
        for hosted in sorted(may, key=lambda hosted: self._eviction_order(hosted, rank, now)):
            if sum(other.bytes for other in chosen) >= lacking:
                break
            chosen.append(hosted)
        if sum(hosted.bytes for hosted in chosen) < lacking:
            return []
        for hosted in chosen[:-1]:  # who is not needed beside a larger one that came after
            if sum(other.bytes for other in chosen) - hosted.bytes >= lacking:
                chosen.remove(hosted)
        return [hosted.name for hosted in chosen]

    def _eviction_order(self, hosted: ModelWeights, rank: int, now: float) -> tuple[int, float, float]:
        """Who goes first: who is idle, then the lowest tier, and of the asking one who came first."""
        best = self._rank(hosted.name)
        hosted.load_s = hosted.load_s or self._byte_s * hosted.bytes
        if best == rank < self._tiers:
            return 0, hosted.came_at, 0.0
        return -best, self._keep(hosted, now), hosted.used_at

    def _evictable_in_s(self, hosted: ModelWeights, rank: int) -> float:
        """Until it may go, or begin to leave, for a request of this tier; inf: no time tells."""
        best = self._rank(hosted.name)
        if hosted.pinned or best < rank:
            return math.inf
        if best == self._tiers or (best > rank and hosted.given_up < CANCELLED_LOADS_MAX):
            return 0.0
        stay_s = self._min_residence_s(hosted) if best == rank else hosted.load_s
        return max(0.0, hosted.came_at + stay_s - self._clock())

    def _min_residence_s(self, hosted: ModelWeights) -> float:
        return max(self._residence_s, RESIDENCE_LOADS_MIN * hosted.load_s)

    def _pinned_bytes(self) -> int:
        return sum(hosted.bytes for hosted in self.models.values() if hosted.pinned)

    # ---- what a request would wait

    def predict_wait(self, model: str, rank: int) -> WeightWait:
        """Of a request that came now."""
        hosted = self.models[model]
        if self.can_join(model) or self._table is None:
            return WeightWait()
        if hosted.coming:
            return WeightWait(0.0, self._table.load_seconds(model))
        own = WeightDemand(rank, hosted.since.get(rank, self._clock()), hosted.number, model)
        coming = [other for other in map(self.models.__getitem__, self._cold) if other.coming]
        given_up = [other for other in coming if self._is_load_cancelled_for(other, own)]
        comes = [other for other in coming if other not in given_up]
        at_s = sum(self._table.load_seconds(other.name) for other in comes)
        free = self._free_bytes() + sum(other.bytes for other in given_up)
        others = (other for other in self.models.values() if other.on_device and not other.pinned)
        going = {other.name: self._evicted_in_s(other, rank) for other in others}
        going |= {other.name: at_s + self._residence_left_s(other, rank) for other in comes if not other.pinned}
        for asker in [*self._demands_ahead(own), own]:
            lacking = self.models[asker.model].bytes
            load_s = self._table.load_seconds(asker.model) or self.models[asker.model].load_s
            for name in sorted(going, key=going.__getitem__):
                if free >= lacking:
                    break
                if name != asker.model:
                    at_s = max(at_s, going.pop(name))
                    free += self.models[name].bytes
            free -= lacking
            if asker is own:
                return WeightWait(at_s, load_s)
            at_s += load_s
            going[asker.model] = at_s + self._min_residence_s(self.models[asker.model])
        raise AssertionError("unreachable")

    def _demands_ahead(self, own: WeightDemand) -> list[WeightDemand]:
        """Those that come before it: none that higher tiers leave no room for, unless it is one itself."""
        ahead = [asker for asker in self._demands() if asker < own and asker.model != own.model]
        return ahead if self._cannot_fit(own) else [asker for asker in ahead if not self._cannot_fit(asker)]

    def _evicted_in_s(self, hosted: ModelWeights, rank: int) -> float:
        """Until it could be gone, as far as can be told: who serves a higher tier may go any time, or never, and is
        taken to go on for as long as it has."""
        now = self._clock()
        if hosted.leaving and self._room:
            return max(0.0, self._room.since + DRAIN_PART * self._min_residence_s(hosted) - now)
        ready_s = self._evictable_in_s(hosted, rank)
        if ready_s == math.inf:
            live = self._live[hosted.name]
            held_s = max((now - hosted.busy[higher] for higher in range(rank) if live[higher]), default=0.0)
            return max(self._min_residence_s(hosted), min(PREDICTED_RESIDENCE_S_MAX, held_s))
        if self._rank(hosted.name) == rank:
            return ready_s + DRAIN_PART * self._min_residence_s(hosted)
        return ready_s

    def _residence_left_s(self, hosted: ModelWeights, rank: int) -> float:
        """One that is on its way, once it is there, as far as can be told."""
        best = self._rank(hosted.name)
        if best <= rank:
            return self._min_residence_s(hosted)
        return hosted.load_s if best < self._tiers and hosted.given_up >= CANCELLED_LOADS_MAX else 0.0

    # ---- counts

    def weights_location(self, model: str) -> str:
        """ "device", "host" or "disk"."""
        return "device" if self.models[model].on_device else self._is_absent(model)

    def take_loads(self) -> list[tuple[str, str, float]]:
        """Of each load since last asked: the model, from where, and its seconds."""
        loads, self._loads = self._loads, []
        return loads

    def check_integrity(self, running: set[str]) -> None:
        """AssertionError says what is wrong. `running`: models that requests run on."""
        for name, hosted in self.models.items():
            assert hosted.on_device == (name not in self._cold)
            assert not (hosted.on_device and hosted.coming)
            assert hosted.on_device or name not in running, f"a request runs on {name}, which is not on the device"
            assert not hosted.leaving or (self._room and name in self._room.victims), f"{name} leaves for nobody"
            assert not hosted.on_device or not self._table or self._table.weights_location(name) == "device", (
                f"{name} is not there"
            )

    def _is_absent(self, model: str) -> str:
        return self._table.weights_location(model) if self._table and not self.models[model].on_device else "host"
