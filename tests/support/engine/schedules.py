"""Random schedules for the scheduler: tiers, floors, pins, adapters and models with random requests, each audited by
scheduler_auditor.House. Also played by hand, from a test's own Schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from engine.protocol.frames import Sampling
from engine.protocol.tiers import Tier
from engine.step import Sequence
from support.engine.scheduler_auditor import STOP_ID, VOCAB, House

MODELS = ("base", "other")
WEIGHTS = {"base": 2, "other": 2, "late": 3}
NAMES = ("a", "b", "c", "d")  # names of tiers, high to low, and of adapters
# Where the scheduling of one request can raise: an attribute of the scheduler, and a method.
PLACES: dict[str, Callable[[House], tuple[Any, str]]] = {
    "allocate": lambda house: (house.arena, "allocate"),
    "match": lambda house: (house.scheduler.prefix, "match"),
    "publish": lambda house: (house.scheduler.prefix, "publish"),
    "adapter ready": lambda house: (house.scheduler.residency, "is_adapter_ready"),
    "adapter placed": lambda house: (house.scheduler.residency, "acquire_adapter"),
    "adapter waited for": lambda house: (house.scheduler.residency, "add_waiting"),
    "adapter waited for no more": lambda house: (house.scheduler.residency, "remove_waiting"),
    "copy out": lambda house: (house.slots, "copy_out"),
    "copy in": lambda house: (house.slots, "copy_in"),
    "make room": lambda house: (house.scheduler._capacity, "_evict_for_entry"),
    "grow": lambda house: (house.scheduler._capacity, "grow_entry"),
    "joined": lambda house: (house.scheduler._queues[0], "note_joined"),
    "left": lambda house: (house.scheduler._queues[-1], "remove_ended"),
    "put back": lambda house: (house.scheduler._queues[-1], "requeue"),
    "charge": lambda house: (house.scheduler._queues[0], "charge"),
    "prefill": lambda house: (house.scheduler._planner, "_plan_prefill"),
}


class Planted(Exception):
    """Raised by a Trap."""


class Trap:
    """A method that raises at its `nth` call, before or after it did its work."""

    def __init__(self, owner: Any, name: str, nth: int, error: Exception | None = None, *, after: bool = False) -> None:
        self.calls = 0
        self._method, self._nth, self._error, self._after = getattr(owner, name), nth, error or Planted(), after
        setattr(owner, name, self)

    @property
    def sprung(self) -> bool:
        return self.calls >= self._nth

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls != self._nth:
            return self._method(*args, **named)
        if self._after:
            self._method(*args, **named)
        raise self._error


@dataclass(frozen=True)
class Ask:
    tokens: int  # of the prompt; together with max_tokens at most what the tier can have of the arena
    shared: int  # leading tokens that all prompts of a namespace have in common
    max_tokens: int
    tier: int
    share: str
    namespace: str
    adapter: int  # by number; without an adapter of that number: none
    model: str
    stops: bool
    penalty: float  # not 0: an id can be drawn only when all earlier ids are known
    resumed: int = 0  # ids of its output that another engine made


@dataclass(frozen=True)
class Do:
    """Any action other than a request; `which` selects its object, if it has an object."""

    what: str
    which: int


@dataclass(frozen=True, kw_only=True)
class Schedule:
    tiers: tuple[Tier, ...]
    pages: int
    sequences_max: int = 8
    prefill: int = 1
    step_tokens: int = 0  # in addition to sequences_max and prefill
    steps_ahead: int = 0
    host_slots: int = 0
    adapters: tuple[tuple[str, int], ...] = ()  # model, tiles
    adapter_polls: int = 0
    adapter_places: int = 1000
    weights_max: int = 0  # 0: all models stay on the device
    residence_s: float = 1.0
    trap: tuple[str, int] | None = None  # code location and call at which one request's scheduling raises
    actions: tuple[Ask | Do, ...]


@st.composite
def tier_sets(draw: st.DrawFn) -> tuple[Tier, ...]:
    count, left, tiers = draw(st.sampled_from([1, 2, 2, 3, 3, 4])), 1.0, []
    for rank in range(count):
        floor = min(left, draw(st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 1.0])))
        left = round(left - floor, 6)
        tiers.append(
            Tier(
                name=NAMES[rank],
                service_tier=NAMES[rank],
                floor=floor,
                preemptible=draw(st.sampled_from([True, True, False]))
                if rank
                else draw(st.sampled_from([False, False, True])),
                preemptions_max=draw(st.sampled_from([1, 1, 2, 3])),
                queue_max=draw(st.sampled_from([2, 256, 256, 256])),
                ageing_s=draw(st.sampled_from([0.05, 60.0])),
                inter_token_ms=draw(st.sampled_from([10.0, 100.0, 100_000.0])),
                crowd_part=draw(st.sampled_from([0.25, 1.0])),
            )
        )
    return tuple(tiers)


asks = st.builds(
    Ask,
    tokens=st.integers(1, 24) | st.integers(1, 120),
    shared=st.sampled_from([0, 0, 9, 20]),
    max_tokens=st.integers(1, 24) | st.integers(8, 100),
    tier=st.integers(0, 3),
    share=st.sampled_from("xyz"),
    namespace=st.sampled_from(["n1", "n2"]),
    adapter=st.integers(0, 7),
    model=st.sampled_from(["base"] * 7 + ["other"] * 2 + ["late"]),
    stops=st.sampled_from([False, False, True]),
    penalty=st.sampled_from([0.0, 0.0, 0.5]),
    resumed=st.sampled_from([0, 0, 0, 1, 4, 30]),
)
OFTEN = {"run": 14, "squeeze": 8, "wanted": 3, "abort": 2, "pin": 2}
SELDOM = ["fails", "midway", "unpin", "unload", "breaks", "heals", "adds", "forgets", "idles"]
SELDOM += ["pins_model", "unpins_model", "breaks_model", "heals_model"]
does = st.builds(
    Do,
    what=st.sampled_from([what for what, times in OFTEN.items() for _ in range(times)] + SELDOM),
    which=st.integers(0, 11),
)
schedules = st.builds(
    Schedule,
    tiers=tier_sets(),
    pages=st.integers(8, 60),
    sequences_max=st.integers(1, 12),
    prefill=st.integers(1, 32),
    step_tokens=st.sampled_from([0, 0, 8, 160]),
    steps_ahead=st.integers(0, 2),
    host_slots=st.sampled_from([0, 0, 4, 40]),
    adapters=st.lists(st.tuples(st.sampled_from(["base", "base", "other"]), st.integers(1, 40)), max_size=6).map(tuple),
    adapter_polls=st.sampled_from([0, 0, 1, 3]),
    adapter_places=st.sampled_from([1, 2, 1000, 1000]),
    weights_max=st.sampled_from([0, 0, 0, 2, 3, 4, 5]),
    residence_s=st.sampled_from([0.0, 0.05, 1.0]),
    trap=st.none() | st.none() | st.tuples(st.sampled_from([*PLACES]), st.integers(1, 30)),
    # All lengths equally likely: hypothesis prefers short lists, in which no request is preempted twice.
    actions=st.integers(1, 60).flatmap(lambda n: st.lists(asks | asks | does, min_size=n, max_size=n)).map(tuple),
)


def play(schedule: Schedule) -> House:
    """Run a schedule to its end and audit it. Raises AssertionError, or what the scheduler raised."""
    adapters = {f"adapter{number}": adapter for number, adapter in enumerate(schedule.adapters)}
    house = House(
        tiers=schedule.tiers,
        models=MODELS,
        pages=schedule.pages,
        adapters=adapters,
        sequences_max=schedule.sequences_max,
        prefill_tokens_min=schedule.prefill,
        step_tokens_max=schedule.sequences_max + schedule.prefill + schedule.step_tokens,
        steps_ahead=schedule.steps_ahead,
        host_slots=schedule.host_slots,
        adapter_polls=schedule.adapter_polls,
        adapter_places=schedule.adapter_places,
        weights={model: WEIGHTS[model] for model in MODELS} if schedule.weights_max else None,
        weights_max=schedule.weights_max or None,
        load_s=0.02,
        residence_s=schedule.residence_s,
    )
    trap = None
    if schedule.trap:
        house.faults_made = True
        place, nth = schedule.trap
        trap = Trap(*PLACES[place](house), nth)
    for action in schedule.actions:
        if isinstance(action, Ask):
            _ask(house, action, list(adapters))
        else:
            _do(house, action, list(adapters))
        assert house.scheduler.faults.count <= bool(trap and trap.sprung), "a request's scheduling raised: see the log"
    _finish(house, schedule, trap)
    return house


def _finish(house: House, schedule: Schedule, trap: Trap | None) -> None:
    """Run all requests to their ends, then check that no state of them, their adapters and models remains."""
    tokens = sum(s.token_count() + s.max_tokens for s in house.live())
    begun = len(house.flights)
    # Bounded: every step computes something, and the oldest request always progresses.
    steps = house.run(steps=20 * tokens + begun + 1)
    assert steps <= 10 * tokens + begun, f"{steps} steps for {tokens} tokens"
    planted = bool(trap and trap.sprung)
    assert house.scheduler.faults.count == planted, "a request's scheduling raised: see the log"
    house.check_the_end()
    for adapter in house.table.adapters:
        house.unload(adapter)
    assert house.arena.free_pages() + house.scheduler.prefix.idle_pages() == house.arena.pages, "an adapter left a page"
    for model in tuple(house.scheduler.models):
        assert house.forget_model(model)
    assert house.arena.free_pages() == house.arena.pages, "a model left a page"
    assert not house.vault or house.vault.free_bytes() == schedule.weights_max, "a model left its weights"


def _ask(house: House, ask: Ask, adapters: list[str]) -> None:
    adapter = adapters[ask.adapter] if ask.adapter < len(adapters) else None
    rank = ask.tier % len(house.tiers)
    room = house.scheduler._capacity.pages.capacity(rank) - (house.table.pages_alone(adapter) if adapter else 0)
    tokens = max(1, min(ask.tokens, (room * house.page_tokens) // 2))
    max_tokens = max(1, min(ask.max_tokens, room * house.page_tokens + 1 - tokens))
    shared = min(ask.shared, tokens)
    prompt = [i * 5 % VOCAB for i in range(shared)]
    prompt += [(len(house.books) * 31 + i * 7) % VOCAB for i in range(tokens - shared)]
    sequence = house.sequence(
        prompt,
        max_tokens,
        model=house.table.adapters[adapter][0] if adapter else ask.model,
        adapter=adapter,
        tier=house.tiers[rank].name,
        share=ask.share,
        namespace=ask.namespace,
        stop_ids=frozenset([STOP_ID]) if ask.stops else frozenset(),
        sampling=Sampling(presence_penalty=ask.penalty),
    )
    _offer(house, house.resume(sequence, ask.resumed) if ask.resumed else sequence)


def _offer(house: House, sequence: Sequence) -> None:
    try:
        house.offer(sequence)
    except Planted:
        assert (0, sequence.handle) not in house.scheduler._entries
    house.take_displaced()


def _do(house: House, do: Do, adapters: list[str]) -> None:
    match do.what:
        case "run" | "fails":
            _run(house, 1 + do.which, do.which if do.what == "fails" else None)
        case "abort" | "midway":
            if do.what == "midway" and len(house.flights) <= house.steps_ahead:
                house.schedule()
            live = house.live()
            if live:
                house.abort(live[do.which % len(live)])
            if house.flights and not house.steps_ahead:
                house.complete()
        case "pin" | "unpin" | "unload" | "breaks" | "heals":
            if do.which < len(adapters):
                _change(house, adapters[do.which], do.what)
        case "idles":
            house.idle(0.1)
        case "squeeze":  # about all that the highest tier can take now, so that lower tiers are preempted
            pages = house.scheduler._capacity.pages.spare(0, reclaim=True) - do.which % 4
            _offer(house, house.sequence(max(1, pages * 4), 1 + do.which, tier=house.tiers[0].name, namespace="s"))
        case "wanted":  # requests of the highest tier wait for resident adapters
            for adapter in house.table.resident()[: 1 + do.which // 2]:
                model = house.table.adapters[adapter][0]
                _offer(house, house.sequence(8, 1, tier=house.tiers[0].name, model=model, adapter=adapter))
        case _:
            # Most requests are of the first model.
            models = list(WEIGHTS) if do.which < len(WEIGHTS) else list(WEIGHTS)[1:]
            _host(house, models[do.which % len(models)], do.what)


def _run(house: House, steps: int, fault: int | None) -> None:
    for _ in range(steps):
        while len(house.flights) <= house.steps_ahead and house.schedule():
            pass
        if not house.flights:
            house.idle()
            continue
        chunks = len(house.flights[0].step.chunks)
        house.complete(errors={fault: "made to fail"} if fault is not None and fault < chunks else None)


def _change(house: House, adapter: str, what: str) -> None:
    failing = house.table.failing
    known = any(house.scheduler.residency.is_known(adapter, model) for model in house.scheduler.models)
    match what:
        case "breaks":
            failing.add(adapter)
        case "heals":
            failing.discard(adapter)
        case "pin" | "unpin":
            if known:
                house.pin(adapter, what == "pin")
        case "unload":
            users = [sequence for sequence in house.live() if sequence.adapter == adapter]
            if not users and not house.scheduler.is_adapter_in_flight(adapter):
                house.unload(adapter)


def _host(house: House, model: str, what: str) -> None:
    known = model in house.scheduler.models
    failing = house.vault.failing if house.vault else set()
    match what:
        case "adds":
            if not known:
                house.add_model(model, WEIGHTS[model])
        case "forgets":
            if known:
                house.forget_model(model)
        case "pins_model" | "unpins_model":
            if known:
                house.scheduler.pin_model(model, what == "pins_model")
        case "breaks_model":
            failing.add(model)
        case "heals_model":
            failing.discard(model)
