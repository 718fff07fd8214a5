"""Makes endings durable: in the database or, while it is unavailable, in this host's journal. Each ending counts once.

After an ending was journaled, all further endings are journaled at once, until the journal has been settled. Journals
of this host's dead gateways are settled too. This module knows no engine and no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from billing.coalescer import Coalescer
from billing.database import ROW_REFUSED, DatabaseUnavailable
from billing.ledger import journal as journals
from billing.ledger.journal import RECORD_BYTES_MAX, Journal, JournalFailed, JournalRecord
from billing.ledger.ledger import Ledger, LedgerUnavailable
from billing.ledger.messages import HoldEnding, Settlement, Void
from billing.timeouts import StallTolerantTimeout

SETTLE_WAIT_S = 2.0
REPEAT_S = 0.5  # between two attempts of a settlement that is not journaled
TURN_S = 1.0
APPEND_MAX = 1024  # records written with one fsync
# A record of the journal names at most this number of engine processes; above it the record names no process.
ENGINES_MAX = 32
# Errors that the ledger would raise for this ending at every attempt. After any other error the ending is journaled and
# retried.
REFUSED = (AssertionError, LookupError, *ROW_REFUSED)

T = TypeVar("T")
_log = logging.getLogger("laneway.billing")


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write on the file system of `folder`."""
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize


class Settler:
    """One per gateway process, beside its ledger. Call `start` before the first audit, keep `run` running, and call
    `close` after the ledger's."""

    def __init__(
        self,
        ledger: Ledger,
        folder: Path,
        name: str,
        *,
        bytes_max: int,
        disk_free_min_bytes: int,
        wait_s: float = SETTLE_WAIT_S,
        turn_s: float = TURN_S,
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        """`folder`: of all journals of this host. `name`: of this gateway's journal in it. `bytes_max`: the journal's
        size. `disk_free_min_bytes`: with less free space on the disk, no request may run. `wait_s`: how long an ending
        may wait for the database before it is journaled. `turn_s`: how often journals are settled. `free`: measures the
        free space of a folder's disk."""
        self._ledger = ledger
        self._folder = folder
        self._path = folder / (name + journals.SUFFIX)
        self._bytes_max = bytes_max
        self._disk_free_min_bytes = disk_free_min_bytes
        self._wait_s = wait_s
        self._turn_s = turn_s
        self._free = free
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._journal: Journal | None = None
        self._appends: Coalescer[JournalRecord, None] = Coalescer(self._append, name="journal", batch_max=APPEND_MAX)
        self._database_down = False
        self._drained = False  # the journal has failed, and all of its readable records are settled
        self.disk_free = 0  # bytes, as of the last round of `settle_journals`
        self._waiting_since = 0.0  # time.monotonic of the first record in the journal
        self._logged_reason = ""
        self.journaled = 0
        self.replayed = 0
        self.rejected = 0  # endings of journals that can never be settled, and the tokens that they name
        self.rejected_tokens = 0

    # ---- for requests

    def refuses(self, running: int) -> str | None:
        """The reason why no further request may run beside `running` requests; None: it may run. Each running request
        may still need a record of the journal."""
        if failed := self._failed():
            return f"the journal cannot be written: {failed}"
        if self.disk_free < self._disk_free_min_bytes:
            return f"the disk of {self._folder} has {self.disk_free} bytes left, fewer than {self._disk_free_min_bytes}"
        if self.bytes_used + (running + 1) * RECORD_BYTES_MAX > self._bytes_max:
            return f"the journal has {self.bytes_used} of {self._bytes_max} bytes, and {running} requests run"
        return None

    def storage_fault(self) -> str:
        """Why the journal cannot take one more record, without secrets; "": it can."""
        if self._failed():
            return "the gateway's journal cannot be written"
        if self.disk_free < self._disk_free_min_bytes:
            return "the gateway's disk is full"
        return "the gateway's journal is full" if self.refuses(0) is not None else ""

    def _failed(self) -> str:
        return "" if self._journal is None else self._journal.failed

    @property
    def bytes_used(self) -> int:
        return 0 if self._journal is None else self._journal.used

    @property
    def waiting_s(self) -> float:
        """Seconds since the oldest ending in the journal was written; 0: the journal is empty."""
        return time.monotonic() - self._waiting_since if self.bytes_used else 0.0

    async def settle(self, settlement: Settlement) -> HoldEnding:
        """Settle; the settlement is durable when this returns. The outcome is "journaled" if the database is
        unavailable. Raises LedgerUnavailable if the journal failed too, and HoldUnknown and AssertionError as
        `Ledger.settle`."""
        return await self._end_hold(settlement)

    async def settle_unjournaled(self, settlement: Settlement) -> HoldEnding:
        """As `settle`, for a line of a batch: its output is recorded with its settlement, and a journal has no
        outputs. Waits until the database is available. If the caller is cancelled, the hold may stay open: it
        expires with this gateway's lease. Raises HoldUnknown and AssertionError as `Ledger.settle`."""
        while True:
            try:
                return await self._ledger.settle(settlement)
            except LedgerUnavailable:
                await asyncio.sleep(REPEAT_S)

    def journal_settlement(self, settlement: Settlement) -> None:
        """As `settle`, for a caller that cannot wait because the process ends: write to the journal only. A failure is
        logged as `ending.lost`."""
        self._journal_unwaited(settlement)

    async def void(self, request_id: str, reason: str) -> HoldEnding:
        """As `settle`, for a request that made no tokens."""
        return await self._end_hold(Void(request_id, reason))

    async def _end_hold(self, ending: JournalRecord) -> HoldEnding:
        if not self._database_down or self._failed():
            try:
                async with StallTolerantTimeout(self._wait_s):
                    return await self._end_in_ledger(ending)
            except asyncio.CancelledError:  # the caller was cancelled; its ending must be recorded all the same
                self._journal_unwaited(ending)
                raise
            except REFUSED:
                raise
            except Exception as error:  # noqa: BLE001 - any failure: the ending must be recorded
                self._begin_journal(error)
        appended = self._journal_ending(ending)
        try:
            await asyncio.shield(appended)
        except asyncio.CancelledError:
            appended.add_done_callback(partial(_log_if_lost, ending))
            raise
        except JournalFailed as error:
            raise LedgerUnavailable(f"the database is unavailable, and {error}") from error
        self.journaled += 1
        return HoldEnding(ending.request_id, "journaled")

    def _begin_journal(self, error: Exception) -> None:
        if not self._database_down:
            is_expected = isinstance(error, TimeoutError | LedgerUnavailable)
            reason = (str(error) or "the database is slow") if is_expected else repr(error)
            _log.warning("journal.begins", extra={"fields": {"reason": reason}})
        self._database_down = True

    async def _end_in_ledger(self, ending: JournalRecord) -> HoldEnding:
        if isinstance(ending, Settlement):
            return await self._ledger.settle(ending)
        return await self._ledger.void(ending.request_id, ending.reason)

    # ---- the journal: one thread writes to it; endings that arrive during a write share the next fsync

    def _journal_ending(self, ending: JournalRecord) -> asyncio.Future[None]:
        if isinstance(ending, Settlement):
            ending.check()
            if len(ending.engines) > ENGINES_MAX:
                ending = msgspec.structs.replace(ending, engines={})
        return self._appends.submit(ending)

    def _journal_unwaited(self, ending: JournalRecord) -> None:
        self._journal_ending(ending).add_done_callback(partial(_log_if_lost, ending))

    async def _append(self, endings: list[JournalRecord]) -> list[None]:
        try:
            assert self._journal is not None, "start it first"
            if not self._journal.used:
                self._waiting_since = time.monotonic()
            await self._in_thread(self._journal.append, endings)
        except JournalFailed:
            raise
        except Exception as error:
            _log.critical("journal.broken", exc_info=True)
            raise JournalFailed(repr(error)) from error
        return [None] * len(endings)

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    # ---- settling journals

    async def start(self) -> None:
        """Create this gateway's journal, and settle the journals of this host's dead gateways, before an audit can
        expire their holds. Raises OSError, DatabaseUnavailable."""
        self._journal = await self._in_thread(Journal.create, self._path, self._bytes_max)
        try:
            await self.settle_journals()
        except (LedgerUnavailable, JournalFailed) as error:
            raise DatabaseUnavailable(str(error)) from error

    async def run(self) -> None:
        """Settle journals every `turn_s` until cancelled."""
        while True:
            await asyncio.sleep(self._turn_s)
            try:
                await self.settle_journals()
            except (LedgerUnavailable, JournalFailed, OSError) as error:
                self._log_waiting(f"{type(error).__name__}: {error}")
            else:
                self._log_waiting("")

    async def settle_journals(self) -> None:
        """Measure the free disk space, and settle the journals of this gateway and of the host's dead gateways.
        Raises LedgerUnavailable, JournalFailed, OSError."""
        assert self._journal is not None, "start it first"
        self.disk_free = await self._in_thread(self._free, self._folder)
        await self._drain(self._journal)
        self._database_down = False
        for path in await self._in_thread(journals.paths, self._folder):
            left = None if path == self._path else await self._in_thread(Journal.adopt, path)
            if left is not None:
                try:
                    await self._replay(left)
                finally:
                    await self._in_thread(left.close)

    async def settle_own_journal(self) -> None:
        """Settle this gateway's journal before its lease is released. Raises DatabaseUnavailable."""
        await self._appends.wait_idle()
        if self._journal is None:
            return
        try:
            await self._drain(self._journal)
        except (LedgerUnavailable, JournalFailed, OSError) as error:
            raise DatabaseUnavailable(str(error)) from error

    async def close(self) -> None:
        """Write the waiting endings, and close the journal. Its file is deleted if it has no records."""
        await self._appends.wait_idle()
        if self._journal is not None:
            await self._in_thread(self._journal.close)
        self._thread.shutdown()

    async def _drain(self, own: Journal) -> None:
        """Settle this gateway's journal. A failed journal accepts no more records, so it is settled once; its records
        stay in the file. Raises as `_replay` does."""
        if self._drained:
            return
        try:
            await self._replay(own)
        except JournalFailed:
            self._drained = True
            raise
        self._drained = bool(own.failed)

    async def _replay(self, journal: Journal) -> None:
        at = count = 0
        refused: list[tuple[JournalRecord, str]] = []
        while True:
            endings, at = await self._in_thread(journal.read, at)
            if endings:
                refused += await self._settle_all(endings)
                count += len(endings)
                continue
            await self._reject(refused)
            refused = []
            if await self._in_thread(journal.clear, at):
                break
        if count:
            _log.warning("journal.settled", extra={"fields": {"journal": journal.path.name, "endings": count}})

    async def _reject(self, refused: list[tuple[JournalRecord, str]]) -> None:
        """Write endings that can never be settled to the file of rejected endings, before their journal is cleared.
        Raises OSError."""
        if not refused:
            return
        await self._in_thread(journals.reject, self._folder, refused)
        self.rejected += len(refused)
        for ending, reason in refused:
            self.rejected_tokens += ending.made_tokens if isinstance(ending, Settlement) else 0
            _lost(ending, reason)

    async def _settle_all(self, endings: list[JournalRecord]) -> list[tuple[JournalRecord, str]]:
        """Settle these endings; return the endings that the ledger refuses at every attempt, each with the reason.
        Raises LedgerUnavailable."""
        calls = [self._end_in_ledger(ending) for ending in endings]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, LedgerUnavailable | asyncio.CancelledError):
                raise answer  # all are repeated later; an ending counts once
            if isinstance(answer, BaseException) and not isinstance(answer, REFUSED):
                raise LedgerUnavailable(repr(answer)) from answer
        refused: list[tuple[JournalRecord, str]] = []
        for ending, answer in zip(endings, answers, strict=True):
            if isinstance(answer, BaseException):
                refused.append((ending, repr(answer)))
            elif isinstance(ending, Settlement) and answer.outcome != "settled":
                fields = {"request_id": ending.request_id, "outcome": answer.outcome, "tokens": ending.made_tokens}
                _log.error("settlement.too_late", extra={"fields": fields})
        self.replayed += len(endings)
        return refused

    def _log_waiting(self, reason: str) -> None:
        """Log why the journals cannot be settled, once for the same reason; "": they were settled."""
        if reason and reason != self._logged_reason:
            _log.warning("journal.waits", extra={"fields": {"reason": reason, "bytes": self.bytes_used}})
        self._logged_reason = reason


def _log_if_lost(ending: JournalRecord, appended: asyncio.Future[None]) -> None:
    if not appended.cancelled() and (failure := appended.exception()) is not None:
        _lost(ending, str(failure))


def _lost(ending: JournalRecord, reason: str) -> None:
    _log.critical("ending.lost", extra={"fields": {"reason": reason, "ending": msgspec.to_builtins(ending)}})
