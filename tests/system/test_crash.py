"""What is left after a crash, over the whole stack: processes that get SIGKILL, budgets at their edge, real databases.

The books that must agree: what the engine made = what was billed + discarded + lost, to the token. Discarded by the
gateway, in its usage rows, or overrun in the engine, which nobody else hears of.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from billing import tables
from support.gateway.engine_books import column_sum, engine_status, metric
from support.stack import Stack, body
from support.waiting import eventually

LEASE = "[lease]\nlength_s = 2.0\nrenew_s = 0.3\nexpire_s = 0.3\n"
MakeStack = Callable[..., Stack]
STEPS_AHEAD = pytest.mark.parametrize("steps_ahead", [0, 1])


def stream_until_cut(stack: Stack, received: list[int], number: int, tenant: str) -> None:
    """Read one long stream until it ends or breaks; note the chunks that came under its number."""
    try:
        with httpx.stream(
            "POST",
            f"{stack.url}/v1/chat/completions",
            headers=stack.headers(tenant),
            json=body(stream=True, max_tokens=1000),
            timeout=30,
        ) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                    received[number] += 1
    except httpx.TransportError:
        pass


@STEPS_AHEAD
def test_a_gateway_that_is_killed_leaves_no_work_and_no_hold(
    make_stack: MakeStack, database_url: str, steps_ahead: int
) -> None:
    stack = make_stack(database_url=database_url, fake={"step_ms": 20.0, "steps_ahead": steps_ahead}, toml=LEASE)
    received = [0] * 12
    readers = [
        threading.Thread(target=stream_until_cut, args=(stack, received, number, tenant))
        for number, tenant in enumerate(("acme", "globex", "initech") * 4)
    ]
    for reader in readers:
        reader.start()
    eventually(lambda: stack.open_holds() == len(readers))
    eventually(lambda: min(received) > 0)
    assert stack.gateway is not None
    stack.gateway.kill()
    stack.gateway.wait()
    for reader in readers:
        reader.join()

    # The engine stops what nobody can receive any more.
    eventually(lambda: engine_status(stack).running == 0)
    report = engine_status(stack)
    assert report.tokens_made < 1000 * len(readers) / 2
    assert stack.open_holds() == len(readers)

    # A new gateway serves at once; the dead one's holds expire with its lease, and the budgets are whole.
    stack.start_gateway()
    stack.wait_ready()
    done = stack.chat("acme", max_tokens=5)
    assert done.status_code == 200
    eventually(lambda: stack.open_holds() == 0)
    assert column_sum(stack, tables.budget_windows.c.held) == 0
    query = sa.select(tables.holds.c.state, sa.func.count()).group_by(tables.holds.c.state)
    states = stack.read(lambda connection: {row[0]: row[1] for row in connection.execute(query)})
    assert states == {"expired": len(readers), "settled": 1}

    # made = billed + discarded + lost
    lost = metric(report, "laneway_tokens_lost_total")
    assert lost >= sum(received)
    final = engine_status(stack)
    usage = tables.usage.c
    discarded = column_sum(stack, usage.discarded_tokens) + metric(final, "laneway_tokens_overrun_total")
    assert final.tokens_made == column_sum(stack, usage.completion_tokens) + discarded + lost


@STEPS_AHEAD
def test_clients_that_leave_and_an_engine_that_dies_keep_the_books_equal(
    make_stack: MakeStack, steps_ahead: int
) -> None:
    stack = make_stack(fake={"step_ms": 5.0, "steps_ahead": steps_ahead, "stop_after": 45})
    with httpx.Client(timeout=30) as client:
        for index in range(12):
            asked = body(stream=True, max_tokens=30 + index * 3, stop=["sphinx"] if index % 3 == 0 else None)
            with client.stream(
                "POST", f"{stack.url}/v1/chat/completions", headers=stack.headers("globex"), json=asked
            ) as answer:
                for at, _line in enumerate(answer.iter_lines()):
                    if index % 3 == 1 and at > 2 * index:
                        break  # the client leaves
    eventually(lambda: stack.open_holds() == 0)
    usage = tables.usage.c
    report = engine_status(stack)
    made = report.tokens_made - report.tokens_overrun
    billed, discarded = column_sum(stack, usage.completion_tokens), column_sum(stack, usage.discarded_tokens)
    assert (made, column_sum(stack, usage.made_tokens)) == (billed + discarded, made)
    endings = stack.read(lambda connection: list(connection.execute(sa.select(usage.ending)).scalars()))
    assert {"length", "stop", "client_left"} <= set(endings)
    # The engine probes the model whenever it was idle for a second, as it is on a busy machine: those ids are overrun.
    overrun = report.tokens_overrun - report.tokens_probed
    assert overrun == 0 if not steps_ahead else 0 < overrun <= endings.count("stop")


@pytest.mark.parametrize("unit", ["tokens", "money"])
def test_a_budget_for_ten_is_not_overshot_by_sixty_four_at_once(
    make_stack: MakeStack, database_url: str, unit: str, tmp_path: Path
) -> None:
    stack = make_stack(database_url=database_url)
    first = stack.chat("globex", max_tokens=6)
    assert first.status_code == 200
    usage = first.json()["usage"]
    tokens = usage["prompt_tokens"] + 6
    picos = usage["prompt_tokens"] * 100_000 + 6 * 400_000
    made = stack.new_key("globex")
    limit = 10 * (tokens if unit == "tokens" else picos)
    budget = stack.budget(made.key, unit, limit)  # type: ignore[arg-type]
    headers = {"Authorization": f"Bearer {made.secret}"}

    async def flood() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=64)) as client:
            # A prompt of its own each, of the same length: nothing is cheaper for being cached.
            asks = [
                client.post(f"{stack.url}/v1/chat/completions", headers=headers, json=body(max_tokens=6, temperature=0))
                for _ in range(64)
            ]
            return await asyncio.gather(*asks)

    answers = asyncio.run(flood())
    served = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code != 200]
    eventually(lambda: stack.open_holds() == 0)
    windows = tables.budget_windows
    held, posted = stack.read(
        lambda connection: connection.execute(
            sa.select(windows.c.held, windows.c.posted).where(windows.c.budget_id == budget.id)
        ).one()
    )
    assert held == 0
    assert posted <= limit  # overshoot: 0
    assert len(served) >= 10
    if unit == "tokens":
        assert (len(served), posted) == (10, limit)
    for answer in refused:
        assert answer.status_code == 429
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("insufficient_quota", "key_budget_exceeded")
        assert answer.headers["x-should-retry"] == "false"
