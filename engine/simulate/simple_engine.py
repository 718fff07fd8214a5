"""A simple engine for fleets of hundreds: a queueing model in place of the scheduler.

Prompts are computed one after another, a higher tier's first; a decode takes the step time of the current number of
running texts. The prefix cache evicts the least recently used page. There are no floors, no preemption, no shares and
no limits of a batch. Page names, loads and page news are the real ones.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Ordered

from engine.protocol.frames import PAGE_HEAD_BYTES, PagesChanged
from engine.protocol.page_names import Chain
from engine.protocol.snapshot_parts import EngineLoad
from engine.protocol.tiers import Tier
from engine.simulate.conversations import FleetText
from engine.simulate.devices import Device
from engine.simulate.fleet_engine import TextObserver
from engine.simulate.world import Clock


class SimpleEngine:
    def __init__(
        self,
        name: str,
        tiers: Ordered[Tier],
        device: Device,
        models: Ordered[str],
        clock: Clock,
        observer: TextObserver,
    ) -> None:
        self.name = name
        self.texts: dict[int, FleetText] = {}
        self.busy_s = 0.0
        self.tokens = self.requests = self.queries = self.hits = self.adapter_loads = 0
        self._device = device
        self._models = list(models)
        self._ranks = {tier.name: rank for rank, tier in enumerate(tiers)}
        self._clock = clock
        self._observer = observer
        self._waiting: list[tuple[int, int, FleetText, int]] = []  # a heap by rank: with the tokens to compute
        self._computing: FleetText | None = None
        self._computed_at = 0.0
        self._ends: list[tuple[float, int]] = []  # a heap: when texts end
        self._cached: OrderedDict[bytes, None] = OrderedDict()  # heads of names, least recently used first
        self._adapters: OrderedDict[str, None] = OrderedDict()
        self._changes: dict[bytes, bool] = {}  # since the last news: added, or removed
        self._news = 0

    def submit_text(self, text: FleetText) -> None:
        self.texts[text.number] = text
        self.requests += 1
        cached = self._look_up(text)
        if text.cached_tokens is None:
            text.cached_tokens = cached
        heapq.heappush(self._waiting, (self._ranks[text.tier], text.number, text, len(text.ids) + text.made - cached))

    def advance(self) -> float | None:
        now = self._clock.now
        if self._computing is not None and self._computed_at <= now:
            self._begin_decode(self._computing)
            self._computing = None
        while self._ends and self._ends[0][0] <= now:
            text = self.texts.pop(heapq.heappop(self._ends)[1])
            self.tokens += text.new_tokens - text.made
            self._observer.note_finished(text)
        if self._computing is None and self._waiting:
            _, _, self._computing, tokens = heapq.heappop(self._waiting)
            seconds = self._device.base_s + tokens * self._device.prefill_token_s + self._load_adapter(self._computing)
            self.busy_s += seconds
            self._computed_at = now + seconds
        due = [
            at
            for at in (self._computed_at if self._computing else None, self._ends[0][0] if self._ends else None)
            if at
        ]
        return min(due, default=None)

    def is_computing(self) -> bool:
        return self._computing is not None

    def load(self) -> EngineLoad:
        device, now = self._device, self._clock.now
        first = max(0.0, self._computed_at - now) if self._computing else 0.0
        waits = dict.fromkeys(self._ranks, first)
        for rank, _, _, tokens in self._waiting:
            for name, own in self._ranks.items():
                if own >= rank:
                    waits[name] += device.base_s + tokens * device.prefill_token_s
        return EngineLoad(
            waits,
            prefill_token_s=dict.fromkeys(self._models, device.prefill_token_s),
            adapters=list(self._adapters),
            adapter_load_s=device.adapter_load_s,
        )

    def post_news(self, send: Callable[[PagesChanged], None]) -> None:
        if self._changes or not self._news:
            self._news += 1
            added = b"".join(head for head, present in self._changes.items() if present)
            removed = b"".join(head for head, present in self._changes.items() if not present)
            send(PagesChanged(self._news, added, removed, full=self._news == 1))
            self._changes.clear()

    def check_the_end(self) -> None:
        """Raises AssertionError."""
        assert not self.texts

    def _chain(self, text: FleetText) -> tuple[Chain, list[int]]:
        return Chain(text.model, text.adapter, text.tenant, self._device.tokens_per_page), text.all_ids()

    def _look_up(self, text: FleetText) -> int:
        """Cached tokens of the text."""
        (chain, ids), page_tokens, cached = self._chain(text), self._device.tokens_per_page, 0
        usable = (len(ids) - 1) // page_tokens
        while cached < usable:
            head = chain.name(cached, lambda start, stop: ids[start:stop])[:PAGE_HEAD_BYTES]
            if head not in self._cached:
                break
            self._cached.move_to_end(head)
            cached += 1
        self.queries += len(ids)
        self.hits += cached * page_tokens
        return cached * page_tokens

    def _begin_decode(self, text: FleetText) -> None:
        device, now = self._device, self._clock.now
        self.tokens += 1
        self._observer.note_token(text)
        step_s = device.base_s + (len(self._ends) + 1) * device.sequence_s
        left = text.new_tokens - text.made
        heapq.heappush(self._ends, (now + left * step_s, text.number))
        chain, ids = self._chain(text)
        ids += [1] * left
        for name in chain.names_between(
            0, (len(ids) - 1) // device.tokens_per_page, lambda start, stop: ids[start:stop]
        ):
            self._publish(name[:PAGE_HEAD_BYTES])

    def _publish(self, head: bytes) -> None:
        if head in self._cached:
            self._cached.move_to_end(head)
            return
        self._cached[head] = None
        self._note_change(head, True)
        if len(self._cached) > self._device.pages:
            oldest, _ = self._cached.popitem(last=False)
            self._note_change(oldest, False)

    def _note_change(self, head: bytes, present: bool) -> None:
        """A page that was added and removed between two frames is in neither."""
        if self._changes.pop(head, present) == present:
            self._changes[head] = present

    def _load_adapter(self, text: FleetText) -> float:
        """Seconds until the text's adapter is resident; at most half of the pages hold adapters."""
        if text.adapter is None or text.adapter in self._adapters:
            if text.adapter is not None:
                self._adapters.move_to_end(text.adapter)
            return 0.0
        self._adapters[text.adapter] = None
        self.adapter_loads += 1
        if len(self._adapters) * self._device.adapter_pages * 2 > self._device.pages:
            self._adapters.popitem(last=False)
        return self._device.adapter_load_s
