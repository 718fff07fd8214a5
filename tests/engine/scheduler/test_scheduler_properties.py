"""Random schedules against an auditor that keeps its own books: see scheduler_auditor.House for what every step and
every ending is held to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.protocol.frames import Sampling
from engine.protocol.tiers import SHIPPED_TIERS, Tier
from programs.scheduler_search import search
from support.engine.scheduler_auditor import STOP_ID, VOCAB, House
from support.engine.schedules import Schedule, play, schedules

MODELS = ("base", "other")
WEIGHTS = {"base": 2, "other": 2, "late": 3}
ADAPTERS = {"a": ("base", 3), "b": ("base", 6), "c": ("base", 9), "d": ("other", 5)}
# More by LANEWAY_SCHEDULE_EXAMPLES, as after a change of the scheduler.
EXAMPLES = int(os.environ.get("LANEWAY_SCHEDULE_EXAMPLES", "90"))
CHANGES = ["breaks", "heals", "unloads", "pins", "unpins"]
HOSTS = ["adds", "forgets", "pins", "unpins", "breaks", "heals", "idles"]
TIER_SETS = {
    "shipped": SHIPPED_TIERS,
    "no_floors": tuple(
        Tier(name=t.name, service_tier=t.service_tier, preemptible=t.preemptible) for t in SHIPPED_TIERS
    ),
    "rigid": (
        Tier(name="premium", service_tier="priority", floor=0.3, preemptible=False),
        Tier(name="standard", service_tier="default", floor=0.3, preemptible=False),
        Tier(name="batch", service_tier="flex", floor=0.3),
    ),
}


@dataclass(frozen=True)
class Ask:
    prefix: int  # which of a few common beginnings
    prefix_tokens: int
    tail: tuple[int, ...]
    max_tokens: int
    tier: str
    share: str
    namespace: str
    adapter: str | None
    model: str
    stops: bool
    penalty: float  # not 0: an id is drawn only when all before it are known
    resumed: int

    def prompt(self) -> list[int]:
        return [(self.prefix * 31 + i * 5) % VOCAB for i in range(self.prefix_tokens)] + list(self.tail)


@dataclass(frozen=True)
class Abort:
    which: int
    midway: bool  # while a step is being executed


@dataclass(frozen=True)
class Load:
    """From now on an adapter cannot be read, or can again; or it is unloaded, if nothing uses it, or pinned or not."""

    adapter: str
    what: Literal["breaks", "heals", "unloads", "pins", "unpins"]


@dataclass(frozen=True)
class Host:
    """A model is added, retired and forgotten once nothing uses it, pinned or not; or its weights fail to come from now
    on, or no longer; or there is nothing to do for a while."""

    model: str
    what: Literal["adds", "forgets", "pins", "unpins", "breaks", "heals", "idles"]


@dataclass(frozen=True)
class Run:
    steps: int
    fault: int | None  # which chunk fails
    breaks: bool  # with it all others
    skips: frozenset[int]  # indices of sampling chunks whose draws are skipped


asks = st.builds(
    Ask,
    prefix=st.integers(0, 2),
    prefix_tokens=st.integers(0, 24),
    tail=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20).map(tuple),
    max_tokens=st.integers(1, 24),
    tier=st.sampled_from(["premium", "standard", "batch"]),
    share=st.sampled_from("xyz"),
    namespace=st.sampled_from(["n1", "n2"]),
    adapter=st.sampled_from([None, None, *ADAPTERS]),
    model=st.sampled_from(["base", "base", "other", "late"]),
    stops=st.booleans(),
    penalty=st.sampled_from([0.0, 0.0, 0.5]),
    resumed=st.sampled_from([0, 0, 0, 1, 4, 30]),
)
actions = st.one_of(
    asks,
    asks,
    st.builds(Abort, which=st.integers(0, 30), midway=st.booleans()),
    st.builds(Load, adapter=st.sampled_from([*ADAPTERS]), what=st.sampled_from(CHANGES)),
    st.builds(Host, model=st.sampled_from([*WEIGHTS]), what=st.sampled_from(HOSTS)),
    st.builds(
        Run,
        steps=st.integers(1, 6),
        fault=st.none() | st.integers(0, 9),
        breaks=st.booleans(),
        skips=st.sampled_from([frozenset(), frozenset(), frozenset([0]), frozenset([1, 3])]),
    ),
)


def change(house: House, adapter: str, what: str) -> None:
    failing = house.table.failing
    match what:
        case "breaks":
            failing.add(adapter)
        case "heals":
            failing.discard(adapter)
        case "pins" | "unpins":
            house.pin(adapter, what == "pins")
        case "unloads":
            users = [sequence for sequence in house.live() if sequence.adapter == adapter]
            if not users and not house.scheduler.is_adapter_in_flight(adapter):
                house.unload(adapter)


def host(house: House, model: str, what: str) -> None:
    known = model in house.scheduler.models
    failing = house.vault.failing if house.vault else set()
    match what:
        case "adds":
            if not known:
                house.add_model(model, WEIGHTS[model])
        case "forgets":
            if known:
                house.forget_model(model)
        case "pins" | "unpins":
            if known:
                house.scheduler.pin_model(model, what == "pins")
        case "breaks":
            failing.add(model)
        case "heals":
            failing.discard(model)
        case "idles":
            house.idle(0.1)


def perform(house: House, action: Ask | Abort | Load | Host | Run) -> None:
    match action:
        case Host():
            host(house, action.model, action.what)
        case Load():
            change(house, action.adapter, action.what)
        case Ask():
            model = ADAPTERS[action.adapter][0] if action.adapter else action.model
            sequence = house.sequence(
                action.prompt(),
                action.max_tokens,
                model=model,
                adapter=action.adapter,
                tier=action.tier,
                share=action.share,
                namespace=action.namespace,
                stop_ids=frozenset([STOP_ID]) if action.stops else frozenset(),
                sampling=Sampling(presence_penalty=action.penalty),
            )
            house.offer(house.resume(sequence, action.resumed) if action.resumed else sequence)
        case Abort():
            if action.midway and len(house.flights) <= house.steps_ahead:
                house.schedule()
            live = house.live()
            if live:
                house.abort(live[action.which % len(live)])
            if house.flights and not house.steps_ahead:
                house.complete()
        case Run():
            for _ in range(action.steps):
                while len(house.flights) <= house.steps_ahead and (step := house.schedule()):
                    chunks_skipped = [c for i, c in enumerate(step.chunks) if i in action.skips and c.sample]
                    house.skip(*(chunk.sequence.handle for chunk in chunks_skipped))
                if not house.flights:
                    house.idle()
                    continue
                chunks = range(len(house.flights[0].step.chunks))
                failing = chunks if action.breaks else [action.fault]
                errors = {index: "made to fail" for index in failing if index is not None}
                house.complete(errors=errors if action.fault in chunks else None)


@pytest.mark.parametrize("steps_ahead", [0, 1, 2])
@pytest.mark.parametrize("tiers", TIER_SETS)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    actions=st.lists(actions, min_size=1, max_size=40),
    pages=st.integers(12, 60),
    sequences_max=st.integers(1, 8),
    prefill=st.integers(1, 24),
    host_slots=st.sampled_from([0, 2, 8, 40]),
    adapter_polls=st.sampled_from([0, 0, 1, 3]),
    adapter_places=st.sampled_from([1, 2, 1000]),
    weights_max=st.sampled_from([0, 2, 3, 4, 5]),
    residence_s=st.sampled_from([0.0, 0.05, 1.0]),
)
def test_any_schedule_keeps_the_books(
    tiers: str,
    steps_ahead: int,
    actions: list[Ask | Abort | Load | Host | Run],
    pages: int,
    sequences_max: int,
    prefill: int,
    host_slots: int,
    adapter_polls: int,
    adapter_places: int,
    weights_max: int,
    residence_s: float,
) -> None:
    house = House(
        tiers=TIER_SETS[tiers],
        models=MODELS,
        pages=pages,
        adapters=ADAPTERS,
        sequences_max=sequences_max,
        prefill_tokens_min=prefill,
        step_tokens_max=sequences_max + prefill,
        steps_ahead=steps_ahead,
        host_slots=host_slots,
        adapter_polls=adapter_polls,
        adapter_places=adapter_places,
        weights={model: WEIGHTS[model] for model in MODELS} if weights_max else None,
        weights_max=weights_max or None,
        load_s=0.02,
        residence_s=residence_s,
    )
    for action in actions:
        perform(house, action)
    tokens = sum(s.token_count() + s.max_tokens for s in house.live())
    begun = len(house.flights)
    # Every step computes something; preempted work is computed again, but the oldest always gets on.
    steps = house.run(steps=20 * tokens + begun + 1)
    assert steps <= 10 * tokens + begun, f"{steps} steps for {tokens} tokens"
    house.check_the_end()
    for adapter in ADAPTERS:
        house.unload(adapter)
    assert house.arena.free_pages() + house.scheduler.prefix.idle_pages() == house.arena.pages, "an adapter left a page"
    for model in tuple(house.scheduler.models):
        assert house.forget_model(model)
    assert house.arena.free_pages() == house.arena.pages, "a model left a page"
    assert not house.vault or house.vault.free_bytes() == weights_max, "a model left its weights"


@settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=list(HealthCheck))
@given(schedule=schedules)
def test_any_tiers_and_adapters_keep_the_books(schedule: Schedule) -> None:
    """A short run of scheduler_search.py."""
    play(schedule)


def test_a_seed_of_the_search_is_the_same_cases_again() -> None:
    assert search(7, 5) == search(7, 5) >= 5
