"""Why a request was slow: its time in phases, and whether it met its tier's targets. Pure functions."""

from __future__ import annotations

from typing import Literal

import msgspec

from billing.books.usage import UsageRow
from billing.clock import SECOND
from gateway.config.settings import TierSection

PhaseName = Literal["gateway", "adapter_load", "queue", "prefill", "decode"]


class PhaseView(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a request's time. `start_s`: from its arrival at the gateway."""

    name: PhaseName
    start_s: float
    seconds: float


class QueueCause(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the queue in which the device computed for requests of the tier `tier`."""

    tier: str
    device_s: float


class PreemptionCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of preemptions by requests of the tier `by`: recomputed tokens, and their part of the steps' seconds."""

    by: str
    recomputed_tokens: int
    device_s: float


class VerdictView(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a request met its targets. `basis`: the targets in force when it ran, or the present targets of its tier.
    `inter_token_s`: the mean time of each token after the first. A verdict is null where there is no such token."""

    basis: Literal["request", "today"]
    ttft_target_s: float
    ttft_met: bool | None
    inter_token_target_s: float
    inter_token_s: float | None
    inter_token_met: bool | None


class SlownessView(msgspec.Struct, frozen=True, kw_only=True):
    """`phases`: without a gap, from the arrival to the end. `weights_s`: when the request was submitted, its model's
    weights were predicted to be resident after this; 0: they were, null: unknown. This wait is part of the queue.
    `queued_behind`: the tiers for which the device computed while the request was in the queue, the longest first; in
    the rest of the queue it computed for none, as while weights are loaded. Empty also for a request of an earlier
    version. `verdict` null: a line of a batch, which has no targets; or its tier is not configured any more, and its
    own targets are unknown."""

    phases: list[PhaseView]
    weights_s: float | None
    queued_behind: list[QueueCause]
    preemptions: int
    preempted_by: list[PreemptionCost]
    verdict: VerdictView | None


def slowness(row: UsageRow, tier: TierSection | None) -> SlownessView:
    """`tier`: the request's, with the targets in force today."""
    return SlownessView(
        phases=_phases(row),
        weights_s=row.weights_s,
        queued_behind=[
            QueueCause(tier=name, device_s=device_s)
            for name, device_s in sorted(row.queue_device_s.items(), key=lambda item: (-item[1], item[0]))
        ],
        preemptions=row.preemptions,
        preempted_by=[
            PreemptionCost(by=by, recomputed_tokens=cost.tokens, device_s=cost.device_s)
            for by, cost in sorted(row.recomputed.items())
        ],
        verdict=_verdict(row, tier),
    )


def _phases(row: UsageRow) -> list[PhaseView]:
    """The engine's measure of the queue begins when it received the request. A row of an earlier version does not say
    when that was: then the queue begins with the arrival."""
    end_s = (row.finished_at - row.started_at) / SECOND
    first_s = min(row.ttft_s, end_s) if row.ttft_s else end_s
    submitted_s = min(row.submitted_s or 0.0, first_s)
    load_s = min(row.load_s or 0.0, submitted_s)
    queued_s = min(submitted_s + row.queue_s, first_s)
    bounds: tuple[tuple[PhaseName, float], ...] = (
        ("gateway", submitted_s - load_s),
        ("adapter_load", submitted_s),
        ("queue", queued_s),
        ("prefill", first_s),
        ("decode", end_s),
    )
    found: list[PhaseView] = []
    at = 0.0
    for name, until in bounds:
        if until > at:
            found.append(PhaseView(name=name, start_s=round(at, 6), seconds=round(until - at, 6)))
            at = until
    return found


def _verdict(row: UsageRow, tier: TierSection | None) -> VerdictView | None:
    if row.batch_id is not None:
        return None
    own = row.ttft_target_s is not None and row.itl_target_s is not None
    if own:
        ttft_target_s, inter_token_target_s = row.ttft_target_s or 0.0, row.itl_target_s or 0.0
    elif tier is None:
        return None
    else:
        ttft_target_s, inter_token_target_s = tier.ttft_target_ms(row.prompt_tokens) / 1000, tier.inter_token_ms / 1000
    inter_token_s = row.itl_s
    if not own and row.ttft_s and row.made_tokens > 1:  # of a version that did not record it
        decode_s = max(0.0, (row.finished_at - row.started_at) / SECOND - row.ttft_s)
        inter_token_s = round(decode_s / (row.made_tokens - 1), 6)
    return VerdictView(
        basis="request" if own else "today",
        ttft_target_s=ttft_target_s,
        ttft_met=row.ttft_s <= ttft_target_s if row.ttft_s else None,
        inter_token_target_s=inter_token_target_s,
        inter_token_s=inter_token_s,
        inter_token_met=None if inter_token_s is None else inter_token_s <= inter_token_target_s,
    )
