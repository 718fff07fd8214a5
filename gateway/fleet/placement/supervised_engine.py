"""One engine of a host under its supervising actor: adopted or started, and restarted when it ends.

It does not use Ray. One thread supervises the process; other threads read its state.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Literal

import msgspec

from engine.protocol.addresses import TLS, UNIX, join_host_port
from engine.protocol.log_output import VARIABLE as LOG_VARIABLE
from gateway.fleet.placement.engine_start import EngineStart
from gateway.fleet.placement.host_gpus import ClaimedGpus, EngineRecord, HostGpus, is_running, read_record

CHECK_S = 0.5
# Seconds between two starts of an engine that ends within STEADY_S.
BACKOFF_MIN_S = 1.0
BACKOFF_MAX_S = 30.0
STEADY_S = 30.0
LAUNCH_S = 60.0  # from the start of the launching process to the record of the engine
OUTPUT_BYTES_MAX = 1024 * 1024
ERROR_BYTES_KEPT = 400

_log = logging.getLogger(__name__)

EngineState = Literal["waits_for_gpu", "starting", "ready", "stopped"]


class EngineSpec(msgspec.Struct, frozen=True):
    """The start settings of a fleet's engines, the same on every host."""

    engine_config: str  # JSON of engine.protocol.config.EngineConfig
    host_dir: str
    port: int  # + the index of the engine's first GPU; 0: a Unix socket alone
    arguments: tuple[str, ...] = ()  # of `python -m engine`, beside its socket, configuration and port
    server_name: str = ""

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:12]


class EngineReport(msgspec.Struct, frozen=True):
    """An actor's report of its engine. The name and the address are empty before it has one."""

    state: EngineState
    name: str = ""
    address: str = ""
    server_name: str = ""
    epoch: str = ""
    pid: int = 0
    gpus: tuple[str, ...] = ()
    spec: str = ""  # with which the engine runs
    node: str = ""  # IP address of its host
    starts: int = 0  # by this actor
    adopted: bool = False
    reason: str = ""  # why it waits, or how the last process ended


class SupervisedEngine:
    """`start_supervision()` it once. One engine at a time, and never one on a GPU that another process uses."""

    def __init__(self, spec: EngineSpec, node: str, host: HostGpus, assigned: tuple[str, ...]) -> None:
        """`node`: this host's IP address. `assigned`: the GPUs that Ray reserved."""
        self._spec = spec
        self._node = node
        self._host = host
        self._assigned = assigned
        self._report = EngineReport("waits_for_gpu", node=node)
        self._supervision: int | None = None  # the lock that excludes other actors
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep_engine, name="engine-supervision", daemon=True)

    def start_supervision(self) -> None:
        self._thread.start()

    def report(self) -> EngineReport:
        return self._report

    def stop_engine(self, wait_s: float) -> bool:
        """Send SIGTERM, and do not start it again. Whether it ended within `wait_s`."""
        self._stopping.set()
        self._signal_engine()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    # ---- the supervising thread

    def _keep_engine(self) -> None:
        backoff_s = BACKOFF_MIN_S
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                record = self._acquire_engine()
                if record is not None:
                    self._watch_engine(record)
            except Exception as error:  # noqa: BLE001 - a thread's edge: the actor continues, and reports the failure
                _log.exception("engine.supervision_failed")
                self._set_report(state="waits_for_gpu", reason=f"{type(error).__name__}: {error}")
            finally:
                self._release_supervision()
            if time.monotonic() - began > STEADY_S:
                backoff_s = BACKOFF_MIN_S
            self._stopping.wait(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
        self._set_report(state="stopped")

    def _acquire_engine(self) -> EngineRecord | None:
        """Adopt an engine or start one. None: there is no GPU for it now."""
        found = self._host.acquire(self._assigned, self._spec.fingerprint)
        if found is None:
            used = [f"{', '.join(record.gpus)} by process {record.pid}" for record in self._host.read_records()]
            reason = f"all GPUs of {self._node} are used: {'; '.join(used) or 'no process is recorded'}"
            self._set_report(state="waits_for_gpu", reason=reason)
            return None
        if isinstance(found, ClaimedGpus):
            return self._start_engine(found)
        self._supervision = found.supervision
        self._note_engine(found.record, adopted=True)
        return found.record

    def _start_engine(self, claimed: ClaimedGpus) -> EngineRecord | None:
        name = self._host.engine_name(claimed.gpus)
        try:
            self._supervision = self._host.supervise(name)
            if self._supervision is None:  # the actor that had the engine before has not noticed its end yet
                return None
            start = self._describe_start(name, claimed.gpus)
            done = self._launch(start, claimed)
        finally:
            claimed.close()
        record = read_record(Path(start.record_file))
        if done != 0 or record is None:
            raise RuntimeError(f"the engine's launcher ended with status {done}")
        self._note_engine(record, adopted=False)
        return record

    def _describe_start(self, name: str, gpus: tuple[str, ...]) -> EngineStart:
        spec, directory = self._spec, self._host.engines_dir
        config_file, socket = directory / f"{name}.config", directory / f"{name}.sock"
        config_file.write_text(spec.engine_config)
        argv = [sys.executable, "-m", "engine", "--socket", str(socket), "--config", str(config_file), "--detached"]
        argv += spec.arguments
        address = f"{UNIX}{socket}"
        if spec.port:
            location = join_host_port(self._node, spec.port + self._host.gpus.index(gpus[0]))
            argv += ["--listen", location]
            address = f"{TLS}{location}"
        return EngineStart(
            record=EngineRecord(name, 0, 0, gpus, address, spec.server_name, spec.fingerprint),
            record_file=str(self._host.record_file(name)),
            argv=argv,
            output_file=str(directory / f"{name}.out"),
            errors_file=str(directory / f"{name}.err"),
        )

    def _launch(self, start: EngineStart, claimed: ClaimedGpus) -> int:
        """Run the launching process, which ends when the engine's own process exists."""
        file = self._host.engines_dir / f"{start.record.name}.start"
        file.write_bytes(msgspec.json.encode(start))
        Path(start.record_file).unlink(missing_ok=True)
        # The engine needs none of Ray's variables, and must not get Ray's token.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(claimed.gpus)
        environ[LOG_VARIABLE] = str(self._host.engines_dir / f"{start.record.name}.log")
        argv = [sys.executable, "-m", "gateway.fleet.placement.engine_start", str(file)]
        done = subprocess.run(
            argv,
            env=environ,
            cwd=self._host.engines_dir,  # where Ray was started, a folder may have a module's name
            pass_fds=claimed.descriptors,
            stdin=subprocess.DEVNULL,
            timeout=LAUNCH_S,
            check=False,
        ).returncode
        until = time.monotonic() + LAUNCH_S
        while done == 0 and read_record(Path(start.record_file)) is None and time.monotonic() < until:
            time.sleep(0.02)
        return done

    def _watch_engine(self, record: EngineRecord) -> None:
        """Wait until the process has ended."""
        while is_running(record):
            if self._report.state != "ready" and (epoch := self._read_epoch(record)):
                self._set_report(state="ready", epoch=epoch, reason="")
            if self._stopping.wait(CHECK_S):
                self._signal_engine()
                while is_running(record):
                    time.sleep(0.05)
        reason = f"process {record.pid} ended: {self._last_errors(record)}"
        _log.warning("engine.ended", extra={"fields": {"engine": record.name, "reason": reason}})
        self._set_report(state="starting", pid=0, epoch="", reason=reason)

    def _note_engine(self, record: EngineRecord, *, adopted: bool) -> None:
        self._report = EngineReport(
            state="starting",
            name=record.name,
            address=record.address,
            server_name=record.server_name,
            pid=record.pid,
            gpus=record.gpus,
            spec=record.spec,
            node=self._node,
            starts=self._report.starts + (not adopted),
            adopted=adopted,
        )

    def _set_report(self, **fields: object) -> None:
        self._report = msgspec.structs.replace(self._report, **fields)

    def _signal_engine(self) -> None:
        report = self._report
        record = read_record(self._host.record_file(report.name)) if report.name else None
        if record is not None and record.pid == report.pid and is_running(record):
            os.kill(record.pid, signal.SIGTERM)

    def _read_epoch(self, record: EngineRecord) -> str:
        """The epoch in the engine's ready line; "" before it is ready."""
        try:
            with (self._host.engines_dir / f"{record.name}.out").open("rb") as output:
                for line in output.read(OUTPUT_BYTES_MAX).splitlines():
                    if b'"ready"' in line:
                        return str(msgspec.json.decode(line).get("epoch", ""))
        except (OSError, msgspec.DecodeError):
            pass  # a line that is not whole yet
        return ""

    def _last_errors(self, record: EngineRecord) -> str:
        try:
            text = (self._host.engines_dir / f"{record.name}.err").read_bytes()[-ERROR_BYTES_KEPT:]
        except OSError:
            text = b""
        return text.decode(errors="replace").strip() or "no message"

    def _release_supervision(self) -> None:
        if self._supervision is not None:
            os.close(self._supervision)
            self._supervision = None
