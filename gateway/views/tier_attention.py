"""Which tiers need attention: those that missed their target for the first token, and those of which a request waits
for longer than it in the engine's queue.

Plain answers; nothing here asks an engine or reads a database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from engine.protocol.frames import RequestState, Snapshot
from gateway.config.settings import TierSection
from gateway.generation.first_tokens import FirstTokenSummary
from gateway.views.overview import Attention

# The Tiers page's middle window: five minutes forget a night's outage, and a day remembers what was mended long ago.
WINDOW_S = 3600
SHARE_GOOD = 0.99  # of a tier's requests; the overview's table marks a lower one too
TIERS_LINK = "/admin/tiers"
LIVE_LINK = "/admin/live"


def missed_targets(tiers: Iterable[TierSection], attained: Mapping[str, FirstTokenSummary]) -> list[Attention]:
    """`attained`: what the last WINDOW_S came to, by tier. A request that got a 503 missed the promise too."""
    found = []
    for tier in tiers:
        of = attained.get(tier.name)
        if of is None or of.within_target >= SHARE_GOOD * (of.requests + of.refused):
            continue
        message = f"Tier {tier.name} misses its target for the first token. Within the last hour"
        if of.requests:
            share = 100 * of.within_target / of.requests
            message += f" {share:.1f} % of {_requests(of.requests)} met it, and p99 was {_said(of.p99_ms or 0)}"
        if of.refused:
            message += f"{'; ' if of.requests else ' '}{_requests(of.refused)} got a 503"
        message += f". The target is {100 * SHARE_GOOD:g} % within {_target(tier)}."
        found.append(Attention(kind="tiers", severity="warning", message=message, link=TIERS_LINK))
    return found


def stuck_queues(tiers: Sequence[TierSection], snapshot: Snapshot) -> list[Attention]:
    """Tiers of which a request has no token yet, and has waited in the queue for longer than its whole target. The
    engine names the first 256 requests; where all of them run, nothing is known of those that wait."""
    late: dict[str, list[RequestState]] = {tier.name: [] for tier in tiers}
    sections = {tier.name: tier for tier in tiers}
    for request in snapshot.requests:
        if request.state == "waiting" and request.tier in sections:
            target_ms = sections[request.tier].ttft_target_ms(request.prompt_tokens)
            if request.age_s * 1000 > target_ms:
                late[request.tier].append(request)
    waiting = {tier.name: tier.waiting for tier in snapshot.tiers}
    found = []
    for name, requests in late.items():
        if requests:
            oldest_ms = 1000 * max(request.age_s for request in requests)
            message = (
                f"Tier {name} has {_requests(waiting.get(name, len(requests)))} in the engine's queue, the oldest for "
                f"{_said(oldest_ms)}. The target for the first token is {_target(sections[name])}."
            )
            found.append(Attention(kind="queue", severity="warning", message=message, link=LIVE_LINK))
    return found


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"


def _target(tier: TierSection) -> str:
    text = _said(tier.ttft_base_ms)
    more = tier.ttft_per_1k_prompt_tokens_ms
    return f"{text} and {_said(more)} for each 1,000 tokens of the prompt" if more else text


def _said(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 999.5 else f"{milliseconds / 1000:.3g} s"
