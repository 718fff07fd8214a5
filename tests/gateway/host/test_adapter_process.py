"""The process that reads tenants' files: it gets no secret of the gateway, and is killed after its time limit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from adapters.files.header import AdapterRefused
from adapters.files.store import AdapterStore
from gateway.config.file import parse_gateway_config
from gateway.host import adapter_process
from gateway.host.adapter_process import Resolver, environment, run_adapters
from gateway.metrics import Metrics
from gateway.uploads.staged import AdapterBase
from gateway.uploads.uploads import Uploads
from support.paths import REPO


def commands_of_children() -> list[str]:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [Path(f"/proc/{child}/cmdline").read_text() for child in children]


async def test_it_gets_none_of_our_environment_but_what_python_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A stand-in for `python -m adapters` prints its environment."""
    package = tmp_path / "adapters"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import os; print(*sorted(os.environ))")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANEWAY_DATABASE_URL", "postgresql://laneway:secret@db/laneway")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ran = await run_adapters([], 30)
    names = set(ran.out.split())
    assert ran.status == 0, ran.problems
    assert {"PATH", "PYTHONPATH", "OPENBLAS_NUM_THREADS"} <= names
    assert not {name for name in names if name.startswith(("LANEWAY", "AWS", "HOME"))}
    assert names <= {*adapter_process.ENVIRONMENT_KEPT, "OPENBLAS_NUM_THREADS", "LC_CTYPE"}
    assert environment({"LANEWAY_REDIS_URL": "x"}) == {"OPENBLAS_NUM_THREADS": "1"}


async def test_one_that_takes_too_long_is_ended() -> None:
    with pytest.raises(TimeoutError):
        await run_adapters(["check", "/nowhere", "--model", "/nowhere"], 0.001)
    assert not [command for command in commands_of_children() if "adapters" in command]


async def test_a_check_that_takes_too_long_refuses_the_upload(tmp_path: Path) -> None:
    store = AdapterStore(tmp_path / "store")
    config = parse_gateway_config(b"", tmp_path, "test", {})
    config = msgspec.structs.replace(config, adapters=msgspec.structs.replace(config.adapters, check_s_max=0.001))
    uploads = Uploads(store, config, Metrics())
    with store.begin_incoming() as incoming, pytest.raises(AdapterRefused, match=r"checking it took over 0\.001 s"):
        await uploads.check_incoming(incoming, AdapterBase("m", REPO, "float32", 64))


async def test_what_cannot_be_resolved_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = "a" * 64
    (tmp_path / digest).mkdir()
    resolver = Resolver(tmp_path)
    first = await resolver.resolve([digest])
    assert list(first) == [digest]

    async def never(*_: object) -> adapter_process.ProcessResult:
        raise AssertionError("it was tried before")

    monkeypatch.setattr(adapter_process, "run_adapters", never)
    assert await resolver.resolve([digest]) == first


@pytest.mark.parametrize("error", [TimeoutError(), None])
async def test_an_adapter_that_stops_the_process_is_refused_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """The process ends without an answer, or has none in time."""
    digests = [letter * 64 for letter in "abc"]

    async def run(arguments: Sequence[str], _within_s: float) -> adapter_process.ProcessResult:
        if digests[1] not in arguments:
            return adapter_process.ProcessResult(0, '{"refused": {}}', "")
        if error is not None:
            raise error
        return adapter_process.ProcessResult(-9, "", "killed")

    monkeypatch.setattr(adapter_process, "run_adapters", run)
    assert list(await Resolver(tmp_path).resolve(digests)) == [digests[1]]
