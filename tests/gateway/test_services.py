"""The end of a process whose database does not answer: it comes in time, and whoever waits is told."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from billing.database import DatabaseUnavailable
from billing.ledger.ledger import Ledger, LedgerUnavailable
from billing.tables import leases
from gateway.config.file import parse_gateway_config
from gateway.config.server_secrets import ServerSecrets
from gateway.host.stop_state import StopTimes
from gateway.services import Services
from migrations.upgrade import upgrade
from support.stack import MODEL

GRACE_S = 2.0
REST_S = StopTimes.of(GRACE_S).close_s


@pytest.fixture
def services(tmp_path: Path, model_dir: Path) -> Iterator[Services]:
    text = (
        f'[gateway]\ndata_dir = "data"\ndatabase_url = "sqlite:///{tmp_path}/laneway.db"\n'
        f'shutdown_grace_s = {GRACE_S}\n[[models]]\nname = "{MODEL}"\npath = "{model_dir}"\n'
    )
    upgrade(f"sqlite:///{tmp_path}/laneway.db")
    made = Services(parse_gateway_config(text.encode(), tmp_path, "test", {}), ServerSecrets(b"secret"))
    yield made
    asyncio.run(made.settler.close())
    made.database.close()


async def test_a_ledger_that_does_not_answer_leaves_time_for_the_lease(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger never gets its turn; the rest of the database works."""
    forever = asyncio.Event()

    async def stuck(ledger: Ledger, *_: object) -> None:
        await forever.wait()

    await services.leases.acquire()
    monkeypatch.setattr(Ledger, "_transact", stuck)
    waiting = asyncio.create_task(services.ledger.void("req_1", "test"))
    await asyncio.sleep(0)
    began = time.monotonic()
    await services._close_ledger()
    assert time.monotonic() - began < REST_S
    with pytest.raises(LedgerUnavailable):
        await waiting
    with sqlite3.connect(str(services.database.sqlite_path)) as connection:
        assert connection.execute(str(sa.select(sa.func.count()).select_from(leases))).fetchone() == (0,)


async def test_a_ledger_with_work_finishes_it(services: Services) -> None:
    await services.leases.acquire()
    waiting = asyncio.create_task(services.ledger.void("req_1", "test"))
    await asyncio.sleep(0)
    await services._close_ledger()
    assert (await waiting).outcome == "unknown"


@pytest.mark.parametrize("back", [True, False])
async def test_a_stop_with_something_in_the_journal(
    services: Services, monkeypatch: pytest.MonkeyPatch, back: bool
) -> None:
    """Is the database back, it is settled and the lease given up; else the lease keeps its holds for the next start."""
    await services.leases.acquire()
    await services.settler.start()

    async def away(ledger: Ledger, *_: object) -> None:
        raise DatabaseUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "_transact", away)
        assert (await services.settler.void("req_1", "test")).outcome == "journaled"
        if not back:
            await services._close_ledger()
    if back:
        await services._close_ledger()
    assert (services.settler.bytes_used == 0) is back
    with sqlite3.connect(str(services.database.sqlite_path)) as connection:
        found = connection.execute(str(sa.select(sa.func.count()).select_from(leases))).fetchone()
    assert found == (0 if back else 1,)
    await services.leases.release_lease()
