"""Erases a tenant: names, keys, texts, adapters and the contents of its audit lines. Its usage, ledger, invoices and
budgets keep their amounts under the tenant's id, so the books still prove. Documents that were issued keep the name and
the address on them: tax law requires them for years.
"""

from __future__ import annotations

import sqlalchemy as sa

from billing import finance_tables, revision, tables
from billing.accounts.tags import SOURCE_TAG
from billing.exports import labels
from gateway.access import audit_chain
from gateway.batch_tables import batches
from gateway.error_tables import request_errors
from gateway.file_tables import files
from gateway.files.rows import lock_tenant_key
from gateway.stored.texts import delete_text_key
from gateway.tables import (
    adapter_shares,
    adapter_versions,
    adapters,
    audit_log,
    erasures,
    key_totp,
    keys,
    people,
    person_sessions,
    rate_limits,
    replays,
    sessions,
    write_replays,
)

ERASED = "erased"
SLUG_CHARS = 20  # of the tenant's id in its new slug


def erase(connection: sa.Connection, erasure_id: str, tenant_id: str, at: int) -> None:
    """Record the erasure and erase the tenant, if the database has it. Its row, and the rows of its keys, projects and
    adapters, lose their names only, since the books refer to them."""
    lock_tenant_key(connection, tenant_id)  # first, as in transactions that create or end batches: no deadlock
    connection.execute(sa.insert(erasures).values(id=erasure_id, tenant_id=tenant_id, at=at))
    tenants = tables.tenants
    # The slug is unique, and may not be that of another erased tenant.
    slug = f"{ERASED}-{tenant_id.removeprefix('ten_')[:SLUG_CHARS]}"
    change = sa.update(tenants).where(tenants.c.id == tenant_id)
    values = {
        "slug": slug,
        "name": ERASED,
        "status": "suspended",
        "store_responses_s": None,
        "cheapest": False,
        "allowed_ips": None,
        "on_budget": None,
    }
    if not connection.execute(change.values(values)).rowcount:
        return
    delete_text_key(connection, tenant_id)  # stored texts cannot be read from now on, and are deleted by the gateways
    # Contents without a key are removed from their store by the gateways.
    named = sa.update(files).where(files.c.tenant_id == tenant_id)
    connection.execute(named.values(filename=ERASED, deleted_at=sa.func.coalesce(files.c.deleted_at, at)))
    # Their workers end them: no key of the tenant is usable.
    texts = {"metadata": None, "errors": None, "idempotency_key": None, "fingerprint": None}
    connection.execute(sa.update(batches).where(batches.c.tenant_id == tenant_id).values(texts))
    _erase_keys(connection, tenant_id, at)
    _erase_people(connection, tenant_id)
    _erase_adapters(connection, tenant_id, at)
    _erase_accounts(connection, tenant_id)
    # Their messages have addresses of clients, and names of models.
    connection.execute(sa.delete(request_errors).where(request_errors.c.tenant_id == tenant_id))
    audit_chain.erase_contents(connection, tenant_id)
    revision.bump(connection)


def _erase_keys(connection: sa.Connection, tenant_id: str, at: int) -> None:
    own = sa.select(keys.c.id).where(keys.c.tenant_id == tenant_id)
    connection.execute(sa.delete(sessions).where(sessions.c.key_id.in_(own)))
    connection.execute(sa.delete(key_totp).where(key_totp.c.key_id.in_(own)))
    connection.execute(sa.delete(replays).where(replays.c.key_id.in_(own)))
    answers = sa.or_(write_replays.c.tenant_id == tenant_id, write_replays.c.actor_id.in_(own))
    connection.execute(sa.delete(write_replays).where(answers))
    connection.execute(sa.delete(rate_limits).where(rate_limits.c.tenant_id == tenant_id))
    revoked = sa.func.coalesce(keys.c.revoked_at, at)
    values: dict[str, object] = {"name": ERASED, "hash": keys.c.id, "prefix": "", "last4": "", "revoked_at": revoked}
    values |= {"models": None, "allowed_ips": None, "tags": None}
    connection.execute(sa.update(keys).where(keys.c.tenant_id == tenant_id).values(values))
    # Usage rows name the tag sets, so their rows remain.
    tag_sets = tables.tag_sets
    own_tags = sa.and_(tag_sets.c.tenant_id == tenant_id, tag_sets.c.name != SOURCE_TAG)
    connection.execute(sa.update(tag_sets).where(own_tags).values(value=ERASED))


def _erase_people(connection: sa.Connection, tenant_id: str) -> None:
    """Erase the people of the tenant, and people whose role in the tenant has ended. The provider is not contacted: a
    person who signs in again gets a new row."""
    had_role = sa.select(audit_log.c.object_id).where(
        audit_log.c.tenant_id == tenant_id, audit_log.c.action.in_(("person.create", "person.update"))
    )
    without_role = sa.and_(people.c.role.is_(None), people.c.id.in_(had_role))
    query = sa.select(people.c.id).where(sa.or_(people.c.tenant_id == tenant_id, without_role))
    own = list(connection.execute(query).scalars())
    connection.execute(sa.delete(person_sessions).where(person_sessions.c.person_id.in_(own)))
    values = {"subject": people.c.id, "name": None, "email": None, "role": None}
    connection.execute(sa.update(people).where(people.c.id.in_(own)).values(values))


def _erase_adapters(connection: sa.Connection, tenant_id: str, at: int) -> None:
    """The files are deleted by the gateways, unless another tenant has the same content."""
    own = sa.select(adapters.c.id).where(adapters.c.tenant_id == tenant_id)
    shared = sa.or_(adapter_shares.c.tenant_id == tenant_id, adapter_shares.c.adapter_id.in_(own))
    connection.execute(sa.delete(adapter_shares).where(shared))
    versions = sa.update(adapter_versions).where(adapter_versions.c.adapter_id.in_(own))
    removed = sa.func.coalesce(adapter_versions.c.removed_at, at)
    connection.execute(versions.values(removed_at=removed, trained_for=None, warnings=[]))
    values = {"name": adapters.c.id, "notes": None, "active": False, "for_all": False, "pinned": False}
    connection.execute(sa.update(adapters).where(adapters.c.tenant_id == tenant_id).values(values))


def _erase_accounts(connection: sa.Connection, tenant_id: str) -> None:
    profiles = finance_tables.billing_profiles
    connection.execute(sa.delete(profiles).where(profiles.c.tenant_id == tenant_id))
    projects, webhooks, budgets = tables.projects, tables.webhooks, tables.budgets
    exports, names, periods = tables.exports, tables.export_names, tables.billing_periods
    connection.execute(sa.update(projects).where(projects.c.tenant_id == tenant_id).values(name=projects.c.id))
    gone = {"url": "", "secret": "", "active": False}
    connection.execute(sa.update(webhooks).where(webhooks.c.tenant_id == tenant_id).values(gone))
    # Errors of TLS name the host.
    own_webhooks = sa.select(webhooks.c.id).where(webhooks.c.tenant_id == tenant_id)
    of_webhooks = sa.update(tables.alert_deliveries).where(tables.alert_deliveries.c.webhook_id.in_(own_webhooks))
    connection.execute(of_webhooks.values(last_error=None))
    own_budgets = budgets.c.tenant_id == tenant_id
    # In the order in which holds lock them.
    order = (budgets.c.per_end_user.desc(), budgets.c.id)
    connection.execute(sa.select(budgets.c.id).where(own_budgets).order_by(*order).with_for_update()).all()
    connection.execute(sa.update(budgets).where(own_budgets).values(active=False, end_user=None))
    ended = {"done": "removed", "queued": "cancelled", "running": "cancelled"}
    for state, end in ended.items():
        own = sa.and_(exports.c.tenant_id == tenant_id, exports.c.state == state)
        connection.execute(sa.update(exports).where(own).values(state=end))
    own_periods = sa.select(periods.c.id).where(periods.c.tenant_id == tenant_id)
    named = sa.and_(names.c.period_id.in_(own_periods), names.c.subject_id != labels.PROVIDER)
    connection.execute(sa.update(names).where(named).values(name=ERASED))
