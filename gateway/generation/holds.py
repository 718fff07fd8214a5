"""What a request holds, and what it comes to in the books: held, moved to another model, settled or voided, once each.

It puts requests into the ledger's words, and its refusals into those of the API. It must never know the engine, or why
a request ended.
"""

from __future__ import annotations

import logging
import time

import msgspec

from billing.ledger.ledger import (
    Held,
    HoldEnded,
    HoldRefused,
    HoldRequest,
    HoldUnknown,
    Ledger,
    LedgerUnavailable,
    Settlement,
)
from billing.ledger.messages import Recompute
from billing.ledger.settler import Settler
from billing.timeouts import StallTolerantTimeout
from gateway import errors
from gateway.generation.inflight import InFlight, RequestPlan
from gateway.generation.texts import Outcome
from gateway.metrics import Metrics

# A database that hangs keeps nobody waiting for longer; what it held after that is voided.
HOLD_WAIT_S = 5.0

_log = logging.getLogger(__name__)


class RequestHolds:
    """Of one gateway process."""

    def __init__(self, ledger: Ledger, settler: Settler, metrics: Metrics) -> None:
        self._ledger = ledger
        self._settler = settler
        self._metrics = metrics

    def why_unrecordable(self, requests: int) -> str | None:
        """Why the usage of so many requests could not be recorded for sure; None: it could."""
        return self._settler.refuses(requests)

    def journal_settlement(self, work: InFlight, outcome: Outcome) -> None:
        """Settle it at the next start: this process ends, and waits for nothing."""
        self._settler.journal_settlement(_settlement(work, outcome))

    async def place_hold(self, work: InFlight) -> Held:
        """Committed before the engine hears of the request. Raises BudgetExceeded, ModelNotPriced, LedgerAway."""
        started = time.perf_counter()
        work.before_hold_s = work.line.age_s()
        try:
            async with StallTolerantTimeout(HOLD_WAIT_S):
                answer = await self._ledger.hold(_hold_request(work, work.plan))
        except (LedgerUnavailable, TimeoutError):
            raise errors.DatabaseDown("Budgets cannot be checked now. Try again in a moment.") from None
        self._metrics.hold.observe(time.perf_counter() - started)
        if isinstance(answer, HoldRefused):
            if answer.code == "price_unknown":
                fields = {"request_id": work.request_id, "reason": answer.message}
                _log.error("hold.price_unknown", extra={"fields": fields})
                raise errors.ModelNotPriced(answer.message)
            raise errors.BudgetExceeded(
                answer.message, code=answer.code, nothing_left=answer.nothing_left, resets_at=answer.resets_at
            )
        return answer

    async def move_hold(self, work: InFlight, plan: RequestPlan) -> Held | None:
        """None: it is refused, and the hold is as it was. Raises LedgerAway; the hold is voided then."""
        try:
            async with StallTolerantTimeout(HOLD_WAIT_S):
                answer = await self._ledger.move(_hold_request(work, plan))
        except (LedgerUnavailable, TimeoutError, HoldEnded, HoldUnknown):
            await self.void_hold(work, "ledger_unavailable")
            raise errors.DatabaseDown("Budgets cannot be checked now. Try again in a moment.") from None
        return None if isinstance(answer, HoldRefused) else answer

    async def settle_hold(self, work: InFlight, outcome: Outcome) -> None:
        """Raises LedgerAway when neither the database nor the journal took it; the log has the settlement then."""
        settlement = _settlement(work, outcome)
        started = time.perf_counter()
        try:
            ended = await self._settler.settle(settlement)
        except LedgerUnavailable:
            self._metrics.unsettled.inc()
            _log.critical("settlement.lost", extra={"fields": {"settlement": msgspec.to_builtins(settlement)}})
            raise errors.DatabaseDown(
                "The answer was made and could not be accounted for; it is not charged."
            ) from None
        self._metrics.settle.observe(time.perf_counter() - started)
        work.line.record.cost_picos = ended.cost_picos
        if ended.outcome == "journaled":
            self._metrics.journaled.inc()
        elif ended.outcome != "settled":
            fields = {"request_id": work.request_id, "outcome": ended.outcome}
            _log.error("settlement.too_late", extra={"fields": fields})

    async def void_hold(self, work: InFlight, reason: str) -> None:
        """Raises nothing: who waits for the answer is told how it ended, come what may."""
        work.line.record.ending = reason
        try:
            await self._settler.void(work.request_id, reason)
        except Exception as error:  # noqa: BLE001 - the audit expires it with this gateway's lease
            fields = {"request_id": work.request_id, "reason": str(error) or repr(error)}
            _log.error("void.lost", extra={"fields": fields})


def _hold_request(work: InFlight, plan: RequestPlan) -> HoldRequest:
    target = plan.target
    return HoldRequest(
        request_id=work.request_id,
        tenant_id=work.caller.tenant_id or "",
        key_id=work.caller.key_id,
        model=target.model,
        adapter=target.adapter.id if target.adapter else None,
        tier=work.tier,
        prompt_tokens=plan.prompt_tokens,
        max_tokens=plan.max_tokens * plan.texts,
        min_tokens=plan.texts,
        project_id=work.caller.project_id,
        first_key_id=work.caller.first_key_id,
    )


def _settlement(work: InFlight, outcome: Outcome) -> Settlement:
    usage = outcome.usage
    # As the log, the metrics and the tiers' promises measure it. Of tokens that were made while their caller left and
    # that no gateway received, the engine's measure is the only one.
    ttft_s = work.line.record.ttft_s
    return Settlement(
        request_id=work.request_id,
        prompt_tokens=outcome.prompt,
        cached_tokens=outcome.cached,
        completion_tokens=outcome.billed,
        made_tokens=outcome.made,
        ending=outcome.ending,
        discarded_tokens=outcome.made - outcome.billed,
        discard_reason=outcome.discard_reason,
        before_hold_s=work.before_hold_s,
        queue_s=usage.queue_s,
        ttft_s=usage.ttft_s if ttft_s is None else ttft_s,
        device_s=usage.device_s,
        preemptions=usage.preemptions,
        recomputed_tokens=usage.recomputed_tokens,
        recomputed={tier: Recompute(cost.tokens, cost.device_s) for tier, cost in usage.recomputed.items()},
        swapped_tokens=usage.swapped_tokens,
    )
