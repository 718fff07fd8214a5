"""The steps in flight: begin the next step, draw its ids once the ids of the step before are known, take the results.

The forward pass of step n + 1 runs while the host takes in step n, so that whatever the draw of n + 1 depends on
(penalties, masks) is computed from known ids, and the device does not wait for it. It must never schedule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engine.loop.mask_budget import MaskBudget
from engine.step import DeviceLost, Masks, Pending, Runner, Step, StepResult

NO_SKIPS: frozenset[int] = frozenset()


class StepMasks(Protocol):
    """The source of a step's masks."""

    def begin_masks(self, step: Step) -> bool:
        """Begin the masks of a step when the ids of all earlier steps are in its sequences. False: the step needs no
        masks. Otherwise `take_masks` follows."""
        ...

    def take_masks(self, wait_s: float | None, is_forward_done: Callable[[], bool] | None = None) -> Masks | None:
        """The masks that were begun, of rows that are ready within `wait_s` and before `is_forward_done`. None: the
        source decides, and no forward pass runs meanwhile."""
        ...


class NoMasks(StepMasks):
    """The masks of requests without constraints."""

    def begin_masks(self, step: Step) -> bool:
        return False

    def take_masks(self, wait_s: float | None, is_forward_done: Callable[[], bool] | None = None) -> Masks | None:
        return None


@dataclass(slots=True)
class StepInFlight:
    """A step in flight. `error`: its forward or its draw could not be launched, or its masks could not be made; its
    requests have no ids."""

    step: Step
    began: float
    clock: Callable[[], float]
    pending: Pending | None = None
    has_masks: bool | None = None  # None: they were not begun yet
    draw_begun: bool = False
    drawn: bool = False
    skipped: frozenset[int] = NO_SKIPS  # chunk indices, once drawn
    error: Exception | None = None
    masks_wait_s: float = 0.0
    ids_wait_s: float = 0.0

    def result(self) -> StepResult:
        """Wait for the step. Raises its error, or DeviceLost."""
        began = self.clock()
        result = self.pending.result() if self.drawn and self.pending is not None else None
        self.ids_wait_s = self.clock() - began
        if self.error is not None:
            raise self.error
        assert result is not None, "the step's ids were not drawn"
        return result


class StepFlights:
    """At most one step is in flight whose ids are not drawn: the newest, while the one before is not completed."""

    def __init__(self, runner: Runner, clock: Callable[[], float], masks: StepMasks | None = None) -> None:
        self._runner = runner
        self._clock = clock
        self._masks = masks or NoMasks()
        self._budget = MaskBudget()
        self._taken: StepInFlight | None = None  # the oldest, whose result the caller takes
        self._flights: deque[StepInFlight] = deque()  # oldest first

    def __bool__(self) -> bool:
        return bool(self._flights)

    def may_begin(self) -> bool:
        """Whether another step may begin: not before the newest is drawn, nor after a step that has no ids."""
        if not self._flights:
            return True
        newest = self._flights[-1]
        return len(self._flights) <= self._runner.steps_ahead and newest.drawn and newest.error is None

    def oldest_model(self) -> str | None:
        """The model of the oldest step in flight; None: there is none."""
        return self._flights[0].step.model if self._flights else None

    @property
    def skipped(self) -> frozenset[int]:
        """The chunks of the newest step whose draw was skipped; for `Scheduler.schedule`."""
        return self._flights[-1].skipped if self._flights else NO_SKIPS

    def begin_step(self, step: Step) -> None:
        """Begin a step, and draw its ids if no other step is in flight. `StepInFlight.result` raises its error. Raises
        DeviceLost."""
        flight = StepInFlight(step, self._clock(), self._clock)
        try:
            flight.pending = self._runner.begin_step(step)
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 - raised again, logged and counted when its turn comes
            flight.error = error
        self._flights.append(flight)
        self.draw_oldest()

    def take_oldest(self) -> StepInFlight:
        """Remove the oldest step in flight. The caller takes its result in, then calls `draw_oldest`."""
        self._taken = self._flights.popleft()
        return self._taken

    def begin_masks(self) -> bool:
        """Begin the masks of the only step in flight, since all earlier ids are known now. True: the caller may do
        other work before `draw_oldest`, which waits for them."""
        flight, taken = self._undrawn(), self._taken
        if flight is None:
            return False
        if flight.has_masks is not None:
            return flight.has_masks
        flight.has_masks = False
        if taken is not None:  # it was completed while another step was in flight
            self._taken = None
            if taken.has_masks:
                self._budget.note_step(taken.step, taken.masks_wait_s, taken.ids_wait_s)
        try:
            flight.has_masks = self._masks.begin_masks(flight.step)
        except Exception as error:  # noqa: BLE001 - raised again, logged and counted when its turn comes
            flight.error = error
        return flight.has_masks

    def draw_oldest(self) -> None:
        """Draw the ids of the only step in flight, since all earlier ids are known now. Raises DeviceLost."""
        self.begin_masks()
        flight = self._undrawn()
        if flight is None:
            return
        assert flight.pending is not None
        flight.draw_begun, masks = True, None
        if flight.has_masks:
            began = self._clock()
            try:
                if self._runner.steps_ahead:
                    masks = self._masks.take_masks(self._budget.wait_s(flight.step), flight.pending.is_forward_done)
                else:
                    masks = self._masks.take_masks(None)
            except Exception as error:  # noqa: BLE001 - raised again, logged and counted when its turn comes
                flight.error = error
            flight.masks_wait_s = self._clock() - began
        try:
            flight.pending.draw(masks)  # also without masks: a runner completes every step that it has begun
            flight.drawn = True
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 - raised again, logged and counted when its turn comes
            flight.error = error
        if masks is not None:
            flight.skipped = masks.skip

    def _undrawn(self) -> StepInFlight | None:
        """The only step in flight, if its ids can be drawn and are not."""
        flight = self._flights[0] if len(self._flights) == 1 else None
        return None if flight is None or flight.draw_begun or flight.pending is None else flight
