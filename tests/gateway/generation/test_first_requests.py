"""A share's first request over HTTP: a tenant that fills a tier does not delay another tenant's first request there,
and the requests that were preempted for it complete."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from billing import tables
from support.stack import Stack, body
from support.waiting import eventually, eventually_async

PLACES = 8
FLOOD, FLOOD_TOKENS = 2 * PLACES, 200
ASKED, ASKED_TOKENS = 5, 3
TIER_OF = {"default": "standard", "flex": "batch"}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    """An engine of PLACES sequences and 6 ms steps: a request of the flood holds its place for 1.2 s."""
    directory = tmp_path_factory.mktemp("filled")
    stack = Stack(
        directory,
        f"sqlite:///{directory}/laneway.db",
        model_dir,
        fake={"step_ms": 6.0},
        engine_json={"sequences_max": PLACES},
    )
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


class Streamed:
    """One request of the flood."""

    def __init__(self) -> None:
        self.text, self.request_id = "", ""

    async def ask(self, client: httpx.AsyncClient, stack: Stack, service_tier: str) -> None:
        fields = {"service_tier": service_tier, "max_tokens": FLOOD_TOKENS, "seed": 7, "stream": True}
        url, headers = f"{stack.url}/v1/chat/completions", stack.headers("globex")
        async with client.stream("POST", url, headers=headers, json=body(**fields)) as answer:
            assert answer.status_code == 200, await answer.aread()
            self.request_id = answer.headers["x-request-id"]
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        self.text += choice["delta"].get("content") or ""


@pytest.mark.parametrize("service_tier", TIER_OF)
async def test_a_tenant_beside_one_that_fills_its_tier_does_not_wait_for_it(filled: Stack, service_tier: str) -> None:
    flood = [Streamed() for _ in range(FLOOD)]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:
        asking = [asyncio.create_task(one.ask(client, filled, service_tier)) for one in flood]
        await eventually_async(lambda: sum(bool(one.text) for one in flood) >= PLACES)
        answers = []
        for _ in range(ASKED):  # in sequence
            fields = body(service_tier=service_tier, max_tokens=ASKED_TOKENS)
            url, headers = f"{filled.url}/v1/chat/completions", filled.headers("acme")
            answers.append(await client.post(url, headers=headers, json=fields))
        await asyncio.gather(*asking)
    assert [answer.status_code for answer in answers] == [200] * ASKED, [answer.text for answer in answers]
    eventually(lambda: filled.open_holds() == 0)

    quiet = [filled.usage(answer.headers["x-request-id"]) for answer in answers]
    flooded = [filled.usage(one.request_id) for one in flood]
    rows = [row for row in (*quiet, *flooded) if row is not None]
    assert len(rows) == ASKED + FLOOD
    assert {(row.tier, row.ending, row.discarded_tokens) for row in rows} == {(TIER_OF[service_tier], "length", 0)}
    assert {row.completion_tokens for row in rows[:ASKED]} == {ASKED_TOKENS}
    assert {row.completion_tokens for row in rows[ASKED:]} == {FLOOD_TOKENS}
    assert all(row.made_tokens == row.completion_tokens for row in rows)

    # A request of the flood's second half waits until one of the first half has made all its tokens.
    waited = sorted(row.queue_s for row in rows[ASKED:])[PLACES:]
    assert max(row.queue_s for row in rows[:ASKED]) < min(waited) / 4
    assert 1 <= sum(row.preemptions for row in rows[ASKED:]) <= ASKED
    assert not any(row.preemptions for row in rows[:ASKED])
    assert len({one.text for one in flood}) == 1, "a preempted request goes on where it was"
    assert recomputed_by(filled, [row.request_id for row in rows]) <= {TIER_OF[service_tier]}


def recomputed_by(stack: Stack, requests: list[str]) -> set[str]:
    """The tiers to which the recompute of these requests is charged."""
    recompute = tables.usage_recompute
    query = sa.select(recompute.c.tier).where(recompute.c.request_id.in_(requests))
    return set(itertools.chain.from_iterable(stack.read(lambda connection: connection.execute(query).all())))
