"""/v1/batches as clients use it: OpenAI's SDK end to end, refusals, and what a line is charged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from gateway.limits import overrides
from gateway.limits.overrides import LimitsChange
from support.documents import DOCS
from support.gateway.batch_client import (
    BatchClient,
    chat_line,
    chat_lines,
    check_charges,
    rows_left,
    usage_of,
)
from support.stack import MODEL, Stack
from support.waiting import eventually

INPUT, CACHED, OUTPUT = 50_000, 25_000, 200_000  # picos a token at the batch tier: half of the standard tier's


@pytest.fixture
def client(stack: Stack) -> Iterator[BatchClient]:
    with BatchClient(stack, stack.keys["acme"]) as made:
        yield made


def test_openais_sdk_end_to_end(stack: Stack) -> None:
    sdk = openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.keys["acme"])
    lines = chat_lines(30)
    uploaded = sdk.files.create(file=("in.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
    batch = sdk.batches.create(
        input_file_id=uploaded.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"team": "a"},
        output_expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert (batch.status, batch.metadata, batch.output_file_id) == ("validating", {"team": "a"}, None)
    assert batch.expires_at == batch.created_at + 24 * 3600
    deadline = time.monotonic() + 60
    while batch.status != "completed":
        assert time.monotonic() < deadline, batch
        assert batch.status in ("validating", "in_progress", "finalizing"), batch
        batch = sdk.batches.retrieve(batch.id)
    counts = batch.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (30, 30, 0)
    assert batch.error_file_id is None
    assert batch.output_file_id is not None
    assert batch.in_progress_at is not None
    assert batch.finalizing_at is not None
    assert batch.completed_at is not None
    found = [json.loads(line) for line in sdk.files.content(batch.output_file_id).text.splitlines()]
    assert [line["custom_id"] for line in found] == [line["custom_id"] for line in lines], "in the order of the input"
    for line in found:
        assert line["error"] is None
        assert line["id"] == f"batch_{line['response']['request_id']}"
        assert line["response"]["status_code"] == 200
        answer = line["response"]["body"]
        assert answer["id"] == line["response"]["request_id"].replace("req_", "chatcmpl-")
        assert (answer["object"], answer["model"], answer["service_tier"]) == ("chat.completion", MODEL, "flex")
        assert answer["usage"]["completion_tokens"] == 4
    file = sdk.files.retrieve(batch.output_file_id)
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert file.expires_at == file.created_at + 3600
    assert batch.usage is not None
    assert batch.usage.output_tokens == 30 * 4
    rows = usage_of(stack, batch.id)
    assert sum(row.prompt_tokens for row in rows) == batch.usage.input_tokens
    for row in rows:
        paid = (row.prompt_tokens - row.cached_tokens) * INPUT + row.cached_tokens * CACHED
        assert row.cost_picos == paid + row.completion_tokens * OUTPUT, "half the price, to the last unit"
        assert (row.tier, row.key_id) == ("batch", stack.key_ids["acme"])
    eventually(lambda: rows_left(stack, batch.id) == 0)
    with pytest.raises(openai.ConflictError):
        sdk.batches.cancel(batch.id)
    assert batch.id in [one.id for one in sdk.batches.list(limit=5)]


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"model": MODEL, "prompt": ["Once", "Twice"], "max_tokens": 3, "logprobs": 1}),
        ("/v1/responses", {"model": MODEL, "input": "Hello", "max_output_tokens": 3}),
        ("/v1/embeddings", {"model": MODEL, "input": ["Hello", "Goodbye"], "dimensions": 4}),
    ],
)
def test_each_endpoint_answers_as_over_http(client: BatchClient, endpoint: str, body: dict[str, Any]) -> None:
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": body}
    batch = client.finish(client.create([line], endpoint))
    answer = client.outputs(batch)["a"]["response"]["body"]
    direct = client.http.post(endpoint.removeprefix("/v1"), json=body | {"service_tier": "flex"}).json()
    assert answer.keys() == direct.keys()
    assert answer["model"] == direct["model"]
    if endpoint == "/v1/completions":
        assert [len(choice["logprobs"]["tokens"]) for choice in answer["choices"]] == [3, 3]
    elif endpoint == "/v1/embeddings":
        assert answer["data"] == direct["data"]
        [row] = usage_of(client.stack, batch["id"])
        assert (row.completion_tokens, row.cost_picos) == (0, row.prompt_tokens * INPUT), "half the price"
    else:
        assert answer["store"] is False, "lines are never stored"
        assert answer["output"][0]["content"][0]["text"]
    check_charges(client.stack, batch["id"], client.outputs(batch))


def test_a_line_that_is_refused_is_an_error_of_its_own(client: BatchClient) -> None:
    lines = chat_lines(6)
    lines[0]["body"]["nonsense"] = 1
    lines[1]["body"]["stream"] = True
    lines[2]["body"]["max_tokens"] = 10**6
    lines[3]["body"]["messages"] = "none"
    batch = client.finish(client.create(lines))
    assert (batch["status"], batch["request_counts"]) == ("completed", {"total": 6, "completed": 2, "failed": 4})
    errors = client.errors(batch)
    assert {line["response"]["status_code"] for line in errors.values()} == {400}
    details = {id_: line["response"]["body"]["error"] for id_, line in errors.items()}
    assert details["line-1"]["code"] == "unknown_parameter"
    assert details["line-2"]["param"] == "stream"
    assert details["line-3"]["code"] == "context_length_exceeded"
    assert details["line-4"]["param"] == "messages"
    assert client.outputs(batch).keys() == {"line-5", "line-6"}
    check_charges(client.stack, batch["id"], client.outputs(batch))


def test_a_response_that_must_be_stored_is_refused(client: BatchClient) -> None:
    bodies = {name: {"model": MODEL, "input": "Hello", "max_output_tokens": 3} for name in ("true", "false", "absent")}
    bodies["true"]["store"], bodies["false"]["store"] = True, False
    url = "/v1/responses"
    lines = [{"custom_id": name, "method": "POST", "url": url, "body": body} for name, body in bodies.items()]
    batch = client.finish(client.create(lines, url))
    [refused] = client.errors(batch).values()
    assert (refused["custom_id"], refused["response"]["status_code"]) == ("true", 400)
    assert refused["response"]["body"]["error"]["param"] == "store"
    answers = client.outputs(batch)
    assert {name: line["response"]["body"]["store"] for name, line in answers.items()} == {
        "false": False,
        "absent": False,
    }
    check_charges(client.stack, batch["id"], answers)


def test_an_input_file_that_is_not_valid_runs_no_line(client: BatchClient) -> None:
    lines = chat_lines(5)
    lines[1]["url"] = "/v1/completions"
    lines[2]["body"]["model"] = "unknown"
    lines[4]["custom_id"] = "line-1"
    batch = client.finish(client.create(lines))
    assert batch["status"] == "failed"
    assert batch["failed_at"] is not None
    assert [(error["code"], error["line"]) for error in batch["errors"]["data"]] == [
        ("mismatched_url", 2),
        ("model_not_found", 3),
        ("duplicate_custom_id", 5),
    ]
    assert batch["request_counts"] == {"total": 5, "completed": 0, "failed": 0}
    assert batch["output_file_id"] is batch["error_file_id"] is None
    assert usage_of(client.stack, batch["id"]) == []
    assert client.finish(client.create(b"\n\n"))["errors"]["data"][0]["code"] == "empty_file"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/tokenize"}, "endpoint"),
        ({"completion_window": "25h"}, "completion_window"),
        ({"completion_window": "1d"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 60}}, "output_expires_after.seconds"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_a_wrong_field_is_named(client: BatchClient, fields: dict[str, Any], param: str) -> None:
    answer = client.post("file-" + "0" * 32, **fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_other_tenants_files_and_batches_do_not_exist(stack: Stack, client: BatchClient) -> None:
    with BatchClient(stack, stack.keys["globex"]) as other:
        file_id = client.upload(chat_lines(1))
        unknown = client.post("file-" + "0" * 32)
        foreign = other.post(file_id)
        assert (unknown.status_code, foreign.status_code) == (404, 404)
        assert foreign.json()["error"]["message"].replace(file_id, "X") == unknown.json()["error"]["message"].replace(
            "file-" + "0" * 32, "X"
        )
        batch_id = client.create(chat_lines(1))
        for answer in (other.http.get(f"/batches/{batch_id}"), other.cancel(batch_id)):
            assert answer.status_code == 404, answer.text
        assert other.http.get("/batches", params={"after": batch_id}).status_code == 400
        assert batch_id not in [batch["id"] for batch in other.http.get("/batches").json()["data"]]
        client.finish(batch_id)


def test_an_output_file_is_no_input_file(client: BatchClient) -> None:
    batch = client.finish(client.create(chat_lines(1)))
    answer = client.post(batch["output_file_id"])
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "input_file_id")
    assert client.http.delete(f"/files/{batch['output_file_id']}").status_code == 200, "no batch uses it"


def test_a_repeated_creation_gets_the_same_batch(client: BatchClient) -> None:
    file_id = client.upload(chat_lines(1))
    headers = {"Idempotency-Key": f"key-{time.time()}"}
    first, second = client.post(file_id, headers=headers), client.post(file_id, headers=headers)
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json()["id"] == second.json()["id"]
    changed = client.post(file_id, headers=headers, completion_window="1h")
    assert (changed.status_code, changed.json()["error"]["code"]) == (422, "idempotency_mismatch")
    assert client.post(file_id, headers={"Idempotency-Key": "a b"}).status_code == 400
    batch = client.finish(first.json()["id"])
    assert batch["request_counts"]["completed"] == 1


def test_a_list_is_read_in_pages(client: BatchClient) -> None:
    made = [client.create(chat_lines(1)) for _ in range(3)]
    page = client.http.get("/batches", params={"limit": 2}).json()
    assert [batch["id"] for batch in page["data"]] == [made[2], made[1]]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (made[2], made[1], True)
    following = client.http.get("/batches", params={"limit": 1, "after": made[1]}).json()
    assert [batch["id"] for batch in following["data"]] == [made[0]]
    for batch_id in made:
        client.finish(batch_id)


def test_rate_limits_do_not_count_lines(stack: Stack) -> None:
    made = stack.new_key("acme")

    change = LimitsChange(requests_per_minute=10)
    own = {"scope": "key", "subject_id": made.key.id, "tenant_id": stack.tenants["acme"]}
    stack.write(lambda c: overrides.change_own_limits(c, **own, change=change))  # type: ignore[arg-type]
    stack.known()
    with BatchClient(stack, made.secret) as client:
        batch_id = client.create(chat_lines(40))
        with BatchClient(stack, stack.keys["acme"]) as other:  # whose key has other limits
            batch = other.finish(batch_id)
    assert batch["request_counts"]["completed"] == 40


def test_a_deleted_input_file_is_read_until_the_batch_ends(client: BatchClient) -> None:
    file_id = client.upload(chat_lines(40))
    batch_id = client.post(file_id).json()["id"]
    assert client.http.delete(f"/files/{file_id}").status_code == 200
    assert client.post(file_id).status_code == 404
    batch = client.finish(batch_id)
    assert batch["request_counts"] == {"total": 40, "completed": 40, "failed": 0}


def test_a_line_of_embeddings(client: BatchClient) -> None:
    body = {"model": MODEL, "input": ["Once", "Twice"], "encoding_format": "float"}
    url = "/v1/embeddings"
    batch = client.finish(client.create([{"custom_id": "a", "method": "POST", "url": url, "body": body}], url))
    answer = client.outputs(batch)["a"]["response"]["body"]
    direct = client.http.post("/embeddings", json=body).json()
    assert answer["data"] == direct["data"]
    assert answer["usage"] == direct["usage"]
    [row] = usage_of(client.stack, batch["id"])
    assert (row.operation, row.prompt_tokens) == ("embedding", answer["usage"]["prompt_tokens"])
    assert row.cost_picos == row.prompt_tokens * INPUT, "half the price"


def test_the_documented_calls_run(stack: Stack) -> None:
    text = (DOCS / "users/batches.md").read_text().split("```python\n", 1)[1].split("```", 1)[0]
    environ = {**os.environ, "LANEWAY_URL": stack.url, "LANEWAY_KEY": stack.keys["acme"]}
    done = subprocess.run([sys.executable, "-c", text], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [line.split(" ", 1)[0] for line in done.stdout.splitlines()] == ["question-0", "question-1"]


def test_lines_of_several_models_and_adapters(client: BatchClient) -> None:
    lines = [chat_line(1), chat_line(2, model="acme-style"), chat_line(3, model="shared-style")]
    batch = client.finish(client.create(lines))
    outputs = client.outputs(batch)
    models = {id_: line["response"]["body"]["model"] for id_, line in outputs.items()}
    assert models == {"line-1": MODEL, "line-2": "acme-style@1", "line-3": "shared-style@1"}
    check_charges(client.stack, batch["id"], outputs)
