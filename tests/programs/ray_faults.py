"""Faults of a Ray cluster under a fleet of fake engines, with requests all the while.

`PYTHONPATH=.:tests python tests/programs/ray_faults.py [--short] [--state kept|forgotten]`: three nodes with two fake
GPUs each, first with a head whose state is in a Redis of the program's own, then with a head that forgets. It exits
with 1, and says why, if a request failed, a GPU was used twice, an engine's process ended that was not killed here, or
placement was not back within PLACED_AGAIN_S of the head's return. It exits with 75 if Ray did not start. `--short`: one
cluster of one node, start and a killed actor.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.update({
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # A node waits 120 s for an absent head. The head counts a node as dead after three failed health checks.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "120",
    "RAY_health_check_initial_delay_ms": "3000",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_enable_metrics_collection": "0",
    "RAY_prestart_worker_first_driver": "0",
})  # fmt: skip

import ray
from ray.cluster_utils import Cluster

from engine.protocol.client import EngineClient
from engine.protocol.connection import EngineNotConnected
from engine.protocol.frames import Finished, Sampling
from gateway.fleet.placement import ray_cluster
from gateway.fleet.placement.supervised_engine import EngineReport
from gateway.fleet.ray_roster import RayRoster
from gateway.fleet.roster import EngineAddress
from support.gateway.supervision import engine_processes, gpus_used_twice
from support.paths import REPO
from support.ports import free_port
from support.redis_server import RedisServer

NAMESPACE = "laneway"
STORE_BYTES = 80 * 1024 * 1024
PLACED_AGAIN_S = 60.0
READY_S = 180.0
PORTS = ("metrics_agent", "metrics_export", "dashboard_agent_listen", "runtime_env_agent")
REQUEST_TOKENS = 8
LOOK_S = 0.1
TOO_SLOW = 75  # exit status


class Failed(Exception):
    pass


class TooSlow(Exception):
    """This machine is too busy for Ray."""


class Watchman:
    """Checks every LOOK_S that no GPU is used by two processes."""

    def __init__(self, directory: Path) -> None:
        self.findings: list[str] = []
        self._directory = directory
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            if twice := gpus_used_twice(self._directory):
                self.findings.append(f"GPUs used twice: {twice}")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class Traffic:
    """Requests to the engines of the roster, one at a time for each engine, on a separate thread."""

    def __init__(self, address: str, directory: Path) -> None:
        self.roster = RayRoster(address, NAMESPACE, directory / "engines-of-ray.json")
        self.answered = 0
        self.failed: list[str] = []
        self.engines: list[EngineAddress] = []
        self.expected_losses: set[str] = set()  # names of engines that the program kills
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._main: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._main = self._loop.create_task(self.roster.follow_engines(self._note_engines))
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._main)
        for task in self._tasks.values():
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks.values(), return_exceptions=True))

    def stop(self) -> None:
        """Idempotent."""
        assert self._main is not None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._main.cancel)
            self._thread.join()

    def _note_engines(self, engines: Any) -> None:
        self.engines = list(engines)
        for engine in self.engines:
            if engine.name not in self._tasks:
                self._tasks[engine.name] = self._loop.create_task(self._send_requests(engine))

    async def _send_requests(self, engine: EngineAddress) -> None:
        client = EngineClient(engine.address)
        await client.start()
        number = 0
        try:
            while True:
                number += 1
                news = asyncio.Event()
                try:
                    await client.wait_ready(READY_S)
                    generation = client.submit(
                        request_id=f"{engine.name}-{number}", model="m", adapter=None, namespace="", tier="premium",
                        share="", prompt_ids=[1, 2, 3], max_tokens=REQUEST_TOKENS, sampling=Sampling(seed=number),
                        stop_ids=[],
                    )  # fmt: skip
                except EngineNotConnected as error:
                    if engine in self.engines and engine.name not in self.expected_losses:
                        self.failed.append(f"{engine.name}: {error}")
                    await asyncio.sleep(0.2)
                    continue
                generation.listen(news.set)
                while generation.ending is None:
                    await news.wait()
                    news.clear()
                if isinstance(generation.ending, Finished):
                    self.answered += 1
                elif engine.name not in self.expected_losses:
                    self.failed.append(f"{engine.name}: {generation.ending}")
                await asyncio.sleep(0.02)
        finally:
            await client.close()


class RayFleet:
    """The cluster, and the changes and faults that the program makes in it."""

    def __init__(self, directory: Path, redis: RedisServer | None) -> None:
        self.directory = directory
        self.host_dir = directory / "host"
        self._redis = redis
        self._port = free_port()
        self._config = directory / "laneway.toml"
        self._config.write_text(
            f"[gateway]\ndata_dir = '{directory}/data'\n[fleet]\ndriver = 'ray'\n"
            f"[fleet.ray]\nhost_dir = '{self.host_dir}'\nport = 0\nnamespace = '{NAMESPACE}'\n"
            "[[models]]\nname = 'm'\n"
        )
        self.cluster = Cluster(shutdown_at_exit=True)
        self.nodes: dict[str, Any] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def add_node(self, name: str) -> None:
        """Two fake GPUs. The first node has the head."""
        began = time.monotonic()
        settings: dict[str, Any] = {
            "num_cpus": 2,
            "num_gpus": 2,
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
            # With ports of our own the node does not wait, at most 15 s, for its agents to choose theirs.
            **{f"{agent}_port": free_port() for agent in PORTS},
            "env_vars": {"LANEWAY_FLEET_GPUS": f"FAKE-{name}0,FAKE-{name}1", "PYTHONPATH": f"{REPO}:{REPO}/tests"},
        }
        if self.cluster.head_node is None:
            settings["gcs_server_port"] = self._port
            if self._redis is not None:
                settings["external_addresses"] = [f"127.0.0.1:{self._redis.port}"]
        try:
            self.nodes[name] = self.cluster.add_node(**settings)
        except Exception as error:
            if "timed out during startup" in str(error):  # Ray's own limits, 15 and 30 s, are not settings
                raise TooSlow(f"node {name} did not start in the time that Ray allows: {error}") from error
            raise
        say(f"node {name} is there after {time.monotonic() - began:.1f} s")

    def kill_node(self, name: str) -> None:
        """SIGKILL to Ray's processes of the node, the head's among them on the first node."""
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)
        say(f"node {name} is killed")

    def kill_head_state(self) -> None:
        self.cluster.head_node.kill_gcs_server(check_alive=False)

    def up(self, engines: int) -> None:
        began = time.monotonic()
        done = subprocess.run(self._command(engines), cwd=REPO, capture_output=True, text=True, timeout=READY_S)
        if done.returncode:
            raise Failed(f"laneway fleet up: {done.stdout} {done.stderr}")
        say(f"laneway fleet up --engines {engines}: {done.stdout.splitlines()[0]}, {time.monotonic() - began:.1f} s")

    @contextlib.contextmanager
    def kept_up(self, engines: int) -> Iterator[None]:
        """`laneway fleet up --follow` under a service manager, which starts it again whenever it ends."""
        argv = [*self._command(engines), "--follow"]
        stop = threading.Event()

        def keep() -> None:
            while not stop.is_set():
                process = subprocess.Popen(argv, cwd=REPO, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                while process.poll() is None and not stop.wait(0.2):
                    pass
                process.kill()
                process.wait()

        thread = threading.Thread(target=keep, daemon=True)
        thread.start()
        yield
        stop.set()
        thread.join()

    def down(self) -> None:
        argv = [sys.executable, "-m", "gateway.cli", "--config", str(self._config), "fleet", "down"]
        done = subprocess.run(
            [*argv, "--address", self.address], cwd=REPO, capture_output=True, text=True, timeout=READY_S
        )
        if done.returncode or engine_processes(self.host_dir):
            raise Failed(
                f"laneway fleet down: {done.stdout} {done.stderr}; engines that run: {engine_processes(self.host_dir)}"
            )
        say(f"laneway fleet down: {done.stdout.count('stopped')} engines")

    def _command(self, engines: int) -> list[str]:
        argv = [sys.executable, "-m", "gateway.cli", "--config", str(self._config), "fleet", "up", "--fake"]
        return [*argv, "--address", self.address, "--engines", str(engines), "--wait-s", "0"]

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        with ray_cluster.connected(self.address, NAMESPACE):
            yield

    def until_ready(self, engines: int, within_s: float = READY_S) -> dict[str, EngineReport]:
        """The reports of actors whose engines are ready, once there are at least `engines` of them."""
        began = time.monotonic()
        reports: dict[str, EngineReport] = {}
        with self.connected():
            collector = ray_cluster.ActorReports()
            while True:
                reports = collector.collect(ray_cluster.list_actors(), 2.0)
                ready = {name: report for name, report in reports.items() if report.state == "ready"}
                if len(ready) >= engines:
                    say(f"{engines} engines are ready after {time.monotonic() - began:.1f} s")
                    return ready
                if time.monotonic() - began > within_s:
                    raise Failed(f"after {within_s:g} s, of {engines} engines these are ready: {reports}")
                time.sleep(0.3)

    def actor_process(self, name: str) -> int:
        with self.connected():
            return int(ray.get(ray.get_actor(name).process_id.remote(), timeout=60))


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def until(check: Any, what: str, within_s: float = READY_S) -> float:
    began = time.monotonic()
    while not check():
        if time.monotonic() - began > within_s:
            raise Failed(f"not within {within_s:g} s: {what}")
        time.sleep(0.1)
    return time.monotonic() - began


class Scenario:
    def __init__(self, fleet: RayFleet, traffic: Traffic) -> None:
        self.fleet = fleet
        self.traffic = traffic
        self.pids: dict[str, int] = {}  # of the engines, by name

    def check_unchanged(self, reports: dict[str, EngineReport]) -> None:
        """Raises Failed if a known engine has ended or runs in another process."""
        now = {report.name: report.pid for report in reports.values()}
        changed = {name: (pid, now.get(name)) for name, pid in self.pids.items() if now.get(name) != pid}
        if changed:
            raise Failed(f"engines with another process: {changed}")
        self.pids = now

    def traffic_goes_on(self, seconds: float = 1.0) -> None:
        before = self.traffic.answered
        time.sleep(seconds)
        until(lambda: self.traffic.answered > before + 5 or self.traffic.failed, "requests are answered", 30)
        if self.traffic.failed:
            raise Failed(f"{len(self.traffic.failed)} requests failed: {self.traffic.failed[:3]}")

    def start(self, engines: int) -> None:
        self.fleet.up(engines)
        self.check_unchanged(self.fleet.until_ready(engines))
        until(lambda: len(self.traffic.engines) == engines, "the roster lists all engines")
        self.traffic_goes_on()

    def kill_actor(self, engines: int) -> None:
        name = "laneway-engine-1"
        pid = self.fleet.actor_process(name)
        os.kill(pid, signal.SIGKILL)
        say(f"the process of actor {name} is killed")
        until(lambda: not Path(f"/proc/{pid}").exists(), "the actor's process ends", 30)
        reports = self.fleet.until_ready(engines)
        self.check_unchanged(reports)
        if not reports[name].adopted:
            raise Failed(f"the new actor did not adopt: {reports[name]}")
        self.traffic_goes_on()

    def kill_engine(self, engines: int) -> None:
        name = next(iter(self.pids))
        self.traffic.expected_losses.add(name)
        os.kill(self.pids.pop(name), signal.SIGKILL)
        say(f"engine {name} is killed")
        time.sleep(1)
        self.check_unchanged(self.fleet.until_ready(engines))
        self.traffic_goes_on()
        self.traffic.expected_losses.clear()

    def kill_node(self, engines: int) -> None:
        """The node's engines run on without actors. When the host is back, its actors adopt them."""
        self.fleet.kill_node("c")
        self.traffic_goes_on(5.0)
        self.fleet.add_node("c")
        self.check_unchanged(self.fleet.until_ready(engines))
        self.traffic_goes_on()

    def add_node(self, engines: int) -> None:
        self.fleet.up(engines + 2)
        self.fleet.until_ready(engines)  # two wait for GPUs
        self.fleet.add_node("d")
        self.check_unchanged(self.fleet.until_ready(engines + 2))
        until(lambda: len(self.traffic.engines) == engines + 2, "the roster lists the new engines")
        self.traffic_goes_on()

    def kill_head(self, engines: int, keeps_state: bool) -> None:
        if keeps_state:
            self.fleet.kill_node("a")
        else:  # nodes cannot join a head that lost its state, so all of them are killed
            for name in list(self.fleet.nodes)[::-1]:
                self.fleet.kill_node(name)
        until(lambda: self.traffic.roster.stale_since is not None, "the list is stale", 60)
        listed = list(self.traffic.engines)
        self.traffic_goes_on(10.0)
        with contextlib.nullcontext() if keeps_state else self.fleet.kept_up(engines):
            self.fleet.add_node("a")
            began = time.monotonic()
            if not keeps_state:
                for name in ("b", "c", "d"):
                    self.fleet.add_node(name)
            reports = self.fleet.until_ready(engines, PLACED_AGAIN_S)
        passed_s = time.monotonic() - began
        say(f"placement is back {passed_s:.1f} s after the head")
        if passed_s > PLACED_AGAIN_S:
            raise Failed(f"the limit is {PLACED_AGAIN_S:g} s")
        self.check_unchanged(reports)
        until(lambda: self.traffic.roster.stale_since is None, "the list is up to date", PLACED_AGAIN_S)
        if self.traffic.engines != listed:
            raise Failed(f"the list changed from {listed} to {self.traffic.engines}")
        self.traffic_goes_on()


def run_faults(directory: Path, keeps_state: bool, short: bool) -> None:
    say(f"a head {'with its state in Redis' if keeps_state else 'that forgets'}")
    directory.mkdir()
    redis = RedisServer(directory) if keeps_state else None
    if redis is not None:
        os.environ["RAY_REDIS_ADDRESS"] = f"127.0.0.1:{redis.port}"
    fleet = RayFleet(directory, redis)
    watchman = Watchman(fleet.host_dir)
    traffic: Traffic | None = None
    try:
        for name in "a" if short else "abc":
            fleet.add_node(name)
        traffic = Traffic(fleet.address, directory)
        scenario = Scenario(fleet, traffic)
        engines = 2 * len(fleet.nodes)
        scenario.start(engines)
        scenario.kill_actor(engines)
        if not short:
            scenario.kill_engine(engines)
            scenario.kill_node(engines)
            scenario.add_node(engines)
            scenario.kill_head(engines + 2, keeps_state)
        if watchman.findings:
            raise Failed(watchman.findings[0])
        traffic.stop()
        fleet.down()
        say(f"{traffic.answered} requests were answered, none failed; no GPU was used twice")
    finally:
        watchman.stop()
        if traffic is not None:
            traffic.stop()
        fleet.cluster.shutdown()
        for pid in engine_processes(fleet.host_dir):
            os.kill(pid, signal.SIGKILL)
        if redis is not None:
            redis.kill()
            del os.environ["RAY_REDIS_ADDRESS"]


def main() -> int:
    parser = argparse.ArgumentParser(description="Faults of a Ray cluster under a fleet of fake engines.")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--state", choices=["kept", "forgotten"], help="one of the two clusters")
    arguments = parser.parse_args()
    if arguments.state is None and not arguments.short:  # Ray's library is unreliable with two clusters in one process
        argv = [sys.executable, __file__, "--state"]
        return max(subprocess.run([*argv, state], check=False).returncode for state in ("kept", "forgotten"))
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as directory:
        try:
            run_faults(Path(directory) / "fleet", arguments.state == "kept", arguments.short)
        except Failed as error:
            say(f"FAILED: {error}")
            return 1
        except TooSlow as error:
            say(str(error))
            return TOO_SLOW
    return 0


if __name__ == "__main__":
    sys.exit(main())
