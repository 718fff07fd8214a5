"""/v1/messages/batches through Anthropic's SDK: results, cancellation, refusals, pages, charges."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from gateway.batches.rows import BATCH_ID
from gateway.limits import overrides
from gateway.limits.overrides import LimitsChange
from support.gateway.batch_client import BatchClient, chat_lines, set_deadline, usage_of
from support.paths import REPO
from support.stack import MODEL, Stack
from support.waiting import eventually

PATH = "/v1/messages/batches"


def requests_of(count: int, **fields: Any) -> list[Any]:
    params = {"model": MODEL, "max_tokens": 4} | fields
    prompts = {number: [{"role": "user", "content": f'Say "{number}" \\'}] for number in range(1, count + 1)}
    return [{"custom_id": f"r-{number}", "params": params | {"messages": prompt}} for number, prompt in prompts.items()]


@pytest.fixture
def sdk(stack: Stack) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=stack.url, api_key=stack.keys["acme"], max_retries=0) as client:
        yield client


def finish(sdk: anthropic.Anthropic, batch_id: str) -> Any:
    found: list[Any] = []

    def has_ended() -> bool:
        found[:] = [sdk.messages.batches.retrieve(batch_id)]
        return bool(found[0].processing_status == "ended")

    eventually(has_ended, 60)
    return found[0]


def row_id(batch_id: str) -> str:
    assert BATCH_ID.fullmatch(batch_id.replace("msgbatch_", "batch_"))
    return batch_id.replace("msgbatch_", "batch_")


def counts_of(batch: Any) -> dict[str, int]:
    return {name: count for name, count in batch.request_counts.model_dump().items() if count}


def test_anthropics_sdk_end_to_end(stack: Stack, sdk: anthropic.Anthropic) -> None:
    batch = sdk.messages.batches.create(requests=requests_of(20))
    assert (batch.type, batch.processing_status, batch.results_url) == ("message_batch", "in_progress", None)
    assert counts_of(batch) == {"processing": 20}
    assert (batch.expires_at - batch.created_at).total_seconds() == 24 * 3600
    batch = finish(sdk, batch.id)
    assert counts_of(batch) == {"succeeded": 20}
    assert batch.ended_at is not None
    assert batch.archived_at is None
    results = {line.custom_id: line.result for line in sdk.messages.batches.results(batch.id)}
    assert results.keys() == {f"r-{number}" for number in range(1, 21)}
    billed = {row.request_id: row for row in usage_of(stack, row_id(batch.id))}
    assert len(billed) == 20
    for result in results.values():
        assert result.type == "succeeded"
        message = result.message
        assert (message.type, message.model, message.usage.output_tokens) == ("message", MODEL, 4)
        row = billed[message.id.replace("msg_", "req_")]
        assert (row.completion_tokens, row.tier) == (4, "batch")
    files = httpx.get(f"{stack.url}/v1/files", headers=stack.headers("acme")).json()["data"]
    assert "requests.jsonl" not in [file["filename"] for file in files], "the tenant does not see the input file"
    assert sdk.messages.batches.delete(batch.id).type == "message_batch_deleted"
    for call in (sdk.messages.batches.retrieve, sdk.messages.batches.results, sdk.messages.batches.delete):
        with pytest.raises(anthropic.NotFoundError):
            call(batch.id)
    assert batch.id not in [one.id for one in sdk.messages.batches.list()]


def test_each_request_has_its_own_error(sdk: anthropic.Anthropic) -> None:
    asked = requests_of(5)
    asked[0]["params"]["model"] = "unknown"
    asked[1]["params"]["nonsense"] = 1
    asked[2]["params"]["stream"] = True
    batch = finish(sdk, sdk.messages.batches.create(requests=asked).id)
    assert counts_of(batch) == {"succeeded": 2, "errored": 3}
    results = {line.custom_id: line.result for line in sdk.messages.batches.results(batch.id)}
    errors = {id_: result.error.error.type for id_, result in results.items() if result.type == "errored"}
    assert errors == {"r-1": "not_found_error", "r-2": "invalid_request_error", "r-3": "invalid_request_error"}


def test_requests_that_a_cancelled_batch_has_not_run_are_canceled(stack: Stack, sdk: anthropic.Anthropic) -> None:
    batch = sdk.messages.batches.create(requests=requests_of(400, max_tokens=64))
    with pytest.raises(anthropic.ConflictError):
        sdk.messages.batches.delete(batch.id)
    with pytest.raises(anthropic.NotFoundError):
        httpx_results(sdk, batch.id)
    cancelled = sdk.messages.batches.cancel(batch.id)
    assert cancelled.processing_status in ("canceling", "ended")
    assert cancelled.cancel_initiated_at is not None
    batch = finish(sdk, batch.id)
    counts = counts_of(batch)
    assert counts["canceled"] > 0
    assert sum(counts.values()) == 400
    kinds = [line.result.type for line in sdk.messages.batches.results(batch.id)]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == counts
    charged = [row for row in usage_of(stack, row_id(batch.id)) if row.cost_picos]
    assert len(charged) == counts.get("succeeded", 0)


def httpx_results(sdk: anthropic.Anthropic, batch_id: str) -> None:
    sdk.get(f"{PATH}/{batch_id}/results", cast_to=httpx.Response)


def test_requests_that_did_not_run_in_time_are_expired(stack: Stack, sdk: anthropic.Anthropic) -> None:
    batch = sdk.messages.batches.create(requests=requests_of(400, max_tokens=64))
    set_deadline(stack, row_id(batch.id), 0.0)
    batch = finish(sdk, batch.id)
    counts = counts_of(batch)
    assert counts["expired"] > 0
    assert counts.get("canceled", 0) == 0
    kinds = [line.result.type for line in sdk.messages.batches.results(batch.id)]
    assert kinds.count("expired") == counts["expired"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"custom_id": "a b"}, "requests.1.custom_id"),
        ({"custom_id": "x" * 65}, "requests.1.custom_id"),
        ({"custom_id": "r-1"}, "requests.1: Another request has the same 'custom_id'."),
        ({"params": {"max_tokens": 4}}, "requests.1 is not valid"),
        ({"extra": 1}, "requests.1 is not valid"),
    ],
)
def test_a_wrong_request_is_named(sdk: anthropic.Anthropic, change: dict[str, Any], param: str) -> None:
    asked = requests_of(3)
    asked[1] |= change
    with pytest.raises(anthropic.BadRequestError, match=param):
        sdk.messages.batches.create(requests=asked)


def test_other_bodies_are_refused(stack: Stack) -> None:
    for body in (b"", b"{}", b"[]", b'{"requests":[]}', b'{"requests":[{}', b'{"requests":[],"other":1}', b"{" * 5000):
        answer = httpx.post(stack.url + PATH, content=body, headers=stack.headers("acme"))
        assert (answer.status_code, answer.json()["type"]) == (400, "error"), (body, answer.text)


def test_an_indented_body_and_a_repeated_call(stack: Stack, sdk: anthropic.Anthropic) -> None:
    headers = stack.headers("acme") | {"Idempotency-Key": f"key-{time.time()}"}
    body = json.dumps({"requests": requests_of(3, system="é\n")}, indent=2)
    made = [httpx.post(stack.url + PATH, content=body.encode(), headers=headers).json() for _ in range(2)]
    assert made[0]["id"] == made[1]["id"]
    changed = httpx.post(stack.url + PATH, json={"requests": requests_of(2)}, headers=headers)
    assert changed.status_code == 422, changed.text
    assert counts_of(finish(sdk, made[0]["id"])) == {"succeeded": 3}


def test_a_repeated_call_gets_its_batch_though_the_quota_is_used_up(stack: Stack) -> None:
    headers = stack.headers("globex")

    def create(key: str) -> httpx.Response:
        body = {"requests": requests_of(1)}
        return httpx.post(stack.url + PATH, json=body, headers=headers | {"Idempotency-Key": key})

    def limit(files: int | None) -> None:
        tenant, change = stack.tenants["globex"], LimitsChange(files=files)
        own: dict[str, Any] = {"scope": "tenant", "subject_id": tenant, "tenant_id": tenant}
        stack.write(lambda c: overrides.change_own_limits(c, **own, change=change))

    name = f"key-{time.time()}"
    first = create(name)
    assert first.status_code == 200, first.text
    limit(files=1)  # the input of the first batch is a file
    try:
        assert create(name).json()["id"] == first.json()["id"]
        assert create(f"{name}-other").status_code == 429
    finally:
        limit(files=None)


def test_a_list_has_pages_in_both_directions(sdk: anthropic.Anthropic) -> None:
    made = [sdk.messages.batches.create(requests=requests_of(1)).id for _ in range(4)][::-1]
    page = sdk.messages.batches.list(limit=2)
    assert ([one.id for one in page.data], page.has_more) == (made[:2], True)
    assert [one.id for one in sdk.messages.batches.list(limit=2, after_id=made[1]).data] == made[2:]
    newer = sdk.messages.batches.list(limit=1, before_id=made[2])
    assert ([one.id for one in newer.data], newer.has_more) == ([made[1]], True)
    with pytest.raises(anthropic.BadRequestError):
        sdk.messages.batches.list(after_id="msgbatch_unknown")
    for batch_id in made:
        finish(sdk, batch_id)


def test_another_tenants_message_batch_does_not_exist(stack: Stack, sdk: anthropic.Anthropic) -> None:
    batch = sdk.messages.batches.create(requests=requests_of(1))
    finish(sdk, batch.id)
    with anthropic.Anthropic(base_url=stack.url, api_key=stack.keys["globex"], max_retries=0) as other:
        batches = other.messages.batches
        for call in (batches.retrieve, batches.cancel, batches.delete, batches.results):
            with pytest.raises(anthropic.NotFoundError):
                call(batch.id)
        assert batch.id not in [one.id for one in batches.list()]
        with pytest.raises(anthropic.BadRequestError):
            batches.list(after_id=batch.id)


def test_the_apis_do_not_serve_each_others_batches(stack: Stack, sdk: anthropic.Anthropic) -> None:
    batch = sdk.messages.batches.create(requests=requests_of(1))
    finish(sdk, batch.id)
    with BatchClient(stack, stack.keys["acme"]) as client:
        id_ = row_id(batch.id)
        for answer in (client.http.get(f"/batches/{id_}"), client.cancel(id_)):
            assert answer.status_code == 404, answer.text
        assert client.http.get("/batches", params={"after": id_}).status_code == 400
        other = client.finish(client.create(chat_lines(1)))["id"].replace("batch_", "msgbatch_")
    for call in (sdk.messages.batches.retrieve, sdk.messages.batches.cancel, sdk.messages.batches.delete):
        with pytest.raises(anthropic.NotFoundError):
            call(other)


def test_the_documented_calls_run(stack: Stack) -> None:
    text = (REPO / "docs" / "users" / "message-batches.md").read_text()
    snippet = text.partition("```python\n")[2].partition("```")[0]
    environ = {**os.environ, "LANEWAY_URL": stack.url, "LANEWAY_KEY": stack.keys["acme"]}
    done = subprocess.run([sys.executable, "-c", snippet], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines() if line.startswith("question-")} == {
        *("question-0", "question-1"),
    }
