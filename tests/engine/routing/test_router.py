"""The router ranks by predicted time to the first token; the page index follows the engines' caches exactly."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from typing import Any

from engine.protocol.frames import ModelInfo, PagesChanged
from engine.protocol.page_names import Chain
from engine.protocol.snapshot_parts import EngineLoad
from engine.routing.named_prompts import NamedPrompts
from engine.routing.page_index import SHARDS, PageIndex
from engine.routing.router import EngineRouter, RankedEngine, RoutableRequest

TIERS = ("premium", "standard", "batch")
INFO = ModelInfo("m", "digest", 8192, 1000, 16, 100, kv_identity="bf16")
TOKEN_S = 1e-4


def load(wait: float = 0.0, **more: Any) -> EngineLoad:
    return EngineLoad(dict.fromkeys(TIERS, wait), prefill_token_s={"m": TOKEN_S}, **more)


def router(*names: str, **more: Any) -> EngineRouter:
    made = EngineRouter(TIERS)
    for name in names:
        made.set_engine(name, {"m": INFO})
        made.note_load(name, load(**more), False, 0.0)
    return made


def request(tokens: int = 161, tier: str = "standard", start: int = 0, **more: Any) -> RoutableRequest:
    given = {"adapter": None, "namespace": "ns", "conversation": ""} | more
    return RoutableRequest(model="m", tier=tier, ids=list(range(start, start + tokens)), **given)


def heads(ids: list[int], pages: int, adapter: str | None = None, namespace: str = "ns") -> bytes:
    chain = Chain("digest", adapter, namespace, 16, kv_identity="bf16")
    return b"".join(name[:8] for name in chain.names_between(0, pages, lambda start, stop: ids[start:stop]))


def names(ranked: list[RankedEngine]) -> list[str]:
    return [engine.name for engine in ranked]


# ---- the index


def chain_of(number: int) -> tuple[Chain, list[int]]:
    return Chain("digest", None, "ns", 16), list(range(number * 1000, number * 1000 + 160))


def test_the_index_equals_a_plain_model_through_additions_removals_gaps_and_departures() -> None:
    draws, index = random.Random(7), PageIndex()
    chains = [chain_of(number) for number in range(6)]
    pages = [chain.name(at, lambda a, b, ids=ids: ids[a:b])[:8] for chain, ids in chains for at in range(10)]
    plain: dict[str, Counter[bytes] | None] = {}
    numbers: dict[str, int] = {}
    for _ in range(2000):
        engine = f"engine-{draws.randrange(5)}"
        held = plain.get(engine)
        event = draws.random()
        if event < 0.02:
            index.remove_engine(engine)
            plain.pop(engine, None)
            numbers.pop(engine, None)
        elif held is None or event < 0.05:
            added = draws.sample(pages, 20)
            numbers[engine] = 1
            assert index.set_pages(engine, PagesChanged(1, b"".join(added), full=True))
            plain[engine] = Counter(added)
        elif event < 0.07:
            assert not index.set_pages(engine, PagesChanged(numbers[engine] + 2, b""))
            plain[engine] = None
        else:
            added, gone = draws.choices(pages, k=3), draws.sample(sorted(held.elements()), min(3, held.total()))
            numbers[engine] += 1
            assert index.set_pages(engine, PagesChanged(numbers[engine], b"".join(added), b"".join(gone)))
            held += Counter(added)
            held -= Counter(gone)
            plain[engine] = held
        number = draws.randrange(6)
        chain, ids = chains[number]
        own = pages[10 * number : 10 * number + 10]
        expected = {
            name: next((n for n, page in enumerate(own) if not there[page]), 10)
            for name, there in plain.items()
            if there and there[own[0]]
        }
        assert index.cached_pages(chain, lambda a, b, ids=ids: ids[a:b], 10) == expected
    for engine in list(plain):
        index.remove_engine(engine)
    for number in range(1, 2 * SHARDS + 2):
        assert index.set_pages("last", PagesChanged(number, b""))
    assert index.heads() == 0


def test_an_unknown_prompt_costs_the_first_pages_alone() -> None:
    index = PageIndex()
    index.set_pages("a", PagesChanged(1, bytes(range(80)), full=True))
    read = []

    def tokens(start: int, stop: int) -> list[int]:
        read.append(stop)
        return list(range(start, stop))

    assert index.cached_pages(Chain("digest", None, "ns", 16), tokens, 1000) == {}
    assert max(read) <= 64


def test_remembered_names_are_those_of_the_prompt() -> None:
    draws, prompts = random.Random(5), NamedPrompts(pages_max=40)
    last: dict[int, list[int]] = {}
    for _ in range(500):
        key, pages = draws.randrange(6), draws.randrange(1, 12)
        before = last.get(key, [])[: 16 * draws.randrange(12) + draws.choice((0, 5))]
        ids = array("q", [*before, *(draws.randrange(1000) for _ in range(200))][: 16 * pages])
        chain = prompts.take_chain(key, ids) or Chain("digest", None, "ns", 16)
        named = draws.randrange(pages + 1)
        own = [chain.name(page, lambda a, b, ids=ids: ids[a:b]) for page in range(named)]
        fresh = Chain("digest", None, "ns", 16)
        assert own == fresh.names_between(0, named, lambda a, b, ids=ids: ids[a:b])
        prompts.keep_chain(key, chain, ids)
        last[key] = list(ids)


# ---- the ranking


def test_cached_tokens_are_weighed_against_the_wait() -> None:
    fleet, asked = router("a", "b"), request()
    fleet.note_pages("a", PagesChanged(1, heads(asked.ids, 10), full=True))
    assert fleet.rank_engines(asked, 0.0)[0] == ("a", TOKEN_S, 160)
    fleet.note_load("a", load(wait=0.010), False, 0.0)
    assert names(fleet.rank_engines(asked, 0.0)) == ["a", "b"]
    fleet.note_load("a", load(wait=0.030), False, 0.0)
    assert names(fleet.rank_engines(asked, 0.0)) == ["b", "a"]


def test_page_news_may_arrive_before_the_engine_is_known() -> None:
    fleet, asked = EngineRouter(TIERS), request()
    fleet.note_pages("a", PagesChanged(1, heads(asked.ids, 10), full=True))
    fleet.set_engine("a", {"m": INFO})
    fleet.set_engine("a", {"m": INFO, "n": INFO})
    assert fleet.rank_engines(asked, 0.0)[0].cached_tokens == 160


def test_the_last_token_is_computed_also_when_its_page_is_cached() -> None:
    fleet, asked = router("a"), request(tokens=160)
    fleet.note_pages("a", PagesChanged(1, heads(asked.ids, 10), full=True))
    assert fleet.rank_engines(asked, 0.0)[0].cached_tokens == 144


def test_pages_of_other_namespaces_adapters_and_contents_are_not_found() -> None:
    fleet, asked = router("a", adapters=["x"]), request()
    fleet.set_engine("b", {"m": ModelInfo("m", "other", 8192, 1000, 16, 100, kv_identity="bf16")})
    for name in ("a", "b"):
        fleet.note_pages(name, PagesChanged(1, heads(asked.ids, 10) + heads(asked.ids, 10, adapter="x"), full=True))
    assert {engine.name: engine.cached_tokens for engine in fleet.rank_engines(asked, 0.0)} == {"a": 160, "b": 0}
    assert fleet.rank_engines(request(namespace="other"), 0.0)[0].cached_tokens == 0
    assert fleet.rank_engines(request(adapter="x"), 0.0)[0].cached_tokens == 160
    assert fleet.rank_engines(request(adapter="y"), 0.0)[0].cached_tokens == 0


def test_what_was_sent_since_the_heartbeat_is_added_to_the_wait_of_its_tier_and_lower_ones() -> None:
    fleet = router("a")
    batch = fleet.note_submitted("a", request(tier="batch"), 1000, 0.0)
    assert fleet.rank_engines(request(tier="premium"), 0.0)[0].seconds < 0.02
    assert fleet.rank_engines(request(tier="batch"), 0.0)[0].seconds > 0.1
    fleet.note_first_output("a", batch)
    fleet.note_ended("a", batch)
    assert fleet.rank_engines(request(tier="batch"), 0.0)[0].seconds < 0.02
    earlier = fleet.note_submitted("a", request(), 1000, 0.0)
    fleet.note_load("a", load(wait=0.2), False, 1.0)
    fleet.note_first_output("a", earlier)
    assert fleet.rank_engines(request(), 1.0)[0].seconds > 0.2  # the heartbeat's wait includes it, if it has not begun


def test_loads_of_adapters_and_weights_count() -> None:
    fleet, asked = router("a", "b", adapter_load_s=0.1), request(adapter="x", tier="premium")
    fleet.note_load("b", load(adapters=["x"], adapter_load_s=0.1), False, 0.0)
    assert names(fleet.rank_engines(asked, 0.0)) == ["b", "a"]
    fleet.note_load("b", load(wait=0.12, adapters=["x"], adapter_load_s=0.1), False, 0.0)
    assert names(fleet.rank_engines(asked, 0.0)) == ["a", "b"]
    assert names(fleet.rank_engines(request(adapter="x"), 0.0)) == ["b", "a"]  # hysteresis
    fleet.note_load("b", load(wait=0.3, adapters=["x"], adapter_load_s=0.1), False, 0.0)
    assert names(fleet.rank_engines(request(adapter="x"), 0.0)) == ["a", "b"]  # replicated
    fleet.note_load("a", load(models={"m": 2.0}), False, 0.0)
    assert fleet.rank_engines(request(), 0.0)[1].seconds > 2.0


def test_stale_loads_count_with_pessimism_and_unknown_ones_last() -> None:
    fleet = router("a", "b")
    fleet.set_engine("new", {"m": INFO})
    fleet.note_load("a", load(wait=0.5), False, 10.0)
    assert names(fleet.rank_engines(request(), 3.4)) == ["b", "a", "new"]
    assert names(fleet.rank_engines(request(), 10.0)) == ["a", "b", "new"]
    assert names(fleet.rank_engines(request(), 10.0, exclude={"a", "b"})) == ["new"]


def test_draining_and_removed_engines_are_not_ranked() -> None:
    fleet = router("a", "b", "c")
    fleet.note_load("a", load(), True, 0.0)
    fleet.remove_engine("b")
    assert names(fleet.rank_engines(request(), 0.0)) == ["c"]
    fleet.note_load("a", load(), False, 0.0)
    assert sorted(names(fleet.rank_engines(request(), 0.0))) == ["a", "c"]
    fleet.remove_engine("a")
    fleet.remove_engine("c")
    assert fleet.rank_engines(request(), 0.0) == []


def test_ties_go_by_conversation_alike_on_all_gateways_and_spread() -> None:
    engines = [f"engine-{n}" for n in range(8)]
    one, other = router(*engines), router(*reversed(engines))
    firsts = Counter()  # type: ignore[var-annotated]
    for number in range(800):
        asked = request(conversation=f"conversation-{number}")
        assert one.rank_engines(asked, 0.0) == other.rank_engines(asked, 0.0)
        firsts[one.rank_engines(asked, 0.0)[0].name] += 1
    assert len(firsts) == 8
    assert min(firsts.values()) > 60
    # Without a conversation, equal beginnings in a namespace have one first engine.
    assert one.rank_engines(request(tokens=40), 0.0)[0] == other.rank_engines(request(tokens=40), 0.0)[0]
    moved = Counter()  # type: ignore[var-annotated]
    one.remove_engine("engine-3")
    for number in range(800):
        asked = request(conversation=f"conversation-{number}")
        before, after = other.rank_engines(asked, 0.0)[0].name, one.rank_engines(asked, 0.0)[0].name
        moved[before, before == after] += 1
    assert not [before for (before, same) in moved if not same and before != "engine-3"]


def test_a_cold_adapter_goes_to_one_engine_whichever_the_conversation() -> None:
    fleet = router(*[f"engine-{n}" for n in range(8)], adapter_load_s=0.05)
    firsts = {fleet.rank_engines(request(adapter="x", conversation=str(n)), 0.0)[0].name for n in range(50)}
    assert len(firsts) == 1


def test_the_first_of_few_is_the_first_of_all() -> None:
    draws = random.Random(3)
    fleet = router(*[f"engine-{n}" for n in range(40)])
    asked = request()
    for number in range(40):
        name = f"engine-{number}"
        fleet.note_pages(name, PagesChanged(1, heads(asked.ids, draws.choice((1, 2, 2, 10))), full=True))
    for _ in range(300):
        name = f"engine-{draws.randrange(40)}"
        wait = draws.choice((0.0, draws.random() / 50))
        fleet.note_load(name, load(wait), draws.random() < 0.1, 0.0)
        few = fleet.rank_engines(asked, 0.0, exclude={"engine-7"}, engines_max=4)
        assert few[0] == fleet.rank_engines(asked, 0.0, exclude={"engine-7"})[0]
        assert len(few) == 4
