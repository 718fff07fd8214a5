"""Engines that die and clients that leave, on each database: one ending a hold, and made = billed + discarded."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import httpx
import pytest
import sqlalchemy as sa

from billing import tables
from billing.proofs.ledger_audit import audit_ledger
from support.stack import Stack, body
from support.waiting import eventually

MakeStack = Callable[..., Stack]
SLOW = {"step_ms": 20.0}


def shows_text(line: str) -> bool:
    return '"content":"' in line and '"content":""' not in line


def assert_books_close(stack: Stack, requests: int) -> sa.Row[tuple[int, ...]]:
    """Every hold has ended, and the sums agree; usage summed up."""
    eventually(lambda: stack.open_holds() == 0)
    findings = stack.read(audit_ledger)
    assert findings.sound, findings
    usage = tables.usage.c
    sums = [sa.func.coalesce(sa.func.sum(column), 0) for column in (usage.made_tokens, usage.completion_tokens)]
    row = stack.read(lambda c: c.execute(sa.select(sa.func.count(), *sums, sa.func.sum(usage.discarded_tokens))).one())
    assert row[1] == row[2] + (row[3] or 0)
    assert stack.holds() == requests
    return row


def test_an_engine_that_is_killed(make_stack: MakeStack, database_url: str) -> None:
    """Its streams end with an error and are charged for what they got; the next engine serves."""
    stack = make_stack(database_url=database_url, fake=SLOW)
    seen, lines = 0, []
    with httpx.stream(
        "POST",
        f"{stack.url}/v1/chat/completions",
        headers=stack.headers(),
        json=body(stream=True, max_tokens=500),
        timeout=30,
    ) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                lines.append(line)
                seen += shows_text(line)
                if seen == 5:
                    stack.kill_engine()
                    seen += 1000
    assert json.loads(lines[-1][6:])["error"]["code"] == "engine_unavailable"
    row = stack.usage(answer.headers["x-request-id"])
    assert row is not None
    assert row.ending == "engine_lost"
    assert 5 <= row.completion_tokens <= len(lines)
    stack.start_engine()
    stack.wait_ready()
    assert stack.chat(max_tokens=5).status_code == 200
    assert_books_close(stack, requests=2)


@pytest.mark.parametrize("leaves", ["before the first token", "at the first token", "after the first token"])
def test_a_client_that_leaves(make_stack: MakeStack, database_url: str, leaves: str) -> None:
    stack = make_stack(database_url=database_url, fake=SLOW, gateway_toml="first_token_wait_s = 0.3\n")
    assert stack.engine is not None
    before = leaves == "before the first token"
    if before:
        os.kill(stack.engine.pid, signal.SIGSTOP)
    tokens = {"before the first token": 0, "at the first token": 1, "after the first token": 20}[leaves]
    with httpx.stream(
        "POST",
        f"{stack.url}/v1/chat/completions",
        headers=stack.headers(),
        json=body(stream=True, max_tokens=500),
        timeout=30,
    ) as answer:
        seen = 0
        for line in answer.iter_lines():
            seen += shows_text(line)
            if before or seen == tokens:
                break
    if before:  # it was kept alive, and left: the engine hears of both at once
        os.kill(stack.engine.pid, signal.SIGCONT)
    request_id = answer.headers["x-request-id"]
    eventually(lambda: stack.open_holds() == 0)
    hold = stack.hold(request_id)
    row = stack.usage(request_id)
    if before:
        assert (hold.state, hold.settled_picos) in [("voided", 0), ("settled", 0)]
    else:
        assert row is not None
        assert row.ending == "client_left"
        assert tokens <= row.completion_tokens <= tokens + 150, "what was on its way when it left"
        assert row.cost_picos == hold.settled_picos > 0
    assert_books_close(stack, requests=1)
