"""`python -m support.gateway.supervision SPEC GPU,…`: one supervising process, as an actor of Ray's is, without Ray.

It prints the reports of its engine as JSON lines. And the engines' processes as tests see them from outside.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from gateway.fleet.placement.host_gpus import HostGpus, list_gpus
from gateway.fleet.placement.supervised_engine import EngineReport, EngineSpec, SupervisedEngine
from support.paths import REPO

FAKE_CONFIG = '{"models": [{"name": "m"}], "fake": {"step_ms": 2.0, "pages": 256}}'


def fake_spec(directory: Path) -> EngineSpec:
    return EngineSpec(FAKE_CONFIG, str(directory), 0, ("--fake",))


def engine_processes(directory: Path) -> dict[int, tuple[str, ...]]:
    """The processes of engines whose sockets are below `directory`, with the GPUs that each may use."""
    found = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            argv = (process / "cmdline").read_bytes().split(b"\0")
            environ = dict(part.partition(b"=")[::2] for part in (process / "environ").read_bytes().split(b"\0"))
        except OSError:  # it ended meanwhile
            continue
        if argv[1:3] == [b"-m", b"engine"] and argv[4].startswith(os.fsencode(directory)):
            found[int(process.name)] = tuple(environ[b"CUDA_VISIBLE_DEVICES"].decode().split(","))
    return found


def gpus_used_twice(directory: Path) -> dict[str, list[int]]:
    """GPUs that several processes use, with these processes."""
    users: dict[str, list[int]] = {}
    for pid, gpus in engine_processes(directory).items():
        for gpu in gpus:
            users.setdefault(gpu, []).append(pid)
    return {gpu: pids for gpu, pids in users.items() if len(pids) > 1}


class SupervisingProcess:
    def __init__(self, spec: EngineSpec, gpus: list[str], assigned: list[str]) -> None:
        self._environ = {**os.environ, "LANEWAY_FLEET_GPUS": ",".join(gpus), "PYTHONPATH": f"{REPO}:{REPO}/tests"}
        argv = [
            sys.executable,
            "-m",
            "support.gateway.supervision",
            msgspec.json.encode(spec).decode(),
            ",".join(assigned),
        ]
        self.process = subprocess.Popen(argv, env=self._environ, stdout=subprocess.PIPE)

    def next_report(self) -> EngineReport:
        assert self.process.stdout is not None
        return msgspec.json.decode(self.process.stdout.readline(), type=EngineReport)

    def until_state(self, state: str) -> EngineReport:
        while (report := self.next_report()).state != state:
            pass
        return report

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def main() -> None:
    spec = msgspec.json.decode(sys.argv[1], type=EngineSpec)
    host = HostGpus(Path(spec.host_dir), list_gpus())
    engine = SupervisedEngine(spec, "127.0.0.1", host, tuple(sys.argv[2].split(",")))
    engine.start_supervision()
    printed = None
    while True:
        if (report := engine.report()) != printed:
            printed = report
            sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
            sys.stdout.flush()
        time.sleep(0.02)


if __name__ == "__main__":
    main()
