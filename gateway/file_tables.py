"""Tables beside `gateway.tables`, which imports this module: the files of tenants. They have the same conventions."""

from __future__ import annotations

import sqlalchemy as sa

from billing.tables import metadata

# Files of /v1/files. The content is encrypted, in the store of `gateway.files.contents`, under the file's id.
files = sa.Table(
    "files",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # file-…
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("key_id", sa.String(64), nullable=False),  # the key that uploaded the file, or that created its batch
    sa.Column("text_key_id", sa.String(64), nullable=False),  # of text_keys, which may have been deleted
    sa.Column("purpose", sa.String(32), nullable=False),  # batch, batch_output
    sa.Column("filename", sa.String(255), nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),  # of the plain content
    sa.Column("sha256", sa.String(64), nullable=False),  # of the plain content, hex
    sa.Column("uses", sa.Integer, nullable=False, server_default=sa.text("0")),  # batches that still read the content
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=True),  # hidden from then on; null: never
    sa.Column("deleted_at", sa.BigInteger, nullable=True),  # hidden; the content is removed when `uses` is 0
    sa.CheckConstraint("uses >= 0", name="uses"),
)
sa.Index("ix_files_tenant_id", files.c.tenant_id, files.c.created_at, files.c.id)
sa.Index("ix_files_expires_at", files.c.expires_at)
sa.Index("ix_files_deleted_at", files.c.deleted_at)
