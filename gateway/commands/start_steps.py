"""The progress of a start on a terminal: numbered steps with names, and the elapsed time of a long step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# A running step prints its elapsed seconds at this interval.
SILENCE_S_MAX = 5.0

Say = Callable[[str], None]


class StartProgress:
    """`total` steps of one start; `say` prints a line and may be called from another thread."""

    def __init__(self, say: Say, total: int, silence_s_max: float = SILENCE_S_MAX) -> None:
        self._say = say
        self._total = total
        self._silence_s_max = silence_s_max
        self._number = 0

    def begin_start_step(self, name: str) -> StartStep:
        """Print the next step's number and name. The step lasts until `end_start_step`."""
        self._number += 1
        return StartStep(self._say, f"==> {self._number}/{self._total} {name}", self._silence_s_max)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = self.begin_start_step(name)
        try:
            yield
        except BaseException:
            began.end_start_step(quiet=True)
            raise
        began.end_start_step()


class StartStep:
    """A running step. `end_start_step` may be called more than once."""

    def __init__(self, say: Say, title: str, silence_s_max: float) -> None:
        self._say = say
        self._silence_s_max = silence_s_max
        self._ended = threading.Event()
        self._began = time.monotonic()
        say(title)
        self._ticker = threading.Thread(target=self._tick, name="step-progress", daemon=True)
        self._ticker.start()

    def end_start_step(self, *, quiet: bool = False) -> None:
        """Print the elapsed time, unless `quiet` or already ended."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._ticker.join()
        if not quiet:
            self._say(f"    done after {self.elapsed_s:.1f} s")

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _tick(self) -> None:
        while not self._ended.wait(self._silence_s_max):
            self._say(f"    … {self.elapsed_s:.0f} s")
