"""The GPUs of a host and their locks: the GPUs that engines may use, and the engine that uses each now.

A lock is an flock on a file named by the GPU's UUID. The engine process itself holds it, through a descriptor that it
inherits, so the kernel frees it when the process ends, however it ends. A record beside the locks names the process;
it is written by that process before it becomes an engine, and counts only while the locks are held.

The locks decide, not Ray: Ray knows how many GPUs of a host are free, but after a loss of its head or its daemon it
does not know which ones an engine still uses.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

# The UUIDs of this host's GPUs that engines may use, separated by commas. Without it: the GPUs that nvidia-smi lists.
GPUS_VARIABLE = "LANEWAY_FLEET_GPUS"
NVIDIA_SMI_S = 30.0


class GpusUnknown(Exception):
    """The GPUs of this host cannot be listed; the message says why."""


class EngineRecord(msgspec.Struct, frozen=True):
    """One engine process of this host."""

    name: str
    pid: int
    started: int  # when, in clock ticks since the boot: with the pid it names one process
    gpus: tuple[str, ...]
    address: str
    server_name: str = ""
    spec: str = ""  # fingerprint of the settings it was started with


@dataclass(slots=True)
class ClaimedGpus:
    """GPUs that no engine uses, locked by this process until an engine inherits the descriptors."""

    gpus: tuple[str, ...]
    descriptors: list[int]

    def close(self) -> None:
        """Close the descriptors. An engine that inherited them still holds the locks."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


@dataclass(frozen=True, slots=True)
class AdoptedEngine:
    """An engine process that runs and that no other actor supervises."""

    record: EngineRecord
    supervision: int  # descriptor of the lock that excludes other actors


class HostGpus:
    """The GPUs in the order of their indices, and the directory of their locks. All actors of a host use one
    directory."""

    def __init__(self, directory: Path, gpus: Sequence[str]) -> None:
        """Raises OSError when the directory cannot be made."""
        self.gpus = tuple(gpus)
        self.engines_dir = directory / "engines"
        self._locks_dir = directory / "gpus"
        self._mutex = directory / "host.lock"
        for made in (directory, self.engines_dir, self._locks_dir):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)

    def engine_name(self, gpus: Sequence[str]) -> str:
        """The name of the engine on these GPUs: no other engine of the fleet has it, as a UUID names one GPU."""
        uuid = re.sub(r"[^a-z0-9-]", "-", gpus[0].lower())
        short = re.fullmatch(r"gpu-([0-9a-f]{8}-[0-9a-f]{4})-.*", uuid)
        return f"gpu-{short[1]}" if short else f"gpu-{uuid}"[:63]

    def record_file(self, name: str) -> Path:
        return self.engines_dir / f"{name}.json"

    def acquire(self, assigned: Sequence[str], spec: str) -> AdoptedEngine | ClaimedGpus | None:
        """The engine that an actor should supervise, or the GPUs on which it should start an engine. `assigned`: the
        GPUs that Ray reserved for it; their number counts. In this order: an unsupervised engine that uses one of them;
        these GPUs, if all are free; another unsupervised engine of this host, first of them with this `spec`; other
        free GPUs. None: every GPU is used."""
        with self._host_locked():
            engines = [record for record in self.read_records() if len(record.gpus) == len(assigned)]
            engines.sort(key=lambda record: record.spec != spec)
            mine = [record for record in engines if set(record.gpus) & set(assigned)]
            return (
                self._adopt_first(mine)
                or self._claim(assigned)
                or self._adopt_first(engines)
                or self._claim_free(len(assigned))
            )

    def supervise(self, name: str) -> int | None:
        """The descriptor of the lock with which one actor supervises an engine; None: another actor has it."""
        return try_lock(self.engines_dir / f"{name}.supervised")

    def read_records(self) -> list[EngineRecord]:
        """The engines that run on GPUs of this host."""
        found = []
        for file in sorted(self.engines_dir.glob("*.json")):
            record = read_record(file)
            if record is not None and set(record.gpus) <= set(self.gpus) and is_running(record):
                found.append(record)
        return found

    def _adopt_first(self, engines: Sequence[EngineRecord]) -> AdoptedEngine | None:
        for record in engines:
            supervision = self.supervise(record.name)
            if supervision is not None:
                return AdoptedEngine(record, supervision)
        return None

    def _claim(self, gpus: Sequence[str]) -> ClaimedGpus | None:
        claimed = ClaimedGpus(tuple(gpus), [])
        used = self._recorded_gpus()
        for gpu in gpus:
            descriptor = None if gpu in used else try_lock(self._lock_file(gpu))
            if descriptor is None:
                claimed.close()
                return None
            claimed.descriptors.append(descriptor)
        return claimed

    def _claim_free(self, number: int) -> ClaimedGpus | None:
        used = self._recorded_gpus()
        free = [gpu for gpu in self.gpus if gpu not in used and not self._is_locked(gpu)]
        return self._claim(free[:number]) if len(free) >= number else None

    def _recorded_gpus(self) -> set[str]:
        """The GPUs of running engines. A process whose lock file was deleted still uses its GPUs."""
        return {gpu for record in self.read_records() for gpu in record.gpus}

    def _is_locked(self, gpu: str) -> bool:
        descriptor = try_lock(self._lock_file(gpu))
        if descriptor is None:
            return True
        os.close(descriptor)
        return False

    def _lock_file(self, gpu: str) -> Path:
        return self._locks_dir / f"{re.sub(r'[^A-Za-z0-9-]', '-', gpu)}.lock"

    @contextlib.contextmanager
    def _host_locked(self) -> Iterator[None]:
        """One actor of the host chooses at a time."""
        descriptor = os.open(self._mutex, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def try_lock(file: Path) -> int | None:
    """A descriptor that holds the lock of `file`, closed on exec unless it is passed on; None: another one holds it.
    Raises OSError."""
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino == os.stat(file).st_ino:
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        os.close(descriptor)  # the file was deleted meanwhile: its lock excludes no actor


def read_record(file: Path) -> EngineRecord | None:
    """None: the file is missing or is no record."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=EngineRecord)
    except (OSError, msgspec.DecodeError):
        return None


def process_started(pid: int) -> int | None:
    """When a process started, in clock ticks since the boot; None: it does not run, or is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the command before it may hold blanks and brackets
    return None if fields[0] in ("Z", "X") else int(fields[19])


def is_running(record: EngineRecord) -> bool:
    """Whether the process of the record runs. When it does not, the kernel has freed its locks."""
    return process_started(record.pid) == record.started


def list_gpus(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The UUIDs of this host's GPUs, by index. Raises GpusUnknown."""
    if configured := environ.get(GPUS_VARIABLE):
        return [gpu.strip() for gpu in configured.split(",") if gpu.strip()]
    argv = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    # nvidia-smi lists all GPUs, whatever CUDA_VISIBLE_DEVICES says.
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=NVIDIA_SMI_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise GpusUnknown(f"nvidia-smi does not list the GPUs ({error}); set {GPUS_VARIABLE}") from error
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def assigned_gpus(ids: Sequence[int | str], gpus: Sequence[str]) -> list[str]:
    """The UUIDs of the GPUs that Ray names by index or by UUID. Raises GpusUnknown."""
    found = []
    for name in map(str, ids):
        if name in gpus:
            found.append(name)
        elif name.isdigit() and int(name) < len(gpus):
            found.append(gpus[int(name)])
        else:
            raise GpusUnknown(f"Ray assigned the GPU {name}; this host has {', '.join(gpus) or 'none'}")
    return found
