"""Whether a living engine or gateway worker still makes progress, checked over its own socket by the supervisor."""

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
    """Of the engine at `socket_path`; it may stand still for `still_s`."""

    socket_path: Path
    still_s: float

    async def lost(self) -> str:
        """Wait until it stands still for too long: busy in one step, or without an answer. Says which."""
        client = EngineClient(self.socket_path, stuck_s=self.still_s)
        await client.start()
        heard_at = time.monotonic()
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                if client.stuck:
                    return f"was busy with one step for {self.still_s:g} s"
                now = time.monotonic()
                if client.ready:
                    heard_at = now
                elif now - heard_at > self.still_s:
                    return f"did not answer for {self.still_s:g} s"
        finally:
            await client.close()


@dataclass(frozen=True, slots=True)
class WorkerPulse:
    """Of the gateway's worker that answers at `socket_path`; its event loop may stand still for `still_s`."""

    socket_path: Path
    still_s: float

    async def lost(self) -> str:
        """Wait until the worker has not answered for `still_s`. Time in which the supervisor itself stood still counts
        as one look only: a host that was suspended restarts no worker."""
        silent_s = 0.0
        while silent_s <= self.still_s:
            began = time.monotonic()
            await asyncio.sleep(LOOK_S)
            answered = await ask_worker(self.socket_path, PULSE) == PULSE
            looked_s = min(time.monotonic() - began, LOOK_S + ANSWER_S_MAX)
            silent_s = 0.0 if answered else silent_s + looked_s
        return f"did not answer for {self.still_s:g} s"
