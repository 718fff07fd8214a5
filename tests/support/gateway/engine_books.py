"""The counts of an engine and of a ledger: the two sides of the books that a test compares."""

from __future__ import annotations

import asyncio

import sqlalchemy as sa

from engine.protocol.client import EngineClient
from engine.protocol.frames import StatusReport
from support.stack import Stack


def engine_status(stack: Stack) -> StatusReport:
    async def ask() -> StatusReport:
        client = EngineClient(stack.config.socket_path)
        await client.start()
        try:
            await client.wait_ready(30)
            return await client.status()
        finally:
            await client.close()

    return asyncio.run(ask())


def metric(report: StatusReport, name: str) -> int:
    """The sum of an engine's metric over its labels."""
    lines = [line for line in report.metrics.decode().splitlines() if line.startswith(name)]
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines))


def column_sum(stack: Stack, column: sa.ColumnElement[int]) -> int:
    return stack.read(lambda connection: int(connection.execute(sa.select(sa.func.sum(column))).scalar() or 0))
