"""Claims batches and runs them: validation, lines, assembly. Every gateway process has one worker.

A batch has one worker at a time, by its lease (billing.ledger.outputs). Lines of several batches run by the hour of
their batch's deadline, then by their tenant's running lines over its weight.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa

from billing.accounts.tenants import OnBudget
from billing.database import Database, DatabaseUnavailable
from billing.ledger.outputs import LeaseLost
from gateway import errors
from gateway.access.callers import Callers
from gateway.batches import claims
from gateway.batches.assembly import Assembler, RowsChanged
from gateway.batches.claimed import ClaimedBatch, InputUnavailable, TargetQueue, claims_of
from gateway.batches.claims import LineTask, WorkerView
from gateway.batches.lines import LineEnd, LineResult, LineRunner, may_run_again, stop_answer
from gateway.batches.pace import LinePace
from gateway.batches.preparation import BatchPreparer
from gateway.batches.sealing import line_request_id
from gateway.files.backends import ContentStoreFailed
from gateway.stored.texts import TextUnreadable

POLL_S = 1.0
# Between the beginnings of two lines of one gateway process: lines that begin together also end together, and the work
# of many ends at once would delay the first tokens of other requests.
BEGIN_EVERY_S = 0.004
CALLER_S = 10.0  # between two readings of the key of a batch
BODY_BYTES_MAX = 64 * 1024 * 1024  # of running lines; one line may have more if it runs alone
DELETED_GROUPS_MAX = 50  # of rows of ended batches, at each poll
LINES_READ_AT_ONCE = 256
LINES_WAITING_MIN = 128  # fewer waiting lines of a queue: more are read
RELEASES_MAX = 3  # attempts to release a lease; after them, the next poll claims the batch again
ATTEMPTS_MAX = 8  # of a line that an engine begins and does not end, or that fails with 500
RETRY_S_MIN, RETRY_S_MAX = 0.5, 60.0  # before the next attempt of a line, and before a failed stage is repeated
EXPIRED = claims.EXPIRED_CODE, claims.EXPIRED_MESSAGE
KEY_ENDED = "invalid_api_key", "The key of the batch was revoked or has expired."
TENANT_ENDED = "tenant_suspended", "The tenant of the batch was suspended."

T = TypeVar("T")
_log = logging.getLogger(__name__)


class BatchWorker:
    """Claims batches and runs their lines; each gateway process has one. `on_budget` returns the tenant's policy for
    lines that a budget does not cover, `wait` or `fail`."""

    def __init__(
        self,
        database: Database,
        gateway_id: str,
        callers: Callers,
        preparer: BatchPreparer,
        runner: LineRunner,
        assembler: Assembler,
        pace: LinePace,
        on_budget: Callable[[sa.Connection, str], OnBudget],
        has_holds: Callable[[sa.Connection, str], bool],
        note_ended: Callable[[bool], None],
    ) -> None:
        """`has_holds`: whether lines of the tenant have open holds, at any gateway.
        `note_ended`: called when the output of a line was recorded, with whether the line succeeded."""
        self._database = database
        self._gateway_id = gateway_id
        self._callers = callers
        self._preparer = preparer
        self._runner = runner
        self._assembler = assembler
        self.pace = pace
        self._on_budget = on_budget
        self._has_holds = has_holds
        self._note_ended = note_ended
        self._claimed: dict[str, ClaimedBatch] = {}
        self._policies: dict[str, OnBudget] = {}  # by tenant, as last read
        self._batch_tasks: set[asyncio.Task[None]] = set()
        self._running: dict[str, int] = {}  # lines by tenant
        self._body_bytes = 0  # of these lines
        self._wake = asyncio.Event()  # a line ended, or may run now
        self._poll_now = asyncio.Event()

    @property
    def outstanding(self) -> int:
        """Lines that run now."""
        return sum(self._running.values())

    def notice_batch(self) -> None:
        """A batch was created here: claim it at once."""
        self._poll_now.set()

    async def run(self) -> None:
        """Until cancelled. Lines that run then end with the generator, and other gateways claim the batches once this
        one has no lease."""
        dispatching = asyncio.create_task(self._dispatch(), name="batch-lines")
        try:
            while not dispatching.done():
                try:
                    await self._poll()
                except DatabaseUnavailable as error:
                    _log.warning("batches.database_unavailable", extra={"fields": {"reason": str(error)}})
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await self._poll_now.wait()
                self._poll_now.clear()
            dispatching.result()
        finally:
            dispatching.cancel()
            tasks = [*self._batch_tasks, *(task for batch in self._claimed.values() for task in batch.tasks)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(dispatching, *tasks, return_exceptions=True)

    async def _delete_ended_rows(self) -> None:
        """Delete rows of lines of ended batches, some groups at each poll. Raises DatabaseUnavailable."""
        for _ in range(DELETED_GROUPS_MAX):
            if not await self._database.write_in_background(claims.delete_ended_rows):
                return

    # ---- claims

    async def _poll(self) -> None:
        """Read what has changed, claim batches, and follow the engines. Raises DatabaseUnavailable."""
        ids = list(self._claimed)
        view = await self._database.read(lambda connection: claims.worker_view(connection, ids, self._gateway_id))
        for batch in list(self._claimed.values()):
            self._follow(batch, view)
        for claimable in claims_of(view.claimable, self._claimed.values()):
            claim = functools.partial(
                claims.claim_batch,
                batch_id=claimable.batch_id,
                gateway_id=self._gateway_id,
                epoch=claimable.epoch,
            )
            if (found := await self._database.write_in_background(claim)) is not None:
                self._begin_batch(ClaimedBatch(*found))
        now = asyncio.get_running_loop().time()
        for batch in list(self._claimed.values()):
            if now - batch.caller_read_at >= CALLER_S:
                await self._read_caller(batch)
        self.pace.adjust(self.outstanding)
        self._wake.set()
        if view.has_ended_rows:
            await self._delete_ended_rows()

    def _follow(self, batch: ClaimedBatch, view: WorkerView) -> None:
        state = view.states.get(batch.id)
        batch.is_past_deadline |= state is not None and view.now >= state.deadline_at
        if state is None or state.epoch != batch.epoch:
            batch.lose()
        elif state.status == "cancelling":
            batch.end_early("", "")  # the row has the reason
        elif batch.is_past_deadline:
            batch.end_early(*EXPIRED)

    def _begin_batch(self, batch: ClaimedBatch) -> None:
        fields = {"batch": batch.id, "epoch": batch.epoch, "status": batch.row.status}
        _log.info("batch.claimed", extra={"fields": fields})
        self._claimed[batch.id] = batch
        task = asyncio.create_task(self._own_batch(batch), name=batch.id)
        self._batch_tasks.add(task)
        task.add_done_callback(self._batch_tasks.discard)

    async def _own_batch(self, batch: ClaimedBatch) -> None:
        """Until the batch ends, or another gateway has claimed it. A stage that fails is repeated, with the input file
        and the key opened again. The lease is released, unless the gateway ends."""
        loop = asyncio.get_running_loop()
        pause_s = RETRY_S_MIN
        try:
            while True:
                began = loop.time()
                try:
                    await self._run_batch(batch)
                    break
                except LeaseLost:
                    _log.warning("batch.lease_lost", extra={"fields": {"batch": batch.id, "epoch": batch.epoch}})
                    break
                except (DatabaseUnavailable, ContentStoreFailed, RowsChanged, errors.ApiError) as error:
                    batch.input_failures += isinstance(error, InputUnavailable)
                    fields = {"batch": batch.id, "reason": str(error) or repr(error)}
                    _log.warning("batch.stage_failed", extra={"fields": fields})
                except Exception:  # noqa: BLE001 - a fault of one batch must not end the others
                    _log.exception("batch.failed", extra={"fields": {"batch": batch.id}})
                batch.close_input()
                if loop.time() - began > RETRY_S_MAX:  # the stage ran well meanwhile
                    pause_s, batch.input_failures = RETRY_S_MIN, 0
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S_MAX)
            await self._release(batch)
        finally:
            batch.lose()
            await self._stop_lines(batch)
            batch.close_input()
            del self._claimed[batch.id]
            self._poll_now.set()  # another batch may be claimed

    async def _release(self, batch: ClaimedBatch) -> None:
        """Let a gateway claim the batch at once, if this worker still has its lease."""
        batch.lose()
        await self._stop_lines(batch)
        for _ in range(RELEASES_MAX):
            try:
                await self._write(lambda c: claims.release_batch(c, batch.id, batch.epoch))
                return
            except LeaseLost:  # another gateway has claimed it, or it has ended
                return
            except DatabaseUnavailable as error:
                _log.warning("batch.not_released", extra={"fields": {"batch": batch.id, "reason": str(error)}})
            await asyncio.sleep(RETRY_S_MIN)

    async def _run_batch(self, batch: ClaimedBatch) -> None:
        """Run the stages; a batch that cannot be decrypted ends. Raises as they do, except TextUnreadable."""
        try:
            await self._run_stages(batch)
        except TextUnreadable as error:
            _log.error("batch.unreadable", extra={"fields": {"batch": batch.id, "reason": str(error)}})
            await self._write(lambda c: claims.end_unreadable(c, batch.row, batch.epoch))

    async def _run_stages(self, batch: ClaimedBatch) -> None:
        """Run the remaining stages of the batch, from the state in its row. Raises LeaseLost, RowsChanged,
        TextUnreadable, ContentStoreFailed, DatabaseUnavailable, ApiError."""
        key = await self._preparer.open_batch(batch)
        await self._read_caller(batch)
        if batch.row.status in ("validating", "in_progress") and not batch.is_stopping:
            is_valid = batch.row.status == "in_progress" or await self._preparer.validate_batch(batch, key)
            if not is_valid:
                return
            if not batch.is_stopping:
                await self._run_lines(batch)
        if batch.is_lost:
            raise LeaseLost(batch.id)
        end = batch.early_end
        if end is not None and end.code:
            await self._write(
                lambda c: claims.decide_end(c, batch.id, batch.epoch, end.code, end.message, listed=end.listed)
            )
        status = await self._assembler.end_batch(batch, key)
        _log.info("batch.ended", extra={"fields": {"batch": batch.id, "status": status}})

    async def _read_caller(self, batch: ClaimedBatch) -> None:
        """Read the key of the batch, with the settings of its tenant; the batch ends if the key is no longer usable.
        Raises DatabaseUnavailable."""
        row = batch.row
        caller = await self._database.read(lambda connection: self._callers.of_key(connection, row.key_id))
        if caller is None:
            status = await self._database.read(lambda connection: claims.tenant_status(connection, row.tenant_id))
            batch.end_early(*(KEY_ENDED if status == "active" else TENANT_ENDED), listed=True)
        else:
            policy = await self._database.read(lambda connection: self._on_budget(connection, row.tenant_id))
            self._policies[row.tenant_id] = policy
        batch.caller, batch.caller_read_at = caller, asyncio.get_running_loop().time()

    # ---- lines

    async def _run_lines(self, batch: ClaimedBatch) -> None:
        """Returns when each line has its output, or none will run any more. Raises InputUnavailable,
        DatabaseUnavailable."""
        batch.has_lost_input = False
        targets = await self._database.read(lambda connection: claims.targets_of(connection, batch.id))
        batch.queues = [TargetQueue(target) for target in targets]
        try:
            while not batch.is_stopping:
                batch.changed.clear()
                if batch.has_lost_input:
                    raise InputUnavailable("a line of the input file cannot be read")
                for queue in batch.queues:
                    await self._read_lines(batch, queue)
                self._wake.set()
                if not batch.tasks and all(queue.is_empty for queue in batch.queues):
                    return
                await batch.changed.wait()
        finally:
            batch.queues = []  # no further line begins
            await self._stop_lines(batch)

    async def _read_lines(self, batch: ClaimedBatch, queue: TargetQueue) -> None:
        """Read more lines of the queue if few wait. Raises DatabaseUnavailable."""
        if queue.is_read or len(queue.lines) >= LINES_WAITING_MIN:
            return
        found, queue.after = await self._database.read(
            lambda c: claims.next_lines(c, batch.id, queue.target, queue.after, LINES_READ_AT_ONCE)
        )
        queue.lines.extend(found)
        queue.is_read = len(found) < LINES_READ_AT_ONCE

    async def _stop_lines(self, batch: ClaimedBatch) -> None:
        """Abort the lines that run, and wait for them."""
        for answer in batch.running.values():
            if answer is not None and batch.is_stopping:
                stop_answer(answer)
        while batch.tasks:
            await asyncio.wait(batch.tasks)

    async def _dispatch(self) -> None:
        """Begin lines while the pace allows it, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            while self.outstanding < self.pace.limit and (chosen := self._choose(loop.time())) is not None:
                batch, queue = chosen
                if self._running and self._body_bytes + queue.lines[0].length > BODY_BYTES_MAX:
                    break
                self._begin_line(batch, queue, queue.lines.popleft())
                await asyncio.sleep(BEGIN_EVERY_S)
            now = loop.time()
            wakes_at = min([batch.wakes_at(now) for batch in self._claimed.values()], default=math.inf)
            timer = loop.call_at(min(wakes_at, now + POLL_S), self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()

    def _choose(self, now: float) -> tuple[ClaimedBatch, TargetQueue] | None:
        """The batch whose line runs next, and the queue of the line."""
        ready = [
            (
                batch.deadline_hour,
                self._running.get(batch.tenant_id, 0) / batch.weight,
                batch.row.created_at,
                batch,
                queue,
            )
            for batch in self._claimed.values()
            if (queue := batch.ready_queue(now)) is not None
        ]
        return min(ready, key=lambda found: found[:3])[3:] if ready else None

    def _begin_line(self, batch: ClaimedBatch, queue: TargetQueue, line: LineTask) -> None:
        self._running[batch.tenant_id] = self._running.get(batch.tenant_id, 0) + 1
        self._body_bytes += line.length
        batch.running[line.line] = None
        task = asyncio.create_task(self._run_line(batch, queue, line))
        batch.tasks.add(task)
        task.add_done_callback(functools.partial(self._end_line, batch, line))

    def _end_line(self, batch: ClaimedBatch, line: LineTask, task: asyncio.Task[None]) -> None:
        batch.tasks.discard(task)
        batch.running.pop(line.line, None)
        self._body_bytes -= line.length
        left = self._running[batch.tenant_id] - 1
        if left:
            self._running[batch.tenant_id] = left
        else:
            del self._running[batch.tenant_id]
        batch.changed.set()
        self._wake.set()

    async def _run_line(self, batch: ClaimedBatch, queue: TargetQueue, line: LineTask) -> None:
        """One attempt of a line. A line without an output waits in its queue again, unless its batch ends."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            result = await self._attempt_line(batch, line)
            if result.error is not None:
                result = await self._after_failure(batch, queue, line, result)
            if result.end is LineEnd.LEASE_LOST:
                result = await self._reread_line(batch, line, result)
        except LeaseLost:
            result = LineResult(LineEnd.LEASE_LOST)
        except DatabaseUnavailable as error:
            result = LineResult(LineEnd.FAILED, error=errors.DatabaseDown(str(error)))
        except Exception:  # noqa: BLE001 - the error of the line cannot be recorded
            _log.exception("batch.line_failed", extra={"fields": {"batch": batch.id, "line": line.line}})
            result = LineResult(LineEnd.FAILED, error=errors.InternalError(), is_counted=True)
        match result.end:
            case LineEnd.RECORDED:
                self._note_ended(result.error is None)
                batch.numbers.pop(line.line, None)  # it does not run again
                queue.pause.reset()
                batch.input_failures = 0
                batch.note_budget(covers=not isinstance(result.error, errors.BudgetExceeded))
            case LineEnd.LEASE_LOST:
                batch.lose()
            case LineEnd.NO_BUDGET:
                batch.budget_pause.extend(began, loop.time())
                queue.lines.appendleft(line)
            case LineEnd.NO_INPUT:
                batch.has_lost_input = True
                self._delay_line(batch, queue, line)
            case _:
                if not result.is_counted:  # other lines of the queue would fail too
                    queue.pause.extend(began, loop.time())
                self._delay_line(batch, queue, line)

    async def _attempt_line(self, batch: ClaimedBatch, line: LineTask) -> LineResult:
        """Run the line once. A fault of the server counts as an attempt, so that it does not repeat without limit."""
        try:
            return await self._runner.run_line(batch, line)
        except DatabaseUnavailable:
            raise
        except Exception:  # noqa: BLE001 - the line runs again; a fault that remains ends it by its attempts
            _log.exception("batch.line_failed", extra={"fields": {"batch": batch.id, "line": line.line}})
            number = batch.numbers.get(line.line, 0)
            request_id = line_request_id(batch.id, line.line, batch.epoch, number)
            return LineResult(LineEnd.FAILED, request_id, error=errors.InternalError(), is_counted=True)

    async def _reread_line(self, batch: ClaimedBatch, line: LineTask, result: LineResult) -> LineResult:
        """Why an output was not recorded: the lease is lost, or an earlier attempt's output was recorded and the
        database's answer was lost. Raises DatabaseUnavailable."""
        state = await self._database.read(lambda connection: claims.line_state(connection, batch.id, line.line))
        if state.epoch != batch.epoch:
            return result
        if state.is_error is None:
            return LineResult(LineEnd.FAILED, result.request_id, error=errors.InternalError())
        error = errors.InternalError() if state.is_error else None
        return LineResult(LineEnd.RECORDED, result.request_id, error=error)

    async def _after_failure(
        self, batch: ClaimedBatch, queue: TargetQueue, line: LineTask, result: LineResult
    ) -> LineResult:
        """Handle a line that has no output. Returns the same result if the line runs again. Raises
        DatabaseUnavailable."""
        assert result.error is not None
        if batch.is_stopping:
            return result
        if result.end is LineEnd.NO_ACCESS:
            await self._read_caller(batch)
            return result
        if result.end is LineEnd.NO_BUDGET:
            # Holds of the tenant's other lines may be the cause: a refusal is final only without them (`note_refusal`).
            if not batch.is_out_of_budget:
                holds = await self._database.read(lambda connection: self._has_holds(connection, batch.tenant_id))
                batch.note_refusal(is_alone=not holds and self._running.get(batch.tenant_id, 0) <= 1)
            fails = batch.is_out_of_budget and self._policies.get(batch.tenant_id) == "fail"
            return await self._runner.record_error(batch, line, result) if fails else result
        if result.end is LineEnd.NO_INPUT:
            return result
        if not may_run_again(result.error):
            return await self._runner.record_error(batch, line, result)
        if isinstance(result.error, errors.Overloaded):
            self.pace.note_full()
        if result.is_counted:
            line.attempts += 1
            await self._write(lambda c: claims.note_attempt(c, batch.id, batch.epoch, line.line))
            if line.attempts >= ATTEMPTS_MAX:
                return await self._runner.record_error(batch, line, result)
        return result

    def _delay_line(self, batch: ClaimedBatch, queue: TargetQueue, line: LineTask) -> None:
        """Let the line wait before its next attempt: twice as long after each."""
        queue.delayed += 1

        def requeue() -> None:
            queue.delayed -= 1
            queue.lines.append(line)
            batch.changed.set()
            self._wake.set()

        wait_s = min(RETRY_S_MIN * 2 ** min(line.attempts, 16), RETRY_S_MAX)
        asyncio.get_running_loop().call_later(wait_s, requeue)

    async def _write(self, function: Callable[[sa.Connection], T]) -> T:
        return await self._database.write_in_background(function)
