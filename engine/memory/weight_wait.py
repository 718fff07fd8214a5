"""Predicts how long a request for a model would wait until the model's weights are on the device.

The prediction serves the demands ahead of the request, and then its own, in their order; each evicts the models that
can be evicted earliest. It changes nothing.
"""

from __future__ import annotations

import math

from engine.memory.eviction import ModelWeights, WeightDemand, WeightWait
from engine.memory.weight_residency import CANCELLED_LOADS_MAX, DRAIN_PART, WeightResidency

# Upper limit of the predicted residence of a model that a higher tier uses.
PREDICTED_RESIDENCE_S_MAX = 600.0


def predict_wait(residency: WeightResidency, model: str, rank: int) -> WeightWait:
    """The wait of a request of tier `rank` that is queued now."""
    weights, table = residency.models[model], residency.table
    if residency.can_join(model) or table is None:
        return WeightWait()
    if weights.loading:
        return WeightWait(0.0, table.load_seconds(model))
    waiting_since = weights.waiting_since.get(rank, residency.clock())
    own_demand = WeightDemand(rank, waiting_since, weights.number, model)
    loading = residency.loading_models()
    cancelled = [other for other in loading if residency.may_cancel_load(other, own_demand)]
    continued = [other for other in loading if other not in cancelled]
    begins_in_s = sum(table.load_seconds(other.name) for other in continued)
    free_bytes = residency.free_bytes() + sum(other.bytes for other in cancelled)
    evicted_in_s = {  # by model that can be evicted
        other.name: _evicted_in_s(residency, other, rank)
        for other in residency.models.values()
        if other.on_device and not other.pinned
    }
    for other in continued:
        if not other.pinned:
            evicted_in_s[other.name] = begins_in_s + _residence_s(residency, other, rank)
    for demand in [*_demands_ahead(residency, own_demand), own_demand]:
        wanted = residency.models[demand.model]
        load_s = table.load_seconds(demand.model) or wanted.load_s
        for name in sorted(evicted_in_s, key=evicted_in_s.__getitem__):
            if free_bytes >= wanted.bytes:
                break
            if name != demand.model:
                begins_in_s = max(begins_in_s, evicted_in_s.pop(name))
                free_bytes += residency.models[name].bytes
        free_bytes -= wanted.bytes
        if demand is own_demand:
            return WeightWait(begins_in_s, load_s)
        begins_in_s += load_s
        evicted_in_s[demand.model] = begins_in_s + residency.min_residence_s(wanted)
    raise AssertionError("unreachable")


def _demands_ahead(residency: WeightResidency, demand: WeightDemand) -> list[WeightDemand]:
    """Demands that are served before it. Demands that cannot fit do not count, unless it cannot fit either."""
    ahead = [other for other in residency.demands() if other < demand and other.model != demand.model]
    return ahead if residency.cannot_fit(demand) else [other for other in ahead if not residency.cannot_fit(other)]


def _evicted_in_s(residency: WeightResidency, weights: ModelWeights, rank: int) -> float:
    """Seconds until a resident model is evicted for a demand of tier `rank`. A model that a higher tier uses is assumed
    to remain for as long again as that tier has used it, up to PREDICTED_RESIDENCE_S_MAX."""
    drained_in_s = residency.drained_in_s(weights)
    if drained_in_s is not None:
        return drained_in_s
    ready_s = residency.evictable_in_s(weights, rank)
    if ready_s == math.inf:
        now, live = residency.clock(), residency.live[weights.name]
        used_s = max((now - weights.busy_since[higher] for higher in range(rank) if live[higher]), default=0.0)
        return max(residency.min_residence_s(weights), min(PREDICTED_RESIDENCE_S_MAX, used_s))
    if residency.best_rank(weights.name) == rank:
        return ready_s + DRAIN_PART * residency.min_residence_s(weights)
    return ready_s


def _residence_s(residency: WeightResidency, weights: ModelWeights, rank: int) -> float:
    """Seconds that a loading model will be resident before a demand of tier `rank` may evict it."""
    best_rank = residency.best_rank(weights.name)
    if best_rank <= rank:
        return residency.min_residence_s(weights)
    is_protected = best_rank < residency.tiers and weights.cancelled_loads >= CANCELLED_LOADS_MAX
    return weights.load_s if is_protected else 0.0
