"""A tenant with a file, and one gateway with a live lease, for tests of the rows of batches."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from billing.accounts import tenants
from billing.clock import database_now
from billing.database import Database
from billing.ledger.leases import extend
from billing.ledger.messages import LineOutput
from billing.ledger.outputs import record_unheld
from gateway.access import keys
from gateway.batches import claims, rows
from gateway.batches.rows import BatchRow, NewBatch
from gateway.batches.validation import ValidLine
from gateway.config.batches_settings import BatchesSection
from gateway.config.server_secrets import ServerSecrets
from gateway.files.contents import WrittenFile
from gateway.files.rows import OUTPUT_PURPOSE, UPLOAD_PURPOSE, NewFile, insert_file, new_file_id
from gateway.stored.texts import TextKey, TextKeys

GATEWAY, OTHER = "gw_1", "gw_2"
LINES = 5


class Stage:
    """A tenant with a file, and one gateway with a live lease."""

    def __init__(self, database: Database) -> None:
        self.database = database

        def make(connection: sa.Connection) -> tuple[str, str, TextKey]:
            tenant = tenants.create_tenant(connection, slug="acme", name="Acme", tier="standard")
            key = keys.create_key(connection, tenant_id=tenant.id, name="test")
            text_key = TextKeys(ServerSecrets(b"s" * 32)).ensure_key(connection, tenant.id)
            extend(connection, GATEWAY, 60.0, database_now(connection))
            return tenant.id, key.key.id, text_key

        self.tenant_id, self.key_id, self.key = database.write_sync(make)
        self.file_id = new_file_id()
        new = self.file(self.file_id, UPLOAD_PURPOSE)
        database.write_sync(lambda c: insert_file(c, new, self.key, WrittenFile(10, "0" * 64)))

    def file(self, file_id: str, purpose: str = OUTPUT_PURPOSE) -> NewFile:
        return NewFile(
            id=file_id,
            tenant_id=self.tenant_id,
            key_id=self.key_id,
            purpose=purpose,
            filename="a.jsonl",
            expires_s=3600,
        )

    def new(self, **fields: Any) -> NewBatch:
        wanted: dict[str, Any] = {"endpoint": "/v1/completions", "input_file_id": self.file_id, "window_hours": 1}
        wanted |= fields
        return NewBatch(tenant_id=self.tenant_id, key_id=self.key_id, **wanted)

    def create(self, **fields: Any) -> BatchRow:
        return self.write(lambda c: rows.create_batch(c, self.new(**fields), BatchesSection(tenant_batches_max=3)))

    def claim(self, gateway_id: str = GATEWAY) -> tuple[BatchRow, int] | None:
        view = self.write(lambda c: claims.worker_view(c, [], gateway_id))
        if not view.claimable:
            return None
        [found] = view.claimable
        return self.write(lambda c: claims.claim_batch(c, found.batch_id, gateway_id, found.epoch))

    def run(self, row: BatchRow, epoch: int) -> None:
        """Its lines are inserted: those of model `b` first."""
        lines = [
            (ValidLine(number, number * 10, 9, "m", b""), "b" if number % 2 else "m")
            for number in sorted(range(1, LINES + 1), key=lambda number: number % 2 == 0)
        ]
        self.write(lambda c: claims.insert_lines(c, row.id, epoch, 0, lines))
        assert self.write(lambda c: claims.begin_run(c, row, epoch, self.key, LINES, 100, 1000)) is None

    def record(self, row: BatchRow, epoch: int, line: int, *, is_error: bool = False) -> bool:
        output = LineOutput(row.id, line, epoch, b"sealed", is_error)
        return self.write(lambda c: record_unheld(c, [("req_1", output)], 1))[0]

    def read(self, row: BatchRow) -> BatchRow:
        found = self.write(lambda c: rows.read_batch(c, self.tenant_id, row.id))
        assert found is not None
        return found

    def write(self, function: Any) -> Any:
        return self.database.write_sync(function)
