"""Streams of the openai SDK through several workers while a supervisor replaces them: does a request fail?

    python tests/programs/rolling_upgrade.py [--requests 50000] [--workers 2] [--clients 32] [--rolls 20] [--seed 1]

Real processes: `laneway gateway --workers N`, `engine --fake`, one PostgreSQL database. Clients stream without a pause;
each connection is used again, and some streams run longer than a worker needs to be replaced. Meanwhile the supervisor
gets SIGHUP, again and again. It fails unless

- no request failed, and every stream ended with a finish reason and its usage;
- each worker was replaced in every roll, and at the end no old process is left;
- what clients were told they used is what the usage rows say, and no hold is open;
- what the engine made = billed + discarded + overrun, to the token.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # beside support/, and beside the packages where those are not installed
    sys.path[:0] = [str(directory) for directory in Path(__file__).resolve().parents[1:3]]

import openai
import sqlalchemy as sa

from billing import tables
from billing.proofs.ledger_audit import audit_ledger
from support.gateway.engine_books import column_sum, engine_status, metric
from support.paths import MODEL_DIR
from support.processes import children
from support.services import fresh_postgres
from support.stack import MODEL, TIERS, Stack
from support.waiting import eventually, eventually_async

ROLL_S_MAX = 120.0
LONG_EVERY = 8  # every LONG_EVERY-th stream is long
SHORT_TOKENS, LONG_TOKENS = 6, 120
LIMITS = "".join(
    f"[{section}]\nrequests_per_minute = 100000000\ntokens_per_minute = 1000000000\nconcurrency = 100000\n"
    for section in ("limits", "tenant_limits")
)
REPLACED = "the upgrade took"


class UpgradeLost(AssertionError):
    """A request, a worker or a token was lost; the message names it."""


@dataclass
class Tally:
    """Counts of the run. `resent`: HTTP requests that the SDK retried by itself."""

    streams: int = 0
    sent: int = 0
    rolls: int = 0
    prompt: int = 0
    completion: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    wall_s: float = 0.0

    @property
    def ended(self) -> int:
        return self.streams + sum(self.failed.values())

    @property
    def resent(self) -> int:
        return self.sent - self.ended

    def line(self) -> str:
        return (
            f"streams {self.streams} failed {sum(self.failed.values())} resent {self.resent} rolls {self.rolls} "
            f"tokens {self.completion} {self.wall_s:.1f} s {dict(self.failed) or ''}"
        )


def settings(linger_s: float = 1.0) -> dict[str, Any]:
    """Settings of a Stack in which only the upgrade can fail a request."""
    tiers = [
        {"name": name, "service_tier": service, "queue_max": 4096, "inter_token_ms": 1000.0}
        for name, service in (("premium", "priority"), ("standard", "default"), ("batch", "flex"))
    ]
    return {
        "toml": LIMITS,
        "gateway_toml": f"linger_s = {linger_s}\nshutdown_grace_s = 120.0\n",
        "fake": {"step_ms": 10.0},
        "engine_json": {"sequences_max": 256, "step_tokens_max": 4096, "tiers": tiers},
    }


class Load:
    """Clients that stream until `requests` streams were begun and the rolls are over."""

    def __init__(self, stack: Stack, *, requests: int, clients: int, rolls: int, seed: int) -> None:
        self._stack = stack
        self._requests = requests
        self._clients = clients
        self._rolls = rolls
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._rolled = asyncio.Event()
        self.tally = Tally()

    async def run(self) -> Tally:
        began = time.monotonic()
        rolling = asyncio.create_task(self._roll())
        streaming = [asyncio.create_task(self._client(number)) for number in range(self._clients)]
        try:
            await asyncio.gather(rolling, *streaming)
        finally:
            for task in (rolling, *streaming):
                task.cancel()
        self.tally.wall_s = time.monotonic() - began
        return self.tally

    async def _client(self, number: int) -> None:
        async def count(_: object) -> None:
            self.tally.sent += 1

        tenant = list(TIERS)[number % len(TIERS)]
        http = openai.DefaultAsyncHttpxClient(event_hooks={"request": [count]})
        async with openai.AsyncOpenAI(
            base_url=f"{self._stack.url}/v1", api_key=self._stack.keys[tenant], http_client=http, timeout=120
        ) as client:
            while (stream := next(self._numbers)) < self._requests or not self._rolled.is_set():
                try:
                    await self._stream(client, stream)
                except openai.OpenAIError as error:
                    self.tally.failed[f"{type(error).__name__}: {error}"] += 1
                else:
                    self.tally.streams += 1

    async def _stream(self, client: openai.AsyncOpenAI, number: int) -> None:
        """Raises OpenAIError."""
        finished, usage = None, None
        async for chunk in await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": f"Stream {number}."}],
            max_tokens=LONG_TOKENS if number % LONG_EVERY == 0 else self._random.randint(1, SHORT_TOKENS),
            stream=True,
            stream_options={"include_usage": True},
        ):
            usage = chunk.usage or usage
            finished = chunk.choices[0].finish_reason or finished if chunk.choices else finished
        if finished is None or usage is None:
            raise openai.OpenAIError(f"a stream ended with finish reason {finished} and usage {usage}")
        self.tally.prompt += usage.prompt_tokens
        self.tally.completion += usage.completion_tokens

    def _replaced(self) -> int:
        """The number of rolls that have ended."""
        return self._stack.log_file.read_text().count(REPLACED)

    async def _roll(self) -> None:
        """Replace all workers `rolls` times, spread over the requests."""
        assert self._stack.gateway is not None
        try:
            for number in range(self._rolls):
                due = self._requests * (number + 1) // (self._rolls + 1)
                await eventually_async(lambda due=due: self.tally.ended >= due, ROLL_S_MAX * 60)
                before = set(children(self._stack.gateway.pid))
                self._stack.gateway.send_signal(signal.SIGHUP)
                try:
                    await eventually_async(lambda number=number: self._replaced() > number, ROLL_S_MAX)
                except AssertionError as error:
                    log = self._stack.log_file.read_text()
                    raise UpgradeLost(f"the workers were not replaced:\n{log[-4000:]}") from error
                after = set(children(self._stack.gateway.pid))
                if before & after or len(before) != len(after):
                    raise UpgradeLost(f"processes {sorted(before)} were replaced by {sorted(after)}")
                self.tally.rolls += 1
        finally:
            self._rolled.set()


def play(stack: Stack, *, requests: int, clients: int, rolls: int, seed: int = 1) -> Tally:
    """Raises UpgradeLost."""
    eventually(lambda: "workers listen" in stack.log_file.read_text(), 60.0)
    tally = asyncio.run(Load(stack, requests=requests, clients=clients, rolls=rolls, seed=seed).run())
    print(tally.line(), flush=True)
    if tally.failed:
        raise UpgradeLost(tally.line())
    print(check_books(stack, tally), flush=True)
    return tally


def check_books(stack: Stack, tally: Tally) -> str:
    """Raises UpgradeLost unless clients, rows, ledger and engine have the same tokens."""
    eventually(lambda: stack.open_holds() == 0)
    usage = tables.usage.c
    rows = stack.read(lambda c: int(c.execute(sa.select(sa.func.count()).select_from(tables.usage)).scalar_one()))
    prompt, billed, discarded = (
        column_sum(stack, column) for column in (usage.prompt_tokens, usage.completion_tokens, usage.discarded_tokens)
    )
    report = engine_status(stack)
    overrun = metric(report, "laneway_tokens_overrun_total")
    books = (
        f"{rows} usage rows; made {report.tokens_made} = billed {billed} + discarded {discarded} + overrun {overrun}"
    )
    # A request whose answer the SDK did not receive ran, and the tokens that it made are billed.
    told = rows == tally.streams and (prompt, billed) == (tally.prompt, tally.completion)
    if report.tokens_made != billed + discarded + overrun or not (told or tally.resent):
        raise UpgradeLost(f"{books}; clients were told {tally.prompt} and {tally.completion} of {tally.streams}")
    findings = stack.read(audit_ledger)
    if not findings.sound or findings.overshot or findings.open_holds:
        raise UpgradeLost(f"the audit: {findings}")
    return f"{books}; the audit finds nothing"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rolls", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with fresh_postgres() as url, tempfile.TemporaryDirectory() as directory:
        stack = Stack(Path(directory), url, MODEL_DIR, workers=arguments.workers, **settings())
        try:
            stack.start()
            play(
                stack,
                requests=arguments.requests,
                clients=arguments.clients,
                rolls=arguments.rolls,
                seed=arguments.seed,
            )
        except UpgradeLost as error:
            print(error)
            return 1
        finally:
            stack.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
