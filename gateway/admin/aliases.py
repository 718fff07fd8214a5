"""What an operator may change of aliases: each the change and its audit line, together.

It checks their names against what else has one, and their models against those that there are. It knows no HTTP and no
terminal.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from billing import revision
from billing.errors import AlreadyExists, RowNotFound
from billing.revision import Change
from gateway.admin.writes import Writes, tenant_of
from gateway.catalog import adapters, aliases, base_models
from gateway.catalog.aliases import Alias
from gateway.config.settings import TargetSection


class AliasWrites(Writes):
    """Every gateway follows within a second; requests in flight stay where they are."""

    def set_alias(
        self,
        connection: sa.Connection,
        name: str,
        *,
        models: Sequence[TargetSection],
        cheapest: bool = False,
        fallbacks: Sequence[str] = (),
        tenants: Sequence[str] | None = None,
        active: bool = True,
    ) -> Alias:
        """Make it, or put this in place of all that it was. Tenants by id or slug; None: all."""
        revision.bump(connection, Change("aliases"))
        self._check_unbound("aliases are")
        wanted = Alias(
            name=name,
            models=tuple(models),
            cheapest=cheapest,
            fallbacks=tuple(fallbacks),
            tenants=None if tenants is None else tuple(tenant_of(connection, one).id for one in tenants),
            active=active,
        )
        aliases.check(wanted)
        models_there = {model.name: model.active for model in base_models.list_models(connection, self._config)}
        if name in models_there:
            raise AlreadyExists(f"{name!r} is the name of a base model", "name")
        if name in adapters.operators_names(connection):
            raise AlreadyExists(f"{name!r} is the name of an adapter", "name")
        for field, found in (("models", [target.model for target in models]), ("fallbacks", list(fallbacks))):
            for model in found:
                if not models_there.get(model):
                    raise RowNotFound(f"there is no base model {model!r}", field)
        before = aliases.get(connection, name)
        after = aliases.put(connection, wanted)
        if after != before:
            self._record(connection, "alias.set", _object(name), before=before, after=after)
        return after

    def remove_alias(self, connection: sa.Connection, name: str) -> Alias:
        """What laneway.toml says of the name holds again."""
        revision.bump(connection, Change("aliases"))
        self._check_unbound("aliases are")
        before = aliases.remove(connection, name)
        after = msgspec.structs.replace(before, active=False)
        self._record(connection, "alias.remove", _object(name), before=before, after=after)
        return after


def _object(name: str) -> str:
    """As the audit log has room for it; the whole name is in what was before, or is now."""
    return name[:80]
