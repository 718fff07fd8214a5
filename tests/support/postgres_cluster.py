"""A PostgreSQL server of a test's own, on a disk that the test may lose, with WAL archiving to another folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from support.ports import free_port
from support.services import missing_service
from support.waiting import PATIENCE_S, eventually

RECEIVER = "receiver"
SETTINGS = """
listen_addresses = '127.0.0.1'
max_wal_senders = 4
shared_buffers = 16MB
log_min_messages = warning
"""


class PostgresCluster:
    """`data` is the server's disk. `archive`, on another host's, has the base backup and the WAL of pg_receivewal."""

    def __init__(self, directory: Path, programs: Path) -> None:
        self.directory = directory
        self.data, self.archive, self.wal = directory / "data", directory / "archive", directory / "archive" / "wal"
        self.port = free_port()
        self._programs = programs
        self._server: subprocess.Popen[bytes] | None = None
        self._receiver: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"

    def create(self) -> None:
        self._run("initdb", "-D", str(self.data), "-U", "postgres", "--auth=trust", "--no-sync")
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(f"{SETTINGS}unix_socket_directories = '{self.directory}'\n")
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it accepts writes, which a server in recovery refuses."""
        argv = ["-D", str(self.data), "-p", str(self.port)]
        self._server = self._popen("postgres", *argv)
        eventually(self._accepts_writes)

    def archive_synchronously(self) -> None:
        """Make a base backup. From now on the server confirms no commit before its WAL is in the archive."""
        self.wal.mkdir()
        self._own(self.wal)
        link = f"host=127.0.0.1 port={self.port} user=postgres application_name={RECEIVER}"
        self._run("pg_receivewal", "-d", link, "--slot=archive", "--create-slot")
        receiver = ("-d", link, "-D", str(self.wal), "--slot=archive", "--synchronous", "--no-loop")
        self._receiver = self._popen("pg_receivewal", *receiver)
        self._run("pg_basebackup", "-d", link, "-D", str(self.archive / "base"), "-X", "none", "--checkpoint=fast")
        self.query(f"ALTER SYSTEM SET synchronous_standby_names = '{RECEIVER}'")
        self.query("SELECT pg_reload_conf()")
        state = f"SELECT sync_state FROM pg_stat_replication WHERE application_name = '{RECEIVER}'"
        eventually(lambda: self.query(state) == "sync")

    def lose_host(self) -> None:
        """Kill every process at once, and delete its disk."""
        assert self._server is not None
        os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait(PATIENCE_S)
        shutil.rmtree(self.data)
        if self._receiver is not None:
            self._receiver.wait(PATIENCE_S)

    def recover(self) -> None:
        """Start on a new disk, from the base backup and the archived WAL, its last and unfinished segment included."""
        shutil.copytree(self.archive / "base", self.data)
        for partial in self.wal.glob("*.partial"):
            partial.rename(partial.with_suffix(""))
        with (self.data / "postgresql.auto.conf").open("a") as file:
            file.write(f"restore_command = 'cp {self.wal}/%f %p'\n")
        (self.data / "recovery.signal").touch()
        self._own(self.directory)
        self.data.chmod(0o700)
        self.start()

    def stop(self) -> None:
        for process in (self._receiver, self._server):
            if process is not None and process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(PATIENCE_S)

    def query(self, statement: str) -> Any:
        """The first value of the first row, if a row exists."""
        engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
        try:
            with engine.connect() as connection:
                result = connection.exec_driver_sql(statement)
                return result.scalar() if result.returns_rows else None
        finally:
            engine.dispose()

    def _accepts_writes(self) -> bool:
        assert self._server is not None
        assert self._server.poll() is None, (self.directory / "log").read_text()
        with contextlib.suppress(sa.exc.OperationalError):
            return not self.query("SELECT pg_is_in_recovery()")
        return False

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments], capture_output=True, check=False, **_as_postgres()
        )
        assert done.returncode == 0, done.stderr.decode()

    def _popen(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(
                [self._programs / program, *arguments],
                stdout=log,
                stderr=log,
                start_new_session=True,
                **_as_postgres(),
            )

    def _own(self, folder: Path) -> None:
        if os.geteuid() == 0:
            for path in (folder, *folder.rglob("*")):
                shutil.chown(path, "postgres", "postgres")


@contextlib.contextmanager
def postgres_cluster() -> Iterator[PostgresCluster]:
    """A running server, in its own temporary folder: the server's user may not read a test's folder."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    found = programs[-1] if programs else None
    if found is None:
        server = shutil.which("initdb")
        if server is None:
            missing_service("PostgreSQL's server programs", "there is no initdb")
        found = Path(server).parent
    directory = Path(tempfile.mkdtemp(prefix="laneway-cluster-"))
    made = PostgresCluster(directory, found)
    try:
        made.archive.mkdir()
        made._own(directory)
        made.create()
        yield made
    finally:
        made.stop()
        shutil.rmtree(directory)


def _as_postgres() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    return {"user": "postgres", "group": "postgres", "extra_groups": [], "cwd": "/"} if os.geteuid() == 0 else {}
