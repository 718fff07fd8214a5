"""Clients of a fleet: openai-SDK streams whose texts are known, spread over the gateways as a load balancer does."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import openai
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

from benchmarks.faults.fleet_stage import FleetStage, GatewayProcess
from gateway.answers.chat_shape import KEEP_ALIVE
from support.stack import MODEL

LOOK_S = 0.3
RETRY_S = 0.3
RETRY_S_MAX = 30.0
TIMEOUT_S = 180.0
WHOLE_PART = 0.25  # part of the requests that do not stream
SPENDERS = 2  # clients of a key whose budget ends during the fault
BUDGET_TOKENS = 1_200
SPENDER_PAUSE_S = 0.5


@dataclass(frozen=True)
class TextSpec:
    """One request; the same spec has the same text, whichever engine makes it."""

    number: int
    tenant: str
    max_tokens: int
    temperature: float

    @property
    def messages(self) -> list[ChatCompletionMessageParam]:
        """The messages. Their first tokens differ by `number`, so that routing spreads the texts over the engines."""
        story = f"Tell story number {self.number}, and do not stop. " * (1 + self.number % 7)
        return [{"role": "system", "content": f"{self.number}: stories."}, {"role": "user", "content": story}]


def make_specs(count: int, tenants: list[str], seed: int) -> list[TextSpec]:
    chance = random.Random(seed)
    return [
        TextSpec(number, chance.choice(tenants), chance.randint(16, 160), chance.choice([0.0, 0.8, 1.0]))
        for number in range(count)
    ]


@dataclass
class Seen:
    """The clients' observations during one fault."""

    requests: int = 0
    failed: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)  # found by a fault's own checks
    refused: int = 0  # requests refused by a used-up budget
    other_text: int = 0
    broken_with_gateway: int = 0  # requests sent again because their gateway was killed or had no engine
    longest_gap_s: float = 0.0  # between two pieces of text
    longest_silence_s: float = 0.0  # between two reads of a stream, keep-alives included
    keep_alives: int = 0


class _WatchedBytes(httpx.AsyncByteStream):
    """A body whose silences and keep-alives are noted: the SDK hides comments."""

    def __init__(self, inner: httpx.AsyncByteStream, seen: Seen) -> None:
        self._inner = inner
        self._seen = seen

    async def __aiter__(self) -> AsyncIterator[bytes]:
        last = time.monotonic()
        async for part in self._inner:
            now = time.monotonic()
            self._seen.longest_silence_s = max(self._seen.longest_silence_s, now - last)
            self._seen.keep_alives += part.count(KEEP_ALIVE)
            last = now
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


class _WatchedTransport(httpx.AsyncHTTPTransport):
    def __init__(self, clients: FleetClients) -> None:
        super().__init__(limits=httpx.Limits(max_connections=None, max_keepalive_connections=100))
        self._clients = clients

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await super().handle_async_request(request)
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            answer.stream = _WatchedBytes(answer.stream, self._clients.seen)
        return answer


class FleetClients:
    """Clients that send requests from `start_load` to `stop_load`. `learn_texts` fills `expected`."""

    def __init__(self, stage: FleetStage, specs: list[TextSpec], clients: int, seed: int) -> None:
        self.seen = Seen()
        self.expected: dict[TextSpec, str] = {}
        self.answered: set[str] = set()  # ids of requests
        self.broken = 0  # `broken_with_gateway` of all faults so far
        self._stage = stage
        self._specs = specs
        self._clients = clients
        self._chance = random.Random(seed)
        self._sdks: dict[tuple[int, str], AsyncOpenAI] = {}  # by gateway and key
        self._up: list[GatewayProcess] = list(stage.gateways)
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._balancer: asyncio.Task[None] | None = None

    async def start_load(self) -> None:
        self.seen = Seen()
        self._stopping = asyncio.Event()
        self._balancer = asyncio.create_task(self._balance())
        self._tasks = [asyncio.create_task(self._client()) for _ in range(self._clients)]
        stack = self._stage.stack
        spender = stack.new_key("globex")
        stack.budget(spender.key, "tokens", BUDGET_TOKENS)
        self._tasks += [asyncio.create_task(self._spender(spender.secret)) for _ in range(SPENDERS)]

    async def stop_load(self) -> Seen:
        """Stop the load. Every stream that has begun is read to its end."""
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
            texts = await asyncio.gather(
                *(self._ask(self._stage.gateways[0], spec, self._stage.stack.keys[spec.tenant], "") for spec in batch)
            )
            self.expected.update(zip(batch, [text for text, _ in texts], strict=True))

    async def close(self) -> None:
        for sdk in self._sdks.values():
            await sdk.close()

    async def _balance(self) -> None:
        """The gateways that answer /health/ready."""
        while True:
            gateways = self._stage.gateways
            ready = await asyncio.gather(*(gateway.ready() for gateway in gateways))
            self._up = [gateway for gateway, up in zip(gateways, ready, strict=True) if up] or self._up
            await asyncio.sleep(LOOK_S)

    async def _client(self) -> None:
        while not self._stopping.is_set():
            spec = self._chance.choice(self._specs)
            await self._complete(spec, self._stage.stack.keys[spec.tenant])

    async def _spender(self, secret: str) -> None:
        """Send requests with a key through all gateways. Once its budget is used up, they are refused."""
        await asyncio.sleep(SPENDER_PAUSE_S)
        while not self._stopping.is_set():
            refused = self.seen.refused
            await self._complete(self._chance.choice(self._specs), secret, limited=True)
            if self.seen.refused > refused:
                await asyncio.sleep(SPENDER_PAUSE_S)

    async def _complete(self, spec: TextSpec, secret: str, *, limited: bool = False) -> None:
        """One request of a careful client: after a refused connection it tries another gateway. An answer that broke
        with its gateway is requested again: a whole one under the same Idempotency-Key, which streams do not have.
        `limited`: the key's budget may shorten the text, or refuse the request."""
        self.seen.requests += 1
        key = uuid.uuid4().hex if self._chance.random() < WHOLE_PART else ""
        deadline, retried = time.monotonic() + RETRY_S_MAX, False
        while True:
            gateway = self._chance.choice(self._up)
            kills = gateway.kills
            try:
                text, answer_id = await self._ask(gateway, spec, secret, key)
            except (openai.APIError, httpx.HTTPError, AssertionError) as error:
                if limited and isinstance(error, openai.RateLimitError):
                    self.seen.refused += 1
                    return
                refused = isinstance(error.__cause__, httpx.ConnectError)
                repeated = isinstance(error, openai.ConflictError) and bool(self.seen.broken_with_gateway)
                never_sent = not isinstance(error, openai.APIStatusError) and not gateway.serves
                no_engine = isinstance(error, openai.APIStatusError) and error.status_code == 503 and not gateway.serves
                if gateway.kills > kills or never_sent or no_engine:
                    self.seen.broken_with_gateway += 1
                    self.broken += 1
                    retried = True
                elif not refused and not repeated:
                    self.seen.failed.append(self._describe(gateway, error))
                    return
                if time.monotonic() > deadline:
                    self.seen.failed.append(f"no answer within {RETRY_S_MAX:g} s: {error}"[:300])
                    return
                await asyncio.sleep(RETRY_S)
                continue
            expected = self.expected[spec]
            if text != expected and not (limited and expected.startswith(text)):
                self.seen.other_text += 1
            if key and retried and await self._answer(gateway, spec, secret, key) != (text, answer_id):
                self.seen.failed.append("a key's second answer is not its first")
            return

    def _describe(self, gateway: GatewayProcess, error: Exception) -> str:
        cause = error.__cause__
        down_s = time.monotonic() - gateway.unusable_until
        return f"gateway {gateway.number}, usable since {down_s:.1f} s: {type(error).__name__}: {error}: {cause!r}"[
            :400
        ]

    async def _answer(self, gateway: GatewayProcess, spec: TextSpec, secret: str, key: str) -> tuple[str, str]:
        """The text and the id of a whole answer."""
        answer = await self._sdk(gateway, secret).chat.completions.create(
            model=MODEL,
            messages=spec.messages,
            max_tokens=spec.max_tokens,
            temperature=spec.temperature,
            seed=spec.number,
            extra_headers={"Idempotency-Key": key},
        )
        self._note_answered(answer.id)
        return answer.choices[0].message.content or "", answer.id

    async def _ask(self, gateway: GatewayProcess, spec: TextSpec, secret: str, key: str) -> tuple[str, str]:
        """The text and the id of one answer: whole if it has a key, else a stream. AssertionError: the stream has no
        end."""
        if key:
            return await self._answer(gateway, spec, secret, key)
        stream = await self._sdk(gateway, secret).chat.completions.create(
            model=MODEL,
            messages=spec.messages,
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
        self._note_answered(answer_id)
        return "".join(pieces), answer_id

    def _note_answered(self, answer_id: str) -> None:
        self.answered.add("req_" + answer_id.removeprefix("chatcmpl-"))

    def _sdk(self, gateway: GatewayProcess, secret: str) -> AsyncOpenAI:
        found = self._sdks.get((gateway.number, secret))
        if found is None:
            found = self._sdks[gateway.number, secret] = AsyncOpenAI(
                base_url=f"{gateway.url}/v1",
                api_key=secret,
                max_retries=0,
                timeout=TIMEOUT_S,
                http_client=httpx.AsyncClient(transport=_WatchedTransport(self), timeout=TIMEOUT_S),
            )
        return found
