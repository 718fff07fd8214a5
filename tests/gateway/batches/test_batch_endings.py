"""How a batch ends before all of its lines are answered: each ending as docs/users/batches.md says it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from billing import revision
from billing.accounts import budgets, tenants
from billing.ledger.outputs import LeaseLost
from billing.output_tables import line_outputs
from gateway.access import keys
from gateway.batch_tables import batches
from gateway.batches import claims
from gateway.catalog import aliases, base_models
from gateway.catalog.aliases import Alias
from gateway.config.settings import TargetSection
from support.gateway.batch_client import (
    BatchClient,
    chat_line,
    chat_lines,
    check_charges,
    rows_left,
    set_deadline,
    usage_of,
)
from support.gateway.several_models import BARE, SMALL, ManyModels, sections
from support.stack import MODEL, Stack
from support.waiting import eventually

EMBEDDINGS = "/v1/embeddings"
SLOW = 600  # tokens of a line that runs for over a second
TOML = sections(
    rest=f"""
[[aliases]]
name = "split"
models = [{{model = "{MODEL}"}}]

[[aliases]]
name = "several"
models = [{{model = "{MODEL}"}}, {{model = "{BARE}"}}]

[batches]
outstanding_max = 8
"""
)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("endings")
    made = ManyModels(directory, f"sqlite:///{directory}/laneway.db", model_dir, toml=TOML)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def client(stack: Stack) -> Iterator[BatchClient]:
    """Of a key of its own."""
    with BatchClient(stack, stack.new_key("acme").secret) as made:
        yield made


def key_of(client: BatchClient) -> keys.Key:
    batch_key = sa.select(batches.c.key_id).order_by(batches.c.created_at.desc()).limit(1)
    found = client.stack.read(lambda c: keys.get_key(c, c.execute(batch_key).scalar_one()))
    assert found is not None
    return found


def unrun(client: BatchClient, batch: Any, code: str) -> set[str]:
    """The lines that did not run, with this error."""
    lines = {id_: line for id_, line in client.errors(batch).items() if line["response"] is None}
    assert {line["error"]["code"] for line in lines.values()} <= {code}
    return set(lines)


def check_parts(client: BatchClient, batch: Any, total: int) -> None:
    """Each line is in one of the two files, and only the output file's are charged."""
    outputs, errors = client.outputs(batch), client.errors(batch)
    counts = batch["request_counts"]
    assert (counts["total"], counts["completed"], counts["failed"]) == (total, len(outputs), len(errors))
    assert outputs.keys() | errors.keys() == {f"line-{number}" for number in range(1, total + 1)}
    check_charges(client.stack, batch["id"], outputs)
    eventually(lambda: rows_left(client.stack, batch["id"]) == 0)


def test_a_cancelled_batch_has_the_outputs_so_far(stack: Stack, client: BatchClient) -> None:
    lines = [*chat_lines(10), *(chat_line(number, max_tokens=SLOW) for number in range(11, 41))]
    batch_id = client.create(lines)
    client.until(batch_id, completed=10)
    answer = client.cancel(batch_id)
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] in ("cancelling", "cancelled")
    again = client.cancel(batch_id)
    assert again.status_code == 200, "a repeated cancel has no effect"
    batch = client.finish(batch_id)
    assert batch["status"] == "cancelled"
    assert batch["cancelled_at"] >= batch["cancelling_at"]
    assert batch["errors"] is None
    assert unrun(client, batch, "batch_cancelled")
    check_parts(client, batch, 40)
    aborted = [row for row in usage_of(stack, batch_id) if row.ending == "cancelled"]
    assert aborted, "lines that ran were aborted"
    assert {(row.completion_tokens, row.cost_picos) for row in aborted} == {(0, 0)}
    assert client.cancel(batch_id).status_code == 200, "it is cancelled"


def test_a_batch_is_cancelled_before_it_is_validated(stack: Stack, client: BatchClient) -> None:
    file_id = client.upload(chat_lines(3))
    batch_id = client.post(file_id).json()["id"]
    answer = client.cancel(batch_id)
    batch = client.finish(batch_id)
    assert batch["status"] == ("cancelled" if answer.status_code == 200 else "completed")


def test_a_batch_that_is_being_finalised_is_not_cancelled(stack: Stack, client: BatchClient) -> None:
    batch_id = client.create(chat_lines(2))
    client.finish(batch_id)
    answer = client.cancel(batch_id)
    assert (answer.status_code, answer.json()["error"]["type"]) == (409, "invalid_request_error")
    assert "has ended" in answer.json()["error"]["message"]
    back = {"status": "finalizing", "ended_at": None}
    own = batches.c.id == batch_id

    def ended(connection: sa.Connection) -> Any:
        row = connection.execute(sa.select(batches.c.status, batches.c.ended_at).where(own)).one()
        return row._asdict()

    before = stack.read(ended)
    stack.write(lambda c: c.execute(sa.update(batches).where(own).values(back)))
    try:
        answer = client.cancel(batch_id)
        assert (answer.status_code, "being assembled" in answer.text) == (409, True)
    finally:
        stack.write(lambda c: c.execute(sa.update(batches).where(own).values(before)))


def test_lines_after_the_window_expire(stack: Stack, client: BatchClient) -> None:
    lines = [*chat_lines(5), *(chat_line(number, max_tokens=SLOW) for number in range(6, 61))]
    batch_id = client.create(lines, completion_window="1h")
    client.until(batch_id, completed=5)
    set_deadline(stack, batch_id, 0.001)
    batch = client.finish(batch_id)
    assert batch["status"] == "expired"
    assert batch["expired_at"] is not None
    assert unrun(client, batch, "batch_expired")
    some = next(line for line in client.errors(batch).values())
    assert some["error"]["message"] == "This request could not be executed before the completion window expired."
    check_parts(client, batch, 60)


def test_a_revoked_key_ends_its_batches(stack: Stack, client: BatchClient) -> None:
    batch_id = client.create([chat_line(1), *(chat_line(number, max_tokens=SLOW) for number in range(2, 41))])
    client.until(batch_id, completed=1)
    key = key_of(client)
    stack.write(lambda c: keys.revoke(c, key.id))
    with BatchClient(stack, stack.keys["acme"]) as other:
        batch = other.finish(batch_id)
        assert batch["status"] == "cancelled"
        assert [error["code"] for error in batch["errors"]["data"]] == ["invalid_api_key"]
        assert unrun(other, batch, "invalid_api_key")
        check_parts(other, batch, 40)


def test_a_suspended_tenants_batches_end(stack: Stack) -> None:
    with BatchClient(stack, stack.keys["initech"]) as client:
        batch_id = client.create([chat_line(1), *(chat_line(number, max_tokens=SLOW) for number in range(2, 41))])
        client.until(batch_id, completed=1)
        stack.write(lambda c: tenants.suspend(c, stack.tenants["initech"]))
        ended = sa.select(batches.c.ended_at).where(batches.c.id == batch_id)
        eventually(lambda: stack.read(lambda c: c.execute(ended).scalar_one()) is not None)
        stack.write(lambda c: tenants.resume(c, stack.tenants["initech"]))
        stack.known()
        batch = client.get(batch_id)
        assert batch["status"] == "cancelled"
        assert [error["code"] for error in batch["errors"]["data"]] == ["tenant_suspended"]
        assert unrun(client, batch, "tenant_suspended")
        check_parts(client, batch, 40)


def test_a_damaged_output_is_an_error_and_its_charge_remains(stack: Stack, client: BatchClient) -> None:
    batch_id = client.create([chat_line(1), *(chat_line(number, max_tokens=SLOW) for number in range(2, 21))])
    first = sa.update(line_outputs).where(line_outputs.c.batch_id == batch_id, line_outputs.c.line == 1)
    eventually(lambda: stack.write(lambda c: c.execute(first.values(sealed=b"damaged")).rowcount) == 1)
    batch = client.finish(batch_id)
    assert (batch["status"], batch["errors"]) == ("completed", None)
    assert batch["request_counts"] == {"total": 20, "completed": 19, "failed": 1}
    outputs, errors = client.outputs(batch), client.errors(batch)
    assert (len(outputs), errors.keys()) == (19, {"line-1"})
    response = errors["line-1"]["response"]
    assert (response["status_code"], response["body"]["error"]["code"]) == (500, "output_unreadable")
    charged = {row.request_id for row in usage_of(stack, batch_id) if row.cost_picos}
    assert charged == {line["response"]["request_id"] for line in [*outputs.values(), *errors.values()]}
    counted = [line for line in stack.metrics().splitlines() if 'ended_total{outcome="unreadable"' in line]
    assert sum(float(line.split()[-1]) for line in counted) == 1


# ---- budgets


def spend(stack: Stack, client: BatchClient) -> tuple[str, budgets.Budget]:
    """A batch of which a budget covers about half: 50 lines, 4 tokens each and their prompt."""
    batch_id = client.create([chat_line(number, max_tokens=SLOW) for number in range(1, 3)])
    client.cancel(batch_id)
    client.finish(batch_id)
    key = key_of(client)
    budget = stack.budget(key, "tokens", 1000)
    return client.create(chat_lines(50)), budget


def test_lines_wait_for_the_budget(stack: Stack, client: BatchClient) -> None:
    batch_id, budget = spend(stack, client)
    batch = client.until(batch_id, completed=15)
    assert batch["status"] == "in_progress"
    time.sleep(2.0)
    batch = client.get(batch_id)
    assert batch["status"] == "in_progress"
    assert batch["request_counts"]["failed"] == 0
    assert batch["request_counts"]["completed"] < 50
    assert batch["usage"]["total_tokens"] <= 1000
    stack.write(lambda c: budgets.change_budget(c, budget.id, limit_amount=10**9))
    batch = client.finish(batch_id)
    assert (batch["status"], batch["request_counts"]["completed"]) == ("completed", 50)
    check_parts(client, batch, 50)


def test_lines_that_no_budget_covers_expire(stack: Stack, client: BatchClient) -> None:
    batch_id, _ = spend(stack, client)
    client.until(batch_id, completed=15)
    set_deadline(stack, batch_id, 0.001)
    batch = client.finish(batch_id)
    assert batch["status"] == "expired"
    assert batch["usage"]["total_tokens"] <= 1000
    assert unrun(client, batch, "batch_expired")
    check_parts(client, batch, 50)


def test_lines_of_a_tenant_that_does_not_wait_fail(stack: Stack, client: BatchClient) -> None:
    acme = stack.tenants["acme"]
    stack.write(lambda c: tenants.update_tenant(c, acme, on_budget="fail"))
    try:
        batch_id, _ = spend(stack, client)
        batch = client.finish(batch_id)
    finally:
        stack.write(lambda c: tenants.update_tenant(c, acme, on_budget=None))
    assert batch["status"] == "completed"
    errors = client.errors(batch)
    assert {line["response"]["status_code"] for line in errors.values()} == {429}
    codes = {line["response"]["body"]["error"]["code"] for line in errors.values()}
    assert codes == {"key_budget_exceeded"}
    assert 15 <= batch["request_counts"]["completed"] < 50, "what the budget covers is answered"
    assert batch["usage"]["total_tokens"] <= 1000
    check_parts(client, batch, 50)


# ---- models


def embedding_lines(names: list[str]) -> list[dict[str, Any]]:
    return [
        {"custom_id": name, "method": "POST", "url": EMBEDDINGS, "body": {"model": name, "input": "a"}}
        for name in names
    ]


def test_embeddings_of_an_alias_of_several_models_are_refused(client: BatchClient) -> None:
    batch = client.finish(client.create(embedding_lines([MODEL, "several"]), EMBEDDINGS))
    assert (batch["status"], batch["request_counts"]["completed"]) == ("failed", 0)
    [error] = batch["errors"]["data"]
    assert (error["code"], error["param"], error["line"]) == ("invalid_model", "body.model", 2)
    assert "cannot be compared" in error["message"]


def test_embeddings_of_an_alias_that_gets_a_second_model(stack: Stack, client: BatchClient) -> None:
    """After the validation, and before its lines run: no engine is connected until then."""

    def put(*models: str) -> None:
        def change(connection: sa.Connection) -> None:
            revision.bump(connection)
            targets = tuple(TargetSection(model=model) for model in models)
            aliases.put_alias(connection, Alias(name="growing", models=targets))

        stack.write(change)

    def status() -> int:
        return client.http.post("/embeddings", json={"model": "growing", "input": "a"}).status_code

    put(MODEL)
    eventually(lambda: status() == 200)
    stack.kill_engine()
    try:
        eventually(lambda: status() == 503)
        batch_id = client.create(embedding_lines(["growing"]), EMBEDDINGS)
        eventually(lambda: client.get(batch_id)["status"] == "in_progress")
        put(MODEL, BARE)
        eventually(lambda: status() == 400)
    finally:
        stack.start_engine()
    batch = client.finish(batch_id)
    error = client.errors(batch)["growing"]["response"]["body"]["error"]
    assert "cannot be compared" in error["message"]


def test_an_alias_stands_for_what_it_did_at_validation(stack: Stack, client: BatchClient) -> None:
    lines = [chat_line(number, model="split", max_tokens=SLOW if number > 5 else 4) for number in range(1, 31)]
    batch_id = client.create(lines)
    client.until(batch_id, completed=5)

    def change(connection: sa.Connection) -> None:
        revision.bump(connection)
        aliases.put_alias(connection, Alias(name="split", models=(TargetSection(model=SMALL),)))

    stack.write(change)
    eventually(lambda: stack.chat(model="split").json()["model"] == SMALL)
    batch = client.finish(batch_id, 120.0)
    assert batch["request_counts"] == {"total": 30, "completed": 30, "failed": 0}
    answers = client.outputs(batch).values()
    assert {line["response"]["body"]["model"] for line in answers} == {MODEL}
    check_parts(client, batch, 30)


def test_lines_of_a_model_that_was_removed_are_refused(stack: Stack, client: BatchClient) -> None:
    lines = [chat_line(number, max_tokens=SLOW) for number in range(1, 41)]
    batch_id = client.create(lines)
    client.until(batch_id, completed=1)

    def switch(active: bool) -> None:
        def write(connection: sa.Connection) -> None:
            revision.bump(connection)
            base_models.change_model_row(connection, MODEL, active=active)

        stack.write(write)

    switch(False)
    try:
        eventually(lambda: stack.chat().status_code == 404)
        batch = client.finish(batch_id)
    finally:
        switch(True)
        eventually(lambda: stack.chat().status_code == 200)
    assert batch["status"] == "completed"
    refused = client.errors(batch).values()
    assert {line["response"]["status_code"] for line in refused} == {404}
    assert {line["response"]["body"]["error"]["code"] for line in refused} == {"model_not_found"}
    check_parts(client, batch, 40)


# ---- the rows


def test_a_worker_without_the_lease_changes_nothing(stack: Stack, client: BatchClient) -> None:
    batch_id = client.create(chat_lines(1))
    client.finish(batch_id)
    with pytest.raises(LeaseLost):
        stack.write(lambda c: claims.decide_end(c, batch_id, 1, "batch_expired", "late", listed=False))
