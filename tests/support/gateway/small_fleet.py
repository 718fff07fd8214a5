"""A fleet of real engine processes without a model, and the gateway's side of it, without HTTP and database."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from adapters.files.store import AdapterStore
from engine.protocol.client import SILENCE_S
from engine.protocol.frames import Sampling
from gateway.catalog.base_models import BaseModel
from gateway.engines.engine import EngineRequest, StreamEnding, TokenStream
from gateway.engines.local import LocalEngine
from gateway.fleet.choice import EngineChooser
from gateway.fleet.fleet import Fleet
from gateway.fleet.member import Catalog, Member
from gateway.fleet.members import MemberGroup
from gateway.fleet.roster import EngineAddress
from support.engine.process import EngineProcess
from support.waiting import eventually_async

MODEL = "m"
TIERS = ("premium", "standard", "batch")
OnEngines = Callable[[Sequence[EngineAddress]], None]


class WrittenRoster:
    """The list that a test writes."""

    stale_since: float | None = None

    def __init__(self, engines: Sequence[EngineAddress]) -> None:
        self.engines = list(engines)
        self._changed = asyncio.Event()

    async def follow_engines(self, on_engines: OnEngines) -> None:
        while True:
            self._changed.clear()
            on_engines(list(self.engines))
            await self._changed.wait()

    def write_engines(self, engines: Sequence[EngineAddress]) -> None:
        self.engines = list(engines)
        self._changed.set()


class NoSources:
    """All engines are on this host."""

    def sources_of_adapter(self, digest: str) -> list[str]:
        return []

    async def sources_of_model(self, path: str) -> tuple[str, list[str]]:
        return "", []


class SmallFleet:
    """`engines` are by name; each is a process that can be killed and started again."""

    def __init__(self, directory: Path, count: int, **options: Any) -> None:
        self.engines: dict[str, EngineProcess] = {}
        self._directory = directory
        fake = {"step_ms": 2.0, "prefill_ms_per_1k_tokens": 1.0, **options.pop("fake", {})}
        self._silence_s = options.pop("silence_s", SILENCE_S)
        self._config = {"models": [{"name": MODEL, "path": ""}], "fake": fake, **options.pop("engine", {})}
        for number in range(count):
            self.start_engine(f"e{number}")
        self.roster = WrittenRoster([self.address(name) for name in self.engines])
        self.fleet = Fleet(
            self.roster,
            self._build_member,
            EngineChooser(TIERS),
            **{"resume_wait_s": 20.0, "on_refused": lambda refused: None, **options},
        )

    def start_engine(self, name: str) -> None:
        self.engines[name] = EngineProcess(self._directory / f"{name}.sock", self._config, "--fake")

    def address(self, name: str) -> EngineAddress:
        return EngineAddress(name, f"unix:{self._directory / name}.sock")

    def kill_engine(self, name: str) -> None:
        self.engines[name].stop(signal.SIGKILL)

    def _build_member(self, address: EngineAddress, fleet: MemberGroup) -> Member:
        catalog = Catalog(
            AdapterStore(self._directory / "adapters"),
            models=dict[str, BaseModel],
            models_fresh=lambda: False,
            adapters=dict[str, str],
            sources=NoSources(),
            kept=frozenset[str],
            pinned=frozenset[str],
        )
        return Member(
            address,
            LocalEngine(address.address, gateway="gw_small", silence_s=self._silence_s),
            catalog,
            fleet.confirmations,
            on_connect=fleet.note_connected,
            on_ready=fleet.note_ready,
            on_models=fleet.note_models,
            on_refused=fleet.note_refused,
        )

    async def all_ready(self) -> None:
        members = self.fleet.members
        await eventually_async(lambda: bool(members) and all(member.engine.ready for member in members.values()))

    def stop(self) -> None:
        for engine in self.engines.values():
            engine.stop(signal.SIGKILL)


@asynccontextmanager
async def small_fleet(directory: Path, count: int, **options: Any) -> AsyncIterator[SmallFleet]:
    made = SmallFleet(directory, count, **options)
    try:
        await made.fleet.start()
        await made.all_ready()
        yield made
    finally:
        await made.fleet.close()
        made.stop()


def request(number: int = 0, **fields: Any) -> EngineRequest:
    """A text that differs by `number`."""
    values: dict[str, Any] = {
        "request_id": f"req_{number}", "model": MODEL, "adapter": None, "namespace": "n", "tier": "standard",
        "share": "s", "weight": 1.0, "prompt_ids": [300 + number, 7, 8, 9] * 20, "prompt": None, "max_tokens": 200,
        "sampling": Sampling(seed=number), "stop_ids": [], "stops": [],
    }  # fmt: skip
    return EngineRequest(**{**values, **fields})


class Reading:
    """The ids and ending that a reader of a stream receives."""

    def __init__(self, stream: TokenStream) -> None:
        self.stream = stream
        self.ids: list[int] = []
        self.ended = asyncio.Event()
        stream.listen(self._on_news)

    def _on_news(self) -> None:
        self.ids += self.stream.take_output()
        if self.stream.final is not None:
            assert not self.ended.is_set(), "a stream ends once"
            self.ended.set()

    async def final(self, timeout_s: float = 30.0) -> StreamEnding:
        async with asyncio.timeout(timeout_s):
            await self.ended.wait()
        assert self.stream.final is not None
        return self.stream.final

    async def has(self, count: int) -> None:
        await eventually_async(lambda: len(self.ids) >= count)


def with_sampling(made: EngineRequest, **fields: Any) -> EngineRequest:
    return msgspec.structs.replace(made, sampling=msgspec.structs.replace(made.sampling, **fields))
