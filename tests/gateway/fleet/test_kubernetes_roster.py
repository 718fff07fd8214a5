"""The engines of a Kubernetes Service, against an HTTPS server that answers as the API server does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config import file as configuration
from gateway.config.file import ConfigError
from gateway.fleet import kubernetes_roster
from gateway.fleet.kept_list import read_kept_list
from gateway.fleet.kubernetes_api import KubernetesApi, find_pod_account
from gateway.fleet.kubernetes_roster import KubernetesRoster
from gateway.fleet.roster import EngineAddress, build_roster
from support.gateway.followed_roster import follow_roster
from support.gateway.kubernetes_api_server import (
    KubernetesApiServer,
    endpoint,
    endpoint_slice,
    serve_kubernetes_api,
)
from support.waiting import eventually_async

SERVER_NAME = "laneway-engines.llm.svc"
ONE = endpoint("engine-0", "10.1.0.5")
TWO = endpoint("engine-1", "10.1.0.6")


def engine(name: str, location: str) -> EngineAddress:
    return EngineAddress(name, f"tls://{location}", SERVER_NAME)


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubernetesApiServer]:
    monkeypatch.setattr(kubernetes_roster, "BACKOFF_MIN_S", 0.02)
    monkeypatch.setattr(kubernetes_roster, "BACKOFF_MAX_S", 0.1)
    account = tmp_path / "account"
    account.mkdir()
    async with serve_kubernetes_api(account) as started:
        await started.put(endpoint_slice("laneway-engines-abcde", [ONE]))
        yield started


def roster_of(server: KubernetesApiServer) -> KubernetesRoster:
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
    account = find_pod_account(environ, server.directory)
    kept = server.directory.parent / "data" / "engines.json"
    return KubernetesRoster(KubernetesApi(account), account.namespace, "laneway-engines", "frames", "", kept)


async def test_pods_come_and_go_by_a_watch(server: KubernetesApiServer) -> None:
    roster = roster_of(server)
    async with follow_roster(roster) as followed:
        assert await followed.next_list() == [engine("engine-0", "10.1.0.5:7801")]
        assert roster.stale_since is None
        await server.put(endpoint_slice("laneway-engines-abcde", [ONE, TWO]))
        assert await followed.next_list() == [
            engine("engine-0", "10.1.0.5:7801"),
            engine("engine-1", "10.1.0.6:7801"),
        ]
        await server.put(endpoint_slice("laneway-engines-fghij", [endpoint("engine-2", "10.1.0.7")], port=7900))
        assert (await followed.until_list(["engine-0", "engine-1", "engine-2"]))[2].address == "tls://10.1.0.7:7900"
        await server.delete("laneway-engines-abcde")
        assert await followed.next_list() == [engine("engine-2", "10.1.0.7:7900")]
        await server.delete("laneway-engines-fghij")
        assert await followed.next_list() == []
    assert server.requests == ["list", "watch 101"], "one list, one watch"


async def test_an_engine_is_listed_while_it_serves(server: KubernetesApiServer) -> None:
    """A pod that starts is not listed; one that terminates is, until its readiness probe fails."""
    async with follow_roster(roster_of(server)) as followed:
        await followed.next_list()
        starting = endpoint("engine-1", "10.1.0.6", ready=False, serving=False)
        draining = endpoint("engine-0", "10.1.0.5", ready=False, serving=True, terminating=True)
        await server.put(endpoint_slice("laneway-engines-abcde", [draining, starting]))
        await server.put(endpoint_slice("laneway-engines-abcde", [draining, TWO]))
        assert [found.name for found in await followed.next_list()] == ["engine-0", "engine-1"]
        stopped = endpoint("engine-0", "10.1.0.5", ready=False, serving=False, terminating=True)
        await server.put(endpoint_slice("laneway-engines-abcde", [stopped, TWO]))
        assert await followed.next_list() == [engine("engine-1", "10.1.0.6:7801")]


async def test_a_pod_with_two_addresses_is_one_engine(server: KubernetesApiServer) -> None:
    async with follow_roster(roster_of(server)) as followed:
        await followed.next_list()
        await server.put(
            endpoint_slice("a-v6", [endpoint("engine-0", "fd00::5"), endpoint("engine-9", "fd00::9")], "IPv6")
        )
        assert await followed.next_list() == [
            engine("engine-0", "10.1.0.5:7801"),
            engine("engine-9", "[fd00::9]:7801"),
        ]


async def test_slices_that_say_little_are_read(server: KubernetesApiServer) -> None:
    """An empty slice has null for endpoints; conditions may be left out; a slice without our port is another's."""
    async with follow_roster(roster_of(server)) as followed:
        await followed.next_list()
        await server.put(endpoint_slice("empty", None))
        other = endpoint_slice("other", [TWO])
        other["ports"] = [{"name": "web", "port": 80, "protocol": "TCP"}]
        await server.put(other)
        await server.put(endpoint_slice("bare", [{"addresses": ["10.1.0.8"], "conditions": {}}]))
        assert [found.name for found in await followed.next_list()] == ["10.1.0.8", "engine-0"]


async def test_a_watch_that_breaks_continues_at_its_version(server: KubernetesApiServer) -> None:
    async with follow_roster(roster_of(server)) as followed:
        await followed.next_list()
        await server.put(endpoint_slice("laneway-engines-abcde", [ONE, TWO]))
        await followed.next_list()
        await eventually_async(lambda: server.requests == ["list", "watch 101"])
        await server.bookmark()
        await eventually_async(lambda: server.version == 103)
        await server.break_connections()
        await server.put(endpoint_slice("laneway-engines-abcde", [TWO]))
        assert await followed.next_list() == [engine("engine-1", "10.1.0.6:7801")]
    assert server.requests[:2] == ["list", "watch 101"]
    assert set(server.requests[2:]) <= {"watch 102", "watch 103"}, "no second list"


async def test_a_version_that_the_server_forgot_is_listed_again(server: KubernetesApiServer) -> None:
    roster = roster_of(server)
    async with follow_roster(roster) as followed:
        await followed.next_list()
        await eventually_async(lambda: server.requests == ["list", "watch 101"])
        server.oldest = 200
        server.version = 200
        server.slices["laneway-engines-abcde"] = endpoint_slice("laneway-engines-abcde", [TWO])
        await server.break_connections()
        assert await followed.next_list() == [engine("engine-1", "10.1.0.6:7801")]
        await eventually_async(lambda: server.requests[-1] == "watch 200")
    assert server.requests == ["list", "watch 101", "watch 101", "list", "watch 200"]


async def test_a_token_is_read_again_after_its_rotation(server: KubernetesApiServer) -> None:
    roster = roster_of(server)
    async with follow_roster(roster) as followed:
        await followed.next_list()
        server.token = "second"
        await server.break_connections()
        await eventually_async(lambda: server.requests.count("401") >= 2)
        assert roster.stale_since is not None
        server.write_token("second")
        await server.put(endpoint_slice("laneway-engines-abcde", [TWO]))
        assert await followed.next_list() == [engine("engine-1", "10.1.0.6:7801")]
        assert roster.stale_since is None


async def test_without_the_api_server_the_last_list_stays(server: KubernetesApiServer) -> None:
    roster = roster_of(server)
    async with follow_roster(roster) as followed:
        listed = await followed.next_list()
        await server.stop()
        await eventually_async(lambda: roster.stale_since is not None)
        assert followed.lists.empty()
    restarted = roster_of(server)
    async with follow_roster(restarted) as followed:
        assert await followed.next_list() == listed, "a gateway that starts meanwhile has the last list"
        assert restarted.stale_since is not None
        await server.start()
        await eventually_async(lambda: restarted.stale_since is None)
        await server.put(endpoint_slice("laneway-engines-abcde", [ONE, TWO]))
        await followed.until_list(["engine-0", "engine-1"])


async def test_another_authoritys_server_is_not_believed(server: KubernetesApiServer, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    async with serve_kubernetes_api(other) as impostor:
        roster = roster_of(server)
        roster._api._account = find_pod_account(
            {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(impostor.port)}, server.directory
        )
        async with follow_roster(roster) as followed:
            await eventually_async(lambda: roster.stale_since is not None)
            assert followed.lists.empty()
            assert impostor.requests == [], "the token was not sent"


def test_the_driver_works_in_a_pod_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    files = "certificate_file = 'c'\nkey_file = 'k'\nauthority_file = 'a'\n"
    config = configuration.parse_gateway_config(f"[fleet]\ndriver = 'kubernetes'\n{files}".encode(), tmp_path, "", {})
    with pytest.raises(ConfigError, match="works in a pod"):
        build_roster(config)


def test_a_kept_list_that_is_damaged_is_none(tmp_path: Path) -> None:
    (tmp_path / "engines.json").write_text("[{")
    assert read_kept_list(tmp_path / "engines.json") is None
