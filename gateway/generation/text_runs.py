"""The texts of one request while an engine generates them: submitted, followed, ended together, and summed up.

The first text of a prompt is submitted alone; the prompt's other texts are submitted once it has a token, so that they
hit the prompt's pages in the prefix cache. Nothing here knows HTTP, SQL or a price.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from engine.protocol import frames
from gateway import errors
from gateway.engines.engine import (
    NO_USAGE,
    EngineUnavailable,
    Output,
    OutputKind,
    RefusalReason,
    StreamEnd,
    StreamEnding,
    TokenStream,
)
from gateway.generation.answer import FinishReason, TokenUsage
from gateway.generation.endings import REFUSAL_ENDINGS, EndingCode, EndingKind
from gateway.generation.first_tokens import TokenGaps
from gateway.generation.inflight import InFlight
from gateway.generation.parts_readers import PartsOfIds, PartsOfTexts, PartsReader
from gateway.generation.run_usage import made_by, made_by_all, summed, times_of, token_usage
from gateway.generation.text import DrawnIds, OutputReader, PromptReport, TextOfIds, TextOfTexts
from gateway.log import TextTimes

ENGINE_UNAVAILABLE_MESSAGE = "The engine cannot take this request now. Try again in a moment."
# The output of a text before it is submitted. Nothing is ever pushed into it.
NO_OUTPUT: OutputReader = TextOfTexts([])
# Prompts of one request for embeddings that engines have at once; further prompts wait here, and not in the tier's
# queue.
POOLED_AT_ONCE = 32
# Arrivals of output of a whole answer that are turned into text together. Turning each token into text as it arrives
# would take most of the event loop's time beside hundreds of lines of batches.
TAKEN_TOGETHER = 64
# An engine refuses these in ordinary operation.
EXPECTED_REFUSALS = (RefusalReason.QUEUE_FULL, RefusalReason.TOO_LONG)

_log = logging.getLogger(__name__)


class TextEnding(msgspec.Struct, frozen=True):
    """How one text ended: for the books, and for the caller as a finish reason or an error."""

    ending: EndingCode
    finish_reason: FinishReason | None
    error: errors.ApiError | None = None
    engines: dict[str, int] = {}  # completion tokens made, by engine epoch
    usage: frames.EngineUsage = NO_USAGE

    @property
    def made(self) -> int:
        return sum(self.engines.values())


@dataclass(slots=True, eq=False)
class TextRun:
    """One text while it is generated."""

    index: int  # among the answer's texts
    prompt: int  # index among the request's prompts
    number: int  # among the texts of its prompt; 0 is submitted first
    max_tokens: int
    output: OutputReader = NO_OUTPUT
    shown: int = 0  # completion tokens up to the last piece that was added to the answer
    parts: PartsReader | None = None  # `output`, for an answer in parts
    started: asyncio.Event = field(default_factory=asyncio.Event)  # set at the first token, or at the ending
    stream: TokenStream | None = None  # None until it is submitted
    end: TextEnding | None = None
    report: PromptReport | None = None  # of the prompt, if its log probabilities were requested; shared by its texts
    submitted_s: float = 0.0  # this and `ended_s`: from the request's arrival
    ended_s: float = 0.0
    is_pooled: bool = False  # the answer has the prompt's vector
    gaps: TokenGaps = field(default_factory=TokenGaps)
    is_whole: bool = False  # its output may be turned into text late: nobody reads it before the end
    untaken: int = 0  # arrivals of output since output was taken


class Outcome(msgspec.Struct, frozen=True):
    """How a request ended, for the ledger and for the caller. `prompt` counts the tokens of the billed prompts: a
    prompt is billed with its first billed completion token, or, if `max_tokens` is 0, when all of it is computed."""

    ending: EndingCode
    error: errors.ApiError | None
    prompt: int
    cached: int  # of `prompt`
    shared: int  # prompt tokens that further texts found in the prefix cache; not billed
    billed: int  # completion tokens
    reasoning: int  # of `billed`
    engines: dict[str, int]  # completion tokens made, by engine epoch; the newest attempt's epoch last
    discard_reason: EndingCode | None
    usage: frames.EngineUsage  # the first text's, with the engine's request summed over all texts

    @property
    def made(self) -> int:
        return sum(self.engines.values())

    @property
    def refused(self) -> bool:
        """No engine ran it."""
        return self.error is not None and self.ending.refused

    @property
    def settles(self) -> bool:
        """A token was made, or a prompt is billed: the hold is settled. Otherwise it is voided."""
        return self.made > 0 or self.prompt > 0


class TextRuns:
    """All texts of one request. `run` returns when each has ended; `stop` ends them early."""

    def __init__(
        self,
        request: InFlight,
        granted: int,
        *,
        submit: Callable[[TextRun], TokenStream],
        stopping: Callable[[], bool],
        first_token: Callable[[InFlight], None],
    ) -> None:
        """`granted`: the completion tokens that the hold allows, divided evenly; the first texts get the remainder.
        `stopping`: whether this process is stopping. `first_token` is called at the first token of each text."""
        assert granted >= request.texts or request.prompt_alone, "the ledger grants each text a token, or refuses"
        self._request = request
        self._submit = submit
        self._stopping = stopping
        self._first_token = first_token
        self._failure: TextEnding | None = None
        self._stopped = False
        # A request for embeddings may have thousands of prompts.
        self._at_once = asyncio.Semaphore(request.texts if request.plan.pooling is None else POOLED_AT_ONCE)
        each, remainder = divmod(min(granted, request.max_tokens * request.texts), request.texts)
        self.all = [
            TextRun(index, *divmod(index, request.n), max_tokens=each + (index < remainder))
            for index in range(request.texts)
        ]
        if request.sampling.prompt_logprobs >= 0:
            for first in self.all[:: request.n]:
                report = self._report_of(first.prompt)
                for run in self.all[first.index : first.index + request.n]:
                    run.report = report

    def _report_of(self, prompt: int) -> PromptReport:
        request = self._request
        detokenizer = request.model.tokenizer.detokenizer(skip_special_tokens=request.rules.skip_special_tokens)
        echoed = request.sampling.logprobs if request.echo and request.sampling.logprobs >= 0 else None
        ids = request.prompts[prompt].ids
        return PromptReport(ids, detokenizer, echoed=echoed, listed=request.asked.prompt_logprobs)

    def _set_reader(self, run: TextRun, kind: OutputKind) -> None:
        """Set the reader of one text, for ids or for text, as its engine answers."""
        request, syntax = self._request, self._request.plan.answer.syntax
        if syntax is None:
            run.output = self._reader(run, kind)
        else:
            rules = request.rules
            if kind == "text":
                run.parts = PartsOfTexts(syntax, rules.stops, rules.min_tokens)
            else:
                detokenizer = request.model.tokenizer.detokenizer(skip_special_tokens=rules.skip_special_tokens)
                run.parts = PartsOfIds(detokenizer, syntax, rules.stops, request.stop_ids, rules.min_tokens)
            run.output = run.parts
        logprobs = request.sampling.logprobs >= 0 or run.report is not None
        run.is_whole = not (request.in_pieces or request.rules.stops or run.parts is not None or logprobs)

    def _reader(self, run: TextRun, kind: OutputKind) -> OutputReader:
        """The reader of a text without parts."""
        request, rules = self._request, self._request.rules
        if kind == "text":
            return TextOfTexts(rules.stops, rules.min_tokens)
        detokenizer = request.model.tokenizer.detokenizer(skip_special_tokens=rules.skip_special_tokens)
        offset = len(self._echo_of(run)) if request.echo and request.sampling.logprobs >= 0 else 0
        return TextOfIds(detokenizer, rules.stops, request.stop_ids, rules.min_tokens, offset=offset)

    async def run(self) -> Outcome:
        self._request.answer.on_leave(self.stop)
        if self._stopping():
            self.stop()
        if len(self.all) == 1:
            await self._follow(self.all[0])
        else:
            async with asyncio.TaskGroup() as group:
                for run in self.all:
                    group.create_task(self._after_the_first(run))
        return self._sum_up()

    def stop(self) -> None:
        """Abort the running texts and submit no further ones. Idempotent."""
        self._stopped = True
        for run in self.all:
            if run.stream is not None:
                run.stream.abort()

    def interrupted_outcome(self) -> Outcome:
        """The outcome so far, for a process that stops without waiting. `run` must have been cancelled."""
        self.stop()
        for run in self.all:
            if run.end is None:
                run.end = self._early_ending(run, token_usage(run))
                if run.end.error is not None and self._failure is None:
                    self._failure = run.end
        return self._sum_up()

    def usage_shown(self) -> TokenUsage:
        """The usage of an answer of one text up to the last piece of it."""
        [run] = self.all
        prompt = len(self._request.prompts[run.prompt].ids)
        cached = min(token_usage(run).cached_tokens, prompt)
        return TokenUsage(prompt, cached, run.shown, engines=made_by(run))

    def token_gaps(self) -> tuple[float | None, float | None]:
        """The mean time between the tokens of the slowest text, and the longest pause between two tokens of all texts,
        in seconds. None: no text has a second token."""
        several = [(run.gaps, run.output.tokens) for run in self.all if run.output.tokens > 1]
        if not several:
            return None, None
        return max([gaps.mean_s(tokens) for gaps, tokens in several]), max([gaps.pause_s for gaps, _ in several])

    def confirm_recorded(self) -> None:
        """The ledger has the tokens of this request."""
        for run in self.all:
            if run.stream is not None and run.end is not None and run.end.made:
                run.stream.confirm_recorded()

    @property
    def submitted_s(self) -> float | None:
        """Seconds from the request's arrival until its first text was submitted; None: no text was."""
        return min([run.submitted_s for run in self.all if run.stream is not None], default=None)

    def times(self) -> tuple[TextTimes, ...]:
        """Times of the texts that an engine had, once all have ended."""
        return tuple([times_of(run, run.stream) for run in self.all if run.stream is not None])

    async def _after_the_first(self, run: TextRun) -> None:
        first = self.all[run.index - run.number]
        if run is not first:
            await first.started.wait()
        async with self._at_once:
            await self._follow(run)

    async def _follow(self, run: TextRun) -> None:
        """Pass the output of one text on until it ends."""
        try:
            end = await self._run_text(run)
        except EngineUnavailable as error:
            _log.warning("submit.failed", extra={"fields": self._fields(reason=str(error))})
            end = TextEnding(EndingCode.ENGINE_UNAVAILABLE, None, errors.EngineDown(ENGINE_UNAVAILABLE_MESSAGE))
        run.end, run.ended_s = end, self._request.line.age_s()
        text = self._request.answer.texts[run.index]
        text.finish_reason, text.matched = end.finish_reason, run.output.matched
        if end.error is not None and self._failure is None:
            self._failure = end
            self.stop()
        run.started.set()

    async def _run_text(self, run: TextRun) -> TextEnding:
        """Raises EngineUnavailable."""
        if self._stopped:
            return self._early_ending(run, NO_USAGE)
        run.submitted_s = self._request.line.age_s()
        stream = run.stream = self._submit(run)
        self._set_reader(run, stream.output)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stream.listen(lambda: self._on_news(run, stream, done))
        await done
        ending = stream.final
        assert ending is not None, "a stream reports its ending last"
        if ending.end is StreamEnd.REFUSED:
            return self._refused(ending)
        if self._request.prompt_alone and ending.end is StreamEnd.LENGTH:
            self._begin_text(run)
            self._take_vector(run, stream)
        if rest := run.output.flush_text():
            self._request.answer.add_text(run.index, rest)
        if run.parts is not None:
            self._request.answer.add_parts(run.index, run.parts.take_parts())
        return self._ending_of(run, ending)

    def _take_vector(self, run: TextRun, stream: TokenStream) -> None:
        """Move the vector of a pooled prompt into the answer, which retains only the numbers that it shows."""
        vector, stream.vector = stream.vector, None
        if vector is not None and (pooled := self._request.answer.pooled) is not None:
            run.is_pooled = True
            pooled.add_vector(run.index, vector)

    def _on_news(self, run: TextRun, stream: TokenStream, done: asyncio.Future[None]) -> None:
        """Runs in the engine's callback, so that no task switch lies between a token and the answer. `done` wakes
        `_run_text` at the ending."""
        if done.done():
            return
        if run.is_whole and run.started.is_set() and stream.final is None and run.untaken < TAKEN_TOGETHER:
            run.gaps.note_arrival()
            run.untaken += 1
            return
        try:
            if run.report is not None and not run.number:
                for part in stream.take_prompt():
                    run.report.add_part(part)
            if output := stream.take_output():
                self._take_output(run, stream, output)
        except Exception as error:  # noqa: BLE001 - raised again in the owner, which waits for `done`
            done.set_exception(error)
            return
        if stream.final is not None:
            done.set_result(None)

    def _take_output(self, run: TextRun, stream: TokenStream, output: Output) -> None:
        """Turn output into text and write it into the answer."""
        request, text = self._request, run.output
        if not run.started.is_set():
            self._begin_text(run)
        if text.stopped:
            return
        run.gaps.note_arrival()
        run.untaken = 0
        if run.parts is not None:
            text.push_output(output, stream.take_logprobs() if request.sampling.logprobs >= 0 else ())
            if parts := run.parts.take_parts():
                run.shown = text.tokens
            request.answer.add_parts(run.index, parts, text.take_drawn())
        elif request.sampling.logprobs >= 0:
            request.answer.add_text(run.index, text.push_output(output, stream.take_logprobs()), text.take_drawn())
        else:
            if piece := text.push_output(output):
                run.shown = text.tokens
            request.answer.add_text(run.index, piece)
        if text.stopped:
            stream.abort()

    def _begin_text(self, run: TextRun) -> None:
        """Called at the first token of a text; for a text without a token, once its prompt is computed."""
        request = self._request
        run.started.set()
        self._first_token(request)
        drawn = None
        if run.report is not None:
            request.answer.texts[run.index].prompt = run.report
            drawn = DrawnIds()
            drawn.extend(run.report.echoed)  # a copy: the text's own tokens are added to it
        if request.echo:
            request.answer.add_text(run.index, self._echo_of(run), drawn)

    def _echo_of(self, run: TextRun) -> str:
        request = self._request
        prompt, skip = request.prompts[run.prompt], request.rules.skip_special_tokens
        return prompt.text or request.model.tokenizer.decode(prompt.ids, skip_special_tokens=skip)

    def _ending_of(self, run: TextRun, ending: StreamEnding) -> TextEnding:
        """The ending of a text that ran."""
        assert run.stream is not None
        usage, end, made = token_usage(run), ending.end, made_by(run)
        if run.output.stopped or end is StreamEnd.STOP:
            reason: FinishReason = "stop"
            if run.parts is not None and run.parts.calls and run.output.matched is None:
                reason = "tool_calls"
            return TextEnding(EndingCode.STOP, reason, None, made, usage)
        if end is StreamEnd.LENGTH and self._request.plan.pooling is None:
            return TextEnding(EndingCode.LENGTH, "length", None, made, usage)
        if end is StreamEnd.LENGTH and run.is_pooled:  # no limit of tokens ended it
            return TextEnding(EndingCode.STOP, "stop", None, made, usage)
        if (self._stopped and end is StreamEnd.ABORTED) or self._request.answer.left or self._stopping():
            return self._early_ending(run, usage)
        fields = self._fields(reason=end.value, message=ending.message)
        if ending.guide_fault is not None:
            _log.warning("generation.guide_failed", extra={"fields": fields})
            return TextEnding(EndingCode.ENGINE_FAILED, None, _guide_error(self._request, ending), made, usage)
        if end in (StreamEnd.ERROR, StreamEnd.LENGTH):  # "length" without the vector that was requested
            _log.error("generation.engine_failed", extra={"fields": fields})
            return TextEnding(EndingCode.ENGINE_FAILED, None, errors.InternalError(), made, usage)
        _log.warning("generation.engine_lost", extra={"fields": fields})
        error = errors.EngineDown("The engine was lost while it answered. Try again in a moment.")
        return TextEnding(EndingCode.ENGINE_LOST, None, error, made, usage)

    def _early_ending(self, run: TextRun, usage: frames.EngineUsage) -> TextEnding:
        """The ending of a text that this gateway aborted: another text failed, the caller left, the answer was cut, or
        the process is stopping."""
        made = made_by(run)
        if self._failure is not None:
            return msgspec.structs.replace(self._failure, engines=made, usage=usage)
        if self._request.answer.left:
            return TextEnding(EndingCode.CLIENT_LEFT, "stop", None, made, usage)
        if (cut := self._request.answer.cut) is not None:
            return TextEnding(cut.ending, None, cut.error, made, usage)
        return TextEnding(EndingCode.SHUTDOWN, None, errors.EngineDown("This server is stopping."), made, usage)

    def _refused(self, ending: StreamEnding) -> TextEnding:
        reason = ending.refusal
        assert reason is not None
        if reason not in EXPECTED_REFUSALS:
            fields = self._fields(code=reason.value, reason=ending.message)
            _log.warning("generation.refused", extra={"fields": fields})
        return TextEnding(REFUSAL_ENDINGS[reason], None, _refusal(self._request, ending))

    def _fields(self, **fields: str) -> dict[str, str]:
        return {"request_id": self._request.request_id, **fields}

    def _sum_up(self) -> Outcome:
        request = self._request
        ends = [run.end for run in self.all if run.end is not None]
        assert len(ends) == len(self.all)
        failure = self._failure
        # If the answer fails, its caller has received the streamed part; a caller of a whole answer has received no
        # part.
        given = failure is None or request.in_pieces
        billed = [run.output.tokens if given else 0 for run in self.all]
        prompt = cached = 0
        for first, counted in zip(self.all[:: request.n], request.prompts, strict=True):
            is_computed = request.prompt_alone and given and ends[first.index].ending.kind is EndingKind.COMPLETED
            if is_computed or any(billed[first.index : first.index + request.n]):
                prompt += len(counted.ids)
                if request.plan.pooling is None:  # an embedding has one price for all tokens
                    cached += min(ends[first.index].usage.cached_tokens, len(counted.ids))
        discards = [end.ending for end, tokens in zip(ends, billed, strict=True) if end.made > tokens]
        if failure is not None:
            ending = failure.ending
        else:
            ending = min([end.ending for end in ends], key=lambda ending: ending.rank)
        return Outcome(
            ending=ending,
            error=None if failure is None else failure.error,
            prompt=prompt,
            cached=cached,
            shared=sum([end.usage.cached_tokens for run, end in zip(self.all, ends, strict=True) if run.number]),
            billed=sum(billed),
            reasoning=sum([run.output.reasoning for run in self.all]) if given else 0,
            engines=made_by_all(ends),
            discard_reason=discards[0] if discards else None,
            usage=summed([end.usage for end in ends]),
        )


def _refusal(request: InFlight, refused: StreamEnding) -> errors.ApiError:
    """The caller's error for an engine's refusal."""
    match refused.refusal:
        case RefusalReason.QUEUE_FULL:
            message = f"The {request.service_tier} tier is full. Try again later."
            return errors.Overloaded(message, retry_after_s=refused.retry_after_s or 1.0)
        case RefusalReason.TOO_LONG:
            return errors.ContextLengthExceeded(f"The engine cannot fit this request: {refused.message}.")
        case RefusalReason.BAD_REQUEST:
            return errors.InvalidRequest(f"The engine refuses this request: {refused.message}.")
        case _:
            return errors.EngineDown(ENGINE_UNAVAILABLE_MESSAGE, retry_after_s=refused.retry_after_s or 1.0)


def _guide_error(request: InFlight, ending: StreamEnding) -> errors.ApiError:
    """The caller's error for an answer that its grammar ended. A grammar is followed as far as its limits allow; where
    they are exceeded follows from the ids, which checking the grammar beforehand cannot know."""
    param = request.plan.answer.param or None
    named = repr(param) if param else "The grammar"
    if ending.guide_fault == "late":
        message = f"{named} takes too long to follow: {ending.message}. Try again later, or simplify it."
        overloaded = errors.Overloaded(message)
        overloaded.stores_message = False  # the grammar is the caller's, and the message can quote it
        return overloaded
    return errors.InvalidRequest(f"{named} cannot be followed further: {ending.message}.", param=param)
