"""deploy/monitoring/rules.yml under promtool: each alert fires for its fault and for no other, and none fires over a
recorded quiet day.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from support.gateway.quiet_day import DAY_S, RULES, STEP_S, metrics_of_rules, quiet_day
from support.paths import REPO
from support.promtool import check_rules, promtool

DAY = 24 * 60  # minutes
FIRING = 'count by (alertname, severity, window) (ALERTS{alertstate="firing"})'
GIB = 2**30
# Series that begin with the first event, and that a quiet day does not have.
UNBORN = {
    "laneway_webhook_attempts_total", "laneway_engine_requests_refused_total", "laneway_traces_dropped_total",
}  # fmt: skip


class Fault(NamedTuple):
    """What makes an alert fire: `series` in promtool's notation, one value a minute. It fires at `fires_at` (minutes),
    and no alert fires at `silent_at`. `ticket`: with a page, the label `window` of the alert's ticket that fires too;
    None: no ticket fires."""

    alert: str
    severity: str
    series: dict[str, str]
    fires_at: int
    silent_at: int
    window: str = ""
    ticket: str | None = None

    @property
    def firing(self) -> list[tuple[str, str, str]]:
        """Name, severity and window of each alert that fires."""
        tickets = [] if self.ticket is None else [(self.alert, "ticket", self.ticket)]
        return [(self.alert, self.severity, self.window), *tickets]


def first_tokens(met: str, missed: str) -> dict[str, str]:
    of = 'laneway_first_tokens_total{instance="a",tier="premium",target='
    return {of + '"met"}': met, of + '"missed"}': missed, of + '"refused"}': "0x9000"}


def gauge(name: str, value: str, labels: str = "", minutes: int = 200) -> dict[str, str]:
    """Ten minutes of silence and then the value."""
    return {f'{name}{{instance="a"{labels}}}': f"0x9 {value}x{minutes}"}


def counter(name: str, values: str = "0x20 1x100") -> dict[str, str]:
    """Of an engine: one event after 20 minutes."""
    return {f'laneway_{name}_total{{instance="a",engine="e"}}': values}


def expires_in(seconds: int) -> dict[str, str]:
    name = 'laneway_certificate_expiry_timestamp_seconds{instance="a",certificate="engines"}'
    return {name: f"{seconds}x100"}


FAULTS = [
    # Half of the requests for 20 minutes, 8 % for six hours, 1.5 % for three days. The ticket has no older history.
    Fault("TierTargetMissed", "page", first_tokens("0+60x360 21630+30x60", "0x360 30+30x60"), 381, 360, "1h", "3d"),
    Fault("TierTargetMissed", "page", first_tokens("0+60x360 21655+55x360", "0x360 5+5x360"), 700, 360, "6h", "3d"),
    Fault("TierTargetMissed", "ticket", first_tokens("0+197x4500", "0+3x4500"), 3 * DAY, 0, "3d"),
    Fault("LedgerImbalance", "page", gauge("laneway_ledger_imbalances", "1"), 12, 9),
    Fault("BudgetOvershot", "page", gauge("laneway_budget_overshoot", "1"), 12, 9),
    Fault(
        "BudgetSpent", "ticket",
        {'laneway_requests_refused_total{instance="a",code="tenant_budget_exceeded"}': "0x20 1+1x100"}, 50, 20,
    ),
    Fault("SettlementLost", "page", {'laneway_settlements_lost_total{instance="a"}': "0x20 1x100"}, 25, 20),
    Fault(
        "BooksNotReconciled", "ticket",
        {'laneway_reconciled_timestamp_seconds{instance="a"}': "0+60x60 3600x60"}, 82, 60,
    ),
    Fault("JournalWaits", "ticket", gauge("laneway_journal_age_seconds", "0+60"), 16, 10),
    Fault(
        "JournalWaits", "page",
        gauge("laneway_journal_bytes", "9") | {'laneway_journal_bytes_max{instance="a"}': "16x300"}, 14, 9,
    ),
    Fault(
        "WebhooksFail", "ticket",
        {'laneway_webhook_attempts_total{instance="a",outcome="failed"}': "0x20 0+1x100",
         'laneway_webhook_attempts_total{instance="a",outcome="delivered"}': "0x120"}, 60, 20,
    ),
    Fault("GatewayDown", "page", {'up{job="laneway",instance="a"}': "1x9 0x100"}, 14, 10),
    Fault("WorkerDown", "ticket", {'laneway_worker_up{instance="a",worker="1"}': "1x9 0x100"}, 14, 10),
    Fault("DatabaseUnreachable", "page", gauge("laneway_problem", "1", ',part="database"'), 13, 9),
    Fault("DatabaseUnreachable", "page", gauge("laneway_problem", "1", ',part="lease"'), 13, 9),
    Fault("NothingCanBeRecorded", "page", gauge("laneway_problem", "1", ',part="journal"'), 13, 9),
    Fault("DrainTakesLong", "ticket", gauge("laneway_drain_seconds", "0+60"), 24, 15),
    Fault(
        "DiskFills", "ticket",  # 400 MiB are left, and 1 MiB is written a minute
        {'laneway_disk_free_bytes{instance="a"}': f"{400 * 2**20}-{2**20}x100",
         'laneway_disk_free_min_bytes{instance="a"}': f"{64 * 2**20}x100"}, 60, 10,
    ),
    Fault(
        "DiskFills", "page",  # at once
        {'laneway_disk_free_bytes{instance="a"}': f"{10 * GIB}x9 {100 * 2**20}x20",
         'laneway_disk_free_min_bytes{instance="a"}': f"{64 * 2**20}x100"}, 13, 9,
    ),
    Fault("CertificateExpires", "ticket", expires_in(14 * 86_400 + 600), 25, 9),
    Fault("CertificateExpires", "page", expires_in(2 * 86_400 + 600), 25, 9, ticket=""),
    Fault("InternalErrors", "ticket", {'laneway_internal_errors_total{instance="a"}': "0x20 1x100"}, 22, 20),
    Fault("BreakGlassKeyUsed", "page", {'laneway_break_glass_uses_total{instance="a"}': "0x20 1x100"}, 22, 20),
    Fault(
        "TracesDropped", "ticket",
        {'laneway_traces_dropped_total{instance="a",reason="undelivered"}': "0x20 0+1x100",
         'laneway_traces_dropped_total{instance="a",reason="stopping"}': "0x10 9x110"}, 30, 20,
    ),
    Fault("LimitsNotShared", "ticket", {'laneway_limits_shared{instance="a"}': "1x9 0x100"}, 20, 10),
    Fault(
        "ConnectionsFull", "ticket",
        gauge("laneway_connections", "95") | {'laneway_connections_max{instance="a"}': "100x300"}, 18, 9,
    ),
    Fault("NoEngineReady", "page", gauge("laneway_problem", "1", ',part="engine"'), 13, 9),
    Fault("EngineMissing", "ticket", gauge("laneway_fleet_engines", "1", ',state="connecting"'), 18, 12),
    Fault("EngineStuck", "page", gauge("laneway_fleet_engines", "1", ',state="stuck"'), 13, 9),
    Fault("ModelSilent", "page", gauge("laneway_engine_model_silent", "1", ',engine="e",model="m"'), 13, 9),
    Fault("EngineDrainsLong", "ticket", gauge("laneway_fleet_engines", "1", ',state="draining"'), 45, 30),
    Fault("RosterStale", "ticket", gauge("laneway_roster_stale_seconds", "0+60"), 20, 12),
    Fault(
        "QueueFull", "ticket",
        {'laneway_engine_requests_refused_total{instance="a",engine="e",code="queue_full"}': "0x20 0+30x100"}, 45, 25,
    ),
    Fault(
        "PreemptionsMany", "ticket",
        {'vllm:num_preemptions_total{instance="a",engine="e",model_name="m"}': "0x20 0+40x100",
         'vllm:request_success_total{instance="a",engine="e",model_name="m",finished_reason="stop"}': "0+60x200"},
        90, 40,
    ),
    Fault("BatchLate", "ticket", gauge("laneway_batches_late", "1"), 27, 15),
    Fault("BatchStalled", "ticket", gauge("laneway_batch_stalled_seconds", "0+60"), 45, 30),
    Fault("ModelRefused", "ticket", gauge("laneway_models_refused", "1"), 22, 15),
    Fault("LoadsFail", "ticket", counter("model_load_failures"), 25, 20),
    Fault("LoadsFail", "ticket", counter("adapter_load_failures"), 25, 20),
    Fault(
        "EngineErrors", "ticket",
        counter("scheduling_errors") | counter("step_errors", "0x120") | counter("request_errors", "0x120"), 25, 20,
    ),
]  # fmt: skip


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def expects(at_minutes: int, firing: Sequence[tuple[str, str, str]] = ()) -> dict[str, Any]:
    """Exactly these alerts fire: name, severity and window."""
    samples = []
    for name, severity, window in firing:
        windowed = f', window="{window}"' if window else ""
        samples.append({"labels": f'{{alertname="{name}", severity="{severity}"{windowed}}}', "value": 1})
    return {"expr": FIRING, "eval_time": f"{at_minutes}m", "exp_samples": samples}


def as_promtool(series: dict[str, str]) -> list[dict[str, str]]:
    return [{"series": name, "values": values} for name, values in series.items()]


def test_the_rules_are_valid() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", RULES)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.alert}-{fault.severity}")
def test_an_alert_fires_alone_and_not_before(fault: Fault, tmp_path: Path) -> None:
    expected = [expects(fault.silent_at), expects(fault.fires_at, fault.firing)]
    case = {"interval": "1m", "input_series": as_promtool(fault.series), "promql_expr_test": expected}
    check_rules(tmp_path, RULES, [case])


def test_every_alert_has_a_fault() -> None:
    rules_of = {(rule["alert"], rule["labels"]["severity"], rule["labels"].get("window", "")) for rule in alerts()}
    assert rules_of == {(fault.alert, fault.severity, fault.window) for fault in FAULTS}


def test_few_misses_at_night_wake_nobody(tmp_path: Path) -> None:
    """Three of five requests in an hour missed their target."""
    series = first_tokens("0x10 2x60", "0x10 3x60")
    case = {"interval": "1m", "input_series": as_promtool(series), "promql_expr_test": [expects(14), expects(60)]}
    check_rules(tmp_path, RULES, [case])


def test_no_alert_fires_over_a_recorded_quiet_day(tmp_path: Path) -> None:
    day = quiet_day()
    recorded = {name.split("{")[0] for name in day}
    assert metrics_of_rules() - recorded <= UNBORN, "record again: tests/programs/record_quiet_day.py"
    fired = 'count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[1d]))'
    expected = [{"expr": fired, "eval_time": f"{DAY_S}s", "exp_samples": []}]
    case = {"interval": f"{STEP_S}s", "input_series": as_promtool(day), "promql_expr_test": expected}
    check_rules(tmp_path, RULES, [case])


def test_every_alert_has_a_paragraph_in_the_runbook() -> None:
    pages = {page: (REPO / "docs" / "operators" / f"{page}.md").read_text() for page in ("runbook", "batches")}
    of_page = {name: page for page, text in pages.items() for name in re.findall(r"^### (\w+)$", text, re.M)}
    headings = [name for text in pages.values() for name in re.findall(r"^### (\w+)$", text, re.M)]
    assert len(headings) == len(set(headings))
    assert set(headings) == {rule["alert"] for rule in alerts()}
    for rule in alerts():
        assert rule["annotations"]["runbook"] == f"docs/operators/{of_page[rule['alert']]}.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("page", "ticket")
