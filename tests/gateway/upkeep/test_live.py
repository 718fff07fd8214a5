"""Watching the engine over /v1/admin/engine/live: one look a second for all, none for nobody, and its end."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from billing.database import Database
from gateway.access import keys
from gateway.engines.local import LocalEngine
from gateway.errors import ApiError, DatabaseDown, InvalidApiKey
from gateway.routes.admin import live as admin_live
from gateway.routes.guard import CSRF_HEADER
from gateway.upkeep import live_feed
from gateway.views.live import AwayEvent, EngineEvent
from support.stack import MODEL, Stack, body
from support.waiting import PATIENCE_S, eventually


class Watch:
    """One who watches, in a thread: `events` as they come, with when."""

    def __init__(self, url: str, secret: str, cookie: str | None = None) -> None:
        """By `secret` as a bearer, or by a session's `cookie`."""
        self.events: list[tuple[float, str, Any]] = []
        self.comments = 0
        self.status = 0
        self.ended = threading.Event()
        self._client = httpx.Client(timeout=httpx.Timeout(30))
        self._url = url
        self._headers = {"Authorization": f"Bearer {secret}"} if cookie is None else {"Cookie": cookie}
        self._leave = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        name = ""
        with self._client.stream("GET", f"{self._url}/v1/admin/engine/live", headers=self._headers) as answer:
            self.status = answer.status_code
            for line in answer.iter_lines():
                if self._leave:
                    break
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    self.events.append((time.monotonic(), name, json.loads(line.removeprefix("data: "))))
                elif line.startswith(":"):
                    self.comments += 1
        self.ended.set()

    def named(self, name: str) -> list[Any]:
        return [data for _, said, data in self.events if said == name]

    def leave(self) -> None:
        """With the next line."""
        self._leave = True

    def close(self) -> None:
        self.leave()
        self._thread.join(PATIENCE_S)
        self._client.close()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    """Its engine is killed, and its arena is small."""
    directory = tmp_path_factory.mktemp("watched")
    database_url = f"sqlite:///{directory / 'laneway.db'}"
    made = Stack(directory, database_url, model_dir, fake={"step_ms": 5.0, "pages": 24, "tokens_per_page": 16})
    made.start()
    yield made
    made.stop()


@pytest.fixture
def operator(watched: Stack) -> keys.MadeKey:
    return watched.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin"))


@contextmanager
def watching(stack: Stack, secret: str) -> Iterator[Watch]:
    watch = Watch(stack.url, secret)
    try:
        yield watch
    finally:
        watch.close()


def looks(stack: Stack) -> int:
    [line] = [line for line in stack.metrics().splitlines() if line.startswith("laneway_snapshots_total")]
    return int(float(line.split()[-1]))


def unwatched(stack: Stack) -> bool:
    """Whether the engine is not asked for a while."""
    before = looks(stack)
    time.sleep(2.2)
    return looks(stack) == before


def test_two_watch_and_the_engine_is_asked_once_a_second(watched: Stack, operator: keys.MadeKey) -> None:
    assert unwatched(watched), "nobody watches, and the engine was asked"
    with watching(watched, operator.secret) as one, watching(watched, operator.secret) as other:
        eventually(lambda: len(one.events) >= 1 and len(other.events) >= 1)
        began, asked = time.monotonic(), looks(watched)
        eventually(lambda: len(one.events) >= 4 and len(other.events) >= 4)
        assert looks(watched) - asked <= time.monotonic() - began + 1.5
        moments = [{data["at"] for data in watch.named("engine")[1:]} for watch in (one, other)]
        assert len(moments[0] & moments[1]) >= 2, "they are told of different moments"

        def evenly() -> bool:
            """Two seconds after another, sooner or later: a machine that stands still makes some longer and shorter."""
            times = [at for at, *_ in one.events[1:]]
            gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
            return any(min(two) > 0.5 and max(two) < 2.5 for two in itertools.pairwise(gaps))

        eventually(evenly)
        for data in one.named("engine"):
            event = msgspec.convert(data, EngineEvent)
            assert sum(length for _, length in event.arena.map) == event.arena.pages == 24
            assert sum(owner.pages for owner in event.arena.owners) == 24
    time.sleep(1.2)  # what was asked last comes in
    eventually(lambda: unwatched(watched))


def test_what_runs_is_shown_with_its_tenant_and_who_gave_way(watched: Stack, operator: keys.MadeKey) -> None:
    asked: list[httpx.Response] = []

    def ask(tenant: str, **fields: Any) -> threading.Thread:
        thread = threading.Thread(target=lambda: asked.append(watched.chat(tenant, **fields)))
        thread.start()
        return thread

    with watching(watched, operator.secret) as watch:
        eventually(lambda: len(watch.events) >= 1)

        def shown() -> list[EngineEvent]:
            return [msgspec.convert(data, EngineEvent) for data in watch.named("engine")]

        def of(tenant: str) -> list[Any]:
            return [one for event in shown() for one in event.requests if one.tenant == tenant]

        def all_shown() -> bool:
            return bool(of("acme")) and bool(of("initech")) and any(event.preemptions for event in shown())

        for _ in range(10):  # they may be over before somebody looks, or one before the others begin
            threads = [ask("initech", max_tokens=250, messages=[{"role": "user", "content": "One. " * 30}])]
            time.sleep(0.4)
            threads += [ask("acme", model="acme-style", max_tokens=200) for _ in range(2)]
            for thread in threads:
                thread.join()
            before = len(shown())
            eventually(lambda before=before: all_shown() or len(shown()) > before + 1)
            if all_shown():
                break
        assert all_shown()
    row = of("acme")[0]
    assert (row.tier, row.model, row.adapter) == ("premium", MODEL, "acme-style")
    assert row.tenant_id == watched.tenants["acme"]
    assert row.adapter_digest == b"acme-style".hex().ljust(64, "0")
    assert row.request_id.startswith("req_")
    assert row.prompt_tokens > 0
    told = [one for event in shown() for one in event.preemptions]
    # A tier gives way to a higher one, or to its own when what runs needs a page more.
    assert {(one.tier, one.caused_by_tier) for one in told} <= {
        ("batch", "premium"),
        ("batch", "batch"),
        ("premium", "premium"),
    }
    assert [one.number for one in told] == list(range(told[0].number, told[0].number + len(told))), "twice, or not told"
    assert abs(told[0].at - time.time()) < 30
    last = shown()[-1]
    assert sum(tier.preempted_total for tier in last.tiers) >= len(told)
    [style] = [one for one in last.adapters if one.name == "acme-style"]
    assert style.where in ("device", "host")
    kinds = {owner.kind for event in shown() for owner in event.arena.owners}
    assert {"kv", "free"} <= kinds
    assert all(answer.status_code == 200 for answer in asked)


def test_an_engine_that_goes_and_comes_back(watched: Stack, operator: keys.MadeKey) -> None:
    with watching(watched, operator.secret) as watch:
        eventually(lambda: len(watch.named("engine")) >= 1)
        watched.kill_engine()
        eventually(lambda: len(watch.named("away")) >= 1)
        away = msgspec.convert(watch.named("away")[-1], AwayEvent)
        assert away.reason
        comments = watch.comments
        eventually(lambda: watch.comments > comments)
        with watching(watched, operator.secret) as late:  # is told at once
            eventually(lambda: len(late.named("away")) == 1)
        seen = len(watch.named("engine"))
        watched.start_engine()
        eventually(lambda: len(watch.named("engine")) > seen)
        assert watch.named("engine")[-1]["epoch"] != watch.named("engine")[0]["epoch"]
        watched.wait_ready()


def test_it_ends_with_the_key(watched: Stack, operator: keys.MadeKey) -> None:
    with watching(watched, operator.secret) as watch:
        eventually(lambda: len(watch.events) >= 1)
        watched.write(lambda c: keys.revoke(c, operator.key.id))
        assert watch.ended.wait(PATIENCE_S)
    assert (
        httpx.get(
            f"{watched.url}/v1/admin/engine/live", headers={"Authorization": f"Bearer {operator.secret}"}
        ).status_code
        == 401
    )


def test_by_a_session_it_goes_on_until_the_sign_out(watched: Stack) -> None:
    admin = watched.write(lambda c: keys.create_key(c, tenant_id=None, name="signs in", kind="admin"))
    with httpx.Client(base_url=watched.url) as browser:
        signed_in = browser.post("/v1/admin/session", json={"key": admin.secret})
        [cookie] = browser.cookies.jar
        watch = Watch(watched.url, "", cookie=f"{cookie.name}={cookie.value}")
        try:
            # Longer than it takes to be asked again who watches.
            eventually(lambda: len(watch.named("engine")) >= live_feed.PERIOD_S + admin_live.CONFIRM_S + 1)
            assert not watch.ended.is_set()
            signed_out = browser.delete("/v1/admin/session", headers={CSRF_HEADER: signed_in.json()["csrf_token"]})
            assert signed_out.status_code == 204
            assert watch.ended.wait(PATIENCE_S)
        finally:
            watch.close()


def test_a_tenant_may_not_watch(watched: Stack) -> None:
    answer = httpx.get(f"{watched.url}/v1/admin/engine/live", headers=watched.headers("acme"))
    assert answer.status_code == 403


def test_so_many_may_watch_and_no_more(watched: Stack, operator: keys.MadeKey) -> None:
    def refusal(secret: str) -> str:
        answer = httpx.get(f"{watched.url}/v1/admin/engine/live", headers={"Authorization": f"Bearer {secret}"})
        assert answer.status_code == 503
        return str(answer.json()["error"]["message"])

    made = [
        watched.write(lambda c: keys.create_key(c, tenant_id=None, name="watches", kind="admin"))
        for _ in range(live_feed.WATCHERS_MAX // live_feed.KEY_WATCHERS_MAX)
    ]
    watches: list[Watch] = []
    try:
        for one in made:  # one key's do not keep another's out
            opened = [Watch(watched.url, one.secret) for _ in range(live_feed.KEY_WATCHERS_MAX)]
            watches += opened
            eventually(lambda opened=opened: all(watch.events for watch in opened))
            if one is made[0]:
                assert f"{live_feed.KEY_WATCHERS_MAX} clients with this key" in refusal(one.secret)
        assert f"{live_feed.WATCHERS_MAX} clients watch" in refusal(operator.secret)
    finally:
        for watch in watches:
            watch.leave()
        for watch in watches:
            watch.close()
    with watching(watched, operator.secret) as watch:
        eventually(lambda: bool(watch.events))


async def test_a_slow_reader_misses_events_and_holds_up_nobody() -> None:
    watcher = live_feed.Watcher(lambda _: None)
    for number in range(1000):
        watcher.offer(b"%d" % number)
    assert await watcher.next(1.0) == b"999"
    assert await watcher.next(0.01) == b""
    watcher.offer(b"last")
    watcher.end_watch()
    assert await watcher.next(1.0) is None


def test_the_description_has_the_events(watched: Stack) -> None:
    schema = httpx.get(f"{watched.url}/schema").json()
    content = schema["paths"]["/v1/admin/engine/live"]["get"]["responses"]["200"]["content"]
    names = {one["$ref"].rpartition("/")[2] for one in content["text/event-stream"]["schema"]["oneOf"]}
    assert names == {"EngineEvent", "AwayEvent"}
    event = schema["components"]["schemas"]["EngineEvent"]
    assert set(event["required"]) == set(EngineEvent.__struct_fields__)


@pytest.mark.parametrize(("error", "after_s"), [(DatabaseDown("away"), 0.3), (InvalidApiKey(), 0.0)])
async def test_while_it_cannot_be_asked_whether_one_may_watch_it_goes_on_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: ApiError, after_s: float
) -> None:
    monkeypatch.setattr(admin_live, "CONFIRM_S", 0.05)
    monkeypatch.setattr(admin_live, "UNCONFIRMED_S_MAX", 0.3)
    database = Database(f"sqlite:///{tmp_path / 'none.db'}")
    engine = LocalEngine(tmp_path / "no.sock")
    tenants = live_feed.RequestTenants(database, dict)
    hub = live_feed.LiveFeed(lambda: ("local", engine), tenants, dict, live_feed.WatcherLimits())
    sent: list[Any] = []

    async def admit_again() -> None:
        raise error

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope: Any = {}
    began = time.monotonic()
    async with asyncio.timeout(PATIENCE_S):
        await admin_live.LiveStream(hub, "key_1", admit_again)(scope, receive, send)
    assert time.monotonic() - began >= after_s
    assert sent[0]["status"] == 200
    assert any(message.get("body", b"").startswith(b"event: away") for message in sent)
    assert sent[-1]["more_body"] is False
    database.close()


def test_requests_of_another_gateway_have_their_tenant_and_a_stop_ends_who_watches(
    tmp_path: Path, model_dir: Path, postgres_url: str
) -> None:
    stack = Stack(tmp_path / "two", postgres_url, model_dir, fake={"step_ms": 20.0})
    stack.start()
    stack.start_more_gateways(1)
    secret = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin")).secret
    ask = threading.Thread(
        target=lambda: httpx.post(
            f"{stack.urls[1]}/v1/chat/completions",
            headers=stack.headers("globex"),
            json=body(max_tokens=1000),
            timeout=60,
        )
    )
    ask.start()
    try:
        with watching(stack, secret) as watch:
            eventually(
                lambda: any(one["tenant"] == "globex" for data in watch.named("engine") for one in data["requests"]),
            )
            assert stack.gateway is not None
            stack.gateway.terminate()
            assert stack.gateway.wait(PATIENCE_S) == 0
            assert watch.ended.wait(PATIENCE_S)
    finally:
        stack.stop()
        ask.join()
