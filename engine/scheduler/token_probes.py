"""Probes: one token of each resident model that made none for a while, so that a model that cannot make tokens is found
before a request needs it.

A probe is a step of one chunk: one prompt id and one draw. It is planned between other steps and is in no queue, so it
counts for no tier, share, slot or residence: it loads no weights, keeps none resident and preempts nothing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from engine.memory.arena import Arena
from engine.memory.weight_residency import WeightResidency
from engine.protocol.frames import Sampling
from engine.protocol.inbox import TokenTimes
from engine.scheduler.plan import StepPlan
from engine.scheduler.results import StepResults
from engine.scheduler.served import ModelTable
from engine.scheduler.turns import ModelTurns
from engine.step import Chunk, Sequence, Step, StepResult

# The stream of probes' sequences. The streams of gateways count from 0.
PROBE_STREAM = -1
# The name in place of a tenant's: namespace, share and request id of every probe.
PROBE_NAME = "laneway-probe"
# The prompt. Every vocabulary has it.
PROBE_ID = 0
# While requests wait, or no page is free: seconds until the next attempt.
RETRY_S = 0.25
ERROR_CHARS_MAX = 200

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _ModelTokens:
    """The token times and the probe of one resident model."""

    token_at: float  # when its last id was known
    probed_at: float  # when its last probe began
    owed_since: float | None = None  # when the first probe since its last token began, once a probe has failed
    error: str = ""  # of the last probe

    def due_from(self) -> float:
        """The last token or probe: `after_s` later a probe is due."""
        return max(self.token_at, self.probed_at)


class TokenProbes:
    """`after_s`: seconds without a token after which a resident model is probed, and seconds between two probes of it;
    0: no model is probed. A probe waits while a request waits: then it would delay that request, and its failure would
    say nothing about the model."""

    def __init__(
        self,
        served: ModelTable,
        weights: WeightResidency,
        arena: Arena,
        results: StepResults,
        turns: ModelTurns,
        clock: Callable[[], float],
        after_s: float,
    ) -> None:
        self.after_s = after_s
        self.tokens = 0  # ids made by probes; all are overrun
        self.failures = 0
        self._served, self._weights, self._arena, self._results = served, weights, arena, results
        self._turns, self._clock = turns, clock
        self._models: dict[str, _ModelTokens] = {}
        self._check_at = clock() + after_s
        self._count = 0

    def note_tokens(self, model: str, now: float) -> None:
        """A step of the model made an id."""
        own = self._models.get(model)
        if own is None:
            self._models[model] = _ModelTokens(now, now)
        else:
            own.token_at, own.owed_since, own.error = now, None, ""

    def forget_tokens(self, model: str) -> None:
        """The model is removed."""
        self._models.pop(model, None)

    def due_at(self) -> float | None:
        """When an idle engine calls `plan_due` again; None: no resident model is probed."""
        return self._check_at if self.after_s and self._resident() else None

    def is_due(self) -> bool:
        """Whether `plan_due` is to be called."""
        return self.after_s > 0 and self._clock() >= self._check_at and bool(self._resident())

    def plan_due(self, *, waiting: bool) -> StepPlan | None:
        """The probe that has been due for longest, which begins now; None: no probe is due. `waiting`: requests wait
        for capacity."""
        if not self.after_s or (now := self._clock()) < self._check_at:
            return None
        dues = {model: self._tokens_of(model).due_from() + self.after_s for model in self._resident()}
        model = min(dues, key=dues.__getitem__, default="")
        if not model or dues[model] > now:
            self._check_at = min(dues.get(model, math.inf), now + self.after_s)
            return None
        if waiting or not self._arena.available():
            self._check_at = now + RETRY_S
            return None
        self._models[model].probed_at = now
        self._count += 1
        return self._plan(model, now)

    def take_result(self, step: Step, result: StepResult, seconds: float) -> None:
        """Count a completed probe: its id is overrun, as no answer contains it."""
        now, own = self._clock(), self._models.get(step.model)
        self._results.overrun_s += seconds
        if not result.errors:
            self._results.tokens_made += 1
            self._results.tokens_overrun += 1
            self.tokens += 1
            self.note_tokens(step.model, now)
            return
        self.failures += 1
        error = next(iter(result.errors.values()))[:ERROR_CHARS_MAX]
        _log.error("probe.failed", extra={"fields": {"model": step.model, "error": error}})
        if own is not None:
            own.owed_since = own.probed_at if own.owed_since is None else own.owed_since
            own.error = error

    def token_times(self) -> dict[str, TokenTimes]:
        """Token times by resident model."""
        found = {model: self._tokens_of(model) for model in self._resident()}
        return {model: TokenTimes(own.token_at, own.owed_since, own.error) for model, own in found.items()}

    # ---- inside

    def _resident(self) -> list[str]:
        """The served models whose requests could join now."""
        served, weights = self._served, self._weights
        return [model for model in served.live if model not in served.retired and weights.can_join(model)]

    def _tokens_of(self, model: str) -> _ModelTokens:
        """The token times of a resident model. Weights that have become resident count as a token made then: before,
        the model could make none."""
        resident_since = self._weights.models[model].resident_since
        own = self._models.get(model)
        if own is None or resident_since > own.due_from():
            own = self._models[model] = _ModelTokens(resident_since, resident_since)
        return own

    def _plan(self, model: str, now: float) -> StepPlan:
        """The page is free again at once: its next owner's writes are after the probe's (Scheduler)."""
        pages = self._arena.allocate(1, PROBE_NAME)
        self._arena.release(pages, PROBE_NAME)
        sequence = Sequence(
            handle=self._count,
            gateway=PROBE_STREAM,
            request_id=PROBE_NAME,
            model=model,
            adapter=None,
            namespace=PROBE_NAME,
            tier="",
            share=PROBE_NAME,
            prompt_ids=[PROBE_ID],
            max_tokens=1,
            sampling=Sampling(temperature=0.0),
            stop_ids=frozenset(),
            arrived_at=now,
        )
        sequence.pages = pages
        plan = StepPlan(model, 1)
        plan.step = Step(self._turns.note_probe_begun(), model, [Chunk(sequence, 0, 1, sample=True)])
        plan.is_probe = True
        return plan


def is_probe(step: Step) -> bool:
    return step.chunks[0].sequence.gateway == PROBE_STREAM
