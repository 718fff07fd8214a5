"""Maps administrative writes to the part of a gateway's memory that they concern.

A write of one tenant's keys neither drops another tenant's callers nor reloads models, adapters or aliases. This module
knows kinds of rows, and must never know how anything is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from billing.revision import Change

OF_CALLERS = frozenset(("tenants", "projects", "keys", "limits"))
OF_MODELS = frozenset(("models", "tenants"))  # laneway.toml names a model's tenants by slug, the rows by id
OF_ADAPTERS = frozenset(("adapters",))
OF_ROUTES = frozenset(("aliases", "models", "prices"))
# No gateway caches these rows: they are read in the transaction that needs them.
UNCACHED = frozenset(("budgets", "webhooks"))
KNOWN = OF_CALLERS | OF_MODELS | OF_ADAPTERS | OF_ROUTES | UNCACHED


class ReloadScope(msgspec.Struct, frozen=True):
    """The caches to drop or reload. `callers_of`: the tenants whose cached callers are outdated, where None in the set
    stands for the operator; None in place of the set: all callers."""

    callers_of: frozenset[str | None] | None
    models: bool
    adapters: bool
    routes: bool


def reload_scope(changes: Sequence[Change] | None) -> ReloadScope:
    """The caches that a write affects: all caches for None, and for a kind of row that only a newer version knows."""
    kinds = frozenset(change.kind for change in changes or ())
    if changes is None or not kinds <= KNOWN:
        return ReloadScope(None, models=True, adapters=True, routes=True)
    return ReloadScope(
        frozenset(change.tenant_id for change in changes if change.kind in OF_CALLERS),
        models=bool(kinds & OF_MODELS),
        adapters=bool(kinds & OF_ADAPTERS),
        routes=bool(kinds & OF_ROUTES),
    )
