"""A text goes on when its engine is lost, drains or stops: the same ids, each made once."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import msgspec
import pytest

from engine.protocol.client import EngineClient
from gateway.engines.engine import EngineUnavailable, StreamEnd
from gateway.engines.local import LocalEngine
from gateway.fleet import members
from gateway.fleet.fleet import FRUITLESS_MAX
from gateway.fleet.hedges import HedgeBudget
from gateway.fleet.roster import EngineAddress
from gateway.fleet.streams import FleetStream
from support.engine.held_proxy import HeldProxy
from support.gateway.small_fleet import Reading, SmallFleet, request, small_fleet, with_sampling
from support.waiting import PATIENCE_S, eventually_async

TEXTS = 12


def engine_of(made: Reading) -> str:
    assert isinstance(made.stream, FleetStream)
    assert made.stream.member is not None
    return made.stream.member.name


def epochs(small: SmallFleet) -> dict[str, str]:
    return {member.engine.epoch: name for name, member in small.fleet.members.items()}


async def uncut(directory: Path) -> dict[int, list[int]]:
    """The texts as one engine makes them."""
    async with small_fleet(directory, 1) as one:
        readings = {number: Reading(one.fleet.submit(request(number))) for number in range(TEXTS)}
        for reading in readings.values():
            assert (await reading.final()).end is StreamEnd.LENGTH
        return {number: reading.ids for number, reading in readings.items()}


async def test_a_killed_engine_fails_no_text(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    expected = await uncut(tmp_path / "one")
    async with small_fleet(tmp_path, 3) as small:
        readings = {number: Reading(small.fleet.submit(request(number))) for number in range(TEXTS)}
        for reading in readings.values():
            await reading.has(20)
        victim = engine_of(readings[0])
        before = {number: len(reading.ids) for number, reading in readings.items() if engine_of(reading) == victim}
        small.kill_engine(victim)
        for number, reading in readings.items():
            final = await reading.final()
            assert final.end is StreamEnd.LENGTH
            assert reading.ids == expected[number]
            assert final.usage is not None
            assert final.usage.completion_tokens == len(expected[number])
            assert sum(reading.stream.attempts.values()) == len(expected[number])
            assert len(reading.stream.attempts) == (2 if number in before else 1)
        assert small.fleet.resumptions == len(before)


async def test_one_engine_alone_continues_its_texts_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    expected = await uncut(tmp_path / "one")
    async with small_fleet(tmp_path, 1) as small:
        readings = [Reading(small.fleet.submit(request(number))) for number in range(3)]
        for reading in readings:
            await reading.has(10)
        small.kill_engine("e0")
        await eventually_async(lambda: not small.fleet.ready)
        try:
            small.fleet.submit(request(9))
        except EngineUnavailable:
            pass
        else:
            raise AssertionError("a new text needs an engine")
        small.start_engine("e0")
        for number, reading in enumerate(readings):
            assert (await reading.final()).end is StreamEnd.LENGTH
            assert reading.ids == expected[number]


async def test_a_text_whose_reader_left_is_not_continued(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, 1) as small:
        reading = Reading(small.fleet.submit(request()))
        await reading.has(5)
        small.kill_engine("e0")
        await eventually_async(lambda: not small.fleet.ready)
        assert not reading.ended.is_set()
        reading.stream.abort()
        final = await reading.final(2)
        assert final.end is StreamEnd.ABORTED
        assert final.usage is not None
        assert final.usage.completion_tokens == len(reading.ids) == sum(reading.stream.attempts.values())


async def test_a_text_that_no_engine_continues_in_time_is_lost(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, 1, resume_wait_s=0.3) as small:
        reading = Reading(small.fleet.submit(request()))
        await reading.has(5)
        small.kill_engine("e0")
        final = await reading.final(5)
        assert final.end is StreamEnd.LOST
        assert "0.3 s" in final.message
        assert small.fleet.losses == 1


async def test_a_stopping_engine_hands_its_texts_over(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, 2) as small:
        readings = [Reading(small.fleet.submit(request(number))) for number in range(TEXTS)]
        for reading in readings:
            await reading.has(5)
        small.engines[engine_of(readings[0])].process.send_signal(signal.SIGTERM)
        for reading in readings:
            final = await reading.final()
            assert final.end is StreamEnd.LENGTH
            assert len(reading.ids) == 200


async def test_a_text_whose_engines_die_before_its_first_token_ends(tmp_path: Path) -> None:
    """It may be what ends them."""
    async with small_fleet(tmp_path, 1, fake={"step_ms": 5000.0}) as small:
        reading = Reading(small.fleet.submit(request()))
        for _ in range(3):
            await eventually_async(lambda: small.fleet.members["e0"].streams == 1)
            small.kill_engine("e0")
            await eventually_async(lambda: not small.fleet.ready)
            small.start_engine("e0")
            if reading.ended.is_set():
                break
        assert (await reading.final(10)).end is StreamEnd.LOST


async def test_a_text_outlives_engines_that_are_unreachable(tmp_path: Path) -> None:
    """It was never received, so it is not what ends them."""
    fake = {"step_ms": 1000.0}
    async with (
        small_fleet(tmp_path, 1, fake=fake, silence_s=2.0) as small,
        HeldProxy(tmp_path / "proxy.sock", small.engines["e0"].socket) as proxy,
    ):
        small.roster.write_engines([EngineAddress("e0", f"unix:{proxy.path}")])
        await eventually_async(lambda: small.fleet.members["e0"].address == small.roster.engines[0])
        await eventually_async(lambda: small.fleet.members["e0"].engine.ready)
        await eventually_async(lambda: len(small.fleet.members) == 1)
        reading = Reading(small.fleet.submit(request(max_tokens=1)))
        stream = reading.stream
        assert isinstance(stream, FleetStream)
        for attempts in range(FRUITLESS_MAX + 1):
            await eventually_async(lambda before=attempts: stream.submissions > before)
            proxy.hold()
            await eventually_async(lambda: not small.fleet.ready)
            proxy.release()
        assert (await reading.final()).end is StreamEnd.LENGTH
        assert small.fleet.losses == 0


async def test_a_hedge_wins_and_the_loser_is_counted(tmp_path: Path) -> None:
    """The first engine is stopped, so its first token is overdue; later it goes on and reports what it made."""
    async with small_fleet(
        tmp_path, 2, hedge_after_s={"premium": 0.2}, hedges=HedgeBudget(1.0), fake={"step_ms": 20.0}
    ) as small:
        reading = Reading(small.fleet.submit(request(tier="premium", max_tokens=30)))
        first = engine_of(reading)
        small.engines[first].process.send_signal(signal.SIGSTOP)
        await reading.has(1)
        assert engine_of(reading) != first
        await reading.has(30)  # so that the loser ends last
        small.engines[first].process.send_signal(signal.SIGCONT)
        final = await reading.final()
        assert final.end is StreamEnd.LENGTH
        assert len(reading.ids) == 30
        made = dict(reading.stream.attempts)
        assert epochs(small)[list(made)[-1]] != first
        assert small.fleet.hedged == 1
        assert final.usage is not None
        assert sum(made.values()) == final.usage.completion_tokens >= 30
        for member in small.fleet.members.values():
            report = await member.engine.status()
            assert report.tokens_made - report.tokens_overrun == made.get(report.epoch, 0)


async def test_an_embedding_is_made_again_when_its_engine_is_killed_and_never_hedged(tmp_path: Path) -> None:
    """It has no token: nothing of it is resumed, and no token is made or lost."""
    hedging = {"hedge_after_s": {"premium": 0.05}, "hedges": HedgeBudget(1.0)}
    async with small_fleet(tmp_path, 2, fake={"step_ms": 400.0}, **hedging) as small:
        wanted = request(tier="premium", max_tokens=0, pooling="mean")
        quiet = Reading(small.fleet.submit(wanted))
        assert (await quiet.final()).end is StreamEnd.LENGTH
        assert quiet.stream.vector is not None
        assert small.fleet.hedged == 0
        reading = Reading(small.fleet.submit(wanted))
        await asyncio.sleep(0.1)
        small.kill_engine(engine_of(reading))
        final = await reading.final()
        assert final.end is StreamEnd.LENGTH
        assert reading.stream.vector == quiet.stream.vector
        assert sum(reading.stream.attempts.values()) == 0
        assert (small.fleet.moves, small.fleet.resumptions, small.fleet.losses) == (1, 0, 0)


async def test_an_embedding_is_sent_to_an_engine_that_pools(tmp_path: Path) -> None:
    """In a fleet that is being upgraded: an engine before protocol version 6 has no vectors."""
    async with small_fleet(tmp_path, 2) as small:
        old, new = small.fleet.members.values()
        [info] = old.engine.models.values()
        assert isinstance(old.engine, LocalEngine)
        old.engine._client.models = {info.name: msgspec.structs.replace(info, vector_width=0)}
        small.fleet.note_models()
        assert small.fleet.models[info.name].vector_width == info.vector_width
        for number in range(6):
            reading = Reading(small.fleet.submit(request(number, max_tokens=0, pooling="last")))
            assert engine_of(reading) == new.name
            assert (await reading.final()).end is StreamEnd.LENGTH
        new.drains_here = True
        with pytest.raises(EngineUnavailable):
            small.fleet.submit(request(max_tokens=0, pooling="last"))


async def test_a_text_that_is_faster_than_its_hedge(tmp_path: Path) -> None:
    async with small_fleet(
        tmp_path, 2, hedge_after_s={"premium": 0.01}, hedges=HedgeBudget(1.0), fake={"step_ms": 60.0}
    ) as small:
        readings = [Reading(small.fleet.submit(request(number, tier="premium", max_tokens=5))) for number in range(4)]
        for reading in readings:
            assert (await reading.final()).end is StreamEnd.LENGTH
            assert len(reading.ids) == 5
        made: dict[str, int] = {}
        for reading in readings:
            for epoch, tokens in reading.stream.attempts.items():
                made[epoch] = made.get(epoch, 0) + tokens
        for member in small.fleet.members.values():
            report = await member.engine.status()
            assert report.tokens_made - report.tokens_overrun == made.get(report.epoch, 0)
            assert report.tokens_lost == 0


async def test_log_probabilities_are_reported_once(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, 2) as small:
        wanted = with_sampling(request(), logprobs=1)
        reading = Reading(small.fleet.submit(wanted))
        await reading.has(10)
        small.kill_engine(engine_of(reading))
        assert (await reading.final()).end is StreamEnd.LENGTH
        assert len(reading.ids) == 200


async def test_the_roster_adds_and_removes_engines(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, 2) as small:
        reading = Reading(small.fleet.submit(request(max_tokens=400)))
        name = engine_of(reading)
        [other] = [engine for engine in small.engines if engine != name]
        small.roster.write_engines([small.address(other)])
        await eventually_async(lambda: small.fleet.members[name].draining)
        for number in range(1, 5):
            assert engine_of(Reading(small.fleet.submit(request(number)))) == other
        assert (await reading.final()).end is StreamEnd.LENGTH  # it ran to its end where it was
        assert len(reading.stream.attempts) == 1
        await eventually_async(lambda: name not in small.fleet.members)
        small.roster.write_engines([small.address(other), small.address(name)])
        await eventually_async(lambda: name in small.fleet.members and small.fleet.members[name].engine.ready)


async def test_a_round_of_loads_that_changes_nothing_is_not_followed_by_another(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, 2) as small:
        changes: list[object] = []
        small.fleet.on_models = changes.append
        small.fleet.follow_models()
        assert changes == []


async def lost_tokens(small: SmallFleet, name: str) -> int:
    """As the engine counts them, asked over a connection of its own."""
    client = EngineClient(small.engines[name].socket)
    await client.start()
    try:
        await client.wait_ready(PATIENCE_S)
        return (await client.status()).tokens_lost
    finally:
        await client.close()


async def unlisted_text(small: SmallFleet) -> tuple[Reading, str]:
    """A text of 50 tokens that ended on an engine which left the roster meanwhile, before the ledger had it; and the
    engine's name."""
    reading = Reading(small.fleet.submit(request(max_tokens=50)))
    name = engine_of(reading)
    small.roster.write_engines([small.address(other) for other in small.engines if other != name])
    assert (await reading.final()).end is StreamEnd.LENGTH
    assert len(reading.stream.attempts) == 1
    return reading, name


async def test_an_engine_leaves_once_the_ledger_has_its_texts(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, 2) as small:
        reading, name = await unlisted_text(small)
        await asyncio.sleep(4 * members.WAIT_S)
        assert name in small.fleet.members  # its connection is open
        reading.stream.confirm_recorded()
        await eventually_async(lambda: name not in small.fleet.members)
        await eventually_async(lambda: bool(small.engines[name].events("gateway.gone")))
        assert await lost_tokens(small, name) == 0


async def test_an_engine_that_returns_receives_what_the_ledger_has_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "CONFIRM_S_MAX", 0.0)
    async with small_fleet(tmp_path, 2) as small:
        reading, name = await unlisted_text(small)
        await eventually_async(lambda: name not in small.fleet.members)
        await eventually_async(lambda: bool(small.engines[name].events("gateway.gone")))
        assert await lost_tokens(small, name) == 50
        reading.stream.confirm_recorded()
        small.roster.write_engines([small.address(engine) for engine in small.engines])
        await eventually_async(lambda: name in small.fleet.members and small.fleet.members[name].engine.ready)
        await eventually_async(lambda: bool(small.engines[name].events("tokens.reclaimed")))
        assert await lost_tokens(small, name) == 0


async def test_an_engine_at_another_address_continues_its_texts(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    expected = await uncut(tmp_path / "one")
    async with small_fleet(tmp_path, 1) as small:
        reading = Reading(small.fleet.submit(request()))
        await reading.has(10)
        link = tmp_path / "other.sock"
        link.symlink_to(small.engines["e0"].socket)
        small.roster.write_engines([EngineAddress("e0", f"unix:{link}")])
        assert (await reading.final()).end is StreamEnd.LENGTH
        assert reading.ids == expected[0]
        assert small.fleet.resumptions == 1
        await eventually_async(lambda: len(small.fleet.members) == 1)
        reading.stream.confirm_recorded()
        report = await small.fleet.members["e0"].engine.status()
        assert report.tokens_made - report.tokens_overrun - report.tokens_lost == 200


async def test_a_full_engine_is_not_the_last_word(tmp_path: Path) -> None:
    tiers = [
        {"name": "standard", "service_tier": "default", "queue_max": 1, "inter_token_ms": 500, "ttft_base_ms": 5000}
    ]
    async with small_fleet(tmp_path, 2, engine={"tiers": tiers, "sequences_max": 1}, fake={"step_ms": 20.0}) as small:
        readings = [Reading(small.fleet.submit(request(number, max_tokens=60))) for number in range(2)]
        for reading in readings:
            await reading.has(1)
        readings += [Reading(small.fleet.submit(request(number, max_tokens=20))) for number in range(2, 6)]
        ends = [(await reading.final()).end for reading in readings]
        assert ends.count(StreamEnd.LENGTH) == 4  # one runs and one waits in each
        assert ends.count(StreamEnd.REFUSED) == 2


async def test_closing_ends_what_waits(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, 1) as small:
        reading = Reading(small.fleet.submit(request()))
        await reading.has(5)
        small.kill_engine("e0")
        await eventually_async(lambda: not small.fleet.ready)
        await small.fleet.close()
        await asyncio.sleep(0)
        assert reading.stream.final is None or reading.stream.final.end is StreamEnd.LOST
