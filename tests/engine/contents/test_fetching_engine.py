"""Engines that cannot read a gateway's directories fetch adapters and models by digest, and verify every byte."""

from __future__ import annotations

import asyncio
import functools
import http.server
import json
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.contents.manifests import encode_manifest
from engine.contents.model_digests import model_digest
from engine.protocol.frames import (
    AdapterState,
    LoadAdapter,
    LoadModel,
    Models,
    ModelState,
    UnloadAdapter,
    UnloadModel,
)
from engine.protocol.tls import server_context
from support import oracle
from support.engine.process import EngineProcess, Peer
from support.gateway.fleet_stores import CuttingProxy, GatewayStore, fleet_files
from support.waiting import eventually

ADAPTER = oracle.EXAMPLES / "tiny-pirate"
OTHER = oracle.EXAMPLES / "tiny-bullets"
NOWHERE = "/nonexistent/laneway"
PROMPT = list(range(300, 320))
StartEngine = Callable[..., EngineProcess]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    fleet_files(directory, "engine-1")
    return directory


@pytest.fixture
def gateway(tmp_path: Path, certificates: Path) -> Iterator[GatewayStore]:
    with GatewayStore(tmp_path / "gateway", fleet_files(certificates, "gateway-1")) as store:
        yield store


@pytest.fixture
def start(socket_dir: Path, certificates: Path, tmp_path: Path, tiny_dir: Path) -> Iterator[StartEngine]:
    """An engine of laneway-tiny with a store of its own: `start(fake=True, store="other", **fields)`."""
    started: list[EngineProcess] = []

    def start_engine(
        *, fake: bool = False, store: str = "store", member: str = "engine-1", **config: Any
    ) -> EngineProcess:
        files = fleet_files(certificates, member)
        whole = {
            "models": [{"name": "laneway-tiny", "path": str(tiny_dir)}],
            "arena_bytes": 64 * 1024 * 1024,
            "store_free_min_bytes": 0,
            "fake": {"step_ms": 1.0},
            "threads": 1,
        }
        flags = ["--certificate", files.certificate, "--key", files.key, "--authority", files.authority]
        flags += ["--store", tmp_path / store, "--raise-targets", *(["--fake"] if fake else [])]
        socket = socket_dir / f"f{len(list(socket_dir.iterdir()))}.sock"
        started.append(EngineProcess(socket, whole | config, *map(str, flags)))
        return started[-1]

    yield start_engine
    for engine in started:
        engine.stop(signal.SIGKILL)


@pytest.fixture
async def peer_of() -> AsyncIterator[Callable[[EngineProcess], Any]]:
    peers: list[Peer] = []

    async def connect(engine: EngineProcess) -> Peer:
        peers.append(await Peer.connect(engine.socket))
        return peers[-1]

    yield connect
    for peer in peers:
        await peer.close()


async def adapter_state(peer: Peer, digest: str, sources: list[str]) -> AdapterState:
    peer.send(LoadAdapter(digest, "laneway-tiny", f"{NOWHERE}/{digest}", sources=sources))
    return await peer.expect(AdapterState, 60)


async def model_state(peer: Peer, name: str, digest: str, sources: list[str], path: str = NOWHERE) -> ModelState:
    peer.send(LoadModel(name, path, "float32", 512, digest=digest, sources=sources))
    return await peer.expect(ModelState, 60)


async def load_model(peer: Peer, name: str, digest: str, sources: list[str], path: str = NOWHERE) -> None:
    state = await model_state(peer, name, digest, sources, path)
    assert (state.state, state.message) == ("loaded", "")


async def generated(peer: Peer, handle: int, **changes: Any) -> list[int]:
    peer.send(peer.submit(handle, prompt_ids=PROMPT, stop_ids=[], **changes))
    ids, ending = (await peer.until_ended(handle))[handle]
    assert ending.reason == "length", ending
    return ids


def fetched(engine: EngineProcess) -> list[dict[str, Any]]:
    return engine.events("content.fetched")


@pytest.mark.parametrize("fake", [True, False], ids=["fake", "cpu"])
async def test_an_adapter_of_a_path_that_is_not_here_comes_from_the_gateways_store(
    fake: bool, gateway: GatewayStore, start: StartEngine, peer_of: Callable[..., Any], tiny_dir: Path
) -> None:
    digest = gateway.keep_adapter(ADAPTER, tiny_dir)
    peer = await peer_of(start(fake=fake))
    state = await adapter_state(peer, digest, gateway.sources().sources_of_adapter(digest))
    assert (state.state, state.message) == ("loaded", "")
    there = await generated(peer, 1, adapter=digest)
    if fake:
        return
    local = await peer_of(start(store="unused"))
    local.send(LoadAdapter(digest, "laneway-tiny", str(gateway.adapters.path(digest))))
    assert (await local.expect(AdapterState)).state == "loaded"
    assert there == await generated(local, 1, adapter=digest)
    assert there != await generated(local, 2)


@pytest.mark.parametrize("fake", [True, False], ids=["fake", "cpu"])
async def test_a_model_comes_from_the_gateways_store_with_its_tokenizer(
    fake: bool,
    gateway: GatewayStore,
    start: StartEngine,
    peer_of: Callable[..., Any],
    tiny_dir: Path,
    tmp_path: Path,
) -> None:
    digest, sources = await gateway.sources().sources_of_model(str(tiny_dir))
    assert digest == model_digest(tiny_dir)
    peer = await peer_of(start(fake=fake))
    peer.send(LoadModel("copy", NOWHERE, "float32", 512, digest=digest, sources=sources))
    models = await peer.expect(Models, 60)
    assert {model.name: model.digest for model in models.models}["copy"] == digest
    assert (await peer.expect(ModelState)).state == "loaded"
    assert await generated(peer, 1, model="copy") == await generated(peer, 2) or fake
    entry = tmp_path / "store" / "models" / digest
    for name in ("tokenizer.json", "model.safetensors", "chat_template.jinja"):
        assert (entry / name).read_bytes() == (tiny_dir / name).read_bytes()
    assert not (entry / "README.md").exists()


async def test_a_path_that_is_here_needs_no_source(
    gateway: GatewayStore, start: StartEngine, peer_of: Callable[..., Any], tiny_dir: Path, tmp_path: Path
) -> None:
    digest, sources = await gateway.sources().sources_of_model(str(tiny_dir))
    engine = start()
    peer = await peer_of(engine)
    await load_model(peer, "copy", digest, sources, str(tiny_dir))
    assert not fetched(engine)
    assert not (tmp_path / "store").exists()


async def test_a_later_engine_process_finds_the_content_in_its_store(
    gateway: GatewayStore, start: StartEngine, peer_of: Callable[..., Any], tiny_dir: Path
) -> None:
    digest = gateway.keep_adapter(ADAPTER, tiny_dir)
    sources = gateway.sources().sources_of_adapter(digest)
    assert (await adapter_state(await peer_of(start(fake=True)), digest, sources)).state == "loaded"
    gateway.server.close()
    second = start(fake=True)
    assert (await adapter_state(await peer_of(second), digest, sources)).state == "loaded"
    assert not fetched(second)


async def test_the_same_model_at_another_path_is_the_same_model(
    gateway: GatewayStore, start: StartEngine, peer_of: Callable[..., Any], tiny_dir: Path
) -> None:
    digest, sources = await gateway.sources().sources_of_model(str(tiny_dir))
    engine = start()
    peer = await peer_of(engine)
    peer.send(LoadModel("laneway-tiny", NOWHERE, "float32", digest=digest, sources=sources))
    assert (await peer.expect(ModelState)).state == "loaded", "the model of the engine's own configuration"
    await load_model(peer, "copy", digest, sources)
    await load_model(peer, "copy", digest, sources, "/elsewhere")
    other = await model_state(peer, "copy", "0" * 64, sources)
    assert (other.state, other.code) == ("failed", "other_served")
    assert len(fetched(engine)) == 1


async def test_a_corrupted_source_is_refused_and_the_next_one_is_used(
    gateway: GatewayStore,
    start: StartEngine,
    peer_of: Callable[..., Any],
    tiny_dir: Path,
    tmp_path: Path,
) -> None:
    digest = gateway.keep_adapter(ADAPTER, tiny_dir)
    content = gateway.manifests.adapter(digest)
    assert content is not None
    bad = tmp_path / "bad" / digest
    shutil.copytree(content.directory, bad)
    weights = bytearray((bad / "adapter_model.safetensors").read_bytes())
    weights[-5] ^= 1
    (bad / "adapter_model.safetensors").write_bytes(weights)
    (bad / "manifest").write_bytes(encode_manifest(content.manifest))
    engine = start(fake=True)
    peer = await peer_of(engine)
    state = await adapter_state(peer, digest, [bad.as_uri()])
    assert state.state == "failed"
    assert f"{bad.as_uri()}: its content is" in state.message
    assert not list((tmp_path / "store" / ".incoming").iterdir()), "nothing of it is left"
    good = gateway.sources().sources_of_adapter(digest)
    assert (await adapter_state(peer, digest, [bad.as_uri(), *good])).state == "loaded"
    assert [line["source"] for line in fetched(engine)] == good


@pytest.mark.parametrize("spoiled", ["model.safetensors", "tokenizer.json", "manifest", "config.json"])
async def test_a_model_with_a_changed_file_is_refused(
    spoiled: str,
    gateway: GatewayStore,
    start: StartEngine,
    peer_of: Callable[..., Any],
    tiny_dir: Path,
    tmp_path: Path,
) -> None:
    digest, [good] = await gateway.sources().sources_of_model(str(tiny_dir))
    bad = tmp_path / "bad" / digest
    bad.mkdir(parents=True)
    _, manifest = gateway.manifests.model_at(str(tiny_dir))
    for file in manifest.files:
        shutil.copy(tiny_dir / file.name, bad)
    (bad / "manifest").write_bytes(encode_manifest(manifest))
    data = bytearray((bad / spoiled).read_bytes())
    data[len(data) // 2] ^= 1
    (bad / spoiled).write_bytes(data)
    peer = await peer_of(start(fake=True))
    state = await model_state(peer, "copy", digest, [f"{bad.as_uri()}#{good.partition('#')[2]}"])
    assert (state.state, state.code) == ("failed", "refused")
    assert bad.as_uri() in state.message


async def test_a_cut_download_resumes_where_it_was_cut(
    gateway: GatewayStore, start: StartEngine, peer_of: Callable[..., Any], tiny_dir: Path
) -> None:
    # The second answer is the model's first large file; each of these connections ends within it.
    proxy = CuttingProxy(gateway.server.port, [100_000_000] * 4 + [700_000, 900_000, 50])
    digest, sources = await gateway.sources(proxy.port).sources_of_model(str(tiny_dir))
    engine = start(fake=True)
    await load_model(await peer_of(engine), "copy", digest, sources)
    proxy.close()
    [line] = fetched(engine)
    assert line["bytes"] == line["bytes_total"], "no byte was received twice"
    assert proxy.passed < line["bytes_total"] + 100_000


async def test_what_a_killed_engine_has_received_is_not_fetched_again(
    gateway: GatewayStore, start: StartEngine, peer_of: Callable[..., Any], tiny_dir: Path, tmp_path: Path
) -> None:
    digest, sources = await gateway.sources().sources_of_model(str(tiny_dir))
    left = tmp_path / "store" / ".incoming" / f"models-{digest}" / "model.safetensors"
    left.parent.mkdir(parents=True)
    left.write_bytes((tiny_dir / "model.safetensors").read_bytes()[:1_000_000])
    engine = start(fake=True)
    await load_model(await peer_of(engine), "copy", digest, sources)
    [line] = fetched(engine)
    assert line["bytes"] == line["bytes_total"] - 1_000_000


async def test_wrong_bytes_of_an_earlier_download_are_fetched_again(
    gateway: GatewayStore, start: StartEngine, peer_of: Callable[..., Any], tiny_dir: Path, tmp_path: Path
) -> None:
    digest, sources = await gateway.sources().sources_of_model(str(tiny_dir))
    left = tmp_path / "store" / ".incoming" / f"models-{digest}" / "model.safetensors"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"?" * 1_000_000)
    engine = start(fake=True)
    await load_model(await peer_of(engine), "copy", digest, sources)
    assert (tmp_path / "store" / "models" / digest / "model.safetensors").read_bytes() == (
        tiny_dir / "model.safetensors"
    ).read_bytes()


async def test_two_loads_of_one_digest_at_a_time_fetch_it_once(
    gateway: GatewayStore, start: StartEngine, peer_of: Callable[..., Any], tiny_dir: Path
) -> None:
    """Under two names in one engine, and in two engines that share a store."""
    digest, sources = await gateway.sources().sources_of_model(str(tiny_dir))
    engines = [start(fake=True), start(fake=True)]
    peers = [await peer_of(engine) for engine in engines]
    for peer in peers:
        for name in ("one", "two"):
            peer.send(LoadModel(name, NOWHERE, "float32", digest=digest, sources=sources))
    for peer in peers:
        assert [(await peer.expect(ModelState, 60)).state for _ in range(2)] == ["loaded", "loaded"]
    assert sum(len(fetched(engine)) for engine in engines) == 1


async def test_a_full_disk_refuses_the_download_and_leaves_nothing(
    gateway: GatewayStore, start: StartEngine, peer_of: Callable[..., Any], tiny_dir: Path, tmp_path: Path
) -> None:
    digest, sources = await gateway.sources().sources_of_model(str(tiny_dir))
    peer = await peer_of(start(fake=True, store_free_min_bytes=2**50))
    state = await model_state(peer, "copy", digest, sources)
    assert state.state == "failed"
    assert "stay free" in state.message
    assert not list((tmp_path / "store" / ".incoming").iterdir())


async def test_entries_that_nothing_uses_are_evicted_and_no_other(
    gateway: GatewayStore, start: StartEngine, peer_of: Callable[..., Any], tiny_dir: Path, tmp_path: Path
) -> None:
    first, second = gateway.keep_adapter(ADAPTER, tiny_dir), gateway.keep_adapter(OTHER, tiny_dir)
    sources = gateway.sources()
    sizes = [gateway.manifests.adapter(digest).manifest.bytes for digest in (first, second)]  # type: ignore[union-attr]
    engine = start(fake=True, store_bytes_max=max(sizes) + 2000)
    peer, entries = await peer_of(engine), tmp_path / "store" / "adapters"
    assert (await adapter_state(peer, first, sources.sources_of_adapter(first))).state == "loaded"
    full = await adapter_state(peer, second, sources.sources_of_adapter(second))
    assert full.state == "failed"
    assert "store_bytes_max" in full.message
    assert [path.name for path in entries.iterdir()] == [first], "it is registered"
    peer.send(UnloadAdapter(first))
    assert (await peer.expect(AdapterState)).state == "unloaded"
    eventually(lambda: not list((tmp_path / "store" / ".held").glob(f"*/adapters-{first}")))
    assert (await adapter_state(peer, second, sources.sources_of_adapter(second))).state == "loaded"
    assert [path.name for path in entries.iterdir()] == [second]


async def test_a_model_is_kept_while_any_engine_serves_it(
    gateway: GatewayStore, start: StartEngine, peer_of: Callable[..., Any], tiny_dir: Path, tmp_path: Path
) -> None:
    digest, sources = await gateway.sources().sources_of_model(str(tiny_dir))
    limit = gateway.manifests.model_at(str(tiny_dir))[1].bytes + 100_000
    keeping, leaving = start(fake=True, store_bytes_max=limit), start(fake=True, store_bytes_max=limit)
    peers = [await peer_of(engine) for engine in (keeping, leaving)]
    for peer in peers:
        await load_model(peer, "copy", digest, sources)
    peers[1].send(UnloadModel("copy"))
    assert (await peers[1].expect(ModelState)).state == "unloaded"
    other = tmp_path / "other"
    shutil.copytree(tiny_dir, other)
    config = json.loads((other / "config.json").read_bytes())
    (other / "config.json").write_text(json.dumps(config | {"comment": "another digest"}))
    other_digest, other_sources = await gateway.sources().sources_of_model(str(other))
    assert (await model_state(peers[1], "other", other_digest, other_sources)).state == "failed"
    keeping.stop(signal.SIGKILL)  # its holds end with it
    await load_model(peers[1], "other", other_digest, other_sources)
    assert not (tmp_path / "store" / "models" / digest).exists()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("s3://AKIAKEY:hunter2@bucket/x", "s3://bucket/x: a source has no user, password or query"),
        ("https://user:hunter2@127.0.0.1/x?sig=hunter2", "https://127.0.0.1/x: a source has no user"),
        ("http://192.0.2.1/x", "loopback"),
        ("fleet://127.0.0.1:1/x", "fleet://127.0.0.1:1/x: Connection refused"),
        ("gopher://h/x", "must begin with s3://"),
        ("file:///nonexistent/x", "file:///nonexistent/x"),
        ("https://[::1", "a source is no URL"),
    ],
)
async def test_a_failed_source_is_named_without_its_credentials(
    source: str, reason: str, start: StartEngine, peer_of: Callable[..., Any]
) -> None:
    engine = start(fake=True)
    state = await adapter_state(await peer_of(engine), "ab" * 32, [source])
    assert state.state == "failed"
    assert reason in state.message
    assert "hunter2" not in state.message + engine.log()


class _HttpsFiles(http.server.SimpleHTTPRequestHandler):
    """A server of files without Range; it logs nothing."""

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("member", ["engine-1", "both-1"])
async def test_an_https_server_of_the_fleet_is_a_source(
    member: str,
    gateway: GatewayStore,
    start: StartEngine,
    peer_of: Callable[..., Any],
    certificates: Path,
    tiny_dir: Path,
    tmp_path: Path,
) -> None:
    """With a certificate that is for clients too: one for engines alone opens no HTTPS server."""
    digest = gateway.keep_adapter(ADAPTER, tiny_dir)
    content = gateway.manifests.adapter(digest)
    assert content is not None
    shutil.copytree(content.directory, tmp_path / "www" / digest)
    (tmp_path / "www" / digest / "manifest").write_bytes(encode_manifest(content.manifest))
    handler = functools.partial(_HttpsFiles, directory=str(tmp_path / "www"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = server_context(fleet_files(certificates, "both-1")).wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        peer = await peer_of(start(fake=True, member=member))
        state = await adapter_state(peer, digest, [f"https://127.0.0.1:{server.server_address[1]}/{digest}"])
        server.shutdown()
    assert state.state == ("loaded" if member == "both-1" else "failed"), state.message


async def test_checks_of_files_that_are_here_do_not_wait_for_downloads(
    gateway: GatewayStore, start: StartEngine, peer_of: Callable[..., Any], tiny_dir: Path
) -> None:
    """A source that never answers holds the download, and no other change."""
    accepted: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(lambda _reader, writer: accepted.append(writer), "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        peer = await peer_of(start(fake=True))
        peer.send(LoadAdapter("ab" * 32, "laneway-tiny", NOWHERE, sources=[f"fleet://127.0.0.1:{port}/x"]))
        digest = gateway.keep_adapter(ADAPTER, tiny_dir)
        peer.send(LoadAdapter(digest, "laneway-tiny", str(gateway.adapters.path(digest))))
        state = await peer.expect(AdapterState)
        assert (state.digest, state.state) == (digest, "loaded")
        for writer in accepted:
            writer.close()
            await writer.wait_closed()
