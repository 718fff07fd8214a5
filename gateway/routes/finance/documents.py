"""/v1/admin/invoices/{invoice_id}/payments, credits and corrections/{id}: payments, credits and corrections. Money is
integer picos: 10⁻¹² of a currency unit."""

from __future__ import annotations

from typing import Annotated

import sqlalchemy as sa
from litestar import get, post
from msgspec import Meta, Struct

from billing.accounts.prices import PICOS_MAX, Meter
from billing.books import corrections
from billing.books.corrections import REASON_CHARS_MAX
from billing.clock import SECOND
from billing.errors import RowNotFound
from gateway.admin.administration import Administration
from gateway.admin.writes import Actor
from gateway.services import Services
from gateway.views.finance import PaymentView, WholeCorrectionView

Credit = Annotated[int, Meta(ge=1, le=PICOS_MAX)]
Minor = Annotated[int, Meta(ge=-PICOS_MAX, le=PICOS_MAX)]
Month = Annotated[str, Meta(max_length=7)]


class NewPayment(Struct, forbid_unknown_fields=True):
    """An amount received, in the document's smallest unit (cents); below 0: a reversal. `paid_at`: Unix seconds, by
    default now."""

    amount_minor: Minor
    reference: str
    paid_at: Annotated[int, Meta(ge=0, le=2**40)] | None = None


class NewCredit(Struct, forbid_unknown_fields=True):
    """A credit of a tenant, as a positive amount of its currency. `month`: an open one, by default the current one. The
    other fields only describe the credit."""

    tenant: str
    picos: Credit
    reason: Annotated[str, Meta(min_length=1, max_length=REASON_CHARS_MAX)]
    month: Month | None = None
    project: str | None = None
    key_id: str | None = None
    model: str | None = None
    adapter: str | None = None
    tier: str | None = None
    meter: Meter | None = None


@post(
    "/invoices/{invoice_id:str}/payments",
    opt={"route": "/v1/admin/invoices/{invoice_id}/payments", "area": "billing"},
)
async def record_payment(
    services: Services, administration: Administration, invoice_id: str, data: NewPayment
) -> PaymentView:
    """Record an amount received for an invoice, by its id or number. All payments together are from 0 to its total."""
    made = await services.database.write_in_background(
        lambda c: administration.documents.record_payment(
            c,
            invoice_id=invoice_id,
            amount_minor=data.amount_minor,
            reference=data.reference,
            paid_at=None if data.paid_at is None else data.paid_at * SECOND,
        )
    )
    return PaymentView.of(made)


@post("/credits", opt={"route": "/v1/admin/credits", "area": "billing"})
async def make_credit(services: Services, administration: Administration, data: NewCredit) -> WholeCorrectionView:
    """Credit a tenant, with a numbered credit note. It is a correction of `-picos`, and a line of its month's
    invoice."""
    names = {name: getattr(data, name) for name in ("project", "key_id", "model", "adapter", "tier", "meter", "month")}

    def credit(connection: sa.Connection) -> WholeCorrectionView:
        made = administration.corrections.correct_tenant(
            connection, tenant=data.tenant, picos=-data.picos, reason=data.reason, **names
        )
        return WholeCorrectionView.read_one(connection, made)

    return await services.database.write_in_background(credit)


@get("/corrections/{correction_id:str}", opt={"route": "/v1/admin/corrections/{correction_id}", "area": "billing"})
async def get_correction(services: Services, by: Actor, correction_id: str) -> WholeCorrectionView:
    """One correction, and the credit note of a credit."""

    def query(connection: sa.Connection) -> WholeCorrectionView:
        found = corrections.get_correction(connection, correction_id)
        if not by.sees(found.tenant_id):
            raise RowNotFound(f"there is no correction {correction_id!r}")
        return WholeCorrectionView.read_one(connection, found)

    return await services.database.read(query)
