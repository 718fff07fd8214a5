"""Refusals of billing's administrative functions, which callers map to a status. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

Arguments = ParamSpec("Arguments")


class BillingRefused(Exception):
    """Base of all refusals. `param` names the argument at fault, if an argument is at fault. `others`: further refusals
    of the same write, of other arguments."""

    others: tuple[BillingRefused, ...] = ()

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


class ArgumentChecks:
    """Collects the refusals of several checks, so that one answer names every argument at fault."""

    def __init__(self) -> None:
        self._found: list[BillingRefused] = []

    def note(self, check: Callable[Arguments, object], *arguments: Arguments.args, **named: Arguments.kwargs) -> None:
        """Run a check; record its refusal."""
        try:
            check(*arguments, **named)
        except BillingRefused as refusal:
            self._found += (refusal, *refusal.others)

    def raise_all(self) -> None:
        """Raise the first refusal, with the later refusals as its `others`; return if every check passed."""
        if self._found:
            first, *others = self._found
            first.others = tuple(others)
            raise first
