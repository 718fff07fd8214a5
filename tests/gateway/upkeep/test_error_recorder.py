"""Refused and failed requests are counted exactly and recorded within limits, whatever the database does; nothing that
a request says is stored."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa

from billing.database import Database, DatabaseUnavailable
from gateway import errors
from gateway.error_tables import request_error_counts, request_errors
from gateway.generation.endings import FAILED_ENDINGS, REFUSED_ENDINGS, EndingCode, outcome_of
from gateway.log import LineCaller, RequestLine, RequestRecord
from gateway.metrics import Metrics
from gateway.telemetry.request_errors import note_error
from gateway.upkeep import error_recorder
from gateway.upkeep.error_recorder import QUARTER, TENANT_ROWS_PER_S, ErrorRecorder

NOW_S = 1_800_000_000.0 + 100  # within a quarter-hour
SECRET = "a word of the prompt"
LIMITED = errors.RateLimited("Too fast.", retry_after_s=3, limit=errors.ReachedLimit("key_requests_per_minute", 60))


class Clock:
    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


class Recording:
    """A recorder with its clock and metrics, and the requests that end in it."""

    def __init__(self, database: Database, gateway_id: str = "gw_1", gateways: int = 1) -> None:
        self.database, self.clock, self.metrics = database, Clock(), Metrics()
        self.recorder = ErrorRecorder(database, gateway_id, self.metrics, now_s=self.clock, gateways=lambda: gateways)
        self.ended = 0

    def end(
        self,
        error: errors.ApiError | None = LIMITED,
        *,
        tenant: str | None = "ten_a",
        key: str = "key_a",
        model: str | None = "model-a",
        route: str = "/v1/chat/completions",
        ending: str | None = None,
        settled: bool = False,
    ) -> str:
        self.ended += 1
        record = RequestRecord(request_id=f"req_{self.ended:05}", method="POST", route=route, status=200, ending=ending)
        line = RequestLine(record)
        if tenant is not None:
            record.tenant, record.key = tenant, key
            line.caller = LineCaller("prj_a", "standard")
        line.model_asked = model
        line.times.settle_ended_s = 1.0 if settled else None
        if error is not None:
            note_error(line, error)
        self.recorder.note(line)
        return record.request_id

    def rows(self) -> list[Any]:
        query = sa.select(request_errors).order_by(request_errors.c.request_id)
        return list(self.database.read_sync(lambda c: c.execute(query).all()))

    def counts(self) -> dict[tuple[str, str, str], int]:
        names = request_error_counts.c
        query = sa.select(names.tenant_id, names.key_id, names.code, sa.func.sum(names.requests))
        query = query.group_by(names.tenant_id, names.key_id, names.code)
        return {
            (row[0], row[1], row[2]): int(row[3]) for row in self.database.read_sync(lambda c: c.execute(query).all())
        }

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


async def test_rows_are_bounded_and_counts_are_exact(database: Database) -> None:
    made = Recording(database)
    for _ in range(1000):
        made.end()
    for number in range(4):
        made.end(errors.ModelNotFound("absent"), tenant="ten_b", key=f"key_{number % 2}")
    made.clock.now_s += 1
    for _ in range(30):
        made.end()
    await made.recorder.flush()
    of_a = [row for row in made.rows() if row.tenant_id == "ten_a"]
    assert len(of_a) == 2 * TENANT_ROWS_PER_S, "ten in each second"
    assert len(made.rows()) == len(of_a) + 4
    found = made.counts()
    assert found["ten_a", "key_a", "rate_limit_exceeded"] == 1030
    assert found["ten_b", "key_0", "model_not_found"] == found["ten_b", "key_1", "model_not_found"] == 2
    labels = {"outcome": "refused", "code": "rate_limit_exceeded"}
    assert made.metric("laneway_requests_with_error_total", **labels) == 1030, "as the counts"
    assert made.metric("laneway_error_rows_dropped_total", reason="rate") == 1010
    await made.recorder.flush()
    assert made.counts() == found
    row = of_a[0]
    assert (row.status, row.code, row.outcome, row.tier) == (429, "rate_limit_exceeded", "refused", "standard")
    assert (row.limit_name, row.limit_value, row.project_id) == ("key_requests_per_minute", 60, "prj_a")
    assert row.message == LIMITED.message
    assert row.retry_after_s == LIMITED.retry_after
    assert row.at == round(NOW_S * 1e6)


async def test_gateways_share_the_rows_of_a_second(sqlite_database: Database) -> None:
    both = [Recording(sqlite_database, gateway_id, gateways=2) for gateway_id in ("gw_1", "gw_2")]
    both[1].ended = 100
    for made in both:
        for _ in range(20):
            made.end()
        await made.recorder.flush()
    assert len(both[0].rows()) == TENANT_ROWS_PER_S
    assert both[0].counts() == {("ten_a", "key_a", "rate_limit_exceeded"): 40}


async def test_what_is_no_error_of_a_known_key_leaves_nothing(sqlite_database: Database) -> None:
    made = Recording(sqlite_database)
    made.end(None)
    made.end(errors.InvalidApiKey(), tenant=None)
    made.end(errors.OtherStatus(errors.STATUS_CLIENT_LEFT, "The client disconnected."))
    made.end(errors.NotFound("There is no key."), route="/v1/admin/keys/{key_id}")
    await made.recorder.flush()
    assert made.rows() == []
    assert made.counts() == {}
    made.end(errors.AccessEnded(), ending="revoked", settled=True)
    await made.recorder.flush()
    assert [row.code for row in made.rows()] == ["invalid_api_key"], "the key was known"


async def test_a_database_that_hangs_delays_nothing_and_loses_no_count(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(error_recorder, "WAITING_MAX", 5)
    database = sqlite_database
    made = Recording(database)
    released, tried = asyncio.Event(), asyncio.Event()
    write = database.write_in_background

    async def hang(function: Any) -> Any:
        tried.set()
        await released.wait()
        raise DatabaseUnavailable("it hung")

    monkeypatch.setattr(database, "write_in_background", hang)
    made.end()
    flush = asyncio.create_task(made.recorder.flush())
    await tried.wait()
    for number in range(9):  # `note` is no coroutine: it returns while the write hangs
        made.end(tenant=f"ten_{number}")
    released.set()
    with pytest.raises(DatabaseUnavailable):
        await flush
    assert made.metric("laneway_error_rows_dropped_total", reason="full") == 5
    monkeypatch.setattr(database, "write_in_background", write)
    await made.recorder.flush()
    assert len(made.rows()) == 5
    assert sum(made.counts().values()) == 10


async def test_a_write_whose_answer_was_lost_is_repeated_without_effect(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = sqlite_database
    made = Recording(database)
    write = database.write_in_background

    async def lose_answer(function: Any) -> Any:
        await write(function)
        raise DatabaseUnavailable("the connection broke after the commit")

    monkeypatch.setattr(database, "write_in_background", lose_answer)
    for _ in range(3):
        made.end()
    with pytest.raises(DatabaseUnavailable):
        await made.recorder.flush()
    monkeypatch.setattr(database, "write_in_background", write)
    made.end()
    await made.recorder.flush()
    assert len(made.rows()) == 4
    assert sum(made.counts().values()) == 4


async def test_counts_of_an_earlier_quarter_hour_stay_as_they_were(sqlite_database: Database) -> None:
    made = Recording(sqlite_database)
    for _ in range(3):
        made.end()
        await made.recorder.flush()
    made.clock.now_s += QUARTER / 1e6
    made.end()
    await made.recorder.flush()
    made.end()
    await made.recorder.flush()
    query = sa.select(request_error_counts.c.quarter, request_error_counts.c.requests).order_by("quarter")
    rows = sqlite_database.read_sync(lambda c: c.execute(query).all())
    assert [row.requests for row in rows] == [3, 2]
    assert [row.quarter % QUARTER for row in rows] == [0, 0]


QUOTING: list[errors.ApiError] = [
    errors.InvalidRequest(f"'temperature' is {SECRET!r}.", param="temperature"),
    errors.InvalidRequest(f"{SECRET} is no role.", param=f"messages[0].{SECRET}"),
    errors.UnknownParameter(f"There is no field {SECRET!r}.", param="a_word_of_the_prompt"),
    errors.UnsupportedParameter(f"{SECRET} is not served.", param="tools"),
    errors.ModelNotFound(SECRET),
    errors.UnsupportedEncoding(SECRET),
    errors.OtherStatus(400, SECRET),
    errors.NotFound(f"There is no response {SECRET!r}."),
]


async def test_nothing_that_a_request_says_is_stored(sqlite_database: Database) -> None:
    made = Recording(sqlite_database)
    for number, error in enumerate(QUOTING):
        made.end(error, tenant=f"ten_{number}", model=SECRET)
    await made.recorder.flush()
    rows = made.rows()
    assert [(row.message, row.model) for row in rows] == [(None, None)] * len(QUOTING)
    assert [row.param for row in rows] == ["temperature", "messages", None, "tools", "model", None, None, None]
    assert all(SECRET.split()[1] not in str(row) for row in rows)


def test_each_ending_has_one_outcome() -> None:
    assert not set(FAILED_ENDINGS) & set(REFUSED_ENDINGS)
    served = {ending.value for ending in EndingCode if outcome_of(ending.value) == "served"}
    assert served == {"stop", "length", "client_left", "cancelled"}
    assert outcome_of("gateway_dead") == "failed"


async def test_the_outcome_is_that_of_the_hold_s_ending(sqlite_database: Database) -> None:
    made = Recording(sqlite_database)
    made.end(errors.InvalidRequest("The grammar cannot be followed further."), ending="engine_failed", settled=True)
    made.end(errors.Overloaded("The tier is full."), ending="engine_refused_queue_full")
    made.end(errors.ContextLengthExceeded("Too long."), ending="engine_refused_too_long")
    await made.recorder.flush()
    assert [row.outcome for row in made.rows()] == ["failed", "failed", "refused"]
    query = sa.select(sa.func.sum(request_error_counts.c.settled))
    assert sqlite_database.read_sync(lambda c: c.execute(query).scalar_one()) == 1
