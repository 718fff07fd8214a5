"""Billing's tables, and the metadata of all of Laneway's tables. This module does not know the code that writes them.

Moments are integer microseconds UTC (`…_at`, `…_from`, `…_start`), money is integer picos, ids are prefixed strings.
Triggers in the migrations refuse changes to rows of the tables in APPEND_ONLY.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite generates values only for an INTEGER PRIMARY KEY, which has 64 bits in SQLite too.
Sequence = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

APPEND_ONLY = (
    "entries",
    "usage",
    "usage_recompute",
    "usage_attempts",
    "price_versions",
    "unit_prices",
    "audit_log",
    "audit_checkpoints",
    "erasures",
    "corrections",
    "invoices",
    "invoice_lines",
    "documents",
    "payments",
)
# The value in the roll-ups' keys in place of null, since a null is not equal to another null.
NONE = ""

revision = sa.Table(
    "revision",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    # The number of the writes counted in `number` that concern no price. The ledger reloads prices when
    # `number` − `unpriced` grows.
    sa.Column("unpriced", sa.BigInteger, nullable=False, server_default=sa.text("0")),
)

# The rows that the latest administrative writes concern (billing/revision.py).
revision_log = sa.Table(
    "revision_log",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("tenant_id", sa.String(64)),
)

tenants = sa.Table(
    "tenants",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("slug", sa.String(63), nullable=False, unique=True),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("tier", sa.String(32), nullable=False),
    sa.Column("currency", sa.String(3), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("default_max_tokens", sa.BigInteger),
    # While two shares of a tier wait, a share of weight 2 is served twice as much as a share of weight 1.
    sa.Column("share_weight", sa.Double, nullable=False, server_default=sa.text("1.0")),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("time_zone", sa.String(64), nullable=False, server_default="UTC"),  # IANA; of budgets' days and months
    # Aliases that allow it choose the cheapest model that can serve a request.
    sa.Column("cheapest", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("store_responses_s", sa.BigInteger, nullable=True),  # how long responses are stored; null: not at all
    # Networks from which its keys may be used, a list of texts; null: all.
    sa.Column("allowed_ips", sa.JSON(none_as_null=True), nullable=True),
    # Handling of batch lines that no budget covers: wait, fail; null: the value of laneway.toml.
    sa.Column("on_budget", sa.String(8), nullable=True),
    sa.Column("archived_at", sa.BigInteger, nullable=True),  # null: it is not archived; an archived one is suspended
    sa.CheckConstraint("status IN ('active', 'suspended')", name="status"),
)

projects = sa.Table(
    "projects",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("default_max_tokens", sa.BigInteger),
    sa.Column("archived_at", sa.BigInteger, nullable=True),  # null: it is not archived; an archived one has no keys
    sa.UniqueConstraint("tenant_id", "name"),
)

price_versions = sa.Table(
    "price_versions",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("subject_kind", sa.String(16), nullable=False),
    sa.Column("subject", sa.String(200), nullable=False),  # the model's name, or the adapter's id
    sa.Column("currency", sa.String(3), nullable=False),
    sa.Column("effective_from", sa.BigInteger, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.UniqueConstraint("subject_kind", "subject", "currency", "effective_from"),
    sa.CheckConstraint("subject_kind IN ('model', 'adapter')", name="subject_kind"),
)

unit_prices = sa.Table(
    "unit_prices",
    metadata,
    sa.Column("price_version_id", sa.ForeignKey("price_versions.id"), primary_key=True),
    sa.Column("tier", sa.String(32), primary_key=True),
    sa.Column("meter", sa.String(32), primary_key=True),
    sa.Column("picos", sa.BigInteger, nullable=False),  # per token, the tier's multiplier already applied
    sa.CheckConstraint("picos >= 0", name="picos"),
)

budgets = sa.Table(
    "budgets",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False, index=True),
    sa.Column("scope", sa.String(16), nullable=False),
    sa.Column("scope_id", sa.String(64), nullable=False, index=True),  # the id of a tenant, a project or a key
    sa.Column("unit", sa.String(16), nullable=False),
    sa.Column("period", sa.String(16), nullable=False),
    sa.Column("limit_amount", sa.BigInteger, nullable=False),  # tokens or picos, by unit
    sa.Column("active", sa.Boolean, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False, server_default="hard"),
    sa.Column("thresholds", sa.String(64)),  # percentages: "50,80,100"; null: none
    # Of a rotated key: the first key of its chain of rotations. All keys of the chain count in this budget.
    sa.Column("first_key_id", sa.String(64), index=True),
    # A template: it counts nothing itself, and each end user has a budget made from it (billing.accounts.end_users).
    sa.Column("per_end_user", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("template_id", sa.String(64), index=True),  # of the budget of an end user
    # Of the budget of an end user: the digest of the end user's name. Of a template: the salt of its budgets' ids.
    sa.Column("end_user", sa.String(64)),
    sa.CheckConstraint("scope IN ('tenant', 'project', 'key')", name="scope"),
    sa.CheckConstraint("kind IN ('hard', 'soft')", name="kind"),
    sa.CheckConstraint("unit IN ('tokens', 'money')", name="unit"),
    sa.CheckConstraint("period IN ('day', 'month', 'total')", name="period"),
    sa.CheckConstraint("limit_amount >= 0", name="limit_amount"),
)

sa.Index(
    "ix_budgets_templates",
    budgets.c.per_end_user,
    sqlite_where=budgets.c.per_end_user,
    postgresql_where=budgets.c.per_end_user,
)

# Changed only by transactions that have locked the row of `budgets`.
budget_windows = sa.Table(
    "budget_windows",
    metadata,
    sa.Column("budget_id", sa.ForeignKey("budgets.id"), primary_key=True),
    sa.Column("window_start", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("held", sa.BigInteger, nullable=False),
    sa.Column("posted", sa.BigInteger, nullable=False),
    sa.Column("alerted", sa.Integer, nullable=False, server_default="0"),  # the highest threshold that was alerted
    # Held and posted amount when the limit was lowered below it: up to this amount the window is not overshot.
    sa.Column("excused", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.CheckConstraint("held >= 0", name="held"),
    sa.CheckConstraint("posted >= 0", name="posted"),
)

# One row for each threshold that a window crossed, written with the counters.
alerts = sa.Table(
    "alerts",
    metadata,
    sa.Column("sequence", Sequence, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String(64), nullable=False, unique=True),
    sa.Column("tenant_id", sa.String(64), nullable=False),
    sa.Column("budget_id", sa.ForeignKey("budgets.id"), nullable=False),
    sa.Column("window_start", sa.BigInteger, nullable=False),
    sa.Column("threshold", sa.Integer, nullable=False),  # a percentage
    sa.Column("limit_amount", sa.BigInteger, nullable=False),  # as it was
    sa.Column("used", sa.BigInteger, nullable=False),
    sa.Column("crossed_at", sa.BigInteger, nullable=False),
    sa.UniqueConstraint("budget_id", "window_start", "threshold"),
    sa.Index("ix_alerts_tenant_id_sequence", "tenant_id", "sequence"),
    sqlite_autoincrement=True,
)

webhooks = sa.Table(
    "webhooks",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("tenant_id", sa.ForeignKey("tenants.id")),  # null: alerts of all tenants
    sa.Column("url", sa.String(2048), nullable=False),
    sa.Column("secret", sa.String(64), nullable=False),  # signs deliveries, so it is not hashed; never shown
    sa.Column("active", sa.Boolean, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("format", sa.String(16), nullable=False, server_default="laneway"),  # laneway, slack, pagerduty
    sa.Column("events", sa.JSON, nullable=False, server_default=sa.text("'[\"budgets\"]'")),  # webhooks.EVENTS
    sa.Column("routing_key", sa.LargeBinary),  # of pagerduty, encrypted: gateway.access.routing_keys
    sa.Column("paused", sa.Boolean, nullable=False, server_default=sa.false()),  # it gets no new events
)

# The outbox: one row for each alert and webhook, written with the alert.
alert_deliveries = sa.Table(
    "alert_deliveries",
    metadata,
    sa.Column("alert_id", sa.ForeignKey("alerts.id"), primary_key=True),
    sa.Column("webhook_id", sa.ForeignKey("webhooks.id"), primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("next_attempt_at", sa.BigInteger),  # while pending
    sa.Column("delivered_at", sa.BigInteger),
    sa.Column("last_error", sa.String(200)),
    sa.CheckConstraint("state IN ('pending', 'delivered', 'failed')", name="state"),
)
sa.Index(
    "ix_alert_deliveries_pending",
    alert_deliveries.c.next_attempt_at,
    sqlite_where=alert_deliveries.c.state == "pending",
    postgresql_where=alert_deliveries.c.state == "pending",
)

# The tags of tag sets. A set is never changed (billing/accounts/tags.py).
tag_sets = sa.Table(
    "tag_sets",
    metadata,
    sa.Column("tag_set_id", sa.String(64), primary_key=True),  # tag_…
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("value", sa.String(256), nullable=False),
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    sa.Index("ix_tag_sets_tenant_id_name", "tenant_id", "name"),
)

holds = sa.Table(
    "holds",
    metadata,
    sa.Column("request_id", sa.String(64), primary_key=True),
    sa.Column("gateway_id", sa.String(64), nullable=False),
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("project_id", sa.String(64)),
    sa.Column("key_id", sa.String(64), nullable=False),
    sa.Column("model", sa.String(200), nullable=False),
    sa.Column("adapter", sa.String(200)),
    sa.Column("tier", sa.String(32), nullable=False),
    sa.Column("price_version_id", sa.ForeignKey("price_versions.id"), nullable=False),
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
    sa.Column("max_tokens", sa.BigInteger, nullable=False),  # the grant
    sa.Column("hold_picos", sa.BigInteger, nullable=False),
    sa.Column("held_at", sa.BigInteger, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("ended_at", sa.BigInteger),
    sa.Column("ending", sa.String(64)),  # stop, length, client_left, refused, …
    sa.Column("settled_picos", sa.BigInteger, nullable=False),
    sa.Column("lost_tokens", sa.BigInteger, nullable=False),  # of a settlement after the hold had expired; not charged
    sa.Column("tag_set_id", sa.String(64)),  # the key's tags when the hold was made; null: none
    sa.CheckConstraint("state IN ('held', 'settled', 'voided', 'expired')", name="state"),
    sa.CheckConstraint("settled_picos <= hold_picos", name="settled_picos"),
)
# Usage so far of requests in flight whose tokens can already be read: billing.ledger.checkpoints.
checkpoints = sa.Table(
    "checkpoints",
    metadata,
    sa.Column("request_id", sa.String(64), primary_key=True),
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
    sa.Column("cached_tokens", sa.BigInteger, nullable=False),  # of the prompt's
    sa.Column("completion_tokens", sa.BigInteger, nullable=False),
    sa.Column("engines", sa.Text),  # tokens made by engine epoch, as JSON; null: a version without this column
)

# The tokens of `holds.lost_tokens`, by the engine process that made them.
lost_attempts = sa.Table(
    "lost_attempts",
    metadata,
    sa.Column("request_id", sa.ForeignKey("holds.request_id"), primary_key=True),
    sa.Column("epoch", sa.String(64), primary_key=True),
    sa.Column("lost_tokens", sa.BigInteger, nullable=False),
)

sa.Index(
    "ix_holds_open",
    holds.c.gateway_id,
    sqlite_where=holds.c.state == "held",
    postgresql_where=holds.c.state == "held",
)

sa.Index(
    "ix_holds_lost",
    holds.c.lost_tokens,
    sqlite_where=holds.c.lost_tokens > 0,
    postgresql_where=holds.c.lost_tokens > 0,
)

# Holds that ended unsettled. SQLite uses a partial index only if the query has the index's own expression, so both use
# this OR.
UNSETTLED = sa.or_(holds.c.state == "voided", holds.c.state == "expired")
sa.Index("ix_holds_unsettled", holds.c.ended_at, sqlite_where=UNSETTLED, postgresql_where=UNSETTLED)
sa.Index(
    "ix_holds_expired",
    holds.c.ended_at,
    sqlite_where=holds.c.state == "expired",
    postgresql_where=holds.c.state == "expired",
)

# The windows in which each hold counts. Its settlement is posted there, even if the window has ended.
hold_charges = sa.Table(
    "hold_charges",
    metadata,
    sa.Column("request_id", sa.ForeignKey("holds.request_id"), primary_key=True),
    sa.Column("budget_id", sa.String(64), primary_key=True),  # the window's row has the foreign key
    sa.Column("window_start", sa.BigInteger, nullable=False),
)

usage = sa.Table(
    "usage",
    metadata,
    sa.Column("sequence", Sequence, primary_key=True, autoincrement=True),
    sa.Column("request_id", sa.ForeignKey("holds.request_id"), nullable=False, unique=True),
    sa.Column("tenant_id", sa.String(64), nullable=False),
    sa.Column("project_id", sa.String(64)),
    sa.Column("key_id", sa.String(64), nullable=False),
    sa.Column("model", sa.String(200), nullable=False),
    sa.Column("adapter", sa.String(200)),
    sa.Column("tier", sa.String(32), nullable=False),
    sa.Column("price_version_id", sa.String(64), nullable=False),
    sa.Column("currency", sa.String(3), nullable=False),
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
    sa.Column("cached_tokens", sa.BigInteger, nullable=False),
    sa.Column("completion_tokens", sa.BigInteger, nullable=False),  # billed
    sa.Column("made_tokens", sa.BigInteger, nullable=False),
    sa.Column("discarded_tokens", sa.BigInteger, nullable=False),
    sa.Column("discard_reason", sa.String(64)),
    sa.Column("cost_picos", sa.BigInteger, nullable=False),
    sa.Column("ending", sa.String(64), nullable=False),
    sa.Column("queue_s", sa.Double, nullable=False),
    sa.Column("ttft_s", sa.Double, nullable=False),
    sa.Column("device_s", sa.Double, nullable=False),  # without the seconds in usage_recompute
    sa.Column("preemptions", sa.BigInteger, nullable=False),
    sa.Column("recomputed_tokens", sa.BigInteger, nullable=False),
    sa.Column("swapped_tokens", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("started_at", sa.BigInteger, nullable=False),
    sa.Column("finished_at", sa.BigInteger, nullable=False),
    # The engine process that made the tokens; if several did, the process of the newest attempt, and usage_attempts has
    # the tokens of the other processes. Null: no engine ran, or a version without this column settled the request.
    sa.Column("engine_epoch", sa.String(64)),
    sa.Column("trace_id", sa.String(32)),  # hexadecimal; null: the request has no trace
    sa.Column("tag_set_id", sa.String(64)),  # of its hold
    # The targets in force at its first token, the mean time between its tokens and the longest (books/sla.py). Null:
    # not measured.
    *(sa.Column(name, sa.Double) for name in ("ttft_target_s", "itl_target_s", "itl_s", "pause_s")),
    # Seconds from the request's arrival until an engine received it; the part of them before the engine had the
    # adapter; and the seconds until the model's weights are resident, as the engine predicted then (0: they were
    # resident). Null: unknown, or settled by a version without these columns; load_s is also null without an adapter.
    *(sa.Column(name, sa.Double) for name in ("submitted_s", "load_s", "weights_s")),
    sa.Column("asked", sa.String(128)),  # the request's model, if an alias or a fallback replaced it; null: neither
    sa.Column("adapter_version", sa.Integer),  # null: no adapter, or settled by a version without this column
    sa.Column("operation", sa.String(16), nullable=False, server_default="text"),  # or "embedding"
    sa.Column("batch_id", sa.String(64)),  # null: no line of a batch
    # Of queue_s, the seconds in which the device computed for other requests, by their tier. Null: the device
    # computed for no other request, or a version without this column settled the request.
    sa.Column("queue_device_s", sa.JSON(none_as_null=True)),
    sa.Index("ix_usage_tenant_id_sequence", "tenant_id", "sequence"),
    sa.Index("ix_usage_key_id_sequence", "key_id", "sequence"),
    sa.Index("ix_usage_finished_at", "finished_at"),
    sqlite_autoincrement=True,
)

# An index of requests with rare endings, so that a search for them does not read all other requests.
UNUSUAL = sa.and_(usage.c.ending != "stop", usage.c.ending != "length")
sa.Index("ix_usage_unusual", usage.c.finished_at, sqlite_where=UNUSUAL, postgresql_where=UNUSUAL)

# For comparing the arms of an alias and the versions of an adapter.
_OF_BATCH = usage.c.batch_id.is_not(None)
sa.Index("ix_usage_batch_id", usage.c.batch_id, usage.c.sequence, sqlite_where=_OF_BATCH, postgresql_where=_OF_BATCH)
_ASKED, _VERSIONED = usage.c.asked.is_not(None), usage.c.adapter_version.is_not(None)
sa.Index("ix_usage_asked", usage.c.asked, usage.c.finished_at, sqlite_where=_ASKED, postgresql_where=_ASKED)
sa.Index(
    "ix_usage_versioned", usage.c.adapter, usage.c.finished_at, sqlite_where=_VERSIONED, postgresql_where=_VERSIONED
)

# Recomputes of preempted requests, charged to the tier that preempted: `tier` is not the request's own. A tier's device
# time is device_s of its usage rows plus device_s of its rows in this table.
usage_recompute = sa.Table(
    "usage_recompute",
    metadata,
    sa.Column("request_id", sa.ForeignKey("usage.request_id"), primary_key=True),
    sa.Column("tier", sa.String(32), primary_key=True),
    sa.Column("tokens", sa.BigInteger, nullable=False),  # recomputed
    sa.Column("device_s", sa.Double, nullable=False),
)

# Requests whose tokens several engine processes made: the tokens of each process except usage.engine_epoch, which made
# the remaining tokens of usage.made_tokens.
usage_attempts = sa.Table(
    "usage_attempts",
    metadata,
    sa.Column("request_id", sa.ForeignKey("usage.request_id"), primary_key=True),
    sa.Column("epoch", sa.String(64), primary_key=True),
    sa.Column("made_tokens", sa.BigInteger, nullable=False),
)

# Double entry: the amounts of one transaction sum to 0. `sequence` grows; a transaction rolled back leaves a gap.
entries = sa.Table(
    "entries",
    metadata,
    sa.Column("sequence", Sequence, primary_key=True, autoincrement=True),
    sa.Column("transaction_id", sa.String(64), nullable=False, index=True),  # the id of the request or the correction
    sa.Column("tenant_id", sa.String(64), nullable=False),
    sa.Column("account", sa.String(16), nullable=False),
    sa.Column("meter", sa.String(32)),  # of a revenue entry
    sa.Column("amount_picos", sa.BigInteger, nullable=False),
    sa.Column("currency", sa.String(3), nullable=False),
    sa.Column("recorded_at", sa.BigInteger, nullable=False),
    sa.CheckConstraint("account IN ('receivable', 'revenue')", name="account"),
    sa.Index("ix_entries_recorded_at", "recorded_at", postgresql_using="brin"),  # rows are stored in its order
    sqlite_autoincrement=True,
)

# One row: the time of the last audit, and the time since which audits have reached the database without a gap.
audits = sa.Table(
    "audits",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("seen_at", sa.BigInteger, nullable=False),
    sa.Column("unbroken_from", sa.BigInteger, nullable=False),
)

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("gateway_id", sa.String(64), primary_key=True),
    sa.Column("acquired_at", sa.BigInteger, nullable=False),
    sa.Column("renewed_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=False),
)

# A tenant's month in the time zone that the tenant had when the period was made; each begins at the previous one's end.
# A closed period never changes (triggers). A usage row belongs to its tenant's first period with finished_at < end_at
# and sequence ≤ closed_sequence (periods.py).
billing_periods = sa.Table(
    "billing_periods",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("month", sa.String(7), nullable=False),  # 2026-01, in `time_zone`
    sa.Column("time_zone", sa.String(64), nullable=False),
    sa.Column("start_at", sa.BigInteger, nullable=False),
    sa.Column("end_at", sa.BigInteger, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("opened_at", sa.BigInteger, nullable=False),
    # Usage from before start_at with a higher sequence was recorded after the previous period was closed, and is in
    # this period. Null while the previous period is open.
    sa.Column("late_after", sa.BigInteger),
    sa.Column("closed_sequence", sa.BigInteger),  # usage up to here was counted when it was closed
    sa.Column("sequence_min", sa.BigInteger),  # of the period's rows when it was closed; null: no rows
    sa.Column("sequence_max", sa.BigInteger),
    sa.Column("closed_at", sa.BigInteger),
    sa.Column("closed_by", sa.String(128)),
    sa.CheckConstraint("state IN ('open', 'closed')", name="state"),
    sa.CheckConstraint("start_at < end_at", name="end_at"),
    sa.CheckConstraint("(state = 'closed') = (closed_sequence IS NOT NULL)", name="closed_sequence"),
    sa.UniqueConstraint("tenant_id", "start_at"),
    sa.UniqueConstraint("tenant_id", "month"),
)

# Amounts owed beside usage, of a request or free. A correction has separate entries (transaction_id = id). It belongs
# to the period that it corrects, or to the current period if that period is closed.
corrections = sa.Table(
    "corrections",
    metadata,
    sa.Column("sequence", Sequence, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String(64), nullable=False, unique=True),
    sa.Column("period_id", sa.ForeignKey("billing_periods.id"), nullable=False, index=True),
    sa.Column("tenant_id", sa.String(64), nullable=False),
    sa.Column("project_id", sa.String(64)),
    sa.Column("key_id", sa.String(64)),
    sa.Column("request_id", sa.String(64), index=True),  # null: a free correction
    sa.Column("model", sa.String(200)),  # null, for example, for a credit
    sa.Column("adapter", sa.String(200)),
    sa.Column("tier", sa.String(32)),
    sa.Column("meter", sa.String(32)),
    sa.Column("price_version_id", sa.ForeignKey("price_versions.id")),  # with it, picos = tokens × its unit price
    sa.Column("currency", sa.String(3), nullable=False),
    sa.Column("tokens", sa.BigInteger, nullable=False),  # added to the recorded tokens; below 0: taken off
    sa.Column("picos", sa.BigInteger, nullable=False),
    sa.Column("reason", sa.String(500), nullable=False),
    sa.Column("actor", sa.String(128), nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    # The moment within the period at which reports count it. Null: created_at, of versions without this column.
    sa.Column("counted_at", sa.BigInteger),
    sa.Index("ix_corrections_tenant_id_sequence", "tenant_id", "sequence"),
    sa.Index("ix_corrections_created_at", "created_at"),
    sa.Index("ix_corrections_counted_at", "counted_at"),
    sqlite_autoincrement=True,
)

# Made when a period is closed.
invoices = sa.Table(
    "invoices",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("period_id", sa.ForeignKey("billing_periods.id"), nullable=False, unique=True),
    sa.Column("tenant_id", sa.String(64), nullable=False, index=True),
    sa.Column("currency", sa.String(3), nullable=False),
    sa.Column("usage_picos", sa.BigInteger, nullable=False),
    sa.Column("correction_picos", sa.BigInteger, nullable=False),
    sa.Column("total_picos", sa.BigInteger, nullable=False),
    sa.Column("issued_at", sa.BigInteger, nullable=False),
    sa.CheckConstraint("total_picos = usage_picos + correction_picos", name="total_picos"),
)

# Usage by model or adapter, tier, meter and price; and each correction on a separate line.
invoice_lines = sa.Table(
    "invoice_lines",
    metadata,
    sa.Column("invoice_id", sa.ForeignKey("invoices.id"), primary_key=True),
    sa.Column("line", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("model", sa.String(200)),
    sa.Column("adapter", sa.String(200)),
    sa.Column("tier", sa.String(32)),
    sa.Column("meter", sa.String(32)),
    sa.Column("price_version_id", sa.String(64)),
    sa.Column("unit_price_picos", sa.BigInteger),
    sa.Column("tokens", sa.BigInteger, nullable=False),
    sa.Column("picos", sa.BigInteger, nullable=False),
    sa.Column("correction_id", sa.ForeignKey("corrections.id")),
    sa.CheckConstraint("kind IN ('usage', 'correction')", name="kind"),
)


def rolled_up_by(*names: str) -> list[sa.Column[str]]:
    """Text columns of a roll-up's key. Rows without a project or an adapter have NONE."""
    return [sa.Column(name, sa.String(200 if name in ("model", "adapter") else 64), primary_key=True) for name in names]


def _hour() -> sa.Column[int]:
    return sa.Column("hour", sa.BigInteger, primary_key=True, autoincrement=False)


def summed_columns() -> list[sa.Column[Any]]:
    """The columns of a roll-up that are no part of its key."""
    return [
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("input_tokens", sa.BigInteger, nullable=False),  # uncached prompt tokens
        sa.Column("cached_input_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),  # billed
        sa.Column("made_tokens", sa.BigInteger, nullable=False),
        sa.Column("discarded_tokens", sa.BigInteger, nullable=False),
        sa.Column("preemptions", sa.BigInteger, nullable=False),
        sa.Column("swapped_tokens", sa.BigInteger, nullable=False),
        sa.Column("cost_picos", sa.BigInteger, nullable=False),
        sa.Column("device_s", sa.Double, nullable=False),
        sa.Column("sequence_min", sa.BigInteger, nullable=False),
        sa.Column("sequence_max", sa.BigInteger, nullable=False),
        sa.Column("embedding_tokens", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # of prompts
    ]


# Sums of usage by the UTC hour of finished_at and by period, derived from the rows up to `rollup_cursor.sequence`
# (rollups.py); period_id is the id of the period that counts the row.
usage_hours = sa.Table(
    "usage_hours",
    metadata,
    *rolled_up_by("tenant_id"),
    _hour(),
    *rolled_up_by("key_id", "model", "adapter", "tier", "price_version_id", "period_id", "project_id"),
    *summed_columns(),
    sa.Index("ix_usage_hours_hour", "hour"),
    sa.Index("ix_usage_hours_period_id", "period_id"),
)

# Sums of usage_recompute, by the tier that caused it: `tier` is the preempted request's.
recompute_hours = sa.Table(
    "recompute_hours",
    metadata,
    *rolled_up_by("tenant_id"),
    _hour(),
    *rolled_up_by("key_id", "model", "adapter", "tier", "caused_by", "period_id", "project_id"),
    sa.Column("tokens", sa.BigInteger, nullable=False),
    sa.Column("device_s", sa.Double, nullable=False),
    sa.Index("ix_recompute_hours_hour", "hour"),
    sa.Index("ix_recompute_hours_period_id", "period_id"),
)

# The sums of usage_hours over the rows with tags, by tag set. Usage with tags that a version without this table folded
# is missing here.
tag_hours = sa.Table(
    "tag_hours",
    metadata,
    *rolled_up_by("tenant_id"),
    _hour(),
    *rolled_up_by("key_id", "model", "adapter", "tier", "price_version_id", "period_id", "project_id", "tag_set_id"),
    *summed_columns(),
    sa.Index("ix_tag_hours_hour", "hour"),
    sa.Index("ix_tag_hours_period_id", "period_id"),
)

# One row: every usage row up to `sequence` is committed, in a period and in the roll-ups, and no row can appear below
# it any more. Transactions that fold usage, close a period or make a correction lock the row.
rollup_cursor = sa.Table(
    "rollup_cursor",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("requests", sa.BigInteger, nullable=False),  # of all rows up to `sequence`
    sa.Column("made_tokens", sa.BigInteger, nullable=False),
    sa.Column("folded_at", sa.BigInteger, nullable=False),
)

# Settled tokens by engine process, of usage rows up to `rollup_cursor.sequence`. Rows that a version without this table
# folded are missing here.
engine_ledger = sa.Table(
    "engine_ledger",
    metadata,
    sa.Column("epoch", sa.String(64), primary_key=True),
    sa.Column("made_tokens", sa.BigInteger, nullable=False),
)

# Results of reconciliations; the next one of kind `minute` begins at the end of the newest `minute`.
reconciliations = sa.Table(
    "reconciliations",
    metadata,
    sa.Column("number", Sequence, primary_key=True, autoincrement=True),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("sequence_from", sa.BigInteger, nullable=False),  # usage above it …
    sa.Column("sequence_to", sa.BigInteger, nullable=False),  # … and up to here
    sa.Column("took_s", sa.Double, nullable=False),
    sa.Column("imbalances", sa.BigInteger, nullable=False),
    sa.Column("overshot", sa.BigInteger, nullable=False),
    sa.Column("findings", sa.JSON, nullable=False),
    # Read and written by versions that compare sums over all engines.
    sa.Column("engine_gap", sa.BigInteger),
    sa.Column("engines", sa.Text),
    sa.Column("engine_bounds", sa.Text),
    sa.Column("engine_books", sa.Text),  # findings for each engine process (engine_books.py), as JSON
    sa.CheckConstraint("kind IN ('minute', 'month', 'whole')", name="kind"),
    sqlite_autoincrement=True,
)

# The newest comparison of each engine process with the ledger. An engine's counts were read between two readings of the
# ledger (engine_books.py).
engine_readings = sa.Table(
    "engine_readings",
    metadata,
    sa.Column("epoch", sa.String(64), primary_key=True),
    sa.Column("made_tokens", sa.BigInteger, nullable=False),  # without the overrun
    sa.Column("lost_tokens", sa.BigInteger, nullable=False),  # including tokens that were reclaimed later
    sa.Column("reclaimed_tokens", sa.BigInteger, nullable=False),
    sa.Column("settled_before", sa.BigInteger, nullable=False),
    sa.Column("settled_after", sa.BigInteger, nullable=False),
    sa.Column("late_before", sa.BigInteger, nullable=False),  # in addition to the settled ones
    sa.Column("late_after", sa.BigInteger, nullable=False),
    # The most tokens that open holds, and holds that expired in the last engine_books.UNREPORTED_S, may have made in
    # addition, on any engine.
    sa.Column("open_tokens", sa.BigInteger, nullable=False),
    sa.Column("expired_tokens", sa.BigInteger, nullable=False),
    sa.Column("unnamed_tokens", sa.BigInteger),  # of no known engine; null: they changed between the readings
    sa.Column("quiet", sa.Boolean, nullable=False),
    sa.Column("read_at", sa.BigInteger, nullable=False),
)

# Token counts of each engine process, for versions that compare sums over all engines.
engine_counts = sa.Table(
    "engine_counts",
    metadata,
    sa.Column("epoch", sa.String(64), primary_key=True),
    sa.Column("made_tokens", sa.BigInteger, nullable=False),
    sa.Column("overrun_tokens", sa.BigInteger, nullable=False),
    sa.Column("lost_tokens", sa.BigInteger, nullable=False),
    sa.Column("ledger_tokens", sa.BigInteger),  # the ledger's tokens at that moment; null if a request ran
    # The ledger's settled tokens before the engine's counts were read; and after, plus the most that open holds may
    # still settle.
    sa.Column("ledger_before", sa.BigInteger),
    sa.Column("ledger_bound", sa.BigInteger),
    sa.Column("read_at", sa.BigInteger, nullable=False),
)

# Export jobs (exports/jobs.py). Their files are on `host`, in a folder named by the id.
exports = sa.Table(
    "exports",
    metadata,
    sa.Column("sequence", Sequence, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String(64), nullable=False, unique=True),
    sa.Column("tenant_id", sa.ForeignKey("tenants.id")),  # null: of all tenants
    sa.Column("month", sa.String(7), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("format", sa.String(16), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("actor", sa.String(128), nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("gateway_id", sa.String(64)),  # the gateway that runs the job; its claim ends with its lease
    sa.Column("host", sa.String(255)),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("started_at", sa.BigInteger),
    sa.Column("finished_at", sa.BigInteger),
    sa.Column("read_rows", sa.BigInteger, nullable=False),  # read from the ledger so far
    sa.Column("all_rows", sa.BigInteger),
    sa.Column("rows", sa.BigInteger, nullable=False),  # written so far
    sa.Column("file", sa.String(255)),
    sa.Column("size_bytes", sa.BigInteger),
    sa.Column("sha256", sa.String(64)),
    sa.Column("error", sa.String(500)),
    sa.CheckConstraint("kind IN ('focus', 'events')", name="kind"),
    sa.CheckConstraint("format IN ('csv', 'parquet', 'jsonl')", name="format"),
    sa.CheckConstraint("state IN ('queued', 'running', 'done', 'failed', 'cancelled', 'removed')", name="state"),
    sa.Index("ix_exports_state", "state"),
    sqlite_autoincrement=True,
)

# Names of keys, adapters, projects, the tenant and the issuer (`provider`) in exports of a period. A closed period has
# the names of its first export permanently, so that later exports give the same bytes after a rename.
export_names = sa.Table(
    "export_names",
    metadata,
    sa.Column("period_id", sa.ForeignKey("billing_periods.id"), primary_key=True),
    sa.Column("subject_id", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("kept_at", sa.BigInteger),  # null: stored by a version without this column; such a name never changes
)

# The sum of an export's rows for each invoice of its closed periods, for the proof `exported`.
export_invoices = sa.Table(
    "export_invoices",
    metadata,
    sa.Column("export_id", sa.ForeignKey("exports.id"), primary_key=True),
    sa.Column("invoice_id", sa.ForeignKey("invoices.id"), primary_key=True),
    sa.Column("picos", sa.BigInteger, nullable=False),
)

import billing.day_tables  # noqa: E402 - their tables are in the metadata too
import billing.finance_tables  # noqa: E402
import billing.output_tables  # noqa: E402
import billing.sla_tables  # noqa: E402, F401
