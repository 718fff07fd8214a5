"""The part of a request that the remaining amount of a budget covers, and the refusal of a request that exceeds it."""

from __future__ import annotations

from billing.accounts import end_users
from billing.accounts.budget_windows import BudgetWindow, LockedBudget, Scope
from billing.accounts.prices import UnitPrices, format_picos
from billing.clock import rfc3339
from billing.ledger.messages import HoldRefused, HoldRequest, RefusalCode

_UNIT_WORD = {"tokens": "token", "money": "money"}
_REFUSAL_CODES: dict[Scope, RefusalCode] = {
    "tenant": "tenant_budget_exceeded",
    "project": "project_budget_exceeded",
    "key": "key_budget_exceeded",
}
_END_USER_CODE: RefusalCode = "end_user_budget_exceeded"


def affordable_tokens(
    budget: LockedBudget, window: BudgetWindow, request: HoldRequest, prices: UnitPrices
) -> int | None:
    """The completion tokens that the budget's remaining amount covers; None: any number; below 0: it does not cover the
    prompt."""
    left = budget.bound - window.held - window.posted
    if budget.unit == "tokens":
        return left - request.prompt_tokens
    left -= prices.most(request.prompt_tokens, 0, request.operation)
    if prices.output == 0:
        return None if left >= 0 else -1
    return left // prices.output


def budget_refusal(
    request: HoldRequest, budget: LockedBudget, window: BudgetWindow, needed: int, currency: str, resets_at: int | None
) -> HoldRefused:
    """The refusal by one budget, of whose unit the request needs at least `needed`."""

    def show(amount: int) -> str:
        return f"{amount} tokens" if budget.unit == "tokens" else format_picos(amount, currency)

    when = "It never resets." if resets_at is None else f"It resets at {rfc3339(resets_at)}."
    of_end_user = budget.template_id is not None
    owner = "end user" if of_end_user else budget.scope
    message = (
        f"The {owner}'s {_UNIT_WORD[budget.unit]} budget ({budget.period}) does not cover this request: limit "
        f"{show(budget.bound)}, used {show(window.posted)}, held {show(window.held)} by running requests, "
        f"needed at least {show(needed)}. {when}"
    )
    if budget.end_user == end_users.OTHERS and of_end_user:
        message += f" The limit of {end_users.END_USERS_MAX} end users is reached: further end users share a budget."
    # The smallest request has one prompt token and no completion token. A key may still serve its other end users.
    nothing_left = not of_end_user and budget.bound - window.posted < 1
    code = _END_USER_CODE if of_end_user else _REFUSAL_CODES[budget.scope]
    name = f"{'end_user' if of_end_user else budget.scope}_{budget.unit}_{budget.period}"
    return HoldRefused(request.request_id, code, message, resets_at, nothing_left, name, budget.bound)
