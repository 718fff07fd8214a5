"""/v1/admin/batches and /v1/admin/files: progress, pages, cancellation, and whose texts are shown."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.access import audit_log, keys
from gateway.access.audit_log import AuditFilter
from gateway.access.roles import Role
from gateway.batches.progress_cache import FRESH_S, ProgressCache
from gateway.batches.rows import BatchRow, read_any_batch
from support.gateway.batch_client import BatchClient, chat_lines, usage_of
from support.stack import MODEL, Stack
from support.waiting import eventually


@pytest.fixture
def client(stack: Stack) -> Iterator[BatchClient]:
    with BatchClient(stack, stack.keys["acme"]) as made:
        yield made


def admin(stack: Stack, role: Role = "owner", tenant: str | None = None) -> httpx.Client:
    tenant_id = None if tenant is None else stack.tenants[tenant]
    made = stack.write(lambda c: keys.create_key(c, tenant_id=tenant_id, name="batches", kind="admin", role=role))
    headers = {"Authorization": f"Bearer {made.secret}"}
    return httpx.Client(base_url=f"{stack.url}/v1/admin/", headers=headers, timeout=30)


def all_request_ids(operator: httpx.Client, **params: Any) -> set[str]:
    """Of every page."""
    ids: set[str] = set()
    while True:
        page = operator.get("requests", params=params).json()
        ids |= {row["request_id"] for row in page["data"]}
        if not page["next_page"]:
            return ids
        params["page"] = page["next_page"]


def test_an_ended_batch_has_its_counts_cost_and_errors_by_code(stack: Stack, client: BatchClient) -> None:
    lines = chat_lines(8)
    lines[0]["body"]["nonsense"] = 1
    lines[1]["body"]["stream"] = True
    batch = client.finish(client.create(lines))
    with admin(stack) as operator:
        view = operator.get(f"batches/{batch['id']}").json()
    counts = [view[name] for name in ("status", "lines", "succeeded", "failed", "unrun")]
    assert counts == ["completed", 8, 6, 2, 0]
    assert view["errors"] == {"unknown_parameter": 1, "invalid_request_error": 1}
    assert (view["tenant_id"], view["key_id"]) == (stack.tenants["acme"], stack.key_ids["acme"])
    assert view["completion_tokens"] == 6 * 4
    assert view["cost_picos"] > 0
    assert view["currency"] == "USD"
    assert (view["lines_per_s"], view["expected_end_at"]) == (0.0, None)
    assert view["output_file_id"] == batch["output_file_id"]
    stack.chat("acme", max_tokens=2)
    with admin(stack) as operator:
        found = operator.get("requests", params={"batch": batch["id"], "tenant": "acme"}).json()["data"]
        assert operator.get("requests", params={"batch": batch["id"], "tenant": "globex"}).json()["data"] == []
        assert operator.get("requests", params={"batch": batch["id"], "status": "held"}).json()["data"] == []
        first = operator.get("requests", params={"batch": batch["id"], "model": MODEL, "limit": 4}).json()
        second = operator.get("requests", params={"batch": batch["id"], "limit": 4, "page": first["next_page"]}).json()
    assert sorted(one["request_id"] for one in found) == sorted(row.request_id for row in usage_of(stack, batch["id"]))
    assert {one["batch_id"] for one in found} == {batch["id"]}
    with admin(stack) as operator:
        with_lines, others, whole = (
            all_request_ids(operator, tenant="acme", limit=100, **batch)
            for batch in ({"batch": "any"}, {"batch": "none"}, dict[str, Any]())
        )
    assert {one["request_id"] for one in found} <= with_lines
    assert others
    assert (with_lines | others, with_lines & others) == (whole, set())
    assert sum(one["cost_picos"] for one in found) == view["cost_picos"]
    assert [one["request_id"] for one in (*first["data"], *second["data"])] == [one["request_id"] for one in found]


def test_usage_tells_lines_from_requests_of_the_same_tier(stack: Stack, client: BatchClient) -> None:
    """A line, a request at the tier of batches, and the key's own tags on both."""
    made = stack.write(lambda c: keys.create_key(c, tenant_id=stack.tenants["globex"], name="both", tags={"team": "a"}))
    start = int(time.time())
    with BatchClient(stack, made.secret) as both:
        batch = both.finish(both.create(chat_lines(3)))
        direct = both.http.post("chat/completions", json=chat_lines(1)[0]["body"] | {"service_tier": "flex"})
        assert direct.json()["service_tier"] == "flex"
        request_id = direct.headers["x-request-id"]
        eventually(lambda: stack.usage(request_id) is not None)
        own = {of: both.http.get("usage", params=of).json() for of in ("batch=true", "batch=false", "")}
    lines = usage_of(stack, batch["id"])
    row = stack.usage(request_id)
    assert row is not None
    picos = {True: sum(one.cost_picos for one in lines), False: row.cost_picos}
    assert [own[of]["cost_picos"].get("USD") for of in own] == [picos[True], picos[False], sum(picos.values())]
    assert [own[of]["requests"] for of in own] == [3, 1, 4]
    of_key: dict[str, str] = {"key_id": made.key.id, "tags": "team=a"}
    with admin(stack) as operator:
        for of, ids in (("any", {line.request_id for line in lines}), ("none", {request_id})):
            totals = operator.get("usage", params=of_key | {"batch": of}).json()
            assert (totals["requests"], totals["cost_picos"]) == (len(ids), {"USD": picos[of == "any"]})
            page = operator.get("usage/requests", params=of_key | {"batch": of}).json()["data"]
            assert {usage["request_id"]: usage["tags"] for usage in page} == {one: {"team": "a"} for one in ids}
        query: dict[str, Any] = {
            "start_time": start - 1,
            "api_key_ids": made.key.id,
            "group_by[]": ["batch", "service_tier"],
        }
        [bucket] = operator.get("../organization/costs", params=query | {"bucket_width": "all"}).json()["data"]
        costs = bucket["results"]
        found = {cost["batch"]: (cost["tier"], cost["amount"]["picos"], cost["tags"]) for cost in costs}
        assert found == {of: ("batch", picos[of], None) for of in (True, False)}
        for wanted in ("true", "false"):
            answer = operator.get("../organization/usage/completions", params=query | {"batch": wanted}).json()
            results = [result for bucket in answer["data"] for result in bucket["results"]]
            assert sum(result["cost_picos"] for result in results) == picos[wanted == "true"]
            assert {result["batch"] for result in results} == {wanted == "true"}
        plain = operator.get("../organization/costs", params={"start_time": start - 1}).json()["data"][0]["results"]
        assert {cost["batch"] for cost in plain} == {None}


def test_running_lines_are_lines(stack: Stack, client: BatchClient) -> None:
    batch_id = client.create(chat_lines(600, max_tokens=64))
    client.until(batch_id, completed=1)

    def running(of: str) -> set[str]:
        params = {"batch": of, "status": "held", "tenant": "acme"}
        return {row["request_id"] for row in operator.get("requests", params=params).json()["data"]}

    with admin(stack) as operator:
        eventually(lambda: bool(running("any")))
        assert not running("none")
    client.cancel(batch_id)
    client.finish(batch_id)


def test_a_running_batch_has_a_rate_and_an_expected_end(stack: Stack, client: BatchClient) -> None:
    batch_id = client.create(chat_lines(600, max_tokens=64))
    client.until(batch_id, completed=5)
    with admin(stack) as operator:
        view = operator.get(f"batches/{batch_id}").json()
        if view["status"] == "in_progress":
            assert view["lines_per_s"] > 0
            assert view["expected_end_at"] >= view["created_at"]
            assert view["cost_picos"] > 0
        [listed] = [one for one in operator.get("batches").json()["data"] if one["id"] == batch_id]
        assert listed["lines"] == 600
        cancelled = operator.post(f"batches/{batch_id}/cancel")
    assert cancelled.status_code == 200, cancelled.text
    batch = client.finish(batch_id)
    assert batch["status"] == "cancelled"
    with admin(stack, "tenant_admin", "acme") as own:
        view = own.get(f"batches/{batch_id}").json()
        assert view["errors"]["batch_cancelled"] == view["unrun"]
        refused = own.post(f"batches/{batch_id}/cancel")
        assert refused.status_code == 200, "a cancelled batch may be cancelled again"
    found = stack.read(lambda c: audit_log.list_audit_lines(c, AuditFilter(object_id=batch_id)))
    assert [line.action for line in found] == ["batch.cancel"], "the second cancellation changed nothing"
    assert found[-1].before == {"status": "in_progress"}
    assert found[-1].after == {"status": "cancelling"}
    assert found[-1].tenant_id == stack.tenants["acme"]


def test_progress_is_counted_once_in_some_seconds(stack: Stack, client: BatchClient) -> None:
    now = [0.0]
    cache = ProgressCache(lambda: now[0])
    batch_id = client.create(chat_lines(600, max_tokens=64))
    client.until(batch_id, completed=1)
    row = stack.read(lambda c: read_any_batch(c, batch_id))
    assert row is not None

    def completed(of: BatchRow) -> int:
        [(progress, _)] = stack.read(lambda c: cache.read(c, [of]))
        assert progress.row is of
        return progress.succeeded

    first = completed(row)
    client.until(batch_id, completed=first + 1)
    assert completed(row) == first
    now[0] = FRESH_S
    assert completed(row) > first
    client.cancel(batch_id)
    client.finish(batch_id)
    ended = stack.read(lambda c: read_any_batch(c, batch_id))
    assert ended is not None
    assert completed(ended) == ended.succeeded, "an ended batch is never answered from the cache"


def test_only_roles_that_write_batches_cancel_one(stack: Stack, client: BatchClient) -> None:
    batch = client.finish(client.create(chat_lines(1)))
    for role in ("finance", "read_only"):
        with admin(stack, role) as reader:
            assert reader.get(f"batches/{batch['id']}").status_code == 200
            assert reader.post(f"batches/{batch['id']}/cancel").status_code == 403
            assert reader.delete(f"files/{batch['output_file_id']}").status_code == 403
    with admin(stack) as owner:
        refused = owner.post(f"batches/{batch['id']}/cancel")
    assert refused.status_code == 409, refused.text
    assert "its lines have ended" in refused.json()["error"]["message"]


def test_operators_see_no_text_and_a_tenants_own_people_do(stack: Stack, client: BatchClient) -> None:
    mark = "a-secret-of-acme"
    lines = chat_lines(2)
    lines[0]["body"]["messages"][0]["content"] = mark
    batch = client.finish(client.create(lines))
    wrong = client.finish(client.create(json.dumps(lines[0] | {"url": f"/{mark}"}).encode()))
    assert wrong["status"] == "failed"
    with (
        admin(stack) as operator,
        admin(stack, "tenant_admin", "acme") as own,
        admin(stack, "tenant_admin", "globex") as other,
    ):
        assert operator.get(f"files/{batch['input_file_id']}/content").status_code == 403
        assert (
            own.get(f"files/{batch['input_file_id']}/content").content == "\n".join(map(json.dumps, lines)).encode()
        ), "the input as it was uploaded"
        assert own.get(f"files/{batch['output_file_id']}/content").text.count("\n") == 2
        for path in ("batches", f"batches/{batch['id']}", f"batches/{wrong['id']}", "files"):
            assert mark not in operator.get(path).text, path
        assert mark in own.get(f"batches/{wrong['id']}").json()["problems"][0]["message"]
        assert operator.get(f"batches/{wrong['id']}").json()["problems"][0]["code"] == "mismatched_url"
        for path in (f"batches/{batch['id']}", f"files/{batch['input_file_id']}"):
            assert other.get(path).status_code == 404, path
        assert other.get(f"files/{batch['input_file_id']}/content").status_code == 404
        assert other.get("batches", params={"tenant": "acme"}).status_code == 404


def test_search_finds_batches_and_files_by_their_id(stack: Stack, client: BatchClient) -> None:
    batch = client.finish(client.create(chat_lines(1), metadata={"night": "eval"}))
    file_id = batch["output_file_id"]
    with (
        admin(stack) as operator,
        admin(stack, "tenant_admin", "acme") as own,
        admin(stack, "tenant_admin", "globex") as other,
    ):
        for reader in (operator, own):
            [hit] = reader.get("search", params={"q": batch["id"]}).json()["data"]
            assert (hit["kind"], hit["id"], hit["note"]) == ("batch", batch["id"], "acme completed")
            [hit] = reader.get("search", params={"q": file_id}).json()["data"]
            assert (hit["kind"], hit["id"], hit["name"]) == ("file", file_id, f"{batch['id']}_output.jsonl")
            [listed] = reader.get("batches", params={"search": file_id}).json()["data"]
            assert listed["filenames"] == {
                batch["input_file_id"]: "input.jsonl",
                file_id: f"{batch['id']}_output.jsonl",
            }
            assert listed["metadata"] == ({"night": "eval"} if reader is own else None)
        for id_ in (batch["id"], file_id):
            assert other.get("search", params={"q": id_}).json()["data"] == []
        assert client.http.delete(f"/files/{file_id}").status_code == 200
        assert own.get("search", params={"q": file_id}).json()["data"] == []
        assert file_id not in own.get(f"batches/{batch['id']}").json()["filenames"]


def test_a_deleted_file_has_its_audit_line(stack: Stack, client: BatchClient) -> None:
    file_id = client.upload(chat_lines(1))
    with admin(stack) as operator:
        view: dict[str, Any] = operator.get(f"files/{file_id}").json()
        assert (view["purpose"], view["in_use"], view["filename"]) == ("batch", 0, "input.jsonl")
        assert operator.delete(f"files/{file_id}").status_code == 204
        assert operator.get(f"files/{file_id}").status_code == 404
        assert operator.delete(f"files/{file_id}").status_code == 404
    assert client.http.get(f"/files/{file_id}").status_code == 404
    [line] = stack.read(lambda c: audit_log.list_audit_lines(c, AuditFilter(object_id=file_id)))
    assert (line.action, line.before) == ("file.delete", {"purpose": "batch", "bytes": view["bytes"]})


def test_lists_have_pages_and_filters(stack: Stack, client: BatchClient) -> None:
    made = [client.create(chat_lines(1)) for _ in range(3)]
    for batch_id in made:
        client.finish(batch_id)
    with admin(stack) as operator:
        asked: dict[str, Any] = {"tenant": "acme", "status": "completed", "limit": 2}
        first = operator.get("batches", params=asked).json()
        assert [one["id"] for one in first["data"]] == [made[2], made[1]]
        second = operator.get("batches", params=asked | {"page": first["next_page"]}).json()
        assert second["data"][0]["id"] == made[0]
        assert operator.get("batches", params={"search": made[0][-12:]}).json()["data"][0]["id"] == made[0]
        assert operator.get("batches", params={"status": "unknown"}).status_code == 400
        outputs = operator.get("files", params={"tenant": "acme", "purpose": "batch_output"}).json()["data"]
        assert {one["purpose"] for one in outputs} == {"batch_output"}
        others = operator.get("files", params={"tenant": "globex"}).json()["data"]
        assert {file["tenant_id"] for file in others} <= {stack.tenants["globex"]}
