"""The list of requests against one made by hand: each once, in order, whatever is asked and however small the pages."""

from __future__ import annotations

import random
from typing import Any

import pytest
import sqlalchemy as sa

from billing import tables
from billing.accounts import prices
from billing.accounts.tags import BATCH_LINE, SOURCE_TAG
from billing.books import history, rollups
from billing.books.history import RequestCursor, RequestFilter, RequestRow
from billing.books.rollups import HOUR
from billing.errors import RowNotFound
from billing.ledger.ledger import Held, Ledger
from support.billing.books import Books, settlement

START = 1_800_000_000_000_000 - 1_800_000_000_000_000 % HOUR
BATCH = "batch_" + "0" * 32
LINES_TAGS = "tag_lines"  # the tag set of lines
STATES = ("held", "settled", "settled", "settled", "voided", "expired")
ENDINGS = ("stop", "stop", "length", "client_left", "engine_failed")


def add(connection: sa.Connection, books: Books, count: int, chance: random.Random) -> None:
    """Requests of a few hours, keys and models, with moments in common."""
    (price,) = prices.list_price_versions(connection, subject="model-a")
    for tag_set_id, name, value in (("tag_others", "team", "a"), (LINES_TAGS, SOURCE_TAG, BATCH_LINE)):
        tag = {"tag_set_id": tag_set_id, "name": name, "tenant_id": books.tenant.id, "value": value}
        if connection.execute(sa.select(tables.tag_sets.c.name).filter_by(tag_set_id=tag_set_id)).first() is None:
            connection.execute(sa.insert(tables.tag_sets).values(tag))
    for _ in range(count):
        number = next(books.numbers)
        state = chance.choice(STATES)
        at = START + chance.randrange(6) * HOUR + chance.randrange(4) * 60_000_000
        shared = {
            "request_id": f"req_{number:04d}",
            "tenant_id": books.tenant.id,
            "key_id": chance.choice(["key_a", "key_b"]),
            "model": chance.choice(["model-a", "model-b"]),
            "adapter": chance.choice([None, "ada_1"]),
            "tier": chance.choice(["premium", "batch"]),
            "price_version_id": price.id,
            "prompt_tokens": 5,
            "tag_set_id": chance.choice((None, "tag_others", LINES_TAGS)),
        }
        ending = None if state == "held" else chance.choice(ENDINGS) if state == "settled" else "caller_gone"
        hold = {
            "gateway_id": "gw_1", "max_tokens": 9, "hold_picos": 100, "held_at": at - 1000, "state": state,
            "ended_at": None if state == "held" else at, "ending": ending, "settled_picos": 0, "lost_tokens": 0,
        }  # fmt: skip
        connection.execute(sa.insert(tables.holds).values(shared | hold))
        if state == "settled":
            measured = dict.fromkeys(
                ("cached_tokens", "discarded_tokens", "preemptions", "recomputed_tokens", "cost_picos"), 0
            )
            times = {
                "queue_s": 0.0,
                "ttft_s": chance.choice((0.0, 0.1, 2.5)),
                "device_s": 0.2,
                "started_at": at - 1000,
                "finished_at": at,
            }
            made = {"completion_tokens": 3, "made_tokens": 3, "currency": "USD", "ending": ending}
            made["batch_id"] = BATCH if shared["tag_set_id"] == LINES_TAGS else None
            connection.execute(sa.insert(tables.usage).values(shared | measured | times | made))


def by_hand(books: Books, which: RequestFilter) -> list[str]:
    found = []
    usage = books.database.read_sync(lambda c: c.execute(sa.select(tables.usage)).all())
    first = {row.request_id: row.ttft_s for row in usage}
    lines = {row.request_id: row.batch_id for row in usage if row.batch_id is not None}
    for hold in books.database.read_sync(lambda c: c.execute(sa.select(tables.holds)).all()):
        at = hold.held_at if hold.state == "held" else hold.ended_at
        fits = all(getattr(hold, name) == value for name, value in which.names().items())
        fits = fits and which.status in (None, hold.state) and which.ending in (None, hold.ending)
        fits = fits and (which.endings is None or hold.ending in which.endings)
        if which.other_endings is not None:
            fits = fits and hold.state != "held" and hold.ending not in which.other_endings
        if which.min_ttft_s is not None:
            fits = fits and first.get(hold.request_id, 0) >= max(which.min_ttft_s, 1e-9)
        fits = fits and which.batch_id in (None, lines.get(hold.request_id))
        fits = fits and which.of_batch in (None, hold.tag_set_id == LINES_TAGS)
        fits = fits and which.request_id in (None, hold.request_id)
        if fits and (which.start or 0) <= at < (which.end or 2**62):
            found.append((hold.state == "held", at, hold.request_id))
    return [request_id for *_, request_id in sorted(found, reverse=True)]


def paged(books: Books, which: RequestFilter, limit: int) -> list[RequestRow]:
    found: list[RequestRow] = []
    after: RequestCursor | None = None
    while True:
        rows, after = books.database.read_sync(
            lambda c, a=after: history.list_request_rows(c, which, after=a, limit=limit)
        )
        assert len(rows) == limit or after is None
        found += rows
        if after is None:
            return found


FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"status": "held"},
    {"status": "settled"},
    {"status": "voided"},
    {"status": "expired", "key_id": "key_a"},
    {"ending": "stop"},
    {"ending": "engine_failed"},
    {"ending": "client_left", "key_id": "key_b"},
    {"endings": ("engine_failed", "client_left")},
    {"endings": ("stop", "engine_failed"), "key_id": "key_a"},
    {"other_endings": ("engine_failed", "client_left"), "model": "model-a"},
    {"other_endings": ("stop",), "key_id": "key_b"},
    {"key_id": "key_a"},
    {"model": "model-b", "tier": "batch"},
    {"adapter": "ada_1", "status": "settled"},
    {"adapter": "ada_absent"},
    {"model": "model-a", "start": START + 2 * HOUR + 1, "end": START + 4 * HOUR + 60_000_001},
    {"tenant_id": "ten_absent"},
    {"start": START + 2 * HOUR, "end": START + 4 * HOUR},
    {"start": START + 2 * HOUR + 1, "end": START + 4 * HOUR + 60_000_001, "key_id": "key_b"},
    {"request_id": "req_0003"},
    {"of_batch": True},
    {"of_batch": False},
    {"of_batch": False, "model": "model-b", "tier": "batch"},
    {"batch_id": BATCH, "status": "settled"},
    {"min_ttft_s": 2.5},
    {"min_ttft_s": 0.0, "model": "model-a"},
    {"min_ttft_s": 0.2, "status": "voided"},
)


@pytest.mark.parametrize("folded", ["nothing", "a part", "all"])
def test_it_is_the_list_made_by_hand(books: Books, folded: str) -> None:
    chance = random.Random(folded)
    books.database.write_sync(lambda c: add(c, books, 90, chance))
    if folded != "nothing":
        books.database.write_sync(rollups.fold_all)
    if folded == "a part":  # what comes now is of any hour, and in no roll-up
        books.database.write_sync(lambda c: add(c, books, 30, chance))
    whole = RequestFilter(tenant_id=books.tenant.id)
    assert len(by_hand(books, whole)) >= 90
    for fields in FILTERS:
        which = RequestFilter(**fields)
        expected = by_hand(books, which)
        for limit in (1, 4, 1000):
            assert [row.request_id for row in paged(books, which, limit)] == expected, (fields, limit)
    for row in paged(books, RequestFilter(), 50):
        assert (row.cost_picos is None) == (row.status != "settled")


async def test_all_of_one(books: Books) -> None:
    ledger = Ledger(books.database, "gw_1")
    books.budget(1000)
    settled, voided = books.request(), books.request()
    for request in (settled, voided):
        assert isinstance(await ledger.hold(request), Held)
    running = books.database.read_sync(lambda c: history.get_whole_request(c, settled.request_id))
    assert (running.request.status, running.usage, running.entries) == ("held", None, [])
    assert len(running.hold.windows) == 1
    await ledger.settle(settlement(settled, 5))
    await ledger.void(voided.request_id, "refused")
    await ledger.close()
    found = books.database.read_sync(lambda c: history.get_whole_request(c, settled.request_id))
    assert (found.request.status, found.request.ending) == ("settled", "stop")
    assert found.usage is not None
    assert found.usage.completion_tokens == found.request.completion_tokens == 5
    assert sum(entry.amount_picos for entry in found.entries) == 0
    assert max(entry.amount_picos for entry in found.entries) == found.hold.settled_picos == found.request.cost_picos
    other = books.database.read_sync(lambda c: history.get_whole_request(c, voided.request_id))
    assert (other.request.status, other.request.ending, other.entries) == ("voided", "refused", [])
    with pytest.raises(RowNotFound):
        books.database.read_sync(lambda c: history.get_whole_request(c, "req_absent"))
