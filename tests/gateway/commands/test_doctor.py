"""`laneway doctor`: each check in a state that is really so: a port taken, a database away, a disk that is full."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from billing.accounts import tenants
from billing.database import Database
from gateway.cli import main
from gateway.doctor import checks as doctor_checks
from gateway.doctor import network
from gateway.files.contents import WrittenFile
from gateway.files.rows import NewFile, insert_file, new_file_id
from gateway.stored.texts import TextKey
from migrations.upgrade import upgrade
from support.paths import REPO
from support.ports import free_port
from support.services import missing_service
from support.stack import Stack

CHECKS = [
    "configuration", "python", "gpu", "torch", "memory", "port", "database", "schema", "clock", "redis", "disk",
    "files", "secrets", "models", "console",
]  # fmt: skip


class Doctor:
    """Runs the command on one configuration: in this process, where torch is hidden, or as a program."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.data = directory / ".laneway"
        self.port = free_port()
        self._patch = patch

    def run(self, toml: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """As a program. Torch is hidden unless `environ` has a PYTHONPATH: its checks take seconds."""
        self._write(toml)
        path = f"{no_torch(self.directory)}:{REPO}"
        argv = [sys.executable, "-m", "gateway.cli", "doctor", *arguments]
        environ = {**os.environ, "LANEWAY_PORT": str(self.port), "PYTHONPATH": path, **environ}
        return subprocess.run(argv, cwd=self.directory, env=environ, capture_output=True, text=True, timeout=120)

    def checks(self, toml: str = "", **environ: str) -> dict[str, dict[str, str]]:
        if "PYTHONPATH" in environ:
            done = self.run(toml, "--json", **environ)
            return checked(done.stdout, done.returncode)
        self._write(toml)
        find_spec = importlib.util.find_spec
        with self._patch.context() as patch:
            patch.chdir(self.directory)
            patch.setattr(importlib.util, "find_spec", lambda name, *more: name != "torch" and find_spec(name, *more))
            environ = {"LANEWAY_PORT": str(self.port), **environ}
            result = CliRunner().invoke(main, ["doctor", "--json"], env=environ, catch_exceptions=False)
        return checked(result.stdout, result.exit_code)

    def _write(self, toml: str) -> None:
        tomllib.loads(toml)
        (self.directory / "laneway.toml").write_text(toml)


def checked(output: str, exit_code: int) -> dict[str, dict[str, str]]:
    """The checks of a report by name, after a look at its form."""
    report = json.loads(output)
    statuses = [check["status"] for check in report["checks"]]
    assert exit_code == (1 if "fail" in statuses else 0)
    assert report["status"] == next(status for status in ("fail", "warn", "ok") if status in statuses)
    for check in report["checks"]:
        assert bool(check["advice"]) == (check["status"] != "ok"), check
    return {check["name"]: check for check in report["checks"]}


def no_torch(directory: Path) -> Path:
    """A folder that hides torch from whoever looks for it, as on a gateway's host."""
    folder = directory / "hides"
    folder.mkdir(exist_ok=True)
    hides = (
        "import importlib.util\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'torch' else found(name, *more)\n"
    )
    (folder / "sitecustomize.py").write_text(hides)
    return folder


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    return Doctor(tmp_path, monkeypatch)


def test_a_gateways_host_without_torch_may_be_well(doctor: Doctor, model_dir: Path) -> None:
    upgrade(f"sqlite:///{doctor.data}/laneway.db")
    toml = f'[[models]]\nname = "smollm2-135m-instruct"\npath = "{model_dir}"\n'
    done = doctor.run(toml)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines] == [name for name in CHECKS if name != "memory"], "one line each"
    assert {line.split()[0] for line in lines} <= {"ok", "warn"}
    (torch,) = (line for line in lines if " torch " in line)
    assert torch.startswith(
        "warn torch         not installed: a gateway runs here, an engine does not; for an engine: pip"
    )


@pytest.mark.slow
def test_the_torch_and_the_memory_of_this_host(doctor: Doctor) -> None:
    checks = doctor.checks(PYTHONPATH=str(REPO))
    assert checks["torch"]["status"] == "ok"
    assert checks["memory"]["status"] == "ok"
    enough = doctor.checks(f"[engine]\narena_bytes = {2**47}\n", PYTHONPATH=str(REPO))["memory"]
    assert (enough["status"], "arena_bytes" in enough["advice"]) == ("fail", True)
    if not Path("/dev/nvidia0").exists():
        cuda = doctor.checks('[engine]\ndevice = "cuda"\n', PYTHONPATH=str(REPO))
        assert cuda["gpu"]["status"] == cuda["torch"]["status"] == "fail"


def test_a_port_that_another_program_has(doctor: Doctor) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", doctor.port))
        other.listen()
        metrics = free_port()
        checks = doctor.checks(f'[gateway]\nmetrics_address = "127.0.0.1:{metrics}"\n')
    assert checks["port"]["status"] == "fail"
    assert f"127.0.0.1:{doctor.port} cannot be used: Address already in use" in checks["port"]["detail"]
    assert "laneway serve --port" in checks["port"]["advice"]
    assert checks["metrics port"]["status"] == "ok"


def test_a_port_that_a_laneway_has(doctor: Doctor, make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    port = stack.urls[0].rsplit(":", 1)[1]
    found = doctor.checks(LANEWAY_PORT=port)["port"]
    assert (found["status"], "a Laneway with another data directory listens there" in found["detail"]) == ("warn", True)


def test_a_database_that_is_not_there_yet(doctor: Doctor) -> None:
    checks = doctor.checks()
    assert checks["database"]["status"] == "warn"
    assert "schema" not in checks
    assert not doctor.data.exists(), "nothing is made"


def test_a_database_that_is_away(doctor: Doctor) -> None:
    url = f"postgresql://somebody:hunter2@127.0.0.1:{free_port()}/laneway"
    found = doctor.checks(LANEWAY_DATABASE_URL=url)["database"]
    assert found["status"] == "fail"
    assert "somebody:***@" in found["detail"]
    assert "hunter2" not in json.dumps(found)


def test_a_database_without_its_tables(doctor: Doctor, empty_database_url: str) -> None:
    if empty_database_url.startswith("sqlite"):
        Path(empty_database_url.removeprefix("sqlite:///")).touch()
    found = doctor.checks(LANEWAY_DATABASE_URL=empty_database_url)["schema"]
    assert found["status"] == "fail"
    assert found["detail"].startswith("the schema has revision none, and the newest is 0")
    assert found["advice"] == "laneway db upgrade"


def test_a_database_that_is_migrated(doctor: Doctor, database_url: str) -> None:
    upgrade(database_url)
    found = doctor.checks(LANEWAY_DATABASE_URL=database_url)
    assert found["database"]["status"] == found["schema"]["status"] == found["clock"]["status"] == "ok"
    assert ("queue" in found) is not database_url.startswith("sqlite")


@pytest.mark.parametrize(("setting", "status"), [("1\n", "ok"), ("0\n", "warn"), (None, "ok")])
def test_what_happens_to_the_queue_of_a_worker_that_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str | None, status: str
) -> None:
    file = tmp_path / "tcp_migrate_req"
    if setting is not None:
        file.write_text(setting)
    monkeypatch.setattr(network, "MIGRATE_REQUESTS", file)
    found = doctor_checks.queue()
    assert found.status == status
    assert ("sysctl -w net.ipv4.tcp_migrate_req=1" in found.advice) is (status == "warn")


@pytest.mark.parametrize(("off_s", "status"), [(600, "warn"), (-600, "warn"), (-60 * 365 * 86400, "fail")])
def test_a_clock_that_is_wrong(doctor: Doctor, tmp_path: Path, postgres_url: str, off_s: int, status: str) -> None:
    clock = tmp_path / "clock"
    clock.write_text(str(off_s))
    path = f"{REPO}/tests/support/stepped_clock:{REPO}"
    environ = {"PYTHONPATH": path, "LANEWAY_TEST_CLOCK": str(clock), "LANEWAY_DATABASE_URL": postgres_url}
    found = doctor.checks(**environ)["clock"]
    assert found["status"] == status
    if status == "warn":
        assert f"600.0 s {'ahead of' if off_s > 0 else 'behind'} the database" in found["detail"]


def test_a_redis_that_answers_and_one_that_does_not(doctor: Doctor, redis_url: str) -> None:
    assert doctor.checks(LANEWAY_REDIS_URL=redis_url)["redis"]["status"] == "ok"
    found = doctor.checks(LANEWAY_REDIS_URL=f"redis://:hunter2@127.0.0.1:{free_port()}/0")["redis"]
    assert found["status"] == "warn"
    assert "each gateway enforces its part of a rate limit" in found["advice"]
    assert "hunter2" not in json.dumps(found)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m", "laneway-test", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        missing_service("a small file system", f"mounting one takes root: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_under_its_floors(doctor: Doctor, small_disk: Path) -> None:
    found = doctor.checks(f'[gateway]\ndata_dir = "{small_disk}"\n')["disk"]
    assert (found["status"], "journal.disk_free_min_bytes (67 MB): requests get 503" in found["detail"]) == (
        "fail",
        True,
    )
    toml = f'[gateway]\ndata_dir = "{small_disk}"\n[journal]\ndisk_free_min_bytes = 1000000\n'
    assert doctor.checks(toml)["disk"]["status"] == "warn", "uploads alone are refused"


def test_a_directory_that_cannot_be_written(doctor: Doctor, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    found = doctor.checks(f'[gateway]\ndata_dir = "{small_disk}/data"\n')["disk"]
    assert (found["status"], found["detail"]) == ("fail", f"{small_disk} cannot be written: Read-only file system")


def test_a_file_in_the_place_of_the_data_directory(doctor: Doctor) -> None:
    doctor.data.write_text("")
    assert doctor.checks()["disk"]["detail"] == f"{doctor.data} is no directory"


def test_a_store_of_files_that_other_gateways_do_not_share(doctor: Doctor, database_url: str) -> None:
    upgrade(database_url)
    assert doctor.checks(LANEWAY_DATABASE_URL=database_url)["files"]["status"] == "ok"
    database = Database(database_url)
    new = NewFile(id=new_file_id(), tenant_id="", key_id="k", purpose="batch", filename="a", expires_s=3600)

    def insert(connection: Any) -> None:
        tenant = tenants.create_tenant(connection, slug="acme", name="acme", tier="batch")
        own = msgspec.structs.replace(new, tenant_id=tenant.id)
        insert_file(connection, own, TextKey("txk_1", tenant.id, b""), WrittenFile(1, "a" * 64))

    database.write_sync(insert)
    database.close()
    found = doctor.checks(LANEWAY_DATABASE_URL=database_url)["files"]
    assert (found["status"], f"lacks the content of the newest file, {new.id}" in found["detail"]) == ("fail", True)


def test_a_store_of_files_that_cannot_be_written(doctor: Doctor) -> None:
    found = doctor.checks('[files]\nstore = "file:///proc/laneway"\n')["files"]
    assert (found["status"], "file:///proc/laneway cannot be used" in found["detail"]) == ("fail", True)


def test_secrets_that_others_can_read(doctor: Doctor) -> None:
    doctor.data.mkdir(mode=0o700)
    assert doctor.checks()["secrets"]["status"] == "ok"
    secret = doctor.data / "server.secret"
    secret.write_bytes(b"x" * 32)
    secret.chmod(0o644)
    found = doctor.checks()["secrets"]
    assert (found["status"], found["advice"]) == ("fail", f"chmod go-rwx {secret}")
    secret.chmod(0o600)
    found = doctor.checks('[redis]\nurl = "redis://:hunter2@127.0.0.1:1/0"\n')["secrets"]
    assert (found["status"], "laneway.toml" in found["detail"]) == ("fail", True)


def test_models_that_are_not_there(doctor: Doctor, tmp_path: Path) -> None:
    found = doctor.checks(f'[[models]]\nname = "a"\npath = "{tmp_path}/no"\n')["models"]
    assert found["detail"] == f"{tmp_path}/no of a lacks config.json and tokenizer.json"
    found = doctor.checks('[[models]]\nname = "a"\npackage = "no-such-package"\n')["models"]
    assert (found["status"], "no-such-package, which is not installed" in found["detail"]) == ("fail", True)
    found = doctor.checks('[[models]]\nname = "laneway-tiny"\npackage = "laneway"\n')["models"]
    assert (found["status"], "laneway-tiny: not made from packages yet" in found["detail"]) == ("warn", True)


def test_a_console_that_is_built_or_not(doctor: Doctor, tmp_path: Path) -> None:
    toml = f'[gateway]\nconsole_dir = "{tmp_path}/dist"\n'
    assert doctor.checks(toml)["console"]["status"] == "warn"
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "index.html").write_text("<p>")
    assert doctor.checks(toml)["console"]["status"] == "ok"


def test_a_configuration_that_is_wrong(doctor: Doctor) -> None:
    checks: dict[str, Any] = doctor.checks("[gateway]\nport = 0\n")
    assert list(checks) == ["configuration"]
    assert "gateway.port" in checks["configuration"]["detail"]
