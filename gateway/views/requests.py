"""How running and finished requests are shown: times in Unix seconds with microseconds, money in picos. They contain no
text of prompts or answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from billing.books import history
from billing.books.history import MEASURED, Hold, LedgerEntry, RequestRow, WholeRequest
from billing.clock import SECOND
from billing.errors import RowNotFound
from gateway.config.settings import TierSection
from gateway.generation.endings import Outcome, outcome_of
from gateway.views import request_errors
from gateway.views.accounts import UsageView
from gateway.views.finance import CorrectionView
from gateway.views.request_errors import ErrorRow
from gateway.views.request_times import SlownessView, slowness

ListedStatus = Literal["held", "settled", "voided", "expired", "refused", "failed"]


class RequestErrorView(msgspec.Struct, frozen=True, kw_only=True):
    """The error that a caller got. `status`: of HTTP; in a stream that had begun, the status of the error. `message`:
    as the caller got it, and `param`: the field at fault; null if they could quote the request. `limit_value`: of the
    limit `limit_name`, in requests, tokens, bytes, or picos of a money budget."""

    status: int
    code: str
    route: str
    param: str | None
    limit_name: str | None
    limit_value: int | None
    message: str | None
    retry_after_s: int | None

    @classmethod
    def of(cls, row: ErrorRow) -> RequestErrorView:
        return cls(**{name: getattr(row, name) for name in cls.__struct_fields__})


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `status` is held while the request runs, and `ended_at` is null. `ending`: how it ended, in one
    word. Measured values are null until it is settled, and `ttft_s` also if no token arrived at the gateway. `ttft_s`
    and `duration_s`: from its arrival at the gateway to its first token and to its end, as in the log, in the tiers'
    attainment and in SLA reports. `queue_s`: its wait in the engine's queue. `trace_id`: as in the log, null also for a
    request without a trace. `asked`: the request's `model`, if an alias or a fallback replaced it. `adapter_version`:
    of the adapter that served. `batch_id`: of the batch whose line it is. For a request with a hold that was not
    settled, `started_at` is the time of its hold. `status` refused or failed: it ended with an `error` before it had a
    hold; `model` is then the name that was asked for, or empty. `outcome`: of a request that has ended; one whose
    client left counts as served."""

    request_id: str
    status: ListedStatus
    outcome: Outcome | None
    ending: str | None
    tenant_id: str
    project_id: str | None
    key_id: str
    model: str
    adapter: str | None
    tier: str
    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int | None
    currency: str | None
    cost_picos: int | None
    queue_s: float | None
    ttft_s: float | None
    device_s: float | None
    preemptions: int | None
    trace_id: str | None
    asked: str | None
    adapter_version: int | None
    batch_id: str | None
    started_at: float
    ended_at: float | None
    duration_s: float | None
    error: RequestErrorView | None

    @classmethod
    def of(cls, row: RequestRow | ErrorRow, error: ErrorRow | None) -> RequestView:
        """`error`: of the row's request, if it has one."""
        if isinstance(row, ErrorRow):
            return cls(**_fields_of_error(row))
        fields = msgspec.structs.asdict(row)
        ended_at = None if row.status == "held" else fields["at"] / SECOND
        duration_s = None if row.status == "held" else (row.at - row.started_at) / SECOND
        del fields["at"]
        fields["started_at"] = row.started_at / SECOND
        fields["outcome"] = None if row.status == "held" else outcome_of(row.ending or "")
        fields["error"] = None if error is None else RequestErrorView.of(error)
        return cls(**fields, ended_at=ended_at, duration_s=duration_s)


def _fields_of_error(row: ErrorRow) -> dict[str, Any]:
    """The fields of a RequestView of a request without a hold."""
    unmeasured = ("ending", "adapter", *MEASURED)
    return dict.fromkeys(unmeasured) | {
        "request_id": row.request_id,
        "status": row.outcome,
        "outcome": row.outcome,
        "tenant_id": row.tenant_id,
        "project_id": row.project_id,
        "key_id": row.key_id,
        "model": row.model or "",
        "tier": row.tier,
        "prompt_tokens": 0,
        "started_at": row.at / SECOND - row.duration_s,
        "ended_at": row.at / SECOND,
        "duration_s": row.duration_s,
        "error": RequestErrorView.of(row),
    }


class WindowView(msgspec.Struct, frozen=True):
    """A budget window in which a hold is counted."""

    budget_id: str
    window_start: int


class HoldView(msgspec.Struct, frozen=True, kw_only=True):
    """The amount that was reserved before the engine received the request. `lost_tokens` were reported after the hold
    had expired, and are not billed. All is empty or 0 for a request that was refused or failed before its hold."""

    gateway_id: str
    price_version_id: str
    max_tokens: int
    hold_picos: int
    settled_picos: int
    lost_tokens: int
    held_at: float
    ended_at: float | None
    windows: list[WindowView]

    @classmethod
    def of(cls, hold: Hold) -> HoldView:
        fields = msgspec.structs.asdict(hold)
        fields["windows"] = [WindowView(budget_id, start // SECOND) for budget_id, start in hold.windows]
        moments = {"held_at": hold.held_at / SECOND}
        return cls(**fields | moments | {"ended_at": None if hold.ended_at is None else hold.ended_at / SECOND})


class EntryView(msgspec.Struct, frozen=True):
    """A ledger entry; the entries of one transaction add up to 0."""

    transaction_id: str
    account: str
    meter: str | None
    amount_picos: int
    currency: str
    recorded_at: float

    @classmethod
    def of(cls, entry: LedgerEntry) -> EntryView:
        return cls(**msgspec.structs.asdict(entry) | {"recorded_at": entry.recorded_at / SECOND})


class WholeRequestView(RequestView, frozen=True, kw_only=True):
    """A request with its hold, usage, ledger entries and corrections. `usage` and `slowness` null: it was not
    settled."""

    hold: HoldView
    usage: UsageView | None
    entries: list[EntryView]
    corrections: list[CorrectionView]
    slowness: SlownessView | None

    @classmethod
    def of_request(
        cls, found: WholeRequest, error: ErrorRow | None, tiers: Mapping[str, TierSection]
    ) -> WholeRequestView:
        """`tiers`: by name, with the targets in force."""
        usage = found.usage
        return cls(
            **_shallow(RequestView.of(found.request, error)),
            hold=HoldView.of(found.hold),
            usage=None if usage is None else UsageView.of(usage),
            entries=[EntryView.of(entry) for entry in found.entries],
            corrections=[CorrectionView.of(correction) for correction in found.corrections],
            slowness=None if usage is None else slowness(usage, tiers.get(usage.tier)),
        )

    @classmethod
    def of_error(cls, row: ErrorRow) -> WholeRequestView:
        """A request without a hold."""
        return cls(**_fields_of_error(row), hold=_no_hold(row), usage=None, entries=[], corrections=[], slowness=None)


def whole_request(connection: sa.Connection, request_id: str, tiers: Mapping[str, TierSection]) -> WholeRequestView:
    """`tiers`: by name, with the targets in force. Raises RowNotFound."""
    error = request_errors.errors_of(connection, [request_id]).get(request_id)
    try:
        found = history.get_whole_request(connection, request_id)
    except RowNotFound:
        if error is None:
            raise
        return WholeRequestView.of_error(error)
    return WholeRequestView.of_request(found, error, tiers)


def _shallow(view: RequestView) -> dict[str, Any]:
    return {name: getattr(view, name) for name in RequestView.__struct_fields__}


def _no_hold(row: ErrorRow) -> HoldView:
    return HoldView(
        gateway_id="",
        price_version_id="",
        max_tokens=0,
        hold_picos=0,
        settled_picos=0,
        lost_tokens=0,
        held_at=row.at / SECOND,
        ended_at=row.at / SECOND,
        windows=[],
    )
