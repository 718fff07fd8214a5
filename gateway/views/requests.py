"""How running and finished requests are shown: times in Unix seconds with microseconds, money in picos.

Made from billing's structs without reading a database. They contain no text of prompts or answers.
"""

from __future__ import annotations

import msgspec

from billing.books.history import Hold, LedgerEntry, RequestRow, Status, WholeRequest
from billing.clock import SECOND
from gateway.views.accounts import UsageView
from gateway.views.finance import CorrectionView


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `status` is held while the request runs, and `ended_at` is null. `ending`: how it ended, in one
    word. Measured values are null until it is settled. `ttft_s` and `duration_s`: from its arrival at the gateway to
    its first token and to its end, as in the log and in the tiers' attainment. `queue_s`: its wait in the engine's
    queue. `trace_id`: as in the log, null also for a request without a trace. `asked`: the request's `model`, if an
    alias or a fallback stood between. `adapter_version`: of the adapter that served. For a request that was not
    settled, `started_at` is the time of its hold."""

    request_id: str
    status: Status
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
    started_at: float
    ended_at: float | None
    duration_s: float | None

    @classmethod
    def of(cls, row: RequestRow) -> RequestView:
        fields = msgspec.structs.asdict(row)
        ended_at = None if row.status == "held" else fields["at"] / SECOND
        duration_s = None if row.status == "held" else (row.at - row.started_at) / SECOND
        del fields["at"]
        fields["started_at"] = row.started_at / SECOND
        return cls(**fields, ended_at=ended_at, duration_s=duration_s)


class WindowView(msgspec.Struct, frozen=True):
    """A budget window in which a hold is counted."""

    budget_id: str
    window_start: int


class HoldView(msgspec.Struct, frozen=True, kw_only=True):
    """The amount that was reserved before the engine received the request. `lost_tokens` were reported after the hold
    had expired, and are not billed."""

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
    """A request with its hold, usage, ledger entries and corrections. `usage` null: it was not settled."""

    hold: HoldView
    usage: UsageView | None
    entries: list[EntryView]
    corrections: list[CorrectionView]

    @classmethod
    def of_request(cls, found: WholeRequest) -> WholeRequestView:
        return cls(
            **msgspec.structs.asdict(RequestView.of(found.request)),
            hold=HoldView.of(found.hold),
            usage=None if found.usage is None else UsageView.of(found.usage),
            entries=[EntryView.of(entry) for entry in found.entries],
            corrections=[CorrectionView.of(correction) for correction in found.corrections],
        )
