"""The state file of `laneway apply`: the desired tenants, aliases and prices, as YAML.

A field that is left out is not managed: in an existing object it is not changed, and a new object has its default.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from billing.accounts.budget_windows import Kind as BudgetKind
from billing.accounts.budgets import THRESHOLD_MAX, THRESHOLDS_MAX
from billing.accounts.prices import PICOS_MAX
from billing.clock import Period
from billing.errors import InvalidValue
from gateway.config.allowance import LIMIT_MAX
from gateway.config.batches_settings import ENQUEUED_TOKENS_MAX
from gateway.config.files_settings import TENANT_BYTES_MAX
from gateway.config.settings import TargetSection

FILE_BYTES_MAX = 4 * 1024 * 1024

Count = Annotated[int, Meta(ge=1, le=LIMIT_MAX)]
Amount = str | int | float  # a decimal; a text is exact


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class WantedBudget(_Part, frozen=True, kw_only=True):
    """The one budget of this period in tokens, or in money of the tenant's currency. `per_end_user`: the limit of each
    end user; a tenant can have such a budget beside an ordinary one."""

    period: Period
    tokens: Annotated[int, Meta(ge=0, le=PICOS_MAX)] | None = None
    money: Amount | None = None
    kind: BudgetKind | None = None
    per_end_user: bool = False
    thresholds: (
        Annotated[list[Annotated[int, Meta(ge=1, le=THRESHOLD_MAX)]], Meta(max_length=THRESHOLDS_MAX)] | None
    ) = None


class WantedLimits(_Part, frozen=True, kw_only=True):
    """Rate limits, and of a tenant also quotas; null: the limits of laneway.toml."""

    requests_per_minute: Count | UnsetType | None = UNSET
    tokens_per_minute: Count | UnsetType | None = UNSET
    concurrency: Count | UnsetType | None = UNSET
    files: Count | UnsetType | None = UNSET
    total_file_bytes: Annotated[int, Meta(ge=1, le=TENANT_BYTES_MAX)] | UnsetType | None = UNSET
    batches: Count | UnsetType | None = UNSET
    enqueued_tokens: Annotated[int, Meta(ge=1, le=ENQUEUED_TOKENS_MAX)] | UnsetType | None = UNSET


class WantedProject(_Part, frozen=True, kw_only=True):
    name: str
    default_max_tokens: int | UnsetType | None = UNSET
    budgets: list[WantedBudget] | None = None


class WantedKey(_Part, frozen=True, kw_only=True):
    """A key of the tenant, by its name. Its secret is never in the file. `kind`, `tier` and `scopes` of a key that
    exists cannot change."""

    name: str
    project: str | None = None
    kind: Literal["live", "test"] | None = None
    tier: str | None = None
    scopes: list[str] | None = None
    default_max_tokens: int | UnsetType | None = UNSET
    models: list[str] | UnsetType | None = UNSET
    allowed_ips: list[str] | UnsetType | None = UNSET
    tags: dict[str, str] | UnsetType = UNSET
    limits: WantedLimits | None = None
    budgets: list[WantedBudget] | None = None


class WantedTenant(_Part, frozen=True, kw_only=True):
    """A tenant, by its slug. A new tenant needs `tier`. The currency of an existing tenant cannot change."""

    slug: str
    tier: str | None = None
    name: str | None = None
    currency: str | None = None
    status: Literal["active", "suspended"] | None = None
    default_max_tokens: int | UnsetType | None = UNSET
    share_weight: float | None = None
    time_zone: str | None = None
    cheapest: bool | None = None
    store_responses_s: int | UnsetType | None = UNSET
    allowed_ips: list[str] | UnsetType | None = UNSET
    on_budget: Literal["wait", "fail"] | UnsetType | None = UNSET
    limits: WantedLimits | None = None
    budgets: list[WantedBudget] | None = None
    projects: list[WantedProject] | None = None
    keys: list[WantedKey] | None = None


class WantedAlias(_Part, frozen=True, kw_only=True):
    """An alias. It is given whole: a field that is left out has its default. `tenants`: slugs; null: all."""

    name: str
    models: Annotated[list[TargetSection], Meta(min_length=1)]
    cheapest: bool = False
    fallbacks: list[str] = []
    tenants: list[str] | None = None
    active: bool = True


class WantedPrice(_Part, frozen=True, kw_only=True):
    """The price in force of a model (by name) or an adapter (by id), for a million tokens; `multipliers` by tier."""

    model: str | None = None
    adapter: str | None = None
    currency: str = "USD"
    input: Amount
    cached_input: Amount | None = None
    output: Amount
    embedding: Amount | None = None
    multipliers: dict[str, str | int | float] = {}


class WantedState(_Part, frozen=True, kw_only=True):
    """A whole file. Without `prune`, objects that the file does not name are not changed."""

    tenants: list[WantedTenant] | None = None
    aliases: list[WantedAlias] | None = None
    prices: list[WantedPrice] | None = None


def read_state(text: bytes) -> WantedState:
    """Parse a file. Raises InvalidValue, which names the place in the file."""
    if len(text) > FILE_BYTES_MAX:
        raise InvalidValue(f"the file has {len(text)} bytes; at most {FILE_BYTES_MAX} are read")
    try:
        state = msgspec.yaml.decode(text, type=WantedState)
    except msgspec.ValidationError as error:
        raise InvalidValue(str(error).replace("$.", "")) from None
    except msgspec.DecodeError as error:
        raise InvalidValue(f"the file is no YAML: {error}") from None
    _check_names("tenants", [tenant.slug for tenant in state.tenants or ()])
    _check_names("aliases", [alias.name for alias in state.aliases or ()])
    for tenant in state.tenants or ():
        _check_names(f"projects of {tenant.slug}", [project.name for project in tenant.projects or ()])
        _check_names(f"keys of {tenant.slug}", [key.name for key in tenant.keys or ()])
    return state


def _check_names(field: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InvalidValue(f"{name!r} is there {names.count(name)} times", field)
