"""Replaces a gateway process by a successor of the code that is on disk now; at every moment a process listens.

The successor binds the port beside the old process (SO_REUSEPORT). When it is ready, the old process stops listening,
serves the connections that it has, and exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from gateway.host.children import PROBE_EVERY_S, Child
from gateway.host.workers import WorkerState, ask_state, socket_path

Say = Callable[[str], None]
READY_S_MAX = 120.0
PROGRESS_S = 2.0  # between two lines about the requests that are left


class RollFailed(Exception):
    """A process could not be replaced. The message says why."""


async def replace_worker(data_dir: Path, old: Child, successor: Child, adopt: Callable[[], None], say: Say) -> None:
    """Wait until `successor`, which starts, is ready; `adopt` it, and stop `old` when its requests have ended. Raises
    RollFailed when the successor is not ready; it is stopped then, and `old` serves on."""
    name = old.spec.name
    assert old.spec.worker is not None
    current, following, last = (socket_path(data_dir, old.spec.worker, role) for role in ("", "next", "last"))
    try:
        began = time.monotonic()
        await _until_ready(successor, following)
        with contextlib.suppress(OSError):  # the old process did not answer anyway
            os.replace(current, last)
        with contextlib.suppress(OSError):
            os.replace(following, current)
        successor.successor = False
        adopt()
        say(f"the {name} is replaced: pid {successor.pid} was ready after {time.monotonic() - began:.1f} s")
    finally:
        if successor.successor:  # not adopted
            await successor.stop(quick=True)
    leaving = asyncio.create_task(old.retire())
    try:
        await _show_progress(leaving, f"the old {name} (pid {old.pid})", last, say)
    finally:
        await asyncio.shield(leaving)


async def _until_ready(successor: Child, path: Path) -> None:
    """Raises RollFailed."""
    name = f"the new {successor.spec.name}"
    deadline = time.monotonic() + READY_S_MAX
    state: WorkerState | None = None
    while time.monotonic() < deadline:
        await asyncio.sleep(PROBE_EVERY_S)
        if (end := successor.end) is not None:
            raise RollFailed(f"{name} ended before it was ready ({end}); its log has the reason")
        state = await ask_state(path)
        if successor.ready.is_set() and state is not None and not state.problems:
            return
    why = "; ".join(state.problems.values()) if state is not None and state.problems else "it did not answer"
    raise RollFailed(f"{name} was not ready after {READY_S_MAX:g} s: {why}")


async def _show_progress(leaving: asyncio.Task[None], name: str, path: Path, say: Say) -> None:
    """Show progress until the old process has ended."""
    began = time.monotonic()
    while True:
        done, _ = await asyncio.wait([leaving], timeout=PROGRESS_S)
        if done:
            say(f"{name} has ended after {time.monotonic() - began:.1f} s")
            return
        if (state := await ask_state(path)) is not None:
            say(f"{name} serves its requests, after {state.seconds:.0f} s: {state.requests}")
