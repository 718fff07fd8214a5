"""How SLA reports are shown: moments in Unix seconds, durations in milliseconds; and as a CSV for a customer."""

from __future__ import annotations

import csv
import io
from typing import Literal

import msgspec

from billing.books.sketch import ACCURACY
from billing.books.sla import OBJECTIVE
from billing.books.sla_reports import SlaFigures, SlaGroup, SlaReport
from billing.clock import SECOND, rfc3339

CSV_COLUMNS = ("tenant", "tier", "model", "date", "start_time", "end_time", *SlaFigures.__struct_fields__)


class SlaDayView(SlaFigures, frozen=True, kw_only=True):
    """One day of the report's time zone: start_time ≤ moment < end_time, in Unix seconds."""

    date: str
    start_time: int
    end_time: int


class SlaGroupView(msgspec.Struct, frozen=True, kw_only=True):
    """The days of one tier, or with `by=model` of one tier and model, and all of them as `total`."""

    tier: str
    model: str | None
    total: SlaFigures
    days: list[SlaDayView]

    @classmethod
    def of_group(cls, group: SlaGroup) -> SlaGroupView:
        return cls(
            tier=group.tier,
            model=group.model,
            total=group.total,
            days=[
                SlaDayView(
                    **{name: getattr(day, name) for name in SlaFigures.__struct_fields__},
                    date=day.date,
                    start_time=day.start_at // SECOND,
                    end_time=day.end_at // SECOND,
                )
                for day in group.days
            ],
        )


class SlaView(msgspec.Struct, frozen=True, kw_only=True):
    """The requests within their targets, by tier. `tenant` null: all tenants together. A group keeps its promise
    (`verdict` kept) if `objective` of its requests had their first token within the target, and `objective` of its
    requests with a second token were within the target between tokens. `accuracy`: the largest relative error of
    percentiles. `recorded_since`: the first quarter-hour recorded for any tenant; null: none. `as_of`: requests settled
    until then are counted; null: none was counted yet. Moments in Unix seconds."""

    tenant: str | None
    tenant_id: str | None
    time_zone: str
    start_date: str
    end_date: str
    objective: float
    accuracy: float
    recorded_since: int | None
    as_of: int | None
    data: list[SlaGroupView]
    object: Literal["sla_report"] = "sla_report"

    @classmethod
    def of_report(cls, report: SlaReport, tenant: str | None) -> SlaView:
        """`tenant`: the slug of the report's tenant."""
        return cls(
            tenant=tenant,
            tenant_id=report.tenant_id,
            time_zone=report.time_zone,
            start_date=report.start_date,
            end_date=report.end_date,
            objective=OBJECTIVE,
            accuracy=ACCURACY,
            recorded_since=None if report.recorded_since is None else report.recorded_since // SECOND,
            as_of=report.folded_at // SECOND or None,
            data=[SlaGroupView.of_group(group) for group in report.groups],
        )


def sla_csv(view: SlaView) -> str:
    """A line for each day of each group; an empty field is null. Moments as RFC 3339."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\r\n", extrasaction="ignore")
    writer.writeheader()
    for group in view.data:
        for day in group.days:
            moments = {name: rfc3339(getattr(day, name) * SECOND) for name in ("start_time", "end_time")}
            own = {"tenant": view.tenant, "tier": group.tier, "model": group.model}
            writer.writerow(msgspec.structs.asdict(day) | moments | own)
    return text.getvalue()


def file_name(view: SlaView, suffix: str) -> str:
    """The name of an export, for example sla-acme-2026-01-01-2026-01-31.csv."""
    return f"sla-{view.tenant or 'all'}-{view.start_date}-{view.end_date}.{suffix}"
