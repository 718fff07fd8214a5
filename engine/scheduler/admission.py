"""Refuses requests at `submit`: requests that can never run, and requests that would wait longer than their tier's
target. It also predicts a request's wait.

It knows no tenants or budgets: the gateway has checked them.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from engine.memory.adapter_residency import AdapterResidency
from engine.memory.weight_residency import WeightResidency
from engine.memory.weight_wait import predict_wait
from engine.protocol.frames import RefusalCode
from engine.protocol.sampling_limits import find_fault
from engine.protocol.tiers import Tier
from engine.scheduler.capacity import Capacity
from engine.scheduler.queues import TierQueue
from engine.scheduler.served import ModelLimits, ModelTable
from engine.step import Sequence

# The shortest retry that a refusal advises.
RETRY_AFTER_MIN_S = 1.0
# Models whose wait for weights is predicted at once; a prediction considers all models.
PREDICTED_MAX = 8


@dataclass(slots=True, frozen=True)
class Refusal:
    """Why a request is not queued."""

    code: RefusalCode
    message: str
    retry_after_s: float | None = None


class AdmissionControl:
    def __init__(
        self,
        tiers: Ordered[Tier],
        served: ModelTable,
        capacity: Capacity,
        residency: AdapterResidency,
        weights: WeightResidency,
        queues: Ordered[TierQueue],
    ) -> None:
        self._rank = {tier.name: rank for rank, tier in enumerate(tiers)}
        self._tiers = tiers
        self._served = served
        self._capacity = capacity
        self._pages = capacity.pages
        self._slots = capacity.slots
        self._weights = weights
        self._residency = residency
        self._queues = queues

    def refusal(self, sequence: Sequence) -> Refusal | None:
        """Why the request is refused; None: it may be queued."""
        limits = self._served.limits.get(sequence.model)
        if limits is None or sequence.model in self._served.retired:
            return Refusal("model_unknown", f"model {sequence.model!r} is not served here")
        if why := self._weights.why_impossible(sequence.model):
            return Refusal("model_unknown", f"model {sequence.model!r} cannot be loaded: {why}")
        if sequence.tier not in self._rank:
            return Refusal("tier_unknown", f"tier {sequence.tier!r} is not configured")
        if sequence.adapter is not None and not self._residency.is_known(sequence.adapter, sequence.model):
            return Refusal("adapter_unknown", f"adapter {sequence.adapter!r} is not loaded for {sequence.model!r}")
        rank = self._rank[sequence.tier]
        if refusal := _malformed(sequence, limits) or self._too_long(sequence, limits, rank):
            return refusal
        # As a preempted request, a resumed one waits however long the queue is.
        return None if sequence.resumed else self._crowded(sequence, rank)

    def _too_long(self, sequence: Sequence, limits: ModelLimits, rank: int) -> Refusal | None:
        """Whether the request exceeds the model's context, or its tier cannot have the pages for it."""
        tokens = len(sequence.prompt_ids) + sequence.max_tokens
        if tokens > limits.context_tokens:
            message = f"prompt and max_tokens are {tokens} tokens; the limit is {limits.context_tokens}"
            return Refusal("too_long", message)
        # The last id's KV is never computed; the prompt's always.
        pages = -(-max(len(sequence.prompt_ids), tokens - 1) // limits.tokens_per_page)
        pages += self._residency.pages_min(sequence.adapter)
        capacity = self._pages.capacity(rank) - self._residency.pinned_pages(other_than=sequence.adapter)
        if not self._slots.capacity(rank):
            tier = self._tiers[rank].name
            return Refusal("too_long", f"tier {tier} cannot run: the floors of other tiers take all sequence slots")
        if pages > capacity:
            return Refusal("too_long", f"the request needs {pages} pages; its tier can have {capacity}")
        return None

    def _crowded(self, sequence: Sequence, rank: int) -> Refusal | None:
        """Whether the request's predicted wait exceeds the tier's target, or the queue is full and no share has more
        waiting requests."""
        tier, queue = self._tiers[rank], self._queues[rank]
        weights, target_ms = predict_wait(self._weights, sequence.model, rank), tier.queue_target_ms
        # A share's first request does not wait for its turn: others are preempted for it.
        turn_s = 0.0 if queue.first_is_next(sequence.share) else queue.wait_s(sequence.share, sequence.model)
        wait_s = weights.seconds + turn_s
        # A load longer than the target is waited for: if such requests were refused, the model would never be loaded.
        if target_ms is not None and wait_s > (limit_s := max(target_ms / 1000, weights.load_s)):
            where = f" (model {sequence.model!r} is not in the device's memory)" if weights.seconds else ""
            message = (
                f"the predicted wait in tier {tier.name} is {wait_s:.1f} s{where}; its limit is {limit_s * 1000:g} ms"
            )
            return Refusal("queue_full", message, max(RETRY_AFTER_MIN_S, wait_s - limit_s))
        if len(queue) >= tier.queue_max and not queue.displaced_by(sequence.share):
            return self.full(rank)
        return None

    # ---- predictions, whose cost does not depend on the number of requests

    def queue_waits_s(self) -> dict[str, float]:
        """Predicted seconds, by tier, until the first chunk begins of a request whose share has no other request. If
        the tier can have no slot now, the request waits for one start more."""
        return {
            tier.name: queue.new_share_wait_s(needs_slot=self._capacity.spare_slots(rank) < 1)
            for rank, (tier, queue) in enumerate(zip(self._tiers, self._queues, strict=True))
        }

    def weights_waits_s(self) -> dict[str, float]:
        """By served model whose weights are not on the device: `weights_wait_s`; of more than PREDICTED_MAX models the
        time of the load alone, which takes no longer to compute for more models."""
        weights, table = self._weights, self._weights.table
        absent = [model for model in self._served.live if not weights.is_resident(model)]
        if table is None or len(absent) <= PREDICTED_MAX:
            return {model: self.weights_wait_s(model) for model in absent}
        return {model: table.load_seconds(model) for model in absent}

    def weights_wait_s(self, model: str, rank: int | None = None) -> float:
        """Predicted seconds until the model is resident, for a request queued now in tier `rank` (None: the lowest)."""
        return predict_wait(self._weights, model, len(self._tiers) - 1 if rank is None else rank).seconds

    # ---- refusals

    def full(self, rank: int) -> Refusal:
        """The refusal for a full queue."""
        tier, queue = self._tiers[rank], self._queues[rank]
        retry_s = max(RETRY_AFTER_MIN_S, queue.next_start_s())
        return Refusal("queue_full", f"{len(queue)} requests of tier {tier.name} wait already", retry_s)


def _malformed(sequence: Sequence, limits: ModelLimits) -> Refusal | None:
    ids = sequence.prompt_ids
    if not ids:
        return Refusal("bad_request", "the prompt is empty")
    if sequence.max_tokens < 0:
        return Refusal("bad_request", f"max_tokens is {sequence.max_tokens}; it must be at least 0")
    vocab, made = limits.vocab_size, sequence.output_ids
    if vocab is not None and (min(ids) < 0 or max(ids) >= vocab or (made and not 0 <= min(made) <= max(made) < vocab)):
        return Refusal("bad_request", f"the prompt has an id outside the vocabulary of {limits.vocab_size}")
    wrong = find_fault(sequence.sampling, sequence.max_tokens, limits.vocab_size)
    return Refusal("bad_request", wrong) if wrong else None
