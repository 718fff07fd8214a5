"""How long the masks of a grammar take: a draw does not wait for the masks of a slow grammar.

Masks of several texts are computed in one call. Such a call is timed as a whole, so that a long one makes its grammars
suspects, whose next masks are computed and timed alone.
"""

from __future__ import annotations

# CPU seconds. An ordinary mask takes some 20 µs, a mask near the end of a bounded string up to 3 ms.
MASK_SLOW_S = 0.01
# Each mask lowers the memory of slower ones by this factor: 100 quick masks after one of 30 ms end its effect.
SLOW_DECAY = 0.98
# A call for several texts makes all of them suspects if it takes longer than MASK_SLOW_S and this CPU time for each of
# them. The next masks of a suspect, and the first of a new grammar, are computed alone.
TYPICAL_S = 0.0004
SUSPECT_MASKS = 4


class MaskTimes:
    """Mask times of one compiled grammar, over all of its texts. From any thread: a note lost to a race changes little.
    No numpy here: the compiler makes it."""

    def __init__(self) -> None:
        self._recent_s = 0.0
        self._alone = SUSPECT_MASKS

    @property
    def is_slow(self) -> bool:
        return self._recent_s > MASK_SLOW_S

    @property
    def is_suspect(self) -> bool:
        """Whether the next mask must be computed and timed alone. True of a new grammar."""
        return self._alone > 0

    def note_mask(self, seconds: float) -> None:
        """One mask took `seconds` of CPU on its thread."""
        self._recent_s = max(seconds, SLOW_DECAY * self._recent_s)
        self._alone = SUSPECT_MASKS if seconds > MASK_SLOW_S else max(0, self._alone - 1)

    def suspect(self) -> None:
        """A call for several texts took long, of which this grammar's was one."""
        self._alone = SUSPECT_MASKS
