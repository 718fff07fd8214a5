"""The bodies for Slack and PagerDuty, by the fields and limits that the services document."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

import pytest

from billing.accounts.alerts import Alert
from gateway.upkeep.problem_events import ProblemEvent
from gateway.upkeep.webhook_bodies import AnyEvent, body_of

KEY = "k" * 32
HOSTILE = "<!channel> <https://example.org|click> & " * 100
PROBLEM = ProblemEvent(
    "evt_1", "opened", "engine", "down", "no engine is connected", ["h1", "h2"], 3, "evt_1", 1_800_000_000_000_000
)
RESOLVED = ProblemEvent("evt_2", "resolved", "engine", "ok", "sound again", [], 0, "evt_1", 1_800_000_060_000_000)
LONG = ProblemEvent("evt_3", "worsened", "models", "degraded", HOSTILE, ["h"] * 10, 9, "evt_0", 1_800_000_000_000_000)
ALERT = Alert(
    1, "alr_1", "ten_1", "bud_1", 0, 100, 500, 501, 1_800_000_000_000_000, "tenant", "ten_1", "tokens", "month", "hard"
)
EVENTS: list[AnyEvent] = [PROBLEM, RESOLVED, LONG, ALERT]
# https://developer.pagerduty.com/docs/send-alert-event
ENVELOPE = {"routing_key", "event_action", "dedup_key", "payload", "client", "client_url", "links", "images"}
PAYLOAD = {"summary", "source", "severity", "timestamp", "component", "group", "class", "custom_details"}


def body(event: AnyEvent, format_: str, key: str | None = None) -> dict[str, Any]:
    return dict(json.loads(body_of(event, format_, key)))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.id)
def test_slack(event: AnyEvent) -> None:
    """https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks, and the reference of blocks."""
    made = body(event, "slack")
    assert set(made) == {"text", "blocks"}
    assert 0 < len(made["text"]) <= 4000
    header, section, context = made["blocks"]
    assert header["type"] == "header"
    assert header["text"]["type"] == "plain_text"
    assert 0 < len(header["text"]["text"]) <= 150
    assert (section["type"], section["text"]["type"]) == ("section", "mrkdwn")
    assert 0 < len(section["text"]["text"]) <= 3000
    assert context["type"] == "context"
    [element] = context["elements"]
    assert event.id in element["text"]
    for text in (made["text"], section["text"]["text"], element["text"]):
        assert not re.search(r"[<>]|&(?!amp;|lt;|gt;)", text), "no link, no mention, and no escape cut in its middle"


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.id)
def test_pagerduty(event: AnyEvent) -> None:
    made = body(event, "pagerduty", KEY)
    assert set(made) <= ENVELOPE
    assert set(made["payload"]) <= PAYLOAD
    assert made["routing_key"] == KEY
    assert made["event_action"] in ("trigger", "acknowledge", "resolve")
    assert 0 < len(made["dedup_key"]) <= 255
    payload = made["payload"]
    assert 0 < len(payload["summary"]) <= 1024
    assert payload["severity"] in ("critical", "error", "warning", "info")
    assert payload["source"]
    assert datetime.fromisoformat(payload["timestamp"]).tzinfo is not None
    assert payload["custom_details"]["id"] == event.id
    assert len(json.dumps(made)) <= 512 * 1024


def test_an_incident_is_triggered_and_resolved_under_one_key() -> None:
    trigger, resolve, worse = (body(event, "pagerduty", KEY) for event in (PROBLEM, RESOLVED, LONG))
    assert (trigger["event_action"], trigger["dedup_key"]) == ("trigger", "evt_1")
    assert (resolve["event_action"], resolve["dedup_key"]) == ("resolve", "evt_1")
    assert (worse["event_action"], worse["dedup_key"]) == ("trigger", "evt_0")
    assert [one["payload"]["severity"] for one in (trigger, worse)] == ["critical", "warning"]
    assert trigger["payload"]["source"] == "h1"


def test_a_spent_hard_budget_is_an_error() -> None:
    made = body(ALERT, "pagerduty", KEY)
    assert (made["dedup_key"], made["event_action"], made["payload"]["severity"]) == ("alr_1", "trigger", "error")


def test_laneways_own_body() -> None:
    made = body(RESOLVED, "laneway")
    assert made == {
        "id": "evt_2",
        "type": "problem.resolved",
        "created_at": 1_800_000_060,
        "data": {
            "part": "engine", "status": "ok", "detail": "sound again", "opened_by": "evt_1", "gateways": 0,
            "hosts": [],
        },
    }  # fmt: skip
