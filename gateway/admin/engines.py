"""The audit line of draining an engine. `gateway.fleet` sends the command to the engine after this line."""

from __future__ import annotations

import sqlalchemy as sa

from gateway.admin.writes import Writes


class EngineWrites:
    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def note_drain(self, connection: sa.Connection, *, engine: str, draining: bool) -> None:
        """Record that the actor drains the engine, or lets it serve again. Raises NotPermitted, ActorKeyEnded."""
        self._writes.check_operator("engines")
        self._writes.lock(connection)
        self._writes.record_line(connection, "engine.drain" if draining else "engine.serve", f"engine {engine}")
