"""Who may read /metrics: an admin key that may read the engine, and a Prometheus at gateway.metrics_address."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from gateway.access import keys
from gateway.access.roles import ROLES, Role
from gateway.config.file import ConfigError, parse_gateway_config
from support.gateway.several_models import SMALL, ManyModels, sections
from support.paths import REPO
from support.ports import free_port
from support.stack import MODEL, Stack
from support.waiting import eventually


def asked(stack: Stack, made: keys.MadeKey | None) -> httpx.Response:
    headers = {} if made is None else {"Authorization": f"Bearer {made.secret}"}
    return httpx.get(f"{stack.url}/metrics", headers=headers)


def test_nobody_reads_them_without_a_key(stack: Stack) -> None:
    answer = asked(stack, None)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    live = stack.new_key("acme")
    answer = asked(stack, live)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_scope")


@pytest.mark.parametrize("role", ROLES)
def test_whoever_may_read_the_engine_reads_them(stack: Stack, role: Role) -> None:
    tenant_id = stack.tenants["acme"] if role == "tenant_admin" else None
    made = stack.write(lambda c: keys.create_key(c, tenant_id=tenant_id, name=role, kind="admin", role=role))
    assert asked(stack, made).status_code == (403 if role == "tenant_admin" else 200)


def test_no_adapters_digest_is_among_them(stack: Stack) -> None:
    assert stack.chat(model="acme-style").status_code == 200
    text = stack.metrics()
    assert "vllm:lora_requests_info" in text
    assert b"acme-style".hex()[:16] not in text


@pytest.fixture
def listening(tmp_path: Path, model_dir: Path) -> Iterator[Stack]:
    """A stack with a listener for metrics, and a model that only acme may call."""
    database_url, place = f"sqlite:///{tmp_path}/laneway.db", f'metrics_address = "127.0.0.1:{free_port()}"'
    toml = sections(small='tenants = ["acme"]')
    made = ManyModels(tmp_path / "stack", database_url, model_dir, gateway_toml=place, toml=toml)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_the_listener_for_metrics(listening: Stack) -> None:
    """It needs no key, serves nothing else, and hides the names of models that only some tenants may call."""
    stack = listening
    place = stack.config.gateway.metrics_host_port
    assert place is not None
    port = place[1]
    assert stack.chat().status_code == 200
    assert stack.chat(model=SMALL).status_code == 200
    listener = f"http://127.0.0.1:{port}"
    answer = httpx.get(f"{listener}/metrics")
    assert answer.status_code == 200
    assert "laneway_http_responses_total" in answer.text
    assert f'model_name="{MODEL}"' in answer.text
    assert f'"{SMALL}"' not in answer.text
    assert re.search(
        r'vllm:generation_tokens_total\{model_name="restricted-[0-9a-f]{12}",tier="premium"\} 8', answer.text
    )
    assert f'model_name="{SMALL}"' in stack.metrics(), "with a key"
    for path in ("/health/ready", "/health"):
        assert httpx.get(f"{listener}{path}").status_code == 200
    for path in ("/v1/models", "/v1/admin/keys", "/admin", "/schema", "/metrics/", "/"):
        refused = httpx.get(f"{listener}{path}", headers=stack.headers())
        assert (refused.status_code, refused.json()["error"]["type"]) == (404, "invalid_request_error"), path
    # The socket's port decides, not the client's Host header.
    forged = {"Host": f"127.0.0.1:{port}", "X-Forwarded-Port": str(port)}
    assert httpx.get(f"{stack.url}/metrics", headers=forged).status_code == 401
    assert httpx.get(f"{stack.url}/v1/models", headers=stack.headers()).status_code == 200


def test_a_taken_metrics_address_is_said(make_stack: Callable[..., Stack], tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        stack = make_stack()
        assert stack.gateway is not None
        stack.gateway.terminate()
        stack.gateway.wait(30)
        text = stack.config_file.read_text()
        address = f'metrics_address = "127.0.0.1:{taken.getsockname()[1]}"\n'
        stack.config_file.write_text(text.replace("[gateway]\n", f"[gateway]\n{address}"))
        stack.start_gateway()
        assert stack.gateway.wait(30) == 1
        eventually(lambda: bool(stack.log_lines("gateway.cannot_start")))
        [line] = stack.log_lines("gateway.cannot_start")
        assert "gateway.metrics_address" in line["reason"]


@pytest.mark.parametrize(
    "address", ["9464", ":9464", "127.0.0.1:0", "127.0.0.1:70000", "::1:9464", "[::1]", "127.0.0.1:8080", "a:b"]
)
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ConfigError, match="metrics_address"):
        parse_gateway_config(f'[gateway]\nmetrics_address = "{address}"\n'.encode(), Path("/"), "test", {})


def test_addresses() -> None:
    for address, place in (("127.0.0.1:9464", ("127.0.0.1", 9464)), ("[::1]:1", ("::1", 1)), ("", None)):
        config = parse_gateway_config(f'[gateway]\nmetrics_address = "{address}"\n'.encode(), Path("/"), "test", {})
        assert config.gateway.metrics_host_port == place


def test_the_deployments_metrics_are_for_its_own_host() -> None:
    config = parse_gateway_config(
        (REPO / "deploy/laneway.toml").read_bytes(), REPO / "deploy", "test", dict(os.environ)
    )
    assert config.gateway.metrics_host_port is not None
    assert config.gateway.metrics_host_port[0] == "127.0.0.1"
