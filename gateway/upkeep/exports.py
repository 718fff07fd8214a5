"""Runs the exports that operators ordered, one at a time, each in a separate process.

It stores the names that billing does not know, starts the process, and limits the files of all exports to `bytes_max`.
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
STOP_S = 5.0  # a terminated process is killed after this time
IDS_MAX = 500  # ids of one query
STDERR_BYTES_MAX = 64 * 1024

_log = logging.getLogger(__name__)


class ExportFileElsewhere(Exception):
    """This gateway cannot read the file of a completed export; the message says where the file is."""


def host_name() -> str:
    return socket.gethostname()


def label(database: Database, spec: ExportSpec, provider: str) -> None:
    """Store the names of everything in an export before it begins. Raises BillingRefused, DatabaseUnavailable."""
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
    """One per gateway process. `directory` has a folder for each export. The files take at most `bytes_max` in all,
    with the oldest deleted first, and leave `free_min_bytes` of the disk free. Hosts may share the directory, and then
    serve each other's files."""

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
        self._waiting_for = ""  # why exports wait; logged once

    def folder(self, export_id: str) -> Path:
        return self._directory / export_id

    def path(self, job: ExportJob, suffix: str) -> Path:
        """The path of a completed export's file, or with a `suffix` of a file beside it. Raises ExportFileElsewhere."""
        assert job.file is not None
        path = self.folder(job.id) / (job.file + suffix)
        if path.is_file():
            return path
        again = "A new export of the same month can be ordered; of a closed month it has the same bytes."
        if job.host == self._host:
            raise ExportFileElsewhere(f"The file was deleted from the host {job.host!r}, where it was made. {again}")
        raise ExportFileElsewhere(
            f"The file is on the host {job.host!r}, and this gateway is on {self._host!r}: use a gateway there. {again}"
        )

    async def delete_files(self, export_id: str) -> None:
        """Delete the export's files on this host, if there are any."""
        await asyncio.to_thread(shutil.rmtree, self.folder(export_id), ignore_errors=True)

    async def run(self) -> None:
        """Run exports until cancelled."""
        while True:
            try:
                while await self.export_next():
                    pass
                self._waiting_for = ""  # why exports wait; logged once
            except (DatabaseUnavailable, OSError) as error:
                if not self._waiting_for:
                    _log.warning("exports.wait", extra={"fields": {"reason": str(error)}})
                self._waiting_for = str(error)
            await asyncio.sleep(self._poll_s)

    async def export_next(self) -> bool:
        """Run the oldest export that waits; return whether one waited. Raises DatabaseUnavailable, OSError."""
        if not await self._database.read(jobs.has_waiting):
            return False
        job = await self._database.write(lambda c: jobs.claim_export(c, self._gateway_id, self._host))
        if job is not None:
            await self._run_export(job)
            await self._delete_surplus()
        return True

    async def _run_export(self, job: ExportJob) -> None:
        folder = self.folder(job.id)
        try:
            await asyncio.to_thread(_make_empty, folder)
            await asyncio.to_thread(label, self._database, job.spec, self._provider)
            status, reason = await self._process(job, folder)
        except asyncio.CancelledError:
            await self.delete_files(job.id)
            await self._database.write(lambda c: jobs.release_claim(c, job.id, self._gateway_id))
            raise
        except BillingRefused as error:
            status, reason = 1, str(error)
        except (DatabaseUnavailable, OSError) as error:
            status, reason = EXIT_AGAIN, str(error)
        fields = {"export": job.id, "status": status, "reason": reason}
        if status == 0:
            _log.info("export.done", extra={"fields": fields})
            return
        _log.warning("export.ended", extra={"fields": fields})
        await self.delete_files(job.id)
        if status != EXIT_STOPPED:
            again = status < 0 or status == EXIT_AGAIN  # the process was killed, or lost its database
            reason = reason or f"the process ended with status {status}"
            await self._database.write(lambda c: jobs.fail_export(c, job.id, self._gateway_id, reason, again=again))

    async def _process(self, job: ExportJob, folder: Path) -> tuple[int, str]:
        """The exit status of the export's process, below 0 if it was killed, and its last line on stderr."""
        space = await asyncio.to_thread(free_bytes, folder) - self._free_min_bytes
        if space <= 0:
            return 1, "the exports would leave less free disk space than the minimum"
        url = self._database.url.render_as_string(hide_password=False)
        arguments = (job.id, "--gateway", self._gateway_id, "--directory", str(folder))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "billing",
            *arguments,
            "--bytes-max",
            str(min(self._bytes_max, space)),
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

    async def _delete_surplus(self) -> None:
        """Delete the oldest files over `bytes_max`, and folders without an active export. A complete file is kept
        whichever host made it; the unfinished files of an export that another host completed are deleted."""
        # The folders are listed before the exports are read, because a folder is made after its export.
        folders = await asyncio.to_thread(os.listdir, self._directory)
        found = await self._database.read(lambda c: jobs.active_jobs(c, folders))
        kept = {job.id for job in found if job.state != "done"}
        surplus: list[str] = []
        used = 0
        for job in found:  # the newest first
            if job.state != "done" or not await asyncio.to_thread((self.folder(job.id) / str(job.file)).is_file):
                continue
            used += job.size_bytes or 0
            if used > self._bytes_max:
                surplus.append(job.id)
            else:
                kept.add(job.id)
        if surplus:
            await self._database.write(lambda c: jobs.mark_files_removed(c, surplus))
        for export_id in set(folders) - kept:
            await self.delete_files(export_id)


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
