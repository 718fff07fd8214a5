"""Corrections of billed amounts, of a request or free, and credits."""

from __future__ import annotations

import sqlalchemy as sa

from billing.books import corrections
from billing.books.corrections import Correction
from billing.errors import RowNotFound
from gateway.admin.documents import issuer_of
from gateway.admin.writes import Writes, key_of, project_of


class CorrectionWrites:
    """A correction is added to the period that it corrects while that period is open, or else to the current one.
    Earlier entries do not change."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def correct_request(
        self, connection: sa.Connection, *, request_id: str, meter: str, tokens: int, reason: str
    ) -> Correction:
        """Bill `tokens` more (or fewer, below 0) of a request's meter, at the price it was billed at."""
        self._writes.lock(connection)
        made = corrections.correct_request(
            connection, request_id, meter=meter, tokens=tokens, reason=reason, actor=self._writes.actor.id
        )
        return self._writes.record(connection, "correction.make", None, made)

    def correct_tenant(
        self,
        connection: sa.Connection,
        *,
        tenant: str,
        picos: int,
        reason: str,
        project: str | None = None,
        key_id: str | None = None,
        model: str | None = None,
        adapter: str | None = None,
        tier: str | None = None,
        meter: str | None = None,
        month: str | None = None,
    ) -> Correction:
        """Bill a tenant `picos` of its currency; below 0, credit it, with a credit note. `month`: an open one; None:
        the current one. The other arguments only describe it; `adapter` is an id."""
        writes = self._writes
        writes.lock(connection)
        tenant_id = writes.tenant(connection, tenant).id
        if tier is not None:
            writes.check_tier(tier)
        if model is not None:
            writes.check_subject(connection, "model", model, "model")
        if adapter is not None:
            writes.check_subject(connection, "adapter", adapter, "adapter")
        if key_id is not None and key_of(connection, key_id).tenant_id != tenant_id:
            raise RowNotFound(f"the tenant has no key {key_id!r}", "key_id")
        made = corrections.correct_tenant(
            connection,
            tenant_id,
            picos=picos,
            reason=reason,
            actor=writes.actor.id,
            project_id=None if project is None else project_of(connection, tenant_id, project).id,
            key_id=key_id,
            model=model,
            adapter=adapter,
            tier=tier,
            meter=meter,
            month=month,
            issuer=issuer_of(writes.config),
        )
        return writes.record(connection, "correction.make", None, made)
