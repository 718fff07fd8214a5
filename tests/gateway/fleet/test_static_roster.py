"""The engines of laneway.toml: the first list, a change without a restart, a file that cannot be used."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.config import file as configuration
from gateway.fleet.roster import EngineAddress, build_roster, configured_engines
from gateway.fleet.static_roster import StaticRoster
from support.gateway.followed_roster import follow_roster
from support.waiting import eventually_async

ONE = "[[engines]]\nname = 'a'\naddress = 'unix:/run/a'\n"
CERTIFICATES = "[fleet]\ncertificate_file = 'c'\nkey_file = 'k'\nauthority_file = 'a'\n"
TWO = CERTIFICATES + ONE + "[[engines]]\nname = 'b'\naddress = 'tls://10.0.0.2:7801'\nserver_name = 'engines'\n"
A = EngineAddress("a", "unix:/run/a")
B = EngineAddress("b", "tls://10.0.0.2:7801", "engines")
CHECK_S = 0.02


def static_roster(file: Path) -> StaticRoster:
    return StaticRoster(configuration.load_gateway_config(file), file, CHECK_S)


async def test_without_engines_the_list_is_this_hosts_engine(tmp_path: Path) -> None:
    config = configuration.parse_gateway_config(b"", tmp_path, "", {})
    local = EngineAddress("local", f"unix:{tmp_path}/.laneway/engine.sock")
    assert configured_engines(config) == (local,)
    async with follow_roster(build_roster(config)) as followed:
        assert await followed.next_list() == [local]


async def test_an_engine_is_added_and_removed_without_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "laneway.toml"
    file.write_text(ONE)
    async with follow_roster(static_roster(file)) as followed:
        assert await followed.next_list() == [A]
        file.write_text(TWO)
        assert await followed.next_list() == [A, B]
        file.write_text(ONE)
        assert await followed.next_list() == [A]


async def test_an_invalid_file_keeps_the_last_list(tmp_path: Path) -> None:
    file = tmp_path / "laneway.toml"
    file.write_text(TWO)
    roster = static_roster(file)
    async with follow_roster(roster) as followed:
        assert await followed.next_list() == [A, B]
        file.write_text("[[engines]\n")
        await eventually_async(lambda: roster.stale_since is not None)
        assert followed.lists.empty(), "no list was reported for a file that cannot be read"
        file.write_text(ONE)
        assert await followed.next_list() == [A]
        assert roster.stale_since is None


async def test_a_file_that_vanishes_keeps_the_last_list(tmp_path: Path) -> None:
    file = tmp_path / "laneway.toml"
    file.write_text(ONE)
    roster = static_roster(file)
    async with follow_roster(roster) as followed:
        assert await followed.next_list() == [A]
        await asyncio.to_thread(file.unlink)
        await eventually_async(lambda: roster.stale_since is not None)
        file.write_text(TWO)
        assert await followed.next_list() == [A, B]
