"""Tiers that need attention: tiers that missed their target for the first token, and tiers with a request that has
waited in the engine's queue for longer than the target.

Pure functions: nothing here asks an engine or reads a database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlencode

from engine.protocol.frames import Snapshot
from engine.protocol.snapshot_parts import RequestState
from gateway.config.settings import TierSection
from gateway.generation.first_tokens import FirstTokenSummary
from gateway.views.overview import Attention

# The middle window of the Tiers page: five minutes would hide an outage of last night, a day would still show one that
# was repaired long ago.
WINDOW_S = 3600
PART_WITHIN_TARGET_MIN = 0.99  # of a tier's requests; the overview's table marks a lower part too
TIERS_LINK = "/admin/tiers"
LIVE_LINK = "/admin/live"


def missed_targets(tiers: Iterable[TierSection], attained: Mapping[str, FirstTokenSummary]) -> list[Attention]:
    """`attained`: the first tokens of the last WINDOW_S by tier. A request that got a 503 missed its target too."""
    found = []
    for tier in tiers:
        of = attained.get(tier.name)
        if of is None or of.within_target >= PART_WITHIN_TARGET_MIN * (of.requests + of.refused):
            continue
        message = f"The tier {tier.name} misses its target for the first token. In the last hour"
        if of.requests:
            percent = 100 * of.within_target / of.requests
            message += f", {percent:.1f} % of {_requests(of.requests)} met it, and the p99 was {_said(of.p99_ms or 0)}"
        if of.refused:
            message += f"{'; ' if of.requests else ', '}{_requests(of.refused)} got a 503"
        message += f". The target is {100 * PART_WITHIN_TARGET_MIN:g} % within {_target(tier)}."
        found.append(Attention(kind="tiers", severity="warning", message=message, link=TIERS_LINK))
    return found


def stuck_queues(tiers: Sequence[TierSection], snapshot: Snapshot, engine: str = "") -> list[Attention]:
    """Tiers with a request that has waited in the queue for longer than its target for the first token. `engine`: its
    name, where there are several. A snapshot has at most 256 requests, running ones first: if all of them run, waiting
    requests are not known."""
    late: dict[str, list[RequestState]] = {tier.name: [] for tier in tiers}
    sections = {tier.name: tier for tier in tiers}
    for request in snapshot.requests:
        if request.state == "waiting" and request.tier in sections:
            target_ms = sections[request.tier].ttft_target_ms(request.prompt_tokens)
            if request.age_s * 1000 > target_ms:
                late[request.tier].append(request)
    waiting = {tier.name: tier.waiting for tier in snapshot.tiers}
    queue = f"the queue of the engine {engine}" if engine else "the engine's queue"
    link = f"{LIVE_LINK}?{urlencode({'engine': engine})}" if engine else LIVE_LINK
    found = []
    for name, requests in late.items():
        if requests:
            oldest_ms = 1000 * max(request.age_s for request in requests)
            message = (
                f"The tier {name} has {_requests(waiting.get(name, len(requests)))} waiting in {queue}, "
                f"the oldest for {_said(oldest_ms)}. The target for the first token is {_target(sections[name])}."
            )
            found.append(Attention(kind="queue", severity="warning", message=message, link=link))
    return found


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"


def _target(tier: TierSection) -> str:
    text = _said(tier.ttft_base_ms)
    more = tier.ttft_per_1k_prompt_tokens_ms
    return f"{text} plus {_said(more)} per 1,000 prompt tokens" if more else text


def _said(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 999.5 else f"{milliseconds / 1000:.3g} s"
