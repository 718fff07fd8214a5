"""Tiers that can be kept together, the arithmetic of their floors, whose turn it is in one, and what a step costs."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.memory.arena import Arena
from engine.protocol.frames import Sampling
from engine.protocol.page_names import Chain
from engine.protocol.tiers import SHIPPED_TIERS, Tier, check_tiers
from engine.scheduler import queues
from engine.scheduler.cost_model import CostModel
from engine.scheduler.costs import Costs, StepLoad
from engine.scheduler.entry import Entry
from engine.scheduler.floors import Floors
from engine.scheduler.queues import TierQueue
from engine.step import Chunk, Sequence


def tier(name: str, floor: float = 0.0, preemptible: bool = True, queue_max: int = 10, **changes: Any) -> Tier:
    service_tier = f"s-{name}"
    return Tier(
        name=name, service_tier=service_tier, floor=floor, preemptible=preemptible, queue_max=queue_max, **changes
    )


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
    return floors_of(arena, tiers)


def floors_of(arena: Arena, tiers: tuple[Tier, ...] = SHIPPED_TIERS) -> Floors:
    return Floors(tiers, arena.pages, lambda rank: arena.held(tiers[rank].name), arena.available)


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
def test_spare_pages(held: dict[str, Any], spare: list[int], reclaim: list[int]) -> None:
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
    books = floors_of(arena)
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
    def __init__(self, **changes: Any) -> None:
        self.now = 0.0
        self.queue = TierQueue(tier("standard", **changes), lambda: self.now)
        self.number = 0

    def add(self, share: str, model: str = "m", tokens: int = 10, weight: float = 1.0) -> Entry:
        self.number += 1
        sequence = Sequence(
            self.number, 0, f"req_{self.number}", model, None, "ns", "standard", share, [1] * tokens, 1, Sampling(),
            frozenset(), 0.0, weight=weight,
        )  # fmt: skip
        entry = Entry(sequence, 1, self.number, Chain(model, None, "ns", 4))
        self.queue.add_entry(entry)
        return entry

    def serve(self, model: str = "m") -> Entry:
        """The head runs all its tokens."""
        entry = self.queue.head(model)
        assert entry is not None
        self.queue.note_joined(entry)
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
    assert abs(waiting.queue.served_tokens("noisy") - waiting.queue.served_tokens("quiet")) <= 20


def test_a_pause_earns_nothing() -> None:
    waiting = Waiting()
    for _ in range(30):
        waiting.add("busy")
    for _ in range(10):
        waiting.serve()
    waiting.add("returning")
    assert waiting.queue.served_tokens("returning") == 100
    waiting.add("returning")
    turns = [waiting.serve().sequence.share for _ in range(4)]
    assert sorted(turns) == ["busy", "busy", "returning", "returning"]


def test_an_empty_queue_starts_level_with_who_left_last() -> None:
    waiting = Waiting()
    waiting.add("a", tokens=50)
    waiting.serve()
    waiting.add("b")
    assert waiting.queue.served_tokens("b") == 50


def test_tokens_are_charged_once() -> None:
    waiting = Waiting()
    entry = waiting.add("a")
    waiting.queue.charge(entry, 6)
    waiting.queue.charge(entry, 4)
    waiting.queue.charge(entry, 7)
    assert waiting.queue.served_tokens("a") == 7


def test_the_preempted_come_first_the_oldest_before_all() -> None:
    waiting = Waiting()
    first, second, third = (waiting.add(share) for share in "aab")
    for entry in (first, second):
        waiting.queue.note_joined(entry)
    for entry in (second, first):
        entry.sequence.preemptions += 1
        waiting.queue.requeue(entry)
    assert len(waiting.queue) == 3
    order = []
    while (head := waiting.queue.head("m")) is not None:
        waiting.queue.note_joined(head)
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
    assert waiting.queue.served_tokens("s48") > 0, "those that were served most are remembered"


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
            waiting.queue.remove_ended(leaving)
        assert len(waiting.queue) == len(inside)
        head = waiting.queue.head("m")
        assert (head is None) == (not inside)
        if head:
            least = min(waiting.queue.served_tokens(entry.sequence.share) for entry in inside)
            assert waiting.queue.served_tokens(head.sequence.share) == least
            assert head is min((e for e in inside if e.sequence.share == head.sequence.share), key=lambda e: e.number)


def test_who_is_not_ready_is_passed_by_and_keeps_the_place() -> None:
    waiting = Waiting()
    first, second = waiting.add("a"), waiting.add("a")
    other, third = waiting.add("b"), waiting.add("c")
    waiting.queue.charge(other, 10)
    queue, absent = waiting.queue, {first}

    def ready(entry: Entry) -> bool:
        return entry not in absent

    assert queue.head("m", ready) is second
    absent.add(second)
    assert queue.head("m", ready) is third, "b was served more"
    absent.add(third)
    assert queue.head("m", ready) is other
    absent.add(other)
    assert queue.head("m", ready) is None
    absent.clear()
    assert queue.head("m", ready) is first


def test_behind_so_many_that_are_not_ready_nobody_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "PASSED_MAX", 3)
    waiting = Waiting()
    entries = [waiting.add("a") for _ in range(5)]
    assert waiting.queue.head("m", lambda entry: entry is entries[2]) is entries[2]
    assert waiting.queue.head("m", lambda entry: entry is entries[3]) is None


def test_who_passes_the_first_was_served_little_more() -> None:
    waiting = Waiting()
    friend, head = waiting.add("a"), waiting.add("b")
    waiting.queue.charge(friend, 10)
    waiting.queue.charge(friend, 10)
    more = waiting.queue.served_tokens("a") - waiting.queue.served_tokens("b")
    assert more > 0
    assert waiting.queue.head("m") is head
    assert waiting.queue.next_beside(head, more - 0.5, lambda entry: entry is friend) is None
    assert waiting.queue.next_beside(head, more, lambda entry: entry is friend) is friend
    assert waiting.queue.next_beside(head, more, lambda entry: False) is None


def test_a_token_counts_by_its_kind_and_its_shares_weight() -> None:
    waiting = Waiting(prefill_weight=1.0, decode_weight=3.0)
    plain, heavy = waiting.add("plain", tokens=10), waiting.add("heavy", tokens=10, weight=2.0)
    for entry in (plain, heavy):
        waiting.queue.charge(entry, 8)
        waiting.queue.charge(entry, 14)
    assert waiting.queue.served_tokens("plain") == 10 + 3 * 4
    assert waiting.queue.served_tokens("heavy") == (10 + 3 * 4) / 2


def test_who_weighs_twice_is_served_twice_as_much() -> None:
    waiting = Waiting()
    for _ in range(30):
        waiting.add("one")
        waiting.add("two", weight=2.0)
    shares = [waiting.serve().sequence.share for _ in range(30)]
    assert (shares.count("one"), shares.count("two")) == (10, 20)


def test_a_share_that_gets_nothing_for_too_long_is_next() -> None:
    """Newcomers, each a share of its own, would go before one that was served more, for ever."""
    waiting = Waiting(ageing_s=30.0)
    for _ in range(3):
        waiting.add("old", tokens=1000)
        waiting.add("pace", tokens=1)
    waiting.serve()
    waiting.serve()
    order = []
    for second in range(100):
        waiting.now = float(second)
        waiting.add(f"new{second}", tokens=1)
        order.append(waiting.serve().sequence.share)
    turns = [second for second, share in enumerate(order) if share == "old"]
    assert turns == [31, 62], "its two that wait, each once nothing of it had started for 30 s"


def test_a_share_that_is_served_does_not_age() -> None:
    """However long the queue of a noisy one, so that all in it have waited for longer than any other's."""
    waiting = Waiting(ageing_s=10.0)
    for _ in range(200):
        waiting.add("noisy")
    served = []
    for second in range(60):
        waiting.now = float(second)
        waiting.add("quiet")
        served += [waiting.serve().sequence.share for _ in range(2)]
    assert served.count("quiet") == 60


def test_the_predicted_wait_is_that_of_the_own_turn() -> None:
    waiting = Waiting()
    assert waiting.queue.wait_s("quiet") == 0.0
    for _ in range(60):
        waiting.add("noisy")
    assert waiting.queue.wait_s("noisy") == 0.0, "no pace is known"
    for _ in range(20):
        waiting.now += 0.5
        waiting.serve()
    assert waiting.queue.wait_s("noisy") == pytest.approx(40 * 0.5)
    assert waiting.queue.wait_s("quiet") == pytest.approx(0.5), "one of the noisy goes before it"
    waiting.now += 10.0
    assert waiting.queue.wait_s("quiet") > 1.0, "nobody has started since"
    assert waiting.queue.next_start_s() == waiting.queue.wait_s("quiet")


def test_time_in_which_nobody_waits_says_nothing_of_the_pace() -> None:
    waiting = Waiting()
    for _ in range(40):
        waiting.now += 100.0
        waiting.add("a")
        waiting.now += 0.1
        waiting.serve()
    waiting.now += 500.0
    for _ in range(10):
        waiting.add("a")
    assert waiting.queue.wait_s("a") == pytest.approx(1.0)


def test_a_full_queue_gives_up_the_newest_of_the_largest_share() -> None:
    waiting = Waiting()
    assert waiting.queue.displaced_by("quiet") is None
    noisy = [waiting.add("noisy", model=model) for model in "mnm"]
    waiting.add("other")
    assert waiting.queue.displaced_by("quiet") is noisy[2]
    assert waiting.queue.displaced_by("other") is noisy[2]
    assert waiting.queue.displaced_by("noisy") is None
    waiting.add("other")
    assert waiting.queue.displaced_by("other") is None, "it would have as many"


# ---- the cost model

TRUE = Costs(base_s=0.006, prefill_token_s=25e-6, sequence_s=8e-6, kv_token_s=3e-8, adapter_s=20e-6)


def loads(seed: int, count: int) -> list[StepLoad]:
    dice = random.Random(seed)
    sizes = [dice.randrange(1, 256) for _ in range(count)]
    return [
        StepLoad(dice.choice([0, 0, 64, 512]), size, size * dice.randrange(100, 1000), dice.randrange(0, 32))
        for size in sizes
    ]


def test_the_cost_model_finds_every_term() -> None:
    model = CostModel()
    assert model.prefill_within(0.1, StepLoad(0, 8, 8000, 0), 512) == 512, "nothing is known yet"
    for load in loads(1, 400):
        model.observe(load, TRUE.step_seconds(load))
    for name in ("base_s", "prefill_token_s", "sequence_s", "kv_token_s", "adapter_s"):
        assert getattr(model.costs, name) == pytest.approx(getattr(TRUE, name), rel=0.02), name
    beside = StepLoad(0, 100, 50_000, 10)
    tokens = model.prefill_within(0.020, beside, 2048)
    assert TRUE.step_seconds(StepLoad(tokens, 100, 50_000 + tokens, 10)) == pytest.approx(0.020, rel=0.01)
    assert model.prefill_within(0.001, beside, 2048) == 0
    assert model.prefill_within(float("inf"), beside, 2048) == 2048


def test_no_term_is_below_zero_whatever_is_observed() -> None:
    model, dice = CostModel(), random.Random(2)
    for load in loads(3, 300):
        model.observe(load, dice.uniform(0.0, 0.1))
        assert min(dataclasses.astuple(model.costs)) >= 0


def test_what_was_known_stands_while_all_steps_are_alike() -> None:
    model = CostModel()
    for load in loads(4, 400):
        model.observe(load, TRUE.step_seconds(load))
    alike = StepLoad(0, 8, 4000, 0)
    for _ in range(2000):
        model.observe(alike, 2 * TRUE.step_seconds(alike))
    assert model.costs.step_seconds(alike) == pytest.approx(2 * TRUE.step_seconds(alike), rel=0.02)
    assert model.costs.prefill_token_s == pytest.approx(TRUE.prefill_token_s, rel=0.5)


def test_one_stalled_step_says_little_and_a_slow_machine_is_believed() -> None:
    model = CostModel()
    for load in loads(5, 400):
        model.observe(load, TRUE.step_seconds(load))
    load = loads(5, 1)[0]
    model.observe(load, 30.0)
    model.observe(load, TRUE.step_seconds(load))
    assert model.costs.step_seconds(load) < 1.3 * TRUE.step_seconds(load)
    for load in loads(6, 2000):
        model.observe(load, 10 * TRUE.step_seconds(load))
    assert model.costs.step_seconds(load) == pytest.approx(10 * TRUE.step_seconds(load), rel=0.05)


@pytest.mark.parametrize("known", [True, False])
def test_a_steps_time_is_split_to_the_last_bit_of_it(known: bool) -> None:
    model = CostModel()
    for load in loads(7, 100 if known else 0):
        model.observe(load, TRUE.step_seconds(load))
    sequences = [Waiting().add("a").sequence for _ in range(3)]
    for sequence, adapter in zip(sequences, ("x", "x", None), strict=True):
        sequence.adapter = adapter
    chunks = [Chunk(sequences[0], 50, 1, True), Chunk(sequences[1], 50, 1, True), Chunk(sequences[2], 0, 500, True)]
    parts = model.split(chunks, 1, 0.030)
    assert sum(parts) == pytest.approx(0.030, rel=1e-12)
    assert parts[0] == parts[1] < parts[2]
    if known:
        # The adapter is read once for both.
        assert parts[0] - model.split([chunks[0], chunks[2]], 1, 0.030)[0] < 0


def test_a_step_leaves_a_newcomer_half_of_its_target() -> None:
    assert tier("a", ttft_base_ms=100.0).patience_s(steps_ahead=0) == 0.05
    assert tier("a", ttft_base_ms=100.0).patience_s(steps_ahead=1) == 0.025
