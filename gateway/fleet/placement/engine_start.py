"""`python -m gateway.fleet.placement.engine_start START.json`: becomes an engine that outlives its starter.

The process leaves its session and its parent, so no signal to Ray's processes reaches the engine, and Ray does not end
it as a child of an actor. Before the engine runs, the process writes its record, so an actor that finds the locks of
the GPUs held also finds the process. The descriptors of the locks are inherited.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from gateway.fleet.placement.host_gpus import EngineRecord, process_started

FILES_MODE = 0o600


class EngineStart(msgspec.Struct, frozen=True):
    """The engine to start. `record` is complete except for pid and time."""

    record: EngineRecord
    record_file: str
    argv: list[str]
    output_file: str  # stdout: the ready line
    errors_file: str


def write_record(start: EngineStart) -> None:
    pid = os.getpid()
    record = msgspec.structs.replace(start.record, pid=pid, started=process_started(pid) or 0)
    file = Path(start.record_file)
    beside = file.with_name(f".{file.name}.{pid}")
    beside.write_bytes(msgspec.json.encode(record))
    beside.replace(file)


def main(argv: list[str]) -> None:
    start = msgspec.json.decode(Path(argv[1]).read_bytes(), type=EngineStart)
    if os.fork():
        os._exit(0)  # the engine is no child of the actor
    os.setsid()
    os.umask(0o077)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(start.output_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILES_MODE), 1)
    os.dup2(os.open(start.errors_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILES_MODE), 2)
    write_record(start)
    os.execve(start.argv[0], start.argv, os.environ)


if __name__ == "__main__":
    main(sys.argv)
