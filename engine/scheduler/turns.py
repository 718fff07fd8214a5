"""Which model's step is next, and how long its step may be so that other models' streams keep their targets.

It counts in modelled seconds, and in measured ones once a step is completed. It knows no requests, no pages, and not
where weights are. Decision 0014 gives the order.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from engine.protocol.tiers import Tier

# A model with work runs again after at most MODEL_WAIT_STEPS_MAX steps of higher ranked models and of models that
# waited longer. While a request is urgent, every other step is left to urgent models (`bounds.turn_bound_steps`).
MODEL_WAIT_STEPS_MAX = 4
# Steps are planned to take at most this part of a target: the cost model is right on average, not for each step. On an
# H200 with models of three weight formats, the p99 of the gaps between tokens is 1.1 × the planned time.
TARGET_MARGIN = 0.9
# Device-seconds of models may differ by LEVEL_STEPS × the longest recent step; within it, the longest wait is next.
LEVEL_STEPS = 2.0
# Decay of the longest recent step, per step.
LONGEST_MEMORY = 0.98


@dataclass(slots=True, frozen=True)
class ModelWork:
    """The work of a model, as far as its turn depends on it. Tiers by rank, 0 the highest."""

    best: int  # highest tier with a request of the model, running or waiting
    first: int | None  # highest tier with prefill that can continue or begin; None: there is none
    decoding: tuple[int, ...]  # tiers that decode, the highest first
    next_s: float  # the least seconds of its next step: its decodes, and prefill if it has some; 0: unknown


@dataclass(slots=True)
class _ModelTurn:
    """The past of one model."""

    last_step: int
    waited_s: float = 0.0  # seconds of other models' steps since its last step; predicted for steps in flight
    served_s: float = 0.0  # device-seconds per share with requests of it, lifted after a pause


class ModelTurns:
    """Orders the models with work. The scheduler reports each step when it begins and when it is completed."""

    def __init__(self, tiers: Ordered[Tier]) -> None:
        self.steps = 0
        self._in_flight: deque[tuple[int, float]] = deque()  # number and modelled seconds of steps, the oldest first
        self._targets_s = [TARGET_MARGIN * tier.inter_token_ms / 1000 for tier in tiers]
        self._turns: dict[str, _ModelTurn] = {}
        self._work: Mapping[str, ModelWork] = {}
        self._level_s = 0.0
        self._longest_s = 0.0
        self._last_was_starved = False  # the last step was of a model that had waited too long

    def forget_turns(self, model: str) -> None:
        """The model is removed. Another model may be added under its name before the next step is planned."""
        self._turns.pop(model, None)
        self._work = {other: work for other, work in self._work.items() if other != model}

    # ---- steps

    def note_probe_begun(self) -> int:
        """A probe begins (token_probes.py). Returns its number as a step."""
        self.steps += 1
        return self.steps

    def note_step_begun(self, model: str, seconds: float) -> None:
        """A step of the model begins. `seconds`: its modelled duration; 0: unknown."""
        self.steps += 1
        begun = self._turns[model]
        self._in_flight.append((self.steps, seconds))
        self._last_was_starved = self._is_starved(begun, self.steps - 1)
        for turn in self._turns.values():
            turn.waited_s += seconds
        begun.waited_s = 0.0
        begun.last_step = self.steps

    def note_step_completed(self, model: str, shares: int, seconds: float) -> None:
        """The oldest step in flight, of this model, took `seconds`; `shares` shares have requests of the model. Streams
        that waited for the step have waited for as long as it took, so that errors of the cost model do not add up."""
        number, modelled_s = self._in_flight.popleft()
        for turn in self._turns.values():
            if turn.last_step < number:
                turn.waited_s = max(0.0, turn.waited_s + seconds - modelled_s)
        self._longest_s = max(seconds, LONGEST_MEMORY * self._longest_s)
        if model in self._turns:
            self._turns[model].served_s += seconds / max(1, shares)

    # ---- the order

    def order(self, work: Mapping[str, ModelWork]) -> list[str]:
        """The models of `work` (models with requests and resident weights), the next first: a model that has waited for
        more than MODEL_WAIT_STEPS_MAX steps; due streams of the highest waiting tier; first tokens of that tier; due
        streams of lower tiers; all others in turn. In turn, a model that was served more than others of its tier is
        later. A stream is due if it would miss its target after another model's step."""
        self._add_work(work)
        if len(work) < 2:
            return list(work)
        top = min(own.best for own in work.values())
        due = {model: rank for model in work if (rank := self._due(model)) is not None}
        urgent = any(rank == top for rank in due.values()) or any(own.first == top for own in work.values())
        least_s = self._least_served(work)

        def sort_key(model: str) -> tuple[int, int, float, int]:
            own, past = work[model], self._turns[model]
            if self._is_starved(past, self.steps) and not (urgent and self._last_was_starved):
                return 0, 0, 0.0, past.last_step
            rank = due.get(model)
            if rank is not None:
                # Before first tokens of its own tier, behind those of a higher tier.
                return (1 if rank == top else 3), rank, self._left_s(model, rank), past.last_step
            is_ahead = float(past.served_s > least_s[own.best] + LEVEL_STEPS * self._longest_s)
            # A higher tier's streams that are not due take turns with lower tiers' work: they meet their target without
            # being first, and a step of many rows makes more tokens than a step of few.
            return (2 if own.first == top else 4), 0, is_ahead, past.last_step

        return sorted(work, key=sort_key)

    def limit_s(self, model: str, rank: int) -> float:
        """Longest step, in seconds, of the model with prefill of tier `rank`, so that all other models' streams of this
        and higher tiers keep their targets when they are served in the order in which they are due."""
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
        """Seconds that the model's streams have waited for steps of other models since its last step."""
        turn = self._turns.get(model)
        return turn.waited_s if turn else 0.0

    # ---- inside

    def _add_work(self, work: Mapping[str, ModelWork]) -> None:
        """A model that had no work, or was not resident, starts level with the least served: a pause earns neither
        steps nor seconds."""
        continued_s = [self._turns[model].served_s for model in work if model in self._work]
        if continued_s:
            self._level_s = min(continued_s)
        for model in work:
            if model not in self._work:
                turn = self._turns.setdefault(model, _ModelTurn(self.steps))
                turn.last_step, turn.waited_s = self.steps, 0.0
                turn.served_s = max(turn.served_s, self._level_s)
        self._work = dict(work)

    def _least_served(self, work: Mapping[str, ModelWork]) -> dict[int, float]:
        """Tier → the least device-seconds of the models whose highest tier it is."""
        least_s: dict[int, float] = {}
        for model, own in work.items():
            least_s[own.best] = min(least_s.get(own.best, math.inf), self._turns[model].served_s)
        return least_s

    def _is_starved(self, turn: _ModelTurn, steps: int) -> bool:
        return steps - turn.last_step > MODEL_WAIT_STEPS_MAX

    def _due(self, model: str) -> int | None:
        """The highest tier whose streams would miss their target if another model's step ran first."""
        work = self._work[model]
        others_s = max((own.next_s for other, own in self._work.items() if other != model), default=0.0)
        return next((rank for rank in work.decoding if self._left_s(model, rank) < others_s), None)

    def _left_s(self, model: str, rank: int) -> float:
        """Seconds until the model's next step must begin, for the streams of this tier."""
        return self._targets_s[rank] - self._turns[model].waited_s - self._work[model].next_s
