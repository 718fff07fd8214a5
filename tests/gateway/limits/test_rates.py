"""Rate limits end to end: two gateways that share a Redis, which goes away, is flushed and comes back."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from gateway.access import keys
from gateway.limits import overrides
from gateway.limits.limiter import CHECK_S, SLOT_LEASE_S
from gateway.limits.overrides import QUOTAS, LimitsChange
from support.ports import free_port
from support.redis_server import RedisServer
from support.stack import Stack, body
from support.waiting import eventually

LEASE = "[lease]\nlength_s = 6\nrenew_s = 0.5\nexpire_s = 0.5\n"


class Gateways(Stack):
    """A stack with a second gateway beside the first."""

    second: subprocess.Popen[bytes]
    second_url: str

    def start(self) -> None:
        super().start()
        port = free_port()
        self._second_file = self.directory / "second.toml"
        self._second_file.write_text(self.config_file.read_text().replace(f"port = {self.port}", f"port = {port}"))
        self.second_url = f"http://127.0.0.1:{port}"
        self.start_second()

    def start_second(self) -> None:
        with (self.directory / "second.log").open("ab") as log:
            argv = [sys.executable, "-m", "gateway", "--config", str(self._second_file)]
            self.second = subprocess.Popen(argv, stdout=log, stderr=log)
        eventually(lambda: _ready(self.second_url), 30)

    def stop(self) -> None:
        self.second.terminate()
        self.second.wait()
        super().stop()

    def shared(self) -> list[bool]:
        """Whether each gateway's limits are shared now."""
        urls = (self.url, self.second_url)
        return ["\nlaneway_limits_shared 1.0" in self.metrics(url) for url in urls]


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def gateways(tmp_path: Path, model_dir: Path, postgres_url: str, redis_server: RedisServer) -> Iterator[Gateways]:
    made = Gateways(
        tmp_path / "stack",
        postgres_url,
        model_dir,
        toml=f'[redis]\nurl = "{redis_server.url}"\nanswer_ms = 3000\n{LEASE}',
        fake={"step_ms": 20.0},
    )
    try:
        made.start()
        yield made
    finally:
        made.stop()


def limited(stack: Stack, **limits: Any) -> str:
    """A new key with limits of its own; its secret."""

    def run(connection: sa.Connection) -> keys.MadeKey:
        made = keys.create_key(connection, tenant_id=stack.tenants["acme"], name="limited")
        tenant_id = made.key.tenant_id
        assert tenant_id is not None
        change = LimitsChange(**limits)
        overrides.change_own_limits(connection, scope="key", subject_id=made.key.id, tenant_id=tenant_id, change=change)
        return made

    return stack.write(run).secret


async def ask(urls: list[str], secret: str, **fields: Any) -> list[httpx.Response]:
    """At once, one of each URL; answers in that order."""
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, timeout=60) as client:
        return list(
            await asyncio.gather(*(client.post(f"{url}/v1/chat/completions", json=body(**fields)) for url in urls))
        )


def counted(answers: list[httpx.Response]) -> dict[int, int]:
    codes = [answer.status_code for answer in answers]
    return {code: codes.count(code) for code in sorted(set(codes))}


@pytest.mark.slow
async def test_two_gateways_and_one_redis(gateways: Gateways, redis_server: RedisServer) -> None:
    both = [gateways.url, gateways.second_url]
    assert gateways.shared() == [True, True]

    # Together they admit what one may, and a request that a budget refuses takes nothing.
    def twelve(codes: dict[int, int], began: float) -> bool:
        """Twelve of thirty, and one more every five seconds."""
        return 12 <= codes[200] <= 12 + (time.monotonic() - began) // 5 and codes[200] + codes[429] == 30

    secret, began = limited(gateways, requests_per_minute=12), time.monotonic()
    assert twelve(counted(await ask(both * 15, secret)), began)

    # kill -9 of one gives its places back, when their lease is over.
    secret = limited(gateways, concurrency=4)
    running = asyncio.create_task(ask([gateways.second_url] * 4, secret, max_tokens=2000, ignore_eos=True))
    places = "laneway:*:places"
    client = redis_server.client
    await asyncio.to_thread(eventually, lambda: sum(client.zcard(key) for key in client.scan_iter(places)) == 8)
    assert counted(await ask([gateways.url] * 2, secret)) == {429: 2}
    gateways.second.send_signal(signal.SIGKILL)
    gateways.second.wait()
    with pytest.raises(httpx.TransportError):
        await running
    for key in client.scan_iter(places):
        for place, _ in client.zscan_iter(key):
            client.zincrby(key, -SLOT_LEASE_S * 1e6, place)
    assert counted(await ask([gateways.url] * 4, secret)) == {200: 4}
    gateways.start_second()

    await asyncio.sleep(2 * CHECK_S)  # the first gateway counts the second

    # Redis is killed while requests run: they end as they would have, and each gateway allows its part.
    secret = limited(gateways, requests_per_minute=12)
    running = asyncio.create_task(ask(both, secret, max_tokens=50, ignore_eos=True))
    await asyncio.to_thread(eventually, lambda: sum(client.zcard(key) for key in client.scan_iter(places)) >= 4)
    redis_server.kill()
    assert counted(await running) == {200: 2}
    # At most half each, or a third while the dead gateway's lease counts; of which each has used one.
    codes = counted(await ask(both * 15, secret))
    assert set(codes) == {200, 429}
    assert 6 <= codes[200] <= 12, "not twelve each, and not none"
    assert gateways.shared() == [False, False]
    books = {answer.headers["x-request-id"] for answer in await ask(both, limited(gateways))}
    assert all(gateways.usage(request_id) is not None for request_id in books), "money is untouched"

    # It comes back, empty: what was taken meanwhile is known.
    redis_server.start()
    await asyncio.to_thread(eventually, lambda: gateways.shared() == [True, True])
    assert counted(await ask(both * 15, secret))[429] >= 10
    redis_server.client.flushall()
    began = time.monotonic()
    answers = await ask(both * 15, limited(gateways, requests_per_minute=12))
    assert twelve(counted(answers), began)
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert 1 <= int(refused.headers["retry-after"]) <= 5 + 2, "with its jitter"
    told = f"Try again in {refused.headers['retry-after']}s."
    assert refused.json()["error"]["message"].endswith(told)
    assert refused.headers["x-ratelimit-limit-requests"] == "12"
    eventually(lambda: gateways.open_holds() == 0, 30)


def test_limits_of_a_tenant_hold_over_its_keys(make_stack: Any) -> None:
    stack = make_stack(toml="[tenant_limits]\nrequests_per_minute = 4\n")
    stack.keys["other"] = stack.new_key("acme").secret
    eventually(lambda: httpx.get(f"{stack.url}/v1/models", headers=stack.headers("other")).status_code == 200)
    codes = [stack.chat(key).status_code for key in ("acme", "other", "acme", "other", "acme", "other", "globex")]
    assert codes == [200] * 4 + [429, 429, 200]
    assert "the tenant's requests per minute: limit 4, used 4" in stack.chat("other").json()["error"]["message"]


def test_an_operator_sets_limits(stack: Stack) -> None:
    operator = stack.write(lambda connection: keys.create_key(connection, tenant_id=None, name="op", kind="admin"))
    admin = {"Authorization": f"Bearer {operator.secret}"}
    made = stack.new_key("globex")
    stack.keys["bounded"] = made.secret

    def call(method: str, path: str = "", **data: Any) -> httpx.Response:
        return httpx.request(method, f"{stack.url}/v1/admin/{path}", headers=admin, json=data or None)

    eventually(lambda: call("GET", "limits").status_code == 200)
    own = call("POST", "limits", tenant="globex", key_id=made.key.id, requests_per_minute=2, concurrency=9).json()
    assert own == {
        "id": own["id"],
        "scope": "key",
        "subject_id": made.key.id,
        "tenant_id": stack.tenants["globex"],
        "requests_per_minute": 2,
        "tokens_per_minute": None,
        "concurrency": 9,
        **dict.fromkeys(QUOTAS),  # a key has none
    }
    eventually(lambda: stack.chat("bounded").headers.get("x-ratelimit-limit-requests") == "2")
    eventually(lambda: stack.chat("bounded").status_code == 429)
    own = call("POST", "limits", tenant="globex", key_id=made.key.id, requests_per_minute=None).json()
    assert (own["requests_per_minute"], own["concurrency"]) == (None, 9), "what is not given stays"
    eventually(lambda: stack.chat("bounded").status_code == 200)
    assert call("GET", "limits?tenant=globex").json()["data"] == [own]
    new = call("POST", f"keys/{made.key.id}/rotate", overlap_s=60).json()
    assert call("GET", "limits?tenant=globex").json()["data"] == [own | {"subject_id": new["id"]}]
    for named in (made.key.id, new["id"]):
        changed = call("POST", "limits", tenant="globex", key_id=named, concurrency=7).json()
        assert changed == own | {"subject_id": new["id"], "concurrency": 7}, "both keys have the same limits"
    for wrong, status in (
        ({"tenant": "globex", "concurrency": 0}, 400),
        ({"tenant": "acme", "key_id": made.key.id, "concurrency": 1}, 404),
        ({"tenant": "nobody", "concurrency": 1}, 404),
    ):
        assert call("POST", "limits", **wrong).status_code == status
    assert call("DELETE", f"limits/{own['id']}").status_code == 204
    assert call("DELETE", f"limits/{own['id']}").status_code == 404
