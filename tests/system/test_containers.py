"""deploy/containers without a container engine: what the files name is there, and the processes of compose.yaml serve
the demo without torch and with a root that cannot be written to.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.paths import REPO
from support.ports import free_port
from support.waiting import PATIENCE_S

FOLDER = REPO / "deploy" / "containers"
CONTAINERFILES = sorted(FOLDER.glob("*.Containerfile"))
START_S_MAX = 60.0
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}

# What a container with a read-only root and without torch does, done to a process by Python's audit events.
SEALED = """
import os, sys

WRITABLE = tuple(os.environ["SEALED_WRITABLE"].split(":"))
REFUSED = {"torch", "triton", "transformers"}
CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.link", "os.rmdir", "os.chmod"}
NO_FOLDER = -1  # these events end with a descriptor: names inside a folder that was opened are not looked at


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def check(path):
    if isinstance(path, (str, bytes, os.PathLike)):
        full = os.path.realpath(os.fsdecode(path))
        if not full.startswith(WRITABLE):
            sys.stderr.write(f"SEALED: {full}\\n")
            raise OSError(30, "Read-only file system", full)


def hook(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            check(path)
    elif event in CHANGES and arguments[-1] == NO_FOLDER:
        check(arguments[0])
        if event in ("os.rename", "os.link"):
            check(arguments[1])


sys.meta_path.insert(0, Absent())
sys.addaudithook(hook)
"""


def instructions(file: Path) -> list[list[str]]:
    """Each instruction of a Containerfile as its words; continued lines are one."""
    lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    return [line.split() for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.strip()]


def stages(file: Path) -> set[str]:
    return {words[3] for words in instructions(file) if words[0] == "FROM" and len(words) == 4}


def in_context(path: str) -> bool:
    """Whether .dockerignore lets it into the build: the last line that matches decides."""
    kept = True
    for line in (REPO / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!").removeprefix("**/")
        parts = Path(path).parts
        prefixes = ["/".join(parts[: end + 1]) for end in range(len(parts))]
        if any(fnmatch(prefix, pattern) for prefix in prefixes):
            kept = line.startswith("!")
    return kept


@pytest.mark.parametrize("file", CONTAINERFILES, ids=lambda file: file.name)
def test_what_a_build_copies_is_there(file: Path) -> None:
    copied = 0
    for words in instructions(file):
        if words[0] == "COPY" and not words[1].startswith("--from"):
            for source in words[1:-1]:
                assert (REPO / source).exists(), f"{file.name} copies {source}, which is not there"
                assert in_context(source), f"{file.name} copies {source}, which .dockerignore leaves out"
                copied += 1
        elif words[0] == "COPY":
            stage = words[1].removeprefix("--from=")
            assert stage in stages(file), f"{file.name} copies from {stage}, which is no stage of it"
    assert copied > 5
    assert not in_context("tests/conftest.py")
    assert not in_context(".laneway/secrets.json"), "no key gets into an image"


def test_a_wheel_is_built_of_what_the_builds_copy() -> None:
    """A new package that pyproject.toml lists would be left out of the images."""
    listed = re.search(r"wheel\]\nonly-include = (\[.*\])", (REPO / "pyproject.toml").read_text())
    assert listed is not None
    for file in CONTAINERFILES:
        targets = {words[-1] for words in instructions(file) if words[0] == "COPY"}
        missing = {part for part in json.loads(listed[1]) if part not in targets} - {"admin_ui/dist"}
        assert not missing, f"{file.name} copies no {missing}"


@pytest.mark.parametrize("file", CONTAINERFILES, ids=lambda file: file.name)
def test_an_image_is_not_roots(file: Path) -> None:
    words = instructions(file)
    assert ["STOPSIGNAL", "SIGTERM"] in words
    assert ["VOLUME", "/var/lib/laneway"] in words
    assert any(line[0] == "HEALTHCHECK" for line in words)
    assert [line[1] for line in words if line[0] == "USER"], "it would run as root"
    assert all(line[1] == "${LANEWAY_UID}:${LANEWAY_UID}" for line in words if line[0] == "USER")


def compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    content: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    return content


def test_every_service_is_closed_and_names_what_is_there() -> None:
    content = compose()
    services = content["services"]
    monitoring = {name for name, service in services.items() if service.get("profiles") == ["monitoring"]}
    assert monitoring == {"prometheus", "grafana", "grafana-role"}
    assert set(services) - monitoring == {"password", "database", "redis", "seed", "engine", "gateway"}
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service.get("network_mode") == "none" or set(service["networks"]) <= set(content["networks"]), name
        for source in (volume.split(":")[0] for volume in service.get("volumes", [])):
            assert (FOLDER / source).is_dir() if source.startswith("..") else source in content["volumes"], name
        for other, on in service.get("depends_on", {}).items():
            assert on["condition"] in CONDITIONS
            if on["condition"] == "service_healthy":
                assert "test" in services[other]["healthcheck"], f"{name} waits for {other}, which has no health check"
        if build := service.get("build"):
            assert (FOLDER / build["context"]).resolve() == REPO
            assert build["target"] in stages(REPO / build["dockerfile"])
    command = " ".join(services["redis"]["command"])
    assert "--protected-mode no" in command, "it would answer localhost alone, and limits would not be shared"
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published), "the trial is for this host alone"
    assert "PASSWORD:" not in (FOLDER / "compose.yaml").read_text(), "no password is written down"


def test_every_variable_is_one_that_something_reads() -> None:
    read = "".join(path.read_text() for path in [REPO / "gateway/config/file.py", *FOLDER.glob("*")])
    services = compose()["services"]
    for name in ("seed", "gateway"):
        for variable in services[name]["environment"]:
            # libpq reads PGPASSFILE.
            assert variable == "PGPASSFILE" or f'"{variable}"' in read, f"{name}: nothing reads {variable}"


def test_the_database_password_is_made_once(tmp_path: Path) -> None:
    script = FOLDER / "database_password.py"
    made = []
    for _ in range(2):
        subprocess.run([sys.executable, script, tmp_path], check=True)
        made.append((tmp_path / "password").read_text())
    assert made[0] == made[1]
    assert len(made[0]) == 64
    assert (tmp_path / "pgpass").read_text() == f"*:*:*:*:{made[0]}\n"
    assert (tmp_path / "pgpass").stat().st_mode & 0o777 == 0o600, "libpq ignores one that others can read"
    assert subprocess.run([sys.executable, script], capture_output=True, check=False).returncode == 2
    grafana = tmp_path / "grafana"
    grafana.mkdir()
    subprocess.run([sys.executable, script, tmp_path, grafana], check=True)
    assert len((grafana / "grafana_password").read_text()) == 64
    assert (tmp_path / "password").read_text() == made[0] != (grafana / "grafana_password").read_text()


class Sealed:
    """The commands of compose.yaml, as processes."""

    def __init__(self, directory: Path, database_url: str) -> None:
        self.data, tmp = directory / "data", directory / "tmp"
        tmp.mkdir()
        self.port = free_port()
        sealed = directory / "sealed"
        sealed.mkdir()
        (sealed / "sitecustomize.py").write_text(SEALED)
        text = (FOLDER / "laneway.toml").read_text().replace("/var/lib/laneway", str(self.data))
        # The tiny model alone: converting the demo's takes seconds, and tests/system/test_demo.py has it.
        file = directory / "laneway.toml"
        file.write_text(text + '\n[[models]]\nname = "laneway-tiny"\npackage = "laneway"\n')
        (self.data / "run").mkdir(parents=True, mode=0o700)
        self.environ = {
            **os.environ,
            "PYTHONPATH": f"{sealed}:{REPO}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SEALED_WRITABLE": f"{self.data}:{tmp}:/dev/",
            "TMPDIR": str(tmp),
            "LANEWAY_CONFIG": str(file),
            "LANEWAY_DATABASE_URL": database_url,
            "LANEWAY_PORT": str(self.port),
            "LANEWAY_ENGINE_SOCKET": str(self.data / "run" / "engine.sock"),
        }

    def laneway(self, *arguments: str) -> str:
        argv = [sys.executable, "-m", "gateway.cli", *arguments]
        done = subprocess.run(argv, env=self.environ, cwd="/", capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "SEALED:" not in done.stderr, done.stderr
        return done.stdout

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process; when it is stopped it must have written nowhere but into its volume and /tmp."""
        log = self.data.parent / f"{arguments[0]}.log"
        with log.open("wb") as output:
            argv = [sys.executable, "-m", "gateway.cli", *arguments]
            process = subprocess.Popen(argv, env=self.environ, cwd="/", stdout=output, stderr=output)
            try:
                yield process
            finally:
                process.terminate()
                process.wait(30)  # a gateway lingers
        assert process.returncode == 0, log.read_text()
        assert "SEALED:" not in log.read_text()

    def healthy(self, what: str) -> bool:
        argv = [sys.executable, "-I", str(FOLDER / "healthy.py"), what]
        return subprocess.run(argv, env=self.environ, capture_output=True, check=False).returncode == 0

    def wait_healthy(self, what: str, process: subprocess.Popen[bytes]) -> None:
        for _ in range(int(START_S_MAX / 0.2)):
            if self.healthy(what):
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
                break
        pytest.fail((self.data.parent / f"{what}.log").read_text())


def test_the_trial_serves_without_torch_and_with_a_read_only_root(tmp_path: Path, empty_postgres_url: str) -> None:
    sealed = Sealed(tmp_path, empty_postgres_url)
    printed = sealed.laneway("demo", "seed", "--examples", str(REPO / "examples" / "adapters"))
    secrets = json.loads((sealed.data / "secrets.json").read_text())
    assert f"curl -N http://127.0.0.1:{sealed.port}/v1/chat/completions" in printed
    assert secrets["tenants"]["globex"] in printed
    assert "Ctrl-C" not in printed, "nothing runs yet"
    assert secrets["admin"] in sealed.laneway("demo", "seed"), "a second run prints the same keys"
    url = f"http://127.0.0.1:{sealed.port}"
    with sealed.running("engine", "--fake") as engine, sealed.running("gateway") as gateway:
        sealed.wait_healthy("engine", engine)
        sealed.wait_healthy("gateway", gateway)
        headers = {"Authorization": f"Bearer {secrets['tenants']['globex']}"}
        models = httpx.get(f"{url}/v1/models", headers=headers).json()
        assert {model["id"] for model in models["data"]} == {"laneway-tiny", "tiny-bullets", "tiny-pirate"}
        for stream in (False, True):
            body = {
                "model": "tiny-pirate", "max_tokens": 5, "stream": stream,
                "messages": [{"role": "user", "content": "Who are you?"}],
            }  # fmt: skip
            answer = httpx.post(f"{url}/v1/chat/completions", headers=headers, json=body, timeout=30)
            assert answer.status_code == 200, answer.text
            assert ("data: [DONE]" in answer.text) == stream
        engine.terminate()
        engine.wait(PATIENCE_S)
        assert not sealed.healthy("engine")
    assert not sealed.healthy("gateway")


def test_the_seal_holds(tmp_path: Path) -> None:
    """The test above can fail: torch is refused, and so is a file beside the volume."""
    sealed = Sealed(tmp_path, "sqlite:///unused")

    def fails(code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code], env=sealed.environ, capture_output=True, text=True, check=False
        )
        return done.stderr.strip().splitlines()[-1]

    assert "No module named 'torch'" in fails("import torch")
    assert "Read-only file system" in fails(f"open({str(tmp_path / 'beside')!r}, 'w')")
    assert "Read-only file system" in fails(f"import os; os.mkdir({str(tmp_path / 'beside')!r})")
    allowed = [sys.executable, "-c", f"open({str(sealed.data / 'file')!r}, 'w')"]
    subprocess.run(allowed, env=sealed.environ, check=True)
