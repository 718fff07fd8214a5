"""`laneway backup` and `laneway restore`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import click
import msgspec
import sqlalchemy as sa

from billing.clock import rfc3339
from billing.database import Database, DatabaseUnavailable
from billing.proofs.engine_books import EngineCount
from gateway.access.audit_chain import CheckpointSigner
from gateway.admin.erasure_file import ErasuresUnreadable
from gateway.commands.console import Console, fail, json_option, pass_console, show_json
from gateway.commands.database import read_database, with_database
from gateway.commands.fleet_status import connected_engine, listed_engines
from gateway.commands.start_steps import StartProgress
from gateway.config.file import Config, ConfigError
from gateway.config.private_files import make_private
from gateway.config.server_secrets import ServerSecrets, read_server_secrets
from gateway.config.settings import safe_url
from gateway.engines.engine import EngineUnavailable
from gateway.host.supervisor import CannotStart
from gateway.recovery import verification
from gateway.recovery.archive import Archive, ArchiveRefused, signing_purpose
from gateway.recovery.backup import BackupRefused, write_backup
from gateway.recovery.dumps import ToolFailed
from gateway.recovery.restore import RestoreRefused, RestoreReport, newest_report, restore, store_report
from gateway.recovery.verification import Verification
from gateway.upkeep.bookkeeper import count_of

T = TypeVar("T")

BACKUPS = "backups"  # the default folder, below the data directory
EXIT_UNSOUND = 1
MEGABYTE = 1_000_000
REFUSED = (
    ArchiveRefused, BackupRefused, CannotStart, DatabaseUnavailable, ErasuresUnreadable, RestoreRefused, ToolFailed,
    OSError, sa.exc.DBAPIError,
)  # fmt: skip


class Progress:
    """Numbered steps on stderr; while bytes are copied, a line for every tenth of a gigabyte."""

    def __init__(self, steps: int, what: str) -> None:
        self._steps = StartProgress(lambda line: click.echo(line, err=True), steps)
        self._what = what
        self._shown = 0
        self._lock = threading.Lock()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        with self._steps.step(name):
            yield

    def on_bytes(self, count: int) -> None:
        with self._lock:
            if count - self._shown >= 100 * MEGABYTE:
                self._shown = count
                click.echo(f"    {count // MEGABYTE} MB {self._what}", err=True)


@click.command("backup")
@click.argument("target", required=False, type=click.Path(path_type=Path))
@json_option
@pass_console
def backup_command(console: Console, target: Path | None, as_json: bool) -> None:
    """Write the database, the adapters and the configuration to one archive. TARGET: a new file, or a folder, in which
    the archive is named by its moment. Default: <data_dir>/backups. Gateways go on serving.

    The server secret is not in it: keep a copy of gateway.secret_file elsewhere."""
    config = console.config
    folder = target or config.data_dir / BACKUPS
    progress = Progress(3, "written")

    def work() -> dict[str, object]:
        if target is None:
            make_private(folder)
        secrets = read_server_secrets(config)
        path, manifest = write_backup(config, secrets, console.located, folder, progress.step, progress.on_bytes)
        summary = manifest.summary
        for digest in summary.missing_adapters:
            click.echo(f"warning: the adapter store of this host lacks {digest}", err=True)
        return {"file": str(path), "bytes": path.stat().st_size, **msgspec.to_builtins(summary)}

    shown = _refusing(config, work)
    if as_json:
        show_json(shown)
    else:
        click.echo(f"{shown['file']}: {shown['bytes']} bytes, of {rfc3339(int(str(shown['taken_at'])))}")


@click.command("restore")
@click.argument("archive", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="Restore although the database has tables: they are lost.")
@click.option("--check", is_flag=True, help="Only check the archive: restore nothing.")
@click.option("--verify", is_flag=True, help="Prove the restored books, and state what is lost since the backup.")
@json_option
@pass_console
def restore_command(
    console: Console, archive: Path | None, replace: bool, check: bool, verify: bool, as_json: bool
) -> None:
    """Restore ARCHIVE into the empty database of the configuration. Stop every gateway before. Erasures made since the
    backup are replayed, and the journals of this host are settled, before a gateway can start.

    Without ARCHIVE, --verify states what the newest restore has lost. Exit status 1 if the books do not hold."""
    config = console.config
    if archive is None and (check or not verify):
        fail("an ARCHIVE is needed; without one, only --verify")
    secrets = _secrets(config)
    shown: dict[str, object] = {}
    if archive is not None:
        found = _refusing(config, lambda: _checked(archive, secrets))
        taken = rfc3339(found.manifest.summary.taken_at)
        signed = (
            "signed with this server's secret" if found.signed else "not compared with a server secret: none is here"
        )
        click.echo(f"{archive} is whole: of {taken}, {signed}", err=True)
        if check:
            return
        progress = Progress(5 if found.manifest.summary.database == "sqlite" else 6, "restored")
        report = _refusing(
            config, lambda: restore(config, found, replace=replace, step=progress.step, on_bytes=progress.on_bytes)
        )
        shown = msgspec.to_builtins(report)
        if not verify and not as_json:
            click.echo(
                f"{safe_url(config.database_url)} is the backup of {taken}: {report.erased} erasures replayed, ",
                nl=False,
            )
            click.echo(f"{report.settled} endings of journals settled, {report.adapters} adapters stored")
    if verify:
        verified = _verify(console, secrets)
        shown = msgspec.to_builtins(verified)
        if not as_json:
            click.echo("\n".join(verification.sentences(verified)))
    if as_json:
        show_json(shown)
    if verify and verified.findings:
        raise SystemExit(EXIT_UNSOUND)


def _checked(archive: Path, secrets: ServerSecrets | None) -> Archive:
    keys = [] if secrets is None else secrets.derive_keys(signing_purpose())
    return Archive.check(archive, keys, Progress(0, "checked").on_bytes)


def _verify(console: Console, secrets: ServerSecrets | None) -> Verification:
    report = read_database(console, newest_report)
    if report is None:
        fail("this database was not restored from a backup")
    counts = asyncio.run(engine_counts(console.config))
    signers = [] if secrets is None else CheckpointSigner(secrets).known

    def work(database: Database) -> Verification:
        found = database.read_sync(lambda c: verification.verify_restore(c, report, counts, signers))
        missing = {engine.epoch: engine.missing for engine in found.engines}
        stated: RestoreReport = msgspec.structs.replace(report, missing_tokens=missing)
        database.write_sync(lambda c: store_report(c, stated))
        return msgspec.structs.replace(found, report=stated)

    return with_database(console.config, work)


async def engine_counts(config: Config) -> list[EngineCount]:
    """Token counts of the engines of the roster that answer."""
    counts = []
    for address in await listed_engines(config):
        with suppress(EngineUnavailable):
            async with connected_engine(config, address) as engine:
                counts += [count_of(report) for report in await engine.reports()]
    return counts


def _secrets(config: Config) -> ServerSecrets | None:
    """The secrets of this host; None without a file: a restore makes no new one."""
    if not Path(config.gateway.secret_file).exists():
        return None
    return _refusing(config, lambda: read_server_secrets(config))


def _refusing(config: Config, work: Callable[[], T]) -> T:
    try:
        return work()
    except (*REFUSED, ConfigError) as error:
        reason = str(error.orig) if isinstance(error, sa.exc.DBAPIError) else str(error)
        if isinstance(error, sa.exc.DBAPIError | DatabaseUnavailable):
            reason = f"{safe_url(config.database_url)} cannot be used: {reason.splitlines()[0]}"
        fail(reason)
