"""Tiers that can be kept together, the arithmetic of their floors, whose turn it is inside one, and a step's pace."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import queues
from engine.arena import Arena
from engine.entry import Entry
from engine.floors import Floors
from engine.pace import Pace
from engine.prefix import Chain
from engine.protocol import Sampling
from engine.queues import TierQueue
from engine.step import Sequence
from engine.tiers import SHIPPED_TIERS, Tier, check_tiers


def tier(name: str, floor: float = 0.0, preemptible: bool = True, queue_max: int = 10) -> Tier:
    return Tier(name=name, service_tier=f"s-{name}", floor=floor, preemptible=preemptible, queue_max=queue_max)


# ---- tiers


def test_the_shipped_tiers_hold_together() -> None:
    check_tiers(SHIPPED_TIERS)
    assert [t.name for t in SHIPPED_TIERS] == ["premium", "standard", "batch"]
    assert [t.service_tier for t in SHIPPED_TIERS] == ["priority", "default", "flex"]


@pytest.mark.parametrize(
    ("tiers", "reason"),
    [
        ([], "at least one"),
        ([tier("a"), tier("a")], "two tiers have the name"),
        ([tier("a"), Tier(name="b", service_tier="s-a")], "two tiers have the service_tier"),
        ([tier("a", 0.6), tier("b", 0.6)], "1.2"),
        ([tier("a", -0.1)], "between 0 and 1"),
        ([tier("a", queue_max=0)], "at least 1"),
    ],
)
def test_tiers_that_cannot_be_kept_are_refused(tiers: list[Tier], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_tiers(tiers)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "a", "service_tier": "b", "flor": 0.1}',
        '{"name": "a", "service_tier": "b", "floor": -0.1}',
        '{"name": "a", "service_tier": "b", "inter_token_ms": 0}',
        '{"name": "A b", "service_tier": "b"}',
        '{"name": "a"}',
    ],
)
def test_a_tier_in_a_file_is_checked(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=Tier)


# ---- floors: 100 pages, floors of 30, 10 and 5


def floors(tiers: tuple[Tier, ...] = SHIPPED_TIERS, **held: int) -> Floors:
    arena = Arena(100, 1)
    for name, pages in held.items():
        arena.allocate(pages, name)
    return Floors(tiers, arena)


def test_capacity_leaves_alone_what_could_not_be_reclaimed() -> None:
    assert [floors().capacity(rank) for rank in range(3)] == [85, 95, 100]


@pytest.mark.parametrize(
    ("held", "spare", "reclaim"),
    [
        ({}, [85, 95, 100], [85, 95, 100]),
        # Batch borrows all: nothing is free, and premium could have what is over batch's floor, less standard's floor.
        ({"batch": 100}, [0, 0, 0], [85, 95, 0]),
        ({"premium": 85}, [0, 10, 15], [0, 10, 15]),
        # Standard borrowed premium's floor, and is preempted for it.
        ({"standard": 95}, [0, 0, 5], [85 - 5 + 5 - 0, 0, 5]),
        ({"premium": 40, "standard": 10, "batch": 5}, [45, 45, 45], [45, 45, 45]),
        ({"premium": 40, "standard": 10, "batch": 50}, [0, 0, 0], [45, 45, 0]),
        # What batch borrows could be standard's floor: premium need not leave room for that twice.
        ({"premium": 40, "batch": 50}, [10, 10, 10], [45, 55, 10]),
    ],
)
def test_spare_pages(held: dict[str, int], spare: list[int], reclaim: list[int]) -> None:
    books = floors(**held)
    assert [books.spare(rank) for rank in range(3)] == spare
    assert [books.spare(rank, reclaim=True) for rank in range(3)] == reclaim


def test_a_tier_that_cannot_be_preempted_borrows_no_floor() -> None:
    rigid = (tier("high", 0.3), tier("low", 0.3, preemptible=False))
    assert floors(rigid).spare(1) == 70
    assert not floors(rigid, low=60).borrows(1)
    assert floors(rigid, low=60).spare(0, reclaim=True) == 40
    lenient = (tier("high", 0.3), tier("low", 0.3))
    assert floors(lenient).spare(1) == 100
    assert floors(lenient, low=60).borrows(1)
    assert not floors(lenient, low=30).borrows(1)


def test_what_one_borrower_borrows_covers_a_floor_only_once() -> None:
    tiers = (tier("a"), tier("b", 0.2), tier("c", 0.2), tier("d", 0.1))
    # d could give b and c 30 pages of the 40 they are owed; a leaves them 10 of the 60 that are free.
    assert floors(tiers, d=40).spare(0) == 50


@settings(max_examples=200, deadline=None)
@given(held=st.tuples(st.integers(0, 85), st.integers(0, 95), st.integers(0, 100)), rank=st.integers(0, 2))
def test_taking_what_is_spare_leaves_every_floor_within_reach(held: tuple[int, int, int], rank: int) -> None:
    """Whoever took all it could: a tier under its floor gets the rest of it, by preempting what it may."""
    names = [t.name for t in SHIPPED_TIERS]
    if sum(held) > 100:
        return
    arena = Arena(100, 1)
    books = Floors(SHIPPED_TIERS, arena)
    for name, pages in zip(names, held, strict=True):
        arena.allocate(pages, name)
    reachable = [books.over(other) >= 0 or books.spare(other, reclaim=True) >= -books.over(other) for other in range(3)]
    taken = max(0, books.spare(rank))
    assert taken <= arena.available()
    arena.allocate(taken, names[rank])
    for other in range(3):
        if reachable[other] and books.over(other) < 0:
            assert books.spare(other, reclaim=True) >= -books.over(other), f"{names[other]} lost its floor"


# ---- whose turn it is


class Waiting:
    def __init__(self) -> None:
        self.queue = TierQueue()
        self.number = 0

    def add(self, share: str, model: str = "m", tokens: int = 10) -> Entry:
        self.number += 1
        sequence = Sequence(
            self.number, 0, f"req_{self.number}", model, None, "ns", "standard", share, [1] * tokens, 1, Sampling(),
            frozenset(), 0.0,
        )  # fmt: skip
        entry = Entry(sequence, 1, self.number, Chain(model, None, "ns", 4))
        self.queue.add(entry)
        return entry

    def serve(self, model: str = "m") -> Entry:
        """The head runs all its tokens."""
        entry = self.queue.head(model)
        assert entry is not None
        self.queue.remove(entry)
        self.queue.charge(entry, len(entry.sequence.prompt_ids))
        return entry


def test_inside_a_share_who_came_first() -> None:
    waiting = Waiting()
    entries = [waiting.add("a") for _ in range(4)]
    assert [waiting.serve() for _ in range(4)] == entries
    assert waiting.queue.head("m") is None


def test_shares_are_served_alike_however_many_requests_they_send() -> None:
    waiting = Waiting()
    for _ in range(20):
        waiting.add("noisy")
    quiet = [waiting.add("quiet", tokens=20) for _ in range(3)]
    served = [waiting.serve() for _ in range(9)]
    assert [e for e in served if e in quiet] == quiet
    # 20 tokens of quiet for 20 of noisy, to within one request.
    assert abs(waiting.queue.served("noisy") - waiting.queue.served("quiet")) <= 20


def test_a_pause_earns_nothing() -> None:
    waiting = Waiting()
    for _ in range(30):
        waiting.add("busy")
    for _ in range(10):
        waiting.serve()
    waiting.add("returning")
    assert waiting.queue.served("returning") == 100
    waiting.add("returning")
    turns = [waiting.serve().sequence.share for _ in range(4)]
    assert sorted(turns) == ["busy", "busy", "returning", "returning"]


def test_an_empty_queue_starts_level_with_who_left_last() -> None:
    waiting = Waiting()
    waiting.add("a", tokens=50)
    waiting.serve()
    waiting.add("b")
    assert waiting.queue.served("b") == 50


def test_tokens_are_charged_once() -> None:
    waiting = Waiting()
    entry = waiting.add("a")
    waiting.queue.charge(entry, 6)
    waiting.queue.charge(entry, 4)
    waiting.queue.charge(entry, 7)
    assert waiting.queue.served("a") == 7


def test_the_preempted_come_first_the_oldest_before_all() -> None:
    waiting = Waiting()
    first, second, third = (waiting.add(share) for share in "aab")
    for entry in (first, second):
        waiting.queue.remove(entry)
    for entry in (second, first):
        entry.sequence.preemptions += 1
        waiting.queue.put_back(entry)
    assert len(waiting.queue) == 3
    assert waiting.queue.oldest() is third, "of those that never ran"
    order = []
    while (head := waiting.queue.head("m")) is not None:
        waiting.queue.remove(head)
        order.append(head)
    assert order == [first, second, third]


def test_models_wait_in_lines_of_their_own_under_one_account() -> None:
    waiting = Waiting()
    waiting.add("a", model="m", tokens=100)
    waiting.serve("m")
    one, other = waiting.add("a", model="n"), waiting.add("b", model="n")
    # b began level with a's 100, and came later.
    assert waiting.queue.head("n") is one
    waiting.queue.charge(one, 1)
    assert waiting.queue.head("n") is other
    assert waiting.queue.head("m") is None


def test_the_remembered_shares_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "SHARES_MAX", 10)
    waiting = Waiting()
    for index in range(50):
        waiting.add(f"s{index}", tokens=index + 1)
        waiting.serve()
    assert len(waiting.queue._served) <= 10
    assert waiting.queue.served("s48") > 0, "those that were served most are remembered"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 30), st.sampled_from(["add", "add", "serve", "leave"])))
)
def test_the_head_is_always_the_least_served_share(actions: list[tuple[str, int, str]]) -> None:
    waiting = Waiting()
    inside: list[Entry] = []
    for share, tokens, action in actions:
        if action == "add":
            inside.append(waiting.add(share, tokens=tokens))
        elif inside and action == "serve":
            inside.remove(waiting.serve())
        elif inside:
            leaving = inside.pop(tokens % len(inside))
            waiting.queue.remove(leaving)
        assert len(waiting.queue) == len(inside)
        head = waiting.queue.head("m")
        assert (head is None) == (not inside)
        if head:
            least = min(waiting.queue.served(entry.sequence.share) for entry in inside)
            assert waiting.queue.served(head.sequence.share) == least
            assert head is min((e for e in inside if e.sequence.share == head.sequence.share), key=lambda e: e.number)
            assert waiting.queue.oldest() is min(inside, key=lambda e: e.number)


# ---- pace


def test_pace_finds_the_line() -> None:
    pace = Pace()
    assert pace.tokens_within(0.1, 512) == 512, "nothing is known yet"
    for tokens in (4, 100, 4, 300, 8, 50):
        pace.observe(tokens, 0.020 + 0.001 * tokens)
    assert pace.base_s == pytest.approx(0.020, abs=1e-6)
    assert pace.per_token_s == pytest.approx(0.001, abs=1e-8)
    assert pace.tokens_within(0.1001, 512) == 80
    assert pace.tokens_within(0.001, 512) == 0
    assert pace.tokens_within(9.0, 512) == 512


def test_pace_keeps_the_slope_through_steps_that_are_alike() -> None:
    pace = Pace()
    for tokens in (4, 300, 4, 300):
        pace.observe(tokens, 0.020 + 0.001 * tokens)
    for index in range(500):
        pace.observe(40 + index % 2, 0.060 + index % 2 * 0.010)  # one token more does not take 10 ms: that is noise
    assert pace.per_token_s == pytest.approx(0.001, rel=0.2)
    assert pace.base_s + 40 * pace.per_token_s == pytest.approx(0.065, rel=0.02)


def test_pace_follows_a_machine_that_slows_down() -> None:
    pace = Pace()
    for slowness in (1, 3):
        for tokens in (4, 100) * 100:
            pace.observe(tokens, slowness * (0.020 + 0.001 * tokens))
    assert pace.per_token_s == pytest.approx(0.003, rel=0.01)
