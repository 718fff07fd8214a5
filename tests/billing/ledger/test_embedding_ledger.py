"""An embedding is held and charged at its own price or that of input, and is never free. The books tell it apart."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from billing import tables
from billing.accounts import prices
from billing.books import corrections, invoices, reports, usage
from billing.books.usage import UsageFilter
from billing.errors import InvalidValue
from billing.ledger.ledger import Held, HoldRefused, Ledger
from billing.ledger.messages import HoldRequest, Settlement
from billing.proofs import reconcile
from support.billing.books import CACHED, INPUT, MULTIPLIERS, OUTPUT, Books, settlement
from support.billing.finance import at, close, fold, run_group, use

EMBEDDING = INPUT // 2
JANUARY, FEBRUARY = at("2031-01-15T12:00"), at("2031-02-15T12:00")


@pytest.fixture
def ledger(books: Books) -> Ledger:
    return Ledger(books.database, "gw_1")


def embedding(books: Books, prompt: int = 10, **names: Any) -> tuple[HoldRequest, Settlement]:
    request = msgspec.structs.replace(
        books.request(prompt=prompt, **names), max_tokens=0, min_tokens=0, operation="embedding"
    )
    ending = msgspec.structs.replace(settlement(request, 0, prompt=prompt), operation="embedding", ending="length")
    return request, ending


def publish(books: Books, *, embedding: int | None, output: int = OUTPUT) -> None:
    books.database.write_sync(
        lambda c: prices.publish(
            c, subject="model-a", input=INPUT, cached_input=CACHED, output=output, embedding=embedding,
            multipliers=MULTIPLIERS,
        )
    )  # fmt: skip


@pytest.mark.parametrize("own", [True, False])
async def test_an_embedding_is_charged_at_its_own_price_or_as_input(books: Books, ledger: Ledger, own: bool) -> None:
    if own:
        publish(books, embedding=EMBEDDING)
    price = EMBEDDING if own else INPUT
    money, tokens = books.budget(1_000_000, unit="money"), books.budget(1_000)
    request, ending = embedding(books)
    held = await ledger.hold(request)
    assert isinstance(held, Held)
    assert (held.max_tokens, held.hold_picos) == (0, 10 * price)
    assert (await ledger.settle(ending)).cost_picos == 10 * price
    assert (books.state(money), books.state(tokens)) == ((10 * price, 0), (10, 0))
    entries = tables.entries
    query = sa.select(entries.c.meter, entries.c.amount_picos).where(entries.c.transaction_id == request.request_id)
    booked = books.database.read_sync(lambda c: {row.meter: row.amount_picos for row in c.execute(query)})
    assert booked == {None: 10 * price, "embedding": -10 * price}
    row = books.database.read_sync(lambda c: usage.get_usage_row(c, request.request_id))
    assert row is not None
    assert (row.operation, row.prompt_tokens, row.cached_tokens, row.completion_tokens) == ("embedding", 10, 0, 0)
    books.assert_sound()


async def test_a_budget_that_does_not_cover_the_prompt_refuses_an_embedding(books: Books, ledger: Ledger) -> None:
    publish(books, embedding=EMBEDDING)
    money = books.budget(10 * EMBEDDING - 1, unit="money")
    request, _ = embedding(books)
    refused = await ledger.hold(request)
    assert isinstance(refused, HoldRefused)
    assert refused.code == "tenant_budget_exceeded"
    smaller, ending = embedding(books, prompt=9)
    assert isinstance(await ledger.hold(smaller), Held)
    await ledger.settle(ending)
    assert books.state(money) == (9 * EMBEDDING, 0)
    books.assert_sound()


async def test_a_free_embedding_is_admitted_by_an_exhausted_budget(books: Books, ledger: Ledger) -> None:
    publish(books, embedding=0)
    books.budget(5 * INPUT + OUTPUT, unit="money")
    request = books.request(prompt=5, most=1)
    await ledger.hold(request)
    await ledger.settle(settlement(request, 1, prompt=5))
    refused = await ledger.hold(books.request())
    assert isinstance(refused, HoldRefused)
    assert not refused.nothing_left, "a gateway must not refuse all requests of this budget"
    free, ending = embedding(books)
    assert isinstance(await ledger.hold(free), Held)
    assert (await ledger.settle(ending)).cost_picos == 0


async def test_an_embedding_has_no_completion_and_no_cached_token(books: Books, ledger: Ledger) -> None:
    request, ending = embedding(books)
    await ledger.hold(request)
    for wrong in ({"cached_tokens": 1}, {"completion_tokens": 1, "made_tokens": 1}):
        with pytest.raises(AssertionError):
            await ledger.settle(msgspec.structs.replace(ending, **wrong))
    await ledger.settle(ending)


def test_invoice_reports_and_corrections_tell_embeddings_apart(books: Books) -> None:
    publish(books, embedding=EMBEDDING)
    texts = use(books, JANUARY, cached=3)
    request, ending = embedding(books, prompt=8)
    run_group(books, JANUARY, [request])
    run_group(books, JANUARY, endings=[ending])

    def correct(request_id: str, meter: str, tokens: int) -> None:
        books.database.write_sync(
            lambda c: corrections.correct_request(
                c, request_id=request_id, meter=meter, tokens=tokens, reason="r", actor="me", clock=lambda _c: JANUARY
            )
        )

    with pytest.raises(InvalidValue, match="0 input tokens left"):
        correct(request.request_id, "input", -1)
    with pytest.raises(InvalidValue, match="0 embedding tokens left"):
        correct(texts.request_id, "embedding", -1)
    correct(request.request_id, "embedding", -2)
    fold(books, JANUARY)
    invoice = close(books, "2031-01", FEBRUARY)
    lines = books.database.read_sync(lambda c: invoices.lines(c, invoice.id))
    of_embeddings = [(line.kind, line.tokens, line.picos) for line in lines if line.meter == "embedding"]
    assert of_embeddings == [("usage", 8, 8 * EMBEDDING), ("correction", -2, -2 * EMBEDDING)]
    which = reports.ReportFilter(start=JANUARY - 1, end=JANUARY + 1, tenant_ids=(books.tenant.id,))
    rows = books.database.read_sync(
        lambda c: reports.buckets(c, which, width="all", group_by=("line_item",), limit=1).rows
    )
    assert {row.groups["line_item"]: (row.embedding_tokens, row.cost_picos) for row in rows} == {
        "model-a, cached input": (0, 3 * CACHED),
        "model-a, embedding": (6, 6 * EMBEDDING),
        "model-a, input": (0, 7 * INPUT),
        "model-a, output": (0, 5 * OUTPUT),
    }
    totals = books.database.read_sync(lambda c: usage.sum_usage(c, UsageFilter(tenant_id=books.tenant.id)))
    assert (totals.requests, totals.prompt_tokens, totals.embedding_tokens) == (2, 18, 8)
    assert books.database.read_sync(lambda c: reconcile.reconcile_month(c, "2031-01")).sound
    assert books.database.read_sync(reconcile.reconcile_all).sound


def test_a_price_of_an_embedding_is_stored_where_it_is_not_the_price_of_input(books: Books) -> None:
    """The version before reads no such row: it would not start to serve the model."""
    stored = sa.select(tables.unit_prices.c.meter).distinct()
    assert "embedding" not in books.database.read_sync(lambda c: set(c.execute(stored).scalars()))
    publish(books, embedding=EMBEDDING)
    assert "embedding" in books.database.read_sync(lambda c: set(c.execute(stored).scalars()))
    newest, first = books.database.read_sync(prices.list_price_versions)
    assert (newest.tiers["standard"].embedding, first.tiers["standard"].embedding) == (EMBEDDING, INPUT)
    assert first.tiers["premium"].embedding == 3 * INPUT
