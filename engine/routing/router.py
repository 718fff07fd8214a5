"""Where a request would have its first token soonest.

A gateway's router knows each engine's models, its last reported load, its cached pages and what this gateway sent to
it. Gateways do not talk to each other: equal reports lead to equal rankings. It must never read a clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

import msgspec

from engine.protocol.frames import EngineLoad, ModelInfo, PagesChanged
from engine.protocol.page_names import Chain
from engine.routing.engine_state import EngineState, Placement
from engine.routing.page_index import PageIndex
from engine.routing.rendezvous import key_hash, rendezvous_weight

# Engines whose cost is at most this much above the least are equal: the conversation's key orders them.
TIE_S = 0.002
TIE_PART = 0.05


# First ids of a prompt that are its key without a conversation.
KEY_IDS = 16


class RoutableRequest(msgspec.Struct, gc=False):
    """What of a Submit decides about its engine. `ids`: all prompt_ids, those that are resumed too. `conversation`: a
    key that the requests of one conversation have in common; "": unknown."""

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


class _Group:
    """Engines that serve one content of a model with equal pages: the same chain names their pages."""

    __slots__ = ("engines", "info")

    def __init__(self, info: ModelInfo) -> None:
        self.info = info
        self.engines: list[EngineState] = []


# The cost that orders engines, predicted seconds, cached tokens. The cost is the seconds and, for tiers below the
# highest, the hysteresis of loads.
_Candidate = tuple[float, float, int, EngineState]


class EngineRouter:
    """Ranks engines. Times are seconds of one monotonic clock, the caller's."""

    def __init__(self, tiers: Sequence[str]) -> None:
        """`tiers`: names by rank, the highest first."""
        self.pages = PageIndex()
        self._ranks = {tier: rank for rank, tier in enumerate(tiers)}
        self._engines: dict[str, EngineState] = {}
        self._groups: dict[str, dict[tuple[str, str, int], _Group]] = {}  # model → content and pages → group

    # ---- what engines report

    def set_engine(self, name: str, models: Mapping[str, ModelInfo]) -> None:
        """A connected engine and all models that it serves now, in place of those of an earlier call. Its load stays
        unknown until `note_load`."""
        engine = self._engines.get(name)
        if engine is None:
            engine = self._engines[name] = EngineState(name, key_hash(name), max(1, len(self._ranks)))
        self._leave_groups(engine)
        engine.models = dict(models)
        for model, info in models.items():
            identity = (info.digest or model, info.kv_identity, info.tokens_per_page)
            groups = self._groups.setdefault(model, {})
            if identity not in groups:
                groups[identity] = _Group(info)
            groups[identity].engines.append(engine)

    def remove_engine(self, name: str) -> None:
        """A lost stream: nothing of the engine is known any more. An unknown engine is ignored."""
        engine = self._engines.pop(name, None)
        if engine is not None:
            self._leave_groups(engine)
        self.pages.remove_engine(name)

    def note_load(self, name: str, load: EngineLoad | None, draining: bool, now: float) -> None:
        """A heartbeat. `load` None: the engine's protocol version has none. A draining engine is not ranked."""
        engine = self._engines.get(name)
        if engine is not None:
            engine.set_load(load, draining, now, self._ranks)

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
        rank = self._rank(request.tier)
        engine = self._engines.get(name)
        if engine is None:
            return Placement(rank, 0.0, -1)
        return engine.note_submitted(request.model, request.adapter, rank, uncached_tokens, now)

    def note_first_output(self, name: str, placement: Placement) -> None:
        """The request's first id arrived."""
        engine = self._engines.get(name)
        if engine is not None:
            engine.note_first_output(placement)

    def note_ended(self, name: str, placement: Placement) -> None:
        """The request has its ending, with or without an output; or it was moved to another engine."""
        engine = self._engines.get(name)
        if engine is not None:
            engine.note_ended(placement)

    # ---- ranking

    def rank_engines(
        self, request: RoutableRequest, now: float, exclude: Container[str] = (), engines_max: int | None = None
    ) -> list[RankedEngine]:
        """The engines that serve the request's model, ascending by predicted seconds to the first token; engines that
        are as good as the first are ordered by the request's key. `engines_max`: the first few are enough."""
        ranked: list[_Candidate] = []
        cold = True  # no engine so far has the request's adapter
        for group in self._groups.get(request.model, {}).values():
            cold &= self._rank_group(group, request, now, exclude, ranked)
        if len(ranked) > 1:
            ranked.sort(key=_cost)
            self._order_ties(ranked, request, cold)
        return [RankedEngine(engine.name, seconds, cached) for _, seconds, cached, engine in ranked[:engines_max]]

    def _rank_group(
        self,
        group: _Group,
        request: RoutableRequest,
        now: float,
        exclude: Container[str],
        ranked: list[_Candidate],
    ) -> bool:
        """Append the group's engines with their costs. Returns whether none of them has the adapter."""
        info, ids, model, adapter = group.info, request.ids, request.model, request.adapter
        rank = self._rank(request.tier)
        page_tokens = info.tokens_per_page
        runs = self._runs(info, request)
        count, cold = len(ids), True
        for engine in group.engines:
            if engine.draining or engine.name in exclude:
                continue
            cached = 0
            for mask, pages in runs:
                if mask & engine.bit:
                    cached = pages * page_tokens
                    break
            seconds = engine.waits[rank] + engine.token_s(model) * (count - cached)
            if now > engine.fresh_until:
                seconds += engine.pessimism(now)
            penalty = 0.0
            if engine.absent_models and model in engine.absent_models:
                wait_s, penalty = engine.weights_wait(model, rank, now)
                seconds += wait_s
            if adapter is not None:
                if adapter in engine.adapters:
                    cold = False
                else:
                    wait_s, extra = engine.adapter_wait(adapter, rank, now)
                    seconds += wait_s
                    penalty += extra
            ranked.append((seconds + penalty, seconds, cached, engine))
        return cold

    def _runs(self, info: ModelInfo, request: RoutableRequest) -> list[tuple[int, int]]:
        """PageIndex.find_runs, the longest prefix first. The last id is always computed: its logits are needed."""
        ids, page_tokens = request.ids, info.tokens_per_page
        pages_max = (len(ids) - 1) // page_tokens
        if pages_max < 1:
            return []
        root = info.digest or request.model
        chain = Chain(root, request.adapter, request.namespace, page_tokens, kv_identity=info.kv_identity)
        runs = self.pages.find_runs(chain, lambda start, stop: ids[start:stop], pages_max)
        runs.reverse()
        return runs

    def _order_ties(self, ranked: list[_Candidate], request: RoutableRequest, cold: bool) -> None:
        """Order the engines that are as good as the first by rendezvous hashing."""
        least = ranked[0][0]
        most = least + max(TIE_S, TIE_PART * least)
        ties = next((n for n, candidate in enumerate(ranked) if candidate[0] > most), len(ranked))
        if ties < 2:
            return
        key = self._key(request, cold)
        ranked[:ties] = sorted(
            ranked[:ties], key=lambda candidate: rendezvous_weight(candidate[3].hashed, key), reverse=True
        )

    def _key(self, request: RoutableRequest, cold: bool) -> int:
        """All gateways load an adapter that no engine has on the same engine. Without a conversation, prompts of a
        namespace with equal beginnings have equal keys."""
        if cold and request.adapter is not None:
            return key_hash(request.adapter)
        if request.conversation:
            return key_hash(request.conversation)
        return key_hash(request.namespace.encode() + array("q", request.ids[:KEY_IDS]).tobytes())

    def _rank(self, tier: str) -> int:
        """An unknown tier waits as the lowest."""
        return self._ranks.get(tier, max(0, len(self._ranks) - 1))

    def _leave_groups(self, engine: EngineState) -> None:
        for model in engine.models:
            groups = self._groups[model]
            for identity, group in list(groups.items()):
                if engine in group.engines:
                    group.engines.remove(engine)
                    if not group.engines:
                        del groups[identity]
            if not groups:
                del self._groups[model]
        engine.models = {}


def _cost(candidate: _Candidate) -> float:
    return candidate[0]
