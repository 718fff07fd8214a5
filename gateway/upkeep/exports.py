"""Works off the exports that operators asked for: one at a time, each in a process of its own.

It keeps the names that billing does not know, starts the process, and sees to the files: whole ones, within a bound.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import sys
from pathlib import Path

import sqlalchemy as sa

from billing.books.periods import Period
from billing.database import Database, DatabaseUnavailable
from billing.errors import BillingRefused
from billing.exports import export, jobs, labels
from billing.exports.export import ExportSpec
from billing.exports.jobs import EXIT_AGAIN, EXIT_STOPPED, ExportJob
from billing.ledger.settler import free_bytes
from gateway import tables

POLL_S = 1.0
STOP_S = 5.0  # a process that was told to end may take so long
IDS_MAX = 500  # of one look-up
STDERR_BYTES_MAX = 64 * 1024

_log = logging.getLogger(__name__)


class ExportFileElsewhere(Exception):
    """The file of an export that is done cannot be read by this gateway: says where it is."""


def host_name() -> str:
    return socket.gethostname()


def label(database: Database, spec: ExportSpec, provider: str) -> None:
    """Keep what the things in an export are called, before it begins. Raises BillingRefused, DatabaseUnavailable."""
    for period in database.read_sync(lambda c: list(export.of_spec(c, spec))):
        names = database.read_sync(lambda c, period=period: _names(c, period))  # type: ignore[misc]
        names[labels.PROVIDER] = provider
        database.write_sync(lambda c, period=period, names=names: labels.store_names(c, period, names))  # type: ignore[misc]


def _names(connection: sa.Connection, period: Period) -> dict[str, str]:
    found = labels.current_names(connection, period.tenant_id)
    subjects = labels.named_ids(connection, period)
    for at in range(0, len(subjects), IDS_MAX):
        part = subjects[at : at + IDS_MAX]
        for table in (tables.keys, tables.adapters):
            query = sa.select(table.c.id, table.c.name).where(table.c.id.in_(part))
            found |= {row.id: row.name for row in connection.execute(query)}
    return found


class Exporter:
    """One per gateway process. `directory` has a folder for each export; together they take at most `bytes_max`, with
    the oldest deleted first, and leave `free_min_bytes` of the disk free. Hosts may share the directory: then each
    serves the files of all."""

    def __init__(
        self,
        database: Database,
        gateway_id: str,
        directory: Path,
        *,
        bytes_max: int,
        free_min_bytes: int = 0,
        provider: str,
        poll_s: float = POLL_S,
        host: str | None = None,
    ) -> None:
        self._database = database
        self._gateway_id = gateway_id
        self._directory = directory
        self._bytes_max = bytes_max
        self._free_min_bytes = free_min_bytes
        self._provider = provider
        self._poll_s = poll_s
        self._host = host or host_name()
        self._away = ""

    def folder(self, export_id: str) -> Path:
        return self._directory / export_id

    def path(self, job: ExportJob, suffix: str) -> Path:
        """Of the file of an export that is done, or (by its suffix) of what lies beside it. Raises
        ExportFileElsewhere."""
        assert job.file is not None
        path = self.folder(job.id) / (job.file + suffix)
        if path.is_file():
            return path
        again = "Asked for anew, it is made again; of a closed month, with the same bytes."
        if job.host == self._host:
            raise ExportFileElsewhere(f"The file is gone from the host {job.host!r}, where it was made. {again}")
        raise ExportFileElsewhere(
            f"The file lies on the host {job.host!r}, and this is {self._host!r}: ask a gateway there. {again}"
        )

    async def delete_files(self, export_id: str) -> None:
        """Its files, if they are here."""
        await asyncio.to_thread(shutil.rmtree, self.folder(export_id), ignore_errors=True)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                while await self.export_next():
                    pass
                self._away = ""
            except (DatabaseUnavailable, OSError) as error:
                if not self._away:
                    _log.warning("exports.wait", extra={"fields": {"reason": str(error)}})
                self._away = str(error)
            await asyncio.sleep(self._poll_s)

    async def export_next(self) -> bool:
        """Work off the oldest export, if it is free. Raises DatabaseUnavailable, OSError."""
        if not await self._database.read(jobs.has_waiting):
            return False
        job = await self._database.write(lambda c: jobs.claim(c, self._gateway_id, self._host))
        if job is not None:
            await self._work(job)
            await self._tidy()
        return True

    async def _work(self, job: ExportJob) -> None:
        folder = self.folder(job.id)
        try:
            await asyncio.to_thread(_make_empty, folder)
            await asyncio.to_thread(label, self._database, job.spec, self._provider)
            status, words = await self._process(job, folder)
        except asyncio.CancelledError:
            await self.delete_files(job.id)
            await self._database.write(lambda c: jobs.release_claim(c, job.id, self._gateway_id))
            raise
        except BillingRefused as error:
            status, words = 1, str(error)
        except (DatabaseUnavailable, OSError) as error:
            status, words = EXIT_AGAIN, str(error)
        fields = {"export": job.id, "status": status, "reason": words}
        if status == 0:
            _log.info("export.done", extra={"fields": fields})
            return
        _log.warning("export.ended", extra={"fields": fields})
        await self.delete_files(job.id)
        if status != EXIT_STOPPED:
            again = status < 0 or status == EXIT_AGAIN  # killed, or without its database
            reason = words or f"the process ended with {status}"
            await self._database.write(lambda c: jobs.fail(c, job.id, self._gateway_id, reason, again=again))

    async def _process(self, job: ExportJob, folder: Path) -> tuple[int, str]:
        """Its exit status, below 0 when it was killed, and its last words."""
        room = await asyncio.to_thread(free_bytes, folder) - self._free_min_bytes
        if room <= 0:
            return 1, "the exports would leave less free disk space than the minimum"
        url = self._database.url.render_as_string(hide_password=False)
        arguments = (job.id, "--gateway", self._gateway_id, "--directory", str(folder))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "billing",
            *arguments,
            "--bytes-max",
            str(min(self._bytes_max, room)),
            env={**os.environ, "LANEWAY_DATABASE_URL": url},  # not on argv: it may hold a password
            stderr=asyncio.subprocess.PIPE,
            limit=STDERR_BYTES_MAX,
        )
        try:
            _, said = await process.communicate()
        except asyncio.CancelledError:
            process.terminate()
            try:
                async with asyncio.timeout(STOP_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
            raise
        lines = said.decode(errors="replace").strip().splitlines()
        assert process.returncode is not None
        return process.returncode, lines[-1] if lines else ""

    async def _tidy(self) -> None:
        """Remove the oldest files over the bound, and folders that are no export's any more. A whole file stays,
        whichever host made it; of an export that another host finished elsewhere, what we began here goes."""
        # What is there first, then whose it is: a folder is made after its export.
        there = await asyncio.to_thread(os.listdir, self._directory)
        found = await self._database.read(lambda c: jobs.active_jobs(c, there))
        kept = {job.id for job in found if job.state != "done"}
        gone: list[str] = []
        used = 0
        for job in found:  # the newest first
            if job.state != "done" or not await asyncio.to_thread((self.folder(job.id) / str(job.file)).is_file):
                continue
            used += job.size_bytes or 0
            if used > self._bytes_max:
                gone.append(job.id)
            else:
                kept.add(job.id)
        if gone:
            await self._database.write(lambda c: jobs.remove(c, gone))
        for export_id in set(there) - kept:
            await self.delete_files(export_id)


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
