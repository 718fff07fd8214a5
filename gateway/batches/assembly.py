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
from gateway.batches.claimed import ClaimedBatch, InputUnavailable
from gateway.batches.claims import AssemblyPlan
from gateway.batches.sealing import open_output, unrun_line
from gateway.batches.validation import read_line
from gateway.files.backends import ContentStoreFailed
from gateway.files.contents import FileContents, WrittenFile
from gateway.files.rows import OUTPUT_PURPOSE, NewFile
from gateway.stored.texts import TextKey, TextUnreadable

OUTPUTS_READ_MAX = 64  # at once
SEALED_READ_BYTES_MAX = 4 * 1024 * 1024  # of outputs at once, unless one has more
OPEN_IN_LOOP_BYTES_MAX = 16 * 1024  # of a sealed output
LINES_READ_MAX = 1000
INPUT_READ_BYTES_MAX = 1024 * 1024  # of the input file at once


class UnrunLine(msgspec.Struct, frozen=True):
    """A line without an output, and where it is in the input file."""

    line: int
    offset: int
    length: int


class RowsChanged(Exception):
    """The outputs of a batch have changed since its assembly was planned."""


class Assembler:
    """Of one gateway process. `expires_s`: of files whose batch does not say."""

    def __init__(self, database: Database, contents: FileContents, expires_s: int) -> None:
        self._database = database
        self._contents = contents
        self._expires_s = expires_s

    async def end_batch(self, batch: ClaimedBatch, key: TextKey) -> str:
        """Write the files and end the batch. Files that an earlier worker wrote have other ids and no row. Returns the
        batch's status. Raises LeaseLost, RowsChanged, TextUnreadable, ContentStoreFailed, DatabaseUnavailable."""
        row, epoch = batch.row, batch.epoch
        if row.in_progress_at is None:  # it ends before it was validated: not all of its lines are known
            await self._database.write_in_background(
                lambda connection: claims.restart_validation(connection, row.id, epoch)
            )
        plan = await self._database.write_in_background(
            lambda connection: claims.plan_assembly(
                connection, row.id, epoch, batch.output_file_id, batch.error_file_id
            )
        )
        written: list[tuple[NewFile, WrittenFile]] = []
        if plan.output_file_id is not None:
            parts = self._outputs(batch, key, plan.succeeded, errors=False)
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

    async def _outputs(self, batch: ClaimedBatch, key: TextKey, count: int, *, errors: bool) -> AsyncIterator[bytes]:
        """The `count` outputs, or errors, in the order of their lines. Raises RowsChanged for another number."""
        after = found = 0
        while rows := await self._read_outputs(batch.id, after, errors=errors):
            after, found = rows[-1][0], found + len(rows)
            for line, sealed in rows:
                if len(sealed) <= OPEN_IN_LOOP_BYTES_MAX:
                    yield open_output(key, batch.id, line, sealed) + b"\n"
                else:
                    yield await asyncio.to_thread(open_output, key, batch.id, line, sealed) + b"\n"
        _check_count(batch.id, found, count)

    async def _read_outputs(self, batch_id: str, after: int, *, errors: bool) -> list[tuple[int, bytes]]:
        """The next outputs: at most SEALED_READ_BYTES_MAX, or one."""
        return await self._database.report(lambda connection: _next_outputs(connection, batch_id, after, errors=errors))

    async def _error_lines(self, batch: ClaimedBatch, key: TextKey, plan: AssemblyPlan) -> AsyncIterator[bytes]:
        """The errors of lines that failed, then the errors of lines that did not run."""
        async for part in self._outputs(batch, key, plan.failed - plan.unrun, errors=True):
            yield part
        after = found = 0
        while lines := await self._read_unrun(batch.id, after):
            for some in _near(lines):
                data = await self._read_input(batch, some)
                yield await asyncio.to_thread(_unrun, batch.id, plan, some, data)
            after, found = lines[-1].line, found + len(lines)
        _check_count(batch.id, found, plan.unrun)

    async def _read_input(self, batch: ClaimedBatch, lines: Sequence[UnrunLine]) -> bytes | None:
        """The input file from the first of the lines to the last; None: it cannot be read after the deadline, or it is
        damaged. Raises InputUnavailable."""
        if batch.reader is None:
            return None
        begins = lines[0].offset
        try:
            return await batch.reader.read(begins, lines[-1].offset + lines[-1].length - begins)
        except TextUnreadable:  # if the key was deleted, `claims.end_batch` finds that
            return None
        except ContentStoreFailed as error:
            if batch.is_input_given_up:
                return None
            raise InputUnavailable(f"the input file: {error}") from error

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


def _unrun(batch_id: str, plan: AssemblyPlan, lines: Sequence[UnrunLine], data: bytes | None) -> bytes:
    """The error of each line; `data`: the input file from the first of them to the last. None: it could not be read, so
    the lines have no custom_id."""
    found = []
    for line in lines:
        if data is None:
            message = f"{plan.message} The input file could not be read. This is its line {line.line}."
            found.append(unrun_line("", batch_id, line.line, plan.code, message) + b"\n")
            continue
        begins = line.offset - lines[0].offset
        custom_id = read_line(data[begins : begins + line.length]).custom_id
        found.append(unrun_line(custom_id, batch_id, line.line, plan.code, plan.message) + b"\n")
    return b"".join(found)


def _next_outputs(connection: sa.Connection, batch_id: str, after: int, *, errors: bool) -> list[tuple[int, bytes]]:
    outputs = line_outputs.c
    wanted = (outputs.batch_id == batch_id, outputs.is_error == errors, outputs.line > after)
    sizes = sa.select(outputs.line, sa.func.length(outputs.sealed)).where(*wanted).order_by(outputs.line)
    last, total = after, 0
    for line, size in connection.execute(sizes.limit(OUTPUTS_READ_MAX)).all():
        total += size
        if last > after and total > SEALED_READ_BYTES_MAX:
            break
        last = line
    rows = sa.select(outputs.line, outputs.sealed).where(*wanted, outputs.line <= last).order_by(outputs.line)
    return [(line, bytes(sealed)) for line, sealed in connection.execute(rows)]


def _check_count(batch_id: str, found: int, planned: int) -> None:
    """Raises RowsChanged, before the file has its name."""
    if found != planned:
        raise RowsChanged(f"{batch_id} has {found} rows of lines for a file of {planned} lines")
