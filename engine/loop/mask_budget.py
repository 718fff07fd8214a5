"""How long a draw may wait for masks: as long as the device has work anyway, predicted from the last steps.

While the forward pass of step n runs, the loop handles step n − 1, waits for the masks of n, launches the draw of n,
begins n + 1, and waits for the ids of n. The two waits together are the time in which the loop has nothing else to do.
If the first one takes all of it, the device waits for the loop. A step that is shorter than the last ones ends the wait
with its forward pass (`Pending.is_forward_done`): the first decode steps after a prompt, for example.
"""

from __future__ import annotations

from collections import deque

# Steps whose shortest wait counts.
STEPS_REMEMBERED = 8
# Left for what varies between steps.
RESERVE_S = 0.001
# Before a step has been measured, and at least: masks may be ready before anything waits for them.
WAIT_FIRST_S = 0.002
WAIT_MIN_S = 0.0003


class MaskBudget:
    def __init__(self) -> None:
        self._free_s: deque[float] = deque(maxlen=STEPS_REMEMBERED)

    @property
    def seconds(self) -> float:
        """For which the next draw may wait."""
        return max(WAIT_MIN_S, min(self._free_s) - RESERVE_S) if self._free_s else WAIT_FIRST_S

    def note_step(self, masks_wait_s: float, ids_wait_s: float) -> None:
        """The loop waited for a step's masks, and later for its ids."""
        self._free_s.append(masks_wait_s + ids_wait_s)
