"""Rows of batches as their workers change them, on both databases: claims, lines and ends, under the worker's lease."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from billing.accounts import tenants
from billing.accounts.tags import BATCH_LINE, SOURCE_TAG, store_line_tag_set, store_tag_set, tags_of
from billing.clock import SECOND, database_now
from billing.database import Database
from billing.ledger.leases import extend
from billing.ledger.outputs import LeaseLost
from gateway import errors
from gateway.admin.erasure import erase
from gateway.batches import claims, rows
from gateway.batches.rows import NewBatch
from gateway.batches.validation import BatchError
from gateway.config.batches_settings import BatchesSection
from gateway.files.contents import WrittenFile
from gateway.files.rows import lock_quota, new_file_id
from gateway.limits import overrides
from gateway.limits.overrides import LimitsChange
from support.gateway.batch_stage import GATEWAY, LINES, OTHER, Stage
from support.waiting import PATIENCE_S


@pytest.fixture
def stage(database: Database) -> Stage:
    return Stage(database)


def test_a_batch_is_claimed_while_no_living_gateway_has_it(stage: Stage) -> None:
    created = stage.create()
    claimed = stage.claim()
    assert claimed is not None
    row, epoch = claimed
    assert (row.id, epoch) == (created.id, 1)
    assert stage.claim(OTHER) is None, "its gateway has a lease"
    view = stage.write(lambda c: claims.worker_view(c, [row.id], GATEWAY))
    assert view.states[row.id] == claims.ClaimState("validating", 1, row.deadline_at)
    stage.write(lambda c: extend(c, GATEWAY, 1.0, database_now(c) - 100 * SECOND))
    again = stage.claim(OTHER)
    assert again is not None
    assert again[1] == 2
    assert stage.write(lambda c: claims.claim_batch(c, row.id, GATEWAY, 1)) is None, "the epoch has changed"
    for late in (
        lambda c: claims.restart_validation(c, row.id, epoch),
        lambda c: claims.note_progress(c, row.id, epoch, 1),
        lambda c: claims.insert_lines(c, row.id, epoch, 0, []),
        lambda c: claims.begin_run(c, row, epoch, stage.key, 1, 1, 1),
        lambda c: claims.fail_batch(c, row, epoch, 1, []),
        lambda c: claims.note_attempt(c, row.id, epoch, 1),
        lambda c: claims.decide_end(c, row.id, epoch, "a", "b", listed=False),
        lambda c: claims.plan_assembly(c, row.id, epoch, new_file_id(), new_file_id()),
        lambda c: claims.release_batch(c, row.id, epoch),
        lambda c: claims.end_unreadable(c, row, epoch),
    ):
        with pytest.raises(LeaseLost):
            stage.write(late)


def test_lines_are_read_by_target_and_not_twice(stage: Stage) -> None:
    stage.create()
    row, epoch = stage.claim() or pytest.fail("it is not claimed")
    stage.run(row, epoch)
    assert stage.read(row).status == "in_progress"
    assert stage.write(lambda c: claims.targets_of(c, row.id)) == ["b", "m"]
    assert stage.record(row, epoch, 3)
    found, last = stage.write(lambda c: claims.next_lines(c, row.id, "b", -1, 10))
    assert ([line.line for line in found], last) == ([1, 5], 2), "line 3 has an output"
    stage.write(lambda c: claims.note_attempt(c, row.id, epoch, 1))
    [first], last = stage.write(lambda c: claims.next_lines(c, row.id, "b", -1, 1))
    assert (first.line, first.offset, first.length, first.attempts, last) == (1, 10, 9, 1, 0)
    assert stage.write(lambda c: claims.next_lines(c, row.id, "b", 2, 10)) == ([], 2)


@pytest.mark.parametrize(
    ("outputs", "end", "status", "files"),
    [
        (range(1, LINES + 1), None, "completed", (True, False)),
        ((1, 2), (claims.EXPIRED_CODE, "late"), "expired", (True, True)),
        ((), (claims.EXPIRED_CODE, "late"), "expired", (False, True)),
        ((1,), ("invalid_api_key", "revoked"), "cancelled", (True, True)),
        (range(1, LINES + 1), ("invalid_api_key", "revoked"), "completed", (True, False)),
    ],
)
def test_the_end_follows_from_the_outputs(
    stage: Stage, outputs: Any, end: tuple[str, str] | None, status: str, files: tuple[bool, bool]
) -> None:
    stage.create()
    row, epoch = stage.claim() or pytest.fail("it is not claimed")
    stage.run(row, epoch)
    for line in outputs:
        assert stage.record(row, epoch, line)
    if end is not None:
        stage.write(lambda c: claims.decide_end(c, row.id, epoch, *end, listed=True))
    ids = new_file_id(), new_file_id()
    plan = stage.write(lambda c: claims.plan_assembly(c, row.id, epoch, *ids))
    assert plan.status == status
    assert (plan.output_file_id is not None, plan.error_file_id is not None) == files
    assert (plan.succeeded, plan.failed) == (len(outputs), LINES - len(outputs))
    written = [
        (stage.file(id_), WrittenFile(1, "0" * 64))
        for id_ in (plan.output_file_id, plan.error_file_id)
        if id_ is not None
    ]
    stage.write(lambda c: claims.end_batch(c, row, epoch, plan, stage.key, written))
    ended = stage.read(row)
    assert (ended.status, ended.succeeded, ended.failed) == (status, plan.succeeded, plan.failed)
    assert not stage.record(row, epoch, 4), "no output is recorded after the end"
    with pytest.raises(LeaseLost):
        stage.write(lambda c: claims.end_batch(c, row, epoch, plan, stage.key, written))
    while stage.write(claims.delete_ended_rows):
        pass
    assert stage.write(lambda c: claims.worker_view(c, [], OTHER)).claimable == []


@pytest.mark.parametrize(
    ("code", "status"),
    [(claims.EXPIRED_CODE, "expired"), ("invalid_api_key", "cancelled"), ("tenant_suspended", "cancelled")],
)
def test_a_batch_that_ends_before_it_is_validated_is_not_completed(stage: Stage, code: str, status: str) -> None:
    stage.create()
    row, epoch = stage.claim() or pytest.fail("it is not claimed")
    stage.write(lambda c: claims.decide_end(c, row.id, epoch, code, "late", listed=True))
    stage.write(lambda c: claims.restart_validation(c, row.id, epoch))
    plan = stage.write(lambda c: claims.plan_assembly(c, row.id, epoch, new_file_id(), new_file_id()))
    assert (plan.status, plan.output_file_id, plan.error_file_id) == (status, None, None)


def test_claimable_batches_are_ranked_by_tenant(stage: Stage) -> None:
    for _ in range(3):
        stage.create()
    other = stage.write(lambda c: tenants.create_tenant(c, slug="late", name="Late", tier="standard"))
    late = stage.write(
        lambda c: rows.insert_batch(
            c,
            NewBatch(tenant_id=other.id, key_id="key_1", endpoint="e", input_file_id="file", window_hours=24),
            database_now(c),
            {"status": "validating", "lines": 0, "enqueued_tokens": 0},
        )
    )
    found = stage.write(lambda c: claims.worker_view(c, [], GATEWAY)).claimable
    assert [(one.tenant_id, one.rank) for one in found] == [
        (stage.tenant_id, 1),
        (other.id, 1),
        (stage.tenant_id, 2),
        (stage.tenant_id, 3),
    ]
    assert found[1].batch_id == late.id


def test_a_tenants_enqueued_tokens_are_limited(stage: Stage) -> None:
    stage.create()
    row, epoch = stage.claim() or pytest.fail("it is not claimed")
    stage.run(row, epoch)  # 100 tokens of 1000
    second = stage.create()
    view = stage.write(lambda c: claims.worker_view(c, [row.id], GATEWAY))
    claimed = stage.write(lambda c: claims.claim_batch(c, second.id, GATEWAY, view.claimable[0].epoch))
    error = stage.write(lambda c: claims.begin_run(c, second, claimed[1], stage.key, 1, 901, 1000))
    assert isinstance(error, BatchError)
    assert error.code == "token_limit_exceeded"
    assert stage.read(second).status == "validating"
    assert stage.write(lambda c: claims.begin_run(c, second, claimed[1], stage.key, 1, 900, 1000)) is None


def test_a_tenants_unended_batches_are_limited(stage: Stage) -> None:
    for _ in range(3):
        stage.create()
    with pytest.raises(errors.QuotaExceeded, match=r"batches\.tenant_batches_max"):
        stage.create()


def test_a_tenants_own_limits_of_batches_replace_the_configured_ones(stage: Stage) -> None:
    own: dict[str, Any] = {"scope": "tenant", "subject_id": stage.tenant_id, "tenant_id": stage.tenant_id}

    def limit(**limits: int | None) -> None:
        stage.write(lambda c: overrides.change_own_limits(c, **own, change=LimitsChange(**limits)))

    limit(batches=1, enqueued_tokens=50)
    row = stage.create()
    with pytest.raises(errors.QuotaExceeded, match=r"the limit is 1 \(the tenant's quota 'batches'\)") as refused:
        stage.create()
    assert refused.value.limit == errors.ReachedLimit("tenant_batches", 1)
    claimed = stage.claim() or pytest.fail("it is not claimed")
    limit(batches=4)
    for _ in range(3):
        stage.create()  # the configured limit is 3
    error = stage.write(lambda c: claims.begin_run(c, row, claimed[1], stage.key, 1, 51, 1000))
    assert isinstance(error, BatchError)
    assert "over 50 enqueued tokens" in error.message
    assert "the tenant's quota 'enqueued_tokens'" in error.message
    limit(enqueued_tokens=None)
    assert stage.write(lambda c: claims.begin_run(c, row, claimed[1], stage.key, 1, 51, 1000)) is None


def test_concurrent_creations_do_not_exceed_the_limit(stage: Stage) -> None:
    stage.create()
    stage.create()
    began = threading.Event()

    def create(connection: sa.Connection) -> None:
        rows.create_batch(connection, stage.new(), BatchesSection(tenant_batches_max=3))
        began.set()
        time.sleep(0.3)  # the other transaction begins meanwhile

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(stage.write, create)
        assert began.wait(PATIENCE_S)
        with pytest.raises(errors.QuotaExceeded):
            stage.create()
        first.result()


def test_an_erasure_and_the_end_of_a_batch_do_not_deadlock(stage: Stage) -> None:
    stage.create()
    row, epoch = stage.claim() or pytest.fail("it is not claimed")
    stage.run(row, epoch)
    assert stage.record(row, epoch, 1)
    plan = stage.write(lambda c: claims.plan_assembly(c, row.id, epoch, new_file_id(), new_file_id()))
    written = [(stage.file(new_file_id()), WrittenFile(1, "0" * 64))]
    is_locked = threading.Event()

    def end(connection: sa.Connection) -> None:
        lock_quota(connection, stage.key)
        is_locked.set()
        time.sleep(0.5)  # the erasure waits for this lock
        claims.end_batch(connection, row, epoch, plan, stage.key, written)

    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(stage.write, end)
        assert is_locked.wait(PATIENCE_S)
        stage.write(lambda c: erase(c, "era_1", stage.tenant_id, database_now(c)))
        ending.result()


def test_usage_of_an_erased_tenant_has_its_source_and_no_other_tag(stage: Stage) -> None:
    own = stage.write(lambda c: store_tag_set(c, stage.tenant_id, {"team": "search"}))
    of_lines = stage.write(lambda c: store_line_tag_set(c, stage.tenant_id, own))
    stage.write(lambda c: erase(c, "era_1", stage.tenant_id, database_now(c)))
    found = stage.write(lambda c: tags_of(c, [of_lines], with_source=True))
    assert found == {of_lines: {SOURCE_TAG: BATCH_LINE, "team": "erased"}}


def test_an_idempotency_key_is_used_for_a_day(stage: Stage) -> None:
    first = stage.create(idempotency=("key", "a"))
    assert stage.create(idempotency=("key", "a")) == first
    with pytest.raises(errors.IdempotencyMismatch):
        stage.create(idempotency=("key", "b"))
    stage.write(lambda c: c.execute(sa.text("UPDATE batches SET created_at = created_at - 86401000000")))
    assert stage.create(idempotency=("key", "b")).id != first.id


def test_an_unknown_file_is_not_found(stage: Stage) -> None:
    for file_id in (new_file_id(), "file-x", "\0"):
        with pytest.raises(errors.NotFound):
            stage.create(input_file_id=file_id)
