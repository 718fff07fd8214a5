"""People who sign in at an OpenID Connect provider, their sessions, one-time passwords of admin keys, and admin keys
for emergencies.

The version before neither reads nor writes the new tables and column: it refuses a person's cookie as an unknown one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("keys", sa.Column("break_glass", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.create_table(
        "people",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("issuer", sa.String(length=300), nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=True),
        sa.Column("email", sa.String(length=320), nullable=True),
        sa.Column("role", sa.String(length=16), nullable=True),
        sa.Column("tenant_id", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("signed_in_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "role IS NULL OR (role IN ('owner', 'operator', 'finance', 'tenant_admin', 'read_only') "
            "AND (role = 'tenant_admin') = (tenant_id IS NOT NULL))",
            name=op.f("ck_people_role"),
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_people_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_people")),
    )
    op.create_index("uq_people_issuer_subject", "people", ["issuer", "subject"], unique=True)
    op.create_index("ix_people_tenant_id", "people", ["tenant_id"], unique=False)
    op.create_table(
        "person_sessions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("person_id", sa.String(length=64), nullable=False),
        sa.Column("provider_sid", sa.String(length=255), nullable=True),
        sa.Column("tokens", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("checked_at", sa.BigInteger(), nullable=False),
        sa.Column("claimed_until", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["person_id"], ["people.id"], name=op.f("fk_person_sessions_person_id_people")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_person_sessions")),
        sa.UniqueConstraint("hash", name=op.f("uq_person_sessions_hash")),
    )
    op.create_index("ix_person_sessions_person_id", "person_sessions", ["person_id"], unique=False)
    op.create_index("ix_person_sessions_expires_at", "person_sessions", ["expires_at"], unique=False)
    op.create_table(
        "spent_tokens",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_spent_tokens")),
    )
    op.create_index("ix_spent_tokens_expires_at", "spent_tokens", ["expires_at"], unique=False)
    op.create_table(
        "key_totp",
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("confirmed_at", sa.BigInteger(), nullable=True),
        sa.Column("last_counter", sa.BigInteger(), nullable=False),
        sa.Column("recovery_hashes", sa.JSON(), nullable=False),
        sa.Column("wrong_codes", sa.BigInteger(), nullable=False),
        sa.Column("refused_until", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name=op.f("fk_key_totp_key_id_keys")),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_key_totp")),
    )


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
