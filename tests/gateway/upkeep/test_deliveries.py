"""Webhooks told of alerts over real sockets: what they get, when they are told again, and where nothing may go."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from billing import tables
from billing.accounts import alerts, budgets, prices, tenants, webhooks
from billing.database import Database
from billing.ledger.ledger import Ledger
from billing.ledger.messages import HoldRequest, Settlement
from gateway.access import keys
from gateway.config.server_secrets import ServerSecrets
from gateway.config.settings import WebhooksSection
from gateway.metrics import Metrics
from gateway.upkeep.webhook_deliveries import NO_PUBLIC_ADDRESS, Deliverer, DeliveryFailed, is_public, status_of
from support.gateway.webhook_endpoint import Endpoint
from support.services import missing_service
from support.stack import Stack
from support.waiting import eventually, eventually_async

NOW = 1_800_000_000.0
SECRETS = ServerSecrets(bytes(range(32)))


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.close()


@pytest.fixture
def silent() -> Iterator[str]:
    """A URL where connections are taken and nothing is said."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


def deliverer(database: Database, **changes: Any) -> Deliverer:
    settings = WebhooksSection(**{"timeout_s": 1.0, "retry_s": 1.1, "private_addresses": True, **changes})
    return Deliverer(database, Metrics(), settings, SECRETS, wall_clock=lambda: NOW)


class Money:
    """A tenant whose budget reaches a threshold with each request."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.ledger = Ledger(database, "gw_1")
        self._number = 0
        self.tenant = database.write_sync(lambda c: tenants.create_tenant(c, slug="acme", name="Acme", tier="standard"))

        def make(connection: sa.Connection) -> None:
            prices.publish(connection, subject="m", input=1, cached_input=1, output=1, multipliers={"standard": 1})
            budgets.create_budget(
                connection,
                tenant_id=self.tenant.id,
                scope="tenant",
                scope_id=self.tenant.id,
                unit="tokens",
                period="total",
                limit_amount=100,
                kind="soft",
                thresholds=[10, 20, 30, 40, 50],
            )

        database.write_sync(make)

    def webhook(self, url: str) -> webhooks.MadeWebhook:
        return self._database.write_sync(lambda c: webhooks.create_webhook(c, url=url))

    async def cross(self) -> None:
        """Ten tokens: one threshold further."""
        self._number += 1
        request = HoldRequest(f"req_{self._number}", self.tenant.id, "key_a", "m", None, "standard", 5, 5)
        await self.ledger.hold(request)
        await self.ledger.settle(
            Settlement(
                request_id=request.request_id,
                prompt_tokens=5,
                cached_tokens=0,
                completion_tokens=5,
                made_tokens=5,
                ending="stop",
            )
        )

    def deliveries(self) -> list[alerts.Delivery]:
        """Oldest alert first."""

        def read(connection: sa.Connection) -> list[alerts.Delivery]:
            found = alerts.list_alerts(connection)[::-1]
            told = alerts.deliveries(connection, [alert.id for alert in found])
            return [delivery for alert in found for delivery in told[alert.id]]

        return self._database.read_sync(read)

    def make_due(self) -> None:
        outbox = tables.alert_deliveries
        pending = sa.update(outbox).where(outbox.c.state == "pending").values(next_attempt_at=0)
        self._database.write_sync(lambda c: c.execute(pending))


@pytest.fixture
def money(database: Database) -> Money:
    return Money(database)


async def test_what_a_webhook_gets(database: Database, money: Money, endpoint: Endpoint) -> None:
    made = money.webhook(endpoint.url)
    assert await deliverer(database).run_once() == 0
    await money.cross()
    assert await deliverer(database).run_once() == 1
    [(headers, body)] = endpoint.got
    event = json.loads(body)
    [alert] = database.read_sync(alerts.list_alerts)
    assert (event["id"], event["type"]) == (alert.id, "budget.threshold_reached")
    data = event["data"]
    assert (data["threshold"], data["used"], data["limit_amount"]) == (10, 10, 100)
    assert (data["tenant_id"], data["scope"], data["kind"]) == (money.tenant.id, "tenant", "soft")
    assert headers["content-type"] == "application/json"
    assert headers["x-laneway-event-id"] == alert.id
    assert headers["x-laneway-timestamp"] == "1800000000"
    signed = hmac.new(made.secret.encode(), b"1800000000." + body, hashlib.sha256).hexdigest()
    assert headers["x-laneway-signature"] == f"v1={signed}"
    [delivery] = money.deliveries()
    assert (delivery.state, delivery.attempts) == ("delivered", 1)
    assert await deliverer(database).run_once() == 0


async def test_told_again_until_it_takes_it(database: Database, money: Money, endpoint: Endpoint) -> None:
    money.webhook(endpoint.url)
    await money.cross()
    for status in (500, 404, 302):
        endpoint.status, endpoint.location = status, endpoint.url if status == 302 else ""
        assert await deliverer(database).run_once() == 1
        assert money.deliveries()[0].last_error == f"the server answered {status}"
        money.make_due()
    assert len(endpoint.got) == 3, "a redirect is not followed"
    endpoint.status = 204
    await deliverer(database).run_once()
    assert money.deliveries()[0].state == "delivered"
    assert len(set(endpoint.ids())) == 1
    assert len({body for _headers, body in endpoint.got}) == 1


async def test_what_a_gateway_did_not_write_down_is_told_twice(
    database: Database, money: Money, endpoint: Endpoint
) -> None:
    """It delivered, and died before it could say so."""
    money.webhook(endpoint.url)
    await money.cross()
    [claimed] = database.write_sync(lambda c: alerts.OUTBOX.claim(c, retry_s=1.0))
    assert await deliverer(database).attempt(claimed) is None
    money.make_due()
    assert await deliverer(database).run_once() == 1
    assert endpoint.ids() == [claimed.event.id] * 2


async def test_a_dead_endpoint_holds_up_nobody(
    database: Database, money: Money, endpoint: Endpoint, silent: str
) -> None:
    money.webhook(silent)
    money.webhook("http://127.0.0.1:1/nobody-listens")
    money.webhook(endpoint.url)
    await money.cross()
    delivering = asyncio.create_task(deliverer(database, timeout_s=5.0, retry_s=6.0).run_once())
    await eventually_async(lambda: bool(endpoint.got))
    for _ in range(3):
        await money.cross()  # holds and settlements go on meanwhile
    assert not delivering.done(), "the silent one is still waited for"
    assert await delivering == 3
    states = sorted((delivery.state, delivery.last_error or "") for delivery in money.deliveries()[:3])
    assert states[0] == ("delivered", "")
    assert [state for state, _ in states[1:]] == ["pending", "pending"]
    assert {error for _, error in states[1:]} == {
        "no answer within 5 s",
        "the connection failed: Connection refused",
    }


async def test_a_fault_of_our_own_ends_one_attempt_and_nothing_else(
    database: Database, money: Money, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    money.webhook(endpoint.url)
    await money.cross()
    with monkeypatch.context() as broken:
        broken.setattr("gateway.upkeep.webhook_deliveries.signature", lambda *_: 1 // 0)
        assert await deliverer(database).run_once() == 1
    assert money.deliveries()[0].last_error == "the gateway failed: ZeroDivisionError"
    money.make_due()
    await deliverer(database).run_once()
    assert money.deliveries()[0].state == "delivered"


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "[::ffff:127.0.0.1]", "169.254.169.254", "127.1", "2130706433"],
)
async def test_nothing_goes_to_a_private_address(
    database: Database, money: Money, endpoint: Endpoint, host: str
) -> None:
    money.webhook(endpoint.url.replace("127.0.0.1", host))
    await money.cross()
    await deliverer(database, private_addresses=False).run_once()
    assert endpoint.got == []
    [delivery] = money.deliveries()
    assert delivery.state == "pending"
    assert "private" in (delivery.last_error or "")


@pytest.mark.parametrize("url", ["http://localhost:{port}/", "http://no-such-name.invalid/", "http://[::1]:{port}/"])
async def test_errors_tell_neither_addresses_nor_names_of_the_inside(
    database: Database, money: Money, endpoint: Endpoint, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The same sentence for an unknown name and for a private address; the log has the difference."""
    money.webhook(url.format(port=endpoint.url.rsplit(":", 1)[1].strip("/")))
    await money.cross()
    await deliverer(database, private_addresses=False).run_once()
    [delivery] = money.deliveries()
    assert delivery.last_error == NO_PUBLIC_ADDRESS
    [line] = [record.fields for record in caplog.records if record.message == "webhooks.undelivered"]  # type: ignore[attr-defined]
    assert "is not found" in line["detail"] if "invalid" in url else "which is private" in line["detail"]


async def test_a_connection_that_fails_tells_no_address(
    database: Database, money: Money, caplog: pytest.LogCaptureFixture
) -> None:
    """With private addresses allowed."""
    money.webhook("http://localhost:1/")
    await money.cross()
    await deliverer(database).run_once()
    [delivery] = money.deliveries()
    assert delivery.last_error == "the connection failed: Connection refused"
    [line] = [record.fields for record in caplog.records if record.message == "webhooks.undelivered"]  # type: ignore[attr-defined]
    assert "127.0.0.1" in line["detail"] or "::1" in line["detail"]


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("64:ff9b::5db8:d70e", True),
        *((private, False) for private in ("10.1.2.3", "172.16.0.1", "192.168.1.1", "127.0.0.1", "169.254.169.254")),
        *((private, False) for private in ("100.64.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "198.18.0.1")),
        *((private, False) for private in ("::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:10.0.0.1")),
        *((private, False) for private in ("64:ff9b::a00:1", "2002:a00:1::", "2001:db8::1", "168.63.129.16")),
        *((private, False) for private in ("::127.0.0.1", "::10.0.0.1", "64:ff9b:1::7f00:1", "fec0::1")),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is public


@pytest.mark.parametrize(
    "line", [b"", b"hello\r\n", b"HTTP/1.1\r\n", b"HTTP/1.1 20x OK\r\n", b"HTTP/2 200\r\n", b"HTTP/1.1 2000 OK\r\n"]
)
def test_what_is_no_answer(line: bytes) -> None:
    with pytest.raises(DeliveryFailed):
        status_of(line)


@pytest.fixture
def own_certificate(tmp_path: Path) -> Path:
    """Of localhost, signed by itself: a folder with cert.pem and key.pem."""
    if shutil.which("openssl") is None:
        missing_service("openssl", "there is no such program to make a certificate with")
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-days", "1", "-subj", "/CN=localhost", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(argv, cwd=tmp_path, capture_output=True, check=True)
    return tmp_path


async def test_an_https_endpoint_must_prove_its_name(database: Database, money: Money, own_certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own_certificate / "cert.pem", own_certificate / "key.pem")
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        money.webhook(f"https://localhost:{server.sockets[0].getsockname()[1]}/")
        await money.cross()
        await deliverer(database).run_once()
    assert received == []
    assert "CERTIFICATE_VERIFY_FAILED" in (money.deliveries()[0].last_error or "")


# ---- a whole gateway


@pytest.mark.parametrize("private", [True, False])
def test_a_gateway_tells_its_webhooks(make_stack: Callable[..., Stack], endpoint: Endpoint, private: bool) -> None:
    # Refused addresses are tried again soon. An answer takes longer on a busy machine, and is waited for once.
    times = "timeout_s = 10\nretry_s = 11" if private else "timeout_s = 0.3\nretry_s = 0.4"
    stack = make_stack(toml=f"[webhooks]\npoll_s = 0.2\n{times}\nprivate_addresses = {str(private).lower()}\n")
    operator = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin"))
    headers = {"Authorization": f"Bearer {operator.secret}"}
    with httpx.Client(base_url=f"{stack.url}/v1/admin/", headers=headers, timeout=30) as client:
        made = client.post("webhooks", json={"url": endpoint.url, "tenant": "acme"}).json()
        assert made["secret"].startswith("whsec_")
        shown = client.get("webhooks").json()["data"]
        assert shown == [{name: value for name, value in made.items() if name != "secret"}]
        budget = {"tenant": "acme", "unit": "tokens", "period": "day", "limit_amount": 10, "kind": "soft"}
        assert client.post("budgets", json={**budget, "thresholds": [100]}).json()["thresholds"] == [100]
        assert stack.chat("acme").status_code == 200, "soft: it refuses nothing"
        assert stack.chat("acme").status_code == 200

        def delivery() -> dict[str, Any]:
            [alert] = client.get("alerts", params={"tenant": "acme"}).json()["data"]
            assert (alert["threshold"], alert["limit_amount"], alert["kind"]) == (100, 10, "soft")
            [found] = alert["deliveries"]
            return dict(found)

        eventually(lambda: delivery()["attempts"] >= 1)
        if private:
            eventually(lambda: delivery()["state"] == "delivered")
            assert len(endpoint.got) == 1
            assert abs(int(endpoint.got[0][0]["x-laneway-timestamp"]) - time.time()) < 60
        else:
            eventually(lambda: delivery()["attempts"] >= 2)
            assert "private" in delivery()["last_error"]
            assert endpoint.got == []
        assert client.delete(f"webhooks/{made['id']}").status_code == 204
        assert client.delete(f"webhooks/{made['id']}").status_code == 404
        assert client.post("webhooks", json={"url": "file:///etc/passwd"}).json()["error"]["param"] == "url"
    metrics = stack.metrics()
    outcome = "delivered" if private else "failed"
    assert f'laneway_webhook_attempts_total{{outcome="{outcome}"}}' in metrics
