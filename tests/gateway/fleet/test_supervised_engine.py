"""Engines of a host under supervising processes: adopted or started, and no GPU used twice. No Ray: its actors run the
same class."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from engine.protocol.client import EngineClient
from engine.protocol.tls import client_context
from gateway.fleet.placement.host_gpus import (
    GpusUnknown,
    HostGpus,
    assigned_gpus,
    list_gpus,
    process_started,
    read_record,
    try_lock,
)
from gateway.fleet.placement.supervised_engine import EngineSpec
from support.engine.certificates import ENGINE, GATEWAY, files_of, listen_flags, make_fleet
from support.gateway.supervision import SupervisingProcess, engine_processes, fake_spec, gpus_used_twice
from support.ports import free_port
from support.processes import alive
from support.waiting import PATIENCE_S, eventually

GPUS = ["FAKE-0", "FAKE-1"]

Supervise = Callable[..., SupervisingProcess]


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Supervise]:
    started: list[SupervisingProcess] = []

    def start(assigned: list[str], gpus: list[str] = GPUS, spec: EngineSpec | None = None) -> SupervisingProcess:
        started.append(SupervisingProcess(spec or fake_spec(tmp_path), gpus, assigned))
        return started[-1]

    yield start
    for process in started:
        if process.process.poll() is None:
            process.kill()
    for pid in engine_processes(tmp_path):
        os.kill(pid, signal.SIGKILL)


def test_an_engine_outlives_its_supervisor_and_is_adopted(supervise: Supervise, tmp_path: Path) -> None:
    first = supervise(["FAKE-0"])
    ready = first.until_state("ready")
    assert (ready.name, ready.gpus, ready.adopted) == ("gpu-fake-0", ("FAKE-0",), False)
    assert ready.address == f"unix:{tmp_path}/engines/gpu-fake-0.sock"
    assert engine_processes(tmp_path) == {ready.pid: ("FAKE-0",)}
    first.kill()
    second = supervise(["FAKE-0"])
    adopted = second.until_state("ready")
    assert (adopted.pid, adopted.epoch, adopted.adopted) == (ready.pid, ready.epoch, True)
    os.kill(ready.pid, signal.SIGKILL)
    second.until_state("starting")
    again = second.until_state("ready")
    assert (again.name, again.gpus) == (ready.name, ready.gpus)
    assert (again.pid, again.epoch) != (ready.pid, ready.epoch)
    assert "ended" not in again.reason
    assert list(engine_processes(tmp_path)) == [again.pid]


def test_two_actors_with_one_gpu_by_mistake_get_two_engines(supervise: Supervise, tmp_path: Path) -> None:
    """And a third, for which no GPU is left, waits until an engine ends with its actor."""
    both = [supervise(["FAKE-0"]), supervise(["FAKE-0"])]
    reports = [process.until_state("ready") for process in both]
    assert {report.gpus for report in reports} == {("FAKE-0",), ("FAKE-1",)}
    third = supervise(["FAKE-1"])
    waits = third.until_state("waits_for_gpu")
    while not waits.reason:
        waits = third.next_report()
    assert all(str(report.pid) in waits.reason for report in reports)
    assert gpus_used_twice(tmp_path) == {}
    both[1].kill()
    assert third.until_state("ready").pid == reports[1].pid, "the engine without a supervisor is adopted"
    assert len(engine_processes(tmp_path)) == 2


def test_a_deleted_lock_file_frees_no_gpu(supervise: Supervise, tmp_path: Path) -> None:
    process = supervise(["FAKE-0"])
    ready = process.until_state("ready")
    (tmp_path / "gpus" / "FAKE-0.lock").unlink()
    other = supervise(["FAKE-0"])
    assert other.until_state("ready").gpus == ("FAKE-1",)
    assert sorted(engine_processes(tmp_path).values()) == [("FAKE-0",), ("FAKE-1",)]
    assert alive(ready.pid)


def test_an_engine_on_two_gpus_holds_both_locks(supervise: Supervise, tmp_path: Path) -> None:
    ready = supervise(GPUS, [*GPUS, "FAKE-2"]).until_state("ready")
    assert engine_processes(tmp_path) == {ready.pid: tuple(GPUS)}
    one = supervise(["FAKE-1"], [*GPUS, "FAKE-2"])
    assert one.until_state("ready").gpus == ("FAKE-2",)
    os.kill(ready.pid, signal.SIGKILL)
    eventually(lambda: all(try_free(tmp_path, gpu) for gpu in GPUS))


def try_free(directory: Path, gpu: str) -> bool:
    descriptor = try_lock(directory / "gpus" / f"{gpu}.lock")
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def test_a_record_of_an_earlier_process_counts_for_nothing(supervise: Supervise, tmp_path: Path) -> None:
    process = supervise(["FAKE-0"])
    ready = process.until_state("ready")
    process.kill()
    os.kill(ready.pid, signal.SIGKILL)
    eventually(lambda: not alive(ready.pid))
    host = HostGpus(tmp_path, GPUS)
    assert read_record(host.record_file(ready.name)) is not None
    assert host.read_records() == []
    assert supervise(["FAKE-0"]).until_state("ready").pid != ready.pid


async def test_an_engine_listens_at_its_hosts_address_with_mutual_tls(supervise: Supervise, tmp_path: Path) -> None:
    """The port is that of the fleet + the index of the GPU."""
    certificates = make_fleet(tmp_path / "certificates")
    port = free_port()
    arguments = ("--fake", *listen_flags(files_of(certificates, ENGINE), "0.0.0.0:1"))
    spec = msgspec.structs.replace(fake_spec(tmp_path), port=port - 1, arguments=arguments, server_name="localhost")
    ready = await asyncio.to_thread(lambda: supervise(["FAKE-1"], spec=spec).until_state("ready"))
    assert (ready.address, ready.server_name) == (f"tls://127.0.0.1:{port}", "localhost")
    context = client_context(files_of(certificates, GATEWAY))
    client = EngineClient(ready.address, tls=context, server_name=ready.server_name)
    await client.start()
    assert (await client.wait_ready(PATIENCE_S)).epoch == ready.epoch
    await client.close()


def test_gpus_by_index_and_by_uuid() -> None:
    gpus = list_gpus({"LANEWAY_FLEET_GPUS": "GPU-aa, GPU-bb"})
    assert gpus == ["GPU-aa", "GPU-bb"]
    assert assigned_gpus([1, "GPU-aa"], gpus) == ["GPU-bb", "GPU-aa"]
    with pytest.raises(GpusUnknown, match="assigned the GPU 2; this host has GPU-aa, GPU-bb"):
        assigned_gpus([2], gpus)


def test_an_engine_is_named_by_its_gpu(tmp_path: Path) -> None:
    host = HostGpus(tmp_path, [])
    assert host.engine_name(["GPU-3f1c2b4a-77de-0a11-8c11-5d1f6a8b9c00"]) == "gpu-3f1c2b4a-77de"
    assert host.engine_name(["MIG-3f1c2b4a-77de-0a11"]) == "gpu-mig-3f1c2b4a-77de-0a11"


def test_a_process_is_named_by_pid_and_start() -> None:
    assert process_started(os.getpid()) is not None
    assert process_started(2**22 + 1) is None
