"""Random histories of use, price changes, corrections, tier changes, time zones and month ends, beside plain lists of
what happened: usage = entries = roll-ups = reports = invoices, at any moment, to the last unit.

LANEWAY_HISTORIES sets how many; the same ones come each time."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

import hypothesis.strategies as st
import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, given, settings

from billing import tables
from billing.accounts import prices, tenants
from billing.accounts.prices import METERS, PriceBook
from billing.books import corrections, day_rollups, invoices, periods, reports, rollups
from billing.books.reports import GROUPS, ReportFilter
from billing.clock import DAY, SECOND
from billing.errors import InvalidValue, NotPossibleYet
from billing.exports import export, labels
from billing.exports.export import ExportSpec
from billing.focus.checker import check_focus_file
from billing.ledger.messages import Held, HoldRequest, Settlement
from billing.ledger.transaction import LedgerTransaction
from billing.proofs import reconcile
from support.billing.books import Books, settlement
from support.billing.finance import at

EXAMPLES = int(os.environ.get("LANEWAY_HISTORIES", "5"))
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")
# Shortly before the clocks change or a month ends, in one of them.
BEGINNINGS = (
    "2031-03-09T06:59:50", "2031-03-30T00:59:50", "2031-03-31T21:59:50", "2031-10-04T15:29:50", "2031-10-31T12:59:50",
    "2031-10-31T22:59:50", "2031-11-30T23:59:50", "2031-02-28T18:14:50",
)  # fmt: skip
TIERS = ("premium", "standard", "batch")

use = st.tuples(
    st.just("use"),
    st.sampled_from(TIERS),
    st.sampled_from((None, "adp_1")),
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(0, 9),
    st.sampled_from((0, 0, 0, 1, 40)),  # days that it came late
)
events = st.one_of(
    use,
    use,
    use,
    st.tuples(
        st.just("embed"),
        st.sampled_from(TIERS),
        st.sampled_from((None, "adp_1")),
        st.integers(1, 20),
        st.sampled_from((0, 40)),
    ),
    st.tuples(st.just("price"), st.integers(1, 9), st.sampled_from((0, 1, 20)), st.booleans()),
    st.tuples(st.just("correct"), st.integers(0, 99), st.sampled_from(METERS), st.integers(-9, 9)),
    st.tuples(st.just("credit"), st.integers(-500, 500), st.sampled_from((None, *TIERS))),
    st.tuples(st.just("pass"), st.sampled_from((5, 10, 3600, 86_400, 12 * 86_400, 33 * 86_400))),
    st.tuples(st.just("zone"), st.sampled_from(ZONES)),
    st.tuples(st.just("fold"), st.integers(1, 5)),
    st.tuples(st.just("fold_days"), st.integers(1, 5)),
    st.tuples(st.just("close")),
    st.tuples(st.just("minute")),
)
histories = st.lists(events, min_size=10, max_size=30)


@dataclass
class Did:
    """One use, or one correction (`requests` 0), as the auditor remembers it."""

    moment: int
    picos: int
    tier: str | None
    adapter: str | None
    requests: int
    tokens: dict[str, int]
    request_id: str = ""
    unit: tuple[int, ...] = ()


class History:
    """Plays one history, with lists of its own beside it."""

    numbers = itertools.count()

    def __init__(self, books: Books, zone: str, beginning: str) -> None:
        self.number = next(self.numbers)
        self.database = books.database
        self.book = PriceBook()
        self.now = self.began = at(beginning)
        self.model = f"model-{self.number}"
        self.tenant = self.database.write_sync(
            lambda c: tenants.create_tenant(c, slug=f"t{self.number}", name="T", tier="premium", time_zone=zone)
        ).id
        self.did: list[Did] = []
        self.priced: list[tuple[int, bool, int]] = []  # from, of the adapter, factor
        self.closed: dict[str, int] = {}
        self.publish(1, 0, False)

    def publish(self, factor: int, days: int, adapter: bool) -> None:
        moment = self.now + days * DAY + len(self.priced)
        self.database.write_sync(
            lambda c: prices.publish(
                c,
                subject=f"adp_1_{self.number}" if adapter else self.model,
                subject_kind="adapter" if adapter else "model",
                input=4 * factor,
                cached_input=2 * factor,
                output=8 * factor,
                embedding=6 * factor if self.has_own_embedding_price(factor) else None,
                multipliers={"premium": 3, "standard": 1, "batch": "0.5"},
                effective_from=moment,
            )
        )
        self.priced.append((moment, adapter, factor))
        self.now += 2 * len(self.priced)

    @staticmethod
    def has_own_embedding_price(factor: int) -> bool:
        return factor % 2 == 1

    def unit(self, tier: str, adapter: str | None) -> tuple[int, ...]:
        """The newest price in force: the adapter's own before the model's."""
        for own in (True, False) if adapter else (False,):
            in_force = [price for price in self.priced if price[1] == own and price[0] <= self.now]
            if in_force:
                base = max(in_force)[2]
                factor = base * {"premium": 6, "standard": 2, "batch": 1}[tier]
                return (2 * factor, factor, 4 * factor, (3 if self.has_own_embedding_price(base) else 2) * factor)
        raise AssertionError("the first price is in force from the beginning")

    def play(self, event: Any) -> None:
        getattr(self, event[0])(*event[1:])

    def use(self, tier: str, adapter: str | None, prompt: int, cached: int, made: int, late_days: int) -> None:
        cached = min(cached, prompt)
        request = self.asked(tier, adapter, prompt, made)
        tokens = {"input": prompt - cached, "cached_input": cached, "output": made, "embedding": 0}
        self.settle(request, settlement(request, made, prompt=prompt, cached=cached), tokens, late_days)

    def embed(self, tier: str, adapter: str | None, prompt: int, late_days: int) -> None:
        request = msgspec.structs.replace(
            self.asked(tier, adapter, prompt, 0), max_tokens=0, min_tokens=0, operation="embedding"
        )
        ending = msgspec.structs.replace(settlement(request, 0, prompt=prompt), operation="embedding")
        self.settle(request, ending, {**dict.fromkeys(METERS, 0), "embedding": prompt}, late_days)

    def asked(self, tier: str, adapter: str | None, prompt: int, made: int) -> HoldRequest:
        return HoldRequest(
            f"req_{self.number}_{next(self.numbers)}", self.tenant, f"key_{made % 2}_{self.number}", self.model,
            f"{adapter}_{self.number}" if adapter else None, tier, prompt, max(made, 1),
        )  # fmt: skip

    def settle(self, request: HoldRequest, ending: Settlement, tokens: dict[str, int], late_days: int) -> None:
        held, _ = self.group([request], [])
        assert isinstance(held[0], Held), held
        unit = self.unit(request.tier, request.adapter)
        self.now += 1
        finished = self.now - late_days * DAY
        self.group([], [msgspec.structs.replace(ending, finished_at=finished if late_days else None)])
        picos = sum(count * price for count, price in zip(tokens.values(), unit, strict=True))
        self.did.append(Did(finished, picos, request.tier, request.adapter, 1, tokens, request.request_id, unit))

    def group(self, holds: list[Any], endings: list[Any]) -> tuple[list[Any], list[Any]]:
        work = LedgerTransaction(f"gw_{self.number}", 1e9, lambda _connection: self.now, self.book)
        return self.database.write_sync(lambda c: work.run(c, holds, endings))

    def price(self, factor: int, days: int, adapter: bool) -> None:
        self.publish(factor, days, adapter)

    def correct(self, which: int, meter: str, tokens: int) -> None:
        used = [one for one in self.did if one.requests]
        if not used or not tokens:
            return
        of = used[which % len(used)]
        before = sum(one.tokens[meter] for one in self.did if one.request_id == of.request_id)
        change = partial(
            corrections.correct_request, request_id=of.request_id, meter=meter, tokens=tokens, reason="r", actor="me",
            clock=lambda _connection: self.now,
        )  # fmt: skip
        if before + tokens < 0:
            with pytest.raises(InvalidValue):
                self.database.write_sync(lambda c: change(c))
            return
        made = self.database.write_sync(lambda c: change(c))
        month = self.database.read_sync(lambda c: periods.first_open(c, self.tenant))
        # In the month of the request while that is open; usage that came late is in a later month than its own.
        assert made.counts_at in (self.now, of.moment)
        if month is not None and of.moment >= month.start_at:
            assert made.counts_at == of.moment
        picos = tokens * of.unit[METERS.index(meter)]
        moved = dict.fromkeys(METERS, 0) | {meter: tokens}
        self.did.append(Did(made.counts_at, picos, of.tier, of.adapter, 0, moved, of.request_id))

    def credit(self, picos: int, tier: str | None) -> None:
        if not picos:
            return
        self.database.write_sync(
            lambda c: corrections.correct_tenant(
                c, self.tenant, picos=picos, tier=tier, reason="r", actor="me", clock=lambda _connection: self.now
            )
        )
        self.did.append(Did(self.now, picos, tier, None, 0, dict.fromkeys(METERS, 0)))

    def zone(self, zone: str) -> None:
        self.database.write_sync(lambda c: tenants.update_tenant(c, self.tenant, time_zone=zone))

    def fold(self, limit: int) -> None:
        self.database.write_sync(lambda c: rollups.fold_usage(c, limit=limit, clock=lambda _connection: self.now))

    def fold_days(self, limit: int) -> None:
        self.database.write_sync(lambda c: day_rollups.fold_days(c, limit=limit, clock=lambda _connection: self.now))

    def minute(self) -> None:
        result = self.database.read_sync(reconcile.reconcile_minute)
        assert result.sound, result
        self.database.write_sync(lambda c: reconcile.store_reconciliation(c, result))

    def close(self) -> None:
        first = self.database.read_sync(lambda c: periods.first_open(c, self.tenant))
        if first is None:
            return
        change = partial(invoices.close, tenant_id=self.tenant, month=first.month, actor="me")
        if self.now < first.end_at:
            with pytest.raises(NotPossibleYet):
                self.database.write_sync(lambda c: change(c, clock=lambda _connection: self.now))
            return
        invoice = self.database.write_sync(lambda c: change(c, clock=lambda _connection: self.now))
        taken = sum(self.closed.values())
        # All that happened before it ended and was not on an invoice yet, whatever its own day.
        due = sum(one.picos for one in self.did if one.moment < first.end_at)
        assert invoice.total_picos == due - taken
        self.closed[first.month] = invoice.total_picos

    def pass_(self, seconds: int) -> None:
        self.now += seconds * SECOND

    def run_out(self) -> None:
        """Two months go by, with a move to another zone, and all that can be closed is."""
        for zone in ZONES:
            self.use("standard", None, 5, 2, 3, 0)
            self.zone(zone)
            self.pass_(33 * 86_400)
            self.use("premium", "adp_1", 5, 2, 3, 40)
            self.embed("batch", None, 7, 0)
            self.close()
        self.close()

    def examine(self) -> None:
        start, end = self.began - 50 * DAY, self.now + 1
        which = ReportFilter(start=start, end=end, tenant_ids=(self.tenant,))
        items = self.pages(which, "1d", ("tier", "line_item"))
        assert sum(row.cost_picos for row in items) == sum(one.picos for one in self.did)
        assert all(row.groups["line_item"] for row in items)
        for width, group_by in (("1d", ()), ("1h", ("tier", "adapter")), ("1d", GROUPS)):
            rows = self.pages(which, width, group_by)
            assert sum(row.cost_picos for row in rows) == sum(one.picos for one in self.did)
            assert sum(row.requests for row in rows) == sum(one.requests for one in self.did)
        for first, last in itertools.pairwise([*(one.moment for one in self.did[:: len(self.did) // 4 + 1]), end]):
            part = msgspec.structs.replace(which, start=min(first, last), end=max(first, last))
            expected = sum(one.picos for one in self.did if part.start <= one.moment < part.end)
            assert sum(row.cost_picos for row in self.pages(part, "1d", ())) == expected
        by_tier = {tier: sum(one.picos for one in self.did if one.tier == tier) for tier in TIERS}
        for tier, picos in by_tier.items():
            rows = self.pages(msgspec.structs.replace(which, tiers=(tier,)), "1d", ())
            assert sum(row.cost_picos for row in rows) == picos
        entries = tables.entries
        received = sa.select(sa.func.coalesce(sa.func.sum(entries.c.amount_picos), 0)).where(
            entries.c.tenant_id == self.tenant, entries.c.account == "receivable"
        )
        owed = self.database.read_sync(lambda c: c.execute(received).scalar_one())
        assert owed == sum(one.picos for one in self.did)
        months = self.database.read_sync(lambda c: periods.list_periods(c, tenant_id=self.tenant))
        assert [one.end_at for one in months[:-1]] == [one.start_at for one in months[1:]]
        for month in months:
            zone = ZoneInfo(month.time_zone)
            ends = datetime.fromtimestamp(month.end_at // SECOND, zone)
            assert (ends.day, ends.hour, ends.minute) == (1, 0, 0)
            assert (ends - timedelta(days=1)).strftime("%Y-%m") == month.month
        whole = self.database.read_sync(reconcile.reconcile_all)
        assert whole.sound, whole
        for label in {month.month for month in months}:
            found = self.database.read_sync(lambda c, label=label: reconcile.reconcile_month(c, label))
            assert found.sound, found

    def export(self, directory: Path) -> None:
        """Each closed month's files, of both kinds, come to its invoice."""
        for month in self.database.read_sync(lambda c: periods.list_periods(c, tenant_id=self.tenant, state="closed")):
            names = self.database.read_sync(lambda c: labels.current_names(c, self.tenant)) | {"provider": "Laneway"}
            self.database.write_sync(lambda c, month=month, names=names: labels.store_names(c, month, names))
            kinds: tuple[Literal["focus", "events"], ...] = ("focus", "events")
            for kind in kinds:
                spec = ExportSpec(kind=kind, format="jsonl", month=month.month, tenant_id=self.tenant)
                made = self.database.read_sync(lambda c, spec=spec: export.run(c, spec, directory, bytes_max=1 << 30))
                assert sum(made.billed.values(), Decimal(0)).scaleb(12) == self.closed[month.month]
                assert kind == "events" or check_focus_file(directory / made.file).musts == 0

    def pages(self, which: ReportFilter, width: Any, group_by: Any) -> list[reports.GroupSums]:
        rows: list[reports.GroupSums] = []
        place = None
        limit = 5000 if width == "1h" else 23
        while True:
            page = self.database.read_sync(
                lambda c, place=place: reports.buckets(
                    c, which, width=width, group_by=group_by, place=place, limit=limit
                )
            )
            rows += page.rows
            place = page.next
            if place is None:
                return rows


setattr(History, "pass", History.pass_)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_histories(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    books: Books = request.getfixturevalue(f"{kind}_books")

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(zone=st.sampled_from(ZONES), beginning=st.sampled_from(BEGINNINGS), history=histories)
    def run(zone: str, beginning: str, history: list[Any]) -> None:
        played = History(books, zone, beginning)
        for event in history:
            played.play(event)
        played.examine()
        played.run_out()
        played.examine()
        played.database.write_sync(lambda c: rollups.fold_all(c, lambda _connection: played.now))
        played.examine()
        while played.database.write_sync(day_rollups.fold_days).more:
            pass
        played.examine()
        played.minute()
        played.export(tmp_path)

    run()


def test_the_moments_are_what_they_say() -> None:
    assert at("2031-03-30T01:00") == int(datetime(2031, 3, 30, 1, tzinfo=UTC).timestamp()) * SECOND
