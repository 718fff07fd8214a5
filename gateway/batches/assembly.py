"""Writes the output file and the error file of a batch whose lines have ended, from the outputs in the database."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import msgspec
import sqlalchemy as sa

from billing.database import Database
from billing.ledger.messages import LineOutput
from billing.output_tables import line_outputs
from gateway import errors
from gateway.batch_tables import batch_lines
from gateway.batches import claims
from gateway.batches.claimed import ClaimedBatch, InputUnavailable
from gateway.batches.claims import AssemblyPlan, DamagedOutput
from gateway.batches.endpoints import ENDPOINTS
from gateway.batches.sealing import answered_line, is_readable, open_output, seal_output, unrun_line
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
CHARGED_UNREADABLE = "The request was answered and charged. Its answer cannot be decrypted any more."
REFUSED_UNREADABLE = "The request failed and was not charged. Its error cannot be decrypted any more."

_log = logging.getLogger(__name__)


class LinePosition(msgspec.Struct, frozen=True):
    """A line, and where it is in the input file."""

    line: int
    offset: int
    length: int


class RowsChanged(Exception):
    """The outputs of a batch have changed since its assembly was planned."""


class OutputDamaged(RowsChanged):
    """An output cannot be decrypted."""


class Assembler:
    """Writes the files of ended batches; each gateway process has one. `expires_s`: seconds until the files of a batch
    without an `output_expires_s` expire. `note_damaged`: called with the number of outputs that could not be decrypted
    and were replaced by an error."""

    def __init__(
        self,
        database: Database,
        contents: FileContents,
        expires_s: int,
        note_damaged: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._database = database
        self._contents = contents
        self._expires_s = expires_s
        self._note_damaged = note_damaged

    async def end_batch(self, batch: ClaimedBatch, key: TextKey) -> str:
        """Write the files and end the batch. Files that an earlier worker wrote have other ids and no row. Returns the
        batch's status. Raises LeaseLost, RowsChanged, TextUnreadable, ContentStoreFailed, DatabaseUnavailable."""
        row, epoch = batch.row, batch.epoch
        if row.in_progress_at is None:  # it ends before it was validated: not all of its lines are known
            await self._database.write_in_background(
                lambda connection: claims.restart_validation(connection, row.id, epoch)
            )
        try:
            plan, written = await self._write_files(batch, key)
        except OutputDamaged:
            await self._replace_damaged(batch, key)
            plan, written = await self._write_files(batch, key)
        await self._database.write_in_background(
            lambda connection: claims.end_batch(connection, row, epoch, plan, key, written)
        )
        return plan.status

    async def _write_files(
        self, batch: ClaimedBatch, key: TextKey
    ) -> tuple[AssemblyPlan, list[tuple[NewFile, WrittenFile]]]:
        """Raises LeaseLost, RowsChanged, OutputDamaged, TextUnreadable, ContentStoreFailed, DatabaseUnavailable."""
        plan = await self._database.write_in_background(
            lambda connection: claims.plan_assembly(
                connection, batch.id, batch.epoch, batch.output_file_id, batch.error_file_id
            )
        )
        written: list[tuple[NewFile, WrittenFile]] = []
        if plan.output_file_id is not None:
            parts = self._outputs(batch, key, plan.succeeded, errors=False)
            written.append(await self._write_file(batch, key, plan.output_file_id, "output", parts))
        if plan.error_file_id is not None:
            parts = self._error_lines(batch, key, plan)
            written.append(await self._write_file(batch, key, plan.error_file_id, "error", parts))
        return plan, written

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
        """The `count` outputs, or errors, in the order of their lines. Raises RowsChanged for another number, and
        OutputDamaged."""
        after = found = 0
        while rows := await self._read_outputs(batch.id, after, errors=errors):
            after, found = rows[-1][0], found + len(rows)
            for line, sealed in rows:
                try:
                    if len(sealed) <= OPEN_IN_LOOP_BYTES_MAX:
                        data = open_output(key, batch.id, line, sealed)
                    else:
                        data = await asyncio.to_thread(open_output, key, batch.id, line, sealed)
                except TextUnreadable as error:
                    raise OutputDamaged(f"line {line}: {error}") from None
                yield data + b"\n"
        _check_count(batch.id, found, count)

    async def _read_outputs(self, batch_id: str, after: int, *, errors: bool) -> list[tuple[int, bytes]]:
        """The next outputs: at most SEALED_READ_BYTES_MAX, or one."""
        return await self._database.report(lambda connection: _next_outputs(connection, batch_id, after, errors=errors))

    async def _replace_damaged(self, batch: ClaimedBatch, key: TextKey) -> None:
        """Replace each output that cannot be decrypted by an error, so that the batch has all others. Its charge
        remains. Raises LeaseLost, TextUnreadable, InputUnavailable, DatabaseUnavailable."""
        for errors_too in (False, True):
            after = 0
            while rows := await self._read_outputs(batch.id, after, errors=errors_too):
                after = rows[-1][0]
                if not (lines := await asyncio.to_thread(_damaged_lines, key, batch.id, rows)):
                    continue
                damaged = await self._database.read(
                    functools.partial(claims.read_damaged, batch_id=batch.id, lines=lines)
                )
                outputs = [await self._error_of(batch, key, output) for output in damaged]
                replace = functools.partial(
                    claims.replace_outputs, batch_id=batch.id, epoch=batch.epoch, key=key, outputs=outputs
                )
                await self._database.write_in_background(replace)
                self._note_damaged(len(outputs))

    async def _error_of(self, batch: ClaimedBatch, key: TextKey, output: DamagedOutput) -> LineOutput:
        """The error that replaces an output. Raises InputUnavailable."""
        fields = {"batch": batch.id, "line": output.line, "request_id": output.request_id}
        _log.error("batch.output_unreadable", extra={"fields": fields})
        data = await self._read_input(batch, [LinePosition(output.line, output.offset, output.length)])
        message = REFUSED_UNREADABLE if output.is_error else CHARGED_UNREADABLE
        if data is None:
            message = f"{message} The input file could not be read. This is its line {output.line}."
        error = errors.OutputUnreadable(message)
        custom_id = "" if data is None else read_line(data).custom_id
        body = ENDPOINTS[batch.row.endpoint].error_of(error, output.request_id)
        made = answered_line(custom_id, output.request_id, error.status, body)
        sealed = seal_output(key, batch.id, output.line, made)
        return LineOutput(batch.id, output.line, batch.epoch, sealed, is_error=True, code=error.code)

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

    async def _read_input(self, batch: ClaimedBatch, lines: Sequence[LinePosition]) -> bytes | None:
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

    async def _read_unrun(self, batch_id: str, after: int) -> list[LinePosition]:
        has_output = sa.exists().where(
            line_outputs.c.batch_id == batch_lines.c.batch_id, line_outputs.c.line == batch_lines.c.line
        )
        query = sa.select(batch_lines.c.line, batch_lines.c.file_offset, batch_lines.c.length).where(
            batch_lines.c.batch_id == batch_id, batch_lines.c.line > after, ~has_output
        )
        query = query.order_by(batch_lines.c.line).limit(LINES_READ_MAX)
        return await self._database.report(lambda connection: [LinePosition(*row) for row in connection.execute(query)])


def _near(lines: Sequence[LinePosition]) -> Iterator[list[LinePosition]]:
    """The lines in groups, each in at most INPUT_READ_BYTES_MAX of the file or one line."""
    group: list[LinePosition] = []
    for line in lines:
        if group and line.offset + line.length - group[0].offset > INPUT_READ_BYTES_MAX:
            yield group
            group = []
        group.append(line)
    if group:
        yield group


def _unrun(batch_id: str, plan: AssemblyPlan, lines: Sequence[LinePosition], data: bytes | None) -> bytes:
    """The error of each line; `data`: the input file from the first of them to the last. `data` None: the file could
    not be read, so the lines have no custom_id."""
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


def _damaged_lines(key: TextKey, batch_id: str, rows: Sequence[tuple[int, bytes]]) -> list[int]:
    return [line for line, sealed in rows if not is_readable(key, batch_id, line, sealed)]


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
