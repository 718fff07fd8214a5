"""How requests are shown that ran or run: moments are Unix seconds with their microseconds, money is picos.

Plain answers made from billing's structs; nothing here reads a database. No text of a prompt or an answer is in them.
"""

from __future__ import annotations

import msgspec

from billing.books.history import Hold, LedgerEntry, RequestRow, Status, WholeRequest
from billing.clock import SECOND
from gateway.views.accounts import UsageView
from gateway.views.finance import CorrectionView


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `status`: held while it runs. `ending`: how it ended, in a word; what is measured is null until it
    is settled. `ended_at` null: it runs. `ttft_s` and `duration_s` are from the request's arrival at the gateway to its
    first token and to its ending, as the log and the tiers' attainment have it; `queue_s` is its wait in the engine's
    queue. Of a request that was not settled `started_at` is the moment of its hold."""

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
    """A budget's window that a hold was counted in."""

    budget_id: str
    window_start: int


class HoldView(msgspec.Struct, frozen=True, kw_only=True):
    """What was reserved before the engine heard of the request. `lost_tokens` were reported after it had expired:
    nobody pays for them."""

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
    """A line of the ledger; the lines of one transaction add up to 0."""

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
    """All that is known of a request. `usage` null: it was not settled."""

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
