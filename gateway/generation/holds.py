"""Places, moves, settles and voids the budget hold of a request, each at most once.

It translates requests for the ledger, and the ledger's refusals into errors of the API.
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
from billing.ledger.messages import ASKED_CHARS_MAX, LineOutput, Recompute
from billing.ledger.settler import Settler
from billing.timeouts import StallTolerantTimeout
from gateway import errors
from gateway.access.end_users import EndUserDigests
from gateway.generation.endings import EndingCode
from gateway.generation.inflight import InFlight, RequestPlan
from gateway.generation.text_runs import Outcome
from gateway.metrics import Metrics

# The longest wait for the database; a hold that is placed after it is voided.
HOLD_WAIT_S = 5.0

_log = logging.getLogger(__name__)


class RequestHolds:
    """One per gateway process."""

    def __init__(self, ledger: Ledger, settler: Settler, metrics: Metrics, end_users: EndUserDigests) -> None:
        self._ledger = ledger
        self._end_users = end_users
        self._settler = settler
        self._metrics = metrics

    def why_unrecordable(self, requests: int) -> str | None:
        """Why the usage of `requests` requests might not be recorded; None: the journal has space for it."""
        return self._settler.refuses(requests)

    def journal_settlement(self, request: InFlight, outcome: Outcome) -> None:
        """Write it to the journal, to be settled at the next start: this process stops without waiting."""
        self._settler.journal_settlement(_settlement(request, outcome))

    async def place_hold(self, request: InFlight) -> Held:
        """Returns once the hold is committed. Raises BudgetExceeded, ModelNotPriced, DatabaseDown."""
        started, times = time.perf_counter(), request.line.times
        times.hold_began_s = request.line.age_s()
        try:
            async with StallTolerantTimeout(HOLD_WAIT_S):
                held = self._hold_request(request, request.plan)
                answer = await self._ledger.hold(held, is_line=request.line_run is not None)
        except (LedgerUnavailable, TimeoutError):
            raise errors.DatabaseDown("Budgets cannot be checked now. Try again in a moment.") from None
        times.hold_ended_s = request.line.age_s()
        self._metrics.hold.observe(time.perf_counter() - started)
        if isinstance(answer, HoldRefused):
            if answer.code == "price_unknown":
                fields = {"request_id": request.request_id, "reason": answer.message}
                _log.error("hold.price_unknown", extra={"fields": fields})
                raise errors.ModelNotPriced(answer.message)
            raise errors.BudgetExceeded(
                answer.message,
                code=answer.code,
                nothing_left=answer.nothing_left,
                resets_at=answer.resets_at,
                limit=errors.ReachedLimit(answer.budget, answer.limit) if answer.budget else None,
            )
        return answer

    async def move_hold(self, request: InFlight, plan: RequestPlan) -> Held | None:
        """Returns None if the move is refused; then the hold is unchanged. Raises DatabaseDown; then the hold is
        voided."""
        try:
            async with StallTolerantTimeout(HOLD_WAIT_S):
                answer = await self._ledger.move(self._hold_request(request, plan))
        except (LedgerUnavailable, TimeoutError, HoldEnded, HoldUnknown):
            await self.void_hold(request, EndingCode.LEDGER_UNAVAILABLE)
            raise errors.DatabaseDown("Budgets cannot be checked now. Try again in a moment.") from None
        return None if isinstance(answer, HoldRefused) else answer

    async def settle_hold(self, request: InFlight, outcome: Outcome, output: LineOutput | None = None) -> None:
        """`output`: of a line of a batch that was answered. Raises DatabaseDown if neither the database nor the journal
        accepted it; then the log has the settlement."""
        settlement = _settlement(request, outcome, output)
        started, times = time.perf_counter(), request.line.times
        times.settle_began_s = request.line.age_s()
        try:
            if request.line_run is None:
                ended = await self._settler.settle(settlement)
            else:
                ended = await self._settler.settle_unjournaled(settlement)
                request.line_run.is_recorded = output is not None and ended.outcome == "settled"
        except LedgerUnavailable:
            self._metrics.unsettled.inc()
            _log.critical("settlement.lost", extra={"fields": {"settlement": msgspec.to_builtins(settlement)}})
            raise errors.DatabaseDown(
                "The answer was made and could not be accounted for; it is not charged."
            ) from None
        times.settle_ended_s = request.line.age_s()
        self._metrics.settle.observe(time.perf_counter() - started)
        request.line.record.cost_picos = ended.cost_picos
        if ended.outcome == "journaled":
            self._metrics.journaled.inc()
        elif ended.outcome != "settled":
            fields = {"request_id": request.request_id, "outcome": ended.outcome}
            _log.error("settlement.too_late", extra={"fields": fields})

    async def void_hold(self, request: InFlight, ending: EndingCode) -> None:
        """Raises nothing: the answer must reach its own ending after this, whatever the database does."""
        request.line.record.ending = ending.value
        try:
            await self._settler.void(request.request_id, ending.value)
        except Exception as error:  # noqa: BLE001 - the auditor expires the hold with this gateway's lease
            fields = {"request_id": request.request_id, "reason": str(error) or repr(error)}
            _log.error("void.lost", extra={"fields": fields})

    def _hold_request(self, request: InFlight, plan: RequestPlan) -> HoldRequest:
        target, tenant_id, name = plan.target, request.caller.tenant_id or "", request.asked.end_user
        return HoldRequest(
            request_id=request.request_id,
            tenant_id=tenant_id,
            key_id=request.caller.key_id,
            model=target.model,
            adapter=target.adapter.id if target.adapter else None,
            tier=request.tier,
            prompt_tokens=plan.prompt_tokens,
            max_tokens=plan.max_tokens * plan.texts,
            min_tokens=min(plan.texts, plan.max_tokens * plan.texts),
            operation=request.asked.operation,
            project_id=request.caller.project_id,
            first_key_id=request.caller.first_key_id,
            tag_set_id=request.caller.tag_set_id,
            end_user=self._end_users.digest(tenant_id, name) if name else None,
        )


def _settlement(request: InFlight, outcome: Outcome, output: LineOutput | None = None) -> Settlement:
    # Times are the gateway's own measures, as in the log, the metrics and the tiers' targets. If the caller left
    # before a token arrived, there is no time of a first token.
    usage, record = outcome.usage, request.line.record
    return Settlement(
        request_id=request.request_id,
        prompt_tokens=outcome.prompt,
        cached_tokens=outcome.cached,
        completion_tokens=outcome.billed,
        made_tokens=outcome.made,
        ending=outcome.ending.value,
        discarded_tokens=outcome.made - outcome.billed,
        discard_reason=None if outcome.discard_reason is None else outcome.discard_reason.value,
        age_s=request.line.age_s(),
        queue_s=usage.queue_s,
        queue_device_s=_rounded(usage.queue_device_s),
        ttft_s=record.ttft_s or 0.0,
        device_s=usage.device_s,
        preemptions=usage.preemptions,
        recomputed_tokens=usage.recomputed_tokens,
        recomputed={tier: Recompute(cost.tokens, cost.device_s) for tier, cost in usage.recomputed.items()},
        swapped_tokens=usage.swapped_tokens,
        engines=outcome.engines,
        trace_id=record.trace_id,
        ttft_target_s=record.ttft_target_s,
        itl_target_s=record.itl_target_s,
        itl_s=record.itl_s,
        pause_s=record.pause_s,
        submitted_s=None if request.runs is None else request.runs.submitted_s,
        load_s=request.line.times.load_s,
        weights_s=request.line.times.weights_s,
        asked=_recorded(record.asked),
        operation=request.asked.operation,
        adapter_version=None if request.target.adapter is None else request.target.adapter.version,
        batch_id=None if request.line_run is None else request.line_run.batch_id,
        output=output,
    )


def _rounded(device_s: dict[str, float]) -> dict[str, float]:
    """Seconds by tier in whole microseconds, without tiers that round to 0."""
    return {tier: rounded for tier, seconds in device_s.items() if (rounded := round(seconds, 6)) > 0}


def _recorded(asked: str | None) -> str | None:
    """A name longer than an alias can have is of an adapter, which the row names by id and version."""
    return asked if asked is not None and len(asked) <= ASKED_CHARS_MAX and asked.isascii() else None
