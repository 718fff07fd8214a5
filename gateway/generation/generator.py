"""The path of one request, from who asks to what was used: route, count, limit, hold, submit, follow, settle.

Each admitted request has an owner task that outlives its HTTP exchange and gives it exactly one ending. This module
orders the steps; it must never know HTTP, SQL or how tokens are made.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Container

import msgspec

from billing.database import DatabaseUnavailable
from billing.ledger.ledger import Held
from engine.protocol.client import AdapterFailed, EngineClient, EngineUnavailable, Generation
from gateway import errors
from gateway.access.callers import Caller, Callers, TenantName
from gateway.api.bodies import ParsedBody
from gateway.api.generation_request import GenerationRequest
from gateway.catalog.registry import ModelTarget
from gateway.engines.adapter_sync import AdapterLoader
from gateway.generation.answer import Answer, EarlyEnding, TokenUsage
from gateway.generation.exhausted_budgets import ExhaustedBudgets
from gateway.generation.first_tokens import FirstTokens
from gateway.generation.holds import RequestHolds
from gateway.generation.inflight import InFlight, RequestPlan
from gateway.generation.replays import FirstCall, IdempotentCall, Replayed
from gateway.generation.selector import Selector, log_selection
from gateway.generation.text_runs import ENGINE_UNAVAILABLE_MESSAGE, Outcome, TextRun, TextRuns
from gateway.generation.tier_choice import Tiers
from gateway.limits.limiter import Admission, Limiter, end_refused
from gateway.log import RequestLine, ThrottledWarning
from gateway.metrics import Metrics

JOURNAL_RETRY_S = 5.0
# The ending of a request whose adapter the engine does not know.
ADAPTER_UNKNOWN_ENDING = "engine_refused_adapter_unknown"
# Endings of a request whose model has no room, or is not there: another may serve in its place.
FALLBACK_ENDINGS = ("engine_refused_queue_full", "engine_refused_model_unknown", "engine_unavailable")

_log = logging.getLogger(__name__)


class Generator:
    """Owns every request in flight of this process."""

    def __init__(
        self,
        *,
        selector: Selector,
        tiers: Tiers,
        limiter: Limiter,
        holding: RequestHolds,
        engine: EngineClient,
        loader: AdapterLoader,
        callers: Callers,
        metrics: Metrics,
        first_tokens: FirstTokens,
        exhausted: ExhaustedBudgets,
        secret: bytes,
    ) -> None:
        self._selector = selector
        self._tiers = tiers
        self._limiter = limiter
        self._holding = holding
        self._engine = engine
        self._loader = loader
        self._callers = callers
        self._metrics = metrics
        self._first_tokens = first_tokens
        self._exhausted = exhausted
        self._secret = secret
        self._owners: dict[asyncio.Task[None], InFlight] = {}
        self._admitting = 0
        self._stopping = False
        self._unrecordable = ThrottledWarning(_log, "admission.unrecordable")

    # ---- before the owner exists: when one of these raises, the caller of `admit` ends the admission

    async def admit(self, caller: Caller) -> Admission:
        """Take one request and one place under the limits, before the body is read. Raises RateLimited, BudgetExceeded,
        EngineAway."""
        if self._stopping:
            raise errors.EngineDown("This server is stopping.")
        admission = await self._limiter.admit(caller.subjects, 0)
        try:
            self._exhausted.check_budget(caller)
        except errors.BudgetExceeded as error:
            await admission.finish_request(0)
            error.limit_headers = admission.headers()
            raise
        return admission

    async def begin_request(
        self,
        caller: Caller,
        asked: GenerationRequest,
        line: RequestLine,
        admission: Admission,
        call: IdempotentCall | None = None,
    ) -> InFlight | Replayed:
        """Route, count, reserve the tokens, and start an owner task, which then ends the `admission`. Returns Replayed
        if the `call` was answered meanwhile. Raises ApiError; later errors of the ledger or the engine are the answer's
        error."""
        if self._stopping:
            raise errors.EngineDown("This server is stopping.")
        route = self._selector.route(caller, asked, line)
        tier = self._tiers.serve(caller.tier, asked.service_tier)
        line.record.tier, line.record.stream = tier, asked.stream
        try:
            if len(route.candidates) > 1:  # each may count the prompt again: refuse first what cannot fit
                await self._limiter.reserve(admission, asked.tokens_min)
            plan, fallbacks = await self._selector.first(caller, asked, route, tier, line)
            return await self._begin_request(caller, asked, line, call, plan, fallbacks, tier, admission)
        except (errors.Unavailable, DatabaseUnavailable):
            self._first_tokens.refused(tier)
            raise

    async def _begin_request(
        self,
        caller: Caller,
        asked: GenerationRequest,
        line: RequestLine,
        call: IdempotentCall | None,
        plan: RequestPlan,
        fallbacks: list[ModelTarget],
        tier: str,
        admission: Admission,
    ) -> InFlight | Replayed:
        line.record.texts = plan.texts
        self._check_journal()
        first = await self._reserve(admission, plan.tokens_max, call)
        if isinstance(first, Replayed):
            return first
        work = InFlight(
            request_id=line.record.request_id,
            caller=caller,
            asked=asked,
            plan=plan,
            fallbacks=fallbacks,
            tier=tier,
            service_tier=self._tiers.service_tier(tier),
            admission=admission,
            line=line,
            answer=Answer(plan.texts, stream=asked.stream),
            first=first,
        )
        if not fallbacks:
            work.answer.model = plan.target.name
        line.retain()
        owner = asyncio.create_task(self._own(work), name=work.request_id)
        self._owners[owner] = work
        owner.add_done_callback(self._owners.pop)
        return work

    async def _reserve(
        self, admission: Admission, tokens: int, call: IdempotentCall | None
    ) -> FirstCall | Replayed | None:
        """Reserve the tokens under the limits, and then insert the row of a call with an Idempotency-Key. Raises
        ApiError, DatabaseUnavailable."""
        self._admitting += 1  # counts for the journal's room as a running request
        try:
            await self._limiter.reserve(admission, tokens)
            return None if call is None else await call.begin_call()
        finally:
            self._admitting -= 1

    async def read(self, caller: Caller, kind: str, body: bytes) -> ParsedBody:
        """See `Planner.read`."""
        return await self._selector.planner.read(caller, kind, body)

    async def count(self, caller: Caller, asked: GenerationRequest) -> int:
        """The number of prompt tokens, for count requests. Raises ApiError."""
        target = self._selector.counting(caller, asked.model)
        return await self._selector.planner.count(caller, target, asked)

    def _check_journal(self) -> None:
        """Whoever begins must be able to settle, come what may. Raises LedgerAway."""
        if (why := self.unrecordable()) is not None:
            self._unrecordable.warn(reason=why)
            raise errors.DatabaseDown("Usage cannot be recorded now. Try again later.", retry_after_s=JOURNAL_RETRY_S)

    # ---- the owner

    async def _own(self, work: InFlight) -> None:
        """Everything after admission, whatever becomes of the caller."""
        choices: TextRuns | None = None
        try:
            await self._confirm(work)
            held = await self._holding.place_hold(work)
            work.answer.granted = held.max_tokens
            await self._load_adapter(work)
            choices = self._choices(work, held)
            with self._metrics.running.labels(work.tier).track_inprogress():
                outcome = await choices.run()
                if outcome.ending == ADAPTER_UNKNOWN_ENDING and not outcome.made:
                    # Another gateway had it unloaded meanwhile. Nothing ran: load it again, and ask again, once.
                    self._forget_adapter(work)
                    await self._load_adapter(work)
                    choices = self._choices(work, held)
                    outcome = await choices.run()
                first = outcome
                while self._may_fall_back(work, outcome) and (moved := await self._fall_back(work)) is not None:
                    choices = self._choices(work, moved)
                    outcome = await choices.run()
                if outcome.refused and not outcome.made:
                    outcome = first  # it says when to come again
                await self._close(work, choices, outcome)
        except errors.ApiError as error:
            await end_refused(work.admission, error)
            if isinstance(error, errors.BudgetExceeded):
                self._exhausted.note_refusal(work.caller, error)
            if error.status == 429:
                error.limit_headers = work.admission.headers()
            await self._fail(work, error)
        except asyncio.CancelledError:
            if choices is not None:
                self._cut_off(work, choices.interrupted_outcome())
            raise
        except Exception:  # noqa: BLE001 - the owner is a process edge: counted, logged, and the caller is told
            self._metrics.errors.inc()
            _log.exception("generation.failed", extra={"fields": {"request_id": work.request_id}})
            if choices is not None:
                choices.stop()
            await self._holding.void_hold(work, "internal_error")  # unless it had its ending
            await work.admission.refund()
            await self._fail(work, errors.InternalError())
        finally:
            work.line.release()

    def _choices(self, work: InFlight, held: Held) -> TextRuns:
        return TextRuns(
            work,
            held.max_tokens,
            submit=lambda choice: self._submit(work, choice),
            stopping=lambda: self._stopping,
            first_token=self._first_token,
        )

    def _may_fall_back(self, work: InFlight, outcome: Outcome) -> bool:
        """Nothing was made, somebody still waits for it, and another model may have room."""
        gone = work.answer.left or work.answer.cut is not None or self._stopping
        return outcome.refused and not outcome.made and outcome.ending in FALLBACK_ENDINGS and not gone

    async def _fall_back(self, work: InFlight) -> Held | None:
        """The next model that can serve it, and whose price the budgets bear: the hold is that model's from then on.
        None: there is none. Raises LedgerAway; the hold is voided then."""
        following = self._selector.following
        while (plan := await following(work.caller, work.asked, work.target, work.fallbacks, work.line)) is not None:
            try:
                await self._limiter.reserve(work.admission, plan.tokens_max)
            except errors.RateLimited:
                return None
            held = await self._holding.move_hold(work, plan)
            if held is not None:
                work.plan = plan
                work.answer.granted = held.max_tokens
                log_selection(work.line, work.asked, plan)
                return held
        return None

    def _forget_adapter(self, work: InFlight) -> None:
        """The engine does not know its adapter."""
        if work.target.adapter is not None:
            self._loader.forget_adapter(work.target.adapter.digest)

    def _first_token(self, work: InFlight) -> None:
        record = work.line.record
        work.answer.model = work.target.name
        if record.ttft_s is None:
            record.ttft_s = work.line.age_s()
            self._metrics.ttft.labels(work.tier).observe(record.ttft_s)
            self._first_tokens.observe(work.tier, record.ttft_s, work.prompt_tokens)

    async def _confirm(self, work: InFlight) -> None:
        """A body may take long to arrive: whether its key was revoked meanwhile. From here on `end` finds the request.
        Raises InvalidApiKey, LedgerAway."""
        try:
            await self._callers.confirm(work.caller)
        except DatabaseUnavailable:
            raise errors.DatabaseDown("Keys cannot be checked now. Try again in a moment.") from None

    async def _load_adapter(self, work: InFlight) -> None:
        """See that the engine knows the adapter. Raises EngineAway; the hold is voided then."""
        adapter = work.target.adapter
        if adapter is None:
            return
        try:
            await self._loader.ensure(adapter.digest, adapter.base_model)
        except (AdapterFailed, EngineUnavailable, OSError, ValueError) as error:
            _log.warning("submit.failed", extra={"fields": {"request_id": work.request_id, "reason": str(error)}})
            await self._holding.void_hold(work, "engine_unavailable")
            raise errors.EngineDown(ENGINE_UNAVAILABLE_MESSAGE) from None

    def _submit(self, work: InFlight, choice: TextRun) -> Generation:
        """Raises EngineUnavailable, ProtocolError."""
        adapter = work.target.adapter
        tenant = (work.caller.tenant_id or "").encode()
        sampling = work.sampling
        if choice.number or sampling.min_tokens > choice.max_tokens:
            min_tokens = min(sampling.min_tokens, choice.max_tokens)
            sampling = msgspec.structs.replace(sampling, choice=choice.number, min_tokens=min_tokens)
        return self._engine.submit(
            request_id=work.request_id,
            model=work.target.model,
            adapter=None if adapter is None else adapter.digest,
            namespace=hmac.digest(self._secret, b"namespace:" + tenant, "sha256").hex(),
            tier=work.tier,
            share=hmac.digest(self._secret, b"share:" + tenant, "sha256").hex()[:16],
            prompt_ids=work.prompts[choice.prompt].ids,
            max_tokens=choice.max_tokens,
            sampling=sampling,
            stop_ids=work.stop_ids,
            weight=work.caller.share_weight,
        )

    async def _close(self, work: InFlight, choices: TextRuns, outcome: Outcome) -> None:
        """Settle what is billed, or void when nothing was made; then end the answer. The prompt is billed with the
        first completion token, and once, however many texts it got. Raises ApiError for a request that never ran."""
        record, metrics = work.line.record, self._metrics
        usage = TokenUsage(outcome.prompt, outcome.cached, outcome.billed)
        if outcome.made:
            if work.first is not None and outcome.error is None:
                await work.first.keep_answer(await work.answer.spell(usage))
            await self._holding.settle_hold(work, outcome)
            choices.confirm_recorded()
        else:
            await self._holding.void_hold(work, outcome.ending)
            if outcome.refused and outcome.error is not None:
                if outcome.ending == ADAPTER_UNKNOWN_ENDING:
                    self._forget_adapter(work)
                raise outcome.error
        discarded = outcome.made - outcome.billed
        record.ending = outcome.ending
        record.cached_tokens, record.shared_tokens = outcome.cached, outcome.shared
        record.completion_tokens, record.discarded_tokens = outcome.billed, discarded
        if outcome.made or outcome.error is None:
            await work.admission.finish_request(work.prompt_tokens + outcome.made)
        else:  # it came to nothing, and not by its caller: it takes nothing
            await work.admission.refund()
        metrics.endings.labels(work.tier, outcome.ending).inc()
        metrics.tokens.labels(work.tier, "prompt").inc(outcome.prompt)
        metrics.tokens.labels(work.tier, "cached").inc(outcome.cached)
        metrics.tokens.labels(work.tier, "completion").inc(outcome.billed)
        if outcome.discard_reason is not None:
            metrics.discarded.labels(outcome.discard_reason).inc(discarded)
        metrics.total.labels(work.tier).observe(work.line.age_s())
        if outcome.error is not None:
            await self._fail(work, outcome.error)
        else:
            work.answer.finish_answer(usage)

    def _cut_off(self, work: InFlight, outcome: Outcome) -> None:
        """The process ends and waits no longer: what was made counts all the same. A request that had its ending keeps
        that one."""
        record = work.line.record
        record.ending, record.completion_tokens = outcome.ending, outcome.billed
        if outcome.made:
            self._holding.journal_settlement(work, outcome)

    async def _fail(self, work: InFlight, error: errors.ApiError) -> None:
        work.line.record.code = error.code
        if error.status == errors.Unavailable.status and work.line.record.ttft_s is None:
            self._first_tokens.refused(work.tier)
        if work.first is not None:
            await work.first.forget_call()
        work.answer.fail(error)

    # ---- ends that come from elsewhere

    def key_ids(self, tenant_ids: Container[str | None] | None = None) -> set[str]:
        """Ids of keys with running requests; of these tenants only, if given (None: the operator's keys)."""
        running = [work.caller for work in self._owners.values()]
        return {one.key_id for one in running if tenant_ids is None or one.tenant_id in tenant_ids}

    def tenants(self) -> dict[str, TenantName]:
        """Whose requests run now, by their ids."""
        callers = ((work.request_id, work.caller) for work in self._owners.values())
        return {one: TenantName(caller.tenant_id or "", caller.tenant_slug or "") for one, caller in callers}

    def end_requests_of(self, key_ids: Container[str]) -> None:
        """End the requests of these keys: they are billed for what their callers have got."""
        for work in list(self._owners.values()):
            if work.caller.key_id in key_ids:
                work.answer.stop(EarlyEnding("revoked", errors.AccessEnded()))

    def unrecordable(self) -> str | None:
        """Why usage of one request more could not be recorded for sure; None: it could."""
        return self._holding.why_unrecordable(len(self._owners) + self._admitting)

    def requests_running(self) -> int:
        return len(self._owners)

    def begin_stop(self) -> None:
        """Admit nothing from now on."""
        self._stopping = True

    async def wait_idle(self, patience_s: float) -> None:
        """Until nothing runs, or `patience_s` is over."""
        if self._owners:
            await asyncio.wait(list(self._owners), timeout=patience_s)

    async def stop(self, patience_s: float) -> None:
        """Stop what still runs and see it settled, for at most `patience_s`; what is left then is cancelled: what it
        made goes to the journal, and holds of those that made nothing expire with the lease."""
        self._stopping = True
        for work in list(self._owners.values()):
            work.answer.stop()
        await self.wait_idle(patience_s)
        left = list(self._owners)
        for owner in left:
            owner.cancel()
        await asyncio.gather(*left, return_exceptions=True)
