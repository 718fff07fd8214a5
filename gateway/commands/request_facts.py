"""`laneway requests REQUEST_ID`: the facts of the console's page of a request, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec
import sqlalchemy as sa

from billing.accounts import budgets, prices, tenants
from billing.accounts.budgets import Budget
from billing.accounts.prices import METERS, PriceVersion, format_picos
from gateway.commands.console import Console, Row, show_json, show_row, show_rows
from gateway.commands.database import read_database
from gateway.commands.money import MILLION
from gateway.views.names import names_of
from gateway.views.request_times import SlownessView
from gateway.views.requests import RequestErrorView, WholeRequestView, whole_request

TIMELINE_COLUMNS = ("phase", "after_s", "seconds", "causes")
TARGET_COLUMNS = ("target", "of", "within_s", "measured_s", "met")
ENTRY_COLUMNS = ("account", "meter", "amount", "transaction", "recorded_at")
CORRECTION_COLUMNS = ("correction", "reason", "tokens", "amount", "created_at")


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A request with the rows that its ids name. `price` None: it had no hold. `currency`: of its tenant; None if the
    tenant's row does not exist."""

    view: WholeRequestView
    names: dict[str | None, str]
    price: PriceVersion | None
    budgets: list[Budget]
    currency: str | None


def show_request(console: Console, request_id: str, *, as_json: bool) -> None:
    """Print all facts of one request. Ends the command for an unknown id."""
    facts = read_database(console, lambda connection: _facts(console, connection, request_id))
    if as_json:
        show_json(msgspec.to_builtins(facts.view))
        return
    show_row({name: value for name, value in _rows(facts) if value is not None}, as_json=False)
    view, slowness = facts.view, facts.view.slowness
    if slowness is not None:
        _show_table([_phase(slowness, index) for index in range(len(slowness.phases))], TIMELINE_COLUMNS)
        _show_table(list(_targets(view, slowness)), TARGET_COLUMNS)
    entries = [
        {
            "account": entry.account,
            "meter": entry.meter,
            "amount": format_picos(entry.amount_picos, entry.currency),
            "transaction": entry.transaction_id,
            "recorded_at": int(entry.recorded_at),
        }
        for entry in view.entries
    ]
    _show_table(entries, ENTRY_COLUMNS)
    corrections = [
        {
            "correction": one.id,
            "reason": one.reason,
            "tokens": one.tokens,
            "amount": format_picos(one.picos, one.currency),
            "created_at": int(one.created_at),
        }
        for one in view.corrections
    ]
    _show_table(corrections, CORRECTION_COLUMNS)


def _show_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    if rows:
        click.echo()
        show_rows(rows, columns, as_json=False)


def _facts(console: Console, connection: sa.Connection, request_id: str) -> RequestFacts:
    """Raises RowNotFound."""
    view = whole_request(connection, request_id, {tier.name: tier for tier in console.config.tiers})
    windows = [budgets.get_budget(connection, window.budget_id) for window in view.hold.windows]
    tenant = tenants.get_tenant(connection, view.tenant_id)
    return RequestFacts(
        view=view,
        names=names_of(connection, [view.tenant_id, view.project_id, view.key_id, view.adapter]),
        price=prices.get_price_version(connection, view.hold.price_version_id),
        budgets=[budget for budget in windows if budget is not None],
        currency=None if tenant is None else tenant.currency,
    )


def _rows(facts: RequestFacts) -> Iterator[tuple[str, object]]:
    """The facts by name, in the order of the lines; None: the request does not have the fact."""
    view, names = facts.view, facts.names
    yield "request_id", view.request_id
    yield "status", view.status
    yield "ending", view.ending
    if view.error is not None:
        yield from _error_rows(view.error, facts.currency)
    yield "tenant", names[view.tenant_id]
    yield "project", None if view.project_id is None else names[view.project_id]
    yield "key", names[view.key_id]
    yield "model", (view.model or None) if view.adapter is None else names[view.adapter]
    yield "requested_model", view.asked
    yield "adapter_version", view.adapter_version
    yield "tier", view.tier
    yield "batch_id", view.batch_id
    yield "trace_id", view.trace_id
    yield "began_at", int(view.started_at)
    yield "ended_at", None if view.ended_at is None else int(view.ended_at)
    yield "duration_s", _seconds(view.duration_s)
    yield "ttft_s", _seconds(view.ttft_s)
    if view.hold.price_version_id:
        yield from _hold_rows(facts)


def _error_rows(error: RequestErrorView, currency: str | None) -> Iterator[tuple[str, object]]:
    yield "code", error.code
    yield "http_status", error.status
    yield "route", error.route
    yield "limit", _limit(error, currency)
    yield "field", error.param
    yield "message", error.message
    yield "retry_after_s", error.retry_after_s


def _limit(error: RequestErrorView, currency: str | None) -> str | None:
    """`key_requests_per_minute` with its value, as "key requests per minute: 60"."""
    if error.limit_name is None or error.limit_value is None:
        return None
    is_money = "_money_" in error.limit_name
    value = format_picos(error.limit_value, currency or "") if is_money else f"{error.limit_value:,}"
    return f"{error.limit_name.replace('_', ' ')}: {value}"


def _hold_rows(facts: RequestFacts) -> Iterator[tuple[str, object]]:
    """Tokens, amounts and prices of a request that had a hold."""
    view, hold, usage = facts.view, facts.view.hold, facts.view.usage
    currency = view.currency or facts.currency or ""
    yield "prompt_tokens", view.prompt_tokens
    yield "cached_tokens", view.cached_tokens
    yield "completion_tokens", view.completion_tokens
    yield "max_tokens", hold.max_tokens
    yield "lost_tokens", hold.lost_tokens or None
    if usage is not None:
        yield "made_tokens", usage.made_tokens
        discarded = f"{usage.discarded_tokens} ({usage.discard_reason})"
        yield "discarded_tokens", discarded if usage.discarded_tokens else None
        yield "device_s", _seconds(usage.device_s)
        yield "swapped_tokens", usage.swapped_tokens or None
    yield "cost", None if view.cost_picos is None else format_picos(view.cost_picos, currency)
    yield "hold", format_picos(hold.hold_picos, currency)
    yield "settled", format_picos(hold.settled_picos, currency)
    if facts.price is not None and (unit := facts.price.tiers.get(view.tier)) is not None:
        is_embedding = usage is not None and usage.operation == "embedding"
        for meter in METERS:
            if (meter == "embedding") == is_embedding:
                amount = format_picos(getattr(unit, meter) * MILLION, facts.price.currency)
                yield f"price_{meter}", f"{amount} a million tokens"
    yield "price_version", hold.price_version_id
    yield "budgets", [f"{one.scope} {one.unit} {_per(one)} ({one.id})" for one in facts.budgets] or None
    yield "gateway", hold.gateway_id


def _per(budget: Budget) -> str:
    return "of all time" if budget.period == "total" else f"per {budget.period}"


def _phase(slowness: SlownessView, index: int) -> dict[str, Any]:
    """A line of the timeline. Preemptions are shown with the last phase, because the waits until the request ran again
    may be in prefill and in decode."""
    phase = slowness.phases[index]
    causes: list[str] = []
    if phase.name == "queue":
        if slowness.queued_behind:
            behind = ", ".join(f"{one.tier} {_seconds(one.device_s)} s" for one in slowness.queued_behind)
            causes.append(f"behind {behind}")
        if slowness.weights_s:
            causes.append(f"weights predicted to be resident after {_seconds(slowness.weights_s)} s")
    if index == len(slowness.phases) - 1 and slowness.preemptions:
        costs = [
            f"{one.by} {_seconds(one.device_s)} s for {one.recomputed_tokens} recomputed tokens"
            for one in slowness.preempted_by
        ]
        often = "once" if slowness.preemptions == 1 else f"{slowness.preemptions} times"
        causes.append(f"preempted {often}" + (f": {', '.join(costs)}" if costs else ""))
    return {
        "phase": phase.name,
        "after_s": _seconds(phase.start_s),
        "seconds": _seconds(phase.seconds),
        "causes": "; ".join(causes) or None,
    }


def _targets(view: WholeRequestView, slowness: SlownessView) -> Iterator[Row]:
    """The targets with their verdict; none for a line of a batch."""
    verdict = slowness.verdict
    if verdict is None:
        return
    basis = view.tier if verdict.basis == "request" else f"{view.tier} today"
    measures = (
        ("first token", verdict.ttft_target_s, view.ttft_s, verdict.ttft_met),
        ("each further token", verdict.inter_token_target_s, verdict.inter_token_s, verdict.inter_token_met),
    )
    for target, within_s, measured_s, met in measures:
        if met is not None:
            yield {
                "target": target,
                "of": basis,
                "within_s": _seconds(within_s),
                "measured_s": _seconds(measured_s),
                "met": met,
            }


def _seconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:.4f}"
