"""Pushes usage to Stripe and OpenMeter. `billing.books.connectors` decides which events are due, and stores the
identifier and the amount of each; this module sends them.

The gateway that holds the connector's lease pushes. If two gateways push at once, both send the same identifier,
and the receiver counts the event once.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import sqlalchemy as sa

from billing.books import connectors
from billing.books.connectors import PushEvent, PushFailure
from billing.books.rollups import HOUR
from billing.clock import SECOND, rfc3339
from billing.database import Database, DatabaseUnavailable
from gateway.config.billing_settings import ConnectorSection
from gateway.log import ThrottledWarning
from gateway.metrics import Metrics

LEASE_S = 120.0
BATCH_MAX = 20  # events of one round; with AT_ONCE, their attempts end well before the lease does
AT_ONCE = 5
KEY_BYTES_MAX = 4096
WARN_S = 60.0
STRIPE_VERSION = "2025-04-30.basil"
SOURCE = "laneway"

_log = logging.getLogger(__name__)

Result = tuple[PushEvent, PushFailure | None]


class ConnectorPusher:
    """One per gateway and connector."""

    def __init__(self, database: Database, gateway_id: str, section: ConnectorSection, metrics: Metrics) -> None:
        self._database = database
        self._gateway_id = gateway_id
        self._section = section
        self._metrics = metrics
        self._warning = ThrottledWarning(_log, "connectors.unsent", every_s=WARN_S)

    async def run(self) -> None:
        """Push every `poll_s` seconds until cancelled."""
        while True:
            try:
                while await self.push_due() >= BATCH_MAX:
                    pass
            except DatabaseUnavailable as error:
                _log.warning("connectors.database_away", extra={"fields": {"reason": str(error)}})
            except Exception as error:  # noqa: BLE001 - a connector must not end the gateway
                self._metrics.errors.inc()
                _log.error("connectors.failed", exc_info=error)
            await asyncio.sleep(self._section.poll_s)

    async def push_due(self) -> int:
        """Collect usage and send the events that are due, at most BATCH_MAX; none without the lease. Returns the
        number of events that the receiver accepted. Raises DatabaseUnavailable."""
        section, write = self._section, self._database.write_in_background
        if not await write(lambda c: connectors.take_lease(c, section.name, self._gateway_id, LEASE_S)):
            return 0
        while await write(lambda c: connectors.collect(c, section.name)):
            pass
        events, accounts = await write(self._claim)
        if not events:
            return 0
        results = await self._send(events, accounts)
        await write(lambda c: connectors.record_push_results(c, section.name, results))
        failures = [failure for _, failure in results if failure is not None]
        if failures:
            self._warning.warn(connector=section.name, reason=failures[-1].reason, events=len(failures))
        return len(results) - len(failures)

    def _claim(self, connection: sa.Connection) -> tuple[list[PushEvent], dict[str, str]]:
        section = self._section
        accounts = connectors.accounts(connection, section.name)
        events = connectors.claim_push_events(
            connection,
            section.name,
            after_s=section.after_s,
            retry_s=section.retry_s,
            sure_s=section.sure_s,
            age_s_max=section.age_s_max,
            limit=BATCH_MAX,
            tenant_ids=list(accounts) if section.needs_account else None,
        )
        return events, accounts

    async def _send(self, events: Sequence[PushEvent], accounts: Mapping[str, str]) -> list[Result]:
        try:
            key = _read_key(Path(self._section.key_file))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            failure = PushFailure(f"key_file {self._section.key_file}: {reason}", certain=True)
            return [(event, failure) for event in events]
        headers = {"Authorization": f"Bearer {key}", "User-Agent": "laneway"}
        async with httpx2.AsyncClient(headers=headers, timeout=self._section.timeout_s, trust_env=False) as client:
            if self._section.kind == "openmeter":
                failure_of_all = await self._post_events(client, events, accounts)
                return [(event, failure_of_all) for event in events]
            gate = asyncio.Semaphore(AT_ONCE)

            async def one(event: PushEvent) -> Result:
                async with gate:
                    return event, await self._post_meter_event(client, event, accounts[event.tenant_id])

            return list(await asyncio.gather(*(one(event) for event in events)))

    async def _post_meter_event(self, client: httpx2.AsyncClient, event: PushEvent, account: str) -> PushFailure | None:
        """https://docs.stripe.com/api/billing/meter-event/create. Stripe refuses an identifier that it has as a
        duplicate, which is a success here."""
        fields = {
            "event_name": f"{self._section.event_prefix}_{event.meter}_tokens",
            "identifier": event.identifier,
            "timestamp": str((event.hour + HOUR) // SECOND - 1),
            "payload[stripe_customer_id]": account,
            "payload[value]": str(event.tokens),
        }
        headers = {"Stripe-Version": STRIPE_VERSION, "Idempotency-Key": event.identifier}
        return await self._attempt(
            lambda: client.post(f"{self._section.base_url}/v1/billing/meter_events", data=fields, headers=headers)
        )

    async def _post_events(
        self, client: httpx2.AsyncClient, events: Sequence[PushEvent], accounts: Mapping[str, str]
    ) -> PushFailure | None:
        """OpenMeter drops an event whose `id` and `source` it has."""
        body = [
            {
                "specversion": "1.0",
                "id": event.identifier,
                "source": SOURCE,
                "type": f"{self._section.event_prefix}.tokens",
                "subject": accounts.get(event.tenant_id, event.tenant_id),
                "time": rfc3339(event.hour + HOUR - SECOND),
                "datacontenttype": "application/json",
                "data": {"tokens": event.tokens, "meter": event.meter, "tenant_id": event.tenant_id},
            }
            for event in events
        ]
        headers = {"Content-Type": "application/cloudevents-batch+json"}
        content = json.dumps(body).encode()
        return await self._attempt(
            lambda: client.post(f"{self._section.base_url}/api/v1/events", content=content, headers=headers)
        )

    async def _attempt(self, post: Callable[[], Any]) -> PushFailure | None:
        try:
            async with asyncio.timeout(self._section.timeout_s):
                answer: httpx2.Response = await post()
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            return PushFailure(f"the connection failed: {error}", certain=True)
        except (TimeoutError, httpx2.HTTPError) as error:
            return PushFailure(f"no answer: {error or type(error).__name__}", certain=False)
        if answer.is_success or _is_duplicate(answer):
            return None
        # A status of 4xx refuses the event; after one of 5xx, the receiver may have it.
        return PushFailure(f"it answered {answer.status_code}: {_message(answer)}", certain=answer.is_client_error)


def _read_key(path: Path) -> str:
    """The first line of the file. Raises OSError, and ValueError without quoting the file."""
    with path.open("rb") as file:
        line = file.read(KEY_BYTES_MAX).split(b"\n", 1)[0].strip()
    if not line or not line.isascii() or not line.decode("ascii").isprintable():
        raise ValueError("its first line is no key in ASCII")
    return line.decode("ascii")


def _is_duplicate(answer: httpx2.Response) -> bool:
    return answer.status_code in (400, 409) and "already exists with identifier" in _message(answer).lower()


def _message(answer: httpx2.Response) -> str:
    """The message of a refusal, of Stripe (`error.message`) or in a problem of RFC 9457 (`detail`)."""
    try:
        body = answer.json()
    except ValueError:
        return answer.reason_phrase
    error = body.get("error") if isinstance(body, dict) else None
    said = error.get("message") if isinstance(error, dict) else body.get("detail") if isinstance(body, dict) else None
    return str(said or answer.reason_phrase)
