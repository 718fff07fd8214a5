"""Refusals of billing's administrative functions, which callers map to a status. Knows no HTTP."""

from __future__ import annotations


class BillingRefused(Exception):
    """Base of all refusals. `param` names the argument at fault, if there is one."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidValue(BillingRefused):
    """An argument that can never be accepted."""


class AlreadyExists(BillingRefused):
    """A row with this name exists already."""


class RowNotFound(BillingRefused):
    """No such row."""


class TenantQuotaExceeded(BillingRefused):
    """A tenant's quota is used up; the message names the setting and its limit."""


class QuotaBytesExceeded(BillingRefused):
    """A tenant's quota of bytes is used up. Unlike TenantQuotaExceeded, a smaller item may still fit."""


class NotPossibleYet(BillingRefused):
    """Not possible now, but perhaps later."""
