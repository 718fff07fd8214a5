"""One streamed request to an OpenAI-compatible server: sent, read event by event and timed; every failure has a name.

It must never know why a request is sent or when the next one is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec
import yarl

from benchmarks.load.measure import Outcome
from benchmarks.load.settings import Settings
from benchmarks.load.workload import Planned

LINE_BYTES_MAX = 1024 * 1024  # of one event
BODY_BYTES_MAX = 65_536  # of an error's
LIST_BYTES_MAX = 16 * 1024 * 1024  # of /models
ERROR_CHARS_MAX = 64  # of an error's code
CONNECT_S_MAX = 10.0
# Shorter than what servers keep: a connection that the server is about to close is not reused.
KEEP_ALIVE_S = 2.0
READ_BYTES = 256 * 1024
PATHS = {"chat": "chat/completions", "completions": "completions"}

clock = time.perf_counter


class CannotReach(Exception):
    """The server cannot be used at all; the message is one sentence with the reason."""


class BadStream(Exception):
    """The answer is no stream of completion chunks."""


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None

    def has_text(self) -> bool:
        delta = self.delta
        if delta is None:
            return bool(self.text)
        return bool(delta.content or delta.reasoning_content or delta.reasoning)


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Cached | None = None


class _Error(msgspec.Struct):
    code: str | int | None = None
    type: str | None = None

    def __str__(self) -> str:
        return str(self.code or self.type or "without a code")[:ERROR_CHARS_MAX]


class _Chunk(msgspec.Struct):
    """The fields of a chunk that are read; other fields are skipped."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    service_tier: str | None = None
    error: _Error | None = None


class _Listed(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Listed]


class EventReader:
    """Bytes in, the payloads of `data:` lines out. Every chunk of this API is one line."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Raises BadStream for a line without an end."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > LINE_BYTES_MAX:
            raise BadStream
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class Client:
    """Keep-alive connections to one server, as many as requests are in flight. Use as an async context manager."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._url = yarl.URL(f"{settings.base_url}/{PATHS[settings.endpoint]}")
        self._headers: Mapping[str, dict[str, str]] = {
            tenant.name: {"Authorization": f"Bearer {tenant.key}", "Content-Type": "application/json"}
            for tenant in settings.tenants
        }
        self._fields: dict[str, Any] = {
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": settings.temperature,
            **settings.extra,
        }
        self._decode = msgspec.json.Decoder(_Chunk).decode
        self._encode = msgspec.json.Encoder().encode
        self.events = 0  # of all streams so far

    async def __aenter__(self) -> Client:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
            timeout=aiohttp.ClientTimeout(total=self._settings.timeout_s, sock_connect=CONNECT_S_MAX),
            read_bufsize=READ_BYTES,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def models(self, tenant: str) -> list[str]:
        """The models that /models lists for this tenant, in the server's order. Raises CannotReach."""
        url = f"{self._settings.base_url}/models"
        try:
            async with self._session.get(url, headers=self._headers[tenant]) as response:
                data = await _read_at_most(response, LIST_BYTES_MAX)
                if response.status != 200:
                    raise CannotReach(f"{url} answers {response.status} to the key of {tenant!r}")
            return [model.id for model in msgspec.json.decode(data, type=_Models).data]
        except TimeoutError as error:
            raise CannotReach(f"{url} does not answer") from error
        except (aiohttp.ClientError, OSError) as error:
            raise CannotReach(f"nothing usable answers at {url}: {error}") from error
        except msgspec.MsgspecError as error:
            raise CannotReach(f"what {url} answers is no list of models: {error}") from error

    async def ask(self, planned: Planned, due_s: float | None = None) -> Outcome:
        """Send the request and read the answer to its end. Raises only for cancellation: a failure is in the
        outcome."""
        body = self._body(planned)
        sent_s = clock()
        outcome = Outcome(planned.tenant, planned.tier, planned.model, sent_s if due_s is None else due_s, sent_s)
        streams = False
        try:
            headers = self._headers[planned.tenant]
            async with self._session.post(self._url, data=body, headers=headers) as response:
                streams = response.status == 200
                if streams:
                    await self._read(response, outcome)
                else:
                    outcome.error = await self._refusal(response)
        except TimeoutError:
            outcome.error = "timeout"
        except aiohttp.ClientConnectorError:
            outcome.error = "cannot connect"
        except (aiohttp.ClientError, OSError):
            outcome.error = "broken stream" if streams else "connection lost"
        except (BadStream, msgspec.MsgspecError):
            outcome.error = "bad stream"
        outcome.end_s = outcome.end_s or clock()
        return outcome

    def _body(self, planned: Planned) -> bytes:
        fields = {"model": planned.model, "max_tokens": planned.max_tokens, **self._fields}
        if self._settings.endpoint == "chat":
            fields["messages"] = [{"role": "user", "content": planned.prompt}]
        else:
            fields["prompt"] = planned.prompt
        if planned.tier is not None:
            fields["service_tier"] = planned.tier
        return self._encode(fields)

    async def _read(self, response: aiohttp.ClientResponse, outcome: Outcome) -> None:
        """Raises BadStream and what the connection raises."""
        reader, content, decode = EventReader(), response.content, self._decode
        last_s = 0.0
        texts = 0
        done = False
        while data := await content.readany():
            now = clock()
            for payload in reader.feed(data):
                self.events += 1
                if payload == b"[DONE]":
                    done, outcome.end_s = True, now
                    continue
                chunk = decode(payload)
                if chunk.error is not None:
                    outcome.error, outcome.end_s = f"error event {chunk.error}", now
                if chunk.usage is not None:
                    _take_usage(outcome, chunk.usage)
                if outcome.tier is None:
                    outcome.tier = chunk.service_tier
                if chunk.choices and chunk.choices[0].has_text():
                    if texts:
                        outcome.gaps.append(now - last_s)
                    else:
                        outcome.first_s = now
                    texts += 1
                    last_s = now
        if not outcome.usage:
            outcome.completion_tokens = texts
        if not done and outcome.error is None:
            outcome.error = "broken stream"

    async def _refusal(self, response: aiohttp.ClientResponse) -> str:
        """The status, and the code of the error's body if it has a code."""
        data = await _read_at_most(response, BODY_BYTES_MAX)
        try:
            error = self._decode(data).error
        except msgspec.MsgspecError:
            error = None
        return f"{response.status} {error}" if error is not None else str(response.status)


async def _read_at_most(response: aiohttp.ClientResponse, limit: int) -> bytes:
    data = b""
    while len(data) < limit and (piece := await response.content.readany()):
        data += piece
    return data


def _take_usage(outcome: Outcome, usage: _Usage) -> None:
    outcome.usage = True
    outcome.prompt_tokens, outcome.completion_tokens = usage.prompt_tokens, usage.completion_tokens
    if usage.prompt_tokens_details is not None:
        outcome.cached_tokens = usage.prompt_tokens_details.cached_tokens or 0
