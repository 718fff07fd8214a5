"""The bodies of deliveries: Laneway's own JSON, Slack's incoming webhooks, and PagerDuty's Events API v2.

A body depends on the event alone, so it is the same in every attempt. Texts are cut to the limits of the services.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from billing.accounts.alerts import Alert
from billing.clock import SECOND
from gateway.batches.events import BatchEvent
from gateway.upkeep.problem_events import ProblemEvent
from gateway.views.accounts import AlertView

BUDGET_EVENT = "budget.threshold_reached"
TEST_EVENT = "webhook.test"
# Slack: https://docs.slack.dev/reference/block-kit/blocks, characters of a header, a section and a context element.
SLACK_HEADER_MAX, SLACK_SECTION_MAX, SLACK_CONTEXT_MAX = 150, 3000, 2000
# PagerDuty: https://developer.pagerduty.com/docs/send-alert-event
PAGERDUTY_SUMMARY_MAX = 1024
PAGERDUTY_CLIENT = "Laneway"

Severity = Literal["critical", "error", "warning", "info"]


class WebhookTestEvent(msgspec.Struct, frozen=True):
    """An event that an operator sends to see whether a webhook works. `sent_at` in Unix seconds."""

    id: str
    sent_at: int


AnyEvent = Alert | ProblemEvent | BatchEvent | WebhookTestEvent


class ProblemView(msgspec.Struct, frozen=True):
    """`data` of an event about a part of the deployment. `opened_by`: the id of the event that opened the problem.
    `gateways`: how many found it, on `hosts` (at most ten)."""

    part: str
    status: Literal["ok", "degraded", "down"]
    detail: str
    opened_by: str
    gateways: int
    hosts: list[str]


class BatchEventView(BatchEvent, frozen=True):
    """`data` of an event about a batch that has ended. Moments in Unix seconds."""

    @classmethod
    def of(cls, event: BatchEvent) -> BatchEventView:
        moments = {"created_at": event.created_at // SECOND, "ended_at": event.ended_at // SECOND}
        return cls(**msgspec.structs.asdict(event) | moments)


class WebhookTestView(msgspec.Struct, frozen=True):
    """`data` of a test event."""

    message: str = "This is a test of the webhook. Nothing has happened."


class WebhookEvent(msgspec.Struct, frozen=True):
    """The body in the format `laneway`. A receiver recognises a repeated delivery by `id`. `created_at` in Unix
    seconds."""

    id: str
    type: str
    created_at: int
    data: AlertView | ProblemView | BatchEventView | WebhookTestView


class _Summary(msgspec.Struct, frozen=True):
    """An event in words, for people."""

    type: str
    title: str
    text: str
    severity: Severity
    moment: int  # Unix seconds
    source: str
    component: str


def body_of(event: AnyEvent, format_: str, routing_key: str | None) -> bytes:
    """The body in one of `webhooks.FORMATS`. `routing_key`: of the format `pagerduty`."""
    match format_:
        case "slack":
            body: Any = _slack(event, _summary(event))
        case "pagerduty":
            body = _pagerduty(event, _summary(event), routing_key)
        case _:
            body = _laneway(event)
    return msgspec.json.encode(body)


def _laneway(event: AnyEvent) -> WebhookEvent:
    if isinstance(event, Alert):
        alert = AlertView.of(event)
        return WebhookEvent(event.id, BUDGET_EVENT, alert.crossed_at, alert)
    if isinstance(event, WebhookTestEvent):
        return WebhookEvent(event.id, TEST_EVENT, event.sent_at, WebhookTestView())
    if isinstance(event, BatchEvent):
        batch = BatchEventView.of(event)
        return WebhookEvent(event.id, f"batch.{event.status}", batch.ended_at, batch)
    data = ProblemView(event.part, event.status, event.detail, event.opened_by, event.gateways, event.hosts)
    return WebhookEvent(event.id, f"problem.{event.type}", event.occurred_at // SECOND, data)


def _slack(event: AnyEvent, summary: _Summary) -> dict[str, Any]:
    """Notifications show `text`, and the channel shows the blocks."""
    when = datetime.fromtimestamp(summary.moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    facts = _escape(f"{summary.type} · {summary.severity} · {when} · {event.id}", SLACK_CONTEXT_MAX)
    return {
        "text": _escape(f"{summary.title}: {summary.text}", SLACK_SECTION_MAX),
        "blocks": [
            {"type": "header", "text": {"type": "plain_text", "text": _cut(summary.title, SLACK_HEADER_MAX)}},
            {"type": "section", "text": {"type": "mrkdwn", "text": _escape(summary.text, SLACK_SECTION_MAX)}},
            {"type": "context", "elements": [{"type": "mrkdwn", "text": facts}]},
        ],
    }


def _pagerduty(event: AnyEvent, summary: _Summary, routing_key: str | None) -> dict[str, Any]:
    """An incident has the id of the event that opened it as its `dedup_key`. A test resolves an incident that does
    not exist: PagerDuty checks the routing key and alerts no engineer."""
    resolves = isinstance(event, WebhookTestEvent) or (isinstance(event, ProblemEvent) and event.type == "resolved")
    return {
        "routing_key": routing_key,
        "event_action": "resolve" if resolves else "trigger",
        "dedup_key": event.opened_by if isinstance(event, ProblemEvent) else event.id,
        "client": PAGERDUTY_CLIENT,
        "payload": {
            "summary": _cut(f"{summary.title}: {summary.text}", PAGERDUTY_SUMMARY_MAX),
            "source": summary.source,
            "severity": summary.severity,
            "timestamp": datetime.fromtimestamp(summary.moment, UTC).isoformat(),
            "component": summary.component,
            "group": "laneway",
            "class": summary.type,
            "custom_details": msgspec.to_builtins(_laneway(event)),
        },
    }


def _summary(event: AnyEvent) -> _Summary:
    if isinstance(event, Alert):
        return _of_alert(event)
    if isinstance(event, WebhookTestEvent):
        return _Summary(
            TEST_EVENT, "Laneway: a test", WebhookTestView().message, "info", event.sent_at, "laneway", "webhook"
        )
    if isinstance(event, BatchEvent):
        return _of_batch(event)
    title = f"Laneway: {event.part} is {'sound again' if event.type == 'resolved' else event.status}"
    where = f" (on {', '.join(event.hosts)})" if event.hosts else ""
    named = f" (opened by {event.opened_by})" if event.type == "resolved" else ""
    severity: Severity = {"down": "critical", "degraded": "warning", "ok": "info"}[event.status]  # type: ignore[assignment]
    return _Summary(
        type=f"problem.{event.type}",
        title=title,
        text=f"{event.detail}{where}{named}",
        severity=severity,
        moment=event.occurred_at // SECOND,
        source=event.hosts[0] if event.hosts else "laneway",
        component=event.part,
    )


def _of_alert(alert: Alert) -> _Summary:
    spent = alert.threshold >= 100
    return _Summary(
        type=BUDGET_EVENT,
        title=f"Laneway: a budget reached {alert.threshold} %",
        text=(
            f"The {alert.kind} {alert.period} budget {alert.budget_id} of {alert.scope} {alert.scope_id} has used "
            f"{alert.used} of {alert.limit_amount} {'tokens' if alert.unit == 'tokens' else 'picos'}"
        ),
        severity="error" if spent and alert.kind == "hard" else "warning",
        moment=alert.crossed_at // SECOND,
        source="laneway",
        component="budget",
    )


def _of_batch(event: BatchEvent) -> _Summary:
    return _Summary(
        type=f"batch.{event.status}",
        title=f"Laneway: a batch is {event.status}",
        text=(
            f"The batch {event.id} of {event.tenant_id} has ended: of {event.lines} lines {event.succeeded} succeeded "
            f"and {event.failed} failed"
        ),
        severity="info" if event.status in ("completed", "cancelled") else "warning",
        moment=event.ended_at // SECOND,
        source="laneway",
        component="batch",
    )


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


def _escape(text: str, chars_max: int) -> str:
    """Slack reads `&`, `<` and `>` as marks of links and mentions. An escaped character is never cut in its middle."""
    escaped = [{"&": "&amp;", "<": "&lt;", ">": "&gt;"}.get(character, character) for character in text]
    length = 0
    kept: list[str] = []
    for part in escaped:
        length += len(part)
        if length > chars_max - 1:
            return "".join([*kept, "…"])
        kept.append(part)
    return "".join(kept)
