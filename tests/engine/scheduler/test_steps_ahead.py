"""Steps in flight: the next is planned and begun before the ids of the one before are known. What the scheduler does
case by case, in the auditor's House; and the loop with the fake runner, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.fake.runner import FakePending, FakeRunner, fake_model
from engine.loop.flights import StepMasks
from engine.loop.worker import EngineLoop
from engine.memory.arena import Arena
from engine.protocol.codec import FrameReader, decode_from_engine
from engine.protocol.config import FakeConfig, FakeFaults, ModelConfig
from engine.protocol.frames import (
    PROTOCOL_VERSION,
    AdapterState,
    Finished,
    FromEngine,
    Hello,
    LoadAdapter,
    Sampling,
    Status,
    StatusReport,
    Submit,
    ToEngine,
    Tokens,
    UnloadAdapter,
)
from engine.protocol.inbox import GatewayDisconnected, Inbox, LoopProgress, Stop
from engine.protocol.server import OutgoingFrames
from engine.protocol.tiers import SHIPPED_TIERS, Tier
from engine.scheduler.entry import Entry
from engine.scheduler.results import MASK_LATE_S, MASK_SKIPS_MAX, SKIPS_MESSAGE
from engine.scheduler.scheduler import ModelLimits, Scheduler
from engine.step import PENDING_ID, Masks, Sequence, Step, StepResult, run_step
from support.engine.scheduler_auditor import VOCAB, Clock, House, uninterrupted

ONE_TIER = SHIPPED_TIERS[2:]
STEP_S = 0.007
PENALTY = Sampling(presence_penalty=0.5)


def planned(house: House) -> list[tuple[int, int, int]] | None:
    """The next step as (handle, start, count); None when nothing can be begun."""
    step = house.schedule()
    if step is None:
        return None
    return [(chunk.sequence.handle, chunk.start, chunk.count) for chunk in step.chunks]


def ids(first: int, count: int) -> list[int]:
    return [(first + i) % VOCAB for i in range(count)]


# ---- the scheduler


def test_a_decode_is_planned_on_an_id_that_is_being_drawn() -> None:
    house = House(steps_ahead=1)
    sequence = house.submit(8, 3)
    assert planned(house) == [(0, 0, 8)]
    assert (sequence.computed, sequence.output_ids) == (0, []), "the runner begins it knowing what is known"
    assert planned(house) == [(0, 8, 1)]
    assert (sequence.computed, sequence.output_ids) == (8, [PENDING_ID])
    with pytest.raises(AssertionError, match="not completed"):
        house.schedule()
    outcome = house.complete()
    assert outcome.tokens == [(sequence, sequence.output_ids[0])]
    assert sequence.output_ids == uninterrupted(sequence)[:1]
    assert planned(house) == [(0, 9, 1)]
    house.complete()
    assert planned(house) is None, "the last id that it may have is being drawn"
    assert [ended.reason for ended in house.complete().ended] == ["length"]
    assert house.scheduler.results.tokens_overrun == 0
    house.check_the_end()


def test_the_next_chunk_of_a_prompt_is_planned_on_the_one_before() -> None:
    house = House(steps_ahead=1, step_tokens_max=12, prefill_tokens_min=4, sequences_max=4)
    house.submit(30, 2)
    assert [planned(house), planned(house)] == [[(0, 0, 12)], [(0, 12, 12)]]
    house.complete()
    assert planned(house) == [(0, 24, 6)]
    house.complete()
    assert planned(house) == [(0, 30, 1)]
    house.run()
    house.check_the_end()


@pytest.mark.parametrize("steps_ahead", [1, 2])
def test_what_is_in_flight_when_a_stop_id_is_found_is_overrun(steps_ahead: int) -> None:
    house = House(steps_ahead=steps_ahead)
    sequence = house.submit(8, 50)
    made = uninterrupted(sequence)
    sequence.stop_ids = frozenset([made[6]])
    house.run()
    assert house.endings() == {"stop": 1}
    assert sequence.output_ids == made[: made.index(made[6]) + 1]
    assert house.scheduler.results.tokens_overrun == steps_ahead
    assert house.scheduler.results.tokens_made == len(sequence.output_ids) + steps_ahead
    assert house.scheduler.results.overrun_s == pytest.approx(0.01 * steps_ahead)
    house.check_the_end()


def test_the_kv_of_an_overrun_is_never_found_again() -> None:
    """The overrun step fills the second page; its ids are known by then, but the request had ended."""
    house = House(steps_ahead=1, page_tokens=4)
    sequence = house.submit(ids(0, 5), 50)
    made = uninterrupted(sequence)
    assert made[2] not in made[:2]
    sequence.stop_ids = frozenset([made[2]])
    house.run()
    assert sequence.output_ids == made[:3]
    again = house.submit([*sequence.prompt_ids, *made[:3], 1, 2], 2)
    house.run()
    assert again.cached_tokens == 4
    house.check_the_end()


def test_a_freed_page_goes_to_the_next_step_while_the_overrun_writes_it() -> None:
    house = House(steps_ahead=1, pages=4, tiers=ONE_TIER)
    sequence = house.submit(8, 8)
    sequence.stop_ids = frozenset(uninterrupted(sequence)[:2])
    waiting = house.submit(9, 4)
    house.run(1)
    assert house.books[sequence.handle].ending
    assert house.flights
    pages = {page for chunk in house.flights[0].step.chunks for page in chunk.sequence.pages}
    step = house.schedule()
    assert step is not None
    assert [chunk.sequence for chunk in step.chunks] == [waiting]
    assert pages <= set(waiting.pages), "the one's pages were freed, the other needs three of four"
    house.run()
    house.check_the_end()


def test_a_penalised_request_decodes_in_every_step() -> None:
    house = House(steps_ahead=1)
    house.submit(8, 5, sampling=PENALTY)
    house.submit(8, 5)
    steps = [planned(house), planned(house)]
    while house.flights:
        house.complete()
        steps.append(planned(house))
    handles = [[handle for handle, _, _ in step] for step in steps if step]
    assert handles == [[0, 1]] * 5
    house.check_the_end()


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_a_skipped_draw_computes_the_same_position_again(steps_ahead: int) -> None:
    """Of a prompt's last chunk, and of a decode; the neighbour misses no step."""
    house = House(steps_ahead=steps_ahead)
    guided, other = house.submit(8, 3), house.submit(8, 5)
    steps = []
    while house.flights or house.live():
        while len(house.flights) <= steps_ahead and (step := planned(house)):
            steps.append(step)
            if len(steps) in (1, 3):
                house.skip(guided.handle)
        house.complete()
    assert [start for step in steps for handle, start, _ in step if handle == 0] == [0, 7, 8, 8, 9]
    assert [start for step in steps for handle, start, _ in step if handle == 1] == [0, 8, 9, 10, 11]
    assert (guided.output_ids, other.output_ids) == (uninterrupted(guided), uninterrupted(other))
    assert (guided.recomputed_tokens, house.scheduler.results.tokens_overrun) == (0, 0)
    house.check_the_end()


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_a_request_ends_after_three_skipped_draws_and_a_second(steps_ahead: int) -> None:
    house = House(steps_ahead=steps_ahead)
    guided, other = house.submit(8, 20), house.submit(8, 20)
    skipped = 0
    while not house.books[guided.handle].ending:
        while len(house.flights) <= steps_ahead and house.schedule():
            # Two, an id, and three.
            if house.steps + len(house.flights) != 3:
                house.skip(guided.handle)
                skipped += 1
        ended = house.complete(0.6).ended
    assert [(end.sequence, end.reason) for end in ended] == [(guided, "error")]
    assert ended[0].message == SKIPS_MESSAGE
    assert (len(guided.output_ids), skipped) == (1, 2 + MASK_SKIPS_MAX + steps_ahead)
    house.run()
    assert other.output_ids == uninterrupted(other)
    house.check_the_end()


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_a_mask_that_is_late_for_many_quick_steps_ends_no_request(steps_ahead: int) -> None:
    house = House(steps_ahead=steps_ahead)
    guided, other = house.submit(8, 4), house.submit(8, 60)
    late = round(0.9 * MASK_LATE_S / 0.02)
    for _ in range(late):
        while len(house.flights) <= steps_ahead and house.schedule():
            house.skip(guided.handle)
        house.complete(0.02)
    house.run()
    assert (guided.output_ids, other.output_ids) == (uninterrupted(guided), uninterrupted(other))
    house.check_the_end()


def test_a_skipped_draw_survives_a_preemption_and_an_abort() -> None:
    house = House(steps_ahead=1, sequences_max=1)
    low = house.submit(8, 6, tier="batch")
    house.run(1)
    house.skip(low.handle)
    high = house.submit(8, 4, tier="premium")
    assert planned(house) == [(high.handle, 0, 8)]
    assert (low.preemptions, len(low.output_ids)) == (1, 1)
    house.run()
    assert (low.output_ids, high.output_ids) == (uninterrupted(low), uninterrupted(high))
    gone = house.submit(8, 6)
    house.schedule()
    house.skip(gone.handle)
    house.abort(gone)
    assert [ended.reason for ended in house.complete().ended] == ["aborted"]
    assert gone.output_ids == []
    house.check_the_end()


def preempted_in_flight(max_tokens: int) -> tuple[House, Sequence, Sequence]:
    """A batch request that a premium one throws out of the only place while the id after its first is drawn."""
    house = House(steps_ahead=1, sequences_max=1)
    low = house.submit(8, max_tokens, tier="batch")
    house.run(1)  # the second step is in flight
    high = house.submit(8, 4, tier="premium")
    assert planned(house) == [(high.handle, 0, 8)]
    assert (low.preemptions, low.pages, low.computed) == (1, [], 0)
    assert low.output_ids[1:] == [PENDING_ID]
    return house, low, high


def test_a_pending_id_comes_to_who_was_preempted_meanwhile() -> None:
    house, low, _ = preempted_in_flight(6)
    outcome = house.complete()
    assert [sequence for sequence, _ in outcome.tokens] == [low]
    assert low.output_ids == uninterrupted(low)[:2]
    assert house.scheduler.waiting()["batch"] == 1
    house.run()
    assert low.output_ids == uninterrupted(low)
    assert low.recomputed_tokens == 1, "of 9 tokens, 8 lay in full pages that were found again"
    house.check_the_end()


def test_who_was_preempted_may_end_while_it_waits() -> None:
    house, low, _ = preempted_in_flight(2)
    assert [(ended.sequence, ended.reason) for ended in house.complete().ended] == [(low, "length")]
    assert house.scheduler.waiting()["batch"] == 0
    house.run()
    house.check_the_end()


def test_who_was_preempted_and_aborted_in_flight_ends_while_it_waits() -> None:
    house, low, _ = preempted_in_flight(6)
    house.abort(low)
    assert house.books[low.handle].ending is None
    assert [(ended.sequence, ended.reason) for ended in house.complete().ended] == [(low, "aborted")]
    assert len(low.output_ids) == 2
    house.run()
    house.check_the_end()


def test_who_was_preempted_joins_again_only_when_its_ids_are_known() -> None:
    """There is room at once, as the one for whom it went ends with its first step."""
    house = House(steps_ahead=2, sequences_max=1)
    low = house.submit(8, 6, tier="batch")
    house.schedule()
    house.submit(8, 1, tier="premium")
    assert planned(house) == [(1, 0, 8)]
    house.abort(house.books[1].sequence)
    assert low.preemptions == 1
    assert planned(house) is None, "its first id is still being drawn"
    house.run()
    assert low.output_ids == uninterrupted(low)
    house.check_the_end()


def test_an_abort_in_flight_ends_with_the_oldest_step() -> None:
    house = House(steps_ahead=1)
    sequence = house.submit(8, 20)
    house.schedule()
    house.schedule()
    house.abort(sequence)
    assert [ended.reason for ended in house.complete().ended] == ["aborted"]
    assert len(sequence.output_ids) == 1
    assert house.complete().tokens == []
    assert house.scheduler.results.tokens_overrun == 1
    house.check_the_end()


def test_who_is_aborted_in_flight_is_not_planned_again() -> None:
    house = House(steps_ahead=1)
    first, second = house.submit(8, 20), house.submit(8, 20)
    house.schedule()
    house.abort(first)
    assert planned(house) == [(second.handle, 8, 1)]
    house.complete()
    assert house.endings() == {"aborted": 1}
    house.run()
    house.check_the_end()


def test_the_chunk_after_one_that_failed_is_dropped() -> None:
    house = House(steps_ahead=1)
    bad, good = house.submit(8, 5), house.submit(8, 5)
    house.schedule()
    house.schedule()
    outcome = house.complete(errors={0: "not a number"})
    assert [(ended.sequence, ended.reason) for ended in outcome.ended] == [(bad, "error")]
    assert (bad.output_ids, house.scheduler.results.tokens_made) == ([], 1)
    outcome = house.complete(errors={0: "of course"})
    assert outcome.ended == []
    assert [sequence for sequence, _ in outcome.tokens] == [good]
    assert house.scheduler.results.tokens_overrun == 0, "the second failed too, and made nothing"
    house.run()
    assert house.submit(list(bad.prompt_ids), 1).cached_tokens == 0, "its pages may hold anything"
    house.run()
    house.check_the_end()


def test_a_step_that_fails_ends_its_requests_and_no_others() -> None:
    house = House(steps_ahead=1)
    first, second = house.submit(8, 5), house.submit(8, 5)
    house.schedule()
    late = house.submit(8, 5)
    house.schedule()
    outcome = house.complete(errors={0: "the step failed", 1: "the step failed"})
    assert [ended.sequence for ended in outcome.ended] == [first, second]
    assert [sequence for sequence, _ in house.complete().tokens] == [late]
    assert house.scheduler.results.tokens_overrun == 2
    house.run()
    assert late.output_ids == uninterrupted(late)
    house.check_the_end()


def test_an_adapter_that_an_overrun_reads_is_not_removed() -> None:
    house = House(steps_ahead=1, adapters={"a": ("base", 6)})
    sequence = house.submit(8, 9, adapter="a")
    sequence.stop_ids = frozenset(uninterrupted(sequence)[:1])
    house.run(1)
    assert house.endings() == {"stop": 1}
    assert house.scheduler.is_adapter_in_flight("a")
    with pytest.raises(AssertionError, match="in use by a step"):
        house.scheduler.remove_adapter("a")
    house.complete()
    assert not house.scheduler.is_adapter_in_flight("a")
    house.scheduler.remove_adapter("a")
    house.check_the_end()


def test_an_adapter_is_evicted_for_another_while_a_step_reads_it() -> None:
    """In order with the steps: the one in flight has read it."""
    tiers = (Tier(name="premium", service_tier="p"), Tier(name="batch", service_tier="b"))
    house = House(steps_ahead=1, pages=10, tiers=tiers, adapters=dict.fromkeys("ab", ("base", 16)))
    low = house.submit(8, 8, adapter="a", tier="batch")
    house.run(2)
    assert house.flights
    high = house.submit(12, 4, adapter="b", tier="premium")
    assert planned(house) == [(high.handle, 0, 12)]
    assert house.table.resident() == ["b"]
    assert low.preemptions == 1
    house.run()
    house.check_the_end()


def test_models_take_turns_in_flight() -> None:
    house = House(models=("base", "other"), steps_ahead=1)
    for model in ("base", "other"):
        house.submit(8, 6, model=model)
    models = []
    while house.flights or house.live():
        while len(house.flights) < 2 and (step := house.schedule()):
            models.append(step.model)
        house.complete()
    assert models == ["base", "other"] * 6
    house.check_the_end()


# ---- the loop


class Recorded(FakeRunner):
    """Notes what the loop does, in order, on a clock on which nothing takes time but steps, of STEP_S each. `refuses`:
    the number of the step that it does not begin."""

    def __init__(self, steps_ahead: int, refuses: int | None = None, **fake: Any) -> None:
        self.clock = Clock()
        config = FakeConfig(step_ms=STEP_S * 1000, prefill_ms_per_1k_tokens=0.0, steps_ahead=steps_ahead, **fake)
        super().__init__([fake_model(ModelConfig(name="m"), config)], config, self._pass, self.clock)
        self.notes: list[str] = []
        self._refuses = refuses
        self._numbers: dict[FakePending, int] = {}

    def _pass(self, seconds: float) -> None:
        self.clock.now += seconds

    def begin_step(self, step: Step) -> FakePending:
        self.notes.append(f"begin {step.number}")
        if step.number == self._refuses:
            raise RuntimeError("out of memory")
        pending = super().begin_step(step)
        self._numbers[pending] = step.number
        return pending

    def draw_step(self, pending: FakePending, masks: Masks) -> StepResult | RuntimeError:
        self.notes.append(f"draw {self._numbers[pending]}")
        return super().draw_step(pending, masks)

    def finish_step(self, pending: FakePending) -> None:
        super().finish_step(pending)
        self.notes.append(f"result {self._numbers[pending]}")

    def unload_adapter(self, digest: str) -> None:
        self.notes.append("unload")
        super().unload_adapter(digest)


class MadeMasks(StepMasks):
    """Masks by a function. `notes` learn that those of a step were begun."""

    def __init__(self, make: Callable[[Step], Masks | None], notes: list[str]) -> None:
        self._make, self._notes = make, notes
        self._step: Step | None = None
        self.waits_s: list[float | None] = []  # by step

    def begin_masks(self, step: Step) -> bool:
        assert self._step is None, "the masks before were not taken"
        self._step = step
        self._notes.append(f"masks {step.number}")
        return True

    def take_masks(self, wait_s: float | None, is_forward_done: Callable[[], bool] | None = None) -> Masks | None:
        assert self._step is not None
        step, self._step = self._step, None
        self.waits_s.append(wait_s)
        return self._make(step)


class Loop:
    """The worker in this process. `when` sees every frame, may send more, and ends the loop."""

    def __init__(
        self,
        runner: Recorded,
        when: Callable[[Loop, FromEngine], None],
        masks: Callable[[Step], Masks | None] | None = None,
        **limits: Any,
    ) -> None:
        self.runner = runner
        self.inbox = Inbox()
        self.frames: list[FromEngine] = []
        self._when = when
        self.masks = None if masks is None else MadeMasks(masks, runner.notes)
        info = runner.models["m"]
        self.hello = Hello(PROTOCOL_VERSION, "epoch", [info], [tier.name for tier in SHIPPED_TIERS])
        model = ModelLimits(info.context_tokens, info.tokens_per_page, info.digest, info.vocab_size)
        self.scheduler = Scheduler(
            SHIPPED_TIERS,
            {"m": model},
            Arena(runner.pages, runner.page_bytes),
            runner.adapters,
            runner.clock,
            steps_ahead=runner.steps_ahead,
            **limits,
        )

    def send(self, *frames: ToEngine, gateway: int = 1) -> None:
        for frame in frames:
            self.inbox.receive(gateway, frame, 0.0, 100)

    def submit(self, handle: int, **changes: Any) -> Submit:
        fields: dict[str, Any] = {
            "handle": handle,
            "request_id": f"req_{handle}",
            "epoch": "epoch",
            "model": "m",
            "adapter": None,
            "namespace": "ns",
            "tier": "standard",
            "share": "share",
            "prompt_ids": [300 + handle] * 20,
            "max_tokens": 6,
            "sampling": Sampling(temperature=0.0),
            "stop_ids": [],
        }
        return Submit(**(fields | changes))

    def stop(self) -> None:
        self.inbox.put(Stop("the test is done"))

    def run(self) -> None:
        worker = EngineLoop(
            hello=self.hello,
            scheduler=self.scheduler,
            runner=self.runner,
            inbox=self.inbox,
            progress=LoopProgress(),
            send=self._take,
            masks=self.masks,
            clock=self.runner.clock,
        )
        worker.run()
        self.scheduler.check_integrity()

    def _take(self, batch: list[OutgoingFrames]) -> None:
        for outgoing in batch:
            for frame in map(decode_from_engine, FrameReader().feed(outgoing.data)):
                self.frames.append(frame)
                self._when(self, frame)

    def ids(self) -> dict[int, list[int]]:
        made: dict[int, list[int]] = {}
        for frame in self.frames:
            if isinstance(frame, Tokens):
                for handle, token in zip(frame.handles, frame.ids, strict=True):
                    made.setdefault(handle, []).append(token)
        return made

    def endings(self) -> dict[int, Finished]:
        return {frame.handle: frame for frame in self.frames if isinstance(frame, Finished)}


def stop_after(endings: int) -> Callable[[Loop, FromEngine], None]:
    def when(loop: Loop, _: FromEngine) -> None:
        if len(loop.endings()) == endings:
            loop.stop()

    return when


def test_the_next_step_is_begun_before_the_result_is_taken() -> None:
    loop = Loop(Recorded(steps_ahead=1), stop_after(1))
    loop.send(loop.submit(1, max_tokens=5))
    loop.run()
    ahead = [f"{what} {n + later}" for n in (1, 2, 3, 4) for what, later in (("begin", 1), ("result", 0), ("draw", 1))]
    assert loop.runner.notes == ["begin 1", "draw 1", *ahead, "result 5"]


def test_ids_are_known_when_the_masks_of_the_next_step_are_made() -> None:
    """Masks are asked for once a step, between its forward and its draw; a skipped row repeats its position."""

    def masks(step: Step) -> Masks | None:
        (chunk,) = step.chunks
        seen.append((step.number, chunk.start, list(chunk.sequence.output_ids)))
        return Masks(skip=frozenset([0])) if step.number == 3 else None

    seen: list[tuple[int, int, list[int]]] = []
    loop = Loop(Recorded(steps_ahead=1), stop_after(1), masks=masks)
    loop.send(loop.submit(1, max_tokens=5))
    loop.run()
    made = loop.ids()[1]
    assert seen == [(1, 0, []), *[(n, 18 + n - (n > 3), made[: n - 1 - (n > 3)]) for n in (2, 3, 4, 5, 6)]]
    assert loop.endings()[1].reason == "length"
    plain = Loop(Recorded(steps_ahead=1), stop_after(1))
    plain.send(plain.submit(1, max_tokens=5))
    plain.run()
    assert plain.ids()[1] == made


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_no_frame_waits_for_a_mask(steps_ahead: int) -> None:
    """The frames of a step are sent while the masks of the next are computed."""

    def when(loop: Loop, frame: FromEngine) -> None:
        if isinstance(frame, Tokens):
            loop.runner.notes.append(f"frame {frame.step}")
        stop_after(1)(loop, frame)

    loop = Loop(Recorded(steps_ahead=steps_ahead), when, masks=lambda _: None)
    loop.send(loop.submit(1, max_tokens=3))
    loop.run()
    assert loop.masks is not None
    if steps_ahead:
        ahead = [f"{what} {n + later}" for n in (1, 2) for what, later in
                 (("begin", 1), ("result", 0), ("masks", 1), ("frame", 0), ("draw", 1))]  # fmt: skip
        assert loop.runner.notes == ["begin 1", "masks 1", "draw 1", *ahead, "result 3", "frame 3"]
    else:
        expected = [f"{what} {n}" for n in (1, 2, 3) for what in ("begin", "masks", "draw", "result", "frame")]
        assert loop.runner.notes == expected
    assert [wait_s is not None for wait_s in loop.masks.waits_s] == [bool(steps_ahead)] * 3


def test_a_draw_that_raises_ends_its_step_alone() -> None:
    def masks(step: Step) -> Masks | None:
        if step.number == 2:
            raise ValueError("made to fail")
        return None

    def when(loop: Loop, frame: FromEngine) -> None:
        if isinstance(frame, Finished) and frame.handle == 1:
            loop.send(loop.submit(2, max_tokens=2))
        elif isinstance(frame, Finished):
            loop.stop()

    loop = Loop(Recorded(steps_ahead=1), when, masks=masks)
    loop.send(loop.submit(1))
    loop.run()
    assert loop.endings()[1].message == "the step failed: ValueError: made to fail"
    assert (len(loop.ids()[1]), loop.endings()[2].reason) == (1, "length")


def test_without_steps_ahead_every_result_is_taken_first() -> None:
    loop = Loop(Recorded(steps_ahead=0), stop_after(1))
    loop.send(loop.submit(1, max_tokens=3))
    loop.run()
    assert loop.runner.notes == [f"{what} {n}" for n in (1, 2, 3) for what in ("begin", "draw", "result")]


def test_the_fakes_device_computes_one_step_after_another() -> None:
    clock = Clock()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(round(seconds * 1000, 6))
        clock.now += seconds

    config = FakeConfig(step_ms=7.0, steps_ahead=1)
    runner = FakeRunner([fake_model(ModelConfig(name="m"), config)], config, sleep, clock)
    first = runner.begin_step(Step(1, "m", []))
    with pytest.raises(AssertionError, match="not drawn"):
        runner.begin_step(Step(2, "m", []))
    first.draw(None)
    clock.now += 0.002
    second = runner.begin_step(Step(2, "m", []))
    with pytest.raises(AssertionError, match="too many"):
        runner.begin_step(Step(3, "m", []))
    with pytest.raises(AssertionError, match="not completed"):
        second.draw(None)
    clock.now += 0.001  # what the loop does beside it
    first.result()
    second.draw(None)
    second.result()
    assert slept == [4, 7], "14 ms for two steps, of which the host used 3"
    run_step(runner, Step(3, "m", []))
    assert slept[2:] == [7], "an idle device begins at once"


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling(seed=7, logprobs=2), PENALTY])
def test_the_same_ids_step_after_step_and_ahead(sampling: Sampling) -> None:
    """Also of those that are thrown out by who comes later."""

    def run(steps_ahead: int) -> tuple[dict[int, list[int]], list[str]]:
        def when(loop: Loop, frame: FromEngine) -> None:
            if len(loop.frames) == 1:
                submit(loop, "premium", range(6, 12))
            elif len(loop.endings()) == 12:
                loop.stop()

        def submit(loop: Loop, tier: str, handles: range) -> None:
            for handle in handles:
                stops = [2] if handle % 2 else []
                loop.send(loop.submit(handle, max_tokens=14, tier=tier, stop_ids=stops, sampling=sampling))

        runner = Recorded(steps_ahead, stop_after=9, tokens_per_page=4, pages=60)
        loop = Loop(runner, when, sequences_max=8)
        submit(loop, "batch", range(6))
        loop.run()
        assert loop.scheduler.preemptions
        assert loop.scheduler.results.tokens_overrun == (6 if steps_ahead else 0)
        asked = sampling.logprobs >= 0
        reported = [len(frame.logprobs or ()) for frame in loop.frames if isinstance(frame, Tokens)]
        assert sum(reported) == (sum(map(len, loop.ids().values())) if asked else 0)
        return loop.ids(), [loop.endings()[handle].reason for handle in range(12)]

    made, reasons = run(0)
    assert (made, reasons) == run(1)
    assert reasons == ["length", "stop"] * 6
    assert [len(made[handle]) for handle in range(12)] == [14, 9] * 6


def test_a_step_takes_from_when_the_one_before_was_done() -> None:
    loop = Loop(Recorded(steps_ahead=1, stop_after=4), stop_after(2))
    loop.send(loop.submit(1, max_tokens=9), loop.submit(2, stop_ids=[2], max_tokens=9))
    loop.run()
    usages = [loop.endings()[handle].usage for handle in (1, 2)]
    assert [usage.completion_tokens for usage in usages] == [9, 4]
    assert usages[0].ttft_s == pytest.approx(STEP_S)
    assert loop.runner.clock.now == pytest.approx(9 * STEP_S)
    # Together in steps 1 to 4, and the second overruns in step 5: half of it is nobody's.
    assert usages[1].device_s == pytest.approx(2 * STEP_S)
    assert usages[0].device_s == pytest.approx((2 + 0.5 + 4) * STEP_S)
    assert loop.scheduler.results.overrun_s == pytest.approx(0.5 * STEP_S)


def test_a_chunk_that_fails_again_in_the_next_step_is_counted_once() -> None:
    def when(loop: Loop, frame: FromEngine) -> None:
        if isinstance(frame, Tokens) and frame.step == 3:
            loop.send(Status())
        elif isinstance(frame, StatusReport):
            reports.append(frame)
            loop.stop()

    reports: list[StatusReport] = []
    loop = Loop(Recorded(steps_ahead=1, faults=FakeFaults(chunk_error_id=301)), when)
    loop.send(loop.submit(1), loop.submit(2, max_tokens=50))
    loop.run()
    assert (loop.endings()[1].reason, loop.endings()[1].message) == ("error", "the chunk was made to fail")
    assert b"laneway_chunk_errors_total 1.0\n" in reports[0].metrics
    assert b"laneway_step_errors_total 0.0\n" in reports[0].metrics


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_a_request_whose_scheduling_raises_ends_alone_and_is_counted(steps_ahead: int) -> None:
    def when(loop: Loop, frame: FromEngine) -> None:
        if isinstance(frame, StatusReport):
            reports.append(frame)
            loop.stop()
        elif len(loop.endings()) == 2:
            loop.send(Status())

    reports: list[StatusReport] = []
    loop = Loop(Recorded(steps_ahead=steps_ahead), when)
    grow = loop.scheduler._capacity.grow_entry

    def fails(entry: Entry) -> bool:
        assert entry.sequence.handle != 1, "made to fail"
        return grow(entry)

    loop.scheduler._capacity.grow_entry = fails  # type: ignore[method-assign]
    loop.send(loop.submit(1, max_tokens=50), loop.submit(2, max_tokens=50))
    loop.run()
    first, second = loop.endings()[1], loop.endings()[2]
    assert (first.reason, first.message) == ("error", "internal error: AssertionError")
    assert (second.reason, second.usage.completion_tokens) == ("length", 50)
    assert b"laneway_scheduling_errors_total 1.0\n" in reports[0].metrics
    made = first.usage.completion_tokens + second.usage.completion_tokens
    assert reports[0].tokens_made == made + reports[0].tokens_overrun
    assert 0 < first.usage.completion_tokens == len(loop.ids()[1])


def test_what_is_in_flight_when_the_engine_stops_is_completed_first() -> None:
    loop = Loop(Recorded(steps_ahead=1), lambda loop, frame: loop.stop() if isinstance(frame, Tokens) else None)
    loop.send(loop.submit(1, max_tokens=50))
    loop.run()
    ending = loop.endings()[1]
    assert (ending.reason, ending.message) == ("error", "the engine is shutting down")
    assert loop.runner.notes == ["begin 1", "draw 1", "begin 2", "result 1", "draw 2", "result 2"]
    assert ending.usage.completion_tokens == len(loop.ids()[1]) == loop.scheduler.results.tokens_made == 2


def test_nothing_is_begun_on_top_of_a_step_that_was_not() -> None:
    def when(loop: Loop, frame: FromEngine) -> None:
        if isinstance(frame, Finished) and frame.handle == 1:
            loop.send(loop.submit(2, max_tokens=2))
        elif isinstance(frame, Finished):
            loop.stop()

    loop = Loop(Recorded(steps_ahead=1, refuses=3), when)
    loop.send(loop.submit(1))
    loop.run()
    failed = loop.endings()[1]
    assert (failed.reason, failed.message) == ("error", "the step failed: RuntimeError: out of memory")
    assert failed.usage.completion_tokens == len(loop.ids()[1]) == 2
    notes = loop.runner.notes
    assert notes[:7] == ["begin 1", "draw 1", "begin 2", "result 1", "draw 2", "begin 3", "result 2"]
    assert notes[7:] == ["begin 4", "draw 4", "begin 5", "result 4", "draw 5", "result 5"]
    assert loop.endings()[2].reason == "length"


def test_an_adapter_is_forgotten_after_the_last_step_that_reads_it() -> None:
    def when(loop: Loop, frame: FromEngine) -> None:
        match frame:
            case AdapterState(state="loaded"):
                loop.send(loop.submit(1, adapter=digest, max_tokens=50, stop_ids=[2]))
            case Tokens():
                loop.send(UnloadAdapter(digest))
            case AdapterState():
                loop.stop()

    digest = "a" * 64
    loop = Loop(Recorded(steps_ahead=1, stop_after=2), when)
    loop.send(LoadAdapter(digest, "m", "/nowhere"))
    loop.run()
    # The second id is the stop id; the third step was in flight by then.
    notes = loop.runner.notes
    first = ["begin 1", "draw 1", "begin 2", "result 1", "draw 2"]
    assert notes == [*first, "begin 3", "result 2", "draw 3", "result 3", "unload"]
    assert isinstance(loop.frames[-1], AdapterState)
    assert (loop.frames[-1].state, loop.runner.adapters.resident()) == ("unloaded", [])
    assert loop.endings()[1].usage.completion_tokens == 2


def test_what_was_in_flight_for_a_dead_gateway_is_lost_or_overrun_to_the_token() -> None:
    reports: list[StatusReport] = []

    def when(loop: Loop, frame: FromEngine) -> None:
        match frame:
            case Tokens() if len(loop.ids().get(1, ())) == 3:
                loop.inbox.put(GatewayDisconnected(1))
                loop.send(Status(), loop.submit(1, max_tokens=2), gateway=2)
            case StatusReport():
                reports.append(frame)
            case Finished():
                loop.stop()

    # One ends by its stop id in the very steps that are in flight when the gateway is found to be gone.
    loop = Loop(Recorded(steps_ahead=1, stop_after=4), when)
    loop.send(loop.submit(1, max_tokens=50), loop.submit(2, max_tokens=50, stop_ids=[2]))
    loop.run()
    (report,) = reports
    counted = dict(
        line.split(" ") for line in report.metrics.decode().splitlines() if line.startswith("laneway_tokens")
    )
    lost, overrun = float(counted["laneway_tokens_lost_total"]), float(counted["laneway_tokens_overrun_total"])
    assert (lost, overrun) == (8, 0)
    assert report.tokens_made == lost + overrun
    assert report.running == 0
    assert list(loop.endings()) == [1]
