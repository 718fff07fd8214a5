"""The engines that serve one content of a model with equal pages, so that the same chain names their pages; by rank of
a tier in the order of their waits, which changes by one engine at a time.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

from engine.protocol.frames import ModelInfo
from engine.routing.engine_state import RoutedEngine

# All engines are sorted if more than 1/SORT_PART of them moved, or after MOVES_MAX moves.
SORT_PART = 8
MOVES_MAX = 4096


class WaitingEngine(NamedTuple):
    wait_s: float
    number: int  # of the engine, so that equal waits never compare engines
    engine: RoutedEngine


class EngineGroup:
    def __init__(self, info: ModelInfo, ranks: int) -> None:
        """`info`: of the model on any of the engines."""
        self.info = info
        self.engines: dict[int, RoutedEngine] = {}  # by number
        self._orders: list[list[WaitingEngine]] = [[] for _ in range(ranks)]
        self._waits: list[dict[int, float]] = [{} for _ in range(ranks)]  # number → its wait in the order
        self._moved: list[set[int]] = [set() for _ in range(ranks)]
        self._moves = [MOVES_MAX] * ranks  # until all are sorted
        self._token_s = float("inf")

    def set_engine(self, engine: RoutedEngine) -> None:
        self.engines[engine.number] = engine
        self._moves = [0] * len(self._moves)

    def remove_engine(self, engine: RoutedEngine) -> None:
        del self.engines[engine.number]
        self._moves = [0] * len(self._moves)

    def note_moved(self, engine: RoutedEngine) -> None:
        """The engine's waits or its speed changed."""
        for moved in self._moved:
            moved.add(engine.number)

    def least_token_s(self) -> float:
        """A lower bound of the seconds of one more prompt token on any of the engines, after `by_wait`."""
        return self._token_s

    def by_wait(self, rank: int) -> list[WaitingEngine]:
        """All engines by their waits of a tier, the shortest first."""
        moved, order, waits = self._moved[rank], self._orders[rank], self._waits[rank]
        if not moved and self._moves[rank] > 0:
            return order
        self._moves[rank] -= len(moved)
        if self._moves[rank] <= 0 or SORT_PART * len(moved) > len(order):
            order[:] = sorted(WaitingEngine(engine.waits[rank], n, engine) for n, engine in self.engines.items())
            self._waits[rank] = {waiting.number: waiting.wait_s for waiting in order}
            self._token_s = min((e.token_s(self.info.name) for e in self.engines.values()), default=0.0)
            self._moves[rank] = MOVES_MAX
        else:
            for number in moved:
                engine = self.engines[number]
                self._token_s = min(self._token_s, engine.token_s(self.info.name))
                if waits[number] != engine.waits[rank]:
                    del order[bisect.bisect_left(order, (waits[number], number))]
                    waits[number] = engine.waits[rank]
                    bisect.insort(order, WaitingEngine(waits[number], number, engine))
        moved.clear()
        return order
