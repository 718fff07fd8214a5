"""Compiles grammars off the loop: threads with a bounded queue, and the compiled grammars by content.

A grammar that cannot be compiled refuses its own requests. Requests of one grammar wait for one compilation.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import llguidance

from engine.guided.mask_times import MaskTimes
from engine.text.grammar_process import GrammarProcess
from engine.text.grammars import GrammarRefused, GrammarTokenizer, compile_grammar, start_with_stack

THREADS = 2
# Grammars that wait for a thread.
QUEUE_MAX = 64
# Compiled grammars that are kept; each takes some 100 kB to a few MB.
COMPILED_MAX = 256
RETRY_AFTER_S = 1.0
# Masks of 256 texts on 12 threads take 8 ms if the texts share one matcher's data, and 4 ms with 16 matchers. So a
# grammar is compiled again for every TEXTS_PER_MATCHER texts that run, unless a compilation takes longer than
# COMPILE_AGAIN_S, and while all grammars together have fewer than FURTHER_MATCHERS_MAX such matchers.
TEXTS_PER_MATCHER = 16
FURTHER_MATCHERS_MAX = 64
COMPILE_AGAIN_S = 0.2

_log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class _Job:
    key: bytes
    directory: Path
    vocab_size: int
    text: str


@dataclass(slots=True, eq=False)
class Compiled:
    """A compiled grammar. `matchers`: at its start; a text copies one of them before it advances it."""

    matchers: list[llguidance.LLMatcher]
    tokenizer: GrammarTokenizer
    job: _Job
    compile_s: float
    times: MaskTimes = field(default_factory=MaskTimes)
    texts: int = 0  # running texts
    texts_begun: int = 0
    is_compiled_again: bool = False  # a further matcher is being compiled


# A compiled grammar, or why it is refused.
Outcome = Compiled | str
Waiter = Callable[[Outcome], None]


class GrammarQueueFull(Exception):
    """QUEUE_MAX grammars wait already; retry after RETRY_AFTER_S."""


class GrammarCompiler:
    """Used only by the loop's thread, except where a method says otherwise."""

    def __init__(
        self,
        call_loop: Callable[[Callable[[], None]], None],
        *,
        threads: int = THREADS,
        queue_max: int = QUEUE_MAX,
        check_first: bool = True,
    ) -> None:
        """`call_loop(function)` runs `function` on the loop's thread between two steps; from any thread. `check_first`:
        each grammar is first compiled in a separate process, so that it cannot end or block this one."""
        self.seconds = 0.0  # of compilations, on their threads
        self.compilations = 0
        self.failures = 0
        self._call_loop = call_loop
        self._count, self._queue_max, self._check_first = threads, queue_max, check_first
        self._jobs: queue.SimpleQueue[_Job | Compiled | None] = queue.SimpleQueue()
        self._further_matchers = 0  # of all compiled grammars, and being compiled
        self._waiters: dict[bytes, list[Waiter]] = {}
        self._compiled: OrderedDict[bytes, Compiled] = OrderedDict()
        self._threads: list[threading.Thread] = []
        self._processes = [GrammarProcess() for _ in range(threads)] if check_first else []

    def compile_text(
        self, directory: Path, vocab_size: int, text: str, waiter: Waiter, *, bounded: bool = True
    ) -> Compiled | None:
        """The compiled grammar of a model directory's tokenizer, if it is cached. Otherwise None, and `waiter` is
        called on the loop's thread later, once. Raises GrammarQueueFull, if `bounded`."""
        head = f"{directory}\n{vocab_size}\n".encode()
        key = hashlib.sha256(head + text.encode("utf-8", "surrogatepass")).digest()
        if (found := self._compiled.get(key)) is not None:
            self._compiled.move_to_end(key)
            return found
        if (waiters := self._waiters.get(key)) is not None:
            waiters.append(waiter)
            return None
        if bounded and len(self._waiters) >= self._queue_max + self._count:
            raise GrammarQueueFull
        self._waiters[key] = [waiter]
        if not self._threads:
            self._threads = [start_with_stack(functools.partial(self._compile_jobs, n)) for n in range(self._count)]
        self._jobs.put(_Job(key, directory, vocab_size, text))
        return None

    def begin_text(self, compiled: Compiled) -> llguidance.LLMatcher:
        """The matcher for a new text to copy. `end_text` follows."""
        compiled.texts += 1
        compiled.texts_begun += 1
        if (
            compiled.texts > TEXTS_PER_MATCHER * len(compiled.matchers)
            and not compiled.is_compiled_again
            and compiled.compile_s < COMPILE_AGAIN_S
            and self._further_matchers < FURTHER_MATCHERS_MAX
            and self._compiled.get(compiled.job.key) is compiled
        ):
            compiled.is_compiled_again = True
            self._further_matchers += 1
            self._jobs.put(compiled)
        return compiled.matchers[compiled.texts_begun % len(compiled.matchers)]

    def end_text(self, compiled: Compiled) -> None:
        compiled.texts -= 1

    def forget_compiled(self) -> None:
        """A model was removed: another one may lie in its directory later."""
        for compiled in self._compiled.values():
            self._forget_further(compiled)
        self._compiled.clear()

    def stop(self) -> None:
        """No waiter is called after this."""
        self._waiters.clear()
        for _ in self._threads:
            self._jobs.put(None)
        for process in self._processes:
            process.close()

    def _compile_jobs(self, number: int) -> None:
        while (job := self._jobs.get()) is not None:
            if isinstance(job, Compiled):
                self._compile_again(job)
                continue
            began = time.monotonic()
            outcome = self._outcome(job, number)
            seconds = time.monotonic() - began
            self._call_loop(functools.partial(self._finished, job, outcome, seconds))

    def _outcome(self, job: _Job, number: int) -> Outcome:
        try:
            if self._check_first:
                self._processes[number].check_text(job.directory, job.vocab_size, job.text)
            tokenizer = GrammarTokenizer.load(job.directory, job.vocab_size)
            began = time.monotonic()
            matcher = compile_grammar(tokenizer, job.text, probe=not self._check_first)
            return Compiled([matcher], tokenizer, job, time.monotonic() - began)
        except GrammarRefused as refusal:
            return str(refusal)
        except (OSError, ValueError) as error:
            return f"this model serves no grammars: {error}"
        except BaseException as error:  # noqa: BLE001 - the request's edge; a Rust panic is no Exception
            _log.exception("grammar.failed")
            return f"the grammar cannot be compiled: {type(error).__name__}"

    def _compile_again(self, compiled: Compiled) -> None:
        matcher: llguidance.LLMatcher | None = None
        try:
            matcher = compile_grammar(compiled.tokenizer, compiled.job.text, probe=False)
        except BaseException:  # noqa: BLE001 - the texts use the matchers that there are; a Rust panic is no Exception
            _log.exception("grammar.not_compiled_again")
        self._call_loop(functools.partial(self._compiled_again, compiled, matcher))

    def _compiled_again(self, compiled: Compiled, matcher: llguidance.LLMatcher | None) -> None:
        compiled.is_compiled_again = False
        if matcher is not None and self._compiled.get(compiled.job.key) is compiled:
            compiled.matchers.append(matcher)
        else:
            self._further_matchers -= 1

    def _forget_further(self, compiled: Compiled) -> None:
        self._further_matchers -= len(compiled.matchers) - 1

    def _finished(self, job: _Job, outcome: Outcome, seconds: float) -> None:
        self.seconds += seconds
        self.compilations += 1
        if isinstance(outcome, Compiled):
            self._compiled[job.key] = outcome
            while len(self._compiled) > COMPILED_MAX:
                self._forget_further(self._compiled.popitem(last=False)[1])
        else:
            self.failures += 1
        for waiter in self._waiters.pop(job.key, ()):
            waiter(outcome)
