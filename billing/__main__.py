"""`python -m billing EXPORT_ID …`: one export job in a separate process, so that it takes no time from a gateway's
event loop and frees its memory at its end. LANEWAY_DATABASE_URL names the database.

The process ends when the job is cancelled or claimed by another gateway, and when the gateway that started it has
ended.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from billing.database import Database, DatabaseUnavailable
from billing.errors import BillingRefused
from billing.exports import export, jobs
from billing.exports.export import BooksDiffer, ExportCancelled, ExportTooLarge, MissingLibrary
from billing.exports.jobs import EXIT_AGAIN, EXIT_REFUSED, EXIT_STOPPED

PROGRESS_S = 0.5
NICE = 10  # below the gateway's priority


class _Watch:
    """Records the job's progress, and stops it."""

    def __init__(self, database: Database, export_id: str, gateway_id: str) -> None:
        self._database = database
        self._export_id = export_id
        self._gateway_id = gateway_id
        self._parent = os.getppid()
        self._stored_at = 0.0

    def progress(self, read: int, total: int, rows: int) -> None:
        """Store the progress at most every PROGRESS_S. Raises ExportCancelled if the job must stop."""
        now = time.monotonic()
        if read < total and now - self._stored_at < PROGRESS_S:
            return
        self._stored_at = now
        if os.getppid() != self._parent:
            raise ExportCancelled("the gateway has ended")
        mine = self._database.write_sync(
            lambda c: jobs.record_progress(
                c, self._export_id, self._gateway_id, read_rows=read, all_rows=total, rows=rows
            )
        )
        if not mine:
            raise ExportCancelled("it was cancelled, or another gateway claimed it")


def work(database: Database, export_id: str, gateway_id: str, directory: Path, bytes_max: int) -> int:
    """Run the job; return the exit status. An error is the last line of standard error."""
    watch = _Watch(database, export_id, gateway_id)
    try:
        job = database.read_sync(lambda c: jobs.get_export(c, export_id))
        made = database.read_sync(
            lambda c: export.run(c, job.spec, directory, bytes_max=bytes_max, progress=watch.progress)
        )
        mine = database.write_sync(lambda c: jobs.finish_export(c, export_id, gateway_id, made))
    except ExportCancelled as error:
        return _report(error, EXIT_STOPPED)
    except (BillingRefused, BooksDiffer, MissingLibrary, ExportTooLarge) as error:
        return _report(error, EXIT_REFUSED)
    except (DatabaseUnavailable, OSError) as error:
        return _report(error, EXIT_AGAIN)
    return 0 if mine else EXIT_STOPPED


def _report(error: Exception, status: int) -> int:
    sys.stderr.write(f"{error}\n")
    return status


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m billing", description=__doc__)
    parser.add_argument("export_id")
    parser.add_argument("--gateway", required=True, help="id of the gateway that claimed the job")
    parser.add_argument(
        "--directory", type=Path, required=True, help="an existing folder for the file and its manifest"
    )
    parser.add_argument("--bytes-max", type=int, required=True)
    options = parser.parse_args()
    os.nice(NICE)
    database = Database(os.environ["LANEWAY_DATABASE_URL"])
    try:
        return work(database, options.export_id, options.gateway, options.directory, options.bytes_max)
    finally:
        database.close()


if __name__ == "__main__":
    sys.exit(main())
