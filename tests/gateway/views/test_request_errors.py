"""Refused and failed requests of a whole stack: under a flood and a database that does not answer, in the list of
requests, by their id, and as error rates that agree with the metrics."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from gateway.access import keys
from gateway.error_tables import request_error_counts, request_errors
from gateway.limits import overrides
from gateway.limits.overrides import LimitsChange
from gateway.upkeep.error_recorder import TENANT_ROWS_PER_S
from support.stack import MODEL, Stack, body
from support.waiting import eventually

STEP_FAILS = 702
PROMPT = "canary-prompt-of-errors"
FLOOD = 40
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, modules_postgres_url: str, model_dir: Path) -> Iterator[Stack]:
    fake = {"faults": {"step_error_id": STEP_FAILS}}
    made = Stack(tmp_path_factory.mktemp("errors"), modules_postgres_url, model_dir, fake=fake)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def admin(stack: Stack) -> Iterator[httpx.Client]:
    made = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="errors", kind="admin", role="owner"))
    with httpx.Client(base_url=stack.url, headers={"Authorization": f"Bearer {made.secret}"}, timeout=30) as client:
        yield client


def post(stack: Stack, secret: str, **fields: Any) -> httpx.Response:
    path = "/v1/completions" if "prompt" in fields else PATH
    sent = {"model": MODEL, "max_tokens": 2, **fields}
    return httpx.post(stack.url + path, headers={"Authorization": f"Bearer {secret}"}, json=sent, timeout=60)


def limited(stack: Stack, tenant: str, **limits: int) -> tuple[str, str]:
    """The secret and the id of a new key with these limits."""
    made = stack.new_key(tenant)
    change = LimitsChange(**limits)
    stack.write(
        lambda c: overrides.change_own_limits(
            c, scope="key", subject_id=made.key.id, tenant_id=stack.tenants[tenant], change=change
        )
    )
    stack.known()
    return made.secret, made.key.id


def rows(stack: Stack, key_id: str) -> list[Any]:
    query = sa.select(request_errors).where(request_errors.c.key_id == key_id)
    return list(stack.read(lambda c: c.execute(query).all()))


def counted(stack: Stack, key_id: str | None = None) -> int:
    query = sa.select(sa.func.coalesce(sa.func.sum(request_error_counts.c.requests), 0))
    if key_id is not None:
        query = query.where(request_error_counts.c.key_id == key_id)
    return int(stack.read(lambda c: c.execute(query).scalar_one()))


def metric(stack: Stack) -> int:
    return round(
        sum(float(one) for one in re.findall(r"^laneway_requests_with_error_total\{.*\} (\S+)$", stack.metrics(), re.M))
    )


def unknown_keys(stack: Stack) -> int:
    found = re.search(r'^laneway_requests_refused_total\{code="invalid_api_key"\} (\S+)$', stack.metrics(), re.M)
    return 0 if found is None else round(float(found[1]))


def listed(admin: httpx.Client, **query: Any) -> list[dict[str, Any]]:
    answer = admin.get("/v1/admin/requests", params=query)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["data"])


def test_a_flood_is_counted_exactly_and_listed_within_limits(stack: Stack, admin: httpx.Client) -> None:
    secret, key_id = limited(stack, "globex", requests_per_minute=1)
    before = counted(stack)
    chat = body(messages=[{"role": "user", "content": "hi"}], max_tokens=1)

    unknown_before = unknown_keys(stack)

    def send(key: str) -> tuple[int, str]:
        answer = httpx.post(stack.url + PATH, headers={"Authorization": f"Bearer {key}"}, json=chat, timeout=60)
        return answer.status_code, answer.headers["x-request-id"]

    # Refused requests are answered while the table is locked.
    engine = sa.create_engine(stack.database_url)
    with ThreadPoolExecutor(4) as pool, engine.begin() as lock:
        lock.execute(sa.text("LOCK TABLE request_errors IN ACCESS EXCLUSIVE MODE"))
        answers = list(pool.map(send, [secret] * FLOOD))
        unknown = list(pool.map(send, ["lw_live_" + "x" * 40] * FLOOD))
        assert counted(stack) == before, "nothing was written yet"
    engine.dispose()
    assert {status for status, _ in unknown} == {401}
    refused = [one for one in answers if one[0] == 429]
    assert len(refused) >= FLOOD - 2
    eventually(lambda: counted(stack, key_id) == len(refused))
    assert counted(stack) == before + len(refused), "unknown keys leave nothing"
    found = rows(stack, key_id)
    assert max(Counter(row.at // 1_000_000 for row in found).values()) <= TENANT_ROWS_PER_S
    assert 0 < len(found) <= len(refused)
    assert {row.request_id for row in found} <= {request_id for _, request_id in refused}
    eventually(lambda: metric(stack) == counted(stack))
    text = stack.metrics()
    assert unknown_keys(stack) == unknown_before + FLOOD
    dropped = len(refused) - len(found)
    assert f'laneway_error_rows_dropped_total{{reason="rate"}} {dropped}.0' in text or not dropped
    rates = admin.get("/v1/admin/error_rates", params={"key_id": key_id}).json()
    [error] = rates["total"]["errors"]
    assert error == {"outcome": "refused", "code": "rate_limit_exceeded", "requests": len(refused)}
    assert sum(bucket["refused"] for bucket in rates["data"]) == rates["total"]["refused"] == len(refused)
    assert len(rates["data"]) == 24
    one = admin.get(f"/v1/admin/requests/{found[0].request_id}").json()
    assert (one["status"], one["outcome"], one["key_id"]) == ("refused", "refused", key_id)
    assert (one["error"]["limit_name"], one["error"]["limit_value"]) == ("key_requests_per_minute", 1)
    assert one["error"]["message"].startswith("Rate limit reached for the key's requests per minute: limit 1")
    assert (one["entries"], one["usage"], one["hold"]["hold_picos"]) == ([], None, 0)


def test_each_is_listed_once_and_found_by_its_id(stack: Stack, admin: httpx.Client) -> None:
    secret, key_id = limited(stack, "acme", requests_per_minute=1000)
    made = stack.new_key("acme")
    stack.budget(made.key, "tokens", 3)
    stack.known()
    turns = [{"role": "user", "content": PROMPT}]
    answers = {
        "served": post(stack, secret, messages=turns),
        "model_not_found": post(stack, secret, messages=turns, model="nowhere"),
        "invalid_request_error": post(stack, secret, messages=turns, temperature=PROMPT),
        "unknown_parameter": post(stack, secret, messages=turns, **{PROMPT.replace("-", "_"): 1}),
        "context_length_exceeded": post(stack, secret, messages=turns, max_tokens=10**6),
        "server_error": post(stack, secret, prompt=[300, STEP_FAILS], max_tokens=4),
        "key_budget_exceeded": post(stack, made.secret, messages=turns),
    }
    ids = {name: answer.headers["x-request-id"] for name, answer in answers.items()}
    assert [answer.status_code for answer in answers.values()] == [200, 404, 400, 400, 400, 500, 429]
    eventually(lambda: len(rows(stack, key_id)) == 5 and len(rows(stack, made.key.id)) == 1)

    for name, request_id in ids.items():
        [row] = listed(admin, search=request_id)
        one = admin.get(f"/v1/admin/requests/{request_id}").json()
        outcome = {"served": "served", "server_error": "failed"}.get(name, "refused")
        assert row["outcome"] == one["outcome"] == outcome, name
        assert row["error"] == one["error"], name
        assert row["error"] is None if name == "served" else row["error"]["code"] == name
        assert row["tenant_id"] == stack.tenants["acme"]
        assert [other["request_id"] for other in listed(admin, search=request_id, outcome=outcome)] == [request_id]
        if name != "served":
            assert [other["request_id"] for other in listed(admin, code=name, tenant="acme")] == [request_id]
    by_outcome = {
        one: {row["request_id"] for row in listed(admin, key_id=key_id, outcome=one)}
        for one in ("served", "refused", "failed")
    }
    whole = [row["request_id"] for row in listed(admin, key_id=key_id)]
    assert sorted(whole) == sorted(set().union(*by_outcome.values())), "each of them once"
    assert len(whole) == 6
    # In pages of one row it is the same list.
    paged: list[str] = []
    page: str | None = None
    while len(paged) < 10:
        answer = admin.get(
            "/v1/admin/requests", params={"key_id": key_id, "limit": 1, **({"page": page} if page else {})}
        )
        paged += [row["request_id"] for row in answer.json()["data"]]
        if (page := answer.json()["next_page"]) is None:
            break
    assert paged == whole

    failed = admin.get(f"/v1/admin/requests/{ids['server_error']}").json()
    assert (failed["status"], failed["ending"]) in (("settled", "engine_failed"), ("voided", "engine_failed"))
    error = {name: listed(admin, search=ids[name])[0] for name in ids}
    assert error["model_not_found"]["model"] == "nowhere"
    assert error["unknown_parameter"]["error"]["param"] is None
    assert error["invalid_request_error"]["error"]["param"] == "temperature"
    assert error["invalid_request_error"]["error"]["message"] is None
    budget = error["key_budget_exceeded"]["error"]
    assert (budget["limit_name"], budget["limit_value"]) == ("key_tokens_total", 3) or budget["limit_value"] == 3
    assert PROMPT not in str(rows(stack, key_id)) + str(rows(stack, made.key.id)) + str(error)

    # Another tenant's admin finds none of it.
    other = stack.write(
        lambda c: keys.create_key(c, tenant_id=stack.tenants["globex"], name="o", kind="admin", role="tenant_admin")
    )
    with httpx.Client(base_url=stack.url, headers={"Authorization": f"Bearer {other.secret}"}, timeout=30) as client:
        assert listed(client, search=ids["model_not_found"]) == listed(client, code="model_not_found") == []
        theirs, absent = (client.get(f"/v1/admin/requests/{one}") for one in (ids["model_not_found"], "req_absent"))
        assert theirs.status_code == 404
        assert theirs.text.replace(ids["model_not_found"], "req_absent") == absent.text
        assert client.get("/v1/admin/error_rates", params={"tenant": "acme"}).status_code == 404
        rates = client.get("/v1/admin/error_rates", params={"key_id": key_id}).json()
        assert rates["total"]["requests"] == 0
    assert metric(stack) == counted(stack)


def test_a_slow_request_says_why(stack: Stack, admin: httpx.Client) -> None:
    answer = stack.chat("acme", model="acme-style", max_tokens=5)
    line = stack.request_line(answer.headers["x-request-id"])
    one = admin.get(f"/v1/admin/requests/{line['request_id']}").json()
    slowness = one["slowness"]
    names = [phase["name"] for phase in slowness["phases"]]
    assert names == [name for name in ("gateway", "adapter_load", "queue", "prefill", "decode") if name in names]
    assert {"gateway", "queue", "decode"} <= set(names)
    at = 0.0
    for phase in slowness["phases"]:  # without a gap
        assert phase["start_s"] == pytest.approx(at, abs=1e-5)
        at += phase["seconds"]
    assert at == pytest.approx(one["duration_s"], abs=1e-4)
    first_s = next(phase["start_s"] for phase in slowness["phases"] if phase["name"] == "decode")
    assert first_s == pytest.approx(line["ttft_s"], abs=1e-4)
    assert slowness["weights_s"] in (0.0, None)
    verdict = slowness["verdict"]
    assert verdict["basis"] == "request"
    assert verdict["ttft_met"] == (line["ttft_s"] <= verdict["ttft_target_s"])
    assert verdict["inter_token_s"] == one["usage"]["itl_s"]
    assert 0 < verdict["inter_token_s"] < one["duration_s"] - line["ttft_s"] + 1e-4


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"start_time": 0}, "start_time"),
        ({"start_time": 2_000_000, "end_time": 1_000_000}, "start_time"),
        ({"width": "1w"}, "width"),
        ({"tenant": "absent"}, "tenant"),
    ],
)
def test_bad_queries_of_rates_name_the_field(admin: httpx.Client, query: dict[str, Any], param: str) -> None:
    answer = admin.get("/v1/admin/error_rates", params=query)
    assert answer.status_code in (400, 404)
    assert param in answer.text
