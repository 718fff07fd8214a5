"""Predicts at which engine a request would have its first token soonest.

A gateway's router knows each engine's models, last reported load and cached pages, and the requests that this gateway
sent to it. Gateways do not talk to each other: equal reports lead to equal rankings. It must never read a clock.
"""

from __future__ import annotations

import itertools
import math
import operator
from array import array
from collections.abc import Callable, Container, Mapping, Sequence
from typing import NamedTuple

import msgspec

from engine.protocol.frames import ModelInfo, PagesChanged
from engine.protocol.page_names import Chain
from engine.protocol.snapshot_parts import EngineLoad
from engine.routing.engine_group import EngineGroup, WaitingEngine
from engine.routing.engine_state import PagesIdentity, Placement, RoutedEngine
from engine.routing.named_prompts import NamedPrompts
from engine.routing.page_index import PageIndex
from engine.routing.rendezvous import key_hash, rendezvous_weight

# Engines whose cost is at most this much above the least are equal: the conversation's key orders them.
TIE_S = 0.002
TIE_PART = 0.05
# First ids of a prompt that are its key without a conversation.
KEY_IDS = 16
# Engines with an equally long cached prefix that are weighed before others.
FEW_ENGINES = 4


class RoutableRequest(msgspec.Struct, gc=False):
    """The fields of a Submit on which the choice of its engine depends. `ids`: all prompt_ids, including resumed ids.
    `conversation`: a key that the requests of one conversation have in common; "": unknown."""

    model: str
    adapter: str | None
    namespace: str
    tier: str
    ids: list[int]
    conversation: str = ""


class RankedEngine(NamedTuple):
    name: str
    seconds: float  # predicted, from the submission to the first token
    cached_tokens: int  # of the request's ids


# The cost that orders engines, predicted seconds, cached tokens. The cost is the seconds and, for tiers below the
# highest, the hysteresis of loads.
_Candidate = tuple[float, float, int, RoutedEngine]


class _Search:
    """The engines weighed for one request."""

    __slots__ = ("cold", "engines_max", "exclude", "least", "now", "rank", "ranked", "request")

    def __init__(
        self, request: RoutableRequest, rank: int, now: float, exclude: Container[str], engines_max: int | None
    ) -> None:
        self.request = request
        self.rank = rank
        self.now = now
        self.exclude = exclude
        self.engines_max = math.inf if engines_max is None else engines_max
        self.ranked: list[_Candidate] = []
        self.cold = True  # no engine so far has the request's adapter
        self.least = math.inf  # cost so far

    def limit(self) -> float:
        """Engines of a greater cost need not be weighed."""
        return math.inf if len(self.ranked) < self.engines_max else _tie_limit(self.least)

    def load_waits(self, engine: RoutedEngine) -> tuple[float, float]:
        """Seconds until the weights and the adapter are resident, and the hysteresis beside them."""
        model, adapter, extra_s, wait_s = self.request.model, self.request.adapter, 0.0, 0.0
        if model in engine.absent_models:
            wait_s, extra_s = engine.weights_wait(model, self.rank, self.now)
        if adapter is not None:
            if adapter in engine.adapters:
                self.cold = False
            else:
                adapter_s, adapter_extra_s = engine.adapter_wait(adapter, self.rank, self.now)
                wait_s += adapter_s
                extra_s += adapter_extra_s
        return wait_s, extra_s


class EngineRouter:
    """Ranks engines. Times are seconds of one monotonic clock, the caller's."""

    def __init__(self, tiers: Sequence[str]) -> None:
        """`tiers`: names by rank, the highest first."""
        self.pages = PageIndex()
        self._ranks = {tier: rank for rank, tier in enumerate(tiers)}
        self._rank_count = max(1, len(tiers))
        self._numbers = 0  # of engines so far
        self._prompts = NamedPrompts()
        self._engines: dict[str, RoutedEngine] = {}
        self._groups: dict[str, dict[PagesIdentity, EngineGroup]] = {}  # by model

    # ---- what engines report

    def set_engine(self, name: str, models: Mapping[str, ModelInfo]) -> None:
        """A connected engine and all models that it serves now, replacing the models of an earlier call. Its load
        remains unknown until `note_load`."""
        engine = self._engines.get(name)
        if engine is None:
            self._numbers += 1
            engine = self._engines[name] = RoutedEngine(name, self._numbers, key_hash(name), self._rank_count)
            engine.bit = self.pages.bit(name)  # page news may arrive first
        self._leave_groups(engine)
        for model, info in models.items():
            identity = (info.digest or model, info.kv_identity, info.tokens_per_page)
            groups = self._groups.setdefault(model, {})
            if identity not in groups:
                groups[identity] = EngineGroup(info, self._rank_count)
            groups[identity].set_engine(engine)
            engine.models[model] = identity

    def remove_engine(self, name: str) -> None:
        """A lost stream: the engine's state is dropped. An unknown engine is ignored."""
        engine = self._engines.pop(name, None)
        if engine is not None:
            self._leave_groups(engine)
        self.pages.remove_engine(name)

    def note_load(self, name: str, load: EngineLoad | None, draining: bool, now: float) -> None:
        """A heartbeat. `load` None: the engine's protocol version does not report it. A draining engine is not
        ranked."""
        engine = self._engines.get(name)
        if engine is not None:
            engine.set_load(load, draining, now, self._ranks)
            self._note_moved(engine)

    def note_pages(self, name: str, frame: PagesChanged) -> bool:
        """False: as PageIndex.set_pages."""
        known = self.pages.set_pages(name, frame)
        engine = self._engines.get(name)
        if engine is not None:
            engine.bit = self.pages.bit(name)
        return known

    # ---- what this gateway sends

    def note_submitted(self, name: str, request: RoutableRequest, uncached_tokens: int, now: float) -> Placement:
        """The request was submitted to the engine, which has to compute `uncached_tokens` of its ids (RankedEngine's
        `cached_tokens` less). Until its first token or the next heartbeat these are added to the engine's wait.
        Returns what `note_first_output` and `note_ended` take."""
        rank = self._ranks.get(request.tier, self._rank_count - 1)
        engine = self._engines.get(name)
        if engine is None:
            return Placement(0, rank, 0.0, 0)
        placement = engine.note_submitted(request.model, request.adapter, rank, uncached_tokens, now)
        self._note_moved(engine)
        return placement

    def note_first_output(self, name: str, placement: Placement) -> None:
        """The request's first id arrived."""
        engine = self._engines.get(name)
        if engine is not None:
            engine.note_first_output(placement)
            self._note_moved(engine)

    def note_ended(self, name: str, placement: Placement) -> None:
        """The request has its ending, with or without an output; or it was moved to another engine."""
        engine = self._engines.get(name)
        if engine is not None:
            engine.note_ended(placement)
            self._note_moved(engine)

    # ---- ranking

    def rank_engines(
        self, request: RoutableRequest, now: float, exclude: Container[str] = (), engines_max: int | None = None
    ) -> list[RankedEngine]:
        """The engines that serve the request's model, ascending by predicted seconds to the first token; engines that
        are as good as the first are ordered by the request's key. With `engines_max` the search ends early: the first
        is the same, while the others need not be the next best. For the best of the others, exclude the first."""
        search = _Search(request, self._ranks.get(request.tier, self._rank_count - 1), now, exclude, engines_max)
        for group in self._groups.get(request.model, {}).values():
            self._search_group(group, search)
        ranked = search.ranked
        if len(ranked) > 1:
            ranked.sort(key=_cost)
            self._order_ties(ranked, request, search.cold)
        return [RankedEngine(engine.name, seconds, cached) for _, seconds, cached, engine in ranked[:engines_max]]

    def _search_group(self, group: EngineGroup, search: _Search) -> None:
        """Weigh the engines that may be among the first. An engine costs at least its wait and the prefill of what no
        engine has; so the engines of long cached prefixes are weighed first, then all others by their waits until
        that bound is too high."""
        model, count, page_tokens = search.request.model, len(search.request.ids), group.info.tokens_per_page
        has_adapter, now, exclude, ranked = (
            search.request.adapter is not None,
            search.now,
            search.exclude,
            search.ranked,
        )
        runs, order = self._runs(group.info, search.request), group.by_wait(search.rank)
        first, first_bits, pages_max = self._few_longest(runs, group, search.rank)
        least_s, limit = group.least_token_s() * (count - pages_max * page_tokens), search.limit()
        for index, (wait_s, _, engine) in enumerate(itertools.chain(first, order)):
            if index >= len(first):
                if wait_s + least_s > limit:
                    break
                if engine.bit & first_bits:
                    continue
            if engine.draining or engine.name in exclude:
                continue
            cached = 0
            for mask, pages in runs:
                if mask & engine.bit:
                    cached = pages * page_tokens
                    break
            seconds = wait_s + engine.tokens_s.get(model, engine.token_default_s) * (count - cached)
            if now > engine.fresh_until:
                seconds += now - engine.fresh_until
            cost = seconds
            if has_adapter or engine.absent_models:
                load_s, extra_s = search.load_waits(engine)
                seconds += load_s
                cost = seconds + extra_s
            ranked.append((cost, seconds, cached, engine))
            if cost < search.least or len(ranked) == search.engines_max:
                search.least = min(cost, search.least)
                limit = search.limit()

    def _few_longest(
        self, runs: list[tuple[int, int]], group: EngineGroup, rank: int
    ) -> tuple[list[WaitingEngine], int, int]:
        """The group's engines with the longest prefixes while these are few, their bits, and the pages that the other
        engines have at most."""
        few: list[WaitingEngine] = []
        bits = 0
        for mask, pages in runs:
            if mask.bit_count() > FEW_ENGINES:
                return few, bits, pages
            bits |= mask
            for name in self.pages.engines(mask):
                engine = self._engines.get(name)
                if engine is not None and engine.number in group.engines:
                    few.append(WaitingEngine(engine.waits[rank], engine.number, engine))
        return few, bits, 0

    def _runs(self, info: ModelInfo, request: RoutableRequest) -> list[tuple[int, int]]:
        """PageIndex.find_runs, the longest prefix first. The last id is always computed: its logits are needed."""
        page_tokens = info.tokens_per_page
        pages_max = (len(request.ids) - 1) // page_tokens
        if pages_max < 1:
            return []
        root, kv = info.digest or request.model, info.kv_identity
        ids = array("q", request.ids[: pages_max * page_tokens])
        key = (
            root,
            kv,
            page_tokens,
            request.adapter,
            request.namespace,
            request.conversation or ids[:KEY_IDS].tobytes(),
        )
        chain = self._prompts.take_chain(key, ids)
        if chain is None:
            chain = Chain(root, request.adapter, request.namespace, page_tokens, kv_identity=kv)
        runs = self.pages.find_runs(chain, lambda start, stop: ids[start:stop], pages_max)
        self._prompts.keep_chain(key, chain, ids)
        runs.reverse()
        return runs

    def _order_ties(self, ranked: list[_Candidate], request: RoutableRequest, cold: bool) -> None:
        """Order the engines that are as good as the first by rendezvous hashing."""
        most = _tie_limit(ranked[0][0])
        ties = next((n for n, candidate in enumerate(ranked) if candidate[0] > most), len(ranked))
        if ties < 2:
            return
        key = self._key(request, cold)
        weights = [(rendezvous_weight(candidate[3].hashed, key), candidate) for candidate in ranked[:ties]]
        weights.sort(key=_weight, reverse=True)
        ranked[:ties] = [candidate for _, candidate in weights]

    def _key(self, request: RoutableRequest, cold: bool) -> int:
        """All gateways load an adapter that no engine has on the same engine. Without a conversation, prompts of a
        namespace with equal beginnings have equal keys."""
        if cold and request.adapter is not None:
            return key_hash(request.adapter)
        if request.conversation:
            return key_hash(request.conversation)
        return key_hash(request.namespace.encode() + array("q", request.ids[:KEY_IDS]).tobytes())

    def _note_moved(self, engine: RoutedEngine) -> None:
        for model, identity in engine.models.items():
            self._groups[model][identity].note_moved(engine)

    def _leave_groups(self, engine: RoutedEngine) -> None:
        for model, identity in engine.models.items():
            groups = self._groups[model]
            groups[identity].remove_engine(engine)
            if not groups[identity].engines:
                del groups[identity]
            if not groups:
                del self._groups[model]
        engine.models = {}


def _tie_limit(least: float) -> float:
    """The cost up to which engines are as good as one of the least cost."""
    return least + max(TIE_S, TIE_PART * least)


_cost: Callable[[_Candidate], float] = operator.itemgetter(0)
_weight: Callable[[tuple[int, _Candidate]], int] = operator.itemgetter(0)
