"""Where a text's reasoning begins and ends, by ids, and its budget."""

from __future__ import annotations

from typing import Literal

from engine.protocol.frames import Guide


class Reasoning:
    """The state after the ids given to `push_id`.

    "unknown": the model may open the reasoning with the start ids, or answer at once. Its first id decides: if it is
    the first of several start ids, the rest of them is forced. "open": the reasoning continues. "over": the answer has
    begun."""

    def __init__(self, guide: Guide) -> None:
        self._start, self._end, self._max = guide.reasoning_start_ids, guide.reasoning_end_ids, guide.reasoning_max
        self.state: Literal["unknown", "open", "over"] = "over"
        if guide.reasoning_open:
            self.state = "open"
        elif guide.reasoning_start_ids:
            self.state = "unknown"
        self._matched = 0  # ids of the start marker, then of the end marker, that the last ids equal
        self._made = 0  # ids since the reasoning opened

    def push_id(self, id_: int) -> bool:
        """Take in the next id. Returns whether it belongs to the answer."""
        if self.state == "over":
            return True
        if self.state == "unknown":
            if id_ != self._start[self._matched]:
                self.state = "over"
                return True
            self._matched += 1
            if self._matched == len(self._start):
                self.state, self._matched = "open", 0
            return False
        self._made += 1
        self._matched = self._end_matched(id_)
        if self._matched == len(self._end):
            self.state = "over"
        return False

    def forced_id(self) -> int | None:
        """The only id that may follow; None: several may."""
        if self.state == "unknown" and self._matched:
            return self._start[self._matched]
        if self.state == "open" and self._max is not None and self._made >= self._max:
            return self._end[self._matched]
        return None

    def opening_id(self) -> int | None:
        """The id that opens the reasoning, while the first id is not drawn."""
        return self._start[0] if self.state == "unknown" and not self._matched else None

    def _end_matched(self, id_: int) -> int:
        """The longest beginning of the end ids that the last ids equal. The ids before the last are known by
        `_matched` alone."""
        before = self._end[: self._matched]
        for length in range(self._matched + 1, 0, -1):
            if [*before, id_][-length:] == self._end[:length]:
                return length
        return 0
