"""What an operator may change of adapters: each the change and its audit line, together.

Files were checked before (`staging`, `uploads`); here they get their name. It knows no HTTP and no terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import sqlalchemy as sa

from adapters.files.facts import Facts
from adapters.files.store import WEIGHTS_FILE
from billing import revision
from billing.errors import InvalidValue, QuotaBytesExceeded, RowNotFound, TenantQuotaExceeded
from billing.revision import Change
from gateway.admin.aliases import AliasWrites
from gateway.admin.writes import tenant_of, visible_tenant
from gateway.catalog import adapters, base_models
from gateway.catalog.adapters import EVERYONE, Adapter, AdapterQuotaUse, Registration, Version


class AdapterWrites(AliasWrites):
    """A name, the contents that it had, and who may call it. Every gateway follows within a second."""

    def register_adapter(
        self, connection: sa.Connection, wanted: Registration, facts: Facts, keep: Callable[[], None]
    ) -> tuple[Adapter, Version]:
        """Give a checked content its name, or its name a further version; the same content again is the version that it
        was. `keep` makes its files part of the store. Tenants by id or slug."""
        adapters.check_name(wanted.name)
        revision.bump(connection, Change("adapters"))
        owner = visible_tenant(connection, self._actor, wanted.tenant_id)
        self._check_pinned(wanted.pinned)
        wanted = Registration(
            name=wanted.name,
            tenant_id=owner,
            base_model=wanted.base_model,
            shared=self._tenants(connection, wanted.shared),
            pinned=wanted.pinned,
            notes=wanted.notes,
            promote=wanted.promote,
        )
        before = adapters.named(connection, owner, wanted.name)
        taken = self._taken(connection, owner, before, wanted.shared)
        known = set() if before is None else {one.number for one in adapters.versions(connection, before.id)}
        adapter, version = adapters.add_version(connection, wanted, facts, taken)
        if version.number not in known:
            self._check_quota(connection, owner)
        keep()
        self._changed(connection, "adapter.register", before, adapter)
        if version.number not in known:
            self._record_version(connection, "adapter.version", adapter, after=version)
        return adapter, version

    def promote_adapter(self, connection: sa.Connection, adapter_id: str, version: int | str) -> Adapter:
        """Serve this version, by its number or its content's digest, to every request that comes from now on."""
        revision.bump(connection, Change("adapters"))
        before = self._active(connection, adapter_id)
        number = _number(connection, before, version)
        after = adapters.promote(connection, adapter_id, number, after=before)
        self._changed(connection, "adapter.promote", before, after)
        return after

    def roll_back_adapter(self, connection: sa.Connection, adapter_id: str) -> Adapter:
        """Serve again the version that the served one replaced."""
        revision.bump(connection, Change("adapters"))
        before = self._active(connection, adapter_id)
        after = adapters.roll_back(connection, before)
        self._changed(connection, "adapter.rollback", before, after)
        return after

    def update_adapter(
        self,
        connection: sa.Connection,
        adapter_id: str,
        *,
        shared: Sequence[str] | None = None,
        pinned: bool | None = None,
        notes: str | None = None,
    ) -> Adapter:
        """Change what is given. `shared`: tenants by id or slug, or "*"; it replaces the list."""
        revision.bump(connection, Change("adapters"))
        before = self._active(connection, adapter_id)
        self._check_pinned(pinned)
        listed = self._tenants(connection, shared)
        adapters.check_free(before.name, self._taken(connection, before.tenant_id, before, listed))
        after = adapters.change(connection, adapter_id, shared=listed, pinned=pinned, notes=notes)
        self._changed(connection, "adapter.update", before, after)
        return after

    def remove_adapter(self, connection: sa.Connection, adapter_id: str) -> Adapter:
        """Nobody may call it from now on; requests in flight end as they would have. Its files go once nothing runs
        on them and no other adapter has them."""
        revision.bump(connection, Change("adapters"))
        before = self._active(connection, adapter_id)
        after = adapters.remove(connection, adapter_id)
        self._changed(connection, "adapter.remove", before, after)
        return after

    def remove_adapter_version(self, connection: sa.Connection, adapter_id: str, version: int | str) -> Version:
        """Forget one that is not served."""
        revision.bump(connection, Change("adapters"))
        adapter = self._active(connection, adapter_id)
        before = adapters.version_of(connection, adapter_id, _number(connection, adapter, version))
        removed = _as_logged(adapters.remove_version(connection, adapter, before.number))
        self._record_version(connection, "adapter.remove_version", adapter, before=before, after=removed)
        return removed

    def _changed(self, connection: sa.Connection, action: str, before: Adapter | None, after: Adapter) -> None:
        if after != before:
            self._record(connection, action, after.id, after.tenant_id, before=before, after=after)

    def _record_version(
        self,
        connection: sa.Connection,
        action: str,
        adapter: Adapter,
        *,
        before: Version | None = None,
        after: Version,
    ) -> None:
        """A version's line is of its own object: its adapter stays as it is."""
        before = None if before is None else _as_logged(before)
        object_id = f"{adapter.id}/{after.number}"
        self._record(connection, action, object_id, adapter.tenant_id, before=before, after=_as_logged(after))

    def _tenants(self, connection: sa.Connection, shared: Sequence[str] | None) -> tuple[str, ...] | None:
        """Their ids. Raises RowNotFound."""
        if shared is None:
            return None
        if EVERYONE in shared:
            self._check_unbound("what everyone may call is")
        return tuple(one if one == EVERYONE else tenant_of(connection, one, self._actor).id for one in shared)

    def _taken(
        self, connection: sa.Connection, owner: str | None, before: Adapter | None, shared: Sequence[str] | None
    ) -> dict[str, str]:
        """Names that an adapter may not have, as they mean something already to those who would get it, and what. To a
        tenant that is what it sees; whoever shares one is an operator, and hears of all. What it had before it keeps,
        whatever came later."""
        new = before is None or not before.active
        gained = set(shared or ()) - {owner} - (set() if before is None or new else set(before.shared))
        if not new and not gained:
            return {}
        tenant = None if owner is None or gained else tenant_of(connection, owner)
        return base_models.taken_names(connection, self._config, tenant)

    def bytes_left(self, connection: sa.Connection) -> int | None:
        """Bytes left of adapters.tenant_bytes_max for this actor's tenant; None: an operator has no quota."""
        if (tenant_id := self._actor.tenant_id) is None:
            return None
        return max(0, self._config.adapters.tenant_bytes_max - self._kept(connection, tenant_id).bytes)

    def _kept(self, connection: sa.Connection, tenant_id: str) -> AdapterQuotaUse:
        return adapters.quota_use(connection, tenant_id, slab_item_bytes=self._config.slab_item_bytes)

    def _check_quota(self, connection: sa.Connection, owner: str | None) -> None:
        """After a write by a tenant's own key, check that the owner is within its quotas. Operators may exceed them.
        Raises TenantQuotaExceeded, QuotaBytesExceeded."""
        if owner is None or self._actor.tenant_id is None:
            return
        quotas, kept = self._config.adapters, self._kept(connection, owner)
        for refusal, what, has, setting in (
            (TenantQuotaExceeded, "adapters", kept.adapters, "tenant_adapters_max"),
            (TenantQuotaExceeded, "versions of adapters", kept.versions, "tenant_versions_max"),
            (QuotaBytesExceeded, "bytes of adapters and their slabs", kept.bytes, "tenant_bytes_max"),
        ):
            if has > (limit := getattr(quotas, setting)):
                message = f"with this one the tenant would have {has} {what}; the limit is adapters.{setting}, {limit}"
                raise refusal(message, WEIGHTS_FILE if refusal is QuotaBytesExceeded else "name")

    def _check_pinned(self, pinned: bool | None) -> None:
        if pinned:
            self._check_unbound("what stays in memory is")

    def _active(self, connection: sa.Connection, adapter_id: str) -> Adapter:
        """Raises RowNotFound for one that was removed, too."""
        adapter = adapters.adapter_by_id(connection, adapter_id)
        if not adapter.active or not self._actor.sees(adapter.tenant_id):
            raise RowNotFound(f"there is no adapter {adapter_id!r}", "adapter")
        return adapter


def _as_logged(version: Version) -> Version:
    """Without what promotions change of it: those have their own lines."""
    return msgspec.structs.replace(version, replaced=None)


def _number(connection: sa.Connection, adapter: Adapter, version: int | str) -> int:
    """Of a version that is named by its number, in digits or not, or by the beginning of its digest."""
    text = str(version)
    if text.isascii() and text.isdigit() and len(text) <= 6:
        return int(text)
    if len(text) < 8:
        raise InvalidValue(f"{text!r} is neither a version's number nor 8 characters of its digest", "version")
    found = [one.number for one in adapters.versions(connection, adapter.id) if one.digest.startswith(text)]
    if len(found) != 1:
        raise RowNotFound(f"the adapter has no version {text!r}", "version")
    return found[0]
