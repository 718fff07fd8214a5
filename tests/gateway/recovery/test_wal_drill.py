"""The drill with WAL archiving to another host: the database's host is lost under load, without a settled entry."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import httpx
import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from billing import tables
from gateway.cli import main
from gateway.commands.backup import engine_counts
from gateway.recovery.verification import missing_tokens
from support.postgres_cluster import postgres_cluster
from support.stack import Stack
from support.waiting import eventually

MakeStack = Callable[..., Stack]
READERS = 4
ANSWERS_MIN = 12  # settled in the database before its host is lost


class Load(threading.Thread):
    """Sends requests until one is refused, and notes those that were answered."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(daemon=True)
        self._stack = stack
        self.answered: dict[str, int] = {}  # completion tokens
        self.start()

    def run(self) -> None:
        while True:
            try:
                answer = self._stack.chat(max_tokens=6)
            except httpx.TransportError:
                return
            if answer.status_code != 200:
                return
            self.answered[answer.headers["x-request-id"]] = answer.json()["usage"]["completion_tokens"]


@pytest.mark.slow
def test_no_settled_entry_is_lost_with_the_databases_host(make_stack: MakeStack) -> None:
    with postgres_cluster() as cluster:
        stack = make_stack(cluster.url)
        cluster.archive_synchronously()
        load = [Load(stack) for _ in range(READERS)]

        def answers() -> dict[str, int]:
            return {request_id: tokens for reader in load for request_id, tokens in list(reader.answered.items())}

        def settled() -> dict[str, int]:
            query = sa.select(tables.usage.c.request_id, tables.usage.c.completion_tokens)
            return {row.request_id: row.completion_tokens for row in stack.read(lambda c: c.execute(query).all())}

        eventually(lambda: len(answers()) >= ANSWERS_MIN)
        committed = settled()
        cluster.lose_host()
        for reader in load:
            reader.join()
        cluster.recover()
        assert committed.items() <= settled().items()
        # The others were settled between, or are in the gateway's journal, which is settled now.
        eventually(lambda: answers().items() <= settled().items())
        eventually(lambda: stack.open_holds() == 0)
        counts = asyncio.run(engine_counts(stack.config))
        assert [(loss.missing, loss.exact) for loss in stack.read(lambda c: missing_tokens(c, counts))] == [(0, True)]
        for options in ((), ("--minute",)):
            arguments = ["--config", str(stack.config_file), "billing", "reconcile", *options]
            reconciled = CliRunner().invoke(main, arguments, catch_exceptions=False)
            assert reconciled.exit_code == 0, reconciled.output
        stack.stop()
