"""Registering, promoting, changing and removing adapters.

The files of an adapter are checked before its write (`gateway.uploads`); the write gives them a name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import sqlalchemy as sa

from adapters.files.facts import Facts
from adapters.files.store import WEIGHTS_FILE
from billing.errors import InvalidValue, QuotaBytesExceeded, RowNotFound, TenantQuotaExceeded
from gateway.admin.writes import Writes, tenant_of
from gateway.catalog import adapters, base_models
from gateway.catalog.adapters import EVERYONE, Adapter, AdapterQuotaUse, Registration, Version

VERSION_DIGITS_MAX = 6
DIGEST_CHARS_MIN = 8  # of the beginning of a digest that names a version


class AdapterWrites:
    """Every gateway applies a change within a second."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def register(
        self, connection: sa.Connection, wanted: Registration, facts: Facts, keep: Callable[[], None]
    ) -> tuple[Adapter, Version]:
        """Make a new adapter of a checked content, or a new version of the adapter that has the name already. A content
        that is a version already remains this version. `keep` moves the content's files into the store. Tenants by id
        or slug."""
        adapters.check_name(wanted.name)
        self._writes.bump(connection, "adapters")
        owner = self._writes.visible_tenant(connection, wanted.tenant_id)
        self._check_pinned(wanted.pinned)
        wanted = Registration(
            name=wanted.name,
            tenant_id=owner,
            base_model=wanted.base_model,
            shared=self._tenant_ids(connection, wanted.shared),
            pinned=wanted.pinned,
            notes=wanted.notes,
            promote=wanted.promote,
        )
        before = adapters.named(connection, owner, wanted.name)
        taken = self._taken_names(connection, owner, before, wanted.shared)
        known = set() if before is None else {version.number for version in adapters.versions(connection, before.id)}
        adapter, version = adapters.add_version(connection, wanted, facts, taken)
        if version.number not in known:
            self._check_quota(connection, owner)
        keep()
        self._record(connection, "adapter.register", before, adapter)
        if version.number not in known:
            self._record_version(connection, "adapter.version", adapter, after=version)
        return adapter, version

    def promote(self, connection: sa.Connection, adapter_id: str, version: int | str) -> Adapter:
        """Serve this version to requests that arrive from now on. `version`: a number, or the beginning of a digest."""
        self._writes.bump(connection, "adapters")
        before = self._active(connection, adapter_id)
        number = version_number(connection, before, version)
        after = adapters.promote(connection, adapter_id, number, after=before)
        return self._record(connection, "adapter.promote", before, after)

    def roll_back(self, connection: sa.Connection, adapter_id: str) -> Adapter:
        """Serve the version again that was served before the present one."""
        self._writes.bump(connection, "adapters")
        before = self._active(connection, adapter_id)
        return self._record(connection, "adapter.rollback", before, adapters.roll_back(connection, before))

    def update(
        self,
        connection: sa.Connection,
        adapter_id: str,
        *,
        shared: Sequence[str] | None = None,
        pinned: bool | None = None,
        notes: str | None = None,
    ) -> Adapter:
        """Change the fields that are given. `shared` replaces the list: tenants by id or slug, or "*" for all."""
        self._writes.bump(connection, "adapters")
        before = self._active(connection, adapter_id)
        self._check_pinned(pinned)
        tenant_ids = self._tenant_ids(connection, shared)
        adapters.check_free(before.name, self._taken_names(connection, before.tenant_id, before, tenant_ids))
        after = adapters.change_adapter(connection, adapter_id, shared=tenant_ids, pinned=pinned, notes=notes)
        return self._record(connection, "adapter.update", before, after)

    def remove(self, connection: sa.Connection, adapter_id: str) -> Adapter:
        """Stop serving the adapter to new requests; requests in flight finish. Its files are deleted once no request
        uses them and no other adapter has the same content."""
        self._writes.bump(connection, "adapters")
        before = self._active(connection, adapter_id)
        return self._record(
            connection, "adapter.remove", before, adapters.remove_adapter_and_versions(connection, adapter_id)
        )

    def remove_version(self, connection: sa.Connection, adapter_id: str, version: int | str) -> Version:
        """Remove a version that is not served."""
        self._writes.bump(connection, "adapters")
        adapter = self._active(connection, adapter_id)
        before = adapters.version_of(connection, adapter_id, version_number(connection, adapter, version))
        removed = _as_logged(adapters.remove_version(connection, adapter, before.number))
        self._record_version(connection, "adapter.remove_version", adapter, before=before, after=removed)
        return removed

    def bytes_left(self, connection: sa.Connection) -> int | None:
        """Bytes left of adapters.tenant_bytes_max for the actor's tenant; None: an operator has no quota."""
        if (tenant_id := self._writes.actor.tenant_id) is None:
            return None
        return max(0, self._writes.config.adapters.tenant_bytes_max - self._quota_use(connection, tenant_id).bytes)

    def _record(self, connection: sa.Connection, action: str, before: Adapter | None, after: Adapter) -> Adapter:
        return after if after == before else self._writes.record(connection, action, before, after)

    def _record_version(
        self,
        connection: sa.Connection,
        action: str,
        adapter: Adapter,
        *,
        before: Version | None = None,
        after: Version,
    ) -> None:
        """A version's audit line has a different object id than its adapter's, because the adapter does not change."""
        before = None if before is None else _as_logged(before)
        self._writes.record_line(
            connection,
            action,
            f"{adapter.id}/{after.number}",
            adapter.tenant_id,
            before=before,
            after=_as_logged(after),
        )

    def _tenant_ids(self, connection: sa.Connection, shared: Sequence[str] | None) -> tuple[str, ...] | None:
        """Raises RowNotFound; NotPermitted when a tenant shares with everyone."""
        if shared is None:
            return None
        if EVERYONE in shared:
            self._writes.check_operator("adapters that all tenants may call")
        return tuple(name if name == EVERYONE else self._writes.tenant(connection, name).id for name in shared)

    def _taken_names(
        self, connection: sa.Connection, owner: str | None, before: Adapter | None, shared: Sequence[str] | None
    ) -> dict[str, str]:
        """Names that the adapter may not have, because they mean something else to a tenant that gains it, with their
        meanings. A tenant's refusal names only objects that the tenant can see; an operator shares adapters, and a
        refusal to an operator names all. Tenants that could call an adapter by its name before still can, even if
        another object got the same name later."""
        new = before is None or not before.active
        gained = set(shared or ()) - {owner} - (set() if before is None or new else set(before.shared))
        if not new and not gained:
            return {}
        tenant = None if owner is None or gained else tenant_of(connection, owner)
        return base_models.taken_names(connection, self._writes.config, tenant)

    def _quota_use(self, connection: sa.Connection, tenant_id: str) -> AdapterQuotaUse:
        return adapters.quota_use(connection, tenant_id, slab_item_bytes=self._writes.config.slab_item_bytes)

    def _check_quota(self, connection: sa.Connection, owner: str | None) -> None:
        """After a write by a tenant's own key, check that the owner is within its quotas. Operators may exceed them.
        Raises TenantQuotaExceeded, QuotaBytesExceeded."""
        if owner is None or self._writes.actor.tenant_id is None:
            return
        quotas, use = self._writes.config.adapters, self._quota_use(connection, owner)
        for refusal, what, used, setting in (
            (TenantQuotaExceeded, "adapters", use.adapters, "tenant_adapters_max"),
            (TenantQuotaExceeded, "versions of adapters", use.versions, "tenant_versions_max"),
            (QuotaBytesExceeded, "bytes of adapters and their slabs", use.bytes, "tenant_bytes_max"),
        ):
            if used > (limit := getattr(quotas, setting)):
                message = f"with this one the tenant would have {used} {what}; the limit is adapters.{setting}, {limit}"
                raise refusal(message, WEIGHTS_FILE if refusal is QuotaBytesExceeded else "name")

    def _check_pinned(self, pinned: bool | None) -> None:
        if pinned:
            self._writes.check_operator("which adapters are pinned")

    def _active(self, connection: sa.Connection, adapter_id: str) -> Adapter:
        """Raises RowNotFound, also for a removed adapter."""
        adapter = adapters.adapter_by_id(connection, adapter_id)
        if not adapter.active or not self._writes.actor.sees(adapter.tenant_id):
            raise RowNotFound(f"there is no adapter {adapter_id!r}", "adapter")
        return adapter


def _as_logged(version: Version) -> Version:
    """The version without `replaced`, which promotions change: promotions have separate audit lines."""
    return msgspec.structs.replace(version, replaced=None)


def version_number(connection: sa.Connection, adapter: Adapter, version: int | str) -> int:
    """The number of a version that is named by its number, as an integer or in digits, or by the beginning of its
    digest. Raises InvalidValue, RowNotFound."""
    text = str(version)
    if text.isascii() and text.isdigit() and len(text) <= VERSION_DIGITS_MAX:
        return int(text)
    if len(text) < DIGEST_CHARS_MIN:
        raise InvalidValue(
            f"{text!r} is neither a version's number nor {DIGEST_CHARS_MIN} characters of its digest", "version"
        )
    found = [known.number for known in adapters.versions(connection, adapter.id) if known.digest.startswith(text)]
    if len(found) != 1:
        raise RowNotFound(f"the adapter has no version {text!r}", "version")
    return found[0]
