"""The hash chain of the audit log with its checkpoints, erasures of tenants, and restores from backups.

Code of the version before adds lines to the audit log without hashing them; gateways of this version add such lines to
the chain later. Lines of the log may now be deleted up to a signed checkpoint; an erasure may delete their contents.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

FIRST_HASH = "0" * 64
COLUMNS = ("id", "at", "actor", "action", "object_id", "request_id", "tenant_id")
PRUNED = (
    "EXISTS (SELECT 1 FROM audit_chain c JOIN audit_checkpoints p ON p.pruned AND c.position <= p.position "
    "WHERE c.entry_id = OLD.id)"
)
ERASED = "EXISTS (SELECT 1 FROM erasures e WHERE e.tenant_id = OLD.tenant_id)"
POSTGRES_FUNCTION = f"""
CREATE FUNCTION laneway_audit_log() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND {PRUNED} THEN
        RETURN OLD;
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.before IS NULL AND NEW.after IS NULL
        AND ({", ".join(f"NEW.{name}" for name in COLUMNS)})
            IS NOT DISTINCT FROM ({", ".join(f"OLD.{name}" for name in COLUMNS)}) AND {ERASED} THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME;
END
$$
"""
POSTGRES_TRIGGER = """
CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE ON audit_log
FOR EACH ROW EXECUTE FUNCTION laneway_audit_log()
"""
SQLITE_DELETE = f"""
CREATE TRIGGER audit_log_no_delete BEFORE DELETE ON audit_log WHEN NOT {PRUNED}
BEGIN SELECT RAISE(ABORT, 'audit_log is append-only'); END
"""
SQLITE_UPDATE = f"""
CREATE TRIGGER audit_log_no_update BEFORE UPDATE ON audit_log
WHEN NOT (NEW.before IS NULL AND NEW.after IS NULL AND {" AND ".join(f"NEW.{n} IS OLD.{n}" for n in COLUMNS)}
    AND {ERASED})
BEGIN SELECT RAISE(ABORT, 'audit_log is append-only'); END
"""
# Revision 0001 creates PostgreSQL's function.
POSTGRES_ROWS = """
CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table}
FOR EACH ROW EXECUTE FUNCTION laneway_append_only()
"""
POSTGRES_TRUNCATE = """
CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION laneway_append_only()
"""
SQLITE = """
CREATE TRIGGER {table}_no_{verb} BEFORE {verb} ON {table}
BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END
"""


def upgrade() -> None:
    op.create_table(
        "audit_chain",
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("entry_id", sa.BigInteger(), nullable=False),
        sa.Column("salt", sa.LargeBinary(), nullable=True),
        sa.Column("content", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_audit_chain")),
        sa.UniqueConstraint("entry_id", name=op.f("uq_audit_chain_entry_id")),
    )
    head = op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("chained_to", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_head")),
    )
    op.bulk_insert(head, [{"id": 1, "position": 0, "hash": FIRST_HASH, "chained_to": 0}])
    op.create_table(
        "audit_checkpoints",
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("pruned", sa.Boolean(), nullable=False),
        sa.Column("pruned_to", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("signer", sa.String(length=64), nullable=False),
        sa.Column("signature", sa.String(length=128), nullable=False),
        sa.PrimaryKeyConstraint("position", "pruned", name=op.f("pk_audit_checkpoints")),
    )
    op.create_table(
        "erasures",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_erasures")),
        sa.UniqueConstraint("tenant_id", name=op.f("uq_erasures_tenant_id")),
    )
    op.create_table(
        "restores",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("archive", sa.String(length=255), nullable=False),
        sa.Column("taken_at", sa.BigInteger(), nullable=False),
        sa.Column("began_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("report", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_restores")),
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TRIGGER audit_log_no_delete")
        op.execute("DROP TRIGGER audit_log_no_update")
        op.execute(SQLITE_DELETE)
        op.execute(SQLITE_UPDATE)
        for table in ("audit_checkpoints", "erasures"):
            for verb in ("update", "delete"):
                op.execute(SQLITE.format(table=table, verb=verb))
        return
    op.execute(POSTGRES_FUNCTION)
    op.execute("DROP TRIGGER audit_log_append_only ON audit_log")
    op.execute(POSTGRES_TRIGGER)
    for table in ("audit_checkpoints", "erasures"):
        op.execute(POSTGRES_ROWS.format(table=table))
        op.execute(POSTGRES_TRUNCATE.format(table=table))


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
