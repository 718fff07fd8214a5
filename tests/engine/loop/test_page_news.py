"""PagesChanged: whoever applies the frames of a stream knows the cached pages exactly, at any moment."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise

from engine.loop.page_news import NAMES_MAX, NEWS_EVERY_S, PageNews, name_heads
from engine.memory.arena import Arena
from engine.memory.prefix_cache import PrefixCache
from engine.protocol.frames import PAGE_HEAD_BYTES, GatewayHello, PagesChanged, Status, StatusReport
from engine.protocol.page_names import Chain
from support.engine.process import EngineProcess, Peer
from support.engine.scheduler_auditor import Clock

Start = Callable[..., EngineProcess]
Connect = Callable[[EngineProcess], Awaitable[Peer]]


def split(heads: bytes) -> list[bytes]:
    assert len(heads) % PAGE_HEAD_BYTES == 0
    return [heads[i : i + PAGE_HEAD_BYTES] for i in range(0, len(heads), PAGE_HEAD_BYTES)]


class Index:
    """What a gateway knows of one engine's pages."""

    def __init__(self) -> None:
        self.heads: Counter[bytes] = Counter()
        self.number = 0
        self.lists = 0

    def apply(self, frame: PagesChanged) -> None:
        assert frame.number == self.number + 1, "a gap"
        self.number = frame.number
        if frame.full:
            self.heads.clear()
            self.lists += 1
        assert self.lists, "changes before the list"
        self.heads.update(split(frame.added))
        self.heads.subtract(split(frame.removed))
        assert min(self.heads.values(), default=0) >= 0
        self.heads += Counter()


class Cache:
    """A prefix cache whose pages are published and evicted at random, and its news."""

    def __init__(self, pages: int) -> None:
        self.arena = Arena(pages, 1)
        self.prefix = PrefixCache(self.arena)
        self.clock = Clock()
        self.sent: list[tuple[float, int, PagesChanged]] = []
        self.indices: dict[int, Index] = {}
        self.news = PageNews(self.prefix, self._send, self.clock)

    def _send(self, gateway: int, frame: PagesChanged) -> None:
        self.sent.append((self.clock.now, gateway, frame))
        self.indices.setdefault(gateway, Index()).apply(frame)

    def publish(self, number: int, pages: int = 1) -> None:
        """Cache the pages of a prompt of its own, evicting others where none is free."""
        chain = Chain("model", None, f"namespace {number % 5}", 4)
        held = self.arena.allocate(pages, "tier")
        for index, page in enumerate(held):
            self.prefix.publish(chain, lambda start, stop: [number * 1000 + i for i in range(start, stop)], index, page)
        self.arena.release(reversed(held), "tier")

    def expected(self) -> Counter[bytes]:
        return Counter(name[:PAGE_HEAD_BYTES] for name in self.prefix.names())

    def settle(self) -> None:
        """Until nothing is left to be sent."""
        while (due_at := self.news.due_at()) is not None:
            self.clock.now = max(self.clock.now, due_at)
            self.news.post()


def test_heads_are_the_beginnings_of_the_names() -> None:
    names = [random.Random(i).randbytes(32) for i in range(100)]
    assert name_heads(names) == b"".join(name[:PAGE_HEAD_BYTES] for name in names)
    assert name_heads([]) == b""


def test_the_frames_of_each_gateway_are_the_cached_pages_at_any_moment() -> None:
    draw = random.Random(4)
    cache = Cache(60)
    for number in range(3000):
        gateway = draw.randrange(4)
        match draw.randrange(40):
            case 0:
                cache.news.subscribe(gateway)
            case 1:
                cache.news.unsubscribe(gateway)
                cache.indices.pop(gateway, None)
            case 2:
                cache.prefix.forget_label(0)
            case _:
                cache.publish(number, draw.randint(1, 4))
        cache.clock.now += draw.choice([0.0, 0.001, 0.05])
        cache.news.post()
        if not number % 50:
            cache.settle()
            assert all(index.heads == cache.expected() for index in cache.indices.values())
    assert sum(index.lists for index in cache.indices.values()) > 4
    changes: dict[int, list[float]] = {}
    for at, gateway, frame in cache.sent:
        if not frame.full:
            changes.setdefault(gateway, []).append(at)
    assert all(
        later - earlier >= NEWS_EVERY_S - 1e-9 for times in changes.values() for earlier, later in pairwise(times)
    )


def test_a_long_list_is_sent_in_parts_and_changes_meanwhile_follow_it() -> None:
    cache = Cache(3 * NAMES_MAX)
    cache.publish(1, 2 * NAMES_MAX + 5)
    cache.news.subscribe(1)
    for number in range(2, 6):
        cache.publish(number, 2)
        cache.clock.now += NEWS_EVERY_S
        cache.news.post()
    cache.settle()
    assert [len(frame.added) // PAGE_HEAD_BYTES for _, _, frame in cache.sent][:3] == [NAMES_MAX, NAMES_MAX, 5]
    assert [frame.full for _, _, frame in cache.sent] == [True, *[False] * (len(cache.sent) - 1)]
    assert cache.indices[1].heads == cache.expected()


def test_nothing_is_noted_while_no_gateway_asks() -> None:
    cache = Cache(20)
    cache.publish(1)
    assert cache.prefix.observer is None
    assert cache.news.due_at() is None
    cache.news.subscribe(1)
    cache.news.unsubscribe(1)
    cache.news.unsubscribe(2)
    cache.publish(2)
    assert cache.prefix.observer is None
    cache.settle()
    assert cache.sent == []


# ---- on an engine's socket


async def settled(peer: Peer, index: Index, pages: int) -> None:
    deadline = time.monotonic() + 30
    while sum(index.heads.values()) != pages:
        assert time.monotonic() < deadline
        index.apply(await peer.expect(PagesChanged))


async def cached_pages(peer: Peer) -> int:
    peer.send(Status())
    return (await peer.expect(StatusReport)).pages_cached


async def test_a_gateway_that_asks_knows_the_pages_of_the_engine(start_engine: Start, connect: Connect) -> None:
    engine = start_engine({"pages": 40, "tokens_per_page": 16, "step_ms": 0.2})
    worker, asks, silent = [await connect(engine) for _ in range(3)]
    asks.send(GatewayHello(5, "asks", pages=True))
    silent.send(GatewayHello(5, "silent"))
    index = Index()
    index.apply(await asks.expect(PagesChanged))
    assert index.heads == Counter()
    prompt = [300 + i % 700 for i in range(16 * 5 + 1)]
    worker.send(worker.submit(1, prompt_ids=prompt, max_tokens=2, stop_ids=[]))
    await worker.until_ended(1)
    model = asks.hello.models[0]
    chain = Chain(model.digest, None, "ns", 16, kv_identity=model.kv_identity)
    own = [chain.name(i, lambda start, stop: prompt[start:stop])[:PAGE_HEAD_BYTES] for i in range(5)]
    await settled(asks, index, 5)
    assert set(index.heads) == set(own)
    # So many others that the first pages are evicted.
    for handle in range(2, 14):
        worker.send(worker.submit(handle, prompt_ids=[handle * 50 + i for i in range(90)], max_tokens=2))
    await worker.until_ended(*range(2, 14))
    await settled(asks, index, await cached_pages(worker))
    assert not set(own) <= set(index.heads)
    # The whole list again, on the same stream and on another.
    asks.send(GatewayHello(5, "asks", pages=True))
    lists = index.lists
    while index.lists == lists:
        index.apply(await asks.expect(PagesChanged))
    again, other = Index(), await connect(engine)
    other.send(GatewayHello(5, "other", pages=True))
    again.apply(await other.expect(PagesChanged))
    assert again.heads == index.heads
    await asyncio.sleep(0.15)
    silent.send(Status())
    assert isinstance(await silent.next(), StatusReport), "it did not ask for pages"
