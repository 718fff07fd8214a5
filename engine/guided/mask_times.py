"""How long the masks of a grammar take: a draw does not wait for the masks of a slow grammar."""

from __future__ import annotations

# CPU seconds. An ordinary mask takes some 50 µs; those near the end of a bounded string take up to 3 ms.
MASK_SLOW_S = 0.005
# Each mask lowers the memory of slower ones by this factor: 100 quick masks after one of 30 ms end its effect.
SLOW_DECAY = 0.98


class MaskTimes:
    """Of one compiled grammar, for all of its texts. No numpy here: the compiler makes it."""

    def __init__(self) -> None:
        self._recent_s = 0.0

    @property
    def is_slow(self) -> bool:
        return self._recent_s > MASK_SLOW_S

    def note_mask(self, seconds: float) -> None:
        """One mask took `seconds` of CPU on its thread. From any thread: a note lost to a race changes little."""
        self._recent_s = max(seconds, SLOW_DECAY * self._recent_s)
