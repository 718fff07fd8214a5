"""Data for the console: tenants with projects, keys and budgets, and weeks of traffic, written by the ledger.

Every row is made by the ledger's own transactions, only on a clock of the past: what the pages then show adds up.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import sqlalchemy as sa

from billing import tables
from billing.accounts import budgets, prices, tenants
from billing.accounts.prices import PriceBook, PriceVersion
from billing.clock import DAY, SECOND, database_now
from billing.ids import new_id
from billing.ledger.messages import Held, HoldRequest, Recompute, Settlement
from billing.ledger.transaction import LedgerTransaction
from gateway.access import keys
from support.stack import MODEL, Stack, register

HOUR = 3600 * SECOND
MULTIPLIERS = {"premium": "3", "standard": "1", "batch": "0.5"}
# slug: name, tier, time zone, share of the traffic, projects, adapters
TENANTS: dict[str, tuple[str, str, str, float, tuple[str, ...], tuple[str, ...]]] = {
    "hooli": ("Hooli", "premium", "America/New_York", 0.30, ("search", "mail"), ("hooli-search", "hooli-mail")),
    "vandelay": ("Vandelay Industries", "standard", "Europe/Berlin", 0.22, ("imports", "exports"), ("vandelay-tone",)),
    "soylent": ("Soylent Corporation", "batch", "UTC", 0.16, ("labels",), ()),
    "wernham": ("Wernham Hogg Paper", "standard", "Europe/London", 0.14, ("slough",), ("wernham-jokes",)),
    "cyberdyne": ("Cyberdyne Systems", "premium", "America/Los_Angeles", 0.10, ("research", "ops"), ()),
    "tyrell": ("Tyrell", "batch", "Asia/Tokyo", 0.08, ("replies",), ("shared-style",)),
}
TTFT_S = {"premium": 0.09, "standard": 0.22, "batch": 1.4}
ENDINGS = (("stop", 0.72), ("length", 0.2), ("client_left", 0.06), ("engine_failed", 0.02))


@dataclass
class History:
    """Seed a prepared stack before its gateway starts: `History(stack).write()`."""

    stack: Stack
    days: int = 45
    requests_a_day: int = 60
    last_hour: int = 240  # requests
    seed: int = 1
    requests: int = 0
    _keys: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # tenant → key and project
    _adapters: dict[str, list[str]] = field(default_factory=dict)

    def write(self) -> None:
        self.random = random.Random(self.seed)
        self.now = self.stack.read(database_now)
        self.stack.write(self._people)
        for at, count in self._hours():
            if count:
                self.stack.write(lambda connection, at=at, count=count: self._hour(connection, at, count))

    def _people(self, connection: sa.Connection) -> None:
        began = self.now - (self.days + 1) * DAY
        unit = prices.by_tier(prices.unit_prices(100_000, 50_000, 400_000), MULTIPLIERS)
        prices._insert(connection, PriceVersion(new_id("prv"), "model", MODEL, "USD", began, began, unit))
        for slug, (name, tier, zone, share, projects, adapters) in TENANTS.items():
            tenant = tenants.create_tenant(connection, slug=slug, name=name, tier=tier, time_zone=zone)
            connection.execute(
                sa.update(tables.tenants).where(tables.tenants.c.id == tenant.id).values(created_at=began)
            )
            self.stack.tenants[slug] = tenant.id
            self._keys[slug] = []
            for project in projects:
                made = tenants.create_project(connection, tenant_id=tenant.id, name=project)
                for purpose in ("production", "staging"):
                    key = keys.create_key(
                        connection, tenant_id=tenant.id, name=f"{project} {purpose}", project_id=made.id
                    )
                    self._keys[slug].append((key.key.id, made.id))
                    self.stack.keys[slug] = key.secret
            self._adapters[slug] = [
                self.stack.adapters.get(one)
                or register(connection, name=one, tenant_id=tenant.id, digest=one.encode().hex().ljust(64, "0")[:64]).id
                for one in adapters
            ]
            self._budgets(connection, tenant, share)

    def _budgets(self, connection: sa.Connection, tenant: tenants.Tenant, share: float) -> None:
        """Budgets of about a month's use: some nearly spent, one soft."""
        month = int(
            share * self.requests_a_day * 30 * 250_000_000 * {"premium": 3, "standard": 1, "batch": 0.5}[tenant.tier]
        )
        budgets.create_budget(
            connection,
            tenant_id=tenant.id,
            scope="tenant",
            scope_id=tenant.id,
            unit="money",
            period="month",
            limit_amount=int(month * self.random.uniform(1.0, 2.5)),
            kind="soft" if tenant.slug == "wernham" else "hard",
            thresholds=[50, 80, 100],
        )
        key_id, _ = self._keys[tenant.slug][0]
        budgets.create_budget(
            connection,
            tenant_id=tenant.id,
            scope="key",
            scope_id=key_id,
            unit="tokens",
            period="day",
            limit_amount=200_000,
        )

    def _hours(self) -> list[tuple[int, int]]:
        """(moment, number of requests that end then): fewer at night and at weekends; the last hour by minutes."""
        found = []
        start = (self.now - self.days * DAY) // HOUR * HOUR
        for at in range(start, self.now - HOUR, HOUR):
            hour, weekday = at // HOUR % 24, at // DAY % 7
            busy = 1 + 0.8 * math.sin((hour - 9) / 24 * 2 * math.pi)
            mean = self.requests_a_day / 24 * busy * (0.45 if weekday in (2, 3) else 1.1)
            found.append((at + self.random.randrange(HOUR), max(0, round(self.random.gauss(mean, mean**0.5)))))
        of_minute = self.last_hour // 60
        return found + [
            (self.now - minute * 60 * SECOND, of_minute + self.random.choice((0, 0, 1, -1)))
            for minute in range(59, 0, -1)
        ]

    def _hour(self, connection: sa.Connection, at: int, count: int) -> None:
        asked = [self._request() for _ in range(count)]
        book = PriceBook()
        held, _ = LedgerTransaction("gw_history", 60.0, lambda _: at, book).run(connection, asked, [])
        endings = [
            self._settlement(request, answer)
            for request, answer in zip(asked, held, strict=True)
            if isinstance(answer, Held)
        ]
        LedgerTransaction("gw_history", 60.0, lambda _: at + SECOND, book).run(connection, [], endings)
        self.requests += len(endings)

    def _request(self) -> HoldRequest:
        slug = self.random.choices(list(TENANTS), [row[3] for row in TENANTS.values()])[0]
        key_id, project_id = self.random.choices(self._keys[slug], range(len(self._keys[slug]), 0, -1))[0]
        adapters = self._adapters[slug]
        adapter = self.random.choice(adapters) if adapters and self.random.random() < 0.6 else None
        prompt = int(self.random.lognormvariate(6.2, 0.9)) + 8
        most = self.random.choice((128, 256, 512, 1024))
        return HoldRequest(
            new_id("req"), self.stack.tenants[slug], key_id, MODEL, adapter, TENANTS[slug][1], prompt, most, project_id
        )

    def _settlement(self, request: HoldRequest, held: Held) -> Settlement:
        ending = self.random.choices([one for one, _ in ENDINGS], [share for _, share in ENDINGS])[0]
        made = held.max_tokens if ending == "length" else self.random.randint(1, held.max_tokens)
        overrun = min(made - 1, self.random.randint(0, 3)) if ending == "client_left" else 0
        preempted = request.tier == "batch" and self.random.random() < 0.15
        ttft_s = TTFT_S[request.tier] * self.random.lognormvariate(0, 0.5)
        return Settlement(
            request_id=request.request_id,
            prompt_tokens=request.prompt_tokens,
            cached_tokens=request.prompt_tokens // 2 // 16 * 16 if self.random.random() < 0.5 else 0,
            completion_tokens=made - overrun,
            made_tokens=made,
            discarded_tokens=overrun,
            discard_reason="client_left" if overrun else None,
            ending=ending,
            queue_s=ttft_s / 3,
            queue_device_s={"premium": ttft_s / 4} if request.tier == "batch" else {},
            ttft_s=ttft_s,
            device_s=made * 0.0011,
            preemptions=int(preempted),
            recomputed_tokens=request.prompt_tokens if preempted else 0,
            recomputed={"premium": Recompute(request.prompt_tokens, 0.02)} if preempted else {},
        )
