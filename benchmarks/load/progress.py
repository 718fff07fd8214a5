"""A line about the run while it runs: rewritten in place on a terminal, a new one every few seconds elsewhere."""

from __future__ import annotations

import asyncio
import itertools
import statistics
from typing import TextIO

from benchmarks.load.client import clock
from benchmarks.load.run import Run

TERMINAL_EVERY_S = 0.5
LOG_EVERY_S = 5.0
RECENT = 200  # first tokens whose median is shown


class Progress:
    """Writes to `stream`. If its terminal is closed, the run continues: lines that cannot be written are dropped."""

    def __init__(self, run: Run, stream: TextIO, every_s: float | None = None) -> None:
        self._run, self._stream = run, stream
        self._rewrites = stream.isatty()
        self._every_s = every_s or (TERMINAL_EVERY_S if self._rewrites else LOG_EVERY_S)
        self._last = (0.0, 0, 0)  # when, answers, tokens

    async def show(self) -> None:
        """Write the line until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._every_s)
                line = self.line()
                self._stream.write(f"\r\x1b[K{line}" if self._rewrites else f"{line}\n")
                self._stream.flush()
        except OSError:
            return
        finally:
            if self._rewrites:
                self._stream.write("\r\x1b[K")
                self._stream.flush()

    def line(self) -> str:
        if self._run.warming:
            return "warming up"
        measured = self._run.measured
        recorder, now = measured.recorder, clock()
        done = len(recorder.outcomes)
        since, done_before, tokens_before = self._last
        seconds = now - max(since, measured.began_s)
        self._last = (now, done, recorder.tokens)
        recent = list(itertools.islice(reversed(recorder.recent_ttft), RECENT))
        ttft = f"{statistics.median(recent) * 1000:.0f} ms" if recent else "-"
        rates = f"{(done - done_before) / seconds:.1f} requests/s  {(recorder.tokens - tokens_before) / seconds:.0f}"
        return (
            f"{now - measured.began_s:6.1f} s  {recorder.sent} sent, {done} done, {recorder.failed} errors, "
            f"{recorder.in_flight} in flight  {rates} tokens/s  TTFT p50 {ttft}"
        )
