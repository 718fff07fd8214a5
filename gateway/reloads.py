"""Which part of a gateway's memory the administrative writes of a moment concern.

A write of one tenant's keys does not drop another tenant's callers, nor reload models, adapters or aliases. It knows
kinds of rows, and must never know how anything is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from billing.revision import Change

OF_CALLERS = frozenset(("tenants", "projects", "keys", "limits"))
OF_MODELS = frozenset(("models", "tenants"))  # laneway.toml names a model's tenants by slug, the rows by id
OF_ADAPTERS = frozenset(("adapters",))
OF_ROUTES = frozenset(("aliases", "models", "prices"))
# Rows that no gateway remembers: they are read in the transaction that needs them.
UNREMEMBERED = frozenset(("budgets", "webhooks"))
KNOWN = OF_CALLERS | OF_MODELS | OF_ADAPTERS | OF_ROUTES | UNREMEMBERED


class Concerned(msgspec.Struct, frozen=True):
    """`callers_of`: the tenants whose callers may be others now, None among them for the operator's; None: all."""

    callers_of: frozenset[str | None] | None
    models: bool
    adapters: bool
    routes: bool


def concerned(changes: Sequence[Change] | None) -> Concerned:
    """Of None, and of a kind that is not known here (a newer process's), everything."""
    kinds = frozenset(change.kind for change in changes or ())
    if changes is None or not kinds <= KNOWN:
        return Concerned(None, models=True, adapters=True, routes=True)
    return Concerned(
        frozenset(change.tenant_id for change in changes if change.kind in OF_CALLERS),
        models=bool(kinds & OF_MODELS),
        adapters=bool(kinds & OF_ADAPTERS),
        routes=bool(kinds & OF_ROUTES),
    )
