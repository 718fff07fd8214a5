"""The listener at fleet.store_address: who gets a byte, and of which files."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.contents.manifests import ADAPTER_FILES, encode_manifest, read_manifest
from engine.contents.model_digests import model_digest
from engine.protocol.tls import client_context, server_context
from support import oracle
from support.gateway.fleet_stores import FleetPeer, GatewayStore, fleet_files

WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayStore]:
    with GatewayStore(tmp_path / "gateway", fleet_files(tmp_path / "tls", "gateway-1")) as store:
        yield store


@pytest.fixture
def engine(gateway: GatewayStore, tmp_path: Path) -> Iterator[FleetPeer]:
    peer = FleetPeer(gateway.server.port, server_context(fleet_files(tmp_path / "tls", "engine-1")))
    yield peer
    peer.close()


def test_an_engine_reads_the_files_of_the_manifest_and_no_other(
    gateway: GatewayStore, engine: FleetPeer, tiny_dir: Path
) -> None:
    digest = gateway.keep_adapter(oracle.EXAMPLES / "tiny-pirate", tiny_dir)
    base = f"/internal/adapters/{digest}"
    status, data = engine.fetch(f"{base}/manifest")
    assert status == 200
    assert {file.name for file in read_manifest(data, "adapters", digest).files} == ADAPTER_FILES.keys()
    directory = gateway.adapters.path(digest)
    for name in ADAPTER_FILES:
        assert engine.fetch(f"{base}/{name}") == (200, (directory / name).read_bytes())
    assert (directory / "adapter_config.json").exists()
    for path in (
        f"{base}/adapter_config.json",
        f"{base}/../{digest}/{WEIGHTS}",
        f"{base}/%2e%2e%2f{WEIGHTS}",
        f"{base}/",
        f"{base}//{WEIGHTS}",
        f"{base}/{WEIGHTS}?x=1",
        f"/internal/adapters/..%2f..%2fserver.secret/{WEIGHTS}",
        f"/internal/adapters/{'0' * 64}/manifest",
        f"/internal/models/{digest}/manifest",
        "/internal/adapters/",
        "/metrics",
        "/",
    ):
        assert engine.fetch(path) == (404, b""), path


def test_ranges(gateway: GatewayStore, engine: FleetPeer, tiny_dir: Path) -> None:
    digest = gateway.keep_adapter(oracle.EXAMPLES / "tiny-pirate", tiny_dir)
    path = f"/internal/adapters/{digest}/{WEIGHTS}"
    data = (gateway.adapters.path(digest) / WEIGHTS).read_bytes()
    assert engine.fetch(path, Range="bytes=10-") == (206, data[10:])
    assert engine.fetch(path, Range="bytes=10-19") == (206, data[10:20])
    assert engine.fetch(path, Range=f"bytes=10-{2**40}") == (206, data[10:])
    assert engine.fetch(path, Range=f"bytes={len(data)}-") == (416, b"")
    assert engine.fetch(path, Range="bytes=5-4") == (416, b"")
    assert engine.fetch(path, Range="bytes=-5")[0] == 200, "a form that is not served is ignored"


def test_a_symbolic_link_in_an_adapters_directory_is_not_followed(
    gateway: GatewayStore, engine: FleetPeer, tiny_dir: Path, tmp_path: Path
) -> None:
    digest = gateway.keep_adapter(oracle.EXAMPLES / "tiny-pirate", tiny_dir)
    weights = gateway.adapters.path(digest) / WEIGHTS
    shutil.move(weights, tmp_path / "moved")
    weights.symlink_to(tmp_path / "moved")
    assert engine.fetch(f"/internal/adapters/{digest}/{WEIGHTS}") == (404, b"")


async def test_a_models_manifest_follows_its_files(
    gateway: GatewayStore, engine: FleetPeer, tiny_dir: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_dir, model)
    (model / "notes.txt").write_text("not for engines")
    digest, [source] = await gateway.sources().sources_of_model(str(model))
    assert digest == model_digest(model)
    assert source.startswith(f"fleet://127.0.0.1:{gateway.server.port}/internal/models/{digest}#sha256=")
    status, data = engine.fetch(f"/internal/models/{digest}/manifest")
    assert status == 200
    manifest = read_manifest(data, "models", digest)
    assert encode_manifest(manifest) == data
    assert "notes.txt" not in {file.name for file in manifest.files}
    assert engine.fetch(f"/internal/models/{digest}/tokenizer.json")[1] == (model / "tokenizer.json").read_bytes()
    (model / "tokenizer_config.json").write_text("{}")
    assert engine.fetch(f"/internal/models/{digest}/manifest")[0] == 404, "its files changed"
    again, [changed] = await gateway.sources().sources_of_model(str(model))
    assert again == digest
    assert changed != source, "the manifest's sum covers the tokenizer"


async def test_a_kept_manifest_is_not_computed_again(
    gateway: GatewayStore, engine: FleetPeer, tiny_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By a later process, and by another worker of the host, which serves it by digest."""
    digest, _ = await gateway.sources().sources_of_model(str(tiny_dir))
    caplog.set_level("INFO")
    with GatewayStore(tmp_path / "gateway", fleet_files(tmp_path / "tls", "gateway-1")) as other:
        peer = FleetPeer(other.server.port, server_context(fleet_files(tmp_path / "tls", "engine-1")))
        assert peer.fetch(f"/internal/models/{digest}/manifest")[0] == 200
        peer.close()
        assert (await other.sources().sources_of_model(str(tiny_dir)))[0] == digest
    assert "model.manifest_made" not in caplog.text


@pytest.mark.parametrize("who", ["no certificate", "another authority", "a gateway", "a client", "plain HTTP"])
def test_a_peer_without_an_engines_certificate_gets_no_byte(
    who: str, gateway: GatewayStore, tiny_dir: Path, tmp_path: Path
) -> None:
    digest = gateway.keep_adapter(oracle.EXAMPLES / "tiny-pirate", tiny_dir)
    path = f"/internal/adapters/{digest}/manifest"
    port = gateway.server.port
    if who == "plain HTTP":
        with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
            plain.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            received = b""
            with contextlib.suppress(ConnectionError):
                while data := plain.recv(65536):
                    received += data
        assert b"HTTP" not in received
        assert b"sha256" not in received
        return
    contexts = {
        "no certificate": lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        "another authority": lambda: server_context(fleet_files(tmp_path / "others", "engine-1")),
        "a gateway": lambda: server_context(fleet_files(tmp_path / "tls", "gateway-1")),
        "a client": lambda: client_context(fleet_files(tmp_path / "tls", "both-1")),
    }
    context = contexts[who]()
    as_server = who != "a client"
    if not as_server:
        context.check_hostname = False
    peer = FleetPeer(port, context, as_server=as_server)
    with pytest.raises((OSError, http.client.HTTPException)):
        peer.fetch(path)
    peer.close()


def test_an_engine_refuses_a_store_of_another_authority(tiny_dir: Path, tmp_path: Path) -> None:
    with GatewayStore(tmp_path / "gateway", fleet_files(tmp_path / "others", "gateway-1")) as foreign:
        peer = FleetPeer(foreign.server.port, server_context(fleet_files(tmp_path / "tls", "engine-1")))
        with pytest.raises((OSError, http.client.HTTPException)):
            peer.fetch(f"/internal/adapters/{'0' * 64}/manifest")
        peer.close()
