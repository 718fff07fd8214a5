"""The reasons for which an administrative write is refused: one list for the admin API, the command line and the demo.

Most refusals are defined in billing. The command line prints a refusal's sentence; `gateway.routes.admin.refusals`
gives each one its HTTP error.
"""

from __future__ import annotations

from adapters.files.header import AdapterRefused
from billing.errors import BillingRefused
from gateway.access.keys import KeyRefused


class NotPermitted(BillingRefused):
    """The actor's role, or its tenant, does not permit this write."""


class BatchEnded(BillingRefused):
    """The lines of the batch have ended, so that it cannot be cancelled."""


class ActorKeyEnded(BillingRefused):
    """The actor's key was revoked, or expired, after its request was authorised."""


# The base classes of every refusal. A refused write has changed nothing.
REFUSALS = (BillingRefused, KeyRefused, AdapterRefused)
