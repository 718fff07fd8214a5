"""Who gets in, as whom, at which tier and up to which limit, and what a caller is told when not."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
import sqlalchemy as sa

from billing import revision
from billing.accounts import budgets, tenants
from gateway.access import keys
from gateway.catalog import adapters
from support.gateway.admin_routes import served_routes
from support.stack import MODEL, Stack, body, register
from support.waiting import PATIENCE_S, eventually, last_sent_before

REVOKED_WITHIN_S = 1.0  # what the product promises


def post(stack: Stack, secret: str, path: str = "/v1/chat/completions", **fields: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx.post(f"{stack.url}{path}", headers=headers, json=body(**fields), timeout=30)


def without_id(answer: httpx.Response) -> tuple[int, str, list[str]]:
    return answer.status_code, answer.text, sorted(answer.headers)


def test_every_unusable_key_gets_one_and_the_same_answer(stack: Stack) -> None:
    revoked = stack.new_key("acme")
    expired = stack.new_key("acme", expires_at=int(time.time()) - 10)
    assert post(stack, revoked.secret).status_code == 200
    stack.write(lambda c: keys.revoke(c, revoked.key.id))
    assert last_sent_before(lambda: post(stack, revoked.secret).status_code, 401) < REVOKED_WITHIN_S
    answers = [post(stack, secret) for secret in (revoked.secret, expired.secret, keys.make_secret("live"), "nonsense")]
    answers.append(httpx.post(f"{stack.url}/v1/chat/completions", json=body()))
    assert len({str(without_id(answer)) for answer in answers}) == 1
    assert answers[0].json()["error"]["code"] == "invalid_api_key"


def test_every_path_takes_a_key_in_either_field(stack: Stack) -> None:
    key, other = stack.keys["acme"], stack.keys["globex"]
    ours, theirs = {"x-api-key": key}, {"Authorization": f"Bearer {other}"}
    for path, asked in (("/v1/models", None), ("/v1/chat/completions", body()), ("/t/acme/v1/models", None)):
        method = "GET" if asked is None else "POST"
        assert httpx.request(method, stack.url + path, headers=ours, json=asked, timeout=30).status_code == 200
    # Both: Authorization counts, but on Anthropic's paths.
    assert httpx.get(f"{stack.url}/t/globex/v1/models", headers=ours | theirs).status_code == 200
    asked = body(max_tokens=1)
    assert httpx.post(f"{stack.url}/t/acme/v1/messages", headers=ours | theirs, json=asked).status_code == 200
    # A key counts, and not the session cookie beside it.
    cookie = {"Cookie": f"laneway_session_{stack.port}=nonsense"}
    with_key = httpx.get(f"{stack.url}/v1/admin/tenants", headers=ours | cookie)
    assert with_key.json()["error"]["code"] == "insufficient_scope"
    refused = httpx.get(f"{stack.url}/v1/models", headers={"x-api-key": "nonsense"})
    assert refused.status_code == 401
    for field in ("'Authorization: Bearer <key>'", "'x-api-key: <key>'"):
        assert field in refused.json()["error"]["message"]


def test_a_key_expires_by_itself(stack: Stack) -> None:
    for lifetime_s in (2, 10, 60):  # a machine that stands still may use up a short one before the first request
        made = stack.new_key("acme", expires_at=int(time.time()) + lifetime_s)
        if post(stack, made.secret).status_code == 200:
            break
    else:
        pytest.fail("no key was accepted before its expiry")
    eventually(lambda: post(stack, made.secret).status_code == 401, PATIENCE_S + lifetime_s)


def test_a_suspended_tenant_is_out(stack: Stack) -> None:
    tenant = stack.tenants["initech"]
    assert stack.chat("initech").status_code == 200
    stack.write(lambda c: tenants.suspend(c, tenant))
    eventually(lambda: stack.chat("initech").status_code == 401)
    stack.write(lambda c: tenants.resume(c, tenant))
    eventually(lambda: stack.chat("initech").status_code == 200)


def test_an_admin_key_makes_no_tokens(stack: Stack) -> None:
    made = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="root", kind="admin"))
    answer = post(stack, made.secret)
    assert answer.status_code == 403
    assert answer.json()["error"]["type"] == "permission_error"
    assert answer.json()["error"]["code"] == "insufficient_scope"


def test_options_of_every_route_names_its_methods(stack: Stack) -> None:
    """Without a key too: the public description of the API has the same methods."""
    live = stack.headers("acme")
    admin = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="r", kind="admin", role="read_only"))
    methods: dict[str, set[str]] = {}
    for route in served_routes():
        if not route.path.startswith("/console"):
            methods.setdefault(re.sub("{[^}]*}", "x", route.path), set()).add(route.method)
    with httpx.Client(base_url=stack.url, timeout=30) as client:
        for path, taken in methods.items():
            for headers in ({}, live, {"Authorization": f"Bearer {admin.secret}"}):
                answer = client.options(path, headers=headers)
                assert (answer.status_code, answer.content) == (204, b""), f"{path}: {answer.text}"
                assert {"OPTIONS"} < set(answer.headers["allow"].split(", ")) <= taken | {"OPTIONS"}, path
        assert client.options("/v1/admin/nowhere", headers=live).status_code == 404
    assert stack.log_lines("http.failed") == []


def test_a_tenants_own_path(stack: Stack) -> None:
    secret, nobody = stack.keys["acme"], post(stack, stack.keys["acme"], "/t/nobody/v1/chat/completions")
    assert post(stack, secret, "/t/acme/v1/chat/completions").status_code == 200
    assert post(stack, secret, f"/t/{stack.tenants['acme']}/v1/chat/completions").status_code == 200
    foreign = post(stack, secret, "/t/globex/v1/chat/completions")
    assert foreign.status_code == 404
    assert without_id(foreign) == without_id(nobody)
    assert httpx.get(f"{stack.url}/t/globex/v1/models", headers=stack.headers("acme")).status_code == 404
    assert httpx.get(f"{stack.url}/t/acme/v1/models", headers=stack.headers("acme")).status_code == 200


def test_another_tenants_adapter_does_not_exist(stack: Stack) -> None:
    assert stack.chat("acme", model="acme-style").status_code == 200
    foreign, absent = stack.chat("acme", model="globex-style"), stack.chat("acme", model="absent-style")
    assert foreign.status_code == 404
    assert foreign.json()["error"] | {"message": ""} == absent.json()["error"] | {"message": ""}
    assert foreign.json()["error"]["message"] == absent.json()["error"]["message"].replace("absent", "globex")
    assert sorted(foreign.headers) == sorted(absent.headers)
    listed = httpx.get(f"{stack.url}/v1/models", headers=stack.headers("acme")).json()
    assert [card["id"] for card in listed["data"]] == [MODEL, "acme-style", "shared-style"]
    assert [card["parent"] for card in listed["data"]] == [None, MODEL, MODEL]
    url = f"{stack.url}/v1/models/globex-style"
    assert httpx.get(url, headers=stack.headers("acme")).status_code == 404
    assert httpx.get(url, headers=stack.headers("globex")).json()["owned_by"] == stack.tenants["globex"]


def test_adapters_come_and_go_while_it_runs(stack: Stack) -> None:
    tenant = stack.tenants["acme"]
    row = stack.write(lambda c: register(c, name="late", tenant_id=tenant, digest="ab" * 32))
    eventually(lambda: stack.chat(model="late").status_code == 200)
    assert stack.chat("globex", model="late").status_code == 404

    def remove(connection: sa.Connection) -> None:
        revision.bump(connection)
        adapters.remove_adapter_and_versions(connection, row.id)

    stack.write(remove)
    eventually(lambda: stack.chat(model="late").status_code == 404)
    with pytest.raises(adapters.AdapterNameTaken):
        stack.write(lambda c: register(c, name=MODEL, tenant_id=tenant, digest=""))


def test_two_tenants_never_share_cached_pages(stack: Stack) -> None:
    messages = [{"role": "user", "content": "one two three four five six seven eight nine ten " * 10}]

    def cached(tenant: str, **fields: Any) -> int:
        usage = stack.chat(tenant, messages=messages, **fields).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    page = 16  # the first page may be there from other tests: the template's own system message fills it
    assert cached("acme") <= page
    assert cached("acme") > page
    assert cached("globex") <= page
    assert cached("acme", model="acme-style") <= page
    assert cached("globex") > page


@pytest.mark.parametrize(
    ("tenant", "asked", "served"),
    [
        ("acme", None, "priority"),
        ("acme", "auto", "priority"),
        ("acme", "default", "default"),
        ("acme", "flex", "flex"),
        ("globex", "priority", "default"),
        ("globex", "flex", "flex"),
        ("initech", "priority", "flex"),
        ("initech", "auto", "flex"),
    ],
)
def test_a_request_may_lower_its_tier_and_never_raise_it(
    stack: Stack, tenant: str, asked: str | None, served: str
) -> None:
    answer = stack.chat(tenant, service_tier=asked)
    assert answer.json()["service_tier"] == served
    row = stack.usage(answer.headers["x-request-id"])
    assert row is not None
    assert row.tier == {"priority": "premium", "default": "standard", "flex": "batch"}[served]


def test_a_keys_own_tier_lowers_its_tenants(stack: Stack) -> None:
    lower, higher = stack.new_key("acme", tier="batch"), stack.new_key("initech", tier="premium")
    assert post(stack, lower.secret, service_tier="priority").json()["service_tier"] == "flex"
    assert post(stack, higher.secret, service_tier="priority").json()["service_tier"] == "flex"
    unknown = stack.chat(service_tier="scale")
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "service_tier")


def test_the_default_and_the_most_of_max_tokens(stack: Stack) -> None:
    small = stack.new_key("acme", default_max_tokens=3)
    assert post(stack, small.secret, max_tokens=None).json()["usage"]["completion_tokens"] == 3
    assert post(stack, small.secret, max_tokens=5).json()["usage"]["completion_tokens"] == 5
    over = stack.chat(max_tokens=8192)
    assert (over.status_code, over.json()["error"]["code"]) == (400, "context_length_exceeded")
    long = stack.chat(messages=[{"role": "user", "content": "word " * 9000}], max_tokens=None)
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert long.json()["error"]["param"] == "messages"
    for refusal in (over, long):  # LiteLLM recognises the sentence, not the code
        assert "this model's maximum context length is" in refusal.json()["error"]["message"].lower()


def test_a_budget_of_tokens_clamps_and_then_refuses(stack: Stack) -> None:
    made = stack.new_key("acme")
    prompt = stack.chat().json()["usage"]["prompt_tokens"]
    stack.budget(made.key, "tokens", 2 * prompt + 12)
    first = post(stack, made.secret, max_tokens=8)
    second = post(stack, made.secret, max_tokens=8)
    assert first.json()["usage"]["completion_tokens"] == 8
    assert second.json()["usage"]["completion_tokens"] == 4
    assert second.json()["choices"][0]["finish_reason"] == "length"
    third = post(stack, made.secret, max_tokens=8)
    assert third.status_code == 429
    error = third.json()["error"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "key_budget_exceeded")
    assert third.headers["x-should-retry"] == "false"
    assert "retry-after" not in third.headers
    assert "x-ratelimit-remaining-requests" in third.headers
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=made.secret) as client:
        with pytest.raises(openai.RateLimitError, match="budget"):
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}])
        stack.request_line(stack.chat().headers["x-request-id"])
        asked = [line for line in stack.log_lines("request") if line.get("key") == made.key.id]
        assert len(asked) == 4, "it was not tried again"
    assert stack.read(lambda c: [state.held for state in budgets.list_budget_states(c, scope_id=made.key.id)]) == [0]


async def test_a_budget_for_ten_and_64_who_ask_at_once(stack: Stack) -> None:
    made = stack.new_key("acme")
    prompt = stack.chat().json()["usage"]["prompt_tokens"]
    budget = stack.budget(made.key, "tokens", 10 * (prompt + 8))
    headers = {"Authorization": f"Bearer {made.secret}"}
    async with httpx.AsyncClient(base_url=stack.url, headers=headers, timeout=60) as client:
        asked = [client.post("/v1/chat/completions", json=body(stream=number % 2 == 0)) for number in range(64)]
        answers = await asyncio.gather(*asked)
    assert sorted(answer.status_code for answer in answers) == [200] * 10 + [429] * 54
    [state] = stack.read(lambda c: budgets.list_budget_states(c, scope_id=made.key.id))
    assert (state.used, state.held, state.left) == (budget.limit_amount, 0, 0)


def test_rate_limits(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack(toml="[limits]\nrequests_per_minute = 3\ntokens_per_minute = 3000\nconcurrency = 8\n")
    made = stack.new_key("acme")
    stack.budget(made.key, "tokens", 10)
    assert [post(stack, made.secret).status_code for _ in range(5)] == [429] * 5
    budget = post(stack, made.secret)
    assert budget.json()["error"]["type"] == "rate_limit_error"  # each refusal counted as a request
    answers = [stack.chat("globex") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [int(answer.headers["x-ratelimit-remaining-requests"]) for answer in answers] == [2, 1, 0, 0]
    error = answers[-1].json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert "limit 3, used 3, requested 1" in error["message"]
    assert answers[-1].headers["x-should-retry"] == "true"
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 25  # with jitter
    for name in ("limit", "remaining", "reset"):
        for what in ("requests", "tokens"):
            assert f"x-ratelimit-{name}-{what}" in answers[0].headers
            assert f"x-ratelimit-{name}-{what}" in answers[-1].headers
    tokens = stack.chat("acme", max_tokens=4000)
    assert tokens.status_code == 429
    assert "tokens per minute" in tokens.json()["error"]["message"]


def test_while_the_database_is_away_nothing_is_admitted(make_stack: Callable[..., Stack], postgres_url: str) -> None:
    stack = make_stack(database_url=postgres_url)
    assert stack.chat().status_code == 200
    name = sa.make_url(postgres_url).database
    admin = sa.create_engine(
        sa.make_url(postgres_url).set(database="postgres"), isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool
    )
    with admin.connect() as connection:
        connection.execute(sa.text(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false'))
        connection.execute(
            sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"), {"name": name}
        )
        answer = stack.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "budget_unavailable")
        assert answer.headers["x-should-retry"] == "true"
        eventually(lambda: "database" in httpx.get(f"{stack.url}/health/ready").json()["problems"])
        assert stack.chat().status_code == 503
        connection.execute(sa.text(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true'))
    eventually(lambda: stack.chat().status_code == 200)
    eventually(lambda: stack.open_holds() == 0)
