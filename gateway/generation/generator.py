"""The path of one request: route, count, reserve, hold, submit, follow, settle.

Each admitted request has an owner task that outlives its HTTP exchange and gives it exactly one ending. This module
orders the steps; it must never know HTTP, SQL or how an engine generates tokens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterator

from billing.database import DatabaseUnavailable
from billing.ledger.ledger import Held
from gateway import errors
from gateway.access.callers import Caller, Callers, TenantName
from gateway.api.bodies import ParsedBody
from gateway.api.generation_request import GenerationRequest
from gateway.api.pooling.vectors import PooledVectors
from gateway.catalog.registry import ModelTarget
from gateway.config.server_secrets import ServerSecrets
from gateway.engines.engine import AdapterFailed, EngineUnavailable, TokenStream
from gateway.fleet.fleet import Fleet
from gateway.generation.answer import Answer, EarlyEnding, TokenUsage
from gateway.generation.endings import EndingCode
from gateway.generation.exhausted_budgets import ExhaustedBudgets
from gateway.generation.first_tokens import FirstTokens
from gateway.generation.holds import RequestHolds
from gateway.generation.inflight import InFlight, LineRun, RequestPlan, engine_request_of
from gateway.generation.planning import RequestPlanner, TokenizedPrompt
from gateway.generation.replays import FirstCall, IdempotentCall, Replayed
from gateway.generation.selector import Selector, log_selection
from gateway.generation.text_runs import ENGINE_UNAVAILABLE_MESSAGE, Outcome, TextRun, TextRuns
from gateway.generation.tier_choice import Tiers
from gateway.limits.limiter import Admission, Limiter, end_refused
from gateway.log import RequestLine, ThrottledWarning
from gateway.metrics import Metrics
from gateway.telemetry import names
from gateway.telemetry.request_errors import note_error
from gateway.telemetry.request_metrics import RequestMetrics

JOURNAL_RETRY_S = 5.0
# Makes the function that renders the whole body of a request's answer.
Renderer = Callable[[InFlight], Callable[[Answer], Iterator[bytes]]]

_log = logging.getLogger(__name__)


class Generator:
    """Owns every request in flight of this process."""

    def __init__(
        self,
        *,
        selector: Selector,
        planner: RequestPlanner,
        tiers: Tiers,
        limiter: Limiter,
        holding: RequestHolds,
        engine: Fleet,
        callers: Callers,
        metrics: Metrics,
        first_tokens: FirstTokens,
        exhausted: ExhaustedBudgets,
        secrets: ServerSecrets,
    ) -> None:
        self._selector = selector
        self._planner = planner
        self._tiers = tiers
        self._limiter = limiter
        self._holding = holding
        self._engine = engine
        self._callers = callers
        self._metrics = metrics
        self._gen_ai = RequestMetrics(metrics.registry)
        self._first_tokens = first_tokens
        self._exhausted = exhausted
        self._secrets = secrets
        self._owners: dict[asyncio.Task[None], InFlight] = {}
        self._admitting = 0
        self._stopping = False
        self._unrecordable = ThrottledWarning(_log, "admission.unrecordable")

    # ---- before the owner exists: if one of these raises, the caller of `admit` ends the admission

    async def admit(self, caller: Caller) -> Admission:
        """Count the request under the limits on requests per minute and on concurrent requests, before the body is
        read. Raises RateLimited, BudgetExceeded, EngineDown."""
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
        renderer: Renderer | None = None,
        line_run: LineRun | None = None,
    ) -> InFlight | Replayed:
        """Route, count, reserve the tokens, and start an owner task, which then ends the `admission`. Returns Replayed
        if the `call` was answered meanwhile. `renderer` makes the body that is stored: for replays of the `call`, or as
        the output of a line of a batch. Raises ApiError; later errors of the ledger or the engine are the answer's
        error."""
        assert (call is None and line_run is None) == (renderer is None), "only a call or a line stores its answer"
        if self._stopping:
            raise errors.EngineDown("This server is stopping.")
        line.model_asked = asked.model
        route = self._selector.route(caller, asked, line, None if line_run is None else line_run.target)
        tier = self._tiers.serve(caller.tier, asked.service_tier)
        line.record.tier, line.record.stream = tier, asked.stream
        try:
            if len(route.candidates) > 1:  # each may count the prompt again: refuse first what cannot fit
                await self._limiter.reserve(admission, asked.tokens_min)
            plan, fallbacks = await self._selector.first(caller, asked, route, tier, line)
            if renderer is not None:
                self._planner.check_stored_answer(asked, plan, is_line=line_run is not None)
            started = caller, asked, line, call, renderer, plan, fallbacks, tier, admission, line_run
            return await self._begin_request(*started)
        except (errors.Unavailable, DatabaseUnavailable):
            if line_run is None:  # a line runs again
                self._first_tokens.refused(tier, caller.tenant_id, line.record.model)
            raise

    async def _begin_request(
        self,
        caller: Caller,
        asked: GenerationRequest,
        line: RequestLine,
        call: IdempotentCall | None,
        renderer: Renderer | None,
        plan: RequestPlan,
        fallbacks: list[ModelTarget],
        tier: str,
        admission: Admission,
        line_run: LineRun | None,
    ) -> InFlight | Replayed:
        line.record.texts, line.record.guided = plan.texts, plan.answer.guide is not None
        self._check_journal()
        first = await self._reserve(admission, plan.tokens_max, call)
        if isinstance(first, Replayed):
            return first
        request = InFlight(
            request_id=line.record.request_id,
            caller=caller,
            asked=asked if fallbacks else asked.without_body(),
            plan=plan,
            fallbacks=fallbacks,
            tier=tier,
            service_tier=self._tiers.service_tier(tier),
            admission=admission,
            line=line,
            answer=Answer(
                plan.texts,
                stream=asked.stream or asked.background,
                pooled=None if asked.embedding is None else PooledVectors(asked.embedding),
            ),
            first=first,
            line_run=line_run,
            reasoning_keys=self._planner.reasoning_keys(caller) if asked.seals_reasoning else None,
        )
        if not fallbacks:
            request.answer.model = plan.target.name
        if renderer is not None:
            request.answer.render = renderer(request)
        line.retain()
        owner = asyncio.create_task(self._own(request), name=request.request_id)
        self._owners[owner] = request
        owner.add_done_callback(self._owners.pop)
        return request

    async def _reserve(
        self, admission: Admission, tokens: int, call: IdempotentCall | None
    ) -> FirstCall | Replayed | None:
        """Reserve the tokens under the limits, and then insert the row of a call with an Idempotency-Key. Raises
        ApiError, DatabaseUnavailable."""
        self._admitting += 1  # counts as a running request for the journal's space
        try:
            await self._limiter.reserve(admission, tokens)
            return None if call is None else await call.begin_call()
        finally:
            self._admitting -= 1

    async def read(self, caller: Caller, kind: str, body: bytes) -> ParsedBody:
        """See `RequestPlanner.read`."""
        return await self._planner.read(caller, kind, body)

    async def check_items(self, caller: Caller, body: bytes) -> None:
        """See `RequestPlanner.check_items`."""
        await self._planner.check_items(caller, body)

    async def count(self, caller: Caller, asked: GenerationRequest) -> int:
        """The number of prompt tokens, for count requests. Raises ApiError."""
        target = self._selector.counting(caller, asked.model)
        return await self._planner.count(caller, target, asked)

    async def tokenize(self, caller: Caller, asked: GenerationRequest) -> TokenizedPrompt:
        """The ids of one prompt, as a request with it is billed. Raises ApiError."""
        target = self._selector.tokenizing(caller, asked)
        return await self._planner.tokenize(caller, target, asked)

    async def detokenize(self, caller: Caller, asked: GenerationRequest) -> str:
        """The text of one prompt of ids. Raises ApiError."""
        target = self._selector.tokenizing(caller, asked)
        return await self._planner.detokenize(caller, target, asked)

    def _check_journal(self) -> None:
        """A request may only begin if its usage can be journaled. Raises DatabaseDown."""
        if (why := self.unrecordable()) is not None:
            self._unrecordable.warn(reason=why)
            raise errors.DatabaseDown("Usage cannot be recorded now. Try again later.", retry_after_s=JOURNAL_RETRY_S)

    # ---- the owner

    async def _own(self, request: InFlight) -> None:
        """All steps after admission, also if the caller disconnects."""
        try:
            await self._confirm(request)
            held = await self._holding.place_hold(request)
            request.answer.grant(held.max_tokens)
            await self._load_adapter(request)
            with self._metrics.running.labels(request.tier).track_inprogress():
                outcome = await self._run_with_fallbacks(request, held)
                await self._close(request, outcome)
        except errors.ApiError as error:
            await end_refused(request.admission, error)
            if isinstance(error, errors.BudgetExceeded):
                self._exhausted.note_refusal(request.caller, error)
            if error.status == 429:
                error.limit_headers = request.admission.headers()
            await self._fail(request, error)
        except asyncio.CancelledError:
            if request.runs is not None:
                self._cut_off(request, request.runs.interrupted_outcome())
            raise
        except Exception:  # noqa: BLE001 - the owner is a task's edge: the fault is counted, logged and answered
            self._metrics.errors.inc()
            _log.exception("generation.failed", extra={"fields": {"request_id": request.request_id}})
            if request.runs is not None:
                request.runs.stop()
            await self._holding.void_hold(request, EndingCode.INTERNAL_ERROR)  # no effect on a hold that has ended
            await request.admission.refund()
            await self._fail(request, errors.InternalError())
        finally:
            request.runs = None  # breaks a reference cycle
            request.line.release()

    async def _run_with_fallbacks(self, request: InFlight, held: Held) -> Outcome:
        """Run the request on its model; while engines refuse it, on its fallbacks, one after another. If all refuse,
        the outcome is the first model's: its error has the caller's Retry-After."""
        first = outcome = await self._run_once_loaded(request, held)
        while self._may_fall_back(request, outcome) and (moved := await self._fall_back(request)) is not None:
            outcome = await self._run_texts(request, moved)
        return first if outcome.refused and not outcome.made else outcome

    async def _run_once_loaded(self, request: InFlight, held: Held) -> Outcome:
        """Run the request. If another gateway had the adapter unloaded meanwhile, load it and run the request once
        more."""
        outcome = await self._run_texts(request, held)
        if outcome.ending is EndingCode.REFUSED_ADAPTER_UNKNOWN and not outcome.made:
            self._forget_adapter(request)
            await self._load_adapter(request)
            outcome = await self._run_texts(request, held)
        return outcome

    async def _run_texts(self, request: InFlight, held: Held) -> Outcome:
        request.runs = TextRuns(
            request,
            held.max_tokens,
            submit=lambda run: self._submit(request, run),
            stopping=lambda: self._stopping,
            first_token=self._first_token,
        )
        return await request.runs.run()

    def _may_fall_back(self, request: InFlight, outcome: Outcome) -> bool:
        """No token was made, the caller still waits, and another model may serve the request."""
        over = request.answer.left or request.answer.cut is not None or self._stopping
        return outcome.refused and outcome.ending.may_fall_back and not outcome.made and not over

    async def _fall_back(self, request: InFlight) -> Held | None:
        """Move the hold to the next fallback that can serve the request and whose price the budgets allow. Returns None
        if there is no such model. Raises DatabaseDown; then the hold is voided."""
        following = self._selector.following
        while (
            plan := await following(request.caller, request.asked, request.target, request.fallbacks, request.line)
        ) is not None:
            try:
                await self._limiter.reserve(request.admission, plan.tokens_max)
            except errors.RateLimited:
                return None
            held = await self._holding.move_hold(request, plan)
            if held is not None:
                request.plan = plan
                request.answer.granted = held.max_tokens
                log_selection(request.line, request.asked, plan)
                return held
        return None

    def _forget_adapter(self, request: InFlight) -> None:
        """The engine refused the adapter as unknown: the next request loads it again."""
        if request.target.adapter is not None:
            self._engine.forget_adapter(request.target.adapter.digest)

    def _first_token(self, request: InFlight) -> None:
        record = request.line.record
        request.answer.model = request.target.name
        if record.ttft_s is not None:
            return
        record.ttft_s = request.line.age_s()
        if request.line_run is None:  # a line has the deadline of its batch, and no target
            self._metrics.ttft.labels(request.tier).observe(record.ttft_s)
            targets = self._first_tokens.observe(request.tier, record.ttft_s, request.prompt_tokens)
            record.ttft_target_s, record.itl_target_s = targets.ttft_s, targets.itl_s

    async def _confirm(self, request: InFlight) -> None:
        """Check the key again: it may have been revoked while the body arrived. A later revocation ends the request by
        `end_requests_of`. Raises InvalidApiKey, DatabaseDown."""
        try:
            await self._callers.confirm(request.caller)
        except DatabaseUnavailable:
            raise errors.DatabaseDown("Keys cannot be checked now. Try again in a moment.") from None

    async def _load_adapter(self, request: InFlight) -> None:
        """Register the adapter with the engine, if that has not been done. Raises EngineDown; then the hold is
        voided."""
        adapter = request.target.adapter
        if adapter is None:
            return
        times, began_s = request.line.times, request.line.age_s()
        try:
            await self._engine.ensure(adapter.digest, adapter.base_model)
            times.load_s = (times.load_s or 0.0) + request.line.age_s() - began_s
        except (AdapterFailed, EngineUnavailable, OSError, ValueError) as error:
            _log.warning("submit.failed", extra={"fields": {"request_id": request.request_id, "reason": str(error)}})
            await self._holding.void_hold(request, EndingCode.ENGINE_UNAVAILABLE)
            raise errors.EngineDown(ENGINE_UNAVAILABLE_MESSAGE) from None

    def _submit(self, request: InFlight, run: TextRun) -> TokenStream:
        """Raises EngineUnavailable."""
        if not run.index:
            request.line.times.weights_s = self._engine.weights_wait_s(request.target.model)
        return self._engine.submit(engine_request_of(request, run, self._secrets.current))

    async def _close(self, request: InFlight, outcome: Outcome) -> None:
        """Settle the hold, or void it if nothing is billed and no token was made; then end the answer. A prompt is
        billed once: with its first completion token, or when it is computed if `max_tokens` is 0. Raises ApiError for a
        request that never ran."""
        record, metrics, made_s = request.line.record, self._metrics, request.line.age_s()
        operation = _operation_name(request.asked)
        if record.trace_id is not None and request.runs is not None:
            request.line.times.operation, request.line.times.texts = operation, request.runs.times()
        if request.runs is not None:
            record.itl_s, record.pause_s = request.runs.token_gaps()
        if record.ttft_s is None and outcome.ending is EndingCode.CLIENT_LEFT:
            self._note_impatience(request, made_s)
        usage = TokenUsage(outcome.prompt, outcome.cached, outcome.billed, outcome.reasoning, outcome.engines)
        if outcome.settles:
            if request.first is not None and outcome.error is None:
                await request.first.keep_answer(await request.answer.spell(usage))
            if request.answer.record_end is not None:
                await request.answer.record_end(usage, outcome.error)
            output = None
            if request.line_run is not None and outcome.error is None:
                output = await request.line_run.output_of(await request.answer.spell(usage))
            await self._holding.settle_hold(request, outcome, output)
            assert request.runs is not None
            request.runs.confirm_recorded()
        else:
            await self._holding.void_hold(request, outcome.ending)
            if outcome.refused and outcome.error is not None:
                if outcome.ending is EndingCode.REFUSED_ADAPTER_UNKNOWN:
                    self._forget_adapter(request)
                raise outcome.error
        discarded = outcome.made - outcome.billed
        record.ending = outcome.ending.value
        record.cached_tokens, record.shared_tokens = outcome.cached, outcome.shared
        record.completion_tokens, record.discarded_tokens = outcome.billed, discarded
        if outcome.settles or outcome.error is None:
            await request.admission.finish_request(request.prompt_tokens + outcome.made)
        else:  # it failed without a token: it does not count under the limits
            await request.admission.refund()
        metrics.endings.labels(request.tier, outcome.ending.value).inc()
        metrics.tokens.labels(request.tier, "prompt").inc(outcome.prompt)
        metrics.tokens.labels(request.tier, "cached").inc(outcome.cached)
        metrics.tokens.labels(request.tier, "completion").inc(outcome.billed)
        if outcome.discard_reason is not None:
            metrics.discarded.labels(outcome.discard_reason.value).inc(discarded)
        metrics.total.labels(request.tier).observe(request.line.age_s())
        self._gen_ai.observe(record, operation, outcome.prompt, made_s)
        if outcome.error is not None:
            await self._fail(request, outcome.error)
        else:
            request.answer.finish_answer(usage)

    def _cut_off(self, request: InFlight, outcome: Outcome) -> None:
        """The process stops without waiting: journal the tokens made. The settler ignores this for a request that has
        its ending."""
        record = request.line.record
        record.ending, record.completion_tokens = outcome.ending.value, outcome.billed
        if request.runs is not None:
            record.itl_s, record.pause_s = request.runs.token_gaps()
        if request.asked.background or request.line_run is not None:
            return  # a checkpoint settles a background response's hold; a line's hold expires
        if outcome.settles:
            self._holding.journal_settlement(request, outcome)

    def _note_impatience(self, request: InFlight, waited_s: float) -> None:
        """Count a caller that left before its first token, if the token was overdue. A caller that left earlier might
        have been served in time."""
        if waited_s > self._first_tokens.targets(request.tier, request.prompt_tokens).ttft_s:
            self._first_tokens.unanswered(request.tier, request.caller.tenant_id, request.target.model)

    async def _fail(self, request: InFlight, error: errors.ApiError) -> None:
        request.line.record.code = error.code
        note_error(request.line, error)
        if request.line.record.ttft_s is None and request.line_run is None:
            subject = request.tier, request.caller.tenant_id, request.target.model
            if error.status == errors.Unavailable.status:
                self._first_tokens.refused(*subject)
            elif error.status >= 500:
                self._first_tokens.unanswered(*subject)
        if request.first is not None:
            await request.first.forget_call()
        request.answer.fail(error)

    # ---- requests in flight, as others see and end them

    def key_ids(self, tenant_ids: Container[str | None] | None = None) -> set[str]:
        """Ids of keys with running requests; of these tenants only, if given (None: the operator's keys)."""
        callers = [request.caller for request in self._owners.values()]
        return {caller.key_id for caller in callers if tenant_ids is None or caller.tenant_id in tenant_ids}

    def tenants(self) -> dict[str, TenantName]:
        """The tenants of the requests in flight, by request id."""
        callers = ((request.request_id, request.caller) for request in self._owners.values())
        return {id_: TenantName(caller.tenant_id or "", caller.tenant_slug or "") for id_, caller in callers}

    def end_requests_of(self, key_ids: Container[str]) -> None:
        """End the requests of these keys. The tokens that their callers received are billed."""
        for request in list(self._owners.values()):
            if request.caller.key_id in key_ids:
                request.answer.stop(EarlyEnding(EndingCode.REVOKED, errors.AccessEnded()))

    def unrecordable(self) -> str | None:
        """Why the usage of one more request might not be recorded; None: the journal has space for it."""
        return self._holding.why_unrecordable(len(self._owners) + self._admitting)

    def requests_running(self) -> int:
        return len(self._owners)

    def begin_stop(self) -> None:
        """Admit nothing from now on."""
        self._stopping = True

    async def wait_idle(self, patience_s: float) -> None:
        """Returns when no request is in flight, or after `patience_s`."""
        if self._owners:
            await asyncio.wait(list(self._owners), timeout=patience_s)

    async def stop(self, patience_s: float) -> None:
        """Abort the requests in flight and wait at most `patience_s` for their settlement; then cancel the remaining
        owners. A cancelled owner journals its tokens; holds without a token expire with the lease."""
        self._stopping = True
        for request in list(self._owners.values()):
            request.answer.stop()
        await self.wait_idle(patience_s)
        left = list(self._owners)
        for owner in left:
            owner.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def _operation_name(asked: GenerationRequest) -> str:
    """For traces and metrics."""
    if asked.embedding is not None:
        return names.EMBEDDINGS
    return names.TEXT_COMPLETION if asked.is_completion else names.CHAT
