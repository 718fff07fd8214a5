"""What the engine is told of adapters: a long stream on one that goes delays none that comes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from adapters.files.store import AdapterStore
from gateway.engines import engine as protocol
from gateway.engines.adapter_sync import AdapterLoader
from gateway.engines.engine import AdapterFailed, EngineUnavailable
from support.waiting import eventually_async

OLD, NEW, LATER = "a" * 64, "b" * 64, "c" * 64


class Engine:
    """Unloads an adapter when it is told that its last stream ended. `said` is in order."""

    ready = True
    pins = True

    def __init__(self) -> None:
        self.said: list[str] = []
        self.sources: dict[str, list[str]] = {}
        self.streams_over = asyncio.Event()

    async def load_adapter(
        self, digest: str, model: str, path: Path, *, pinned: bool = False, sources: Sequence[str] = ()
    ) -> None:
        self.sources[digest] = list(sources)
        self.said.append(f"{'pin' if pinned else 'load'} {digest[0]}")
        if pinned and not self.pins:
            raise AdapterFailed("no room")

    async def unload_adapter(self, digest: str) -> None:
        self.said.append(f"unload {digest[0]}")
        await self.streams_over.wait()
        self.said.append(f"unloaded {digest[0]}")


class Store:
    def path(self, digest: str) -> Path:
        return Path(digest)

    def __init__(self) -> None:
        self.lacking: set[str] = set()

    def lacks_modules(self, digest: str) -> bool:
        return digest in self.lacking


async def resolve_none(digests: Sequence[str]) -> dict[str, str]:
    raise AssertionError(f"{digests} were resolved before")


@pytest.fixture
async def engine() -> Engine:
    return Engine()


def make_loader(engine: Engine, wanted: dict[str, str]) -> AdapterLoader:
    return AdapterLoader(
        cast(protocol.Engine, engine), cast(AdapterStore, Store()), lambda: wanted, lambda: wanted, resolve=resolve_none
    )


async def test_a_stream_on_an_adapter_that_goes_delays_none_that_comes(engine: Engine) -> None:
    wanted = {OLD: "m"}
    loader = make_loader(engine, wanted)
    await loader.on_change()
    for comes in (NEW, LATER):
        del wanted[next(iter(wanted))]
        wanted[comes] = "m"
        async with asyncio.timeout(1):
            await loader.on_change()
    await eventually_async(lambda: "unload b" in engine.said)
    assert engine.said == ["load a", "unload a", "load b", "unload b", "load c"]
    engine.streams_over.set()
    await eventually_async(lambda: {"unloaded a", "unloaded b"} <= set(engine.said))


async def test_an_adapter_that_returns_is_loaded_after_it_went(engine: Engine) -> None:
    wanted = {OLD: "m"}
    loader = make_loader(engine, wanted)
    await loader.on_change()
    del wanted[OLD]
    await loader.on_change()
    wanted[OLD] = "m"
    asked = asyncio.create_task(loader.ensure(OLD, "m"))
    await eventually_async(lambda: engine.said == ["load a", "unload a"])
    assert not asked.done()
    engine.streams_over.set()
    await asked
    assert engine.said == ["load a", "unload a", "unloaded a", "load a"]


async def test_loads_that_fail_with_the_engine_leave_no_exception_behind(engine: Engine) -> None:
    """As when an engine is killed: the first failure ends the wait, and no caller retrieves the other loads' errors."""
    said: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    gone = asyncio.Event()

    async def lost(*_: object, **__: object) -> None:
        await gone.wait()
        raise EngineUnavailable("the engine was lost")

    engine.load_adapter = lost  # type: ignore[method-assign]
    loader = make_loader(engine, {f"{digit}" * 64: "m" for digit in range(8)})
    change = asyncio.create_task(loader.on_change())
    await asyncio.sleep(0.05)
    gone.set()
    with pytest.raises(EngineUnavailable):
        await change
    await eventually_async(lambda: not loader._loading)
    gc.collect()
    await asyncio.sleep(0)
    assert said == []


async def test_what_was_never_resolved_follows_and_delays_nobody(engine: Engine) -> None:
    store, may = Store(), asyncio.Event()
    store.lacking = {OLD, NEW}

    async def resolve(digests: Sequence[str]) -> dict[str, str]:
        await may.wait()
        store.lacking.discard(OLD)
        return {NEW: "its patterns take too long"} if NEW in digests else {}

    wanted = dict.fromkeys((OLD, NEW, LATER), "m")
    loader = AdapterLoader(
        cast(protocol.Engine, engine), cast(AdapterStore, store), lambda: wanted, lambda: wanted, resolve=resolve
    )
    async with asyncio.timeout(5):
        await loader.on_change()
    assert engine.said == ["load c"]
    await loader.on_change()
    may.set()
    await eventually_async(lambda: engine.said == ["load c", "load a"])
    with pytest.raises(AdapterFailed, match="its patterns take too long"):
        await loader.ensure(NEW, "m")
    assert engine.said == ["load c", "load a"]


async def test_what_may_be_promoted_again_stays(engine: Engine) -> None:
    wanted, kept = {OLD: "m"}, {OLD, NEW}
    loader = AdapterLoader(
        cast(protocol.Engine, engine), cast(AdapterStore, Store()), lambda: wanted, lambda: kept, resolve=resolve_none
    )
    await loader.on_change()
    wanted[NEW] = wanted.pop(OLD)
    await loader.on_change()
    assert engine.said == ["load a", "load b"], "a rollback needs it at once"
    kept.discard(OLD)
    await loader.on_change()
    await eventually_async(lambda: engine.said[-1] == "unload a")
    engine.streams_over.set()
    await loader.unload_adapter(NEW)
    assert engine.said[-2:] == ["unload b", "unloaded b"]
    await loader.ensure(NEW, "m")
    assert engine.said[-1] == "load b", "what was dropped is loaded again"


async def test_the_engine_is_told_what_is_pinned_and_serves_what_cannot_be(engine: Engine) -> None:
    wanted, pinned = {OLD: "m", NEW: "m"}, {NEW}
    loader = AdapterLoader(
        cast(protocol.Engine, engine),
        cast(AdapterStore, Store()),
        lambda: wanted,
        lambda: wanted,
        lambda: pinned,
        resolve=resolve_none,
    )
    await loader.on_change()
    assert sorted(engine.said) == ["load a", "pin b"]
    pinned.symmetric_difference_update({OLD, NEW})
    engine.pins = False
    await loader.on_change()
    assert sorted(engine.said[2:]) == ["load a", "load b", "pin a"]
    await loader.on_change()
    await loader.ensure(OLD, "m")
    assert len(engine.said) == 5, "it was told once"


async def test_what_was_replaced_is_pinned_no_more(engine: Engine) -> None:
    wanted, pinned = {OLD: "m"}, {OLD}
    loader = AdapterLoader(
        cast(protocol.Engine, engine),
        cast(AdapterStore, Store()),
        lambda: wanted,
        lambda: {OLD, NEW},
        lambda: pinned,
        resolve=resolve_none,
    )
    await loader.on_change()
    wanted[NEW] = wanted.pop(OLD)
    pinned.symmetric_difference_update({OLD, NEW})
    await loader.on_change()
    assert sorted(engine.said) == ["load a", "pin a", "pin b"]


class OneSource:
    def sources_of_adapter(self, digest: str) -> list[str]:
        return [f"fleet://gateway:1/internal/adapters/{digest}"]

    async def sources_of_model(self, path: str) -> tuple[str, list[str]]:
        raise AssertionError("there is no model")


async def test_only_an_engine_of_another_host_gets_sources(engine: Engine) -> None:
    await make_loader(engine, {OLD: "m"}).on_change()
    remote = AdapterLoader(
        cast(protocol.Engine, engine),
        cast(AdapterStore, Store()),
        lambda: {NEW: "m"},
        lambda: {NEW},
        resolve=resolve_none,
        sources=OneSource(),
    )
    await remote.on_change()
    assert engine.sources == {OLD: [], NEW: [f"fleet://gateway:1/internal/adapters/{NEW}"]}
