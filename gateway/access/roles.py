"""The permissions of each role of an admin key: the areas that it may read, and the areas that it may write.

`gateway/routes/guard.py` checks them for every admin route. This module knows no routes, rows or HTTP.
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
    "batches",  # and their files
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
    (
        *("people", "keys", "money", "limits", "adapters", "exports", "batches", "alerts"),
        *("billing", "usage", "requests", "audit"),
    )
)
# A tenant_admin writes projects, keys, adapters, exports, batches and webhooks of its tenant, and budgets and limits of
# the tenant's projects and keys. The budgets and limits of the tenant itself are the operator's to set.
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
    "tenant_admin": frozenset(("people", "keys", "money", "limits", "adapters", "exports", "batches", "alerts")),
    "read_only": frozenset(),
}


def is_permitted(role: Role, area: Area, access: Access) -> bool:
    return area in (_READS if access == "read" else _WRITES)[role]


def permissions(role: Role) -> list[str]:
    """The role's permissions as `area:read` and `area:write`, in the order of AREAS."""
    accesses: tuple[Access, ...] = get_args(Access)
    return [f"{area}:{access}" for area in AREAS for access in accesses if is_permitted(role, area, access)]


def may_grant(role: Role, other: Role) -> bool:
    """Whether an admin key of `role` may make a key of the role `other`: `other` must have no permission that `role`
    lacks. A tenant_admin makes keys only for its own tenant, which the caller must check."""
    if role == TENANT_ADMIN:
        return other == TENANT_ADMIN
    return set(permissions(other)) <= set(permissions(role))
