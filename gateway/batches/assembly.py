"""Writes the output file and the error file of a batch whose lines have ended, from the outputs in the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec
import sqlalchemy as sa

from billing.database import Database
from billing.output_tables import line_outputs
from gateway.batch_tables import batch_lines
from gateway.batches import claims
from gateway.batches.claimed import ClaimedBatch
from gateway.batches.claims import AssemblyPlan
from gateway.batches.sealing import open_output, unrun_line
from gateway.batches.validation import read_line
from gateway.files.contents import FileContents, WrittenFile
from gateway.files.rows import OUTPUT_PURPOSE, NewFile
from gateway.stored.texts import TextKey

OUTPUTS_READ_MAX = 64  # at once; each may have megabytes
LINES_READ_MAX = 1000
INPUT_READ_BYTES_MAX = 1024 * 1024  # of the input file at once


class UnrunLine(msgspec.Struct, frozen=True):
    """A line without an output, and where it is in the input file."""

    line: int
    offset: int
    length: int


class Assembler:
    """Of one gateway process. `expires_s`: of files whose batch does not say."""

    def __init__(self, database: Database, contents: FileContents, expires_s: int) -> None:
        self._database = database
        self._contents = contents
        self._expires_s = expires_s

    async def end_batch(self, batch: ClaimedBatch, key: TextKey) -> str:
        """Write the files and end the batch. If an earlier worker began that, the files get the same ids and content.
        Returns the batch's status. Raises LeaseLost, TextUnreadable, ContentStoreFailed, DatabaseUnavailable."""
        row, epoch = batch.row, batch.epoch
        if row.in_progress_at is None:  # it ends before it was validated: not all of its lines are known
            await self._database.write_in_background(
                lambda connection: claims.restart_validation(connection, row.id, epoch)
            )
        plan = await self._database.write_in_background(
            lambda connection: claims.plan_assembly(connection, row.id, epoch)
        )
        written: list[tuple[NewFile, WrittenFile]] = []
        if plan.output_file_id is not None:
            parts = self._outputs(batch, key, errors=False)
            written.append(await self._write_file(batch, key, plan.output_file_id, "output", parts))
        if plan.error_file_id is not None:
            parts = self._error_lines(batch, key, plan)
            written.append(await self._write_file(batch, key, plan.error_file_id, "error", parts))
        await self._database.write_in_background(
            lambda connection: claims.end_batch(connection, row, epoch, plan, key, written)
        )
        return plan.status

    async def _write_file(
        self, batch: ClaimedBatch, key: TextKey, file_id: str, kind: str, parts: AsyncIterator[bytes]
    ) -> tuple[NewFile, WrittenFile]:
        row = batch.row
        new = NewFile(
            id=file_id,
            tenant_id=row.tenant_id,
            key_id=row.key_id,
            purpose=OUTPUT_PURPOSE,
            filename=f"{row.id}_{kind}.jsonl",
            expires_s=row.output_expires_s or self._expires_s,
        )
        return new, await self._contents.write(key, file_id, parts)

    async def _outputs(self, batch: ClaimedBatch, key: TextKey, *, errors: bool) -> AsyncIterator[bytes]:
        """The outputs, or the errors, in the order of their lines."""
        after = 0
        while rows := await self._read_outputs(batch.id, after, errors=errors):
            yield await asyncio.to_thread(_opened, key, batch.id, rows)
            after = rows[-1][0]

    async def _read_outputs(self, batch_id: str, after: int, *, errors: bool) -> list[tuple[int, bytes]]:
        query = sa.select(line_outputs.c.line, line_outputs.c.sealed).where(
            line_outputs.c.batch_id == batch_id, line_outputs.c.is_error == errors, line_outputs.c.line > after
        )
        query = query.order_by(line_outputs.c.line).limit(OUTPUTS_READ_MAX)
        return await self._database.report(
            lambda connection: [(line, bytes(sealed)) for line, sealed in connection.execute(query)]
        )

    async def _error_lines(self, batch: ClaimedBatch, key: TextKey, plan: AssemblyPlan) -> AsyncIterator[bytes]:
        """The errors of lines that failed, then the errors of lines that did not run."""
        async for part in self._outputs(batch, key, errors=True):
            yield part
        after = 0
        assert batch.reader is not None
        while lines := await self._read_unrun(batch.id, after):
            for some in _near(lines):
                begins = some[0].offset
                data = await batch.reader.read(begins, some[-1].offset + some[-1].length - begins)
                yield await asyncio.to_thread(_unrun, batch.id, plan, some, data)
            after = lines[-1].line

    async def _read_unrun(self, batch_id: str, after: int) -> list[UnrunLine]:
        has_output = sa.exists().where(
            line_outputs.c.batch_id == batch_lines.c.batch_id, line_outputs.c.line == batch_lines.c.line
        )
        query = sa.select(batch_lines.c.line, batch_lines.c.file_offset, batch_lines.c.length).where(
            batch_lines.c.batch_id == batch_id, batch_lines.c.line > after, ~has_output
        )
        query = query.order_by(batch_lines.c.line).limit(LINES_READ_MAX)
        return await self._database.report(lambda connection: [UnrunLine(*row) for row in connection.execute(query)])


def _near(lines: Sequence[UnrunLine]) -> Iterator[list[UnrunLine]]:
    """The lines in groups, each in at most INPUT_READ_BYTES_MAX of the file or one line."""
    group: list[UnrunLine] = []
    for line in lines:
        if group and line.offset + line.length - group[0].offset > INPUT_READ_BYTES_MAX:
            yield group
            group = []
        group.append(line)
    if group:
        yield group


def _unrun(batch_id: str, plan: AssemblyPlan, lines: Sequence[UnrunLine], data: bytes) -> bytes:
    """The error of each line; `data`: the input file from the first of them to the last."""
    found = []
    for line in lines:
        begins = line.offset - lines[0].offset
        custom_id = read_line(data[begins : begins + line.length]).custom_id
        found.append(unrun_line(custom_id, batch_id, line.line, plan.code, plan.message) + b"\n")
    return b"".join(found)


def _opened(key: TextKey, batch_id: str, rows: Sequence[tuple[int, bytes]]) -> bytes:
    return b"".join([open_output(key, batch_id, line, sealed) + b"\n" for line, sealed in rows])
