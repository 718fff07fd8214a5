"""The engines of a fleet on a Ray cluster: one detached actor per engine, placed with its GPUs.

Ray places the actors, starts them again and waits for nodes. The actors' methods are called to start, stop and find
engines; requests never pass through Ray. This module loads Ray, so a gateway process never imports it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from gateway.fleet.placement.host_gpus import GpusUnknown, HostGpus, assigned_gpus, list_gpus
from gateway.fleet.placement.supervised_engine import EngineReport, EngineSpec, SupervisedEngine

ACTOR_PREFIX = "laneway-engine-"
# Calls at once: `report` answers while `stop_engine` waits.
ACTOR_CALLS_MAX = 4
REPORT_S = 5.0
CONNECT_S = 5.0
# Ray must not end the engine with its actor.
ACTOR_ENVIRON = {"RAY_kill_child_processes_on_worker_exit": "0"}


class EngineActor:
    """Runs in a Ray actor. Its constructor must not raise: Ray would not start the actor again. A temporary fault of a
    host (a missing directory, no nvidia-smi during its boot) is retried at each report."""

    def __init__(self, spec: bytes) -> None:
        self._spec = spec
        self._engine: SupervisedEngine | None = None
        self._failure = ""
        self._starting = threading.Lock()
        self._start_supervision()

    def report(self) -> bytes:
        """JSON of an EngineReport."""
        if (engine := self._start_supervision()) is None:
            return msgspec.json.encode(EngineReport("waits_for_gpu", reason=self._failure))
        return msgspec.json.encode(engine.report())

    def stop_engine(self, wait_s: float) -> bool:
        return self._engine is None or self._engine.stop_engine(wait_s)

    def _start_supervision(self) -> SupervisedEngine | None:
        with self._starting:
            if self._engine is None:
                try:
                    self._engine = supervise_engine(msgspec.json.decode(self._spec, type=EngineSpec))
                except (OSError, GpusUnknown, msgspec.DecodeError) as error:
                    self._failure = f"{type(error).__name__}: {error}"
            return self._engine

    def process_id(self) -> int:
        return os.getpid()


def supervise_engine(spec: EngineSpec) -> SupervisedEngine:
    """Raises OSError, GpusUnknown."""
    gpus = list_gpus()
    assigned = assigned_gpus(ray.get_gpu_ids(), gpus)
    engine = SupervisedEngine(
        spec, ray.util.get_node_ip_address(), HostGpus(Path(spec.host_dir), gpus), tuple(assigned)
    )
    engine.start_supervision()
    return engine


@contextlib.contextmanager
def connected(address: str, namespace: str) -> Iterator[None]:
    """Connect to the cluster as a driver, from one of its nodes. Raises ConnectionError."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():  # Ray itself waits for minutes
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        except OSError as error:
            raise ConnectionError(f"no Ray cluster answers at {address}: {error}") from error
    ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="error", configure_logging=True)
    try:
        yield
    finally:
        ray.shutdown()


def count_gpus() -> int:
    """The GPUs of all nodes that the cluster has now."""
    return int(ray.cluster_resources().get("GPU", 0))


def list_actors() -> list[str]:
    """The names of the fleet's actors, by number; also of those that Ray is placing or starting again."""
    names = [name for name in ray.util.list_named_actors() if name.startswith(ACTOR_PREFIX)]
    return sorted(names, key=lambda name: (len(name), name))


def start_actors(spec: EngineSpec, engines: int, gpus_per_engine: int) -> list[str]:
    """Start the actors `ACTOR_PREFIX`0 to engines − 1 that do not exist. Returns the names of the new ones. An actor
    whose GPUs no node has waits for one.

    Its placement group keeps the GPUs reserved while Ray starts the actor again: the engine still uses them."""
    existing = set(list_actors())
    started = []
    for number in range(engines):
        name = f"{ACTOR_PREFIX}{number}"
        if name in existing:
            continue
        group = find_placement_group(name) or placement_group(
            [{"GPU": gpus_per_engine}], strategy="STRICT_PACK", name=name, lifetime="detached"
        )
        ray.remote(EngineActor).options(
            name=name,
            lifetime="detached",
            max_restarts=-1,
            max_concurrency=ACTOR_CALLS_MAX,
            num_cpus=0,
            num_gpus=gpus_per_engine,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0),
            runtime_env={"env_vars": ACTOR_ENVIRON},
        ).remote(msgspec.json.encode(spec))
        started.append(name)
    return started


def stop_actors(names: Sequence[str], wait_s: float) -> dict[str, bool]:
    """Stop the engines, then their actors. By name, whether the engine ended within `wait_s`, or had no process; an
    actor whose engine did not end is left running."""
    actors = {name: ray.get_actor(name) for name in names}
    calls = {name: actor.stop_engine.remote(wait_s) for name, actor in actors.items()}
    ended: dict[str, bool] = {}
    for name, call in calls.items():
        try:
            ended[name] = ray.get(call, timeout=wait_s + REPORT_S)
        except ray.exceptions.GetTimeoutError:
            ended[name] = not is_placed(name)  # a pending actor has no engine
        except ray.exceptions.RayActorError:
            ended[name] = False
        if ended[name]:
            ray.kill(actors[name], no_restart=True)
            if (group := find_placement_group(name)) is not None:
                remove_placement_group(group)
    return ended


def is_placed(name: str) -> bool:
    group = find_placement_group(name)
    return group is not None and group.wait(0)


def find_placement_group(name: str) -> Any:
    """The placement group of this name; None: it does not exist."""
    try:
        return ray.util.get_placement_group(name)
    except ValueError:
        return None


class ActorReports:
    """The newest reports of a fleet's actors. One call of an actor is in progress at a time: an actor that Ray places
    or restarts answers late, or with an error."""

    def __init__(self) -> None:
        self._actors: dict[str, Any] = {}
        self._calls: dict[str, Any] = {}

    def collect(self, names: Sequence[str], wait_s: float) -> dict[str, EngineReport]:
        """The reports that arrived within `wait_s`, by actor."""
        for name in list(self._calls):
            if name not in names:
                del self._calls[name]
                self._actors.pop(name, None)
        for name in names:
            if name not in self._calls and (actor := self._find_actor(name)) is not None:
                self._calls[name] = actor.report.remote()
        calls = {call: name for name, call in self._calls.items()}
        if not calls:
            return {}
        ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=wait_s)
        reports = {}
        for call in ready:
            name = calls[call]
            del self._calls[name]
            try:
                reports[name] = msgspec.json.decode(ray.get(call), type=EngineReport)
            except ray.exceptions.RayError:  # it ended, or its node did; Ray starts it again
                self._actors.pop(name, None)
        return reports

    def _find_actor(self, name: str) -> Any:
        if name not in self._actors:
            try:
                self._actors[name] = ray.get_actor(name)
            except ValueError:
                return None
        return self._actors[name]
