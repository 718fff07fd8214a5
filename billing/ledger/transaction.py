"""One database transaction for several requests: first the endings, since they free budget, then the holds and moves
of holds, in the order of their arrival.

All transactions lock in the same order: the gateway's lease, leases of batches' workers by batch, hold rows by id,
templates of budgets by id, budget rows by id. New budgets of end users are inserted between the last two. A request
that is refused or invalid does not affect the other requests of its transaction. This module knows no thread and no
event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from zoneinfo import ZoneInfo

import msgspec
import sqlalchemy as sa

from billing import revision, tables
from billing.accounts import alerts, end_users
from billing.accounts.budget_windows import BudgetWindow, Counters, LockedBudget
from billing.accounts.prices import Meter, PriceBook, PriceVersion, UnitPrices
from billing.bulk import BulkInsert, BulkUpdate, Query, Row, among
from billing.clock import SECOND, Clock
from billing.ledger import leases
from billing.ledger.messages import (
    GATEWAY_DEAD,
    Ending,
    Expire,
    Held,
    HoldEnding,
    HoldMove,
    HoldRefused,
    HoldRequest,
    Settlement,
    Void,
)
from billing.ledger.outputs import OutputFence, outputs_of
from billing.ledger.refusals import affordable_tokens, budget_refusal

_holds = tables.holds
_charges = tables.hold_charges
_usage = tables.usage
_attempts = tables.usage_attempts

_CONTEXT = Query(
    sa.select(
        revision.price_token,
        sa.select(tables.leases.c.expires_at)
        .where(tables.leases.c.gateway_id == sa.bindparam("gateway_id"))
        .scalar_subquery(),
        end_users.any_template,
    )
)
_LOCK_HOLDS = Query(
    sa.select(_holds).where(among(_holds.c.request_id, "request_ids")).order_by(_holds.c.request_id).with_for_update()
)
_READ_CHARGES = Query(
    sa.select(_charges.c.request_id, _charges.c.budget_id, _charges.c.window_start).where(
        among(_charges.c.request_id, "request_ids")
    )
)
_INSERT_HOLDS = BulkInsert(_holds)
_INSERT_CHARGES = BulkInsert(_charges)
_INSERT_USAGE = BulkInsert(tables.usage)
_INSERT_RECOMPUTE = BulkInsert(tables.usage_recompute)
_INSERT_ATTEMPTS = BulkInsert(tables.usage_attempts)
_INSERT_LOST = BulkInsert(tables.lost_attempts)
_INSERT_ENTRIES = BulkInsert(tables.entries)
_MOVED = ("model", "adapter", "tier", "price_version_id", "prompt_tokens", "max_tokens", "hold_picos")
_MOVE_HOLDS = BulkUpdate(_holds, _MOVED, key="request_id")
_END_HOLDS = BulkUpdate(_holds, ("state", "ended_at", "ending", "settled_picos", "lost_tokens"), key="request_id")
HoldResult = Held | HoldRefused | Exception
EndResult = HoldEnding | Exception


class HoldUnknown(LookupError):
    """A settlement or a move of a request that has no hold: a defect of the gateway."""


class HoldEnded(LookupError):
    """The hold to move was settled, voided or expired meanwhile."""


class RequestIdReused(ValueError):
    """A hold for a request id whose hold has ended. A request id is never used again."""


class _Hold(msgspec.Struct):
    """A row of `holds`, in the order of its columns, and `charges`: the budget windows (budget id, start) in which it
    counts."""

    request_id: str
    gateway_id: str
    tenant_id: str
    project_id: str | None
    key_id: str
    model: str
    adapter: str | None
    tier: str
    price_version_id: str
    prompt_tokens: int
    max_tokens: int
    hold_picos: int
    held_at: int
    state: str
    ended_at: int | None = None
    ending: str | None = None
    settled_picos: int = 0
    lost_tokens: int = 0
    tag_set_id: str | None = None
    charges: list[tuple[str, int]] = msgspec.field(default_factory=list)

    @property
    def hold_tokens(self) -> int:
        return self.prompt_tokens + self.max_tokens


class _Grant(msgspec.Struct, frozen=True):
    """A hold that all budgets cover: its completion tokens, its price, and the budget windows in which it counts."""

    max_tokens: int
    version: PriceVersion
    prices: UnitPrices
    charges: list[tuple[str, int]]


class LedgerTransaction:
    """For one database transaction: call `run` once. It writes all rows at its end, in bulk."""

    def __init__(self, gateway_id: str, lease_s: float, clock: Clock, prices: PriceBook) -> None:
        self._gateway_id = gateway_id
        self._lease_s = lease_s
        self._clock = clock
        self._prices = prices
        self._now = 0
        self._counters = Counters()
        self._outputs = OutputFence()
        self._of_end_users: dict[end_users.NamedScopes, list[str]] = {}  # the ids of their budgets
        self._known: dict[str, _Hold] = {}
        self._made: dict[str, _Hold] = {}
        self._moved: dict[str, _Hold] = {}
        self._recharged: list[str] = []  # ids of moved holds whose charges changed
        self._ended: dict[str, _Hold] = {}
        self._usage_rows: list[Row] = []
        self._recompute_rows: list[Row] = []
        self._attempt_rows: list[Row] = []
        self._lost_rows: list[Row] = []
        self._entry_rows: list[Row] = []

    def run(
        self, connection: sa.Connection, holds: Sequence[HoldRequest | HoldMove], endings: Sequence[Ending]
    ) -> tuple[list[HoldResult], list[EndResult]]:
        """Returns the results of `holds` and of `endings`, in their order. A result that is an exception concerns its
        request only."""
        self._now = self._clock(connection)
        [(price_token, lease_expires_at, any_template)] = _CONTEXT.rows(connection, {"gateway_id": self._gateway_id})
        self._prices.refresh(price_token)
        if holds and (lease_expires_at is None or lease_expires_at <= self._now):
            # Renew the lease of a gateway that makes holds: without a valid lease, an audit would expire the holds.
            leases.extend(connection, self._gateway_id, self._lease_s, self._now)
        self._outputs.lock_leases(connection, outputs_of(endings))
        self._lock(connection, holds, endings, per_end_user=bool(any_template))
        end_results = [self._guarded_end(connection, ending) for ending in endings]
        hold_results = [
            self._move(connection, item.request) if isinstance(item, HoldMove) else self._hold(connection, item)
            for item in holds
        ]
        self._write(connection)
        return hold_results, end_results

    def _lock(
        self,
        connection: sa.Connection,
        holds: Sequence[HoldRequest | HoldMove],
        endings: Sequence[Ending],
        *,
        per_end_user: bool,
    ) -> None:
        """`per_end_user`: there are budgets for each end user."""
        request_ids = [item.request_id for item in (*endings, *holds)]
        for row in _LOCK_HOLDS.rows(connection, {"request_ids": request_ids}):
            hold = _Hold(*row)
            self._known[hold.request_id] = hold
        changing = [*endings, *(item for item in holds if isinstance(item, HoldMove))]
        charged = [item.request_id for item in changing if item.request_id in self._known]
        charges: set[tuple[str, int]] = set()
        if charged:
            for request_id, budget_id, start in _READ_CHARGES.rows(connection, {"request_ids": charged}):
                self._known[request_id].charges.append((budget_id, start))
                charges.add((budget_id, start))
        zones: dict[str, ZoneInfo] = {}
        named: dict[end_users.NamedScopes, ZoneInfo] = {}
        for item in holds:
            request = item.request if isinstance(item, HoldMove) else item
            terms = self._prices.terms(connection, request.tenant_id)
            if terms is not None:
                zones.update(dict.fromkeys(request.scope_ids, terms.zone))
                if request.end_user is not None:
                    named[request.scope_ids, request.end_user] = terms.zone
        if per_end_user and named:
            self._of_end_users = end_users.ensure_budgets(connection, named, self._now)
            for pair, budget_ids in self._of_end_users.items():
                zones.update(dict.fromkeys(budget_ids, named[pair]))
        self._counters = Counters.lock(connection, zones, charges, self._now)

    # ---- holds -------------------------------------------------------------------------------------------------

    def _hold(self, connection: sa.Connection, request: HoldRequest) -> HoldResult:
        known = self._known.get(request.request_id)
        if known is not None:  # a repeated call: the answer of the first was lost
            if known.state != "held":
                return RequestIdReused(f"{request.request_id} is {known.state} already")
            return _held(known)
        granted = self._decide(connection, request)
        if isinstance(granted, _Grant):
            hold = self._known[request.request_id] = self._made[request.request_id] = self._new_hold(request, granted)
            self._counters.add_hold(hold.charges, hold.hold_tokens, hold.hold_picos)
            return _held(hold)
        return granted

    def _move(self, connection: sa.Connection, request: HoldRequest) -> HoldResult:
        """Decide the hold again, after its own amounts were released. A refused move leaves the hold unchanged."""
        hold = self._known.get(request.request_id)
        if hold is None:
            return HoldUnknown(f"{request.request_id} cannot be moved: it has no hold")
        if hold.state != "held":
            return HoldEnded(f"{request.request_id} is {hold.state} already")
        if (hold.tenant_id, hold.project_id, hold.key_id) != (request.tenant_id, request.project_id, request.key_id):
            return ValueError(f"{request.request_id} is a hold of another tenant, project or key")
        wanted = (request.model, request.adapter, request.tier, request.prompt_tokens)
        if (hold.model, hold.adapter, hold.tier, hold.prompt_tokens) == wanted:  # a repeated call
            return _held(hold)
        self._counters.release_hold(hold.charges, hold.hold_tokens, hold.hold_picos)
        granted = self._decide(connection, request)
        if isinstance(granted, _Grant):
            moved = self._new_hold(request, granted)
            for name in _MOVED:
                setattr(hold, name, getattr(moved, name))
            if sorted(hold.charges) != sorted(moved.charges):
                hold.charges = moved.charges
                self._recharged.append(hold.request_id)
            if hold.request_id not in self._made:
                self._moved[hold.request_id] = hold
        self._counters.add_hold(hold.charges, hold.hold_tokens, hold.hold_picos)
        return _held(hold) if isinstance(granted, _Grant) else granted

    def _decide(self, connection: sa.Connection, request: HoldRequest) -> _Grant | HoldRefused | Exception:
        terms = self._prices.terms(connection, request.tenant_id)
        if terms is None:
            return LookupError(f"there is no tenant {request.tenant_id!r}")
        currency = terms.currency
        version = self._prices.in_force(connection, request.model, request.adapter, currency, self._now)
        prices = version.tiers.get(request.tier) if version else None
        if version is None or prices is None:
            message = f"Model {request.model!r} has no price in {currency} for tier {request.tier!r}."
            return HoldRefused(request.request_id, "price_unknown", message, None)
        budgets = self._counters.applying_to((*request.scope_ids, *self._budgets_of_end_user(request)))
        max_tokens, refusal = self._afford(request, budgets, prices, currency)
        if refusal is not None:
            if refusal.nothing_left and self._prices.any_free(connection, currency):
                return msgspec.structs.replace(refusal, nothing_left=False)
            return refusal
        return _Grant(max_tokens, version, prices, [(budget.id, window.start) for budget, window in budgets])

    def _budgets_of_end_user(self, request: HoldRequest) -> Sequence[str]:
        return () if request.end_user is None else self._of_end_users.get((request.scope_ids, request.end_user), ())

    def _afford(
        self, request: HoldRequest, budgets: list[tuple[LockedBudget, BudgetWindow]], prices: UnitPrices, currency: str
    ) -> tuple[int, HoldRefused | None]:
        """The completion tokens that all budgets cover; or 0 and the refusal by the budget whose window ends last."""
        granted = request.max_tokens
        blocking: list[tuple[LockedBudget, BudgetWindow]] = []
        for budget, window in budgets:
            affordable = affordable_tokens(budget, window, request, prices)
            if affordable is None:
                continue
            if affordable < request.min_tokens:
                blocking.append((budget, window))
            granted = min(granted, affordable)
        if not blocking:
            return granted, None

        def reset(pair: tuple[LockedBudget, BudgetWindow]) -> float:
            resets_at = self._counters.resets_at(pair[0])
            return float("inf") if resets_at is None else resets_at

        budget, window = max(blocking, key=reset)
        least = request.prompt_tokens + request.min_tokens
        needed = budget.amount(least, prices.most(request.prompt_tokens, request.min_tokens, request.operation))
        return 0, budget_refusal(request, budget, window, needed, currency, self._counters.resets_at(budget))

    def _new_hold(self, request: HoldRequest, granted: _Grant) -> _Hold:
        return _Hold(
            request.request_id,
            self._gateway_id,
            request.tenant_id,
            request.project_id,
            request.key_id,
            request.model,
            request.adapter,
            request.tier,
            granted.version.id,
            request.prompt_tokens,
            granted.max_tokens,
            granted.prices.most(request.prompt_tokens, granted.max_tokens, request.operation),
            self._now,
            "held",
            tag_set_id=request.tag_set_id,
            charges=granted.charges,
        )

    # ---- endings -----------------------------------------------------------------------------------------------

    def _guarded_end(self, connection: sa.Connection, ending: Ending) -> EndResult:
        try:
            return self._end_hold(connection, ending)
        except (AssertionError, LookupError) as error:  # concerns this request only; raised at its waiter
            return error

    def _end_hold(self, connection: sa.Connection, ending: Ending) -> HoldEnding:
        hold = self._known.get(ending.request_id)
        if hold is None:
            if isinstance(ending, Settlement):
                raise HoldUnknown(f"{ending.request_id} cannot be settled: it has no hold")
            return HoldEnding(ending.request_id, "unknown")
        if hold.state != "held":
            return self._repeat(connection, hold, ending)
        output = ending.output if isinstance(ending, Settlement) else None
        if output is not None and not self._outputs.admits(output):
            # The batch worker's lease has expired: the hold ends like the other holds of its gateway.
            self._release(hold, Expire(ending.request_id))
            hold.ended_at = self._now
            return self._repeat(connection, hold, ending)
        if isinstance(ending, Settlement):
            self._settle(connection, hold, ending)
        else:
            self._release(hold, ending)
        if output is not None:
            self._outputs.add_output(hold.request_id, output, self._now)
        hold.ended_at = self._now
        self._ended[hold.request_id] = hold
        return _outcome(hold)

    def _repeat(self, connection: sa.Connection, hold: _Hold, ending: Ending) -> HoldEnding:
        """Answer an ending after the hold's first ending, which counts. If the gateway was taken for dead, tokens of a
        later settlement that the first ending did not count are recorded as lost."""
        if isinstance(ending, Settlement) and hold.ending == GATEWAY_DEAD and not hold.lost_tokens:
            counted, engines = _counted(connection, hold)
            left = hold.lost_tokens = max(0, ending.made_tokens - counted)
            for epoch, made in ending.engines.items():
                if (lost := min(made - engines.get(epoch, 0), left)) > 0:
                    left -= lost
                    self._lost_rows.append((hold.request_id, epoch, lost))
            self._ended[hold.request_id] = hold
        return _outcome(hold)

    def _release(self, hold: _Hold, ending: Void | Expire) -> None:
        self._counters.release_hold(hold.charges, hold.hold_tokens, hold.hold_picos)
        hold.state = "expired" if isinstance(ending, Expire) else "voided"
        hold.ending = GATEWAY_DEAD if isinstance(ending, Expire) else ending.reason

    def _settle(self, connection: sa.Connection, hold: _Hold, settlement: Settlement) -> None:
        assert settlement.prompt_tokens <= hold.prompt_tokens, "settled more prompt tokens than were held"
        assert settlement.completion_tokens <= hold.max_tokens, "settled more completion tokens than were held"
        version = self._prices.version(connection, hold.price_version_id)
        prices = version.tiers[hold.tier]
        by_meter = _by_meter(settlement, prices)
        cost = sum(by_meter.values())
        assert cost <= hold.hold_picos, "settled more than was held"
        self._counters.release_hold(hold.charges, hold.hold_tokens, hold.hold_picos)
        self._counters.post(hold.charges, settlement.prompt_tokens + settlement.completion_tokens, cost)
        hold.state, hold.ending, hold.settled_picos = "settled", settlement.ending, cost
        self._record_usage(hold, settlement, version.currency)
        self._record_entries(hold, version.currency, by_meter)

    def _record_usage(self, hold: _Hold, settlement: Settlement, currency: str) -> None:
        row = msgspec.structs.asdict(hold) | msgspec.structs.asdict(settlement)
        finished_at = self._now if settlement.finished_at is None else settlement.finished_at
        if settlement.age_s is None:
            started_at = hold.held_at - round(settlement.before_hold_s * SECOND)
        else:  # the duration is the gateway's: `held_at` omits the wait for the hold's transaction, `ttft_s` has it
            started_at = finished_at - round(settlement.age_s * SECOND)
        newest = next(reversed(settlement.engines), None)
        row.update(currency=currency, cost_picos=hold.settled_picos, engine_epoch=newest)
        row.update(started_at=started_at, finished_at=finished_at)
        queue_device_s = settlement.queue_device_s
        row.update(queue_device_s=msgspec.json.encode(queue_device_s).decode() if queue_device_s else None)
        self._usage_rows.append([row[name] for name in _INSERT_USAGE.columns])
        self._recompute_rows += [
            (hold.request_id, tier, cost.tokens, cost.device_s) for tier, cost in settlement.recomputed.items()
        ]
        self._attempt_rows += [
            (hold.request_id, epoch, made) for epoch, made in settlement.engines.items() if made and epoch != newest
        ]

    def _record_entries(self, hold: _Hold, currency: str, by_meter: dict[Meter, int]) -> None:
        amounts: list[tuple[str, str | None, int]] = [("receivable", None, hold.settled_picos)]
        amounts += [("revenue", meter, -picos) for meter, picos in by_meter.items()]
        assert sum(amount for _account, _meter, amount in amounts) == 0
        self._entry_rows += [
            (hold.request_id, hold.tenant_id, account, meter, amount, currency, self._now)
            for account, meter, amount in amounts
            if amount
        ]

    # ---- rows --------------------------------------------------------------------------------------------------

    def _write(self, connection: sa.Connection) -> None:
        made = self._made.values()
        _INSERT_HOLDS.run(
            connection, [msgspec.structs.astuple(hold)[:-1] for hold in made]
        )  # without `charges`, the last field
        _INSERT_CHARGES.run(connection, [(hold.request_id, *charge) for hold in made for charge in hold.charges])
        self._write_moved(connection)
        _END_HOLDS.run(
            connection,
            [
                (hold.state, hold.ended_at, hold.ending, hold.settled_picos, hold.lost_tokens, hold.request_id)
                for hold in self._ended.values()
            ],
        )
        _INSERT_USAGE.run(connection, self._usage_rows)
        _INSERT_RECOMPUTE.run(connection, self._recompute_rows)
        _INSERT_ATTEMPTS.run(connection, self._attempt_rows)
        _INSERT_LOST.run(connection, self._lost_rows)
        _INSERT_ENTRIES.run(connection, self._entry_rows)
        self._outputs.write(connection)
        crossings = self._counters.cross()
        self._counters.write(connection)
        if crossings:
            alerts.record_alerts(connection, crossings, self._now)

    def _write_moved(self, connection: sa.Connection) -> None:
        moved = self._moved.values()
        _MOVE_HOLDS.run(connection, [[getattr(hold, name) for name in (*_MOVED, "request_id")] for hold in moved])
        recharged = [self._moved[request_id] for request_id in self._recharged if request_id in self._moved]
        if recharged:  # a window ended meanwhile, or a budget was added or removed
            old_charges = _charges.c.request_id.in_([hold.request_id for hold in recharged])
            connection.execute(sa.delete(_charges).where(old_charges))
            rows = [(hold.request_id, *charge) for hold in recharged for charge in hold.charges]
            _INSERT_CHARGES.run(connection, rows)


def _by_meter(settlement: Settlement, prices: UnitPrices) -> dict[Meter, int]:
    """The cost in picos by meter."""
    if settlement.operation == "embedding":
        return {"embedding": settlement.prompt_tokens * prices.embedding}
    return {
        "input": (settlement.prompt_tokens - settlement.cached_tokens) * prices.input,
        "cached_input": settlement.cached_tokens * prices.cached_input,
        "output": settlement.completion_tokens * prices.output,
    }


def _held(hold: _Hold) -> Held:
    return Held(hold.request_id, hold.max_tokens, hold.hold_picos, hold.price_version_id)


def _counted(connection: sa.Connection, hold: _Hold) -> tuple[int, dict[str, int]]:
    """The made tokens of the usage row of a hold that was settled with its checkpoint; and these by engine epoch."""
    if hold.state != "settled":
        return 0, {}
    row = sa.select(_usage.c.made_tokens, _usage.c.engine_epoch).where(_usage.c.request_id == hold.request_id)
    others = sa.select(_attempts.c.epoch, _attempts.c.made_tokens).where(_attempts.c.request_id == hold.request_id)
    counted, newest = connection.execute(row).one()
    engines = {epoch: int(made) for epoch, made in connection.execute(others)}
    if newest is not None:
        engines[newest] = counted - sum(engines.values())
    return counted, engines


def _outcome(hold: _Hold) -> HoldEnding:
    assert hold.state in ("settled", "voided", "expired")
    return HoldEnding(hold.request_id, hold.state, hold.settled_picos)  # type: ignore[arg-type]
