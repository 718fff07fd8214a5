"""What gateways have one engine serve: a model that has no row goes, one that was restored comes back."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adapters.files.store import AdapterStore
from billing.accounts import prices
from engine.contents.manifests import encode_manifest
from engine.protocol.frames import Sampling
from gateway.admin.administration import Administration
from gateway.admin.model_rollout import ModelRollout
from gateway.admin.models import NewModel
from gateway.admin.writes import Actor
from gateway.catalog.base_models import BaseModel
from gateway.engines import model_sync
from gateway.engines.engine import EngineRequest
from gateway.engines.local import LocalEngine, LocalStream
from gateway.engines.model_sync import ModelLoader
from gateway.uploads.content_manifests import ContentManifests
from support.stack import MODEL, Stack
from support.waiting import eventually_async

FIRST, SECOND = "first", "second"


def model(name: str, *, active: bool = True) -> BaseModel:
    return BaseModel(
        id=None, name=name, origin="config", path="", directory="", dtype="float32", quantize="none",
        kv_dtype="auto", context_tokens=None, pinned=False, tenants=None,
        fallbacks=(), max_tokens_default=None, active=active, created_at=None, changed_at=None,
    )  # fmt: skip


async def streaming(client: LocalEngine) -> LocalStream:
    """A stream of many tokens on the second model; it has begun."""
    request = EngineRequest(
        request_id="req", model=SECOND, adapter=None, namespace="", tier="standard", share="", weight=1.0,
        prompt_ids=[300], prompt=None, max_tokens=8000, sampling=Sampling(), stop_ids=[], stops=[],
    )  # fmt: skip
    stream = client.submit(request)
    begun = asyncio.Event()
    stream.listen(begun.set)
    await begun.wait()
    return stream


class Side:
    """A gateway's side: its client, its loader, and what it has read of the database."""

    def __init__(self, socket: Path) -> None:
        self.rows = {FIRST: model(FIRST)}
        self.refused: Mapping[str, str] = {}
        self.fresh = True
        self.client = LocalEngine(socket)
        self.loader = ModelLoader(self.client, lambda: self.rows, self._told, lambda name: None, lambda: self.fresh)
        self.client.on_models = lambda models: self.loader.follow()

    def _told(self, refused: Mapping[str, str]) -> None:
        self.refused = refused

    def say(self, *rows: BaseModel) -> None:
        """The database does, from now on."""
        self.rows = {FIRST: model(FIRST)} | {row.name: row for row in rows}
        self.loader.follow()

    def serves(self, name: str) -> bool:
        return name in self.client.models

    async def __aenter__(self) -> Side:
        await self.client.start()
        await self.client.wait_ready(10)
        self.loader.connected()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.loader.close()
        await self.client.close()


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[Path]:
    """Of a fake engine."""
    path, config = tmp_path / "engine.sock", tmp_path / "engine.json"
    config.write_text(json.dumps({"models": [{"name": FIRST}], "fake": {"step_ms": 10.0, "model_load_ms": 50.0}}))
    argv = [sys.executable, "-m", "engine", "--socket", str(path), "--config", str(config), "--fake"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        assert engine.stdout.readline(), "the engine did not start"
        yield path
        engine.kill()


@pytest.fixture
async def sides(socket: Path) -> AsyncIterator[tuple[Side, Side]]:
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(Side(socket)), await stack.enter_async_context(Side(socket))


async def test_what_has_no_row_goes_and_what_gets_one_stays(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an add that was given up, and of one whose row came after the engine had it."""
    one, other = sides
    monkeypatch.setattr(model_sync, "ROWLESS_S_MAX", 3600.0)
    for name in ("given-up", "late"):
        await other.client.load_model(name, "")
    await eventually_async(lambda: one.serves("given-up") and one.serves("late"))
    assert one.serves("given-up"), "whoever adds it may be about to write its row"
    for side in sides:
        side.say(model("late"))
    monkeypatch.setattr(model_sync, "ROWLESS_S_MAX", 0.0)
    one.loader.follow()
    await eventually_async(lambda: not one.serves("given-up") and not other.serves("given-up"))
    assert one.serves("late")
    assert one.serves(FIRST)
    # Where another gateway's laneway.toml has it, the two do not fight over it.
    other.say(model("late"), model("given-up"))
    await eventually_async(lambda: one.serves("given-up"))
    one.loader.follow()
    await asyncio.sleep(0.1)
    assert one.serves("given-up")


async def test_what_has_no_row_stays_while_nobody_can_tell(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that cannot read the database takes nothing from others that can."""
    one, other = sides
    monkeypatch.setattr(model_sync, "ROWLESS_S_MAX", 0.0)
    one.fresh = other.fresh = False
    await other.client.load_model("late", "")
    await eventually_async(lambda: one.serves("late") and other.serves("late"))
    for side in sides:
        side.loader.follow()
    await asyncio.sleep(0.1)
    assert one.serves("late")
    one.fresh = True
    one.loader.follow()
    await eventually_async(lambda: not one.serves("late") and not other.serves("late"))


async def test_one_that_is_restored_while_another_gateway_unloads_it(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back once what runs on it has ended, by itself, and is not told to be refused meanwhile."""
    one, other = sides
    monkeypatch.setattr(model_sync, "UNLOAD_AFTER_S", 0.0)
    for side in sides:
        side.say(model(SECOND))
    await eventually_async(lambda: one.serves(SECOND) and other.serves(SECOND))
    stream = await streaming(one.client)
    other.say(model(SECOND, active=False))
    await eventually_async(lambda: not one.serves(SECOND))
    for side in sides:
        side.say(model(SECOND))
    await asyncio.sleep(model_sync.RETURN_S)
    assert stream.ending is None
    assert one.refused == other.refused == {}
    assert not one.serves(SECOND)
    stream.abort()
    await eventually_async(lambda: one.serves(SECOND) and other.serves(SECOND))
    assert one.refused == other.refused == {}


async def test_another_model_of_the_name_is_being_loaded(sides: tuple[Side, Side]) -> None:
    """Two gateways whose databases say different things of a name for a moment: the one that asks second waits and
    tries again. It does not count the model as refused, which callers get a 503 for."""
    one, other = sides
    first = msgspec.structs.replace(model(SECOND), origin="added")  # what the engine's own file has is told to nobody
    mine = msgspec.structs.replace(first, context_tokens=99)
    refused: list[Mapping[str, str]] = []
    other.loader._on_refused = refused.append
    one.say(first)
    await asyncio.sleep(0.01)
    other.say(mine)
    await asyncio.sleep(0.03)
    one.say(mine)
    await eventually_async(lambda: one.serves(SECOND) and one.client.models[SECOND].context_tokens == 99)
    assert not any(refused), refused


async def test_nothing_is_begun_after_the_end(sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = sides
    monkeypatch.setattr(model_sync, "RETRY_S", 0.05)
    one.say(msgspec.structs.replace(model(SECOND), context_tokens=-1))
    await eventually_async(lambda: SECOND in one.refused)
    await one.loader.close()
    one.say(model(SECOND))
    await asyncio.sleep(0.2)
    assert not other.serves(SECOND)


async def test_whoever_restores_one_that_still_drains_waits_for_it(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack(fake={"step_ms": 10.0})
    directory = stack.config.models_dir / SECOND
    shutil.copytree(stack.model_dir, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    price: dict[str, Any] = {
        "input": 1,
        "cached_input": 1,
        "output": 1,
        "multipliers": {"premium": 1, "standard": 1, "batch": 1},
    }
    await asyncio.to_thread(stack.write, lambda c: prices.publish(c, subject=SECOND, **price))
    administration, said = Administration(stack.config, Actor("cli:test")), list[str]()
    client = LocalEngine(stack.config.socket_path)
    await client.start()
    try:
        await client.wait_ready(10)
        changes = ModelRollout(stack.database, client, administration, said.append)
        await changes.add_model(NewModel(name=SECOND, path=SECOND), lambda name, files: None)
        stream = await streaming(client)
        await asyncio.to_thread(stack.write, lambda c: administration.models.remove(c, SECOND))
        await eventually_async(lambda: SECOND not in client.models)
        restored = asyncio.create_task(changes.restore(SECOND, lambda name, files: None))
        await eventually_async(lambda: "waiting for requests from before the model's removal" in said[-1])
        assert stream.ending is None
        stream.abort()
        assert (await restored).active
        assert set(client.models) == {MODEL, SECOND}
    finally:
        await client.close()


class CopiedModel:
    """Implements `ContentSources` for one model, which is in a folder of its own beside its manifest."""

    def __init__(self, source: Path, folder: Path) -> None:
        manifests = ContentManifests(AdapterStore(folder / "adapters"), folder / "manifests")
        self.digest, manifest = manifests.model_at(str(source))
        self.folder = folder / self.digest
        self.folder.mkdir()
        for file in manifest.files:
            shutil.copy(source / file.name, self.folder)
        (self.folder / "manifest").write_bytes(encode_manifest(manifest))

    def sources_of_adapter(self, digest: str) -> list[str]:
        return []

    async def sources_of_model(self, path: str) -> tuple[str, list[str]]:
        if path == "/unreadable":
            raise OSError("it is not on this host")
        return self.digest, [self.folder.as_uri()]


async def test_an_engine_of_another_host_gets_digest_and_sources(socket: Path, tiny_dir: Path, tmp_path: Path) -> None:
    """A directory that the gateway cannot read may be on the engine's host: it gets the path alone."""
    copied = CopiedModel(tiny_dir, tmp_path)
    async with Side(socket) as side:
        side.loader = ModelLoader(
            side.client, lambda: side.rows, side._told, lambda name: None, lambda: True, sources=copied
        )
        side.say(
            msgspec.structs.replace(model("fetched"), path="/nonexistent/model"),
            msgspec.structs.replace(model("there"), path="/unreadable"),
        )
        await eventually_async(lambda: side.serves("fetched") and side.serves("there"))
        assert side.client.models["fetched"].digest == copied.digest
        assert side.client.models["there"].digest != copied.digest
    assert (tmp_path / "store" / "models" / copied.digest / "tokenizer.json").exists()
