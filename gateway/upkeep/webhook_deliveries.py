"""Delivers events to webhooks: claims due deliveries from the outboxes, posts them signed, and records the results.

Connections are made only to an address that was checked first, and redirects are not followed. Holds and settlements
never wait for a delivery. Nothing here knows how an event is raised.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

import msgspec
import sqlalchemy as sa

from billing.accounts import alerts
from billing.accounts.alerts import Alert
from billing.accounts.outbox import CLAIM_MAX, ClaimedDelivery, Receiver, WebhookOutbox
from billing.database import Database, DatabaseUnavailable
from billing.ids import new_id
from gateway.access.routing_keys import RoutingKeyUnreadable, open_routing_key
from gateway.batches import events as batch_events
from gateway.batches.events import BatchEvent
from gateway.config.server_secrets import ServerSecrets
from gateway.config.settings import WebhooksSection
from gateway.metrics import Metrics
from gateway.upkeep import problem_events
from gateway.upkeep.problem_events import ProblemEvent
from gateway.upkeep.webhook_bodies import AnyEvent, WebhookTestEvent, body_of

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Private networks that `ipaddress` takes for global: IPv4-compatible addresses, a network's own NAT64, site-local
# addresses, and Azure's host agent.
_INNER = tuple(map(ipaddress.ip_network, ("::/96", "64:ff9b:1::/48", "fec0::/10", "168.63.129.16/32")))

_log = logging.getLogger(__name__)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


# One text for an unknown name and for a name at a private address: a tenant must not learn through its webhook which
# internal names exist. The log has the address.
NO_PUBLIC_ADDRESS = "its host has no address that webhooks may be sent to (webhooks.private_addresses)"


class DeliveryFailed(Exception):
    """Why an attempt failed, in words that tenants may see; `detail` is for the log only. `status`: of the answer, if
    there was one."""

    def __init__(self, message: str, detail: str | None = None, *, status: int | None = None) -> None:
        super().__init__(message)
        self.detail = detail
        self.status = status


AnyDelivery = (
    ClaimedDelivery[Alert]
    | ClaimedDelivery[ProblemEvent]
    | ClaimedDelivery[BatchEvent]
    | ClaimedDelivery[WebhookTestEvent]
)
OUTBOXES: tuple[WebhookOutbox[Any], ...] = (alerts.OUTBOX, problem_events.OUTBOX, batch_events.OUTBOX)


class _Attempt(NamedTuple):
    """`status`: of the answer, if there was one; `error` None: it succeeded."""

    status: int | None
    error: str | None = None


class WebhookTestResult(msgspec.Struct, frozen=True):
    """The result of a test event: whether the server accepted it, the HTTP status (null: no answer), the reason of a
    failure, and the duration."""

    event_id: str
    delivered: bool
    status: int | None
    error: str | None
    duration_s: float


class Deliverer:
    """One per gateway process; several share the outboxes."""

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        settings: WebhooksSection,
        secrets: ServerSecrets,
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`secrets` decrypt routing keys."""
        self._database = database
        self._metrics = metrics
        self._timeout_s = settings.timeout_s
        self._retry_s = settings.retry_s
        self._private_addresses = settings.private_addresses
        self._secrets = secrets
        self._wall_clock = wall_clock
        self._tls: ssl.SSLContext | None = None

    async def run(self, every_s: float) -> None:
        """Deliver until cancelled."""
        while True:
            try:
                while await self.run_once() >= CLAIM_MAX:
                    pass
            except DatabaseUnavailable as error:
                _log.warning("webhooks.later", extra={"fields": {"reason": str(error)}})
            await asyncio.sleep(every_s)

    async def run_once(self) -> int:
        """Attempt at most CLAIM_MAX due deliveries of each outbox, and return their number. Raises DatabaseUnavailable;
        attempts whose results were not recorded are repeated."""
        if not await self._database.read(_any_due):
            return 0

        def claim(connection: sa.Connection) -> list[tuple[WebhookOutbox[Any], AnyDelivery]]:
            return [
                (outbox, claimed) for outbox in OUTBOXES for claimed in outbox.claim(connection, retry_s=self._retry_s)
            ]

        found = await self._database.write(claim)
        errors = await asyncio.gather(*(self.attempt(claimed) for _, claimed in found))

        def record(connection: sa.Connection) -> None:
            for outbox in OUTBOXES:
                results = [(claimed, error) for (of, claimed), error in zip(found, errors, strict=True) if of is outbox]
                outbox.record_attempts(connection, results)

        await self._database.write(record)
        return len(errors)

    async def attempt(self, claimed: AnyDelivery) -> str | None:
        """Post the event once, within `webhooks.timeout_s`. Returns why it failed; None if it succeeded."""
        return (await self._attempt(claimed)).error

    async def send_test(self, receiver: Receiver) -> WebhookTestResult:
        """Post a test event once, signed as every delivery."""
        event = WebhookTestEvent(new_id("evt"), int(self._wall_clock()))
        began = time.monotonic()
        made = await self._attempt(ClaimedDelivery(event, receiver, 1))
        return WebhookTestResult(
            event.id, made.error is None, made.status, made.error, round(time.monotonic() - began, 3)
        )

    async def _attempt(self, claimed: AnyDelivery) -> _Attempt:
        status = detail = None
        try:
            async with asyncio.timeout(self._timeout_s):
                status = await self._post(claimed)
        except TimeoutError:
            error = f"no answer within {self._timeout_s:g} s"
        except DeliveryFailed as refused:
            error, detail, status = str(refused), refused.detail, refused.status
        except ssl.SSLError as failed:
            reasons = (failed.reason, getattr(failed, "verify_message", None))
            error = ": ".join(("TLS failed", *(reason for reason in reasons if reason)))
            detail = str(failed)
        except OSError as failed:  # its text would show the address
            error = f"the connection failed: {os.strerror(failed.errno)}" if failed.errno else "the connection failed"
            detail = str(failed)
        except ValueError as failed:  # a response line without an end, or a host name that cannot be encoded
            error = str(failed) or type(failed).__name__
        except Exception as fault:  # noqa: BLE001 - counted and logged: a faulty delivery must not end the gateway
            self._metrics.errors.inc()
            _log.exception("webhooks.failed", extra={"fields": {"webhook": claimed.receiver.id}})
            error = f"the gateway failed: {type(fault).__name__}"
        else:
            self._metrics.deliveries.labels("delivered").inc()
            return _Attempt(status)
        self._metrics.deliveries.labels("failed").inc()
        fields = {
            "webhook": claimed.receiver.id,
            "alert": claimed.event.id,
            "attempt": claimed.attempt,
            "reason": error,
        }
        fields |= {} if detail is None else {"detail": detail}
        _log.warning("webhooks.undelivered", extra={"fields": fields})
        return _Attempt(status, error)

    async def _post(self, claimed: AnyDelivery) -> int:
        """Returns the status of the answer, 200 to 299. Raises DeliveryFailed, OSError, ValueError."""
        url = urlsplit(claimed.receiver.url)
        assert url.hostname is not None
        address, port = await self._address(url)
        tls = self._tls_context() if url.scheme == "https" else None
        reader, writer = await asyncio.open_connection(
            address, port, ssl=tls, server_hostname=url.hostname if tls else None
        )
        try:
            writer.write(self._request(claimed, url))
            await writer.drain()
            status = status_of(await reader.readline())
        finally:
            writer.transport.abort()  # the rest of the answer and the TLS closure are not awaited
        if not 200 <= status <= 299:
            raise DeliveryFailed(f"the server answered {status}", status=status)
        return status

    async def _address(self, url: SplitResult) -> tuple[str, int]:
        """The address and the port to connect to. The name is looked up once, so that the checked address is the
        address that is used. Raises DeliveryFailed."""
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(url.hostname, port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            detail = f"the name {url.hostname!r} is not found: {error.strerror}"
            raise DeliveryFailed(NO_PUBLIC_ADDRESS, detail) from error
        addresses = [str(info[4][0]) for info in found]
        if not self._private_addresses:
            for address in addresses:
                if not is_public(ipaddress.ip_address(address.partition("%")[0])):
                    raise DeliveryFailed(NO_PUBLIC_ADDRESS, f"{url.hostname!r} is at {address}, which is private")
        return addresses[0], port

    def _request(self, claimed: AnyDelivery, url: SplitResult) -> bytes:
        """Raises DeliveryFailed."""
        event: AnyEvent = claimed.event
        receiver, routing_key = claimed.receiver, None
        if receiver.routing_key is not None:
            try:
                routing_key = open_routing_key(self._secrets, receiver.id, receiver.routing_key)
            except RoutingKeyUnreadable as error:
                raise DeliveryFailed(str(error)) from error
        body = body_of(event, receiver.format, routing_key)
        timestamp = int(self._wall_clock())
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        headers = {
            "Host": url.netloc,
            "User-Agent": "laneway",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
            "X-Laneway-Event-Id": event.id,
            "X-Laneway-Timestamp": str(timestamp),
            "X-Laneway-Signature": signature(receiver.secret, timestamp, body),
        }
        lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        return "\r\n".join(lines).encode("ascii") + body

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


def _any_due(connection: sa.Connection) -> bool:
    return any(outbox.any_due(connection) for outbox in OUTBOXES)


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """HMAC-SHA256 over the timestamp (Unix seconds), a dot and the body, so that an old delivery cannot be replayed."""
    return "v1=" + hmac.digest(secret.encode(), b"%d." % timestamp + body, hashlib.sha256).hex()


def status_of(line: bytes) -> int:
    """The status code in an HTTP status line. Raises DeliveryFailed."""
    words = line.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not (words[1].isdigit() and len(words[1]) == 3):
        raise DeliveryFailed("the server did not answer in HTTP" if line else "the server closed without an answer")
    return int(words[1])


def is_public(address: Address) -> bool:
    """Whether the address belongs to the public internet. Of an IPv6 address that contains an IPv4 address, the IPv4
    address decides."""
    if any(address in network for network in _INNER):
        return False
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast
