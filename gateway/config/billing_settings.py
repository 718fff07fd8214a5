"""The sections [billing] and [[connectors]] of laneway.toml. laneway.toml explains each setting."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from billing.books.documents import ADDRESS_LINES_MAX, PAYMENT_DAYS_MAX
from engine.protocol.config import ConfigSection as Section

Picos = Annotated[int, Meta(ge=0, le=2**53)]
Currency = Annotated[str, Meta(pattern=r"^[A-Z]{3}$")]
Series = Annotated[str, Meta(pattern=r"^[A-Z0-9][A-Z0-9-]{0,15}$")]
STRIPE_URL = "https://api.stripe.com"
DAY_S = 86_400.0


class BillingSection(Section, frozen=True, kw_only=True):
    """Roll-ups and reconciliations, the cost of devices, and who issues invoices."""

    reconcile_s: Annotated[float, Meta(ge=1, le=3600)] = 60.0
    device_second_picos: Picos = 0
    device_second_prices: Annotated[dict[Currency, Picos], Meta(max_length=64)] = msgspec.field(
        default_factory=dict
    )  # instead of it, by currency
    issuer_name: Annotated[str, Meta(max_length=200)] = ""  # empty: exports.provider_name
    issuer_address: Annotated[tuple[Annotated[str, Meta(max_length=100)], ...], Meta(max_length=ADDRESS_LINES_MAX)] = ()
    issuer_tax_id: Annotated[str, Meta(max_length=64)] = ""
    invoice_series: Series = "INV"
    credit_series: Series = "CN"
    payment_days: Annotated[int, Meta(ge=0, le=PAYMENT_DAYS_MAX)] = 30

    def __post_init__(self) -> None:
        if self.invoice_series == self.credit_series:
            raise ValueError(
                f"credit_series is {self.credit_series!r}, the same as invoice_series; each numbers its own"
            )

    def device_picos(self, currency: str) -> int:
        """The cost of a device second in this currency."""
        return self.device_second_prices.get(currency, self.device_second_picos)


class ConnectorSection(Section, frozen=True, kw_only=True):
    """A system that usage is pushed to. `key_file`: its API key, in the file's first line."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    kind: Literal["stripe", "openmeter"]
    url: Annotated[str, Meta(max_length=1024)] = ""  # empty: STRIPE_URL
    key_file: Annotated[str, Meta(min_length=1, max_length=1024)]
    event_prefix: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_.]{0,63}$")] = "laneway"
    after_s: Annotated[float, Meta(ge=0, le=86_400)] = 300.0  # from an hour's end until it is sent
    poll_s: Annotated[float, Meta(ge=0.1, le=3600)] = 30.0
    retry_s: Annotated[float, Meta(ge=0.1, le=3600)] = 30.0
    timeout_s: Annotated[float, Meta(ge=0.1, le=60)] = 10.0

    def __post_init__(self) -> None:
        if self.kind == "openmeter" and not self.url:
            raise ValueError("url is missing: the address of OpenMeter, for example https://openmeter.cloud")
        if self.url and (urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname):
            raise ValueError(f"url is {self.url!r}; it must begin with https:// or http:// and name a host")
        if self.timeout_s >= self.retry_s:
            raise ValueError(f"timeout_s is {self.timeout_s:g}; it must be less than retry_s ({self.retry_s:g})")

    @property
    def base_url(self) -> str:
        return (self.url or STRIPE_URL).rstrip("/")

    @property
    def needs_account(self) -> bool:
        """Whether it pushes only for tenants whose billing profile has an account of it."""
        return self.kind == "stripe"

    @property
    def sure_s(self) -> float:
        """For how long the receiver knows an identifier, with a margin: Stripe 24 hours, OpenMeter 32 days."""
        return (1 if self.kind == "stripe" else 32) * DAY_S - 3600

    @property
    def age_s_max(self) -> float:
        """How old an hour may be when it is sent: Stripe accepts 35 days."""
        return (35 if self.kind == "stripe" else 3650) * DAY_S - 3600
