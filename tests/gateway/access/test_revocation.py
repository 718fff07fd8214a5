"""What a revoked key's and a suspended tenant's requests come to: those that run, with the setting in both positions;
those that are on their way in; and every gateway's, within a second and for ever."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from billing.accounts import prices, tenants
from gateway.access import keys
from support.stack import MODEL, Stack, body
from support.waiting import PATIENCE_S, eventually, eventually_async, promptly

# The promise, from the commit of the administrative write on. For what is let in it holds on any machine, since a
# gateway that has not read the revision for a second lets nobody in: what counts is when a request was sent.
WITHIN_S = 1.0
MakeStack = Callable[..., Stack]


class Reader:
    """One stream being read: the tokens that came, and how it ended."""

    def __init__(self, stack: Stack, secret: str, url: str = "", max_tokens: int = 100) -> None:
        self.tokens = 0
        self.request_id = ""
        self.last: Any = None
        self.ended_at = 0.0
        self._asked = body(stream=True, max_tokens=max_tokens, logprobs=True)
        self._url = f"{url or stack.url}/v1/chat/completions"
        self._headers = {"Authorization": f"Bearer {secret}"}

    async def read(self, client: httpx.AsyncClient) -> None:
        async with client.stream("POST", self._url, headers=self._headers, json=self._asked) as answer:
            assert answer.status_code == 200
            self.request_id = answer.headers["x-request-id"]
            async for line in answer.aiter_lines():
                if not line.startswith("data: "):
                    continue
                self.last = line[6:] if line == "data: [DONE]" else json.loads(line[6:])
                if isinstance(self.last, dict) and "choices" in self.last:
                    drawn = self.last["choices"][0].get("logprobs") or {}
                    self.tokens += len(drawn.get("content") or ())  # a chunk may have several tokens, or none
        self.ended_at = time.monotonic()


async def read_until(readers: list[Reader], then: Callable[[], None]) -> None:
    """Read all to their ends; `then` is done when each has three tokens."""
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        reading = [asyncio.create_task(reader.read(client)) for reader in readers]
        await eventually_async(lambda: all(reader.tokens >= 3 for reader in readers))
        await asyncio.to_thread(then)
        await asyncio.gather(*reading)


@pytest.mark.parametrize("ends", [True, False])
def test_running_streams(make_stack: MakeStack, ends: bool) -> None:
    setting = f"end_streams_on_revoke = {str(ends).lower()}\n"
    stack = make_stack(fake={"step_ms": 25.0}, gateway_toml=setting)
    if not ends:
        revoke_while_they_run(stack, ends)
        return

    def attempt() -> float:
        took = revoke_while_they_run(stack, ends)
        stack.write(lambda c: tenants.resume(c, stack.tenants["globex"]))
        stack.known()
        return took

    promptly(attempt, WITHIN_S)


def revoke_while_they_run(stack: Stack, ends: bool) -> float:
    """Streams of a key that is revoked, of a tenant that is suspended, and of others; the most seconds after that,
    where it `ends` them."""
    revoked, took = stack.new_key("acme"), [0.0]
    most = 1000 if ends else 100
    hit = [Reader(stack, secret, max_tokens=most) for secret in (*[revoked.secret] * 3, *[stack.keys["globex"]] * 2)]
    committed: list[float] = []  # of the first three, of the other two
    spared = [Reader(stack, secret) for secret in (stack.keys["acme"], stack.keys["initech"])]

    def end() -> None:
        stack.write(lambda c: keys.revoke(c, revoked.key.id))
        committed.append(time.monotonic())
        stack.write(lambda c: tenants.suspend(c, stack.tenants["globex"]))
        committed.append(time.monotonic())

    asyncio.run(read_until([*hit, *spared], end))
    eventually(lambda: stack.open_holds() == 0)
    for reader in spared if ends else [*hit, *spared]:
        row = stack.usage(reader.request_id)
        assert row is not None
        assert (reader.last, row.ending, row.completion_tokens) == ("[DONE]", "length", 100)
    if ends:
        took = [reader.ended_at - committed[number >= 3] for number, reader in enumerate(hit)]
        print(f"running streams ended {max(took):.3f} s after the commit, at most")
    for reader in hit if ends else []:
        error = reader.last["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == "invalid_api_key"
        row = stack.usage(reader.request_id)
        assert row is not None
        assert row.ending == "revoked"
        assert row.completion_tokens == reader.tokens, "billed for what was delivered, and nothing else"
        assert row.made_tokens == row.completion_tokens + row.discarded_tokens
        assert row.discarded_tokens <= 2
        assert row.cost_picos > 0
        line = stack.request_line(reader.request_id)
        assert (line["ending"], line["code"], line["status"]) == ("revoked", "invalid_api_key", 200)
    for secret in (revoked.secret, stack.keys["globex"]):
        headers = {"Authorization": f"Bearer {secret}"}
        assert httpx.post(f"{stack.url}/v1/chat/completions", headers=headers, json=body()).status_code == 401
    return max(took)


def test_a_whole_answer_ends_too_and_costs_nothing(make_stack: MakeStack) -> None:
    stack = make_stack(fake={"step_ms": 25.0})

    def made_tokens() -> float:
        lines = stack.metrics().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total"))

    async def ask(made: keys.MadeKey) -> tuple[httpx.Response, float]:
        headers, before = {"Authorization": f"Bearer {made.secret}"}, made_tokens()
        async with httpx.AsyncClient(timeout=60) as client:
            url = f"{stack.url}/v1/chat/completions"
            asking = asyncio.create_task(client.post(url, headers=headers, json=body(max_tokens=1000, n=2)))
            await asyncio.to_thread(eventually, lambda: made_tokens() >= before + 4)
            await asyncio.to_thread(stack.write, lambda c: keys.revoke(c, made.key.id))
            began = time.monotonic()
            return await asking, time.monotonic() - began

    def attempt() -> float:
        answer, took = asyncio.run(ask(stack.new_key("acme")))
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        row = stack.usage(answer.headers["x-request-id"])
        assert row is not None
        assert (row.ending, row.completion_tokens, row.cost_picos) == ("revoked", 0, 0)
        assert row.made_tokens == row.discarded_tokens > 0
        return took

    promptly(attempt, WITHIN_S)


def test_a_request_whose_key_is_revoked_while_it_arrives_is_refused(make_stack: MakeStack) -> None:
    """Its key was good when its head came; its body takes longer than the revocation."""
    stack = make_stack(gateway_toml="end_streams_on_revoke = false\n")
    made = stack.new_key("acme")
    asked = json.dumps(body()).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {made.secret}\r\n"
        f"Content-Length: {len(asked)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", stack.port)) as connection:
        connection.sendall(head.encode() + asked[:10])
        time.sleep(0.3)
        stack.write(lambda c: keys.revoke(c, made.key.id))
        stack.known()
        connection.sendall(asked[10:])
        assert connection.recv(65536).startswith(b"HTTP/1.1 401 ")
    assert stack.holds() == 0


# ---- several gateways


def post(url: str, secret: str, **fields: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx.post(f"{url}/v1/chat/completions", headers=headers, json=body(max_tokens=1, **fields), timeout=30)


def test_every_gateway_sees_a_change_within_a_second(make_stack: MakeStack, postgres_url: str) -> None:
    stack = make_stack(database_url=postgres_url)
    stack.start_more_gateways(1)
    check_revocation_under_load(stack)

    def all_answer(secret: str, status: int) -> float:
        """Until all answer so: how long after now, which is after the commit, the last request was sent that was
        answered otherwise, 503 apart: a gateway that says so knows that it does not know."""
        committed, wrong = time.monotonic(), 0.0
        for url in stack.urls:
            answered = 0
            while answered != status:
                sent = time.monotonic() - committed
                assert sent < 30, "it did not happen"
                answered = post(url, secret).status_code
                if answered not in (status, 503):
                    wrong = max(wrong, sent)
        print(f"{status} from {wrong:.3f} s after the commit on")
        return wrong

    # Revoked: both know it, and whatever else is changed, neither ever takes it again.
    made = stack.new_key("acme")
    assert all_answer(made.secret, 200) < WITHIN_S
    stack.write(lambda c: keys.revoke(c, made.key.id))
    assert all_answer(made.secret, 401) < WITHIN_S
    for number in range(10):
        stack.write(lambda c, n=number: tenants.update_tenant(c, stack.tenants["acme"], name=f"Acme {n}"))
        for url in stack.urls:
            assert post(url, made.secret).status_code in (401, 503)
        time.sleep(0.1)

    # Suspended and taken back.
    stack.write(lambda c: tenants.suspend(c, stack.tenants["globex"]))
    assert all_answer(stack.keys["globex"], 401) < WITHIN_S
    stack.write(lambda c: tenants.resume(c, stack.tenants["globex"]))
    assert all_answer(stack.keys["globex"], 200) < WITHIN_S

    # Repriced: the very next hold of either has the new price.
    version = stack.write(
        lambda c: prices.publish(
            c, subject=MODEL, input=2, cached_input=2, output=2, multipliers=dict.fromkeys(("premium", "standard"), 1)
        )
    )
    for url in stack.urls:
        answer = post(url, stack.keys["acme"])
        row = stack.usage(answer.headers["x-request-id"])
        assert row is not None
        assert row.price_version_id == version.id


def check_revocation_under_load(stack: Stack) -> None:
    """Look-ups in flight at the moment of the revocation, and caches that are cleared all the time."""

    async def run() -> None:
        stopping = asyncio.Event()

        async def disturb() -> None:
            while not stopping.is_set():
                await asyncio.to_thread(
                    stack.write, lambda c: tenants.update_tenant(c, stack.tenants["initech"], name="I")
                )
                await asyncio.sleep(0.05)

        async def ask(client: httpx.AsyncClient, url: str, secret: str, late: list[float], over: asyncio.Event) -> None:
            headers = {"Authorization": f"Bearer {secret}"}
            while not over.is_set():
                began = time.monotonic()
                answer = await client.get(f"{url}/v1/models", headers=headers)
                assert answer.status_code in (200, 401, 503)  # 503: it knows that it does not know
                if answer.status_code == 200:
                    late.append(began)
                await asyncio.sleep(0.01)

        disturbing = asyncio.create_task(disturb())
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            for _ in range(2):
                made = await asyncio.to_thread(stack.new_key, "acme")
                late: list[float] = []
                over = asyncio.Event()
                asks = [ask(client, url, made.secret, late, over) for url in stack.urls for _ in "ab"]
                asking = [asyncio.create_task(one) for one in asks]
                await asyncio.sleep(0.5)
                await asyncio.to_thread(stack.write, lambda c, made=made: keys.revoke(c, made.key.id))
                revoked_at = time.monotonic()
                await asyncio.sleep(WITHIN_S + 1)
                over.set()
                await asyncio.gather(*asking)
                print(f"the last that was answered was sent {max(late) - revoked_at:.3f} s after the commit")
                assert max(late) < revoked_at + WITHIN_S
        stopping.set()
        await disturbing

    asyncio.run(run())
