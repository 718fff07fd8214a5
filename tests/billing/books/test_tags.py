"""Tags of keys on usage: reports, pages and exports split a tenant's usage by them, to the last unit."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from billing import tables
from billing.accounts.tags import check_tags, source_filter, store_line_tag_set, store_tag_set, tags_of
from billing.books import reports, usage
from billing.books.reports import ReportFilter, Width
from billing.books.usage import UsageFilter
from billing.errors import InvalidValue
from billing.exports.export import ExportSpec
from billing.focus.checker import check_focus_file
from support.billing.books import Books, settlement
from support.billing.exports import FEBRUARY, HOUR, JANUARY, correct, run, second_tenant
from support.billing.finance import close, fold, run_group

SEARCH, CHAT = {"team": "search", "env": "live"}, {"team": "chat"}
MINUTE = 60_000_000
END = JANUARY + 10 * HOUR


def use(books: Books, now: int, tags: Mapping[str, str], made: int = 5, *, is_line: bool = False, **names: str) -> str:
    request = books.request(prompt=10, most=made, **names)
    tag_set_id = books.database.write_sync(lambda c: store_tag_set(c, request.tenant_id, tags))
    if is_line:
        tag_set_id = books.database.write_sync(lambda c: store_line_tag_set(c, request.tenant_id, tag_set_id))
    request = msgspec.structs.replace(request, tag_set_id=tag_set_id)
    run_group(books, now, [request])
    run_group(books, now, endings=[settlement(request, made, prompt=10)])
    return request.request_id


@pytest.fixture
def used(books: Books) -> dict[str, Mapping[str, str]]:
    """Tags by request: of a key whose tags changed within an hour, of another key, of none, and another tenant's."""
    other = second_tenant(books)
    found: dict[str, Mapping[str, str]] = {
        use(books, JANUARY, SEARCH): SEARCH,
        use(books, JANUARY + MINUTE, SEARCH, 7): SEARCH,
        use(books, JANUARY + 2 * MINUTE, CHAT, 11): CHAT,
        use(books, JANUARY + 3 * MINUTE, {}, 13): {},
        use(books, JANUARY + HOUR, CHAT, 17, key="key_b", tier="premium"): CHAT,
        use(books, JANUARY + 2 * HOUR, {}, 19, key="key_b"): {},
        use(books, JANUARY + 3 * HOUR, {"env": "live"}, 23): {"env": "live"},
    }
    use(books, JANUARY, SEARCH, 1000, tenant_id=other.id, key="key_other")
    return found


def costs(books: Books) -> dict[str, int]:
    query = sa.select(tables.usage.c.request_id, tables.usage.c.cost_picos)
    return {row.request_id: row.cost_picos for row in books.database.read_sync(lambda c: c.execute(query).all())}


def report(
    books: Books, *names: str, tags: tuple[tuple[str, str], ...] = (), width: Width = "all", start: int = JANUARY
) -> Counter[Any]:
    which = ReportFilter(start=start, end=END, tenant_ids=(books.tenant.id,), tags=tags)
    found = books.database.read_sync(lambda c: reports.buckets(c, which, width=width, group_by=names, limit=100))
    assert found.next is None
    sums: Counter[Any] = Counter()
    for row in found.rows:
        sums[tuple(row.groups.values())] += row.cost_picos
        assert row.requests > 0 or reports.LINE_ITEM in names
    return sums


@pytest.mark.parametrize("folded", ["none", "half", "all"])
def test_reports_split_the_cost(books: Books, used: dict[str, Mapping[str, str]], folded: str) -> None:
    if folded != "none":
        fold(books, JANUARY + 5 * HOUR)
    if folded == "half":
        used[use(books, JANUARY + MINUTE, CHAT, 29)] = CHAT
        used[use(books, JANUARY + MINUTE, {}, 31)] = {}
    paid = costs(books)
    by_team: Counter[Any] = Counter()
    by_both: Counter[Any] = Counter()
    for request_id, tags in used.items():
        by_team[tags.get("team"),] += paid[request_id]
        by_both[tags.get("team"), tags.get("env")] += paid[request_id]
    for width in ("all", "1h"):
        assert report(books, "tag:team", width=width) == by_team
        assert report(books, "tag:team", "tag:env", width=width) == by_both
    assert report(books, "tag:none") == {(None,): sum(by_team.values())} == {(None,): report(books)[()]}
    filters: tuple[tuple[tuple[tuple[str, str], ...], int], ...] = (
        ((("team", "chat"),), by_team["chat",]),
        ((("team", "chat"), ("team", "search")), by_team["chat",] + by_team["search",]),
        ((("team", "chat"), ("env", "live")), 0),
        ((("team", ""), ("env", "live")), by_both[None, "live"]),
        ((("team", ""),), by_team[None,]),
        ((("team", "none"),), 0),
        ((("none", ""),), sum(by_team.values())),
    )
    for wanted, expected in filters:
        assert report(books, tags=wanted)[()] == expected, wanted
        by_line = report(books, "line_item", "tag:team", tags=wanted)
        assert sum(by_line.values()) == expected
        which = UsageFilter(tenant_id=books.tenant.id, tags=wanted, start=JANUARY, end=END)
        totals = books.database.read_sync(lambda c, w=which: usage.sum_usage(c, w))
        assert sum(totals.cost_picos.values()) == expected
        page = books.database.read_sync(lambda c, w=which: usage.list_usage_rows(c, w))
        assert sum(row.cost_picos for row in page) == expected
        assert all(row.tags == used[row.request_id] for row in page)
    # A report that begins and ends inside hours reads these hours from the requests.
    late = {request: tags for request, tags in used.items() if request not in list(used)[:1]}
    assert sum(report(books, "tag:team", start=JANUARY + MINUTE).values()) == sum(paid[request] for request in late)


def test_a_month_as_focus_has_the_tags(books: Books, used: dict[str, Mapping[str, str]], tmp_path: Path) -> None:
    first = next(iter(used))
    correct(books, first, "output", -2, JANUARY + 2 * HOUR)
    close(books, "2031-01", FEBRUARY)
    spec = ExportSpec(kind="focus", format="csv", month="2031-01", tenant_id=books.tenant.id)
    made = run(books, tmp_path, spec)
    assert check_focus_file(tmp_path / made.file).findings == []
    with (tmp_path / made.file).open(newline="") as file:
        rows = list(csv.DictReader(file))
    paid = costs(books)
    expected: Counter[Any] = Counter()
    for request_id, tags in used.items():
        expected[tuple(sorted(tags.items()))] += paid[request_id]
    expected[tuple(sorted(used[first].items()))] -= 2 * 400
    found: Counter[Any] = Counter()
    for row in rows:
        tags = json.loads(row["Tags"] or "{}")
        own = {name: value for name, value in tags.items() if not name.startswith("laneway/")}
        found[tuple(sorted(own.items()))] += int(Decimal(row["BilledCost"]).scaleb(12))
    assert found == expected
    assert made.ledger.usage_rows == len(used)
    again = run(books, tmp_path / "again", spec)
    assert again.sha256 == made.sha256


def test_events_have_the_tags(books: Books, used: dict[str, Mapping[str, str]], tmp_path: Path) -> None:
    fold(books, JANUARY + 5 * HOUR)
    spec = ExportSpec(kind="events", format="jsonl", month="2031-01", tenant_id=books.tenant.id)
    made = run(books, tmp_path, spec)
    events = [json.loads(line) for line in (tmp_path / made.file).read_text().splitlines()]
    assert {event["id"]: event["data"].get("tags", {}) for event in events} == used
    assert all(("tags" in event["data"]) == bool(used[event["id"]]) for event in events)


@pytest.mark.parametrize("folded", ["none", "half", "all"])
def test_lines_of_batches_are_told_from_requests_of_their_tier(books: Books, tmp_path: Path, folded: str) -> None:
    """Usage, totals, line items and FOCUS: the parts equal the whole, with corrections."""
    lines, others = set(), set()
    for number, tags in enumerate((SEARCH, CHAT, {}, SEARCH)):
        at = JANUARY + number * HOUR
        lines.add(use(books, at, tags, 7 + number, tier="batch", is_line=True))
        others.add(use(books, at, tags, 29 + number, tier="batch"))
        if folded != "none" and (folded == "all" or number == 1):
            fold(books, at + HOUR)
    correct(books, max(lines), "output", -2, JANUARY + 5 * HOUR)
    fold(books, JANUARY + 5 * HOUR) if folded == "all" else None
    paid = costs(books)
    of_lines, of_others = (sum(paid[one] for one in ids) for ids in (lines, others))
    corrected = report(books)[()] - of_lines - of_others
    assert corrected < 0
    for width in ("all", "1h"):
        by_source = report(books, reports.SOURCE_GROUP, width=width)
        assert by_source == {("batch_line",): of_lines + corrected, (None,): of_others}
        assert sum(report(books, "line_item", reports.SOURCE_GROUP, width=width).values()) == sum(by_source.values())
    for of_batch, ids, expected in ((True, lines, of_lines + corrected), (False, others, of_others)):
        wanted = source_filter(of_batch)
        assert report(books, tags=wanted)[()] == expected
        which = UsageFilter(tenant_id=books.tenant.id, tags=wanted, start=JANUARY, end=END)
        totals = books.database.read_sync(lambda c, w=which: usage.sum_usage(c, w))
        assert (totals.requests, sum(totals.cost_picos.values())) == (4, sum(paid[one] for one in ids))
        page = books.database.read_sync(lambda c, w=which: usage.list_usage_rows(c, w))
        assert {row.request_id for row in page} == ids
        assert {tuple(row.tags) for row in page} == {("env", "team"), ("team",), ()}, "the key's own tags only"
        both = report(books, tags=(*wanted, ("team", "search")))
        assert 0 < both[()] < expected
    close(books, "2031-01", FEBRUARY)
    made = run(books, tmp_path, ExportSpec(kind="focus", format="csv", month="2031-01", tenant_id=books.tenant.id))
    assert check_focus_file(tmp_path / made.file).findings == []
    found: Counter[Any] = Counter()
    with (tmp_path / made.file).open(newline="") as file:
        for row in csv.DictReader(file):
            source = json.loads(row["Tags"] or "{}").get("laneway/source")
            found[source] += int(Decimal(row["BilledCost"]).scaleb(12))
    assert found == {"batch_line": of_lines + corrected, None: of_others}
    made = run(books, tmp_path, ExportSpec(kind="events", format="jsonl", month="2031-01", tenant_id=books.tenant.id))
    assert "laneway/source" not in (tmp_path / made.file).read_text(), "an event names the batch itself"


def test_a_set_is_stored_once_for_each_tenant(books: Books) -> None:
    other = second_tenant(books)

    def store(tenant_id: str, tags: Mapping[str, str]) -> str | None:
        return books.database.write_sync(lambda c: store_tag_set(c, tenant_id, tags))

    first = store(books.tenant.id, SEARCH)
    assert first is not None
    assert store(books.tenant.id, dict(reversed(SEARCH.items()))) == first
    assert len({first, store(other.id, SEARCH), store(books.tenant.id, CHAT)}) == 3
    assert store(books.tenant.id, {}) is None
    assert books.database.read_sync(lambda c: tags_of(c, [first])) == {first: SEARCH}


@pytest.mark.parametrize(
    ("tags", "says"),
    [
        ({f"n{number}": "x" for number in range(17)}, "at most 16 tags"),
        ({"n" * 65: "x"}, "no name of a tag"),
        ({"": "x"}, "no name of a tag"),
        ({"a b": "x"}, "no name of a tag"),
        ({"Laneway/key": "x"}, "reserved"),
        ({"team": "v" * 257}, "256"),
        ({"team": "a\nb"}, "team"),
    ],
)
def test_tags_that_are_refused(tags: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidValue, match=says) as refused:
        check_tags(tags)
    assert refused.value.param == "tags"
