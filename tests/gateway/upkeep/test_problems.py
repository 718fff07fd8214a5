"""Problems of the deployment as events for webhooks: when one is opened, and resolved, and how often it is sent."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from billing.accounts import webhooks
from billing.clock import SECOND, database_now
from billing.database import Database
from billing.ledger import leases
from gateway import tables
from gateway.access import keys
from gateway.access.routing_keys import open_routing_key, rewrap_routing_keys, seal_routing_key
from gateway.config.file import Config, parse_gateway_config
from gateway.config.server_secrets import ServerSecrets
from gateway.host.workers import WorkerIndex
from gateway.metrics import Metrics
from gateway.upkeep import problem_events
from gateway.upkeep.health_checks import Finding, HealthItem, HealthReport
from gateway.upkeep.problem_events import ProblemEvent, ReportTimes, step_problems
from gateway.upkeep.problem_watch import ProblemWatch
from gateway.upkeep.webhook_deliveries import Deliverer
from support.cut_proxy import CutProxy
from support.gateway.webhook_endpoint import Endpoint
from support.stack import Stack
from support.waiting import eventually

AFTER_S = 60.0
TIMES = ReportTimes(after_s=AFTER_S, renew_s=5.0, report_s_max=3600.0)
SECRETS, NEW_SECRETS = ServerSecrets(bytes(range(32))), ServerSecrets(bytes(range(1, 33)), bytes(range(32)))
ROUTING_KEY = "R0uting" + "k" * 25
DOWN: dict[str, Finding] = {"engine": ("down", "no engine is connected")}
DEGRADED: dict[str, Finding] = {"engine": ("degraded", "1 of 2 engines is ready")}
TOML = """
[webhooks]
private_addresses = true
poll_s = 0.2
timeout_s = 0.5
retry_s = 0.6
problem_after_s = {after_s}
"""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.close()


class Gateways:
    """The rounds of gateways, with moments that pass in the database alone."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.make_webhook("https://example.org/hook")

    def make_webhook(self, url: str, *, sealed: bytes | None = None, **fields: Any) -> webhooks.MadeWebhook:
        def make(connection: sa.Connection) -> webhooks.MadeWebhook:
            made = webhooks.create_webhook(connection, url=url, events=("problems",), **fields)
            if sealed is not None:
                webhooks.set_routing_key(connection, made.webhook.id, sealed)
            return made

        return self.database.write_sync(make)

    def step(self, findings: dict[str, Finding] | None = None, gateway: str = "gw_a") -> list[ProblemEvent]:
        def run(connection: sa.Connection) -> list[ProblemEvent]:
            leases.extend(connection, gateway, 3600.0, database_now(connection))
            return step_problems(connection, gateway, f"host-of-{gateway}", findings or {}, TIMES)

        return self.database.write_sync(run)

    def pass_time(self, seconds: float) -> None:
        """Everything that is stored was `seconds` earlier."""
        columns = (tables.problems.c.bad_since, tables.problems.c.down_since, tables.problems.c.good_since)
        values = {column.name: column - round(seconds * SECOND) for column in columns}
        self.database.write_sync(lambda c: c.execute(sa.update(tables.problems).values(values)))

    def rows(self) -> int:
        count = sa.select(sa.func.count()).select_from(tables.problems)
        return int(self.database.read_sync(lambda c: c.execute(count).scalar_one()))


@pytest.fixture
def gateways(database: Database) -> Gateways:
    return Gateways(database)


def test_a_problem_is_opened_once_and_its_resolution_names_it(gateways: Gateways) -> None:
    assert gateways.step(DOWN) == gateways.step(DOWN, "gw_b") == []
    gateways.pass_time(AFTER_S)
    [opened] = gateways.step(DOWN, "gw_b")
    assert (opened.type, opened.part, opened.status, opened.opened_by) == ("opened", "engine", "down", opened.id)
    assert (opened.hosts, opened.gateways) == (["host-of-gw_a", "host-of-gw_b"], 2)
    assert gateways.step(DOWN) == [], "the other gateway sends nothing"
    assert gateways.step({}) == [], "one of two gateways still finds it"
    gateways.pass_time(2 * AFTER_S)
    assert gateways.step({}) == []
    assert gateways.step({}, "gw_b") == []
    gateways.pass_time(AFTER_S)
    [resolved] = gateways.step({})
    assert (resolved.type, resolved.status, resolved.opened_by) == ("resolved", "ok", opened.id)
    assert resolved.id != opened.id
    assert gateways.rows() == 0


def test_a_flapping_part_sends_nothing(gateways: Gateways) -> None:
    for _ in range(5):
        assert gateways.step(DOWN) == []
        gateways.pass_time(AFTER_S - 1)
        assert gateways.step({}) == []
        assert gateways.rows() == 0
    gateways.step(DOWN)
    gateways.pass_time(AFTER_S)
    assert [event.type for event in gateways.step(DOWN)] == ["opened"]
    for _ in range(5):  # while it is open, neither
        assert gateways.step({}) == []
        gateways.pass_time(AFTER_S - 1)
        assert gateways.step(DOWN) == []


def test_a_degraded_part_that_is_down_for_long_enough_worsens_once(gateways: Gateways) -> None:
    gateways.step(DEGRADED)
    gateways.pass_time(AFTER_S)
    [opened] = gateways.step(DEGRADED)
    assert opened.status == "degraded"
    assert gateways.step(DOWN) == []
    gateways.pass_time(AFTER_S)
    [worsened] = gateways.step(DOWN)
    assert (worsened.type, worsened.status, worsened.opened_by) == ("worsened", "down", opened.id)
    assert gateways.step(DEGRADED) == gateways.step(DOWN) == []


def test_a_dead_gateway_has_no_problems(gateways: Gateways, database: Database) -> None:
    gateways.step(DOWN, "gw_dead")
    expired = sa.update(leases.tables.leases).values(expires_at=1)
    database.write_sync(lambda c: c.execute(expired))
    gateways.pass_time(AFTER_S)
    assert gateways.step({}, "gw_a") == []
    assert gateways.rows() == 0


def test_old_events_are_deleted_and_open_problems_are_not(gateways: Gateways, database: Database) -> None:
    for findings in (DOWN, DOWN, {}, {}):
        gateways.step(findings)
        gateways.pass_time(AFTER_S)
    back = sa.update(tables.problem_events).values(
        occurred_at=tables.problem_events.c.occurred_at - (problem_events.RETAIN_S + 1) * SECOND
    )
    database.write_sync(lambda c: c.execute(back))
    gateways.step({"disk": ("down", "full")})
    gateways.pass_time(AFTER_S)
    [opened] = gateways.step({"disk": ("down", "full")})
    listed = database.read_sync(lambda c: problem_events.list_problem_events(c, 10))
    assert [event for event, _ in listed] == [opened]


def deliverer(database: Database) -> Deliverer:
    settings = parse_gateway_config(TOML.format(after_s=0).encode(), Path("/nowhere"), "test", {}).webhooks
    return Deliverer(database, Metrics(), settings, SECRETS)


def make_due(database: Database) -> None:
    due = sa.update(tables.problem_deliveries).where(tables.problem_deliveries.c.state == "pending")
    database.write_sync(lambda c: c.execute(due.values(next_attempt_at=0)))


async def test_a_resolution_never_overtakes_the_event_that_opened(
    gateways: Gateways, database: Database, endpoint: Endpoint
) -> None:
    """Otherwise an incident would be triggered after its resolution, and remain open."""
    hook = gateways.make_webhook(endpoint.url).webhook
    gateways.step(DOWN)
    gateways.pass_time(AFTER_S)
    [opened] = gateways.step(DOWN)
    endpoint.status = 500
    await deliverer(database).run_once()
    gateways.step({})
    gateways.pass_time(AFTER_S)
    [resolved] = gateways.step({})
    await deliverer(database).run_once()
    assert endpoint.ids() == [opened.id], "the resolution waits"
    endpoint.status = 200
    for _ in range(2):
        make_due(database)
        await deliverer(database).run_once()
    assert endpoint.ids() == [opened.id, opened.id, resolved.id]
    listed = database.read_sync(lambda c: problem_events.list_problem_events(c, 10))
    states = [(one.state, one.attempts) for _, deliveries in listed for one in deliveries if one.webhook_id == hook.id]
    assert states == [("delivered", 1), ("delivered", 2)]


async def test_webhooks_made_later_get_no_resolution(
    gateways: Gateways, database: Database, endpoint: Endpoint
) -> None:
    gateways.step(DOWN)
    gateways.pass_time(AFTER_S)
    gateways.step(DOWN)
    gateways.make_webhook(endpoint.url)
    gateways.step({})
    gateways.pass_time(AFTER_S)
    assert [event.type for event in gateways.step({})] == ["resolved"]
    await deliverer(database).run_once()
    assert endpoint.got == []


async def test_pagerduty_gets_its_routing_key_and_no_log_has_it(
    gateways: Gateways, database: Database, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    made = gateways.make_webhook(endpoint.url, format="pagerduty").webhook
    sealed = seal_routing_key(SECRETS, made.id, ROUTING_KEY)
    database.write_sync(lambda c: webhooks.set_routing_key(c, made.id, sealed))
    gateways.step(DOWN)
    gateways.pass_time(AFTER_S)
    [opened] = gateways.step(DOWN)
    endpoint.status = 500
    await deliverer(database).run_once()
    [body] = endpoint.bodies()
    assert (body["routing_key"], body["dedup_key"], body["event_action"]) == (ROUTING_KEY, opened.id, "trigger")
    assert [record.message for record in caplog.records].count("webhooks.undelivered") == 2
    assert not any(ROUTING_KEY in str(vars(record)) for record in caplog.records)


async def test_a_routing_key_of_another_secret_fails_with_the_reason(
    gateways: Gateways, database: Database, endpoint: Endpoint
) -> None:
    made = gateways.make_webhook(endpoint.url, format="pagerduty").webhook
    sealed = seal_routing_key(ServerSecrets(bytes(32)), made.id, ROUTING_KEY)
    database.write_sync(lambda c: webhooks.set_routing_key(c, made.id, sealed))
    gateways.step(DOWN)
    gateways.pass_time(AFTER_S)
    gateways.step(DOWN)
    await deliverer(database).run_once()
    assert endpoint.got == []
    [(_, deliveries)] = database.read_sync(lambda c: problem_events.list_problem_events(c, 10))
    [delivery] = [one for one in deliveries if one.webhook_id == made.id]
    assert "encrypted with another server secret" in (delivery.last_error or "")


def test_a_rotation_encrypts_routing_keys_again(gateways: Gateways, database: Database) -> None:
    made = gateways.make_webhook("https://events.pagerduty.com/v2/enqueue", format="pagerduty").webhook
    sealed = seal_routing_key(SECRETS, made.id, ROUTING_KEY)
    assert ROUTING_KEY.encode() not in sealed
    database.write_sync(lambda c: webhooks.set_routing_key(c, made.id, sealed))
    assert database.write_sync(lambda c: rewrap_routing_keys(c, NEW_SECRETS)) == 1
    assert database.write_sync(lambda c: rewrap_routing_keys(c, NEW_SECRETS)) == 0
    [receiver] = [one for one in database.read_sync(problem_events.read_problems).receivers if one.id == made.id]
    assert receiver.routing_key is not None
    assert open_routing_key(ServerSecrets(NEW_SECRETS.current), made.id, receiver.routing_key) == ROUTING_KEY


# ---- the database itself


class Watched:
    """Gateways whose way to the database can be cut; every other part is sound."""

    def __init__(self, proxy: CutProxy, direct: Database, config: Config) -> None:
        self.proxy = proxy
        self.direct = direct
        self._config = config
        self._databases: list[Database] = []

    def watch(self, gateway: str, place: WorkerIndex, status: Callable[[], Finding]) -> ProblemWatch:
        database = Database(self.proxy.url)
        self._databases.append(database)
        self.direct.write_sync(lambda c: leases.extend(c, gateway, 3600.0, database_now(c)))

        async def check() -> HealthReport:
            found, detail = status()
            item = HealthItem(name="database", status=found, since=0, detail=detail)
            return HealthReport(status=found, at=0, data=[item])

        deliverer = Deliverer(database, Metrics(), self._config.webhooks, SECRETS)
        return ProblemWatch(
            self._config, gateway, database=database, place=place, check=check, attempt=deliverer.attempt,
            metrics=Metrics(),
        )  # fmt: skip

    def close(self) -> None:
        for database in self._databases:
            database.close()


@pytest.fixture
async def watched(postgres_url: str, tmp_path: Path) -> AsyncIterator[Watched]:
    direct = Database(postgres_url)
    async with CutProxy(postgres_url) as proxy:
        made = Watched(proxy, direct, parse_gateway_config(TOML.format(after_s=0.05).encode(), tmp_path, "test", {}))
        yield made
        made.close()
    direct.close()


async def test_an_unavailable_database_is_sent_without_it_and_resolved_after_it(
    watched: Watched, endpoint: Endpoint
) -> None:
    """Two hosts, the second one with two workers: each host sends it, with one id."""
    watched.direct.write_sync(lambda c: webhooks.create_webhook(c, url=endpoint.url, events=("problems",)))
    places = [("gw_a", WorkerIndex()), ("gw_b", WorkerIndex(0, 2)), ("gw_c", WorkerIndex(1, 2))]
    watches = [watched.watch(name, place, lambda: ("ok", "")) for name, place in places]

    async def run_all() -> None:
        await asyncio.gather(*(watch.run_once() for watch in watches))

    await run_all()
    watched.proxy.cut()
    for _ in range(3):
        await run_all()
        await asyncio.sleep(0.06)
    assert [body["type"] for body in endpoint.bodies()] == ["problem.opened"] * 2, "each host once"
    [id_] = set(endpoint.ids())
    data = endpoint.bodies()[0]["data"]
    assert (data["part"], data["status"], data["opened_by"]) == ("database", "down", id_)
    watched.proxy.restore()

    async def resolved() -> bool:
        await run_all()
        await deliverer(watched.direct).run_once()
        return endpoint.bodies()[-1]["type"] == "problem.resolved"

    for _ in range(100):
        if await resolved():
            break
        await asyncio.sleep(0.05)
    assert len(endpoint.got) == 3
    assert endpoint.bodies()[-1]["data"]["opened_by"] == id_


async def test_a_database_that_does_not_answer_is_sent_too(
    watched: Watched, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.upkeep.problem_watch.READ_S_MAX", 0.2)
    watched.direct.write_sync(lambda c: webhooks.create_webhook(c, url=endpoint.url, events=("problems",)))
    watch = watched.watch("gw_a", WorkerIndex(), lambda: ("ok", ""))
    while not watch._known:  # the first read connects, and may take longer
        await watch.run_once()
    watched.proxy.mute()
    await watch.run_once()
    await watch.run_once()
    assert [body["data"]["part"] for body in endpoint.bodies()] == ["database"]
    assert "has not answered for 0.2 s" in endpoint.bodies()[0]["data"]["detail"]
    watched.proxy.cut()


# ---- whole gateways


def test_two_gateways_send_one_event_for_a_lost_engine(
    make_stack: Callable[..., Stack], postgres_url: str, endpoint: Endpoint
) -> None:
    stack = make_stack(postgres_url, toml=TOML.format(after_s=0.5))
    stack.start_more_gateways(1)
    operator = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin"))
    headers = {"Authorization": f"Bearer {operator.secret}"}
    made = []
    for fields in ({}, {"format": "slack"}, {"format": "pagerduty", "routing_key": ROUTING_KEY}):
        body = {"url": endpoint.url, "events": ["problems"], **fields}
        answer = httpx.post(f"{stack.url}/v1/admin/webhooks", headers=headers, json=body, timeout=30)
        assert answer.status_code == 201, answer.text
        assert ROUTING_KEY not in answer.text
        made.append(answer.json())
    assert [(one["format"], one["events"]) for one in made] == [
        (format_, ["problems"]) for format_ in ("laneway", "slack", "pagerduty")
    ]

    def engine_events() -> list[dict[str, Any]]:
        return [body for body in endpoint.bodies() if body.get("data", {}).get("part") == "engine"]

    stack.kill_engine()
    eventually(lambda: len(engine_events()) == 1)
    stack.start_engine()
    eventually(lambda: len(engine_events()) == 2)
    opened, resolved = engine_events()
    assert (opened["type"], opened["data"]["status"]) == ("problem.opened", "down")
    assert (resolved["type"], resolved["data"]["opened_by"]) == ("problem.resolved", opened["id"])

    def incidents() -> list[tuple[str, str]]:
        found = [body for body in endpoint.bodies() if body.get("payload", {}).get("component") == "engine"]
        return [(body["event_action"], body["dedup_key"]) for body in found]

    eventually(lambda: incidents() == [("trigger", opened["id"]), ("resolve", opened["id"])])
    assert any(opened["id"] in str(body.get("blocks")) for body in endpoint.bodies())
    logs = "".join(path.read_text() for path in stack.directory.glob("*.log"))
    assert ROUTING_KEY not in logs
    assert not any(one["secret"] in logs for one in made)
    assert re.search(r'"event": ?"problem.opened"', logs)


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "format": ({"format": "teams"}, "format", "laneway, slack, pagerduty"),
    "events": ({"events": ["weather"]}, "events", "budgets, problems"),
    "no events": ({"events": []}, "events", "budgets, problems"),
    "problems of a tenant": ({"events": ["problems"], "tenant": "acme"}, "events", "budgets"),
    "no routing key": ({"format": "pagerduty"}, "routing_key", "needs a routing key"),
    "short routing key": ({"format": "pagerduty", "routing_key": "short"}, "routing_key", "32"),
    "routing key of Slack": ({"format": "slack", "routing_key": ROUTING_KEY}, "routing_key", "pagerduty"),
}


@pytest.mark.parametrize(("fields", "param", "allowed"), REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_webhook_is_refused_with_the_field_and_the_allowed_values(
    stack: Stack, fields: dict[str, Any], param: str, allowed: str
) -> None:
    operator = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin"))
    headers = {"Authorization": f"Bearer {operator.secret}"}
    body = {"url": "https://example.org/hook", **fields}
    answer = httpx.post(f"{stack.url}/v1/admin/webhooks", headers=headers, json=body, timeout=30)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert allowed in error["message"]
    assert ROUTING_KEY not in answer.text
