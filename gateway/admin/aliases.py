"""Setting and removing aliases."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from billing.errors import AlreadyExists, InvalidValue, RowNotFound
from gateway.admin.writes import Writes
from gateway.catalog import adapters, aliases, base_models
from gateway.catalog.aliases import Alias
from gateway.config.settings import TargetSection, split_version

OBJECT_CHARS_MAX = 80  # of a name as an audit line's object id; the line's `before` or `after` has the whole name


class AliasWrites:
    """Writes of operators without a tenant only. Every gateway applies a change within a second; requests in flight
    keep the model that they were routed to."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def set(
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
        """Make the alias or replace all of it. `tenants` by id or slug; None: all."""
        self._writes.bump(connection, "aliases")
        self._writes.check_operator("aliases")
        wanted = Alias(
            name=name,
            models=tuple(models),
            cheapest=cheapest,
            fallbacks=tuple(fallbacks),
            tenants=None if tenants is None else tuple(self._writes.tenant(connection, slug).id for slug in tenants),
            active=active,
        )
        aliases.check_alias(wanted)
        self._check_names(connection, wanted)
        before = aliases.get_alias(connection, name)
        after = aliases.put_alias(connection, wanted)
        if after != before:
            self._writes.record_line(connection, "alias.set", name[:OBJECT_CHARS_MAX], before=before, after=after)
        return after

    def remove(self, connection: sa.Connection, name: str) -> Alias:
        """Remove the alias. Where laneway.toml has the name, its alias applies again."""
        self._writes.bump(connection, "aliases")
        self._writes.check_operator("aliases")
        before = aliases.delete_alias(connection, name)
        after = msgspec.structs.replace(before, active=False)
        self._writes.record_line(connection, "alias.remove", name[:OBJECT_CHARS_MAX], before=before, after=after)
        return after

    def _check_names(self, connection: sa.Connection, wanted: Alias) -> None:
        """Check that nothing else has the alias's name, and that every model of it is served. Raises AlreadyExists,
        RowNotFound."""
        served = {model.name: model.active for model in base_models.list_models(connection, self._writes.config)}
        if wanted.name in served:
            raise AlreadyExists(f"{wanted.name!r} is the name of a base model", "name")
        if wanted.name in adapters.operators_names(connection):
            raise AlreadyExists(f"{wanted.name!r} is the name of an adapter", "name")
        for field, names in (("models", [target.model for target in wanted.models]), ("fallbacks", wanted.fallbacks)):
            for model in names:
                plain, number = split_version(model)
                if field == "models" and number is not None:
                    self._check_version(connection, plain, number)
                elif not served.get(model):
                    raise RowNotFound(f"there is no base model {model!r}", field)
        if wanted.cheapest and any(split_version(target.model)[1] is not None for target in wanted.models):
            raise InvalidValue("versions of adapters are chosen by weight, never as the cheapest", "cheapest")

    @staticmethod
    def _check_version(connection: sa.Connection, name: str, number: int) -> None:
        """Check that an adapter of this name has the version. Raises RowNotFound."""
        known = adapters.live_versions(connection)
        ids = [row.id for row in adapters.list_adapters(connection, active=True) if row.name == name]
        if not any((adapter_id, number) in known for adapter_id in ids):
            raise RowNotFound(f"there is no adapter {name!r} with a version {number}", "models")
