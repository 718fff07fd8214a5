"""Every admin route × every role × bearer and cookie, from the application's own routes: none can be forgotten. And
what a role may grant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

import httpx
import pytest
from click.testing import CliRunner

from gateway.access import keys, roles
from gateway.access.roles import AREAS, ROLES, Role
from gateway.cli import main
from support.gateway.admin_routes import ServedRoute, admin_routes
from support.gateway.session_client import NO_TLS, SESSION, cookie_name, sign_in
from support.stack import MODEL, Stack, body

EVERYTHING = {f"{area}:{access}" for area in AREAS for access in ("read", "write")}
READING = {name for name in EVERYTHING if name.endswith(":read")}
# Written out, so that a slip in the table of `roles` shows.
MAY: dict[Role, set[str]] = {
    "owner": EVERYTHING,
    "operator": EVERYTHING - {"prices:write", "billing:write"},
    "finance": READING | {"money:write", "prices:write", "billing:write", "exports:write"},
    "tenant_admin": (READING - {"prices:read", "engine:read", "models:read"})
    | {f"{area}:write" for area in ("people", "keys", "money", "limits", "adapters", "exports", "batches", "alerts")},
    "read_only": READING,
}
QUERY = {"tenant": "acme", "start_time": 0}


class Door:
    """One way in for one role: its headers, and with a cookie its CSRF token."""

    def __init__(self, stack: Stack, role: Role, *, by_cookie: bool) -> None:
        tenant_id = stack.tenants["acme"] if role == "tenant_admin" else None
        made = stack.write(lambda c: keys.create_key(c, tenant_id=tenant_id, name=role, kind="admin", role=role))
        self.url, self.key, self.csrf = stack.url, made.key, ""
        self.headers = {"Authorization": f"Bearer {made.secret}"}
        if by_cookie:
            browser = sign_in(stack, made)
            self.headers, self.csrf = {"Cookie": browser.cookie()}, browser.headers["x-csrf-token"]

    def ask(self, method: str, path: str, sent: Any = None, *, csrf: str | None = None) -> tuple[int, dict[str, Any]]:
        """The status, and of a refusal its error. An answer that streams is left alone."""
        token = self.csrf if csrf is None else csrf
        headers = self.headers | ({"x-csrf-token": token} if token else {})
        params: dict[str, Any] = QUERY if method == "GET" else {}
        more: dict[str, Any] = {"timeout": 30, "verify": NO_TLS}
        with httpx.stream(method, self.url + path, json=sent, headers=headers, params=params, **more) as answer:
            if answer.status_code < 400:
                return answer.status_code, {}
            answer.read()
            return answer.status_code, dict(answer.json()["error"])


@pytest.fixture(scope="module")
def open_to_all(tmp_path_factory: pytest.TempPathFactory, model_dir: Any) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("roles")
    stack = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


@pytest.fixture(scope="module")
def routes() -> list[ServedRoute]:
    return [route for route in admin_routes() if not route.path.startswith(SESSION)]


def asked(route: ServedRoute) -> str:
    return re.sub(r"\{[^}]+\}", "absent", route.path)


def test_every_admin_route_declares_its_area(routes: list[ServedRoute]) -> None:
    assert len(routes) >= 60
    undeclared = [f"{route.method} {route.path}" for route in routes if route.opt.get("area") not in AREAS]
    assert undeclared == []
    for route in routes:
        assert set(route.opt) <= {"area", "access", "everyones"}, route
        assert route.access in get_args(roles.Access), route


@pytest.mark.parametrize("role", ROLES)
def test_what_a_role_may(role: Role) -> None:
    assert set(roles.permissions(role)) == MAY[role]


@pytest.mark.parametrize("by_cookie", [False, True], ids=["bearer", "cookie"])
@pytest.mark.parametrize("role", ROLES)
def test_the_matrix(open_to_all: Stack, routes: list[ServedRoute], role: Role, by_cookie: bool) -> None:
    door = Door(open_to_all, role, by_cookie=by_cookie)
    for route in routes:
        permission = f"{route.opt['area']}:{route.access}"
        allowed = permission in MAY[role] and not (role == "tenant_admin" and route.opt.get("everyones"))
        sent: dict[str, Any] | None = None if route.method == "GET" else {}
        status, error = door.ask(route.method, asked(route), sent)
        where = (role, route.method, route.path, status, error)
        if allowed:
            assert status not in (401, 403), where
        else:
            assert (status, error["code"], error["type"]) == (403, "insufficient_role", "permission_error"), where
            assert role in error["message"], where
            assert permission in error["message"] or route.opt.get("everyones"), where
        if by_cookie and route.method != "GET":
            for token in ("none", door.csrf[:-1] + "x"):
                status, error = door.ask(route.method, asked(route), sent, csrf=token)
                assert (status, error["code"]) == (403, "csrf_token_invalid"), where


def test_nobody_comes_in_with_nothing(open_to_all: Stack, routes: list[ServedRoute]) -> None:
    for route in routes:
        answer = httpx.request(route.method, open_to_all.url + asked(route), verify=NO_TLS)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key"), route
        cookie = {"Cookie": f"{cookie_name(open_to_all.url)}={'x' * 43}"}
        answer = httpx.request(route.method, open_to_all.url + asked(route), headers=cookie, verify=NO_TLS)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "session_expired"), route


def test_a_session_makes_no_tokens(open_to_all: Stack) -> None:
    door = Door(open_to_all, "tenant_admin", by_cookie=True)
    for path in ("/v1/chat/completions", "/t/acme/v1/chat/completions", "/v1/completions", "/v1/messages"):
        sent = body() if "chat" in path else {"model": MODEL, "prompt": "hi", "messages": [], "max_tokens": 1}
        status, error = door.ask("POST", path, sent)
        assert status == 401, error
    for path in ("/v1/models", "/v1/usage", "/v1/budget"):
        assert door.ask("GET", path)[0] == 401


# ---- what a role may grant


def test_nobody_makes_a_key_above_his_own(open_to_all: Stack) -> None:
    made: dict[str, set[str]] = {}
    for role in ROLES:
        door = Door(open_to_all, role, by_cookie=False)
        made[role] = set()
        for other in ROLES:
            tenant = "acme" if other == "tenant_admin" else None
            status, error = door.ask("POST", "/v1/admin/keys", {"kind": "admin", "role": other, "tenant": tenant})
            if status == 201:
                made[role].add(other)
            else:
                assert (status, error["code"]) == (403, "insufficient_role"), (role, other, error)
    assert made == {
        "owner": set(ROLES),
        "operator": {"operator", "tenant_admin", "read_only"},
        "finance": set(),
        "tenant_admin": {"tenant_admin"},
        "read_only": set(),
    }


def test_nobody_changes_a_key_above_his_own(open_to_all: Stack) -> None:
    """Or he would rotate himself into it, or end who could end him."""
    owner = Door(open_to_all, "owner", by_cookie=False)
    own = Door(open_to_all, "operator", by_cookie=False)
    for method, path, sent in (
        ("POST", "rotate", {"overlap_s": 60}),
        ("POST", "revoke", {}),
        ("PATCH", "", {"default_max_tokens": 5}),
    ):
        status, error = own.ask(method, f"/v1/admin/keys/{owner.key.id}/{path}".rstrip("/"), sent)
        assert (status, error["code"]) == (403, "insufficient_role")
        assert "owner" in error["message"]
    assert open_to_all.read(lambda c: keys.is_usable(c, owner.key.id))
    status, _ = own.ask("POST", f"/v1/admin/keys/{own.key.id}/rotate", {"overlap_s": 60})
    assert status == 201
    rotated = open_to_all.read(lambda c: keys.get_key(c, own.key.id))
    assert rotated is not None
    assert rotated.rotated_to is not None
    successor = open_to_all.read(lambda c: keys.get_key(c, str(rotated.rotated_to)))
    assert successor is not None
    assert successor.role == "operator"


def test_a_role_needs_an_admin_key_and_its_tenant(open_to_all: Stack) -> None:
    owner = Door(open_to_all, "owner", by_cookie=False)
    for sent, param in (
        ({"kind": "admin", "role": "tenant_admin"}, "tenant"),
        ({"kind": "admin", "role": "finance", "tenant": "acme"}, "tenant"),
        ({"kind": "live", "role": "finance", "tenant": "acme"}, None),
        ({"kind": "admin", "role": "emperor"}, "role"),
    ):
        status, error = owner.ask("POST", "/v1/admin/keys", sent)
        assert (status, error["param"]) == (400, param), error


def test_a_tenants_admin_sets_what_is_below_the_tenant(open_to_all: Stack) -> None:
    door = Door(open_to_all, "tenant_admin", by_cookie=False)
    key_id = open_to_all.key_ids["acme"]
    budget = {"tenant": "acme", "unit": "tokens", "period": "day", "limit_amount": 10**9}
    limits = {"tenant": "acme", "concurrency": 5}
    for path, sent in (("budgets", budget), ("limits", limits)):
        status, error = door.ask("POST", f"/v1/admin/{path}", sent)
        assert (status, error["code"]) == (403, "insufficient_role"), error
        assert door.ask("POST", f"/v1/admin/{path}", sent | {"key_id": key_id})[0] == 200
    assert door.ask("POST", "/v1/admin/budgets", budget | {"project": "default"})[0] == 200
    for change in ({"status": "active"}, {"tier": "premium"}, {"share_weight": 9.0}):
        assert door.ask("PATCH", "/v1/admin/tenants/acme", change)[0] == 403
    adapter = open_to_all.adapters["acme-style"]
    for shared in ({"shared": ["*"]}, {"pinned": True}):
        assert door.ask("PATCH", f"/v1/admin/adapters/{adapter}", shared)[1]["code"] == "insufficient_role"
    assert door.ask("PATCH", f"/v1/admin/adapters/{adapter}", {"notes": "ours"})[0] == 200
    operators = open_to_all.write(
        lambda c: keys.create_key(c, tenant_id=None, name="ops", kind="admin", role="operator").secret
    )
    answer = httpx.post(
        f"{open_to_all.url}/v1/admin/budgets", json=budget, headers={"Authorization": f"Bearer {operators}"}
    )
    assert answer.status_code == 200
    status, error = door.ask("DELETE", f"/v1/admin/budgets/{answer.json()['id']}")
    assert (status, error["code"]) == (403, "insufficient_role")


def test_the_command_line_makes_keys_of_roles(open_to_all: Stack) -> None:
    config = ["--config", str(open_to_all.config_file), "keys", "create", "--json"]
    for role, more in (("finance", []), ("tenant_admin", ["--tenant", "acme"])):
        result = CliRunner().invoke(main, [*config, "--admin", "--role", role, *more])
        assert result.exit_code == 0, result.output
        assert f'"role":"{role}"' in result.output
    for wrong in (["--role", "finance", "--tenant", "acme"], ["--admin", "--role", "tenant_admin"]):
        assert CliRunner().invoke(main, [*config, *wrong]).exit_code != 0


def test_every_answer_is_described_by_name(open_to_all: Stack) -> None:
    """So that types made from the description have names."""
    spec = httpx.get(f"{open_to_all.url}/schema/openapi.json", verify=NO_TLS).json()
    unnamed = []
    for path, operations in spec["paths"].items():
        if not path.startswith(("/v1/admin/", "/v1/organization/")):
            continue
        for method, operation in operations.items():
            answers = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
            for kind in (answer.get("content", {}).get("application/json") for answer in answers):
                schema = {} if kind is None else kind["schema"]
                named = schema.get("items", schema).get("$ref", "").removeprefix("#/components/schemas/")
                if schema and schema != {"type": "null"} and named not in spec["components"]["schemas"]:
                    unnamed.append(f"{method} {path}")
    assert unnamed == []
    assert spec["components"]["securitySchemes"]["session"]["name"] == "laneway_session"
