"""What a key's list of models and its lists of networks refuse, and that they refuse it before anything is held."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import pytest

from billing.accounts import tenants
from billing.database import Database
from billing.errors import InvalidValue
from gateway.access import keys
from gateway.access.callers import Caller
from gateway.catalog.registry import Registry, ServedName
from gateway.catalog.router import Router
from gateway.config.file import ConfigError, parse_gateway_config
from gateway.config.networks import checked_networks, is_in, parse_address, parse_networks
from gateway.errors import ModelNotFound
from gateway.http.client_address import client_address
from support.gateway.base_models import model
from support.stack import MODEL, Stack, body

PROXIES = ("10.0.0.0/8", "2001:db8::/32")
ALIAS = "chat"


@pytest.fixture(scope="module")
def behind_proxies(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    """A gateway that trusts what this host says of a client's address, with an alias of its model."""
    directory = tmp_path_factory.mktemp("key-limits")
    stack = Stack(
        directory,
        f"sqlite:///{directory}/laneway.db",
        model_dir,
        gateway_toml='trusted_proxies = ["127.0.0.0/8", "198.51.100.0/24"]\n',
        toml=f'[[aliases]]\nname = "{ALIAS}"\nmodels = [{{ model = "{MODEL}" }}]\n',
    )
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


def ask(stack: Stack, secret: str, name: str, forwarded_for: str | None = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {secret}"}
    headers |= {} if forwarded_for is None else {"X-Forwarded-For": forwarded_for}
    return httpx.post(f"{stack.url}/v1/chat/completions", headers=headers, json=body(model=name), timeout=60)


def listed(stack: Stack, secret: str) -> list[str]:
    answer = httpx.get(f"{stack.url}/v1/models", headers={"Authorization": f"Bearer {secret}"})
    return sorted(card["id"] for card in answer.json()["data"])


# ---- models


def test_a_key_calls_the_models_of_its_list_alone(behind_proxies: Stack) -> None:
    stack = behind_proxies
    secret = stack.new_key("acme", models=["acme-style", ALIAS]).secret
    assert listed(stack, secret) == ["acme-style", ALIAS]
    assert ask(stack, secret, "acme-style").status_code == 200
    assert ask(stack, secret, ALIAS).json()["model"] == MODEL, "an alias covers its models"
    before = stack.holds()
    for name in (MODEL, "shared-style", "globex-style"):
        refused, absent = ask(stack, secret, name), ask(stack, secret, "absent")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        assert refused.text.replace(name, "absent") == absent.text
        path = f"{stack.url}/v1/models/{name}"
        assert httpx.get(path, headers={"Authorization": f"Bearer {secret}"}).status_code == 404
    for path, sent in (
        ("responses", {"input": "hi", "max_output_tokens": 16}),
        ("completions", {"prompt": "hi", "max_tokens": 3}),
        ("tokenize", {"prompt": "hi"}),
        ("messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}),
        ("messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}]}),
    ):
        headers = {"Authorization": f"Bearer {secret}"}
        answer = httpx.post(f"{stack.url}/v1/{path}", headers=headers, json={"model": MODEL, **sent})
        assert answer.status_code == 404, (path, answer.text)
    assert stack.holds() == before


def test_another_tenants_name_in_a_list_opens_nothing(behind_proxies: Stack) -> None:
    secret = behind_proxies.new_key("acme", models=["globex-style", MODEL]).secret
    assert listed(behind_proxies, secret) == [MODEL]
    assert ask(behind_proxies, secret, "globex-style").status_code == 404


def test_a_changed_list_applies_to_the_next_requests(behind_proxies: Stack) -> None:
    stack = behind_proxies
    made = stack.new_key("acme", models=["acme-style"])
    assert ask(stack, made.secret, MODEL).status_code == 404
    stack.write(lambda c: keys.update_key(c, made.key.id, models=[MODEL]))
    stack.known()
    assert listed(stack, made.secret) == [MODEL]
    rotated = stack.write(lambda c: keys.rotate(c, made.key.id, overlap_s=0))
    assert rotated.key.models == [MODEL]
    assert ask(stack, rotated.secret, "acme-style").status_code == 404
    stack.write(lambda c: keys.update_key(c, rotated.key.id, models=None))
    stack.known()
    assert ask(stack, rotated.secret, "acme-style").status_code == 200


def caller(models: list[str] | None) -> Caller:
    return Caller(
        key_id="key", first_key_id="key", tenant_id="t", tenant_slug="t", project_id=None, tier="standard",
        scopes=frozenset(), default_max_tokens=None, share_weight=1.0, subjects=(), expires_at=None, age=0,
        models=None if models is None else frozenset(models),
    )  # fmt: skip


class NoEngine:
    """Implements `gateway.catalog.router.EngineModels`."""

    def served(self) -> frozenset[str]:
        return frozenset()

    def context_tokens(self, model: str) -> None:
        return None

    def embedding(self, model: str) -> None:
        return None


def test_fallbacks_are_the_lists_too_and_an_alias_covers_its_own() -> None:
    toml = (
        '[[models]]\nname = "large"\n'
        '[[models]]\nname = "small"\n[[models]]\nname = "spare"\n'
        '[[aliases]]\nname = "both"\nmodels = [{ model = "large" }]\nfallbacks = ["small"]\n'
    )
    config, none = parse_gateway_config(toml.encode(), Path(), "test", {}), cast(Database, None)
    registry = Registry(none)
    large = msgspec.structs.replace(model("large"), fallbacks=("small", "spare"))
    registry.serve([ServedName(one, 0) for one in (large, model("small"), model("spare"))])
    router = Router(config, none, registry, lambda: 0.0, NoEngine(), lambda _: None)

    def fallbacks(models: list[str] | None, name: str) -> list[str]:
        route = router.route(caller(models), name, "")
        return [target.name for target in router.fallbacks(caller(models), route, route.candidates[0])]

    assert fallbacks(None, "large") == ["small", "spare"]
    assert fallbacks(["large", "spare"], "large") == ["spare"]
    assert fallbacks(["large"], "large") == []
    assert fallbacks(["both"], "both") == ["small"]
    with pytest.raises(ModelNotFound):
        router.route(caller(["both"]), "large", "")


# ---- addresses


def test_a_key_is_used_from_its_networks_alone(behind_proxies: Stack) -> None:
    stack = behind_proxies
    secret = stack.new_key("acme", allowed_ips=["203.0.113.0/24", "2001:db8:7::/48"]).secret
    before, requests = stack.holds(), 0
    for forwarded_for, allowed in (
        ("203.0.113.7", True),
        ("2001:db8:7::1", True),
        ("::ffff:203.0.113.7", True),
        ("203.0.113.7:4711", True),
        ("[2001:db8:7::1]:4711", True),
        ("203.0.113.7, 198.51.100.3", True),  # a second trusted proxy
        ("192.0.2.1, 203.0.113.7", True),  # what stands to the left can be forged
        ("203.0.113.7, 192.0.2.1", False),
        ("203.0.113.7, unknown", False),
        ("192.0.2.1", False),
        ("2001:db8:8::1", False),
        (None, False),
    ):
        answer = ask(stack, secret, MODEL, forwarded_for)
        assert answer.status_code == (200 if allowed else 403), (forwarded_for, answer.text)
        requests += allowed
        if not allowed:
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("permission_error", "ip_not_allowed")
            assert "203.0.113.0" not in answer.text
            assert "2001:db8:7" not in answer.text
    assert stack.holds() == before + requests
    refused = ask(stack, secret, MODEL, "192.0.2.1")
    assert refused.json()["error"]["message"] == "This key may not be used from the address 192.0.2.1."
    for path in ("models", "usage", "budget"):
        headers = {"Authorization": f"Bearer {secret}", "X-Forwarded-For": "192.0.2.1"}
        assert httpx.get(f"{stack.url}/v1/{path}", headers=headers).status_code == 403, path


def test_a_tenants_networks_bind_all_its_keys(behind_proxies: Stack) -> None:
    stack = behind_proxies
    own = stack.new_key("initech", allowed_ips=["203.0.113.7"]).secret
    stack.write(lambda c: tenants.update_tenant(c, stack.tenants["initech"], allowed_ips=["203.0.113.0/24"]))
    stack.known()
    asked = [(stack.keys["initech"], "203.0.113.9"), (own, "203.0.113.9"), (own, "203.0.113.7"), (own, "127.0.0.1")]
    assert [ask(stack, secret, MODEL, address).status_code for secret, address in asked] == [200, 403, 200, 403]
    assert ask(stack, stack.keys["acme"], MODEL, "192.0.2.1").status_code == 200, "another tenant's list is none of its"


def test_an_admin_key_and_its_sessions_are_bound_too(behind_proxies: Stack) -> None:
    stack = behind_proxies
    made = stack.write(
        lambda c: keys.create_key(c, tenant_id=None, name="office", kind="admin", allowed_ips=["203.0.113.7"])
    )
    with httpx.Client(base_url=stack.url, headers={"X-Forwarded-For": "203.0.113.7"}) as browser:
        elsewhere = {"X-Forwarded-For": "192.0.2.1"}
        refused = browser.post("/v1/admin/session", json={"key": made.secret}, headers=elsewhere)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "ip_not_allowed")
        assert browser.post("/v1/admin/session", json={"key": made.secret}).status_code == 200
        assert browser.get("/v1/admin/tenants").status_code == 200
        assert browser.get("/v1/admin/tenants", headers=elsewhere).status_code == 403
    key = {"Authorization": f"Bearer {made.secret}"}
    for address, status in (("203.0.113.7", 200), ("192.0.2.1", 403)):
        headers = key | {"X-Forwarded-For": address}
        assert httpx.get(f"{stack.url}/v1/admin/tenants", headers=headers).status_code == status


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "address"),
    [
        ("192.0.2.1", ["203.0.113.7"], "192.0.2.1"),  # the peer is no proxy
        ("10.1.1.1", [], "10.1.1.1"),
        ("10.1.1.1", ["203.0.113.7"], "203.0.113.7"),
        ("::ffff:10.1.1.1", ["::ffff:203.0.113.7"], "203.0.113.7"),
        ("10.1.1.1", ["203.0.113.7", "10.2.2.2"], "203.0.113.7"),  # two headers are one list
        ("10.1.1.1", ["10.3.3.3, 2001:db8::5"], "10.3.3.3"),  # all are trusted: the left-most
        ("10.1.1.1", ["192.0.2.66, 203.0.113.7 , 10.2.2.2"], "203.0.113.7"),
        ("10.1.1.1", ["203.0.113.7, for=x"], None),
        ("10.1.1.1", ["203.0.113.7,"], None),
        ("10.1.1.1", ["fe80::1%eth0"], "fe80::1"),
        (None, ["203.0.113.7"], None),  # at a Unix socket
    ],
)
def test_which_address_counts(peer: str | None, forwarded_for: list[str], address: str | None) -> None:
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded_for]
    scope: dict[str, Any] = {"client": None if peer is None else (peer, 4711), "headers": headers}
    found = client_address(scope, PROXIES)
    assert (None if found is None else str(found)) == address
    if peer is not None:
        assert client_address(scope, ()) == parse_address(peer)


def test_networks_have_one_spelling() -> None:
    given = ["192.0.2.7", "192.0.2.7/32", "::ffff:10.0.0.0/104", "2001:DB8:0::/32", "0.0.0.0/0"]
    assert checked_networks(given) == ["192.0.2.7/32", "10.0.0.0/8", "2001:db8::/32", "0.0.0.0/0"]
    assert is_in(parse_address("::ffff:10.9.9.9"), parse_networks(("10.0.0.0/8",)))
    assert not is_in(parse_address("::10.9.9.9"), parse_networks(("10.0.0.0/8", "0.0.0.0/0")))


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ([], "1 to 100, not 0"),
        (["192.0.2.0/24"] * 101, "1 to 100, not 101"),
        (["192.0.2.1/24"], "write 192.0.2.0/24"),
        (["192.0.2.0/33"], "no network"),
        (["example.org"], "no network"),
        (["fe80::1%eth0"], "no network"),
        (["1" * 5000], "no network"),
    ],
)
def test_lists_that_are_refused(texts: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        checked_networks(texts)


def test_settings_and_names_that_are_refused(database: Database) -> None:
    with pytest.raises(ConfigError, match="trusted_proxies: 'proxy' is no network"):
        parse_gateway_config(b'[gateway]\ntrusted_proxies = ["proxy"]\n', Path(), "test", {})
    tenant = database.write_sync(lambda c: tenants.create_tenant(c, slug="acme", name="Acme", tier="premium"))
    for fields, says in (
        ({"models": []}, "models: a list of models has 1 to 100"),
        ({"models": ["a"] * 101}, "models: a list of models has 1 to 100"),
        ({"models": ["a b"]}, "models: 'a b' is no name"),
        ({"allowed_ips": ["nowhere"]}, "allowed_ips: 'nowhere' is no network"),
    ):
        with pytest.raises(InvalidValue) as refused:
            database.write_sync(lambda c, f=fields: keys.create_key(c, tenant_id=tenant.id, name="k", **f))
        assert f"{refused.value.param}: {refused.value}".startswith(says), refused.value
    with pytest.raises(InvalidValue):
        database.write_sync(lambda c: keys.create_key(c, tenant_id=None, name="k", kind="admin", models=["a"]))
    made = database.write_sync(
        lambda c: keys.create_key(c, tenant_id=tenant.id, name="k", models=["b", "a", "b"], allowed_ips=["192.0.2.1"])
    )
    assert (made.key.models, made.key.allowed_ips) == (["b", "a"], ["192.0.2.1/32"])
    opened = database.write_sync(lambda c: keys.update_key(c, made.key.id, models=None, allowed_ips=None))
    assert (opened.models, opened.allowed_ips) == (None, None)
