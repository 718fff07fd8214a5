"""First tokens of light tenants beside a tenant that fills the tier with long answers, with an H200's costs."""

from __future__ import annotations

from functools import partial

import pytest

from engine.protocol.tiers import SHIPPED_TIERS, Tier
from engine.simulate.devices import DEVICES
from engine.simulate.traffic import Flood, Poisson, Population, Traffic
from engine.simulate.world import World
from support.engine.schedules import Ask, Do, Schedule, play

ARRIVALS_S = 8.0
# More requests outstanding than an H200 has places; each holds its place for about 20 s.
OUTSTANDING, FLOOD_PROMPT, FLOOD_NEW = 400, 128, 1500
PROMPT, NEW = 256, 16
# Each light tenant uses half a hundredth of the device's tokens.
PER_S = 2.0


@pytest.mark.parametrize("tier", SHIPPED_TIERS, ids=[tier.name for tier in SHIPPED_TIERS])
@pytest.mark.parametrize("tenants", [10, 1])
def test_light_tenants_meet_the_target_beside_one_that_floods_their_tier(tier: Tier, tenants: int) -> None:
    population = Population({tier.name: 1.0}, tenants=tenants, tenant_zipf=0.0, adapters=0)
    asked = Poisson(tier.name, tenants * PER_S, PROMPT, NEW)
    flood = Flood(tier.name, OUTSTANDING, FLOOD_PROMPT, FLOOD_NEW)
    traffic = Traffic(population, ARRIVALS_S, poissons=(asked,), floods=(flood,))
    world = World(SHIPPED_TIERS, DEVICES["h200-8b"], traffic, seed=1)
    world.run()
    measure = world.measure
    light = [ending for ending in measure.endings if ending.request.flood is None]
    assert [ending.made for ending in light] == [NEW] * len(light)
    assert len(light) > 8 * tenants
    assert not any(refused.flood is None for refused, _ in measure.refusals)
    waits = sorted(ending.ttft_s or 0.0 for ending in light)
    target_s = (tier.ttft_base_ms + tier.ttft_per_1k_prompt_tokens_ms * PROMPT / 1000) / 1000
    assert waits[int(0.99 * len(waits))] <= target_s

    flooded = [ending for ending in measure.endings if ending.request.flood is not None]
    assert all(ending.made == FLOOD_NEW for ending in flooded), "a preempted request completes"
    assert all(ending.preemptions <= tier.preemptions_max for ending in flooded)
    made_by_flood, made_by_light = (sum(ending.made for ending in endings) for endings in (flooded, light))
    assert made_by_flood > 9 * made_by_light


light = partial(Ask, shared=0, namespace="n1", stops=False, penalty=0.0)
NO_ADAPTER = 9


def test_no_request_is_preempted_for_a_first_request_that_cannot_join() -> None:
    """Tier b holds the adapter's pages in common with tier a: evicting idle adapters would make room, but not within
    what the floors of b and c leave tier a. The auditor finds a preemption in vain."""
    tiers = (
        Tier(
            name="a", service_tier="a", floor=0.3, preemptible=False, preemptions_max=1, crowd_part=0.25, ageing_s=0.05
        ),
        Tier(name="b", service_tier="b", floor=0.5, preemptions_max=1, crowd_part=1.0, ageing_s=60.0),
        Tier(name="c", service_tier="c", floor=0.2, preemptions_max=1, crowd_part=1.0, ageing_s=60.0),
    )
    actions = (
        light(tokens=20, max_tokens=22, tier=3, share="z", adapter=NO_ADAPTER, model="base"),
        Do("run", 0),
        light(tokens=70, max_tokens=1, tier=0, share="x", adapter=1, model="base"),
        light(tokens=22, max_tokens=1, tier=1, share="y", adapter=1, model="base"),
        Do("run", 0),
        light(tokens=15, max_tokens=51, tier=0, share="z", adapter=NO_ADAPTER, model="other"),
    )
    adapters = (("base", 17), ("base", 25), ("other", 13))
    play(Schedule(tiers=tiers, actions=actions, pages=45, adapters=adapters))


def test_pages_that_two_lower_tiers_hold_in_common_are_not_counted_twice_for_a_first_request() -> None:
    """Tiers b and c run adapters that share a page. Preempting c frees only the page that c alone holds."""
    tiers = (
        Tier(name="a", service_tier="a", preemptible=False, preemptions_max=1, ageing_s=60.0, inter_token_ms=100_000.0),
        Tier(name="b", service_tier="b", preemptible=False, preemptions_max=1, ageing_s=60.0, inter_token_ms=10.0),
        Tier(name="c", service_tier="c", preemptions_max=1, ageing_s=60.0, inter_token_ms=100_000.0),
    )
    actions = (
        light(tokens=1, max_tokens=3, tier=2, share="x", adapter=2, model="base"),
        light(tokens=4, max_tokens=11, tier=0, share="x", adapter=NO_ADAPTER, model="base"),
        Do("run", 0),
        light(tokens=5, max_tokens=10, tier=0, share="x", adapter=NO_ADAPTER, model="base"),
        Do("run", 0),
        light(tokens=1, max_tokens=3, tier=0, share="x", adapter=2, model="base"),
        Do("run", 0),
        light(tokens=69, max_tokens=9, tier=1, share="x", adapter=0, model="base"),
        Do("run", 8),
        Do("squeeze", 0),
    )
    adapters = (("base", 1), ("base", 1), ("other", 1), ("base", 1))
    play(Schedule(tiers=tiers, actions=actions, pages=36, sequences_max=5, step_tokens=160, adapters=adapters))
