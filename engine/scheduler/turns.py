"""Which model's step is next, and how long it may be for the streams of the others.

It counts in modelled seconds. It must never know a request, a page, or where weights are: it is told who has work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from engine.protocol.tiers import Tier

# A model with work runs again after at most so many steps of better ranked models, and of those that wait longer; while
# something is urgent every other step is left to that (`bounds.turn_bound_steps`).
MODEL_WAIT_STEPS_MAX = 4
# Steps are planned to take this part of a target: the cost model is right on the whole, not for each.
TARGET_MARGIN = 0.95
# Models are served alike to within so many of the longest steps of late; inside that the longest wait is next.
LEVEL_STEPS = 2.0
# What of the longest step of late is left after one more.
LONGEST_MEMORY = 0.98


@dataclass(slots=True, frozen=True)
class ModelWork:
    """What a model has to do, as far as its turn depends on it. Tiers by rank, 0 first."""

    best: int  # tier that has a request of it, running or waiting
    first: int | None  # best tier with prefill that could go on or begin; None: there is none
    decoding: tuple[int, ...]  # tiers that decode, the best first
    next_s: float  # what its next step takes at least: its decodes, and prefill if it has some; 0: unknown


@dataclass(slots=True)
class _ModelTurn:
    """Of one model."""

    last_step: int
    waited_s: float = 0.0  # that steps of other models took since its last
    served_s: float = 0.0  # device-seconds for each share with requests of it, lifted when it comes back after a pause


class ModelTurns:
    """Told of each step when it begins, and when it is completed."""

    def __init__(self, tiers: Ordered[Tier]) -> None:
        self.steps = 0
        self._targets_s = [TARGET_MARGIN * tier.inter_token_ms / 1000 for tier in tiers]
        self._turns: dict[str, _ModelTurn] = {}
        self._work: Mapping[str, ModelWork] = {}
        self._level_s = 0.0
        self._longest_s = 0.0
        self._rescued = False  # the last step was one of a model that had waited too long

    def forget_turns(self, model: str) -> None:
        """Another one may come under its name, before the next step is planned."""
        self._turns.pop(model, None)
        self._work = {other: work for other, work in self._work.items() if other != model}

    # ---- what happens

    def note_step_begun(self, model: str, seconds: float) -> None:
        """A step that takes so long, as far as is known; 0: nothing is known."""
        self.steps += 1
        own = self._turns[model]
        self._rescued = self._starved(own, self.steps - 1)
        for turn in self._turns.values():
            turn.waited_s += seconds
        own.waited_s = 0.0
        own.last_step = self.steps

    def note_step_completed(self, model: str, shares: int, seconds: float) -> None:
        """A step took so long; `shares` have requests of the model."""
        self._longest_s = max(seconds, LONGEST_MEMORY * self._longest_s)
        if model in self._turns:
            self._turns[model].served_s += seconds / max(1, shares)

    # ---- whose turn it is

    def order(self, work: Mapping[str, ModelWork]) -> list[str]:
        """All that have work and their weights on the device, who is next first: who waited too long; whose streams
        would miss their target; first tokens of the best tier; then in turn, those last that were served more than
        others of their tier. A lower tier's stream that is due goes before a higher one's that is not, and behind its
        first tokens."""
        self._enter(work)
        if len(work) < 2:
            return list(work)
        top = min(own.best for own in work.values())
        due = {model: rank for model in work if (rank := self._due(model)) is not None}
        urgent = any(rank == top for rank in due.values()) or any(own.first == top for own in work.values())
        least_s = self._least_served(work)

        def turn(model: str) -> tuple[int, int, float, int]:
            own, past = work[model], self._turns[model]
            if self._starved(past, self.steps) and not (urgent and self._rescued):
                return 0, 0, 0.0, past.last_step
            rank = due.get(model)
            if rank is not None:
                # Before first tokens of its own tier, behind those of a higher one.
                return (1 if rank == top else 3), rank, self._left_s(model, rank), past.last_step
            ahead = float(past.served_s > least_s[own.best] + LEVEL_STEPS * self._longest_s)
            # A higher tier's streams that have time take turns with lower tiers' work: what they would gain by going
            # first nobody was promised, and a step of many rows makes more than one of few.
            return (2 if own.first == top else 4), 0, ahead, past.last_step

        return sorted(work, key=turn)

    def limit_s(self, model: str, rank: int) -> float:
        """How long a step of the model with prefill of this tier may be, so that every other model's streams of it and
        of higher ones, served in the order in which they are due, keep their targets."""
        streams = []
        for other, work in self._work.items():
            if other != model and (ranks := [own for own in work.decoding if own <= rank]):
                left_s = min(self._targets_s[own] - self._turns[other].waited_s for own in ranks)
                streams.append((left_s, work.next_s))
        limit_s, before_s = math.inf, 0.0
        for left_s, next_s in sorted(streams):
            before_s += next_s
            limit_s = min(limit_s, left_s - before_s)
        return limit_s

    def waited_s(self, model: str) -> float:
        """What the streams of a model have waited for steps of others since its last."""
        turn = self._turns.get(model)
        return turn.waited_s if turn else 0.0

    # ---- inside

    def _enter(self, work: Mapping[str, ModelWork]) -> None:
        """Who had nothing to do, or was not on the device, comes back level with the least served: a pause earns
        nothing, neither steps nor seconds."""
        stayed = [self._turns[model].served_s for model in work if model in self._work]
        if stayed:
            self._level_s = min(stayed)
        for model in work:
            if model not in self._work:
                own = self._turns.setdefault(model, _ModelTurn(self.steps))
                own.last_step, own.waited_s = self.steps, 0.0
                own.served_s = max(own.served_s, self._level_s)
        self._work = dict(work)

    def _least_served(self, work: Mapping[str, ModelWork]) -> dict[int, float]:
        """By tier, of the models whose best it is."""
        least_s: dict[int, float] = {}
        for model, own in work.items():
            least_s[own.best] = min(least_s.get(own.best, math.inf), self._turns[model].served_s)
        return least_s

    def _starved(self, turn: _ModelTurn, steps: int) -> bool:
        return steps - turn.last_step > MODEL_WAIT_STEPS_MAX

    def _due(self, model: str) -> int | None:
        """The best tier whose streams would miss their target if another model's step came first."""
        work = self._work[model]
        others_s = max((own.next_s for other, own in self._work.items() if other != model), default=0.0)
        return next((rank for rank in work.decoding if self._left_s(model, rank) < others_s), None)

    def _left_s(self, model: str, rank: int) -> float:
        """Until its next step must begin, for the streams of this tier."""
        return self._targets_s[rank] - self._turns[model].waited_s - self._work[model].next_s
