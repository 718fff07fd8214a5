"""Probes of resident models on a virtual clock: which model is probed and when, and what a probe must not change."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.protocol.tiers import SHIPPED_TIERS
from engine.simulate.devices import DEVICES
from engine.simulate.traffic import Poisson, Population, Traffic
from engine.simulate.world import World
from engine.step import Step, StepOutcome, StepResult
from support.engine.scheduler_auditor import House

AFTER_S = 10.0
HALF_HOUR_S = 1800.0
MODELS = ("one", "two", "three", "four")


class ProbedHouse(House):
    """Four models, of which two fit on the device."""

    def __init__(self, **settings: Any) -> None:
        fields: dict[str, Any] = {
            "models": MODELS, "weights": dict.fromkeys(MODELS, 1), "weights_max": 2, "load_s": 0.5, "residence_s": 4.0,
        }  # fmt: skip
        super().__init__(**fields | {"probe_after_s": AFTER_S} | settings)

    def answer(self, model: str) -> None:
        """One request of the model, from its arrival to its end."""
        self.submit(8, 4, model=model)
        self.run()

    def probe(self, *, fails: str = "") -> Step | None:
        """Begin and complete the step that is due now, which must be a probe; None: none is due."""
        step = self.scheduler.schedule()
        if step is None:
            return None
        assert [chunk.sequence.request_id for chunk in step.chunks] == ["laneway-probe"]
        result = StepResult([None], {0: fails}) if fails else StepResult([7])
        assert self.scheduler.complete(step, result, 0.01) == StepOutcome(), "no gateway is told of it"
        return step

    def wait(self, seconds: float) -> list[str]:
        """Let time pass on an idle engine. Returns the models that were probed, in order."""
        until, probed = self.clock.now + seconds, []
        while (due_at := self.scheduler.probes.due_at()) is not None and due_at <= until:
            self.clock.now = max(self.clock.now, due_at)
            step = self.probe()
            probed += [step.model] if step else []
        self.clock.now = until
        return probed

    def weights_moved(self) -> tuple[int, int]:
        """Loads and evictions so far."""
        weights = self.scheduler.weight_residency
        return sum(own.loads for own in weights.models.values()), sum(weights.evictions.values())

    def uses(self) -> dict[str, tuple[float, float]]:
        """What an eviction is decided by."""
        weights = self.scheduler.weight_residency.models.values()
        return {own.name: (own.used_at, own.recent_uses(self.clock.now)) for own in weights}


def test_half_an_hour_of_probes_of_four_models_on_room_for_two_loads_and_evicts_nothing() -> None:
    house = ProbedHouse()
    for model in MODELS:
        house.answer(model)
    moved, resident = house.weights_moved(), set(house.scheduler.probes.token_times())
    assert len(resident) == 2
    used_at = {model: at for model, (at, _) in house.uses().items()}
    probed = house.wait(HALF_HOUR_S)
    assert set(probed) == resident
    assert {probed.count(model) for model in resident} == {180}, "each every ten seconds"
    assert house.weights_moved() == moved
    assert {model: at for model, (at, _) in house.uses().items()} == used_at, "a probe is no use of the weights"
    times = house.scheduler.probes.token_times()
    assert all(house.clock.now - own.token_at <= AFTER_S for own in times.values())
    house.scheduler.check_integrity()
    results, probes = house.scheduler.results, house.scheduler.probes
    assert results.tokens_overrun == probes.tokens == len(probed)
    assert results.tokens_made == len(probed) + 4 * len(MODELS)


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_the_victim_of_an_eviction_is_the_same_with_probes_and_without(steps_ahead: int) -> None:
    """`one` was used more than `two`; both are probed alike."""
    for after_s in (0.0, AFTER_S):
        house = ProbedHouse(probe_after_s=after_s, steps_ahead=steps_ahead)
        for model in ("one", "one", "one", "two"):
            house.answer(model)
        assert bool(house.wait(60.0)) == bool(after_s)
        house.answer("three")
        assert set(house.scheduler.probes.token_times()) == {"one", "three"}


def test_traffic_over_four_models_loads_as_often_with_probes_as_without() -> None:
    """Half an hour of sparse requests: the resident models are probed between them."""
    population = Population({"standard": 1.0}, tenants=2, adapters=0, models=4)
    traffic = Traffic(population, HALF_HOUR_S, poissons=(Poisson("standard", 0.02, 100, 8),))
    loads = {}
    for after_s in (0.0, AFTER_S):
        device = msgspec.structs.replace(DEVICES["h200-8b"], probe_after_s=after_s)
        world = World(SHIPPED_TIERS, device, traffic, models_resident=2, seed=5)
        world.run()
        weights = world.scheduler.weight_residency
        loads[after_s] = {name: own.loads for name, own in weights.models.items()}
        assert (world.scheduler.probes.tokens > 200) == bool(after_s)
    assert sum(loads[0.0].values()) > 5
    assert loads[AFTER_S] == loads[0.0]


def test_a_model_that_makes_tokens_is_not_probed_and_one_beside_it_is() -> None:
    house = ProbedHouse()
    house.answer("two")
    house.submit(8, 100, model="one", tier=house.tiers[0].name)
    probed = []
    until = house.clock.now + 25.0
    while house.clock.now < until:
        step = house.scheduler.schedule()
        assert step is not None
        is_probe = step.chunks[0].sequence.request_id == "laneway-probe"
        probed += [step.model] if is_probe else []
        house.clock.now += 0.5
        house.scheduler.complete(step, StepResult([7]), 0.5)
    assert probed == ["two", "two"]


def test_a_probe_waits_while_a_request_waits() -> None:
    house = ProbedHouse(sequences_max=1)
    house.answer("one")
    running, waiting = house.submit(8, 40, model="one"), house.submit(8, 4, model="one")
    house.clock.now += 3 * AFTER_S
    for _ in range(5):
        step = house.scheduler.schedule()
        assert step is not None
        assert step.chunks[0].sequence is running
        house.scheduler.complete(step, StepResult([7]), 0.01)
    assert not waiting.pages


def test_a_failed_probe_leaves_the_model_owing_a_token_until_it_makes_one() -> None:
    house = ProbedHouse(weights_max=1)
    house.answer("one")
    began = house.clock.now
    house.clock.now += AFTER_S
    probed_at = house.clock.now
    assert house.probe(fails="the kernel is broken")
    assert house.probe() is None, "not again before its time"
    house.clock.now += AFTER_S
    assert house.probe(fails="the kernel is broken")
    times = house.scheduler.probes.token_times()["one"]
    assert times.owed_since == probed_at
    assert times.error == "the kernel is broken"
    assert times.token_at <= began
    assert house.scheduler.probes.failures == 2
    assert house.scheduler.results.tokens_made == 4, "a failed probe makes no token"
    house.answer("one")
    times = house.scheduler.probes.token_times()["one"]
    assert (times.owed_since, times.error) == (None, "")
    assert times.token_at == house.clock.now


def test_a_probe_takes_a_page_that_nobody_holds_and_leaves_it_free() -> None:
    house = ProbedHouse(pages=4)
    house.answer("one")
    free = house.arena.available()
    house.clock.now += AFTER_S
    step = house.scheduler.schedule()
    assert step is not None
    assert house.arena.available() == free
    house.scheduler.check_integrity()
    house.scheduler.complete(step, StepResult([7]), 0.01)
    house.arena.allocate(4, "standard")
    house.clock.now += AFTER_S
    assert house.scheduler.schedule() is None, "all pages are held"


def test_a_model_that_is_removed_or_leaves_is_not_probed() -> None:
    house = ProbedHouse()
    house.answer("one")
    house.answer("two")
    house.scheduler.retire_model("one")
    assert set(house.wait(30.0)) == {"two"}
    house.scheduler.forget_model("one")
    assert set(house.scheduler.probes.token_times()) == {"two"}


def test_no_model_is_probed_without_the_setting() -> None:
    house = ProbedHouse(probe_after_s=0.0)
    house.answer("one")
    house.clock.now += 3600.0
    assert house.scheduler.probes.due_at() is None
    assert house.scheduler.schedule() is None
    assert house.scheduler.probes.token_times()["one"].token_at < house.clock.now - 3000
