"""What the scheduler decides, case by case. The House audits every step beside what each test looks at."""

from __future__ import annotations

from functools import partial
from typing import cast

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.memory.arena import Arena
from engine.protocol.frames import Sampling
from engine.protocol.tiers import SHIPPED_TIERS, Tier
from engine.scheduler.scheduler import MODEL_WAIT_STEPS_MAX, ModelLimits, Scheduler
from engine.step import AdapterTable, Sequence
from support.engine.scheduler_auditor import STOP_ID, VOCAB, House, uninterrupted
from support.engine.schedules import Ask, Do, Schedule, play


def planned(house: House) -> list[tuple[int, int, bool]]:
    """The next step as (handle, count, sample)."""
    step = house.schedule()
    assert step is not None
    return [(chunk.sequence.handle, chunk.count, chunk.sample) for chunk in step.chunks]


def ids(first: int, count: int) -> list[int]:
    return [(first + i) % VOCAB for i in range(count)]


# ---- steps


def test_one_request_is_prefilled_decoded_and_ends() -> None:
    house = House()
    sequence = house.submit(8, 3)
    assert planned(house) == [(0, 8, True)]
    house.complete()
    assert planned(house) == [(0, 1, True)]
    house.complete()
    planned(house)
    outcome = house.complete()
    assert [(ended.sequence, ended.reason) for ended in outcome.ended] == [(sequence, "length")]
    assert outcome.tokens == [(sequence, sequence.output_ids[-1])]
    assert sequence.output_ids == uninterrupted(sequence)
    assert house.schedule() is None
    house.check_the_end()


def test_a_stop_id_ends_a_request_and_is_counted() -> None:
    house = House()
    sequence = house.submit(8, 50)
    made = uninterrupted(sequence)
    sequence.stop_ids = frozenset([made[4]])
    house.run()
    assert sequence.output_ids == made[: made.index(made[4]) + 1]
    assert house.endings() == {"stop": 1}


def test_a_stop_id_as_the_last_one_allowed_is_a_stop() -> None:
    house = House()
    sequence = house.submit(8, 1)
    sequence.stop_ids = frozenset(uninterrupted(sequence))
    house.run()
    assert house.endings() == {"stop": 1}


def test_a_long_prompt_is_prefilled_in_chunks_while_others_decode() -> None:
    house = House(step_tokens_max=12, prefill_tokens_min=4, sequences_max=4)
    house.submit(4, 20)
    house.run(1)
    house.submit(30, 2)
    assert planned(house) == [(0, 1, True), (1, 11, False)]
    house.complete()
    assert planned(house) == [(0, 1, True), (1, 11, False)]
    house.complete()
    assert planned(house) == [(0, 1, True), (1, 8, True)]
    house.complete()
    assert planned(house) == [(0, 1, True), (1, 1, True)]
    house.complete()
    house.run()
    house.check_the_end()


def test_decodes_come_first_by_tier_then_prefill_by_tier() -> None:
    house = House(step_tokens_max=40, prefill_tokens_min=4, sequences_max=8)
    for tier in ("batch", "standard", "premium"):
        house.submit(4, 20, tier=tier)
    house.run(1)
    for tier in ("batch", "standard", "premium"):
        house.submit(15, 4, tier=tier)
    assert [(handle, count) for handle, count, _ in planned(house)] == [
        (2, 1),
        (1, 1),
        (0, 1),
        (5, 15),
        (4, 15),
        (3, 7),
    ]
    house.complete()
    house.submit(25, 4, tier="premium")
    # A batch prefill that has begun gives way too.
    assert [h for h, _, _ in planned(house)] == [2, 5, 1, 4, 0, 6, 3]


def test_prefill_shrinks_to_the_strictest_target_of_those_who_decode() -> None:
    """Steps take 10 ms a token. Premium may wait 100 ms between tokens, batch for ever."""
    tiers = (
        Tier(name="premium", service_tier="priority", inter_token_ms=100.0, ttft_base_ms=3_600_000.0),
        Tier(name="batch", service_tier="flex", inter_token_ms=1_000_000.0),
    )

    def prefill_beside(tier: str, prefill_tokens_min: int) -> int:
        house = House(tiers=tiers, step_tokens_max=64, prefill_tokens_min=prefill_tokens_min)
        house.submit(20, 30, tier=tier)
        for _ in range(4):
            step = house.schedule()
            assert step
            house.complete(seconds=0.010 * sum(chunk.count for chunk in step.chunks))
        house.submit(60, 2, tier="batch")
        return planned(house)[-1][1]

    assert prefill_beside("premium", 4) == 8, "10 tokens in 100 ms, less the margin, one of them a decode"
    assert prefill_beside("premium", 20) == 20, "never below the minimum"
    assert prefill_beside("batch", 4) == 60


def test_without_decodes_prefill_takes_the_whole_step() -> None:
    house = House(step_tokens_max=64)
    for handle in range(2):
        house.submit(60, 1, tier="premium")
        assert planned(house) == [(handle, 60, True)]
        house.complete(seconds=100.0)


def test_schedule_twice_is_our_own_mistake() -> None:
    house = House()
    house.submit()
    house.schedule()
    with pytest.raises(AssertionError, match="not completed"):
        house.scheduler.schedule()


# ---- tiers, places, pages


def test_a_waiting_premium_request_takes_pages_from_batch() -> None:
    house = House(pages=32, sequences_max=8)
    flood = [house.submit(20, 20, tier="batch") for _ in range(6)]
    house.run(8)
    assert house.arena.available() < 5
    urgent = house.submit(20, 4, tier="premium")
    assert urgent.handle in [handle for handle, _, _ in planned(house)], "it waited for no more than the step in flight"
    house.complete()
    assert urgent.output_ids
    preempted = [sequence for sequence in flood if sequence.preemptions]
    assert preempted
    house.run()
    assert urgent.preemptions == 0
    assert any(sequence.recomputed_tokens for sequence in preempted) or house.scheduler.prefix.hits
    house.check_the_end()


def test_a_waiting_premium_request_takes_a_place_from_the_lowest_tier() -> None:
    house = House(pages=200, sequences_max=3)
    batch, standard, _ = (house.submit(8, 30, tier=tier) for tier in ("batch", "standard", "premium"))
    house.run(2)
    house.submit(8, 30, tier="premium")
    house.run(1)
    assert (batch.preemptions, standard.preemptions) == (1, 0)
    house.submit(8, 30, tier="premium")
    house.run(1)
    assert (batch.preemptions, standard.preemptions) == (1, 1)
    late = house.submit(8, 30, tier="premium")
    house.run(1)
    assert late.started_at is None, "nobody of a lower tier is left to preempt"
    house.run()
    house.check_the_end()


def test_a_tier_that_is_not_preemptible_keeps_places_and_pages() -> None:
    tiers = (Tier(name="premium", service_tier="p"), Tier(name="batch", service_tier="b", preemptible=False))
    for changes in ({"sequences_max": 2, "pages": 64}, {"sequences_max": 8, "pages": 16}):
        house = House(tiers=tiers, **changes)  # type: ignore[arg-type]
        flood = [house.submit(20, 12, tier="batch") for _ in range(2)]
        house.run(2)
        urgent = house.submit(20, 12, tier="premium")
        house.run(1)
        assert urgent.started_at is None
        house.run()
        assert not any(sequence.preemptions for sequence in flood)
        house.check_the_end()


def test_the_victim_loses_least_work() -> None:
    house = House(pages=24, page_tokens=4, step_tokens_max=30, prefill_tokens_min=4, sequences_max=8)
    far = house.submit(24, 20, tier="batch")  # its 6 pages are computed
    begun = house.submit(40, 4, tier="batch")  # of its 10 pages, 1 and a half
    house.run(1)
    assert (far.computed, begun.computed) == (24, 6)
    house.submit(36, 4, tier="premium")
    house.run(1)
    assert begun.preemptions == 1
    assert far.preemptions == 0
    house.run()
    house.check_the_end()


def test_shared_pages_count_neither_as_lost_nor_as_freed() -> None:
    house = House(
        pages=40, step_tokens_max=80, sequences_max=8, tiers=(SHIPPED_TIERS[0], Tier(name="b", service_tier="b"))
    )
    house.submit(ids(0, 41), 30, tier="b")
    house.run(1)
    sharing = house.submit([*ids(0, 40), 80, 81, 82], 20, tier="b")  # 10 of its 11 pages are the first's
    lone = house.submit(ids(50, 14), 20, tier="b")
    house.run(1)
    assert sharing.cached_tokens == 40
    # 3 tokens on its own page, 14 on 4: less is lost per page with the one that shares.
    house.submit(100, 2, tier="premium")  # 25 pages, of which 24 are free
    house.run(1)
    assert sharing.preemptions == 1
    assert lone.preemptions == 0
    house.run()
    house.check_the_end()


def test_nobody_is_preempted_in_vain() -> None:
    """Premium may have 85 pages, and one of it holds 70: what batch borrows is not enough for the next."""
    house = House(pages=100, sequences_max=8, step_tokens_max=400)
    house.submit(280, 30, tier="premium")
    low = house.submit(60, 30, tier="batch")
    house.run(1)
    late = house.submit(80, 2, tier="premium")
    house.run(3)
    assert late.started_at is None
    assert low.preemptions == 0
    house.run()
    house.check_the_end()


def test_a_newcomer_leaves_every_running_request_a_page_to_grow() -> None:
    house = House(pages=14, tiers=SHIPPED_TIERS[2:], step_tokens_max=80)
    house.submit(16, 5)  # 4 pages, and soon 5
    house.submit(16, 5)
    late = house.submit(20, 2)  # 5 pages, of the 6 that the others leave at first
    house.run()
    assert late.preemptions == 0, "it would have been preempted at once"
    house.check_the_end()


def test_premium_leaves_the_floors_of_others_alone() -> None:
    """Floors of 100 pages: 30, 10, 5."""
    house = House(pages=100, sequences_max=30, step_tokens_max=200)
    for _ in range(20):
        house.submit(39, 2, tier="premium")
    house.schedule()
    assert house.pages_of("premium") <= 85
    house.complete()
    low = house.submit(15, 2, tier="batch")
    middle = house.submit(30, 2, tier="standard")
    house.run(1)
    assert low.pages, "room of its floor, while premium waits for more"
    assert middle.pages
    house.run()
    assert low.preemptions == middle.preemptions == 0
    house.check_the_end()


@settings(max_examples=60, deadline=None)
@given(
    flood=st.lists(
        st.tuples(st.integers(1, 150), st.integers(1, 60), st.sampled_from(["premium", "standard"])), max_size=25
    ),
    pauses=st.lists(st.integers(0, 4), min_size=25, max_size=25),
    low_tokens=st.integers(1, 15),
)
# Who waits for tokens, not for pages; and one that outgrew its floor in the step that took it.
@example([(1, 1, "premium"), (1, 38, "premium"), (129, 37, "premium"), (145, 21, "premium")], [0, 1, 0, 2], 1)
@example(
    [(1, 1, "premium"), (1, 38, "premium"), (129, 37, "premium"), (144, 22, "premium"), (8, 34, "standard")],
    [0, 1, 1, 3, 0],
    1,
)
def test_a_tier_within_its_floor_is_never_preempted_for_pages(
    flood: list[tuple[int, int, str]], pauses: list[int], low_tokens: int
) -> None:
    """Batch runs one request at a time, of at most its floor of 5 pages."""
    house = House(pages=100, sequences_max=64, step_tokens_max=200, prefill_tokens_min=16)
    low: Sequence | None = None
    for (tokens, more, tier), pause in zip(flood, pauses, strict=False):
        house.offer(house.sequence(tokens, more, tier=tier))
        if low is None or house.books[low.handle].ending:
            low = house.submit(low_tokens, 20 - low_tokens + 1, tier="batch")
        house.run(pause)
    house.run()
    assert not any(b.sequence.preemptions for b in house.books.values() if b.sequence.tier == "batch")
    house.check_the_end()


def test_within_a_tier_the_youngest_yields_and_the_oldest_never() -> None:
    house = House(pages=16, sequences_max=4, step_tokens_max=80)
    sequences = [house.submit(11, 30) for _ in range(4)]
    preemptions = []
    while house.schedule():
        house.complete()
        preemptions.append([sequence.preemptions for sequence in sequences])
    assert preemptions[-1][0] == 0
    assert sum(preemptions[-1]) > 0
    first = next(counts for counts in preemptions if sum(counts))
    assert first[:2] == [0, 0], "an older one was preempted before a younger"
    house.check_the_end()


def test_the_preempted_resume_before_newcomers_of_their_tier() -> None:
    house = House(pages=64, sequences_max=1)
    first = house.submit(8, 10, tier="batch")
    house.run(3)
    house.submit(8, 2, tier="premium")
    second = house.submit(8, 2, tier="batch", share="nobody yet")
    house.run(1)
    assert first.preemptions == 1
    house.run(3)
    assert first.pages
    assert not second.pages
    house.run()
    house.check_the_end()


def test_nobody_of_a_lower_tier_overtakes_one_that_waits_for_pages() -> None:
    house = House(pages=100, sequences_max=30, step_tokens_max=400)
    house.submit(300, 30, tier="premium")
    house.run(1)
    waiting = house.submit(100, 2, tier="premium")
    small = house.submit(40, 2, tier="batch")
    house.run(3)
    assert waiting.started_at is None
    assert small.started_at is None
    within = house.submit(11, 2, tier="standard")
    house.run(1)
    assert within.started_at is not None, "its tier's floor has room of its own"
    house.run()
    assert waiting.started_at <= small.started_at  # type: ignore[operator]
    house.check_the_end()


def test_once_it_has_joined_the_others_may_again() -> None:
    house = House(pages=100, sequences_max=30, step_tokens_max=400)
    house.submit(300, 10, tier="premium")
    house.run(1)
    waiting = house.submit(100, 60, tier="premium")
    house.run(3)
    assert waiting.started_at is None
    house.run(10)
    assert waiting.output_ids
    late = house.submit(60, 2, tier="batch")
    house.run(1)
    assert late.started_at is not None
    house.run()
    house.check_the_end()


def test_an_abort_of_who_waits_for_room_lets_the_others_in() -> None:
    house = House(pages=100, models=("base", "other"), sequences_max=30, step_tokens_max=400)
    house.submit(300, 40, tier="premium")
    house.run(1)
    waiting = house.submit(100, 2, tier="premium", model="other")
    house.run(2)
    small = house.submit(40, 2, tier="batch")
    house.run(4)
    assert small.started_at is None
    house.abort(waiting)
    house.run(1)
    assert small.started_at is not None


def test_a_noisy_share_does_not_keep_a_quiet_one_waiting() -> None:
    house = House(pages=200, sequences_max=2, step_tokens_max=64)
    for _ in range(30):
        house.submit(12, 4, share="noisy")
    house.run(10)
    quiet = house.submit(12, 4, share="quiet")
    house.run(6)
    assert quiet.output_ids
    house.run()
    house.check_the_end()


def test_a_share_is_not_charged_for_cached_nor_for_recomputed_tokens() -> None:
    house = House(pages=200, sequences_max=1)
    house.submit(ids(0, 18), 2, tier="batch")
    house.run()
    served = house.scheduler._queues[2].served_tokens
    assert served("tenant") == 18 + 2, "18 of the prompt; of 2 made, each twice as dear, the last is never computed"
    again = house.submit(ids(0, 18), 10, tier="batch")
    house.run(4)
    house.submit(18, 2, tier="premium", namespace="other")
    house.run()
    assert again.preemptions == 1
    assert again.recomputed_tokens
    assert served("tenant") == 20 + 2 + 2 * 9
    house.check_the_end()


# ---- prefix cache


def test_a_second_request_finds_the_full_pages_of_the_first() -> None:
    house = House()
    house.submit(ids(0, 18), 2)
    house.run()
    second = house.submit(ids(0, 18), 2)
    third = house.submit([*ids(0, 10), 90, 91, 92], 2)
    assert [count for _, count, _ in planned(house)] == [2, 5]
    assert (second.cached_tokens, third.cached_tokens) == (16, 8)
    house.complete()
    house.run()
    assert house.scheduler.prefix.queries == 18 + 18 + 13
    assert house.scheduler.prefix.hits == 16 + 8
    house.check_the_end()


def test_one_token_is_always_computed() -> None:
    house = House()
    house.submit(ids(0, 16), 2)
    house.run()
    again = house.submit(ids(0, 16), 2)
    assert planned(house) == [(1, 4, True)]
    assert again.cached_tokens == 12


def test_a_page_is_found_only_once_it_is_computed() -> None:
    house = House(step_tokens_max=64)
    house.submit(ids(0, 18), 2)
    second = house.submit(ids(0, 18), 2)
    house.run(1)
    assert second.cached_tokens == 0


def test_ids_that_were_made_are_found_too() -> None:
    house = House()
    first = house.submit(ids(0, 10), 12)
    house.run()
    talk = first.prompt_ids + first.output_ids
    following = house.submit([*talk, 1, 2, 3], 2)
    house.run()
    # The last id's KV was never computed.
    assert following.cached_tokens == (len(talk) - 1) // 4 * 4


def test_of_a_finished_prompt_the_end_is_evicted_first() -> None:
    house = House(pages=14, tiers=SHIPPED_TIERS[2:])
    house.submit(ids(0, 40), 2)
    house.run()
    house.submit(32, 2, namespace="other")
    house.run()
    again = house.submit(ids(0, 40), 2)
    house.run()
    assert 0 < again.cached_tokens < 36
    house.check_the_end()


@pytest.mark.parametrize(
    "changes", [{"namespace": "other"}, {"adapter": "a"}, {"model": "other"}, {"prompt_ids": [96, *ids(1, 17)]}]
)
def test_nothing_is_shared_beyond_namespace_adapter_model_and_beginning(changes: dict[str, object]) -> None:
    house = House(models=("base", "other"), adapters={"a": ("base", 2)})
    house.submit(ids(0, 18), 2)
    house.run()
    second = house.submit(18, 2, **({"prompt_ids": ids(0, 18)} | changes))
    house.run()
    assert second.cached_tokens == 0
    house.check_the_end()


def test_a_resumed_request_uses_its_own_pages_and_counts_no_hit() -> None:
    house = House(pages=200, sequences_max=1)
    first = house.submit(18, 10, tier="batch")
    house.run(4)
    house.submit(18, 2, tier="premium")
    house.run()
    assert first.preemptions == 1
    assert first.cached_tokens == 0
    assert house.scheduler.prefix.hits == 0
    # 18 prompt and 4 made, of which 21 were computed: 20 lay in full pages, still cached.
    assert first.recomputed_tokens == 1
    house.check_the_end()


def test_recomputed_tokens_are_those_that_were_evicted() -> None:
    house = House(pages=12, sequences_max=1, tiers=(Tier(name="premium", service_tier="p"), SHIPPED_TIERS[2]))
    first = house.submit(16, 8, tier="batch")
    house.run(3)
    house.submit(40, 2, tier="premium")
    house.run()
    assert first.preemptions == 1
    assert 0 < first.recomputed_tokens <= 18
    house.check_the_end()


# ---- endings


def test_abort_of_a_waiting_and_of_a_running_request_is_immediate() -> None:
    house = House(sequences_max=1)
    running, waiting = house.submit(8, 20), house.submit(8, 20)
    house.run(3)
    house.abort(waiting)
    house.abort(running)
    assert house.endings() == {"aborted": 2}
    assert len(running.output_ids) == 3
    assert house.schedule() is None
    assert house.scheduler.abort(0, running.handle) is None, "idempotent"
    assert house.scheduler.abort(7, 99) is None, "unknown handles are ignored"
    house.check_the_end()


def test_abort_in_the_step_being_executed_waits_for_it() -> None:
    house = House()
    sequence = house.submit(8, 20)
    house.run(2)
    house.schedule()
    assert house.scheduler.abort(0, sequence.handle) is None
    house.books[sequence.handle].abort_asked = True
    assert sequence.pages, "its pages are being written"
    outcome = house.complete()
    assert [(ended.reason, len(ended.sequence.output_ids)) for ended in outcome.ended] == [("aborted", 3)]
    assert house.scheduler.results.tokens_made == 3
    house.check_the_end()


def test_abort_gateway_ends_all_of_one_stream() -> None:
    house = House(sequences_max=2)
    mine = [house.submit(8, 20, gateway=1) for _ in range(3)]
    other = house.submit(8, 3, gateway=2)
    house.schedule()
    for sequence in mine:
        house.books[sequence.handle].abort_asked = True
    at_once = house.scheduler.abort_gateway(1)
    assert [ended.sequence for ended in at_once] == [mine[2]], "the other two are in the step"
    for ended in at_once:
        house._end(ended)
    house.complete()
    assert house.endings() == {"aborted": 3}
    house.run()
    assert len(other.output_ids) == 3
    house.check_the_end()


def test_the_same_handle_on_two_streams_is_two_requests() -> None:
    house = House()
    one, two = house.sequence(8, 2, gateway=1), house.sequence(8, 2, gateway=2)
    assert one.handle == two.handle
    assert house.scheduler.submit(one) is None
    assert house.scheduler.submit(two) is None
    refusal = house.scheduler.submit(one)
    assert refusal
    assert refusal.code == "bad_request"


def test_a_chunk_that_fails_ends_its_request_alone() -> None:
    house = House()
    bad, good = house.submit(8, 5), house.submit(8, 5)
    house.schedule()
    outcome = house.complete(errors={0: "not a number"})
    assert [(e.sequence, e.reason, e.message) for e in outcome.ended] == [(bad, "error", "not a number")]
    assert bad.output_ids == []
    house.run()
    assert len(good.output_ids) == 5
    assert house.submit(list(bad.prompt_ids), 1).cached_tokens == 0, "its pages may hold anything"
    house.run()
    house.check_the_end()


# ---- accounting


def test_times_and_device_seconds() -> None:
    house = House(step_tokens_max=16, prefill_tokens_min=4, sequences_max=4)
    house.clock.now = 100.0
    first, second = house.submit(4, 3), house.submit(30, 1)
    house.clock.now = 101.0
    house.schedule()
    house.complete(seconds=1.6)
    assert (first.started_at, first.first_token_at) == (101.0, 102.6)
    assert (second.started_at, second.first_token_at) == (101.0, None)
    assert 0 < first.device_s < second.device_s, "4 tokens of the first, 12 of the second"
    assert first.device_s + second.device_s == pytest.approx(1.6)
    house.run()
    assert second.first_token_at is not None
    house.check_the_end()


# ---- adapters


def test_an_adapter_is_placed_once_and_stays_for_the_next() -> None:
    house = House(adapters={"a": ("base", 6)})
    house.submit(8, 3, adapter="a")
    house.submit(8, 3, adapter="a")
    house.run()
    house.submit(8, 3, adapter="a")
    house.run()
    assert house.table.placed == 1
    assert house.arena.adapter_pages() == 2
    house.check_the_end()


def test_the_least_recently_used_idle_adapter_makes_room() -> None:
    house = House(pages=14, adapters=dict.fromkeys("abc", ("base", 4)), tiers=SHIPPED_TIERS[2:])
    for name in "abca":
        house.submit(8, 2, adapter=name)
        house.run()
    assert house.table.resident() == ["b", "c", "a"]
    house.submit(45, 4, adapter="b")  # 12 pages beside its adapter's one
    house.run()
    assert house.table.resident() == ["a", "b"], "c is the oldest but b, which it uses; one was enough"
    assert house.table.placed == 3
    house.check_the_end()


def test_idle_adapters_go_before_running_requests() -> None:
    """For one that grows, and for one that joins."""
    house = House(pages=30, adapters={"a": ("base", 16), "b": ("base", 16)}, tiers=SHIPPED_TIERS[1:])
    for name in "ab":
        house.submit(8, 2, adapter=name)
        house.run()
    low = house.submit(76, 20, tier="batch")
    house.run(17)
    assert house.table.resident() == ["b"], "the growing one took a's pages"
    house.submit(16, 2, tier="standard")
    house.run()
    assert house.table.resident() == []
    assert low.preemptions == 0
    house.check_the_end()


def test_an_adapter_that_lies_scattered_is_placed_anew_when_room_is_short() -> None:
    house = House(pages=14, adapters={"a": ("base", 2), "b": ("base", 4)}, tiers=SHIPPED_TIERS[2:])
    for name in "ab":
        house.submit(8, 2, adapter=name)
        house.run()
    house.scheduler.remove_adapter("a")
    assert house.arena.adapter_pages() == 2, "b lies on two pages, and needs one"
    whole = house.submit(51, 2, adapter="b")  # 13 pages
    house.run()
    assert len(whole.output_ids) == 2
    assert house.arena.adapter_pages() == 1
    house.check_the_end()


def test_cached_pages_go_before_adapters() -> None:
    house = House(pages=14, adapters={"a": ("base", 4)}, tiers=SHIPPED_TIERS[2:])
    house.submit(8, 2, adapter="a")
    house.submit(30, 2)
    house.run()
    house.submit(48, 2)
    house.run()
    assert house.table.resident() == ["a"]
    assert house.table.placed == 1


def test_an_adapter_in_use_stays_and_others_wait_for_its_pages() -> None:
    house = House(pages=10, adapters={"a": ("base", 16), "b": ("base", 16)}, tiers=SHIPPED_TIERS[2:])
    first, second = house.submit(8, 4, adapter="a"), house.submit(8, 4, adapter="b")
    house.run(2)
    assert first.output_ids
    assert second.started_at is None
    house.run()
    assert len(second.output_ids) == 4
    house.check_the_end()


def test_a_higher_tier_takes_an_adapters_pages_from_a_lower() -> None:
    tiers = tuple(msgspec.structs.replace(tier, floor=0.0) for tier in SHIPPED_TIERS)
    house = House(pages=12, adapters={"a": ("base", 16), "b": ("base", 16)}, tiers=tiers)
    low = house.submit(8, 20, adapter="a", tier="batch")
    house.run(2)
    high = house.submit(12, 4, adapter="b", tier="premium")
    house.run(1)
    assert high.output_ids
    assert low.preemptions == 1
    house.run()
    house.check_the_end()


def test_remove_adapter_frees_its_pages_and_never_one_in_use() -> None:
    house = House(adapters={"a": ("base", 6)})
    house.submit(8, 3, adapter="a")
    with pytest.raises(AssertionError, match="in use"):
        house.scheduler.remove_adapter("a")
    house.run()
    house.scheduler.remove_adapter("a")
    house.scheduler.remove_adapter("a")
    assert house.table.resident() == []
    assert house.arena.adapter_pages() == 0
    house.check_the_end()


def test_what_turns_out_never_to_fit_beside_its_adapter_ends_alone() -> None:
    """No adapter was pinned when it was queued; later a pinned one takes a page of the arena for good."""
    tiers = (msgspec.structs.replace(SHIPPED_TIERS[2], floor=0.0),)
    house = House(pages=8, adapters={"a": ("base", 4), "b": ("base", 2)}, tiers=tiers)
    large = house.submit(24, 5, adapter="b")  # needs all 8 pages at its end
    other = house.submit(8, 2)
    house.pin("a", True)
    house.run()
    assert house.books[large.handle].ending.reason == "error"  # type: ignore[union-attr]
    assert "beside its adapter" in house.books[large.handle].ending.message  # type: ignore[union-attr]
    assert len(other.output_ids) == 2
    house.check_the_end()


# ---- several models


def test_models_of_one_tier_take_turns() -> None:
    house = House(models=("base", "other"))
    for model in ("base", "other"):
        house.submit(8, 10, model=model)
    turns = []
    while step := house.schedule():
        turns.append(step.model)
        house.complete()
    assert turns == ["base", "other"] * 10
    house.check_the_end()


def test_first_tokens_of_the_better_tier_come_first_and_then_models_take_turns() -> None:
    house = House(models=("base", "other"))
    house.submit(8, 3, model="other", tier="batch")
    house.submit(8, 30, model="base", tier="premium")
    turns = []
    while step := house.schedule():
        turns.append(step.model)
        house.complete()
    assert turns == ["base", "other"] * 3 + ["base"] * 27
    house.check_the_end()


def test_a_model_that_was_idle_does_not_jump_the_queue() -> None:
    house = House(models=("base", "other"))
    house.submit(8, 60, model="base", tier="premium")
    house.run(20)
    house.submit(8, 3, model="other", tier="batch")
    step = house.schedule()
    assert step
    assert step.model == "base"


def test_no_model_starves_among_many() -> None:
    models = tuple(f"m{i}" for i in range(8))
    house = House(models=models, pages=200, sequences_max=16, step_tokens_max=64)
    for index, model in enumerate(models):
        house.submit(8, 12, model=model, tier="premium" if index < 4 else "batch")
    last = dict.fromkeys(models, 0)
    while step := house.schedule():
        live = {sequence.model for sequence in house.live()}
        house.complete()
        last[step.model] = house.steps
        for model in live:
            assert house.steps - last[model] <= MODEL_WAIT_STEPS_MAX + len(models)
    house.check_the_end()


# ---- refusals


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"model": "nobody"}, "model_unknown"),
        ({"tier": "gold"}, "tier_unknown"),
        ({"adapter": "unknown"}, "adapter_unknown"),
        ({"adapter": "of the other"}, "adapter_unknown"),
        ({"prompt_ids": []}, "bad_request"),
        ({"max_tokens": -1}, "bad_request"),
        ({"prompt_ids": [1, VOCAB]}, "bad_request"),
        ({"prompt_ids": [1, -1]}, "bad_request"),
        ({"max_tokens": 99}, "too_long"),
        ({"prompt_ids": [1] * 60, "max_tokens": 34, "tier": "premium"}, "too_long"),
    ],
)
def test_what_could_never_run_is_refused(changes: dict[str, object], code: str) -> None:
    house = House(
        pages=26,
        context_tokens=100,
        models=("base", "other"),
        adapters={"of the other": ("other", 1), "a": ("base", 9)},
    )
    refusal = house.offer(house.sequence(**({"max_tokens": 4} | changes)))  # type: ignore[arg-type]
    assert refusal
    assert refusal.code == code
    assert refusal.message
    assert not house.scheduler.has_work()


def test_the_largest_that_fits_is_taken_and_runs() -> None:
    """26 pages of 4 tokens, less floors: premium can have 23, standard 25, batch all; the last id has no KV."""
    for tier, pages in (("premium", 23), ("standard", 25), ("batch", 26)):
        house = House(pages=26)
        assert house.offer(house.sequence(60, pages * 4 - 60 + 2, tier=tier)), "one token too many"
        sequence = house.submit(60, pages * 4 - 60 + 1, tier=tier)
        house.run()
        assert sequence.preemptions == 0
        house.check_the_end()


def test_an_adapters_pages_count_for_what_fits() -> None:
    house = House(pages=26, adapters={"a": ("base", 9)})
    refused = house.offer(house.sequence(60, 24 * 4 - 60 + 1, tier="batch", adapter="a"))
    assert refused
    assert refused.code == "too_long"
    house.submit(60, 23 * 4 - 60 + 1, tier="batch", adapter="a")
    house.run()
    assert house.offer(house.sequence(60, 24 * 4 - 60 + 1, tier="batch", adapter="a")), "resident or not"
    house.check_the_end()


def test_a_full_queue_refuses_its_own_tier_only() -> None:
    tiers = tuple(msgspec.structs.replace(tier, queue_max=2) for tier in SHIPPED_TIERS)
    house = House(tiers=tiers)
    house.submit(tier="batch")
    house.submit(tier="batch")
    refusal = house.offer(house.sequence(tier="batch"))
    assert refusal
    assert (refusal.code, refusal.retry_after_s) == ("queue_full", 1.0)
    house.submit(tier="premium")
    house.run(1)
    house.submit(tier="batch")
    house.run()
    house.check_the_end()


@pytest.mark.parametrize(("target_ms", "refused"), [(5000.0, True), (None, False)])
def test_a_wait_over_the_tiers_target_refuses(target_ms: float | None, refused: bool) -> None:
    tiers = (Tier(name="standard", service_tier="default", queue_target_ms=target_ms),)
    house = House(tiers=tiers, sequences_max=1)
    house.submit(8, 20)
    house.run(1)
    house.submit(8, 20)
    house.clock.now += 4.9
    assert house.offer(house.sequence()) is None
    house.clock.now += 2.0
    refusal = house.offer(house.sequence())
    assert (refusal is not None) == refused
    if refusal:
        assert refusal.code == "queue_full"
        # Two are before it, and the first of them has waited for 6.9 s.
        assert refusal.retry_after_s == pytest.approx(2 * 6.9 - 5.0)
    house.run()
    assert house.offer(house.sequence()) is None, "an idle engine refuses nothing"


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"sequences_max": 0}, "at least 1"),
        ({"prefill_tokens_min": 0}, "at least 1"),
        ({"sequences_max": 30, "prefill_tokens_min": 3, "step_tokens_max": 32}, "step_tokens_max"),
        ({"namespace_quota": 2.0}, "part of the arena"),
    ],
)
def test_limits_that_cannot_be_kept_are_refused(limits: dict[str, float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        House(**limits)  # type: ignore[arg-type]


def test_tiers_are_checked_at_the_start() -> None:
    house = House()
    with pytest.raises(ValueError, match="at least one tier"):
        Scheduler([], {"m": ModelLimits(10, 4)}, Arena(4, 1), cast(AdapterTable, house.table), house.clock)


# ---- counts


def test_the_counters_tell_what_is_going_on() -> None:
    house = House(sequences_max=2)
    for tier in ("premium", "batch", "batch", "standard"):
        house.submit(8, 5, tier=tier, stop_ids=frozenset([STOP_ID]))
    assert house.scheduler.waiting() == {"premium": 1, "standard": 1, "batch": 2}
    assert house.scheduler.running == 0
    assert house.scheduler.has_work()
    house.run(1)
    assert house.scheduler.waiting() == {"premium": 0, "standard": 0, "batch": 2}
    assert house.scheduler.running == 2
    assert house.scheduler.results.tokens_made == 2
    house.run()
    assert not house.scheduler.has_work()
    house.check_the_end()


def test_the_same_requests_give_the_same_steps() -> None:
    def steps() -> list[object]:
        house = House(pages=24, adapters={"a": ("base", 6)})
        for index in range(12):
            tier = ("premium", "standard", "batch")[index % 3]
            house.submit(10 + index, 8, tier=tier, share=str(index % 4), adapter="a" if index % 2 else None)
        seen: list[object] = []
        while step := house.schedule():
            seen.append([(c.sequence.handle, c.start, c.count, tuple(c.sequence.pages)) for c in step.chunks])
            house.complete()
        return seen

    assert steps() == steps()


def test_a_request_that_pinned_adapters_leave_no_room_for_ends_although_its_adapter_is_seldom_near() -> None:
    """The host has a place for one adapter. The adapter of the first request is near only while another request runs
    or has steps in flight. The first request preempted the other requests again and again, and never joined."""
    tiers = (
        Tier(name="a", service_tier="priority", preemptible=False, preemptions_max=1, crowd_part=0.25, ageing_s=0.05),
        Tier(name="b", service_tier="default", floor=0.3, preemptions_max=1, crowd_part=0.25, ageing_s=0.05),
    )
    house = House(
        tiers=tiers,
        models=("base", "other"),
        pages=41,
        adapters={"own": ("base", 6), "pinned": ("base", 11), "third": ("other", 39)},
        adapter_places=1,
        sequences_max=1,
        prefill_tokens_min=18,
        step_tokens_max=19,
        steps_ahead=2,
    )
    never = house.submit(54, 55, tier="a", adapter="own", share="x", namespace="n1")
    house.pin("pinned", True)
    others = [
        house.submit(76, 13, tier="b", adapter="pinned", share="z", sampling=Sampling(presence_penalty=0.5)),
        house.submit(12, 23, tier="b", adapter="third", model="other", share="x"),
    ]
    assert house.run(steps=1000) < 1000
    house.check_the_end()
    ending = house.books[never.handle].ending
    assert ending is not None
    assert ending.message == "the request does not fit beside its adapter and the pinned ones"
    assert [len(other.output_ids) for other in others] == [13, 23]


def test_others_join_while_an_adapter_is_loaded_again_into_fewer_pages() -> None:
    """Alone, a request evicts its own adapter, which lay in more pages than it needs, and waits until it is loaded
    again. The next request of its tier joins in the same step: the auditor finds a request that waits for what a lower
    tier borrows."""
    tiers: tuple[Tier, ...] = (
        Tier(name="a", service_tier="a", floor=0.3, preemptible=False, preemptions_max=1, ageing_s=0.05),
        Tier(name="b", service_tier="b", floor=0.4, preemptions_max=1),
        Tier(name="c", service_tier="c", floor=0.3, preemptions_max=1),
    )
    tiers = tuple(msgspec.structs.replace(tier, inter_token_ms=100_000.0, crowd_part=1.0) for tier in tiers)
    ask = partial(Ask, shared=0, share="x", namespace="n1", stops=False, penalty=0.0)
    actions = (
        ask(tokens=13, max_tokens=18, tier=0, adapter=5, model="base"),
        ask(tokens=21, max_tokens=9, tier=2, adapter=1, model="base"),
        Do("run", 4),
        ask(tokens=7, max_tokens=15, tier=2, adapter=7, model="base", penalty=0.5),
        ask(tokens=27, max_tokens=10, tier=0, adapter=7, model="base"),
        ask(tokens=1, max_tokens=21, tier=0, adapter=2, model="base"),
        ask(tokens=11, max_tokens=39, tier=0, adapter=0, model="base", share="z"),
        ask(tokens=1, max_tokens=29, tier=0, adapter=7, model="other"),
    )
    adapters = (("other", 2), ("other", 3), ("base", 3), ("base", 1), ("base", 1), ("other", 3))
    schedule = Schedule(
        tiers=tiers,
        actions=actions,
        pages=45,
        sequences_max=2,
        prefill=14,
        step_tokens=8,
        steps_ahead=2,
        adapters=adapters,
        adapter_polls=3,
        residence_s=0.0,
    )
    play(schedule)


def test_a_tier_evicts_a_waited_adapter_for_pages_within_its_floor_though_it_has_some_of_them_cached() -> None:
    """Pages that the joining request found in the prefix cache were counted twice. Its tier then seemed to exceed its
    floor, and an idle adapter was spared for a request of a higher tier that lacked room."""
    tiers = (
        Tier(name="a", service_tier="default", floor=0.4),
        Tier(name="b", service_tier="flex", floor=0.5, preemptible=False),
    )
    house = House(tiers=tiers, pages=20, adapters={"large": ("base", 16)}, namespace_quota=1.0)
    prompt = list(range(1, 29))
    house.submit(prompt, 1, tier="b")
    house.run()
    house.submit(12, 12, tier="a")
    house.submit(4, 1, tier="a", adapter="large")
    house.run(4)
    waits = house.submit(13, 1, tier="a", adapter="large")
    house.run(1)
    assert not waits.pages
    assert house.table.adapter_location("large") == "device"
    joins = house.submit([*prompt, *range(40, 51)], 2, tier="b")
    house.run(1)
    assert joins.cached_tokens == 28
    assert house.table.adapter_location("large") != "device"
    house.run()
    house.check_the_end()
