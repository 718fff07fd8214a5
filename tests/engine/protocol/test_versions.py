"""Protocol versions: one back, with either end the older; no overlap; and which changes of a frame are compatible."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec import inspect

from engine.protocol import frames, quality, snapshot_parts
from engine.protocol.client import EngineClient, EngineTooOld
from engine.protocol.codec import FrameReader, ProtocolError, decode_to_engine, encode
from engine.protocol.connection import oldest_version
from engine.protocol.frames import (
    FLEET_VERSION,
    PROTOCOL_OLDEST,
    PROTOCOL_VERSION,
    Alive,
    AttemptTokens,
    DrainEngine,
    Finished,
    GatewayHello,
    Guide,
    Heartbeat,
    Hello,
    Reclaim,
    Sampling,
    Tokens,
)
from engine.text.grammars import choice_grammar
from engine.text.tokenizer import Tokenizer
from support.engine import version_4 as v4
from support.engine.generations import IterableGeneration
from support.engine.process import EngineProcess, Peer
from support.engine.version_4_peers import Version4Engine, Version4Gateway
from support.paths import REPO
from support.waiting import eventually_async

Start = Callable[..., EngineProcess]
Connect = Callable[[EngineProcess], Awaitable[Peer]]
TINY = REPO / "examples" / "models" / "laneway-tiny"
# Values that a Literal gained since version 4, each with the reason why no end of version 4 receives it.
LATER_VALUES: dict[str, set[Any]] = {}


# ---- an engine of this version, a gateway of version 4


async def test_a_gateway_of_version_4_runs_whole_requests(start_engine: Start) -> None:
    engine = start_engine({"step_ms": 1.0})
    async with aclosing(await Version4Gateway.connect(engine.socket)) as gateway:
        wants = v4.Sampling(seed=3, logprobs=2, prompt_logprobs=1)
        gateway.send(gateway.submit(1), gateway.submit(2, sampling=wants), gateway.submit(3, tier="none"))
        ended = await gateway.until_ended(1, 2, 3)
        assert (ended[1][1].reason, ended[1][1].usage.completion_tokens) == ("length", 8)
        parts = [frame for frame in ended[2][0] if isinstance(frame, v4.PromptPart)]
        assert sum(len(part.part.ranks) // 4 for part in parts) == 19
        tokens = [frame for frame in ended[2][0] if isinstance(frame, v4.Tokens)]
        assert all(frame.logprobs for frame in tokens)
        assert ended[3][1].code == "tier_unknown"
        gateway.send(v4.Recorded([1, 2]), v4.LoadAdapter("a" * 64, "fake-model", "/nowhere"))
        assert (await gateway.expect(v4.AdapterState)).state in {"loaded", "failed"}
        gateway.send(v4.Status(), v4.Watch(0))
        assert (await gateway.expect(v4.StatusReport)).tokens_made >= 16
        assert (await gateway.expect(v4.Snapshot)).epoch == gateway.hello.epoch


async def test_a_gateway_of_version_4_has_no_lease_and_reads_heartbeats(start_engine: Start) -> None:
    engine = start_engine(flags=["--lease-s", "0.4"])
    async with aclosing(await Version4Gateway.connect(engine.socket)) as gateway:
        async with asyncio.timeout(30):
            while len(gateway.heartbeats) < 2:
                with pytest.raises(TimeoutError):
                    await gateway.next(0.3)
        gateway.send(gateway.submit(1))
        assert (await gateway.until_ended(1))[1][1].reason == "length"
        assert not engine.events("stream.cut")


async def test_a_gateway_of_version_4_has_its_guides_followed(start_engine: Start) -> None:
    tokenizer = Tokenizer.load(TINY)
    stop_ids = sorted(tokenizer.eos_ids)
    engine = start_engine(models=[{"name": "laneway-tiny", "path": str(TINY)}])
    async with aclosing(await Version4Gateway.connect(engine.socket)) as gateway:
        guide = v4.Guide(choice_grammar(["red", "blue"]))
        gateway.send(gateway.submit(1, guide=guide, stop_ids=stop_ids, max_tokens=30, sampling=v4.Sampling(seed=5)))
        said, ending = (await gateway.until_ended(1))[1]
        assert ending.reason == "stop"
        ids = [frame.ids[frame.handles.index(1)] for frame in said if isinstance(frame, v4.Tokens)]
        assert tokenizer.decode([id_ for id_ in ids if id_ not in stop_ids]) in {"red", "blue"}


# ---- a gateway of this version, an engine of version 4


async def test_an_engine_of_version_4_serves_this_client(socket_dir: Path) -> None:
    async with Version4Engine(socket_dir / "v4.sock") as engine:
        client = EngineClient(socket_dir / "v4.sock", generation=IterableGeneration, on_pages=lambda _: None)
        await client.start()
        hello = await client.wait_ready(30)
        assert (client.version, hello.lease_s, oldest_version(hello)) == (4, 0.0, 4)
        generation = cast(
            IterableGeneration,
            client.submit(
                request_id="r", model="old-model", adapter=None, namespace="n", tier="standard", share="s",
                prompt_ids=[5, 6, 7], max_tokens=4, sampling=Sampling(logprobs=0), stop_ids=[2],
                guide=Guide(reasoning_end_ids=[9], reasoning_max=3),
            ),
        )  # fmt: skip
        said = [event async for event in generation]
        assert sum(len(event) for event in said if isinstance(event, list)) == 4
        assert isinstance(said[-1], Finished)
        assert (said[-1].usage.completion_tokens, said[-1].resumable) == (4, False)
        assert generation.cached_tokens == 3
        generation.recorded()
        await client.load_adapter("b" * 64, "old-model", "/somewhere")
        assert await client.load_model("other", "/somewhere") == ""
        assert (await client.status()).tokens_made == 7
        assert (await client.watch()).step == 1
        with pytest.raises(EngineTooOld, match="cannot resume"):
            client.submit(
                request_id="s", model="old-model", adapter=None, namespace="n", tier="standard", share="s",
                prompt_ids=[5, 6, 7, 8], max_tokens=4, sampling=Sampling(), stop_ids=[2], resumed=1,
            )  # fmt: skip
        with pytest.raises(EngineTooOld, match="no vectors"):
            client.submit(
                request_id="e", model="old-model", adapter=None, namespace="n", tier="standard", share="s",
                prompt_ids=[5, 6, 7], max_tokens=0, sampling=Sampling(), stop_ids=[], pooling="last",
            )  # fmt: skip
        assert client.models["old-model"].vector_width == 0
        with pytest.raises(EngineTooOld, match="version 4"):
            client.drain(True)
        with pytest.raises(EngineTooOld, match="version 4"):
            client.reclaim([AttemptTokens("r", 0, 0, 4)])
        beats = engine.heartbeats
        await eventually_async(lambda: engine.heartbeats > beats + 7)  # longer than a sign of life would take
        assert client.last_heartbeat is not None
        assert (client.last_heartbeat.draining, client.last_heartbeat.load) == (False, None)
        await eventually_async(lambda: any(isinstance(frame, v4.Recorded) for frame in engine.received))
        await client.close()
    assert engine.faults == [], "a frame that version 4 does not have"
    assert client.version is None


# ---- both ends of this version or a later one


async def test_both_ends_of_this_version_agree_on_it(start_engine: Start) -> None:
    engine = start_engine()
    client = EngineClient(engine.socket, gateway="gateway-a")
    await client.start()
    hello = await client.wait_ready(30)
    assert (hello.version, hello.oldest, hello.lease_s) == (PROTOCOL_VERSION, PROTOCOL_OLDEST, 5.0)
    assert client.version == PROTOCOL_VERSION
    await client.status()
    [line] = engine.events("stream.gateway")
    assert (line["name"], line["version"]) == ("gateway-a", PROTOCOL_VERSION)
    await client.close()


async def test_a_gateway_of_a_later_version_gets_the_engine_s(start_engine: Start, connect: Connect) -> None:
    engine = start_engine()
    peer = await connect(engine)
    peer.send(GatewayHello(PROTOCOL_VERSION + 3, "newer", oldest=PROTOCOL_VERSION - 1), Alive(), peer.submit(1))
    assert (await peer.until_ended(1))[1][1].reason == "length"
    assert [line["version"] for line in engine.events("stream.gateway")] == [PROTOCOL_VERSION]


async def test_without_a_common_version_both_ends_say_so(
    start_engine: Start, connect: Connect, socket_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = start_engine()
    peer = await connect(engine)
    peer.send(GatewayHello(99, "much newer", oldest=90))
    assert await peer.closed()
    [line] = engine.events("stream.cut")
    own = f"{PROTOCOL_OLDEST} to {PROTOCOL_VERSION}"
    assert f"gateway 'much newer' speaks the protocol's versions 90 to 99, this engine {own}" in line["reason"]

    caplog.set_level(logging.WARNING, "engine")
    greetings: list[bytes] = []
    for version, oldest in ((99, 90), (3, 4)):  # before version 5 there was no field `oldest`
        hello = Hello(version, f"epoch-{version}", [], [], oldest=oldest)

        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Hello = hello) -> None:
            writer.write(encode(hello))
            greetings.append(await reader.read())
            writer.close()

        path = socket_dir / f"version-{version}.sock"
        server = await asyncio.start_unix_server(speak, path)
        client = EngineClient(path, gateway="this one")
        await client.start()
        await eventually_async(lambda: len(greetings) > 0)
        await client.close()
        server.close()
        assert not client.ready
        said = [decode_to_engine(body) for body in FrameReader().feed(greetings.pop())]
        known = [GatewayHello(PROTOCOL_VERSION, "this one", oldest=PROTOCOL_OLDEST)]
        assert said == (known if version >= FLEET_VERSION else [])
    reasons = [cast(Any, record).fields["reason"] for record in caplog.records]
    assert [reason.partition(": ")[0] for reason in reasons] == ["epoch-99", "epoch-3"], "one line each"
    assert f"the engine speaks the protocol's versions 90 to 99, this gateway {own}" in reasons[0]
    assert "versions 3 to 3" in reasons[1]


@pytest.mark.parametrize("frame", [Alive(), Reclaim([]), DrainEngine()], ids=lambda frame: type(frame).__name__)
async def test_a_frame_of_version_5_needs_a_gateway_hello(
    start_engine: Start, connect: Connect, frame: Alive | Reclaim | DrainEngine
) -> None:
    engine = start_engine()
    peer, other = await connect(engine), await connect(engine)
    peer.send(frame)
    assert await peer.closed()
    other.send(GatewayHello(PROTOCOL_VERSION, "other"), other.submit(1))
    await other.until_ended(1)
    other.send(GatewayHello(PROTOCOL_VERSION, "other"), other.submit(2))
    await other.until_ended(2)
    other.send(GatewayHello(PROTOCOL_VERSION, "another"))
    assert await other.closed()


# ---- compatible changes

OLD = {
    name: struct
    for name, struct in vars(v4).items()
    if isinstance(struct, type) and issubclass(struct, msgspec.Struct) and name != "Frame"
}
MODULES = (frames, snapshot_parts, quality)


def current(name: str) -> type[msgspec.Struct]:
    return cast(type[msgspec.Struct], next(vars(module)[name] for module in MODULES if name in vars(module)))


def shape(kind: inspect.Type) -> Any:
    """What of a type decides about compatibility: a struct by its name, a Literal by its values."""
    match kind:
        case inspect.StructType():
            return kind.cls.__name__
        case inspect.LiteralType():
            return {"values": set(kind.values)}
        case inspect.UnionType():
            return [shape(each) for each in kind.types]
    return (type(kind).__name__, [shape(part) for part in vars_of(kind)], limits_of(kind))


def vars_of(kind: inspect.Type) -> list[inspect.Type]:
    parts = [getattr(kind, name) for name in kind.__struct_fields__]
    return [part for value in parts for part in (value if isinstance(value, tuple) else (value,)) if is_type(part)]


def is_type(value: object) -> bool:
    return isinstance(value, inspect.Type)


def limits_of(kind: inspect.Type) -> list[Any]:
    names = [name for name in kind.__struct_fields__ if name.startswith(("max_", "min_", "ge", "le", "pattern"))]
    return [(name, getattr(kind, name)) for name in names]


def fields_of(struct: type[msgspec.Struct]) -> list[inspect.Field]:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return list(info.fields)


def changes_of(old: type[msgspec.Struct], new: type[msgspec.Struct]) -> list[str]:
    """How `new` differs from `old`, other than by fields with a default at the end."""
    before, after = fields_of(old), fields_of(new)
    found = [
        f"{old.__name__}.{one.name} became {two.name}: append fields, do not insert them"
        for one, two in zip(before, after, strict=False)
        if one.name != two.name
    ]
    if len(after) < len(before):
        found.append(f"{old.__name__} lost {before[len(after)].name}")
    found += [
        f"{old.__name__}.{field.name} has no default, so frames without it are not decoded"
        for field in after[len(before) :]
        if field.required
    ]
    found += [
        f"{old.__name__}.{one.name} was {shape(one.type)} and is {shape(two.type)}"
        for one, two in zip(before, after, strict=False)
        if one.name == two.name and (shape(one.type), one.required) != (shape(two.type), two.required)
    ]
    if old.__struct_config__.tag != new.__struct_config__.tag:
        found.append(f"{old.__name__} has another tag")
    return found


@pytest.mark.parametrize("name", sorted(OLD))
def test_a_struct_of_version_4_changed_by_fields_at_its_end_alone(name: str) -> None:
    assert changes_of(OLD[name], current(name)) == []


@pytest.mark.parametrize("name", ["FinishReason", "GuideFault", "RefusalCode", "ModelFailure"])
def test_no_literal_has_a_value_that_version_4_cannot_decode(name: str) -> None:
    later = set(getattr(frames, name).__args__) - set(getattr(v4, name).__args__)
    assert later == LATER_VALUES.get(name, set()), f"{name}: say in LATER_VALUES why version 4 never receives it"


def test_the_check_of_changes_finds_them() -> None:
    class Inserted(msgspec.Struct, array_like=True):
        step: int
        extra: int
        busy: bool
        running: int
        waiting: int

    class Retyped(msgspec.Struct, array_like=True, tag="heartbeat"):
        step: int
        busy: int
        running: int
        waiting: int
        needed: int

    assert any("append fields" in change for change in changes_of(v4.Heartbeat, Inserted))
    found = changes_of(v4.Heartbeat, Retyped)
    assert any("needed has no default" in change for change in found)
    assert any("busy was" in change for change in found)
    reason = inspect.type_info(v4.FinishReason)
    assert shape(reason) != shape(inspect.type_info(frames.RefusalCode))


def test_frames_of_this_version_decode_as_version_4() -> None:
    beat = encode(Heartbeat(1, True, 2, 3, draining=True, load=snapshot_parts.EngineLoad({"standard": 0.5})))
    (body,) = FrameReader().feed(beat)
    assert msgspec.msgpack.decode(body, type=v4.FromEngine) == v4.Heartbeat(1, True, 2, 3)
    (body,) = FrameReader().feed(encode(Hello(5, "e", [], ["t"], lease_s=5.0, build="1")))
    assert msgspec.msgpack.decode(body, type=v4.FromEngine) == v4.Hello(5, "e", [], ["t"])
    (body,) = FrameReader().feed(encode(Tokens(1, [2], [3], cached={2: 4})))
    assert msgspec.msgpack.decode(body, type=v4.FromEngine) == v4.Tokens(1, [2], [3], None, {2: 4})
    with pytest.raises(ProtocolError):
        decode_to_engine(msgspec.msgpack.encode(["later_frame", 1]))
