"""Detects an engine or gateway worker that runs but makes no progress. The supervisor checks it over its socket."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from engine.protocol.client import EngineClient
from gateway.host.workers import ANSWER_S_MAX, PULSE, ask_worker

LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class EnginePulse:
    """Watches the engine at `socket_path`. `still_s`: seconds without progress that are tolerated."""

    socket_path: Path
    still_s: float

    async def lost(self) -> str:
        """Wait until the engine has been in one step, or without an answer, for `still_s`; return which of the two."""
        client = EngineClient(self.socket_path, stuck_s=self.still_s)
        await client.start()
        answered_at = time.monotonic()
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                if client.stuck:
                    return f"was busy with one step for {self.still_s:g} s"
                now = time.monotonic()
                if client.ready:
                    answered_at = now
                elif now - answered_at > self.still_s:
                    return f"did not answer for {self.still_s:g} s"
        finally:
            await client.close()


@dataclass(frozen=True, slots=True)
class WorkerPulse:
    """Watches the gateway worker at `socket_path`. `still_s`: seconds that its event loop may be blocked."""

    socket_path: Path
    still_s: float

    async def lost(self) -> str:
        """Wait until the worker has not answered for `still_s`; return that. Time in which the supervisor itself was
        suspended counts as one check only, so that no worker is killed after the host was suspended."""
        silent_s = 0.0
        while silent_s <= self.still_s:
            began = time.monotonic()
            await asyncio.sleep(LOOK_S)
            answered = await ask_worker(self.socket_path, PULSE) == PULSE
            check_s = min(time.monotonic() - began, LOOK_S + ANSWER_S_MAX)
            silent_s = 0.0 if answered else silent_s + check_s
        return f"did not answer for {self.still_s:g} s"
