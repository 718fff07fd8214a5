"""Runs one line of a batch as a request of the generator, in process: at the batches' tier, without rate limits.

Its output is recorded with its settlement. If a line ends without a settlement, an error is recorded as its output here
when the line itself is the cause; otherwise the result says why the line must run again.
"""

from __future__ import annotations

import asyncio
import enum
import functools
from collections.abc import Sequence

import msgspec

from billing.accounts.tags import store_line_tag_set
from billing.clock import database_now
from billing.coalescer import Coalescer
from billing.database import Database, DatabaseUnavailable
from billing.ledger.messages import LineOutput
from billing.ledger.outputs import record_unheld
from gateway import errors
from gateway.access.callers import Caller
from gateway.api.generation_request import GenerationRequest
from gateway.batches.claimed import ClaimedBatch
from gateway.batches.claims import LineTask
from gateway.batches.endpoints import ENDPOINTS, BatchEndpoint
from gateway.batches.sealing import answered_line, line_request_id, seal_output
from gateway.batches.validation import InputLine, read_line
from gateway.files.backends import ContentStoreFailed
from gateway.generation.answer import Answer, EarlyEnding
from gateway.generation.endings import EndingCode, EndingKind
from gateway.generation.generator import Generator
from gateway.generation.inflight import InFlight, LineRun
from gateway.generation.tier_choice import Tiers
from gateway.limits.limiter import Limiter
from gateway.log import LineCaller, RequestLine, RequestRecord
from gateway.stored.turns import refuse_without_turn

SEAL_IN_LOOP_BYTES_MAX = 64 * 1024  # of an output
RECORDED_AT_ONCE = 64  # outputs of one transaction
OK = 200
CODE_CHARS_MAX = 64  # of an error
LOST = frozenset(ending.value for ending in EndingCode if ending.kind is EndingKind.LOST)


class LineEnd(enum.Enum):
    """How an attempt ended."""

    RECORDED = enum.auto()  # the line has its output
    LEASE_LOST = enum.auto()
    NO_BUDGET = enum.auto()
    NO_INPUT = enum.auto()  # the input file cannot be read now
    NO_ACCESS = enum.auto()  # the key was revoked or has expired, or its tenant is suspended
    FAILED = enum.auto()  # it may run again


class LineResult(msgspec.Struct, frozen=True):
    """`error`: of an attempt that has no output, or whose output the error is. `is_counted`: the line itself may be the
    cause of the error, so that the line is not repeated without limit."""

    end: LineEnd
    request_id: str = ""
    custom_id: str = ""
    error: errors.ApiError | None = None
    is_counted: bool = False


class LineRunner:
    """Runs the lines of batches; each gateway process has one."""

    def __init__(self, database: Database, generator: Generator, limiter: Limiter, tiers: Tiers, tier: str) -> None:
        self._database = database
        self._generator = generator
        self._limiter = limiter
        self._service_tier = tiers.service_tier(tier)
        self._tag_sets: dict[tuple[str | None, str | None], str] = {}  # of lines, by tenant and the key's own set
        self._tag_set_stored = asyncio.Lock()
        self._outputs: Coalescer[tuple[str, LineOutput], bool] = Coalescer(
            self._record_outputs, name="batch-outputs", batch_max=RECORDED_AT_ONCE
        )

    async def run_line(self, batch: ClaimedBatch, task: LineTask) -> LineResult:
        """Run the line once. While it runs, `batch.running` has its answer. Raises TextUnreadable for a line that
        cannot be decrypted."""
        assert batch.reader is not None, "lines run once the batch is open"
        assert batch.caller is not None, "lines run once the key of the batch is read"
        request_id = line_request_id(batch.id, task.line, batch.epoch, batch.next_number(task.line))
        try:
            line = read_line(await batch.reader.read(task.offset, task.length))
        except ContentStoreFailed as failure:
            return LineResult(LineEnd.NO_INPUT, request_id, error=errors.EngineDown(f"The input file: {failure}."))
        endpoint = ENDPOINTS[batch.row.endpoint]
        record = RequestRecord(request_id=request_id, method="BATCH", route=batch.row.endpoint)
        record.tenant, record.key = batch.caller.tenant_id, batch.caller.key_id
        log = RequestLine(record)
        log.caller = LineCaller(batch.caller.project_id, batch.caller.tier)
        run = LineRun(
            batch.id,
            task.line,
            batch.epoch,
            task.target,
            functools.partial(self._seal_answer, batch, task.line, line.custom_id, request_id),
        )
        error: errors.ApiError | None = None
        try:
            tag_set_id = await self._tag_set_of(batch.caller)
            caller = msgspec.structs.replace(batch.caller, tag_set_id=tag_set_id)
            await self._answer_line(batch, task, caller, line, endpoint, log, run)
        except errors.ApiError as raised:
            error = raised
        except DatabaseUnavailable:
            error = errors.DatabaseDown("The database is unavailable.")
        finally:
            record.status = OK if error is None else error.status
            is_lost = record.ending in LOST
            log.release()
        if error is None:
            return LineResult(LineEnd.RECORDED if run.is_recorded else LineEnd.LEASE_LOST, request_id)
        return LineResult(
            _end_of(error), request_id, line.custom_id, error, is_lost or isinstance(error, errors.InternalError)
        )

    async def _tag_set_of(self, caller: Caller) -> str:
        """The tag set of the caller's lines, stored before a hold names it. Raises DatabaseUnavailable."""
        tenant_id, own = caller.tenant_id, caller.tag_set_id
        assert tenant_id is not None, "a key that calls models has a tenant"
        async with self._tag_set_stored:
            if (tenant_id, own) not in self._tag_sets:
                self._tag_sets[tenant_id, own] = await self._database.write_in_background(
                    lambda connection: store_line_tag_set(connection, tenant_id, own)
                )
        return self._tag_sets[tenant_id, own]

    async def _answer_line(
        self,
        batch: ClaimedBatch,
        task: LineTask,
        caller: Caller,
        line: InputLine,
        endpoint: BatchEndpoint,
        log: RequestLine,
        run: LineRun,
    ) -> None:
        """Raises ApiError, the answer's too; DatabaseUnavailable."""
        read = await self._generator.read(caller, endpoint.kind, bytes(line.body))
        log.record.ignored = read.ignored
        _check_line(read.asked)
        asked = msgspec.structs.replace(read.asked, service_tier=self._service_tier, is_line=True)
        request = await self._generator.begin_request(
            caller,
            asked,
            log,
            self._limiter.unlimited(),
            renderer=lambda request: endpoint.shape_of(request).whole_parts,
            line_run=run,
        )
        assert isinstance(request, InFlight)
        batch.running[task.line] = request.answer
        if batch.is_stopping:
            stop_answer(request.answer)
        while not request.answer.ended:
            await request.answer.changed()
        if request.answer.error is not None:
            raise request.answer.error

    async def record_error(self, batch: ClaimedBatch, task: LineTask, result: LineResult) -> LineResult:
        """Make the error of an attempt the output of its line. Raises DatabaseUnavailable."""
        assert result.error is not None
        body = ENDPOINTS[batch.row.endpoint].error_of(result.error, result.request_id)
        sealed = await self._seal_answer(
            batch, task.line, result.custom_id, result.request_id, body, status=result.error.status
        )
        code = (result.error.code or result.error.type)[:CODE_CHARS_MAX]
        output = LineOutput(batch.id, task.line, batch.epoch, sealed, is_error=True, code=code)
        is_recorded = await self._outputs.submit((result.request_id, output))
        return msgspec.structs.replace(result, end=LineEnd.RECORDED if is_recorded else LineEnd.LEASE_LOST)

    async def _seal_answer(
        self, batch: ClaimedBatch, line: int, custom_id: str, request_id: str, body: bytes, status: int = OK
    ) -> bytes:
        assert batch.key is not None
        data = answered_line(custom_id, request_id, status, body)
        if len(data) <= SEAL_IN_LOOP_BYTES_MAX:
            return seal_output(batch.key, batch.id, line, data)
        return await asyncio.to_thread(seal_output, batch.key, batch.id, line, data)

    async def _record_outputs(self, outputs: list[tuple[str, LineOutput]]) -> Sequence[bool]:
        return await self._database.write_in_background(
            lambda connection: record_unheld(connection, outputs, database_now(connection))
        )


def stop_answer(answer: Answer) -> None:
    """Abort a line: its batch ends early. Its tokens are discarded and not billed."""
    answer.stop(EarlyEnding(EndingCode.CANCELLED, errors.ResponseCancelled()))


def _check_line(asked: GenerationRequest) -> None:
    """Raises InvalidRequest for fields that an endpoint serves over HTTP only."""
    if asked.stream:
        raise errors.InvalidRequest("'stream' must be false in a batch.", param="stream")
    if asked.background:
        raise errors.InvalidRequest("'background' must be false in a batch.", param="background")
    if asked.store:  # absent, it is true for OpenAI; then the answer says that it is not stored
        raise errors.InvalidRequest("'store' must be false in a batch: its responses are not stored.", param="store")
    refuse_without_turn(asked.continues, asked.conversation_id)


def _end_of(error: errors.ApiError) -> LineEnd:
    """How an attempt with this error ended, unless the error becomes the line's output."""
    if isinstance(error, errors.BudgetExceeded):
        return LineEnd.NO_BUDGET
    if isinstance(error, errors.InvalidApiKey | errors.AccessEnded):
        return LineEnd.NO_ACCESS
    return LineEnd.FAILED


def may_run_again(error: errors.ApiError) -> bool:
    """Whether the error is the server's and not the line's own."""
    return error.status >= errors.InternalError.status or isinstance(
        error, errors.RateLimited | errors.ResponseCancelled
    )
