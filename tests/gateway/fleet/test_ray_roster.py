"""The list of engines of a Ray cluster, without Ray: how reports change it, and how gateways follow the file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from gateway.config.private_files import write_private
from gateway.fleet.placement.host_gpus import try_lock
from gateway.fleet.placement.supervised_engine import EngineReport
from gateway.fleet.placement.watched_engines import ABSENT_S, EngineList, WatchedEngines
from gateway.fleet.ray_roster import RayRoster
from gateway.fleet.roster import EngineAddress
from support.gateway.followed_roster import follow_roster
from support.waiting import eventually_async

A = EngineAddress("gpu-a", "tls://10.0.0.1:7801")
B = EngineAddress("gpu-b", "tls://10.0.0.1:7802")


def report(engine: EngineAddress, state: str = "ready") -> EngineReport:
    return EngineReport(state, engine.name, engine.address, engine.server_name)  # type: ignore[arg-type]


def test_an_engine_is_listed_once_it_is_ready_and_stays_while_it_starts_again() -> None:
    engines = EngineList([])
    assert engines.note_reports({"0": report(A, "starting"), "1": EngineReport("waits_for_gpu")}, 1) == ()
    assert engines.note_reports({"0": report(A)}, 1) == (A,)
    assert engines.note_reports({"0": report(A, "starting"), "1": report(B)}, 1) == (A, B)


def test_an_engine_without_a_report_leaves_after_a_minute_of_answers() -> None:
    engines = EngineList([A, B])
    assert engines.note_reports({"0": report(A)}, ABSENT_S - 1) == (A, B)
    assert engines.note_reports({"0": report(A), "1": report(B)}, 1) == (A, B)
    assert engines.note_reports({"0": report(A)}, ABSENT_S - 1) == (A, B)
    assert engines.note_reports({"0": report(A)}, 1) == (A,)


def test_a_head_that_knows_no_engine_empties_no_list() -> None:
    engines = EngineList([A, B])
    assert engines.note_reports({}, 10 * ABSENT_S) == (A, B)
    moved = EngineAddress("gpu-b", "tls://10.0.0.1:7899")
    assert engines.note_reports({"0": report(moved)}, 1) == (A, moved)


class Watcher:
    """What the watching process leaves, written by a test that holds its lock."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "engines-of-ray.json"
        self.answers = 0
        descriptor = try_lock(self.file.with_suffix(".lock"))
        assert descriptor is not None
        self._descriptor = descriptor

    def write(self, *engines: EngineAddress) -> None:
        self.answers += 1
        text = msgspec.json.encode(WatchedEngines(engines, self.answers, os.getpid())).decode()
        write_private(self.file, text, replace=True)

    def stop(self) -> None:
        os.close(self._descriptor)


async def test_gateways_follow_the_file_of_one_watcher(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path)
    first, second = (RayRoster("127.0.0.1:1", "laneway", watcher.file) for _ in range(2))
    async with follow_roster(first) as one, follow_roster(second) as two:
        await asyncio.sleep(0)
        watcher.write(A)
        assert await one.next_list() == await two.next_list() == [A]
        watcher.write(A, B)
        assert await one.next_list() == await two.next_list() == [A, B]
        await eventually_async(lambda: first.stale_since is None)
        assert first._watcher_starts == 0, "the lock is held, so no other watcher starts"
    watcher.stop()


async def test_the_last_list_is_there_at_a_start_without_the_head(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path)
    watcher.write(A, B)
    watcher.stop()
    roster = RayRoster("127.0.0.1:1", "laneway", watcher.file)
    async with follow_roster(roster) as followed:
        assert await followed.next_list() == [A, B]
        await eventually_async(lambda: roster._watcher_starts > 0)
        assert roster.stale_since is not None
    descriptor = try_lock(watcher.file.with_suffix(".lock"))
    assert descriptor is not None, "the watcher ended with the roster"
    os.close(descriptor)


async def test_a_watcher_without_answers_makes_the_list_stale(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path)
    roster = RayRoster("127.0.0.1:1", "laneway", watcher.file, stale_s=0.3)
    async with follow_roster(roster) as followed:
        watcher.write(A)
        await followed.next_list()
        await eventually_async(lambda: roster.stale_since is not None)
        assert followed.lists.empty(), "the list stays"
        watcher.write(A)
        await eventually_async(lambda: roster.stale_since is None)
    watcher.stop()
