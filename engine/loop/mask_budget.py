"""How long a draw may wait for masks: as long as the device has work anyway, predicted from the last steps.

While the forward pass of step n runs, the loop handles step n − 1, waits for the masks of n, launches the draw of n,
begins n + 1, and waits for the ids of n. The two waits together are the time in which the loop has nothing else to do.
If the wait for masks takes all of that time, the device waits for the loop: the ids of n are then ready at once.

Steps with prompt tokens may take twenty times as long as decode steps, so that both kinds are measured apart. A step
that is shorter than the last ones of its kind ends the wait with its forward pass (`Pending.is_forward_done`).
"""

from __future__ import annotations

from collections import deque

from engine.step import Step

# The shortest free time of the last STEPS_REMEMBERED steps of a kind predicts the next one.
STEPS_REMEMBERED = 16
# Subtracted from the predicted time, for the variation between steps.
RESERVE_S = 0.001
# A shorter wait for ids means that the ids were ready before the loop waited for them.
IDS_READY_S = 0.0005
# The wait before a step of the kind was measured, and the minimum wait, in which ready masks are taken in.
WAIT_FIRST_S = 0.002
WAIT_MIN_S = 0.0003


class MaskBudget:
    def __init__(self) -> None:
        self._decode_s: deque[float] = deque(maxlen=STEPS_REMEMBERED)
        self._mixed_s: deque[float] = deque(maxlen=STEPS_REMEMBERED)  # of steps with prompt tokens

    def wait_s(self, step: Step) -> float:
        """Seconds for which the draw of the step may wait."""
        free_s = self._free_s(step)
        return max(WAIT_MIN_S, min(free_s) - RESERVE_S) if free_s else WAIT_FIRST_S

    def note_step(self, step: Step, masks_wait_s: float, ids_wait_s: float) -> None:
        """The loop waited for the masks of a step, and later for its ids."""
        # If the ids were ready, the wait for masks was too long by an unknown time.
        free_s = masks_wait_s + ids_wait_s if ids_wait_s > IDS_READY_S else masks_wait_s / 2
        self._free_s(step).append(free_s)

    def _free_s(self, step: Step) -> deque[float]:
        return self._decode_s if all(chunk.count == 1 for chunk in step.chunks) else self._mixed_s
