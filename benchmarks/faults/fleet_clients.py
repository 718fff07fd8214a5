"""Clients of a fleet: openai-SDK streams whose texts are known, spread over the gateways as a load balancer does."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from dataclasses import dataclass, field

import httpx
import openai
from openai import AsyncOpenAI

from benchmarks.faults.fleet_stage import FleetStage, GatewayProcess
from gateway.host.children import healthy
from support.stack import MODEL

LOOK_S = 0.3
RETRY_S = 0.3
RETRY_S_MAX = 30.0
TIMEOUT_S = 180.0
WHOLE_PART = 0.25  # of the requests


@dataclass(frozen=True)
class TextSpec:
    """One request; the same spec has the same text, whichever engine makes it."""

    number: int
    tenant: str
    max_tokens: int
    temperature: float

    @property
    def prompt(self) -> str:
        return f"Tell story number {self.number}, and do not stop. " * (1 + self.number % 7)


def make_specs(count: int, tenants: list[str], seed: int) -> list[TextSpec]:
    chance = random.Random(seed)
    return [
        TextSpec(number, chance.choice(tenants), chance.randint(16, 160), chance.choice([0.0, 0.8, 1.0]))
        for number in range(count)
    ]


@dataclass
class Seen:
    """What clients saw during one fault."""

    requests: int = 0
    failed: list[str] = field(default_factory=list)
    other_text: int = 0
    broken_with_gateway: int = 0  # streams that ended with a killed gateway, and were retried with their key
    longest_gap_s: float = 0.0


class FleetClients:
    """`run` until `stop_load`; `expected` is filled by `learn_texts`."""

    def __init__(self, stage: FleetStage, specs: list[TextSpec], clients: int, seed: int) -> None:
        self.seen = Seen()
        self.expected: dict[TextSpec, str] = {}
        self._stage = stage
        self._specs = specs
        self._clients = clients
        self._chance = random.Random(seed)
        self._sdks: dict[tuple[int, str], AsyncOpenAI] = {}
        self._up: list[GatewayProcess] = list(stage.gateways)
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._balancer: asyncio.Task[None] | None = None

    def start_load(self) -> None:
        self.seen = Seen()
        self._stopping = asyncio.Event()
        self._balancer = asyncio.create_task(self._balance())
        self._tasks = [asyncio.create_task(self._client()) for _ in range(self._clients)]

    async def stop_load(self) -> Seen:
        """Every stream that has begun is read to its end."""
        self._stopping.set()
        await asyncio.gather(*self._tasks)
        assert self._balancer is not None
        self._balancer.cancel()
        await asyncio.gather(self._balancer, return_exceptions=True)
        return self.seen

    async def learn_texts(self) -> None:
        """Each spec's text, without a fault."""
        for first in range(0, len(self._specs), 8):
            batch = self._specs[first : first + 8]
            texts = await asyncio.gather(*(self._ask(self._stage.gateways[0], spec, "") for spec in batch))
            self.expected.update(zip(batch, [text for text, _ in texts], strict=True))

    async def close(self) -> None:
        for sdk in self._sdks.values():
            await sdk.close()

    async def _balance(self) -> None:
        """The gateways that answer /health/ready."""
        while True:
            gateways = self._stage.gateways
            ready = await asyncio.gather(*(healthy("127.0.0.1", gateway.port) for gateway in gateways))
            self._up = [gateway for gateway, up in zip(gateways, ready, strict=True) if up] or self._up
            await asyncio.sleep(LOOK_S)

    async def _client(self) -> None:
        while not self._stopping.is_set():
            await self._complete(self._chance.choice(self._specs))

    async def _complete(self, spec: TextSpec) -> None:
        """One request of a careful client: after a refused connection it tries another gateway. An answer that broke
        with its gateway is requested again: a whole one under the same Idempotency-Key, which streams do not have."""
        self.seen.requests += 1
        key = uuid.uuid4().hex if self._chance.random() < WHOLE_PART else ""
        deadline, retried = time.monotonic() + RETRY_S_MAX, False
        while True:
            gateway = self._chance.choice(self._up)
            kills = gateway.kills
            try:
                text, answer_id = await self._ask(gateway, spec, key)
            except (openai.APIError, httpx.HTTPError, AssertionError) as error:
                refused = isinstance(error.__cause__, httpx.ConnectError)
                repeated = isinstance(error, openai.ConflictError) and bool(self.seen.broken_with_gateway)
                never_sent = not isinstance(error, openai.APIStatusError) and not gateway.serves
                if gateway.kills > kills or never_sent:
                    self.seen.broken_with_gateway += 1
                    retried = True
                elif not refused and not repeated:
                    self.seen.failed.append(f"{type(error).__name__}: {error}"[:300])
                    return
                if time.monotonic() > deadline:
                    self.seen.failed.append(f"no answer within {RETRY_S_MAX:g} s: {error}"[:300])
                    return
                await asyncio.sleep(RETRY_S)
                continue
            if self.expected and text != self.expected[spec]:
                self.seen.other_text += 1
            if key and retried and await self._answer(gateway, spec, key) != (text, answer_id):
                self.seen.failed.append("a key's second answer is not its first")
            return

    async def _answer(self, gateway: GatewayProcess, spec: TextSpec, key: str) -> tuple[str, str]:
        """The text and the id of a whole answer."""
        answer = await self._sdk(gateway, spec.tenant).chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": spec.prompt}],
            max_tokens=spec.max_tokens,
            temperature=spec.temperature,
            seed=spec.number,
            extra_headers={"Idempotency-Key": key},
        )
        return answer.choices[0].message.content or "", answer.id

    async def _ask(self, gateway: GatewayProcess, spec: TextSpec, key: str) -> tuple[str, str]:
        """The text and the id of one answer: whole if it has a key, else a stream. AssertionError: the stream has no
        end."""
        if key:
            return await self._answer(gateway, spec, key)
        stream = await self._sdk(gateway, spec.tenant).chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": spec.prompt}],
            max_tokens=spec.max_tokens,
            temperature=spec.temperature,
            seed=spec.number,
            stream=True,
        )
        pieces: list[str] = []
        answer_id, finished = "", False
        last = time.monotonic()
        async for chunk in stream:
            now = time.monotonic()
            self.seen.longest_gap_s = max(self.seen.longest_gap_s, now - last)
            last, answer_id = now, chunk.id
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                finished = finished or choice.finish_reason is not None
        assert finished, "the stream ended without a finish reason"
        return "".join(pieces), answer_id

    def _sdk(self, gateway: GatewayProcess, tenant: str) -> AsyncOpenAI:
        found = self._sdks.get((gateway.number, tenant))
        if found is None:
            found = self._sdks[gateway.number, tenant] = AsyncOpenAI(
                base_url=f"{gateway.url}/v1",
                api_key=self._stage.stack.keys[tenant],
                max_retries=0,
                timeout=TIMEOUT_S,
            )
        return found
