"""The texts of one request while they are made: started, followed, ended together, and summed up.

A prompt's first text goes ahead; the others begin once it has a token, so that they find the prompt's pages in the
prefix cache. It must never know HTTP, SQL or a price.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from engine.protocol import frames
from engine.protocol.client import EngineLost, EngineUnavailable, Generation
from gateway import errors
from gateway.generation.answer import FinishReason
from gateway.generation.inflight import InFlight
from gateway.generation.text import TextOfIds

ENGINE_UNAVAILABLE_MESSAGE = "The engine cannot take this request now. Try again in a moment."
# Of several texts, the ending that tells the most names the request's.
ENDINGS_BY_RANK = ("client_left", "length", "stop")
NO_USAGE = frames.EngineUsage()
NO_RECOMPUTE = frames.TierRecompute()

_log = logging.getLogger(__name__)


class TextEnding(msgspec.Struct, frozen=True):
    """How one text ended: in a word, and for the caller as a finish reason or an error."""

    ending: str
    finish_reason: FinishReason | None
    error: errors.ApiError | None = None
    made: int = 0  # completion tokens
    usage: frames.EngineUsage = NO_USAGE
    refused: bool = False  # the engine never ran it


@dataclass(slots=True, eq=False)
class TextRun:
    """One text in the making."""

    index: int  # of the answer's texts
    prompt: int  # which of the request's
    number: int  # among those of its prompt; 0 goes ahead
    max_tokens: int
    text: TextOfIds
    started: asyncio.Event = field(default_factory=asyncio.Event)  # it has a token, or has ended
    generation: Generation | None = None
    end: TextEnding | None = None


class Outcome(msgspec.Struct, frozen=True):
    """How a request ended, for the ledger and for the caller. `prompt` counts the prompts of which a token is billed:
    who got nothing pays nothing."""

    ending: str
    error: errors.ApiError | None
    refused: bool
    prompt: int
    cached: int  # of `prompt`
    shared: int  # prompt tokens that further texts found in the cache; nobody is billed for those
    billed: int  # completion tokens
    made: int
    discard_reason: str | None
    usage: frames.EngineUsage  # the first text's; of what was worked, the sum


class TextRuns:
    """All texts of one request. `run` returns when each has ended; `stop` ends them early."""

    def __init__(
        self,
        work: InFlight,
        granted: int,
        *,
        submit: Callable[[TextRun], Generation],
        stopping: Callable[[], bool],
        first_token: Callable[[InFlight], None],
    ) -> None:
        """`granted`: the completion tokens that the hold allows, shared out evenly, the first texts getting the odd
        ones. `stopping`: whether this process ends."""
        assert granted >= work.texts, "the ledger grants each text a token, or refuses"
        self._work = work
        self._submit = submit
        self._stopping = stopping
        self._first_token = first_token
        self._failure: TextEnding | None = None
        self._stopped = False
        each, odd = divmod(min(granted, work.max_tokens * work.texts), work.texts)
        self.all = [self._choice(index, each + (index < odd)) for index in range(work.texts)]

    def _choice(self, index: int, max_tokens: int) -> TextRun:
        work = self._work
        prompt, number = divmod(index, work.n)
        rules = work.rules
        detokenizer = work.model.tokenizer.detokenizer(skip_special_tokens=rules.skip_special_tokens)
        text = TextOfIds(detokenizer, rules.stops, work.stop_ids, rules.min_tokens)
        return TextRun(index, prompt, number, max_tokens, text)

    async def run(self) -> Outcome:
        self._work.answer.on_leave(self.stop)
        if self._stopping():
            self.stop()
        if len(self.all) == 1:
            await self._follow(self.all[0])
        else:
            async with asyncio.TaskGroup() as group:
                for choice in self.all:
                    group.create_task(self._after_the_first(choice))
        return self._sum_up()

    def stop(self) -> None:
        """End what runs and start nothing more. Idempotent."""
        self._stopped = True
        for choice in self.all:
            if choice.generation is not None:
                choice.generation.abort()

    def interrupted_outcome(self) -> Outcome:
        """What there is until now, when the process ends and waits no longer. `run` must have been cancelled."""
        self.stop()
        for choice in self.all:
            if choice.end is None:
                choice.end = self._early_ending(choice, _token_usage(choice))
                if choice.end.error is not None and self._failure is None:
                    self._failure = choice.end
        return self._sum_up()

    def confirm_recorded(self) -> None:
        """What was made is in the books."""
        for choice in self.all:
            if choice.generation is not None and choice.end is not None and choice.end.made:
                choice.generation.recorded()

    async def _after_the_first(self, choice: TextRun) -> None:
        first = self.all[choice.index - choice.number]
        if choice is not first:
            await first.started.wait()
        await self._follow(choice)

    async def _follow(self, choice: TextRun) -> None:
        """Pass the tokens of one text on until it ends."""
        try:
            end = await self._run_text(choice)
        except (EngineUnavailable, frames.ProtocolError) as error:
            _log.warning("submit.failed", extra={"fields": self._fields(reason=str(error))})
            end = TextEnding("engine_unavailable", None, errors.EngineDown(ENGINE_UNAVAILABLE_MESSAGE), refused=True)
        choice.end = end
        text = self._work.answer.texts[choice.index]
        text.finish_reason, text.matched = end.finish_reason, choice.text.matched
        if end.error is not None and self._failure is None:
            self._failure = end
            self.stop()
        choice.started.set()

    async def _run_text(self, choice: TextRun) -> TextEnding:
        """Raises EngineUnavailable, ProtocolError."""
        if self._stopped:
            return self._early_ending(choice, NO_USAGE)
        generation = choice.generation = self._submit(choice)
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        generation.listen(lambda: self._on_ids(choice, generation, over))
        await over
        event = generation.ending
        assert event is not None, "a generation ends with its ending"
        if isinstance(event, frames.Refused):
            return self._refused(event)
        if rest := choice.text.flush_text():
            self._work.answer.add_text(choice.index, rest)
        return self._ending_of(choice, event)

    def _on_ids(self, choice: TextRun, generation: Generation, over: asyncio.Future[None]) -> None:
        """Something came, with no task switch between the engine's socket and the answer. `over` ends the waiting."""
        if over.done():
            return
        try:
            if ids := generation.take_ids():
                self._take_ids(choice, generation, ids)
        except Exception as error:  # noqa: BLE001 - raised again in the owner, which waits for `over`
            over.set_exception(error)
            return
        if generation.ending is not None:
            over.set_result(None)

    def _take_ids(self, choice: TextRun, generation: Generation, ids: list[int]) -> None:
        """Ids into text, and the text to whoever reads."""
        work, text = self._work, choice.text
        if not choice.started.is_set():
            self._submit_text(choice)
        if text.stopped:
            return
        if work.sampling.logprobs >= 0:
            work.answer.add_text(choice.index, text.push_ids(ids, generation.take_logprobs()), text.take_drawn())
        else:
            work.answer.add_text(choice.index, text.push_ids(ids))
        if text.stopped:
            generation.abort()

    def _submit_text(self, choice: TextRun) -> None:
        work = self._work
        choice.started.set()
        self._first_token(work)
        if work.echo:
            prompt, skip = work.prompts[choice.prompt], work.rules.skip_special_tokens
            text = prompt.text or work.model.tokenizer.decode(prompt.ids, skip_special_tokens=skip)
            work.answer.add_text(choice.index, text)

    def _ending_of(self, choice: TextRun, event: frames.Finished | EngineLost) -> TextEnding:
        usage = _token_usage(choice)
        reason = event.reason if isinstance(event, frames.Finished) else "lost"
        made = max(usage.completion_tokens, choice.text.tokens)
        if choice.text.stopped:
            return TextEnding("stop", "stop", None, made, usage)
        if reason == "stop" or reason == "length":
            return TextEnding(reason, reason, None, made, usage)
        if (self._stopped and reason == "aborted") or self._work.answer.left or self._stopping():
            return self._early_ending(choice, usage)
        fields = self._fields(reason=reason, message=event.message)
        if reason == "error":
            _log.error("generation.engine_failed", extra={"fields": fields})
            return TextEnding("engine_failed", None, errors.InternalError(), made, usage)
        _log.warning("generation.engine_lost", extra={"fields": fields})
        error = errors.EngineDown("The engine was lost while it answered. Try again in a moment.")
        return TextEnding("engine_lost", None, error, made, usage)

    def _early_ending(self, choice: TextRun, usage: frames.EngineUsage) -> TextEnding:
        """Stopped by us: because another text failed, the caller left, the answer is cut, or the process ends."""
        made = max(usage.completion_tokens, choice.text.tokens)
        if self._failure is not None:
            return msgspec.structs.replace(self._failure, made=made, usage=usage, refused=False)
        if self._work.answer.left:
            return TextEnding("client_left", "stop", None, made, usage)
        if (cut := self._work.answer.cut) is not None:
            return TextEnding(cut.ending, None, cut.error, made, usage)
        return TextEnding("shutdown", None, errors.EngineDown("This server is stopping."), made, usage)

    def _refused(self, refused: frames.Refused) -> TextEnding:
        error = _refusal(self._work, refused)
        if refused.code not in ("queue_full", "too_long"):
            _log.warning(
                "generation.refused", extra={"fields": self._fields(code=refused.code, reason=refused.message)}
            )
        return TextEnding(f"engine_refused_{refused.code}", None, error, refused=True)

    def _fields(self, **fields: str) -> dict[str, str]:
        return {"request_id": self._work.request_id, **fields}

    def _sum_up(self) -> Outcome:
        work = self._work
        ends = [choice.end for choice in self.all if choice.end is not None]
        assert len(ends) == len(self.all)
        failure = self._failure
        # Of an answer that fails, a caller has what was streamed, and nothing of one that was to come whole.
        given = failure is None or work.stream
        billed = [choice.text.tokens if given else 0 for choice in self.all]
        prompt = cached = 0
        for first, counted in zip(self.all[:: work.n], work.prompts, strict=True):
            if any(billed[first.index : first.index + work.n]):
                prompt += len(counted.ids)
                cached += min(ends[first.index].usage.cached_tokens, len(counted.ids))
        discards = [end.ending for end, tokens in zip(ends, billed, strict=True) if end.made > tokens]
        if failure is not None:
            ending = failure.ending
        else:
            ending = min([end.ending for end in ends], key=ENDINGS_BY_RANK.index)
        return Outcome(
            ending=ending,
            error=None if failure is None else failure.error,
            refused=failure is not None and failure.refused,
            prompt=prompt,
            cached=cached,
            shared=sum([end.usage.cached_tokens for choice, end in zip(self.all, ends, strict=True) if choice.number]),
            billed=sum(billed),
            made=sum([end.made for end in ends]),
            discard_reason=discards[0] if discards else None,
            usage=_summed([end.usage for end in ends]),
        )


def _token_usage(choice: TextRun) -> frames.EngineUsage:
    """What the engine has said that it took: all of it with its ending, what was cached with its first token."""
    generation = choice.generation
    if generation is None:
        return NO_USAGE
    if isinstance(generation.ending, frames.Finished):
        return generation.ending.usage
    return frames.EngineUsage(cached_tokens=generation.cached_tokens)


def _summed(usages: Sequence[frames.EngineUsage]) -> frames.EngineUsage:
    return msgspec.structs.replace(
        usages[0],
        device_s=sum([usage.device_s for usage in usages]),
        preemptions=sum([usage.preemptions for usage in usages]),
        recomputed_tokens=sum([usage.recomputed_tokens for usage in usages]),
        recomputed=_by_cause(usages),
        swapped_tokens=sum([usage.swapped_tokens for usage in usages]),
    )


def _by_cause(usages: Sequence[frames.EngineUsage]) -> dict[str, frames.TierRecompute]:
    """What preemption cost all of them, by the tier that caused it."""
    summed: dict[str, frames.TierRecompute] = {}
    for usage in usages:
        for tier, cost in usage.recomputed.items():
            before = summed.get(tier, NO_RECOMPUTE)
            summed[tier] = frames.TierRecompute(before.tokens + cost.tokens, before.device_s + cost.device_s)
    return summed


def _refusal(work: InFlight, refused: frames.Refused) -> errors.ApiError:
    """What the engine's refusal is for the caller."""
    if refused.code == "queue_full":
        message = f"The {work.service_tier} tier is full. Try again later."
        return errors.Overloaded(message, retry_after_s=refused.retry_after_s or 1.0)
    if refused.code == "too_long":
        return errors.ContextLengthExceeded(f"The engine cannot fit this request: {refused.message}.")
    if refused.code == "bad_request":
        return errors.InvalidRequest(f"The engine refuses this request: {refused.message}.")
    return errors.EngineDown(ENGINE_UNAVAILABLE_MESSAGE, retry_after_s=refused.retry_after_s or 1.0)
