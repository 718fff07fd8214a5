"""The path of one request, from who asks to what was used: resolve, count, limit, hold, submit, follow, settle.

Each admitted request has an owner task that outlives its HTTP exchange and gives it exactly one ending. This module
orders the steps; it must never know HTTP, SQL or how tokens are made.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from billing.ledger import Held, HoldRefused, HoldRequest, Ledger, LedgerUnavailable, Settlement
from engine import protocol
from engine.client import AdapterFailed, EngineClient, EngineLost, EngineUnavailable, Generation
from engine.tokenizer import ENCODE_HOLDING_GIL_CHARS_MAX, TemplateError, Tokenizer
from gateway import errors, wire
from gateway.answer import Answer
from gateway.callers import Caller
from gateway.limits import Admission, Allowance, Limiter
from gateway.loader import AdapterLoader
from gateway.log import RequestLine
from gateway.metrics import Metrics
from gateway.registry import Registry, Target
from gateway.text import TextOfIds
from gateway.tiers import Tiers

# A text longer than this many characters per token of the window is refused before it is counted.
CHARS_PER_TOKEN_MAX = 32
TOKENIZER_THREADS = 2
TOKENIZING_MAX = 64  # long prompts that wait for those threads

_log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class ServedModel:
    """A base model as the gateway knows it."""

    name: str
    tokenizer: Tokenizer
    default_max_tokens: int
    created: int  # Unix seconds


@dataclass(slots=True, frozen=True)
class InFlight:
    """One request that was admitted under the limits, and the answer that its owner writes."""

    request_id: str
    caller: Caller
    target: Target
    model: ServedModel
    fingerprint: str
    tier: str
    service_tier: str
    prompt_ids: list[int]
    max_tokens: int  # asked; the hold may grant less
    sampling: protocol.Sampling
    stops: list[str]
    stream: bool
    admission: Admission
    line: RequestLine
    answer: Answer


@dataclass(slots=True, frozen=True)
class Outcome:
    """How a generation ended: for the ledger in a word, for the caller as a finish reason or an error."""

    ending: str
    finish_reason: wire.FinishReason | None
    error: errors.ApiError | None
    billed: int  # completion tokens
    made: int
    usage: protocol.Usage


class Generator:
    """Owns every request in flight of this process."""

    def __init__(
        self,
        *,
        models: Mapping[str, ServedModel],
        registry: Registry,
        tiers: Tiers,
        limiter: Limiter,
        allowance: Allowance,
        ledger: Ledger,
        engine: EngineClient,
        loader: AdapterLoader,
        metrics: Metrics,
        secret: bytes,
    ) -> None:
        self._models = models
        self._registry = registry
        self._tiers = tiers
        self._limiter = limiter
        self._allowance = allowance
        self._ledger = ledger
        self._engine = engine
        self._loader = loader
        self._metrics = metrics
        self._secret = secret
        self._owners: dict[asyncio.Task[None], InFlight] = {}
        self._stopping = False
        self._tokenizing = 0
        self._threads = ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokenizer")

    # ---- before admission: whoever is refused here has taken nothing

    async def begin(self, caller: Caller, request: wire.ChatRequest, line: RequestLine) -> InFlight:
        """Resolve, count, admit, and hand over to an owner. Raises ApiError; what is refused later, by the ledger or
        the engine, comes as the answer's error."""
        if self._stopping:
            raise errors.EngineAway("This server is stopping.")
        target = self._registry.resolve(caller.tenant_id, request.model)
        tier = self._tiers.serve(caller.tier, request.service_tier)
        line.record.model, line.record.tier = target.model, tier
        line.record.adapter = target.adapter.id if target.adapter else None
        line.record.stream = bool(request.stream)
        model = self._models[target.model]
        info = self._engine_model(target.model)
        prompt_ids = await self._count(model, info, request)
        max_tokens = _bound(caller, model, info, request, len(prompt_ids))
        line.record.prompt_tokens = len(prompt_ids)
        work = InFlight(
            request_id=line.record.request_id,
            caller=caller,
            target=target,
            model=model,
            fingerprint=f"fp_{info.digest[:12]}",
            tier=tier,
            service_tier=self._tiers.service_tier(tier),
            prompt_ids=prompt_ids,
            max_tokens=max_tokens,
            sampling=_sampling(request),
            stops=request.stops(),
            stream=bool(request.stream),
            admission=self._limiter.admit(caller.key_id, self._allowance, len(prompt_ids) + max_tokens),
            line=line,
            answer=Answer(stream=bool(request.stream)),
        )
        line.hold()
        owner = asyncio.create_task(self._own(work), name=work.request_id)
        self._owners[owner] = work
        owner.add_done_callback(self._owners.pop)
        return work

    def _engine_model(self, name: str) -> protocol.ModelInfo:
        """Raises EngineAway when no engine serves it now."""
        hello = self._engine.hello
        if self._engine.ready and hello is not None:
            for info in hello.models:
                if info.name == name:
                    return info
        raise errors.EngineAway("The engine that serves this model is away. Try again in a moment.")

    async def _count(self, model: ServedModel, info: protocol.ModelInfo, request: wire.ChatRequest) -> list[int]:
        """The prompt's ids under the chat template. Raises ContextLengthExceeded, InvalidRequest, Overloaded."""
        messages = wire.chat_messages(request)
        chars = sum(len(message["content"]) for message in messages)
        if chars > info.context_tokens * CHARS_PER_TOKEN_MAX:
            raise errors.ContextLengthExceeded(
                f"The messages have {chars} characters; no prompt of that length fits this model's context of "
                f"{info.context_tokens} tokens.",
                param="messages",
            )
        try:
            if chars <= ENCODE_HOLDING_GIL_CHARS_MAX:
                return model.tokenizer.encode_chat(messages)
            if self._tokenizing >= TOKENIZING_MAX:
                raise errors.Overloaded("Too many long prompts are being counted.")
            self._tokenizing += 1
            try:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, model.tokenizer.encode_chat, messages)
            finally:
                self._tokenizing -= 1
        except TemplateError as error:
            raise errors.InvalidRequest(f"'messages' do not fit this model: {error}.", param="messages") from None

    # ---- the owner

    async def _own(self, work: InFlight) -> None:
        """Everything after admission, whatever becomes of the caller."""
        try:
            held = await self._hold(work)
            with self._metrics.running.labels(work.tier).track_inprogress():
                generation = await self._submit(work, held)
                await self._follow(work, generation)
        except errors.ApiError as error:
            work.admission.give_back()
            if error.status == 429:
                error.limit_headers = work.admission.headers()
            self._fail(work, error)
        except Exception:  # noqa: BLE001 - the owner is a process edge: counted, logged, and the caller is told
            self._metrics.errors.inc()
            _log.exception("generation.failed", extra={"fields": {"request_id": work.request_id}})
            work.admission.give_back()
            self._fail(work, errors.InternalError())
        finally:
            work.line.release()

    async def _hold(self, work: InFlight) -> Held:
        """Committed before the engine hears of the request. Raises BudgetExceeded, LedgerAway."""
        asked = HoldRequest(
            request_id=work.request_id,
            tenant_id=work.caller.tenant_id or "",
            key_id=work.caller.key_id,
            model=work.target.model,
            adapter=work.target.adapter.id if work.target.adapter else None,
            tier=work.tier,
            prompt_tokens=len(work.prompt_ids),
            max_tokens=work.max_tokens,
            project_id=work.caller.project_id,
        )
        started = time.perf_counter()
        try:
            answer = await self._ledger.hold(asked)
        except LedgerUnavailable:
            raise errors.LedgerAway("Budgets cannot be checked now. Try again in a moment.") from None
        self._metrics.hold.observe(time.perf_counter() - started)
        if isinstance(answer, HoldRefused):
            if answer.code == "price_unknown":
                _log.error("hold.price_unknown", extra={"fields": {"request_id": work.request_id}})
                raise errors.LedgerAway(answer.message)
            raise errors.BudgetExceeded(answer.message, code=answer.code)
        return answer

    async def _submit(self, work: InFlight, held: Held) -> Generation:
        """Raises EngineAway; the hold is voided then."""
        adapter = work.target.adapter
        tenant = (work.caller.tenant_id or "").encode()
        try:
            if adapter is not None:
                await self._loader.ensure(adapter.digest, adapter.base_model)
            return self._engine.submit(
                request_id=work.request_id,
                model=work.target.model,
                adapter=None if adapter is None else adapter.digest,
                namespace=hmac.digest(self._secret, b"namespace:" + tenant, "sha256").hex(),
                tier=work.tier,
                share=hmac.digest(self._secret, b"share:" + tenant, "sha256").hex()[:16],
                prompt_ids=work.prompt_ids,
                max_tokens=held.max_tokens,
                sampling=work.sampling,
                stop_ids=sorted(work.model.tokenizer.eos_ids),
            )
        except (AdapterFailed, EngineUnavailable, OSError, ValueError) as error:
            _log.warning("submit.failed", extra={"fields": {"request_id": work.request_id, "reason": str(error)}})
            await self._void(work, "engine_unavailable")
            raise errors.EngineAway("The engine cannot take this request now. Try again in a moment.") from None

    async def _follow(self, work: InFlight, generation: Generation) -> None:
        """Pass the tokens on until the generation ends, then close the hold. Raises ApiError for a request that the
        engine refused; its hold is voided then."""
        answer, record = work.answer, work.line.record
        text = TextOfIds(work.model.tokenizer.detokenizer(), work.stops)
        answer.on_leave(generation.abort)
        if self._stopping:
            generation.abort()
        async for event in generation:
            if isinstance(event, list):
                if record.ttft_s is None:
                    record.ttft_s = work.line.age_s()
                    self._metrics.ttft.labels(work.tier).observe(record.ttft_s)
                if text.stopped:
                    continue
                answer.add(text.push(event))
                if text.stopped:
                    generation.abort()
            elif isinstance(event, protocol.Refused):
                await self._void(work, f"engine_refused_{event.code}")
                raise self._refusal(work, event)
            else:
                if rest := text.finish():
                    answer.add(rest)
                await self._close(work, self._outcome(work, text, event))

    def _outcome(self, work: InFlight, text: TextOfIds, event: protocol.Finished | EngineLost) -> Outcome:
        usage = event.usage if isinstance(event, protocol.Finished) else protocol.Usage()
        reason = event.reason if isinstance(event, protocol.Finished) else "lost"
        made = max(usage.completion_tokens, text.tokens)
        sent = text.tokens if work.stream else 0  # of an answer that fails, what the caller got of it
        if text.stopped:
            return Outcome("stop", "stop", None, text.tokens, made, usage)
        if reason == "stop" or reason == "length":
            return Outcome(reason, reason, None, text.tokens, made, usage)
        if work.answer.left:
            return Outcome("client_left", "stop", None, text.tokens, made, usage)
        if self._stopping:
            error = errors.EngineAway("This server is stopping.")
            return Outcome("shutdown", None, error, sent, made, usage)
        fields = {"request_id": work.request_id, "reason": reason, "message": event.message}
        if reason == "error":
            _log.error("generation.engine_failed", extra={"fields": fields})
            return Outcome("engine_failed", None, errors.InternalError(), sent, made, usage)
        _log.warning("generation.engine_lost", extra={"fields": fields})
        error = errors.EngineAway("The engine was lost while it answered. Try again in a moment.")
        return Outcome("engine_lost", None, error, sent, made, usage)

    async def _close(self, work: InFlight, outcome: Outcome) -> None:
        """Settle what is billed, or void when nothing was made; then end the answer. The prompt is billed with the
        first completion token: who got nothing pays nothing."""
        record, metrics = work.line.record, self._metrics
        prompt = len(work.prompt_ids) if outcome.billed else 0
        cached = min(outcome.usage.cached_tokens, prompt)
        discarded = outcome.made - outcome.billed
        record.ending = outcome.ending
        record.cached_tokens, record.completion_tokens, record.discarded_tokens = cached, outcome.billed, discarded
        if outcome.made:
            await self._settle(work, outcome, prompt, cached, discarded)
        else:
            await self._void(work, outcome.ending)
        work.admission.finish(len(work.prompt_ids) + outcome.made)
        metrics.endings.labels(work.tier, outcome.ending).inc()
        metrics.tokens.labels(work.tier, "prompt").inc(prompt)
        metrics.tokens.labels(work.tier, "cached").inc(cached)
        metrics.tokens.labels(work.tier, "completion").inc(outcome.billed)
        if discarded:
            metrics.discarded.labels(outcome.ending).inc(discarded)
        metrics.total.labels(work.tier).observe(work.line.age_s())
        if outcome.error is not None or outcome.finish_reason is None:
            self._fail(work, outcome.error or errors.InternalError())
            return
        details = wire.PromptTokensDetails(cached_tokens=cached)
        total = prompt + outcome.billed
        work.answer.finish(outcome.finish_reason, wire.Usage(prompt, outcome.billed, total, details))

    async def _settle(self, work: InFlight, outcome: Outcome, prompt: int, cached: int, discarded: int) -> None:
        """Raises LedgerAway when the ledger stayed away for its whole patience; the log has the settlement then."""
        usage = outcome.usage
        settlement = Settlement(
            request_id=work.request_id,
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=outcome.billed,
            made_tokens=outcome.made,
            ending=outcome.ending,
            discarded_tokens=discarded,
            discard_reason=outcome.ending if discarded else None,
            queue_s=usage.queue_s,
            ttft_s=usage.ttft_s,
            device_s=usage.device_s,
            preemptions=usage.preemptions,
            recomputed_tokens=usage.recomputed_tokens,
        )
        started = time.perf_counter()
        try:
            ended = await self._ledger.settle(settlement)
        except LedgerUnavailable:
            self._metrics.unsettled.inc()
            _log.critical("settlement.lost", extra={"fields": {"settlement": msgspec.to_builtins(settlement)}})
            raise errors.LedgerAway("The answer was made and could not be accounted for; it is not charged.") from None
        self._metrics.settle.observe(time.perf_counter() - started)
        work.line.record.cost_picos = ended.cost_picos
        if ended.outcome != "settled":
            fields = {"request_id": work.request_id, "outcome": ended.outcome}
            _log.error("settlement.too_late", extra={"fields": fields})

    async def _void(self, work: InFlight, reason: str) -> None:
        work.line.record.ending = reason
        try:
            await self._ledger.void(work.request_id, reason)
        except LedgerUnavailable as error:  # the audit expires it with this gateway's lease
            fields = {"request_id": work.request_id, "reason": str(error)}
            _log.error("void.lost", extra={"fields": fields})

    def _refusal(self, work: InFlight, refused: protocol.Refused) -> errors.ApiError:
        """What the engine's refusal is for the caller."""
        retry_after_s = refused.retry_after_s or 1.0
        if refused.code == "queue_full":
            message = f"The {work.service_tier} tier is full. Try again later."
            return errors.Overloaded(message, retry_after_s=retry_after_s)
        if refused.code == "too_long":
            return errors.ContextLengthExceeded(f"The engine cannot fit this request: {refused.message}.")
        _log.warning(
            "generation.refused",
            extra={"fields": {"request_id": work.request_id, "code": refused.code, "reason": refused.message}},
        )
        if refused.code == "bad_request":
            return errors.InvalidRequest(f"The engine refuses this request: {refused.message}.")
        if refused.code == "adapter_unknown" and work.target.adapter is not None:
            self._loader.forget(work.target.adapter.digest)
        return errors.EngineAway("The engine cannot take this request now. Try again in a moment.")

    def _fail(self, work: InFlight, error: errors.ApiError) -> None:
        work.line.record.code = error.code
        work.answer.fail(error)

    # ---- the end of the process

    def running(self) -> int:
        return len(self._owners)

    def begin_stop(self) -> None:
        """Admit nothing from now on."""
        self._stopping = True

    async def wait_idle(self, patience_s: float) -> None:
        """Until nothing runs, or `patience_s` is over."""
        if self._owners:
            await asyncio.wait(list(self._owners), timeout=patience_s)

    async def stop(self, patience_s: float) -> None:
        """Stop what still runs and see it settled, for at most `patience_s`; what is left then is cancelled, and its
        holds expire with the lease."""
        self._stopping = True
        for work in list(self._owners.values()):
            work.answer.stop()
        await self.wait_idle(patience_s)
        left = list(self._owners)
        for owner in left:
            owner.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)


def _bound(
    caller: Caller, model: ServedModel, info: protocol.ModelInfo, request: wire.ChatRequest, prompt_tokens: int
) -> int:
    """The most tokens the answer may have. What was asked must fit the window; a default is cut to fit.
    Raises ContextLengthExceeded."""
    asked = request.tokens_asked()
    room = info.context_tokens - prompt_tokens
    if room < (asked or 1):
        raise errors.ContextLengthExceeded(
            f"This model's context is {info.context_tokens} tokens; the messages take {prompt_tokens} and the answer "
            f"may take {asked or 1}. Send less, or ask for less.",
            param="messages" if room < 1 else "max_tokens",
        )
    return asked or min(room, caller.default_max_tokens or model.default_max_tokens)


def _sampling(request: wire.ChatRequest) -> protocol.Sampling:
    temperature = 1.0 if request.temperature is None else request.temperature
    top_p = 1.0 if request.top_p is None else request.top_p
    if top_p == 0:  # only the likeliest id is left
        temperature, top_p = 0.0, 1.0
    seed = secrets.randbits(63) if request.seed is None else request.seed & wire.SEED_MAX
    return protocol.Sampling(temperature=temperature, top_p=top_p, seed=seed)
