"""The guided requests of an engine: requests whose grammar is being compiled, and the matchers of all others.

A request waits here before it enters the scheduler's queue, so that it delays no other request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.guided.compiler import RETRY_AFTER_S, Compiled, GrammarCompiler, GrammarQueueFull, Outcome
from engine.protocol.frames import Guide, RefusalCode
from engine.protocol.guide_limits import find_guide_fault
from engine.protocol.inbox import Inbox, LoopCall
from engine.step import Masks, Sequence, Step

if TYPE_CHECKING:
    from engine.guided.masks import MaskFiller
    from engine.guided.matcher import GuidedText

# Seconds that a draw waits for masks where no forward pass runs meanwhile (else: loop/mask_budget.py). A slow grammar
# costs the step's other rows this much once; after that its masks are not waited for (mask_times.py).
MASK_WAIT_S = 0.02
# Requests that wait for a grammar. Many may wait for one.
WAITING_MAX = 4096


@dataclass(slots=True, frozen=True)
class GuidedCounts:
    """Totals since the start, for metrics."""

    requests: int = 0
    compilations: int = 0
    refusals: int = 0
    compile_s: float = 0.0
    masks: int = 0
    mask_wait_s: float = 0.0
    draws_skipped: int = 0


class GuideRefused(Exception):
    """The request ends with a Refused."""

    def __init__(self, code: RefusalCode, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code: RefusalCode = code
        self.retry_after_s = retry_after_s


class GuidedRequests:
    """Used only by the loop's thread."""

    def __init__(
        self,
        compiler: GrammarCompiler,
        mask_wait_s: float,
        tokenizer_of: Callable[[str], tuple[Path, int] | None],
        ready: Callable[[Sequence], None],
        refused: Callable[[Sequence, GuideRefused], None],
    ) -> None:
        """`mask_wait_s`: see MaskFiller. `tokenizer_of(model)`: the directory with its tokenizer.json, and its
        vocab_size; None: it has no tokenizer. For a request that waited, `ready` or `refused` is called once, unless
        the request is removed before."""
        self.compiler = compiler
        self.filler: MaskFiller | None = None  # None before the first guided request
        self._mask_wait_s = mask_wait_s
        self.requests = 0  # that had a guide
        self._tokenizer_of = tokenizer_of
        self._ready, self._refused = ready, refused
        self._waiting: dict[tuple[int, int], Sequence] = {}  # by (gateway, handle)
        self._texts: dict[Sequence, GuidedText] = {}
        self._compiled: dict[Sequence, Compiled] = {}  # of texts with a grammar

    @property
    def waiting(self) -> int:
        """Requests that wait for their grammar."""
        return len(self._waiting)

    def add_request(self, sequence: Sequence, guide: Guide) -> bool:
        """Whether the request may be queued now; otherwise it waits. Raises GuideRefused."""
        found = self._tokenizer_of(sequence.model)
        if fault := find_guide_fault(guide, found[1] if found else None):
            raise GuideRefused("bad_request", fault)
        if found is None:
            raise GuideRefused("bad_request", f"model {sequence.model!r} has no tokenizer for grammars here")
        if (sequence.gateway, sequence.handle) in self._waiting:
            raise GuideRefused("bad_request", f"handle {sequence.handle} is in use")
        self.requests += 1
        directory, vocab_size = found
        if guide.grammar is None:
            self._add_text(sequence, guide, None, vocab_size)
            return True
        # As by a full queue, a resumed request is not refused.
        if len(self._waiting) >= WAITING_MAX and not sequence.resumed:
            raise GuideRefused("queue_full", f"{WAITING_MAX} requests wait for their grammar already", RETRY_AFTER_S)

        def compiled(outcome: Outcome) -> None:
            if self._waiting.get((sequence.gateway, sequence.handle)) is not sequence:
                return
            del self._waiting[sequence.gateway, sequence.handle]
            if isinstance(outcome, Compiled):
                self._add_text(sequence, guide, outcome, vocab_size)
                self._ready(sequence)
            else:
                self._refused(sequence, GuideRefused("bad_request", outcome))

        try:
            bounded = not sequence.resumed
            ready = self.compiler.compile_text(directory, vocab_size, guide.grammar, compiled, bounded=bounded)
        except GrammarQueueFull:
            raise GuideRefused("queue_full", "too many grammars wait to be compiled", RETRY_AFTER_S) from None
        if ready is None:
            self._waiting[sequence.gateway, sequence.handle] = sequence
            return False
        self._add_text(sequence, guide, ready, vocab_size)
        return True

    def take_waiting(self, gateway: int, handle: int | None = None) -> list[Sequence]:
        """Take out a request that waits for its grammar, or all of a gateway: the caller ends them."""
        keys = [key for key in self._waiting if key[0] == gateway and handle in (None, key[1])]
        return [self._waiting.pop(key) for key in keys]

    def remove_text(self, sequence: Sequence) -> None:
        """The request ended or was refused."""
        self._texts.pop(sequence, None)
        if (compiled := self._compiled.pop(sequence, None)) is not None:
            self.compiler.end_text(compiled)

    def name_errors(self, step: Step, errors: dict[int, str]) -> dict[int, str]:
        """`errors` by chunk index, in which the errors of texts that cannot be continued are the grammars'."""
        for index in errors:
            text = self._texts.get(step.chunks[index].sequence)
            if text is not None and text.error:
                errors[index] = text.error
        return errors

    def has_error(self, sequence: Sequence) -> bool:
        """Whether the request's grammar cannot be continued."""
        text = self._texts.get(sequence)
        return text is not None and bool(text.error)

    def begin_masks(self, step: Step) -> bool:
        """Begin the masks of a step, when all earlier ids are known; `take_masks` follows. False: the step needs no
        masks."""
        return self.filler.begin_masks(step, self._texts) if self._texts and self.filler is not None else False

    def take_masks(self, wait_s: float | None, is_forward_done: Callable[[], bool] | None = None) -> Masks | None:
        """Implements `engine.loop.flights.StepMasks`. `wait_s`: None: the configured time."""
        return self.filler.take_masks(wait_s, is_forward_done) if self.filler is not None else None

    def counts(self) -> GuidedCounts:
        compiler, filler = self.compiler, self.filler
        return GuidedCounts(
            self.requests,
            compiler.compilations,
            compiler.failures,
            compiler.seconds,
            filler.masks_made if filler is not None else 0,
            filler.seconds if filler is not None else 0.0,
            filler.draws_skipped if filler is not None else 0,
        )

    def stop(self) -> None:
        self.compiler.stop()
        if self.filler is not None:
            self.filler.stop()

    def _add_text(self, sequence: Sequence, guide: Guide, compiled: Compiled | None, vocab_size: int) -> None:
        # Imported late: numpy starts threads, which must begin only after the process has blocked its signals.
        from engine.guided.masks import MaskFiller
        from engine.guided.matcher import GuidedText

        if self.filler is None:
            self.filler = MaskFiller(wait_s=self._mask_wait_s)
        sampling, min_tokens = sequence.sampling, 0
        if guide.grammar is not None and 0 < sampling.min_tokens <= sequence.max_tokens:
            # The mask holds back the stop ids instead: where only they may follow, the text ends.
            min_tokens = sampling.min_tokens
            sequence.sampling = msgspec.structs.replace(sampling, min_tokens=0)
        if compiled is not None:
            self._compiled[sequence] = compiled
        self._texts[sequence] = GuidedText(
            guide,
            self.compiler.begin_text(compiled) if compiled else None,
            compiled.tokenizer if compiled else None,
            vocab_size,
            sequence.stop_ids,
            min_tokens,
            compiled.times if compiled else None,
        )


def build_guided_requests(
    inbox: Inbox,
    mask_wait_s: float,
    tokenizer_of: Callable[[str], tuple[Path, int] | None],
    ready: Callable[[Sequence], None],
    refused: Callable[[Sequence, GuideRefused], None],
) -> GuidedRequests:
    """Build the guided requests of a loop that takes its commands from `inbox`."""
    compiler = GrammarCompiler(lambda function: inbox.put(LoopCall(function)))
    return GuidedRequests(compiler, mask_wait_s, tokenizer_of, ready, refused)
