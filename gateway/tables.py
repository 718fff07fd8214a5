"""Tables of the gateway: API keys, sessions, rate limits, replays, base models, aliases, adapters, the audit log of
administrative writes and its hash chain, erasures, restores, and the waits for first tokens.

They share the metadata and the conventions of `billing.tables`: one database has one schema and one history, and
moments (`…_at`) are integer microseconds UTC. Only migrations create or alter tables.
"""

from __future__ import annotations

import sqlalchemy as sa

import gateway.batch_tables
import gateway.error_tables  # noqa: F401
from billing.tables import Sequence, metadata
from gateway.file_tables import files as files
from gateway.write_tables import write_replays as write_replays

keys = sa.Table(
    "keys",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # key_…
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=True),  # null: an operator's admin key
    sa.Column("project_id", sa.ForeignKey("projects.id"), nullable=True),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("kind", sa.String(8), nullable=False),  # live, test, admin
    sa.Column("hash", sa.String(64), nullable=False, unique=True),  # SHA-256 of the whole secret, hex
    sa.Column("prefix", sa.String(16), nullable=False),  # lw_live_ and the first four characters
    sa.Column("last4", sa.String(4), nullable=False),
    sa.Column("tier", sa.String(32), nullable=True),  # null: the tenant's; may only lower it
    sa.Column("scopes", sa.JSON, nullable=False),  # list of names, see gateway.access.keys.SCOPES
    sa.Column("default_max_tokens", sa.BigInteger, nullable=True),  # for a request without max_tokens
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("last_used_at", sa.BigInteger, nullable=True),
    sa.Column("expires_at", sa.BigInteger, nullable=True),
    sa.Column("revoked_at", sa.BigInteger, nullable=True),
    sa.Column("rotated_to", sa.ForeignKey("keys.id"), nullable=True),
    sa.Column("role", sa.String(16), nullable=True),  # of an admin key, see gateway.access.roles; null: may do nothing
    # The first key of this key's rotations; null: the key replaced no other key. The keys of a rotation share their
    # budgets and rate limits.
    sa.Column("first_key_id", sa.String(64), nullable=True),
    # An admin key for emergencies, whose use raises an alert (gateway.access.break_glass).
    sa.Column("break_glass", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("models", sa.JSON(none_as_null=True), nullable=True),  # names that it may call; null: all of its tenant
    # Networks from which it may be used, a list of texts; null: all.
    sa.Column("allowed_ips", sa.JSON(none_as_null=True), nullable=True),
    sa.Column("tags", sa.JSON(none_as_null=True), nullable=True),  # name → value; null: none
    sa.Column("tag_set_id", sa.String(64), nullable=True),  # of `tags`, see billing.accounts.tags
    sa.CheckConstraint("kind IN ('live', 'test', 'admin')", name="kind"),
    sa.CheckConstraint("kind = 'admin' OR tenant_id IS NOT NULL", name="tenant"),
    sa.CheckConstraint(
        "role IS NULL OR (kind = 'admin' AND role IN ('owner', 'operator', 'finance', 'tenant_admin', 'read_only') "
        "AND (role = 'tenant_admin') = (tenant_id IS NOT NULL))",
        name="role",
    ),
)
sa.Index("ix_keys_tenant_id", keys.c.tenant_id)
sa.Index("ix_keys_first_key_id", keys.c.first_key_id)

# Sessions of the console, signed in with an admin key. The cookie's value is hashed, as keys are.
sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # ses_…, for the audit log
    sa.Column("hash", sa.String(64), nullable=False, unique=True),  # SHA-256 of the cookie's value, hex
    sa.Column("key_id", sa.ForeignKey("keys.id"), nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("seen_at", sa.BigInteger, nullable=False),  # its last use, to sessions.SEEN_S
    sa.Column("expires_at", sa.BigInteger, nullable=False),  # its end, whether used or not
)
sa.Index("ix_sessions_key_id", sessions.c.key_id)
sa.Index("ix_sessions_expires_at", sessions.c.expires_at)

# People who have signed in at the provider of [oidc]. Audit lines name them by id.
people = sa.Table(
    "people",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # psn_…
    sa.Column("issuer", sa.String(300), nullable=False),
    sa.Column("subject", sa.String(255), nullable=False),  # the provider's name of the person, `sub`
    sa.Column("name", sa.String(200), nullable=True),
    sa.Column("email", sa.String(320), nullable=True),
    sa.Column("role", sa.String(16), nullable=True),  # by the groups of the last check; null: no group has a role
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=True),  # of a tenant_admin
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("signed_in_at", sa.BigInteger, nullable=False),  # the last sign-in
    sa.CheckConstraint(
        "role IS NULL OR (role IN ('owner', 'operator', 'finance', 'tenant_admin', 'read_only') "
        "AND (role = 'tenant_admin') = (tenant_id IS NOT NULL))",
        name="role",
    ),
)
sa.Index("uq_people_issuer_subject", people.c.issuer, people.c.subject, unique=True)
sa.Index("ix_people_tenant_id", people.c.tenant_id)

# Sessions of people, in another table than sessions of keys: the version before knows only the latter.
person_sessions = sa.Table(
    "person_sessions",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # ses_…
    sa.Column("hash", sa.String(64), nullable=False, unique=True),  # as of sessions
    sa.Column("person_id", sa.ForeignKey("people.id"), nullable=False),
    sa.Column("provider_sid", sa.String(255), nullable=True),  # the provider's session, for back-channel logout
    sa.Column("tokens", sa.LargeBinary, nullable=False),  # encrypted, see gateway.access.person_sessions
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("seen_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=False),
    sa.Column("checked_at", sa.BigInteger, nullable=False),  # when the provider last confirmed the groups
    sa.Column("claimed_until", sa.BigInteger, nullable=False),  # until then one gateway checks, or none tries again
)
sa.Index("ix_person_sessions_person_id", person_sessions.c.person_id)
sa.Index("ix_person_sessions_expires_at", person_sessions.c.expires_at)

# States of sign-ins and ids of logout tokens that were used, so that neither is accepted twice.
spent_tokens = sa.Table(
    "spent_tokens",
    metadata,
    sa.Column("hash", sa.String(64), primary_key=True),  # SHA-256, hex
    sa.Column("expires_at", sa.BigInteger, nullable=False),  # from then on it is refused for its age
)
sa.Index("ix_spent_tokens_expires_at", spent_tokens.c.expires_at)

# One-time passwords (TOTP) of admin keys that sign in to the console.
key_totp = sa.Table(
    "key_totp",
    metadata,
    sa.Column("key_id", sa.ForeignKey("keys.id"), primary_key=True),
    sa.Column("secret", sa.LargeBinary, nullable=False),  # encrypted, see gateway.access.totp
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("confirmed_at", sa.BigInteger, nullable=True),  # null: enrolled, not required yet
    sa.Column("last_counter", sa.BigInteger, nullable=False),  # of the last code accepted: no earlier one is
    sa.Column("recovery_hashes", sa.JSON, nullable=False),  # SHA-256 of the codes that are left, hex
    sa.Column("wrong_codes", sa.BigInteger, nullable=False),  # since the last accepted code, see totp.WRONG_MAX
    sa.Column("refused_until", sa.BigInteger, nullable=False),
)

# Rate limits of single keys and tenants; null: as laneway.toml has it.
rate_limits = sa.Table(
    "rate_limits",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # lim_…
    sa.Column("scope", sa.String(16), nullable=False),
    sa.Column("subject_id", sa.String(64), nullable=False, unique=True),  # a tenant, or the first key of a rotation
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    *(sa.Column(name, sa.BigInteger) for name in ("requests_per_minute", "tokens_per_minute", "concurrency")),
    # Of a tenant only: quotas of its files, and of its batches that have not ended.
    *(sa.Column(name, sa.BigInteger) for name in ("files", "total_file_bytes", "batches", "enqueued_tokens")),
    sa.CheckConstraint("scope IN ('key', 'tenant')", name="scope"),
    sa.CheckConstraint("requests_per_minute >= 1", name="requests_per_minute"),
    sa.CheckConstraint("tokens_per_minute >= 1", name="tokens_per_minute"),
    sa.CheckConstraint("concurrency >= 1", name="concurrency"),
)
sa.Index("ix_rate_limits_tenant_id", rate_limits.c.tenant_id)

# Idempotent calls: requests with an Idempotency-Key. The hold of the request has its ending.
replays = sa.Table(
    "replays",
    metadata,
    sa.Column("key_id", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(255), primary_key=True),  # the caller's Idempotency-Key
    sa.Column("fingerprint", sa.String(64), nullable=False),  # SHA-256 of route and body, hex
    sa.Column("request_id", sa.String(64), nullable=False, unique=True),
    sa.Column("gateway_id", sa.String(64), nullable=False),
    sa.Column("answer", sa.LargeBinary, nullable=True),  # encrypted, see gateway.generation.sealing
    sa.Column("begun_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=True),  # null: begun before migration 0010, not answered yet
)
sa.Index("ix_replays_expires_at", replays.c.expires_at)

# One row: the secret that all gateways of this database have in common (gateway.access.deployment_secret).
server_secret = sa.Table(
    "server_secret",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("fingerprint", sa.String(64), nullable=False),  # "": no gateway has started yet
    sa.Column("changed_at", sa.BigInteger, nullable=False),
    sa.Column("end_user_key", sa.LargeBinary),  # of digests, encrypted; null: not made yet (gateway.access.end_users)
)

# Keys that encrypt the stored texts of a tenant, each encrypted with the server secret. Without its key no text of a
# tenant can be read.
text_keys = sa.Table(
    "text_keys",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # txk_…
    # null, as `wrapped`: the key is deleted, and its bytes are still to be removed from the database's files
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=True, unique=True),
    sa.Column("wrapped", sa.LargeBinary, nullable=True),  # see gateway.stored.texts
    sa.Column("created_at", sa.BigInteger, nullable=False),
)

# Responses of tenants that opted in. `input`: the turn's own items; `answer`: the response object; both encrypted.
responses = sa.Table(
    "responses",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # resp_…
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("text_key_id", sa.String(64), nullable=False),  # of text_keys, which may have been deleted
    sa.Column("gateway_id", sa.String(64), nullable=False),  # that makes the answer
    sa.Column("previous_id", sa.String(64), nullable=True),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),  # of `input` and `answer`
    sa.Column("input", sa.LargeBinary, nullable=False),
    sa.Column(
        "answer", sa.LargeBinary, nullable=True
    ),  # null until it ends; in the background the object without output
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("background", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("cancel_requested", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column(
        "events_until", sa.BigInteger, nullable=True
    ),  # null: it has not ended in the background, or has no events
    sa.CheckConstraint(
        "status IN ('queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled')", name="status"
    ),
)
# With `bytes`, so that quotas are summed up from the index alone.
sa.Index("ix_responses_tenant_id", responses.c.tenant_id, responses.c.created_at, responses.c.bytes)
UNENDED = sa.text("status IN ('queued', 'in_progress')")
sa.Index("ix_responses_unended", responses.c.gateway_id, sqlite_where=UNENDED, postgresql_where=UNENDED)
HAS_EVENTS = sa.text("events_until IS NOT NULL")
sa.Index("ix_responses_events_until", responses.c.events_until, sqlite_where=HAS_EVENTS, postgresql_where=HAS_EVENTS)

# Events of responses in the background, as groups in the order of their numbers. `events`: compressed and encrypted.
response_events = sa.Table(
    "response_events",
    metadata,
    sa.Column("response_id", sa.ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("first_number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("last_number", sa.BigInteger, nullable=False),
    sa.Column("events", sa.LargeBinary, nullable=False),
)

# Conversations of tenants that opted in, all of their texts encrypted.
conversations = sa.Table(
    "conversations",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # conv_…
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column(
        "text_key_id", sa.String(64), nullable=False
    ),  # of text_keys, which may have been deleted; of the items too
    sa.Column("metadata", sa.LargeBinary, nullable=False),
    sa.Column("item_count", sa.BigInteger, nullable=False),
    sa.Column("next_position", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),  # of the metadata and the items
    sa.Column("created_at", sa.BigInteger, nullable=False),
)
# With `bytes`, as the index of responses.
sa.Index("ix_conversations_tenant_id", conversations.c.tenant_id, conversations.c.created_at, conversations.c.bytes)

conversation_items = sa.Table(
    "conversation_items",
    metadata,
    sa.Column("conversation_id", sa.ForeignKey("conversations.id"), primary_key=True),
    sa.Column(
        "position", sa.BigInteger, primary_key=True, autoincrement=False
    ),  # given once, with gaps after deletions
    sa.Column("id", sa.String(128), nullable=False),  # unique in the conversation: clients may choose ids
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("item", sa.LargeBinary, nullable=False),
)
sa.Index("uq_conversation_items_id", conversation_items.c.conversation_id, conversation_items.c.id, unique=True)

# Base models that operators added, and operators' changes of the models of laneway.toml.
base_models = sa.Table(
    "base_models",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # mod_…
    sa.Column("name", sa.String(128), nullable=False, unique=True),
    sa.Column("path", sa.String(256), nullable=True),  # inside the models' folder; null: laneway.toml has the model
    sa.Column("dtype", sa.String(16), nullable=True),  # of an added model
    sa.Column("quantize", sa.String(16), nullable=True),  # of an added model; null: "none"
    sa.Column("kv_dtype", sa.String(16), nullable=True),  # of an added model; null: "auto"
    sa.Column("context_tokens", sa.BigInteger, nullable=True),  # of an added model; null: by its config.json
    sa.Column("pinned", sa.Boolean, nullable=True),  # null, here and in the next three: as laneway.toml has it
    sa.Column("tenants", sa.JSON(none_as_null=True), nullable=True),  # list of ids, or of "*" alone: all
    sa.Column("fallbacks", sa.JSON(none_as_null=True), nullable=True),  # list of names
    sa.Column("max_tokens_default", sa.BigInteger, nullable=True),
    sa.Column("active", sa.Boolean, nullable=False),  # false: removed
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("changed_at", sa.BigInteger, nullable=False),
)

adapters = sa.Table(
    "adapters",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # ada_…
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=True),  # null: the operator's
    sa.Column("name", sa.String(200), nullable=False),  # `model` in requests
    sa.Column("base_model", sa.String(200), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),  # of the version that is served
    sa.Column("active", sa.Boolean, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("version", sa.Integer, nullable=False, server_default=sa.text("1")),  # number of the served version
    sa.Column("for_all", sa.Boolean, nullable=False, server_default=sa.false()),  # every tenant may call it
    sa.Column("pinned", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("notes", sa.String(2000), nullable=True),
)
sa.Index("uq_adapters_tenant_id_name", adapters.c.tenant_id, adapters.c.name, unique=True)
# NULLs are distinct in a unique index, so shared names need their own.
sa.Index(
    "uq_adapters_name_shared",
    adapters.c.name,
    unique=True,
    sqlite_where=adapters.c.tenant_id.is_(None),
    postgresql_where=adapters.c.tenant_id.is_(None),
)

# Versions of adapters. A number is never used twice; rows of removed versions remain for the history.
adapter_versions = sa.Table(
    "adapter_versions",
    metadata,
    sa.Column("adapter_id", sa.ForeignKey("adapters.id"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),  # 1, 2, 3, …
    sa.Column("digest", sa.String(64), nullable=False),  # of the content, names the directory in the store
    sa.Column(
        "replaced", sa.Integer, nullable=True
    ),  # number of the version that it replaced: the target of a roll back
    sa.Column("bytes", sa.BigInteger, nullable=True),
    sa.Column("rank_max", sa.Integer, nullable=True),
    sa.Column("parameters", sa.BigInteger, nullable=True),
    sa.Column("targets", sa.JSON, nullable=False),
    sa.Column("trained_for", sa.String(200), nullable=True),
    sa.Column("warnings", sa.JSON, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("removed_at", sa.BigInteger, nullable=True),
)
sa.Index("ix_adapter_versions_digest", adapter_versions.c.digest)

# Tenants, other than the owning tenant, that may call an adapter.
adapter_shares = sa.Table(
    "adapter_shares",
    metadata,
    sa.Column("adapter_id", sa.ForeignKey("adapters.id"), primary_key=True),
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), primary_key=True),
)

# Names that stand for models. A row here overrides the configuration's alias of that name.
model_aliases = sa.Table(
    "model_aliases",
    metadata,
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("models", sa.JSON, nullable=False),  # [{"model": …, "weight": …}], in order
    sa.Column("cheapest", sa.Boolean, nullable=False),
    sa.Column("fallbacks", sa.JSON, nullable=False),  # models
    sa.Column("tenants", sa.JSON(none_as_null=True), nullable=True),  # ids; null: all
    sa.Column("active", sa.Boolean, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
)

# Histograms of the time to first token, by the minute of the first token, kept for a day (generation/first_tokens.py).
# Each gateway writes its own rows.
first_token_minutes = sa.Table(
    "first_token_minutes",
    metadata,
    sa.Column("minute", sa.BigInteger, primary_key=True, autoincrement=False),  # beginning of the minute
    sa.Column("tier", sa.String(32), primary_key=True),
    sa.Column("gateway_id", sa.String(64), primary_key=True),
    sa.Column("bucket", sa.Integer, primary_key=True, autoincrement=False),  # of the wait; -1: refused with a 503
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("within_target", sa.BigInteger, nullable=False),  # requests whose first token met their target
)

audit_log = sa.Table(
    "audit_log",
    metadata,
    sa.Column("id", Sequence, primary_key=True, autoincrement=True),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("actor", sa.String(80), nullable=False),  # the id of a key or a person, or "cli:" and a user of the host
    sa.Column("action", sa.String(80), nullable=False),  # e.g. key.create
    sa.Column("object_id", sa.String(80), nullable=False),
    sa.Column("request_id", sa.String(80), nullable=True),
    sa.Column("before", sa.JSON, nullable=True),
    sa.Column("after", sa.JSON, nullable=True),
    sa.Column("tenant_id", sa.String(64), nullable=True),  # owning tenant of the object; null: the operator
)
sa.Index("ix_audit_log_object_id", audit_log.c.object_id)
sa.Index("ix_audit_log_tenant_id_id", audit_log.c.tenant_id, audit_log.c.id)

# The hash chain of the audit log (access/audit_chain.py): `position` 1, 2, 3, … without a gap. `content`: of the line's
# `before` and `after`, keyed with `salt`, so that an erasure can delete them and the chain still holds.
audit_chain = sa.Table(
    "audit_chain",
    metadata,
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("entry_id", sa.BigInteger, nullable=False, unique=True),  # of audit_log
    sa.Column("salt", sa.LargeBinary, nullable=True),  # null: the line's contents are erased
    sa.Column("content", sa.String(64), nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)

# One row, locked by every writer of the audit log. Lines up to the id `chained_to` are in the chain.
audit_head = sa.Table(
    "audit_head",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("position", sa.BigInteger, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("chained_to", sa.BigInteger, nullable=False),
)

# Signed positions of the chain. `pruned`: lines up to here may be deleted (`[retention] audit_days`).
audit_checkpoints = sa.Table(
    "audit_checkpoints",
    metadata,
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("pruned", sa.Boolean, primary_key=True),
    sa.Column("pruned_to", sa.BigInteger, nullable=False),  # lines up to here were deleted at that moment
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("signer", sa.String(64), nullable=False),  # the Ed25519 public key, hex
    sa.Column("signature", sa.String(128), nullable=False),
)

# Tenants whose names and personal data were erased. The file of recovery/erasure_file.py has the same rows outside.
erasures = sa.Table(
    "erasures",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # era_…
    sa.Column("tenant_id", sa.String(64), nullable=False, unique=True),  # no foreign key: a backup may lack the tenant
    sa.Column("at", sa.BigInteger, nullable=False),
)

# Restores of this database from backups. No gateway starts while one is unfinished.
restores = sa.Table(
    "restores",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # rst_…
    sa.Column("archive", sa.String(255), nullable=False),
    sa.Column("taken_at", sa.BigInteger, nullable=False),  # entries of later moments are lost
    sa.Column("began_at", sa.BigInteger, nullable=False),
    sa.Column("finished_at", sa.BigInteger, nullable=True),
    sa.Column("report", sa.JSON, nullable=True),
)

# The parts of its health that each gateway finds degraded or down now; a sound part has no row. The rows of a gateway
# without a lease are ignored and deleted.
problem_reports = sa.Table(
    "problem_reports",
    metadata,
    sa.Column("gateway_id", sa.String(64), primary_key=True),
    sa.Column("part", sa.String(32), primary_key=True),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("detail", sa.String(500), nullable=False),
    sa.Column("found_at", sa.BigInteger, nullable=False),
    sa.CheckConstraint("status IN ('degraded', 'down')", name="status"),
)

# The parts that any gateway finds bad, or that were bad and are not resolved. A part that is sound has no row.
problems = sa.Table(
    "problems",
    metadata,
    sa.Column("part", sa.String(32), primary_key=True),
    sa.Column("bad_since", sa.BigInteger),  # null: the part is sound now
    sa.Column("down_since", sa.BigInteger),  # null: it is not down now
    sa.Column("good_since", sa.BigInteger),  # null: it is bad now
    sa.Column("opened_by", sa.String(64)),  # the event that opened the problem; null: not bad for long enough
    sa.Column("status", sa.String(16)),  # of the newest event; null: there is none
)

# One row for each change of a problem, of the whole fleet.
problem_events = sa.Table(
    "problem_events",
    metadata,
    sa.Column("sequence", Sequence, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String(64), nullable=False, unique=True),
    sa.Column("type", sa.String(16), nullable=False),
    sa.Column("part", sa.String(32), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("detail", sa.String(500), nullable=False),
    sa.Column("hosts", sa.JSON, nullable=False),  # of the gateways that found it
    sa.Column("gateways", sa.Integer, nullable=False),  # their number
    sa.Column("opened_by", sa.String(64), nullable=False),  # the event that opened the problem; perhaps this one
    sa.Column("occurred_at", sa.BigInteger, nullable=False),
    sa.CheckConstraint("type IN ('opened', 'worsened', 'resolved')", name="type"),
    sa.Index("ix_problem_events_opened_by", "opened_by"),
    sqlite_autoincrement=True,
)

# The outbox of problem_events, as billing.tables.alert_deliveries is of alerts.
problem_deliveries = sa.Table(
    "problem_deliveries",
    metadata,
    sa.Column("event_id", sa.ForeignKey("problem_events.id"), primary_key=True),
    sa.Column("webhook_id", sa.ForeignKey("webhooks.id"), primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("next_attempt_at", sa.BigInteger),  # while pending
    sa.Column("delivered_at", sa.BigInteger),
    sa.Column("last_error", sa.String(200)),
    sa.CheckConstraint("state IN ('pending', 'delivered', 'failed')", name="state"),
)
sa.Index(
    "ix_problem_deliveries_pending",
    problem_deliveries.c.next_attempt_at,
    sqlite_where=problem_deliveries.c.state == "pending",
    postgresql_where=problem_deliveries.c.state == "pending",
)
