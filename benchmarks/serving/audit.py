"""Audits a scheduler and its arena while a benchmark drives them: poisoned free pages, integrity, and books.

NaN is written into every page that was released: as it is allocated again or, while it is free, after a step. This is
in stream order: a step in flight reads the page as it was. A kernel that reads a page without an owner ends its request
with NO_ID; a kernel that writes past the scheduler's pages changes the guard, which is the rest of the arena.
tests/support/engine/poisoned_arena.py does this to small models.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import torch

from benchmarks.serving.gateway import Request
from engine.memory.arena import PageKind
from engine.scheduler.scheduler import Scheduler
from engine.step import Step, StepOutcome, StepResult
from kernels.lora_work import pack_entry

NAN_BYTE = 0xFF  # NaN in float32, bfloat16, float16 and e4m3fn alike, when every byte has it
NOWHERE = 1 << 44  # an address that no arena has
GUARD_PAGES_AT_ONCE = 256
SECONDS_TOLERANCE = 1e-6  # of all device seconds
FAULTS_KEPT = 20


class Audit:
    """Set between a scheduler and its caller. `after_step` is called after each audited step."""

    def __init__(
        self,
        scheduler: Scheduler,
        arena_bytes: torch.Tensor,
        *,
        poison_steps: int,
        check_steps: int,
        after_step: Callable[[Audit], None] = lambda _: None,
    ) -> None:
        """`arena_bytes` uint8 [pages, page_bytes], of which the scheduler has the first `scheduler.arena.pages`.
        Pages that remain free are poisoned every `poison_steps` steps; integrity is checked every `check_steps`."""
        self.scheduler = scheduler
        self.bytes = arena_bytes
        self.steps = self.poisoned = self.integrity_checks = 0
        self.drawn, self.discarded = Counter[str](), Counter[str]()
        self.step_s: defaultdict[str, float] = defaultdict(float)
        self.faults: list[str] = []  # of integrity
        self._poison_steps, self._check_steps, self._after_step = poison_steps, check_steps, after_step
        self._released = {page for page, kind in enumerate(scheduler.arena.kinds()) if kind == PageKind.FREE}
        self.bytes[scheduler.arena.pages :] = NAN_BYTE
        self._poison_released()
        arena = scheduler.arena
        self._complete, self._make_free, self._take_pages = scheduler.complete, arena._make_free, arena._take_pages
        scheduler.complete = self.complete  # type: ignore[method-assign]
        arena._make_free = self._note_freed  # type: ignore[method-assign]
        arena._take_pages = self._poison_taken  # type: ignore[method-assign]

    def complete(self, step: Step, result: StepResult, seconds: float) -> StepOutcome:
        """`Scheduler.complete`, audited: counts the drawn ids, and the drawn ids that the scheduler discards."""
        outcome = self._complete(step, result, seconds)
        skipped = result.errors.keys() | result.skipped
        drawn = sum(token is not None and index not in skipped for index, token in enumerate(result.ids))
        self.steps += 1
        self.drawn[step.model] += drawn
        self.discarded[step.model] += drawn - len(outcome.tokens)
        self.step_s[step.model] += seconds
        if self.steps % self._poison_steps == 0:
            self._poison_released()
        if self.steps % self._check_steps == 0:
            self.check_integrity()
        self._after_step(self)
        return outcome

    def check_integrity(self) -> None:
        """Check the arena and the prefix cache. Faults are appended to `faults`."""
        self.integrity_checks += 1
        try:
            self.scheduler.arena.check_integrity()
            self.scheduler.prefix.check_integrity()
        except AssertionError as error:
            if len(self.faults) < FAULTS_KEPT:
                self.faults.append(f"step {self.steps}: {error}")

    def poison(self, pages: Sequence[int]) -> None:
        """Write NaN into these pages, in stream order; the host does not wait for the device."""
        if not pages:
            return
        index = torch.tensor(pages)
        if self.bytes.is_cuda:
            index = index.pin_memory().to(self.bytes.device, non_blocking=True)
        self.bytes.index_fill_(0, index, NAN_BYTE)

    def written_guards(self) -> int:
        """Pages outside the scheduler's part of the arena whose bytes have changed."""
        written = 0
        for first in range(self.scheduler.arena.pages, len(self.bytes), GUARD_PAGES_AT_ONCE):
            pages = self.bytes[first : first + GUARD_PAGES_AT_ONCE]
            written += int((pages != NAN_BYTE).any(1).sum())
        return written

    def book_faults(self, requests: Sequence[Request]) -> list[str]:
        """Faults where drawn tokens differ from delivered and discarded ones; `requests`: all submitted requests."""
        found, results = [], self.scheduler.results
        delivered = Counter[str]()
        for request in requests:
            delivered[request.model] += len(request.token_s)
            if request.usage.completion_tokens != len(request.token_s):
                found.append(f"{request.usage.completion_tokens} tokens are billed, {len(request.token_s)} delivered")
        for model, drawn in self.drawn.items():
            if drawn != delivered[model] + self.discarded[model]:
                found.append(f"{model}: {drawn} drawn, {delivered[model]} delivered, {self.discarded[model]} discarded")
        kept = (results.tokens_made, results.tokens_overrun)
        if kept != (self.drawn.total(), self.discarded.total()):
            found.append(
                f"the engine counts {kept}, the runner drew {self.drawn.total()}, {self.discarded.total()} lost"
            )
        return found

    def seconds_faults(self, requests: Sequence[Request]) -> list[str]:
        """Faults where the device seconds of the steps differ from the sum over requests and overrun."""
        charged: defaultdict[str, float] = defaultdict(float)
        for request in requests:
            own = request.usage
            charged[request.model] += own.device_s + sum(part.device_s for part in own.recomputed.values())
        all_s, tolerance = sum(self.step_s.values()), SECONDS_TOLERANCE * sum(self.step_s.values())
        overrun_s = self.scheduler.results.overrun_s
        found = []
        if abs(sum(charged.values()) + overrun_s - all_s) > tolerance:
            found.append(f"{all_s:.6f} s of steps, {sum(charged.values()):.6f} s charged, {overrun_s:.6f} s overrun")
        for model, seconds in self.step_s.items():
            if not -tolerance <= seconds - charged[model] <= overrun_s + tolerance:
                found.append(f"{model}: {seconds:.6f} s of steps, {charged[model]:.6f} s charged")
        return found

    def _note_freed(self, page: int) -> None:
        self._make_free(page)
        self._released.add(page)

    def _poison_taken(self, count: int, kind: PageKind) -> list[int]:
        """Poison pages at allocation too: an idle cached page is released and allocated in one call."""
        pages = self._take_pages(count, kind)
        self._poison_now([page for page in pages if page in self._released])
        return pages

    def _poison_released(self) -> None:
        self._poison_now(sorted(self._released))

    def _poison_now(self, pages: Sequence[int]) -> None:
        self.poison(pages)
        self.poisoned += len(pages)
        self._released.difference_update(pages)


def poison_removed_rows(rows: object) -> None:
    """Point the row that an adapter leaves in a GPU's table outside the arena: a stale row is an illegal access.
    `rows`: the pool's; None on a CPU."""
    if rows is None:
        return
    removed, entries = rows.remove_row, rows.table.entries  # type: ignore[attr-defined]

    def remove_and_poison(digest: str) -> None:
        row, _ = rows.find(digest)  # type: ignore[attr-defined]
        removed(digest)
        entries[row, ..., 0] = pack_entry(16, 1.0)
        entries[row, ..., 1:] = NOWHERE

    rows.remove_row = remove_and_poison  # type: ignore[attr-defined]
