"""Price versions: immutable prices per token for each meter and tier, in force from a moment on.

All prices are integers, in picos of a currency. A price that is not an integer is refused, never rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec
import sqlalchemy as sa

from billing import revision, tables
from billing.clock import database_now, zone_of
from billing.errors import AlreadyExists, InvalidValue
from billing.ids import new_id
from billing.revision import Change

PICOS_PER_UNIT = 10**12
# The largest amount a 64-bit counter holds: 9.2 million currency units.
PICOS_MAX = 2**63 - 1
# Prompt and completion of one request together. This limit × UNIT_PRICE_PICOS_MAX is less than PICOS_MAX, so a hold
# fits.
REQUEST_TOKENS_MAX = 2**24
# A tenth of a currency unit per token.
UNIT_PRICE_PICOS_MAX = 10**11
LIST_MAX = 1000
DIGITS_MAX = 40  # of a decimal amount, before and after the point

Meter = Literal["input", "cached_input", "output", "embedding"]
METERS: tuple[Meter, ...] = ("input", "cached_input", "output", "embedding")
SubjectKind = Literal["model", "adapter"]
# Result of a request: text, or a vector of each prompt.
Operation = Literal["text", "embedding"]


class UnitPrices(msgspec.Struct, frozen=True):
    """Picos per token in one tier. `embedding`: of each prompt token of which a vector is made, cached or not."""

    input: int
    cached_input: int
    output: int
    embedding: int

    def prompt_price(self, operation: Operation) -> int:
        """The price in picos of a prompt token that is not cached."""
        return self.embedding if operation == "embedding" else self.input

    def most(self, prompt_tokens: int, max_tokens: int, operation: Operation = "text") -> int:
        """The highest cost of a request: no prompt token cached, every completion token made."""
        return prompt_tokens * self.prompt_price(operation) + max_tokens * self.output


class PriceVersion(msgspec.Struct, frozen=True):
    """`subject` is a model's name or an adapter's id. In force from `effective_from` until the next version."""

    id: str
    subject_kind: SubjectKind
    subject: str
    currency: str
    effective_from: int
    created_at: int
    tiers: dict[str, UnitPrices]


def format_picos(picos: int, currency: str) -> str:
    """Exact decimal: `0.000012 USD`."""
    sign, picos = ("-" if picos < 0 else ""), abs(picos)
    fraction = f"{picos % PICOS_PER_UNIT:012d}".rstrip("0")
    return f"{sign}{picos // PICOS_PER_UNIT}{'.' + fraction if fraction else ''} {currency}"


def parse_picos(text: str, per: int = 1) -> int:
    """A decimal amount of a currency as picos divided by `per`. Raises InvalidValue, also for an amount that is not a
    whole number of picos."""
    try:
        amount = Decimal(text)
    except InvalidOperation:
        raise InvalidValue(f"{text!r} is no decimal number") from None
    # The size is checked first: exact arithmetic on 1e999999999 would use all memory.
    sized = amount.is_finite() and abs(amount.adjusted()) <= DIGITS_MAX and len(text) <= 2 * DIGITS_MAX
    exact = Fraction(amount) * PICOS_PER_UNIT / per if sized else Fraction(-1)
    if not 0 <= exact <= PICOS_MAX:
        raise InvalidValue(f"{text} is not from 0 to {format_picos(PICOS_MAX, '').strip()}")
    if exact.denominator != 1:
        raise InvalidValue(f"{text} is {float(exact):g} picos, which is not a whole number")
    return int(exact)


def publish(
    connection: sa.Connection,
    *,
    subject: str,
    input: int,
    cached_input: int,
    output: int,
    multipliers: Mapping[str, str | Fraction | int],
    embedding: int | None = None,
    subject_kind: SubjectKind = "model",
    currency: str = "USD",
    effective_from: int | None = None,
) -> PriceVersion:
    """Publish the prices of a model (by name) or an adapter (by id): base prices in picos per token, times each tier's
    multiplier ("0.5", "3", Fraction(1, 2)). `embedding` None: as input. Without `effective_from` the prices are in
    force at once. Raises InvalidValue for a price that is not an integer, negative, over UNIT_PRICE_PICOS_MAX or
    cheaper uncached than cached, and for a moment in the past; AlreadyExists if a version is in force from the same
    moment."""
    if not subject:
        raise InvalidValue("a price needs the name of a model or the id of an adapter", "subject")
    if len(currency) != 3 or not (currency.isascii() and currency.isupper()):
        raise InvalidValue("a currency is three capital letters (ISO 4217)", "currency")
    tiers = by_tier(unit_prices(input, cached_input, output, embedding), multipliers)
    now = database_now(connection)
    if effective_from is not None and effective_from < now:
        raise InvalidValue("a price cannot be in force from a moment in the past", "effective_from")
    version = PriceVersion(new_id("prv"), subject_kind, subject, currency, effective_from or now, now, tiers)
    _insert(connection, version)
    revision.bump(connection, Change("prices"))
    return version


def unit_prices(input: int, cached_input: int, output: int, embedding: int | None = None) -> UnitPrices:
    """`embedding` None: as `input`."""
    return UnitPrices(input, cached_input, output, input if embedding is None else embedding)


def by_tier(base: UnitPrices, multipliers: Mapping[str, str | Fraction | int]) -> dict[str, UnitPrices]:
    """The base prices times each tier's multiplier. Raises InvalidValue as `publish` does."""
    if not multipliers:
        raise InvalidValue("a price needs at least one tier", "multipliers")
    if base.cached_input > base.input:
        raise InvalidValue("cached input may not cost more than input: the hold would not cover it", "cached_input")
    return {tier: _multiplied(base, tier, multiplier) for tier, multiplier in multipliers.items()}


def _multiplied(base: UnitPrices, tier: str, multiplier: str | Fraction | int) -> UnitPrices:
    try:
        factor = Fraction(multiplier)
    except (ValueError, ZeroDivisionError) as error:
        raise InvalidValue(f"{multiplier!r} is no multiplier for tier {tier!r}", "multipliers") from error
    prices: dict[str, int] = {}
    for meter in METERS:
        price = getattr(base, meter) * factor
        if price.denominator != 1:
            raise InvalidValue(
                f"{meter} × {multiplier} for tier {tier!r} is {float(price)} picos a token: not integral", meter
            )
        if not 0 <= price <= UNIT_PRICE_PICOS_MAX:
            raise InvalidValue(f"{meter} for tier {tier!r} must be 0 to {UNIT_PRICE_PICOS_MAX} picos a token", meter)
        prices[meter] = int(price)
    return UnitPrices(**prices)


def _insert(connection: sa.Connection, version: PriceVersion) -> None:
    row = msgspec.structs.asdict(version)
    del row["tiers"]
    try:
        connection.execute(sa.insert(tables.price_versions).values(row))
    except sa.exc.IntegrityError as error:
        raise AlreadyExists(f"{version.subject!r} has a price from that moment already", "effective_from") from error
    connection.execute(
        sa.insert(tables.unit_prices),
        [
            {"price_version_id": version.id, "tier": tier, "meter": meter, "picos": getattr(prices, meter)}
            for tier, prices in version.tiers.items()
            for meter in METERS
            # Without its own price an embedding costs as input. The version before reads no price of an embedding.
            if meter != "embedding" or prices.embedding != prices.input
        ],
    )


def all_unit_prices() -> sa.Subquery:
    """The rows of unit_prices, and for each tier without a price of embeddings a row with the price of input."""
    own, given = tables.unit_prices, tables.unit_prices.alias()
    is_given = sa.exists().where(
        given.c.price_version_id == own.c.price_version_id, given.c.tier == own.c.tier, given.c.meter == "embedding"
    )
    as_input = sa.select(
        own.c.price_version_id, own.c.tier, sa.literal_column("'embedding'", sa.String).label("meter"), own.c.picos
    ).where(own.c.meter == "input", ~is_given)
    columns = own.c.price_version_id, own.c.tier, own.c.meter, own.c.picos
    return sa.union_all(sa.select(*columns), as_input).subquery("unit_prices_of_all_meters")


def list_price_versions(
    connection: sa.Connection,
    *,
    subject_kind: SubjectKind | None = None,
    subject: str | None = None,
    limit: int = LIST_MAX,
) -> list[PriceVersion]:
    """Versions, the latest to come into force first."""
    versions = tables.price_versions
    query = sa.select(versions).order_by(versions.c.effective_from.desc(), versions.c.id).limit(min(limit, LIST_MAX))
    if subject_kind is not None:
        query = query.where(versions.c.subject_kind == subject_kind)
    if subject is not None:
        query = query.where(versions.c.subject == subject)
    rows = connection.execute(query).all()
    tiers = _tiers_of(connection, [row.id for row in rows])
    return [PriceVersion(**row._mapping, tiers=tiers[row.id]) for row in rows]


def get_price_version(connection: sa.Connection, version_id: str) -> PriceVersion | None:
    versions = tables.price_versions
    row = connection.execute(sa.select(versions).where(versions.c.id == version_id)).one_or_none()
    return None if row is None else PriceVersion(**row._mapping, tiers=_tiers_of(connection, [row.id])[row.id])


def _tiers_of(connection: sa.Connection, version_ids: list[str]) -> dict[str, dict[str, UnitPrices]]:
    units = all_unit_prices()
    found: dict[str, dict[str, dict[str, int]]] = {version_id: {} for version_id in version_ids}
    query = sa.select(units).where(units.c.price_version_id.in_(version_ids))
    for row in connection.execute(query):
        found[row.price_version_id].setdefault(row.tier, {})[row.meter] = row.picos
    return {
        version_id: {tier: UnitPrices(**meters) for tier, meters in tiers.items()}
        for version_id, tiers in found.items()
    }


def in_force(versions: Sequence[PriceVersion], currency: str, now: int) -> PriceVersion | None:
    """The version in force at `now` (microseconds UTC). `versions`: of one subject, the latest `effective_from` first.
    If `now` is before the last publication, the clock was set back. Then the time of the publication is used, since
    otherwise no version might be in force."""
    now = max([now, *(version.created_at for version in versions)])
    return next((one for one in versions if one.effective_from <= now and one.currency == currency), None)


class TenantTerms(msgspec.Struct, frozen=True):
    """A tenant's currency, and the time zone of its budget windows."""

    currency: str
    zone: ZoneInfo


class PriceBook:
    """A cache of prices and tenants for one writer thread, emptied above REMEMBERED_MAX items. Versions never change;
    the version in force changes only with the revision's price token or with time."""

    REMEMBERED_MAX = 10_000

    def __init__(self) -> None:
        self._token: int | None = None
        self._subjects: dict[tuple[SubjectKind, str], list[PriceVersion]] = {}
        self._versions: dict[str, PriceVersion] = {}
        self._terms: dict[str, TenantTerms | None] = {}
        self._any_free: dict[str, bool] = {}  # by currency

    def refresh(self, token: int) -> None:
        """Empty the cache if `revision.price_token` moved: a write may have changed prices or tenants."""
        remembered = len(self._subjects) + len(self._versions) + len(self._terms)
        if token != self._token or remembered > self.REMEMBERED_MAX:
            self._subjects.clear()
            self._versions.clear()
            self._terms.clear()
            self._any_free.clear()
            self._token = token

    def terms(self, connection: sa.Connection, tenant_id: str) -> TenantTerms | None:
        """The tenant's terms; None for an unknown tenant."""
        if tenant_id not in self._terms:
            tenants = tables.tenants
            query = sa.select(tenants.c.currency, tenants.c.time_zone).where(tenants.c.id == tenant_id)
            row = connection.execute(query).one_or_none()
            self._terms[tenant_id] = None if row is None else TenantTerms(row.currency, zone_of(row.time_zone))
        return self._terms[tenant_id]

    def in_force(
        self, connection: sa.Connection, model: str, adapter: str | None, currency: str, now: int
    ) -> PriceVersion | None:
        """The version in force of the adapter's own price, or else of its model's price; None: there is no price."""
        subjects: list[tuple[SubjectKind, str]] = [("model", model)]
        if adapter is not None:
            subjects.insert(0, ("adapter", adapter))
        for kind, subject in subjects:
            if (kind, subject) not in self._subjects:
                self._subjects[kind, subject] = list_price_versions(connection, subject_kind=kind, subject=subject)
            found = in_force(self._subjects[kind, subject], currency, now)
            if found is not None:
                return found
        return None

    def any_free(self, connection: sa.Connection, currency: str) -> bool:
        """Whether some price in this currency, in force or not, has free output or free prompts. If so, an exhausted
        money budget may still admit a request."""
        if currency not in self._any_free:
            versions, units = tables.price_versions, tables.unit_prices
            free = (
                sa.select(versions.c.id)
                .join(units, units.c.price_version_id == versions.c.id)
                .where(versions.c.currency == currency, units.c.picos == 0)
                .limit(1)
            )
            self._any_free[currency] = connection.execute(free).first() is not None
        return self._any_free[currency]

    def version(self, connection: sa.Connection, version_id: str) -> PriceVersion:
        if version_id not in self._versions:
            row = connection.execute(
                sa.select(tables.price_versions).where(tables.price_versions.c.id == version_id)
            ).one()
            self._versions[version_id] = PriceVersion(**row._mapping, tiers=_tiers_of(connection, [version_id])[row.id])
        return self._versions[version_id]
