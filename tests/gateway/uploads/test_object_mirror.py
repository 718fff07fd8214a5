"""A gateway's copies in an object store, a directory or S3, and an engine on another host that loads them."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.files.facts import Facts
from billing import revision
from billing.database import Database
from engine.contents.object_stores import open_object_store
from engine.protocol.frames import AdapterState, LoadAdapter, LoadModel, ModelState
from engine.protocol.tls import server_context
from gateway.access import keys
from gateway.catalog import adapters as adapter_rows
from gateway.uploads.object_mirror import ObjectMirror
from support import oracle
from support.engine.process import EngineProcess, Peer
from support.gateway.fleet_stores import FleetPeer, GatewayStore, fleet_files
from support.gateway.s3_server import BUCKET, s3_server
from support.ports import free_port
from support.stack import MODEL, Stack
from support.waiting import eventually

NOWHERE = "/nonexistent/laneway"
PIRATE = oracle.EXAMPLES / "tiny-pirate"


@pytest.fixture(params=["directory", "s3"])
def object_store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty folder. Credentials are in the environment, which processes of the test inherit."""
    if request.param == "directory":
        (tmp_path / "objects").mkdir()
        yield (tmp_path / "objects").as_uri()
        return
    with s3_server() as environ:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        yield f"s3://{BUCKET}/laneway"


@pytest.fixture
def start_engine() -> Iterator[Callable[[], EngineProcess]]:
    started: list[EngineProcess] = []
    with tempfile.TemporaryDirectory(prefix="lw") as directory:

        def start() -> EngineProcess:
            config = {"models": [{"name": "m"}], "store_free_min_bytes": 0, "fake": {"step_ms": 1.0}}
            started.append(EngineProcess(Path(directory) / "e.sock", config, "--fake"))
            return started[-1]

        yield start
        for engine in started:
            engine.stop(signal.SIGKILL)


def names(url: str) -> set[str]:
    import obstore

    return {found["path"] for batch in obstore.list(open_object_store(url)) for found in batch}


def register(database: Database, digest: str) -> str:
    """The adapter's id."""

    def run(connection: Any) -> str:
        revision.bump(connection)
        wanted = adapter_rows.Registration(name="pirate", tenant_id=None, base_model="m", promote=True)
        return adapter_rows.add_version(connection, wanted, Facts(digest))[0].id

    return database.write_sync(run)


async def test_an_engine_loads_what_a_gateway_copied(
    object_store: str,
    sqlite_database: Database,
    start_engine: Callable[[], EngineProcess],
    tiny_dir: Path,
    tmp_path: Path,
) -> None:
    store = GatewayStore(tmp_path / "gateway", fleet_files(tmp_path / "tls", "gateway-1"))
    digest = store.keep_adapter(PIRATE, tiny_dir)
    mirror = ObjectMirror(object_store, sqlite_database, store.manifests, lambda: [str(tiny_dir)])
    register(sqlite_database, digest)
    assert await mirror.complete_store() == 2, "the adapter and the model"
    assert await mirror.complete_store() == 0
    model, _ = store.manifests.model_at(str(tiny_dir))
    engine = start_engine()
    peer = await Peer.connect(engine.socket)
    peer.send(LoadAdapter(digest, "m", NOWHERE, sources=[f"{object_store}/adapters/{digest}"]))
    state = await peer.expect(AdapterState, 60)
    assert (state.state, state.message) == ("loaded", "")
    peer.send(LoadModel("copy", NOWHERE, "float32", digest=model, sources=[f"{object_store}/models/{model}"]))
    loaded = await peer.expect(ModelState, 60)
    assert (loaded.state, loaded.message) == ("loaded", "")
    peer.send(LoadAdapter("ab" * 32, "m", NOWHERE, sources=[f"{object_store}/adapters/{'ab' * 32}"]))
    missing = await peer.expect(AdapterState, 60)
    reason = "there is no such directory" if object_store.startswith("file:") else "manifest: not found"
    assert missing.message.endswith(f"{object_store}/adapters/{'ab' * 32}: {reason}")
    await peer.close()
    assert "secret-of-the-test" not in engine.log()


async def test_a_removed_adapter_leaves_the_object_store(
    object_store: str, sqlite_database: Database, tiny_dir: Path, tmp_path: Path
) -> None:
    store = GatewayStore(tmp_path / "gateway", fleet_files(tmp_path / "tls", "gateway-1"))
    digest = store.keep_adapter(PIRATE, tiny_dir)
    mirror = ObjectMirror(object_store, sqlite_database, store.manifests, sweep_s=0.0)
    register(sqlite_database, digest)
    await mirror.complete_store()
    await mirror.complete_store()
    assert {name.split("/")[1] for name in names(object_store)} == {digest}
    pirate = sqlite_database.read_sync(lambda c: adapter_rows.named(c, None, "pirate"))
    assert pirate is not None
    sqlite_database.write_sync(lambda c: adapter_rows.remove_adapter_and_versions(c, pirate.id))
    await mirror.complete_store()
    assert names(object_store) == set()


async def test_an_unreachable_object_store_is_tried_again(
    sqlite_database: Database, tiny_dir: Path, tmp_path: Path
) -> None:
    store = GatewayStore(tmp_path / "gateway", fleet_files(tmp_path / "tls", "gateway-1"))
    register(sqlite_database, store.keep_adapter(PIRATE, tiny_dir))
    (tmp_path / "objects").write_text("a file where the folder should be")
    mirror = ObjectMirror((tmp_path / "objects").as_uri(), sqlite_database, store.manifests)
    with pytest.raises(OSError, match="objects"):
        await mirror.complete_store()
    (tmp_path / "objects").unlink()
    assert await mirror.complete_store() == 1


def test_an_upload_over_http_is_copied_by_its_gateway(
    make_stack: Callable[..., Stack], model_dir: Path, tmp_path: Path
) -> None:
    """A real gateway: the upload is answered, and the copy follows; the listener serves it too."""
    port = free_port()
    files = fleet_files(tmp_path / "tls", "gateway-1")
    stack = make_stack(
        toml=(
            f'[fleet]\nobject_store = "{(tmp_path / "objects").as_uri()}"\ncertificate_file = "{files.certificate}"\n'
            f'key_file = "{files.key}"\nauthority_file = "{files.authority}"\n'
            f'store_address = "127.0.0.1:{port}"\n[adapters]\nupkeep_s = 0.2\ndisk_free_min_bytes = 0\n'
        )
    )
    admin = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="admin", kind="admin"))
    source = oracle.EXAMPLES / "pirate"
    with (source / "adapter_model.safetensors").open("rb") as weights:
        answer = httpx.post(
            f"{stack.url}/v1/admin/adapters",
            headers={"Authorization": f"Bearer {admin.secret}"},
            data={"name": "pirate", "base": MODEL},
            files={
                "adapter_config.json": (source / "adapter_config.json").read_bytes(),
                "adapter_model.safetensors": weights,
            },
            timeout=60,
        )
    assert answer.status_code in (200, 201), answer.text
    digest = json.loads(answer.text)["digest"]
    eventually(lambda: (tmp_path / "objects" / "adapters" / digest / "manifest").exists())
    assert stack.log_lines("object_store.copied")[0]["digest"] == digest
    peer = FleetPeer(port, server_context(fleet_files(tmp_path / "tls", "engine-1")))
    status, manifest = peer.fetch(f"/internal/adapters/{digest}/manifest")
    peer.close()
    assert (status, manifest) == (200, (tmp_path / "objects" / "adapters" / digest / "manifest").read_bytes())
    assert httpx.get(f"{stack.url}/internal/adapters/{digest}/manifest").status_code == 404, "the public port"
