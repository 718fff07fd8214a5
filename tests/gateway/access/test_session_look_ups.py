"""Cookies that nobody gave out, by the thousand: other reads come through beside them."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from billing.clock import database_now
from billing.database import Database
from gateway.access.callers import Callers
from gateway.access.person_sign_ins import PersonSignIns
from gateway.access.sessions import SECRET_BYTES, Sessions
from gateway.config.server_secrets import ServerSecrets
from gateway.config.sign_in import OidcSection
from gateway.errors import Overloaded, SessionExpired

FLOOD = 3000


@pytest.fixture
def database(sqlite_database: Database) -> Database:
    return sqlite_database


async def test_a_flood_of_cookies_keeps_nobody_waiting(database: Database) -> None:
    people = PersonSignIns(database, OidcSection(), ServerSecrets(b"s" * 32))
    sessions = Sessions(database, Callers(database, ["standard"], {}), people)
    cookies = [secrets.token_urlsafe(SECRET_BYTES) for _ in range(FLOOD)]
    flood = [asyncio.create_task(sessions.identify(cookie, "req_1")) for cookie in cookies]
    await asyncio.sleep(0)  # each has asked
    refused = sum(task.done() for task in flood)
    await database.read(database_now)  # as a key is looked up
    unanswered = sum(not task.done() for task in flood)
    answers = await asyncio.gather(*flood, return_exceptions=True)
    assert unanswered > (FLOOD - refused) * 0.8, "what came first was not all answered first"
    assert refused > FLOOD // 2, "what waits is bounded"
    assert {type(answer) for answer in answers} == {Overloaded, SessionExpired}
    with pytest.raises(SessionExpired):  # afterwards there is room again
        await sessions.identify(cookies[0], "req_1")
