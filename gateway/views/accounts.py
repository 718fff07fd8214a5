"""How tenants, keys, prices, budgets, alerts and exports are shown, over HTTP and by `--json`: times in whole Unix
seconds, money in picos.

Made from billing's structs without reading a database. Only NewKeyView contains the secret of a key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

import msgspec

from billing.accounts.alerts import Alert, Delivery
from billing.accounts.budgets import BudgetState
from billing.accounts.end_users import EndUserState
from billing.accounts.prices import PriceVersion, UnitPrices
from billing.accounts.tenants import Project, Tenant
from billing.accounts.webhooks import MadeWebhook, Webhook
from billing.books.projections import Projection
from billing.books.usage import UsageRow
from billing.clock import SECOND
from billing.exports.jobs import ExportJob
from billing.proofs.ledger_audit import LedgerAudit
from engine.protocol.frames import StatusReport
from gateway.access.audit_log import AuditLine
from gateway.access.keys import Key, MadeKey
from gateway.catalog.adapters import Adapter, Version

Source = TypeVar("Source")
Item = TypeVar("Item")


def _moments(created_at: int, archived_at: int | None) -> dict[str, int | None]:
    """Microseconds as Unix seconds."""
    return {"created_at": created_at // SECOND, "archived_at": None if archived_at is None else archived_at // SECOND}


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    slug: str
    name: str
    tier: str
    currency: str
    status: Literal["active", "suspended"]
    default_max_tokens: int | None
    share_weight: float
    time_zone: str
    cheapest: bool
    store_responses_s: int | None
    allowed_ips: list[str] | None
    on_budget: Literal["wait", "fail"] | None
    created_at: int
    archived_at: int | None

    @classmethod
    def of(cls, tenant: Tenant) -> TenantView:
        return cls(**msgspec.structs.asdict(tenant) | _moments(tenant.created_at, tenant.archived_at))


class ProjectView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tenant_id: str
    name: str
    default_max_tokens: int | None
    created_at: int
    archived_at: int | None

    @classmethod
    def of(cls, project: Project) -> ProjectView:
        return cls(**msgspec.structs.asdict(project) | _moments(project.created_at, project.archived_at))


class NewKeyView(Key, frozen=True, kw_only=True):
    """A new key with its secret, which is never shown again."""

    secret: str

    @classmethod
    def of(cls, made: MadeKey) -> NewKeyView:
        return cls(**msgspec.structs.asdict(made.key), secret=made.secret)


class PriceView(msgspec.Struct, frozen=True, kw_only=True):
    """`tiers`: picos per token of each meter, with the tier's multiplier applied."""

    id: str
    subject_kind: Literal["model", "adapter"]
    subject: str
    currency: str
    effective_from: int
    created_at: int
    tiers: dict[str, UnitPrices]

    @classmethod
    def of(cls, version: PriceVersion) -> PriceView:
        moments = {name: getattr(version, name) // SECOND for name in ("effective_from", "created_at")}
        return cls(**msgspec.structs.asdict(version) | moments)


class BudgetView(msgspec.Struct, frozen=True, kw_only=True):
    """A budget in its present window. `limit_amount`, `used`, `held` and `left` are tokens or picos, by `unit`;
    `thresholds` are percentages at which an alert is raised. A soft budget refuses nothing. With `per_end_user` the
    limit is that of each end user that requests name: `end_users` is their number, `end_users_near` the number above 80
    percent of the limit, and nothing is used or held."""

    id: str
    tenant_id: str
    scope: Literal["tenant", "project", "key"]
    scope_id: str
    unit: Literal["tokens", "money"]
    period: Literal["day", "month", "total"]
    kind: Literal["hard", "soft"]
    thresholds: tuple[int, ...]
    limit_amount: int
    used: int
    held: int
    left: int
    resets_at: int | None
    created_at: int
    per_end_user: bool
    end_users: int | None
    end_users_near: int | None

    @classmethod
    def of(cls, state: BudgetState) -> BudgetView:
        budget = state.budget
        return cls(
            id=budget.id,
            tenant_id=budget.tenant_id,
            scope=budget.scope,
            scope_id=budget.scope_id,
            unit=budget.unit,
            period=budget.period,
            kind=budget.kind,
            thresholds=budget.thresholds,
            limit_amount=budget.limit_amount,
            used=state.used,
            held=state.held,
            left=state.left,
            resets_at=None if state.resets_at is None else state.resets_at // SECOND,
            created_at=budget.created_at // SECOND,
            per_end_user=budget.per_end_user,
            end_users=state.end_users,
            end_users_near=state.end_users_near,
        )


class EndUserView(msgspec.Struct, frozen=True, kw_only=True):
    """The budget of one end user in its present window, in tokens or picos. The end user's name is not stored.
    `shared`: by all end users beyond the limit of end users."""

    id: str
    limit_amount: int
    used: int
    held: int
    left: int
    resets_at: int | None
    created_at: int
    shared: bool

    @classmethod
    def of(cls, state: EndUserState) -> EndUserView:
        moments = {
            "created_at": state.created_at // SECOND,
            "resets_at": None if state.resets_at is None else state.resets_at // SECOND,
        }
        return cls(**msgspec.structs.asdict(state) | moments, left=state.left)


class ListedBudgetView(BudgetView, frozen=True, kw_only=True):
    """A budget with its projection at the average rate of the last seven days: `projected` is the use at the end of its
    window, `run_out_at` when the budget is used up (null: not in this window). `projected` is null for a window without
    end; for a budget per end user both are null. `posted` is the settled amount, as `used`."""

    posted: int
    projected: int | None
    run_out_at: int | None

    @classmethod
    def projecting(cls, state: BudgetState, projection: Projection) -> ListedBudgetView:
        if state.budget.per_end_user:  # the rate of all end users together
            projection = Projection(None, None)
        return cls(
            **msgspec.structs.asdict(BudgetView.of(state)),
            posted=state.used,
            projected=projection.at_end,
            run_out_at=None if projection.run_out_at is None else projection.run_out_at // SECOND,
        )


class WebhookView(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook for the alerts of one tenant, or of all (`tenant_id` null). `format`: laneway, slack or pagerduty.
    `events`: budgets, problems or both. `active` false: it is paused. `url`: only the host for a role that may
    not write webhooks, because paths and queries of chat services are credentials."""

    id: str
    tenant_id: str | None
    url: str
    format: str
    events: list[str]
    active: bool
    created_at: int

    @classmethod
    def of(cls, webhook: Webhook) -> WebhookView:
        return cls(
            id=webhook.id,
            tenant_id=webhook.tenant_id,
            url=webhook.url,
            format=webhook.format,
            events=webhook.events,
            active=webhook.active and not webhook.paused,
            created_at=webhook.created_at // SECOND,
        )


class NewWebhookView(WebhookView, frozen=True, kw_only=True):
    """A new webhook with the secret that signs its deliveries, which is never shown again."""

    secret: str

    @classmethod
    def made(cls, made: MadeWebhook) -> NewWebhookView:
        return cls(**msgspec.structs.asdict(WebhookView.of(made.webhook)), secret=made.secret)


class DeliveryView(msgspec.Struct, frozen=True, kw_only=True):
    """The delivery of an alert to one webhook, after `attempts` attempts."""

    webhook_id: str
    state: Literal["pending", "delivered", "failed"]
    attempts: int
    next_attempt_at: int | None
    delivered_at: int | None
    last_error: str | None

    @classmethod
    def of(cls, delivery: Delivery) -> DeliveryView:
        fields = msgspec.structs.asdict(delivery)
        del fields["alert_id"]
        for name in ("next_attempt_at", "delivered_at"):
            fields[name] = None if fields[name] is None else fields[name] // SECOND
        return cls(**fields)


class AlertView(msgspec.Struct, frozen=True, kw_only=True):
    """A budget whose use reached `threshold` percent of its limit in the window that began at `window_start`. The
    same object is what a webhook gets as `data`, without its deliveries."""

    id: str
    tenant_id: str
    budget_id: str
    scope: Literal["tenant", "project", "key"]
    scope_id: str
    unit: Literal["tokens", "money"]
    period: Literal["day", "month", "total"]
    kind: Literal["hard", "soft"]
    window_start: int
    threshold: int
    limit_amount: int
    used: int
    crossed_at: int

    @classmethod
    def of(cls, alert: Alert) -> AlertView:
        fields = msgspec.structs.asdict(alert)
        del fields["sequence"]
        return cls(**fields | {name: fields[name] // SECOND for name in ("window_start", "crossed_at")})


class ListedAlertView(AlertView, frozen=True, kw_only=True):
    """An alert and its deliveries."""

    deliveries: list[DeliveryView]

    @classmethod
    def with_deliveries(cls, alert: Alert, deliveries: Sequence[Delivery]) -> ListedAlertView:
        shown = [DeliveryView.of(delivery) for delivery in deliveries]
        return cls(**msgspec.structs.asdict(AlertView.of(alert)), deliveries=shown)


class AuditLineView(msgspec.Struct, frozen=True, kw_only=True):
    """One administrative write: its actor (the id of a key or a person, or cli:USER), its action, and the object before
    and after. `actor_name`: of a person or a key. `object_name`: of a tenant, project, key or adapter. `tenant_id`: the
    tenant that owns the object; null: the operator."""

    id: int
    at: int
    actor: str
    actor_name: str | None
    action: str
    object_id: str
    object_name: str | None
    tenant_id: str | None
    request_id: str | None
    before: Any
    after: Any

    @classmethod
    def of(cls, line: AuditLine, names: Mapping[str, str]) -> AuditLineView:
        """`names` by id, as `names.known_names` has them."""
        named = {
            "at": line.at // SECOND,
            "actor_name": line.actor_name or names.get(line.actor),
            "object_name": names.get(line.object_id),
        }
        return cls(**msgspec.structs.asdict(line) | named)


class UsageView(UsageRow, frozen=True):
    """One settled request; `started_at` and `finished_at` in whole Unix seconds, `duration_s` exactly between them.
    `ttft_s` and `duration_s` are from the request's arrival at the gateway; `ttft_s` 0: no token arrived there."""

    duration_s: float

    @classmethod
    def of(cls, row: UsageRow) -> UsageView:
        moments = {name: getattr(row, name) // SECOND for name in ("started_at", "finished_at")}
        duration_s = (row.finished_at - row.started_at) / SECOND
        return cls(**msgspec.structs.asdict(row) | moments, duration_s=duration_s)


class AddedAdapterView(Adapter, frozen=True, kw_only=True):
    """An adapter, and the version that was `added` to it. `version` is the served one."""

    added: Version

    @classmethod
    def of(cls, made: tuple[Adapter, Version]) -> AddedAdapterView:
        return cls(**msgspec.structs.asdict(made[0]), added=made[1])


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """Imbalances in the ledger. `sound` is false only for findings that are faults at any moment."""

    sound: bool
    findings: LedgerAudit

    @classmethod
    def of(cls, findings: LedgerAudit) -> AuditView:
        return cls(sound=findings.sound, findings=findings)


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    epoch: str
    step: int
    running: int
    waiting: dict[str, int]
    pages_total: int
    pages_free: int
    pages_cached: int
    pages_adapters: int
    adapters_resident: list[str]
    tokens_made: int
    tokens_overrun: int
    tokens_lost: int

    @classmethod
    def of(cls, report: StatusReport) -> EngineView:
        return cls(**{name: getattr(report, name) for name in cls.__struct_fields__})


class Page(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """`next_page`: the `page` parameter of the next request; null on the last page."""

    data: list[Item]
    has_more: bool
    next_page: str | None
    object: Literal["page"] = "page"


def make_page(
    items: Sequence[Source], limit: int, view: Callable[[Source], Item], cursor: Callable[[Source], str]
) -> Page[Item]:
    """A page of the first `limit` of `items`. The query reads one item more, to know whether a next page exists."""
    shown = items[:limit]
    has_more = len(items) > limit
    return Page(data=[view(one) for one in shown], has_more=has_more, next_page=cursor(shown[-1]) if has_more else None)


class ExportView(msgspec.Struct, frozen=True, kw_only=True):
    """An export. `progress` from 0 to 1; `rows`: those written so far. `host`: the host that has its file."""

    id: str
    tenant_id: str | None
    month: str
    kind: Literal["focus", "events"]
    format: Literal["csv", "parquet", "jsonl"]
    state: Literal["queued", "running", "done", "failed", "cancelled", "removed"]
    progress: float
    rows: int
    attempts: int
    host: str | None
    file: str | None
    size_bytes: int | None
    sha256: str | None
    error: str | None
    actor: str
    created_at: int
    started_at: int | None
    finished_at: int | None

    @classmethod
    def of(cls, job: ExportJob) -> ExportView:
        fields = {name: getattr(job, name) for name in cls.__struct_fields__ if name != "progress"}
        for name in ("created_at", "started_at", "finished_at"):
            fields[name] = None if fields[name] is None else fields[name] // SECOND
        done = 1.0 if job.state in ("done", "removed") else job.read_rows / job.all_rows if job.all_rows else 0.0
        return cls(**fields, progress=round(done, 4))
