"""Finds objects by a part of their name or by their id: tenants, projects, keys, requests, invoices,
adapters, models, aliases, batches and files. Never the secret of a key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec
import sqlalchemy as sa

from billing.accounts import tenants
from billing.books import invoices
from billing.books.history import RequestFilter
from billing.books.invoices import Invoice
from billing.errors import RowNotFound
from billing.lists import ListQuery
from gateway.access import keys, roles
from gateway.access.roles import Area, Role
from gateway.batches.rows import read_any_batch
from gateway.catalog import adapters, aliases, base_models
from gateway.config.file import Config
from gateway.files.rows import read_any_visible
from gateway.views import request_errors
from gateway.views.request_errors import RequestQuery

HITS_MAX = 5  # of one kind
_MONTH = re.compile(r"\d{4}-\d\d")
_NUMBER = re.compile(r"[0-9A-Za-z-]{1,16}-\d{4}-\d{6,}")  # of a document: series, year, ordinal
# The forms in which clients see a request's id.
_REQUEST = re.compile(r"(?:req_|chatcmpl-|cmpl-|msg_|resp_)([0-9A-Za-z]{8,64})")

Kind = Literal["tenant", "project", "key", "request", "invoice", "adapter", "model", "alias", "batch", "file"]


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """`name`: the object's name for people. `note`: its tenant's slug and its state, for objects of one name.
    `tenant_id`: of its tenant, null if it belongs to the operator."""

    kind: Kind
    id: str
    name: str
    note: str
    tenant_id: str | None


class Searcher:
    """Searches as an actor of this role. `tenant_id`: only what belongs to this tenant is found; None: all tenants."""

    def __init__(self, config: Config, role: Role, tenant_id: str | None) -> None:
        self._config = config
        self._role = role
        self._tenant_id = tenant_id

    def hits(self, connection: sa.Connection, text: str) -> list[SearchHit]:
        """At most HITS_MAX of each kind, exact matches first. Case does not count."""
        kinds: list[tuple[Area, Callable[[sa.Connection, str], Iterable[SearchHit]]]] = [
            ("people", self._tenants),
            ("people", self._projects),
            ("keys", self._keys),
            ("requests", self._requests),
            ("billing", self._invoices),
            ("adapters", self._adapters),
            ("models", self._models),
            ("batches", self._batches),
            ("batches", self._files),
        ]
        found: list[SearchHit] = []
        for area, find in kinds:
            if roles.is_permitted(self._role, area, "read"):
                found += find(connection, text)
        return _with_slugs(connection, found)

    def _tenants(self, connection: sa.Connection, text: str) -> list[SearchHit]:
        exact = tenants.by_slug(connection, text.lower())
        some = tenants.query_tenants(connection, _query("slug", text), tenant_id=self._tenant_id).items
        if exact is not None and self._tenant_id in (None, exact.id):
            some = [exact, *(one for one in some if one.id != exact.id)][:HITS_MAX]
        return [
            SearchHit(kind="tenant", id=one.id, name=one.name, note=_state(one.slug, one.status), tenant_id=one.id)
            for one in some
        ]

    def _projects(self, connection: sa.Connection, text: str) -> list[SearchHit]:
        found = tenants.query_projects(connection, _query("name", text), tenant_id=self._tenant_id)
        return [SearchHit(kind="project", id=p.id, name=p.name, note="", tenant_id=p.tenant_id) for p in found.items]

    def _keys(self, connection: sa.Connection, text: str) -> list[SearchHit]:
        found = keys.query_keys(connection, _query("-created_at", text), tenant_id=self._tenant_id)
        return [
            SearchHit(
                kind="key",
                id=key.id,
                name=key.name,
                note=_state(f"…{key.last4}", "active" if key.revoked_at is None else "revoked"),
                tenant_id=key.tenant_id,
            )
            for key in found.items
        ]

    def _requests(self, connection: sa.Connection, text: str) -> list[SearchHit]:
        match = _REQUEST.fullmatch(text)
        if match is None:
            return []
        of = RequestFilter(request_id=f"req_{match[1]}", tenant_id=self._tenant_id)
        rows, _ = request_errors.list_requests_and_errors(connection, RequestQuery(of=of), after=None, limit=1)
        return [
            SearchHit(
                kind="request",
                id=row.request_id,
                name=row.request_id,
                note=" ".join(filter(None, (row.model, None if error is None else error.outcome))),
                tenant_id=row.tenant_id,
            )
            for row, error in rows
        ]

    def _invoices(self, connection: sa.Connection, text: str) -> list[SearchHit]:
        """Invoices by id, number, month or their tenant's slug, newest first."""
        if _NUMBER.fullmatch(text):
            return self._invoice_of_number(connection, text.upper())
        ids = {self._tenant_id} if self._tenant_id else set()
        if not _MONTH.fullmatch(text) and (owner := tenants.by_slug(connection, text.lower())) is not None:
            if self._tenant_id not in (None, owner.id):
                return []
            ids, text = {owner.id}, ""
        found = invoices.query_invoices(connection, _query("-period", text), tenant_id=next(iter(ids), None)).items
        return [_invoice_hit(one) for one in found]

    def _invoice_of_number(self, connection: sa.Connection, number: str) -> list[SearchHit]:
        try:
            found = invoices.get_invoice(connection, number)
        except RowNotFound:
            return []
        return [_invoice_hit(found)] if self._tenant_id in (None, found.tenant_id) else []

    def _adapters(self, connection: sa.Connection, text: str) -> list[SearchHit]:
        found = adapters.query_adapters(connection, _query("name", text), tenant_id=self._tenant_id)
        return [
            SearchHit(kind="adapter", id=one.id, name=one.name, note=f"of {one.base_model}", tenant_id=one.tenant_id)
            for one in found.items
        ]

    def _models(self, connection: sa.Connection, text: str) -> list[SearchHit]:
        """Models and aliases are the operator's."""
        if self._tenant_id is not None:
            return []
        models = [model.name for model in base_models.list_models(connection, self._config) if model.active]
        names: list[tuple[Kind, list[str]]] = [
            ("model", models),
            ("alias", list(aliases.in_force(connection, self._config))),
        ]
        return [
            SearchHit(kind=kind, id=name, name=name, note="", tenant_id=None)
            for kind, known in names
            for name in [name for name in known if text.lower() in name.lower()][:HITS_MAX]
        ]

    def _batches(self, connection: sa.Connection, text: str) -> list[SearchHit]:
        """The batch with this id."""
        row = read_any_batch(connection, text)
        if row is None or self._tenant_id not in (None, row.tenant_id):
            return []
        status = row.status.replace("_", " ")
        return [SearchHit(kind="batch", id=row.id, name=row.id, note=status, tenant_id=row.tenant_id)]

    def _files(self, connection: sa.Connection, text: str) -> list[SearchHit]:
        """The file with this id, unless it is deleted or expired."""
        found = read_any_visible(connection, text)
        if found is None or self._tenant_id not in (None, found.tenant_id):
            return []
        name = found.file.filename
        return [SearchHit(kind="file", id=found.file.id, name=name, note="", tenant_id=found.tenant_id)]


def _query(sort: str, text: str) -> ListQuery:
    return ListQuery(sort=sort, search=text or None, limit=HITS_MAX)


def _state(name: str, status: str) -> str:
    return name if status == "active" else f"{name}, {status}"


def _invoice_hit(invoice: Invoice) -> SearchHit:
    number = "" if invoice.document is None else invoice.document.number
    name = f"Invoice {invoice.period.month}"
    return SearchHit(kind="invoice", id=invoice.id, name=name, note=number, tenant_id=invoice.tenant_id)


def _with_slugs(connection: sa.Connection, found: list[SearchHit]) -> list[SearchHit]:
    """The hits with the slug of their tenant in the note."""
    ids = {hit.tenant_id for hit in found if hit.kind != "tenant" and hit.tenant_id is not None}
    slugs = {tenant_id: tenant.slug for tenant_id in ids if (tenant := tenants.get_tenant(connection, tenant_id))}
    return [
        msgspec.structs.replace(hit, note=" ".join(filter(None, (slugs.get(hit.tenant_id or ""), hit.note))))
        if hit.kind != "tenant"
        else hit
        for hit in found
    ]
