"""Which role of an admin key may read and which may write what: the one table of it, asked at the door of every admin
route. It knows names of areas, and must never know routes, rows or HTTP.
"""

from __future__ import annotations

from typing import Literal, get_args

Role = Literal["owner", "operator", "finance", "tenant_admin", "read_only"]
Area = Literal[
    "people",  # tenants, projects
    "keys",
    "money",  # budgets
    "prices",
    "limits",
    "models",  # base models
    "adapters",
    "billing",  # periods, invoices, corrections, reconciling
    "exports",
    "usage",
    "requests",
    "engine",
    "audit",
    "alerts",  # and webhooks
]
Access = Literal["read", "write"]
ROLES: tuple[Role, ...] = get_args(Role)
AREAS: tuple[Area, ...] = get_args(Area)
TENANT_ADMIN: Role = "tenant_admin"

_OF_A_TENANT: frozenset[Area] = frozenset(
    ("people", "keys", "money", "limits", "adapters", "exports", "alerts", "billing", "usage", "requests", "audit")
)
# What a tenant_admin writes is its tenant's projects, keys, adapters, exports and webhooks, and budgets and limits
# below the tenant's own, which whoever sells to it sets.
_READS: dict[Role, frozenset[Area]] = {
    "owner": frozenset(AREAS),
    "operator": frozenset(AREAS),
    "finance": frozenset(AREAS),
    "tenant_admin": _OF_A_TENANT,
    "read_only": frozenset(AREAS),
}
_WRITES: dict[Role, frozenset[Area]] = {
    "owner": frozenset(AREAS),
    "operator": frozenset(AREAS) - {"prices", "billing"},
    "finance": frozenset(("money", "prices", "billing", "exports")),
    "tenant_admin": frozenset(("people", "keys", "money", "limits", "adapters", "exports", "alerts")),
    "read_only": frozenset(),
}


def may(role: Role, area: Area, access: Access) -> bool:
    return area in (_READS if access == "read" else _WRITES)[role]


def permissions(role: Role) -> list[str]:
    """`area:read` and `area:write`, in the order of the areas."""
    accesses: tuple[Access, ...] = get_args(Access)
    return [f"{area}:{access}" for area in AREAS for access in accesses if may(role, area, access)]


def may_grant(role: Role, other: Role) -> bool:
    """Whether `other` may do nothing that `role` may not. A tenant's admin grants only within the tenant, which the
    caller checks."""
    if role == TENANT_ADMIN:
        return other == TENANT_ADMIN
    return set(permissions(other)) <= set(permissions(role))
