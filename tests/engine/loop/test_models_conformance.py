"""What every engine answers about models that come and go: the fake, step after step and one ahead, and the real one
over small random models. Two are configured, with room for the weights of one; a third is added and removed."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.models.config import load_config
from engine.models.cpu_loading import cpu_bytes
from engine.protocol.frames import (
    AdapterState,
    Finished,
    LoadAdapter,
    LoadModel,
    ModelInfo,
    Models,
    ModelState,
    Refused,
    Snapshot,
    Status,
    StatusReport,
    Tokens,
    UnloadModel,
    Watch,
)
from engine.protocol.snapshot_parts import ModelPlace
from support import oracle
from support.engine.process import EngineProcess, Peer

Connect = Callable[[EngineProcess], Awaitable[Peer]]
PROMPT = list(range(20, 60))
MANY = 120  # ids that take a while to make


@dataclass
class Subject:
    process: EngineProcess
    third: Path  # a model to add
    adapter: tuple[str, str]  # of the third: digest, path
    fake: bool
    handles: Iterator[int]

    def fresh(self) -> int:
        return next(self.handles)

    def load(self, **changes: Any) -> LoadModel:
        fields: dict[str, Any] = {"name": "third", "path": str(self.third), "dtype": "float32", "context_tokens": 300}
        return LoadModel(**(fields | changes))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of several families, with heads, K/V heads, depths and vocabularies of their own."""
    root = tmp_path_factory.mktemp("models")
    return {
        "one": oracle.save_tiny("llama", root / "one"),
        "two": oracle.save_tiny("qwen3", root / "two", seed=1, num_key_value_heads=3, vocab_size=352),
        "third": oracle.save_tiny("qwen2", root / "third", seed=2, num_hidden_layers=2),
    }


@pytest.fixture(scope="module", params=["fake", "fake_ahead", "real"])
def subject(
    request: pytest.FixtureRequest, tiny: dict[str, Path], socket_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Subject]:
    fake = request.param != "real"
    config: dict[str, Any] = {
        "models": [{"name": name, "path": str(tiny[name])} for name in ("one", "two")],
        "arena_bytes": 16 << 20,
        "weights_bytes": max(size_of(path) for path in tiny.values()),
        "weights_residence_s": 0.02,
        "threads": 1,
    }
    if fake:
        config["weights_bytes"] = config["weights_host_bytes"] = 1 << 20
        config["fake"] = {
            "step_ms": 2.0,
            "steps_ahead": int(request.param == "fake_ahead"),
            "weights_host_ms": 2.0,
            "weights_disk_ms": 10.0,
        }
    directory = tmp_path_factory.mktemp("adapter")
    lora: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
    oracle.save_tiny_adapter(oracle.load(tiny["third"]), directory, **lora)
    flags = ["--fake"] if fake else []
    process = EngineProcess(socket_dir / f"models-{request.param}.sock", config, *flags)
    yield Subject(process, tiny["third"], ("a" * 64, str(directory)), fake, itertools.count(1))
    assert process.alive(), process.log()
    assert process.stop() == 0


def size_of(directory: Path) -> int:
    return cpu_bytes(load_config(directory), torch.float32, packed=True)


@pytest.fixture
async def peers(subject: Subject, connect: Connect) -> list[Peer]:
    """Two gateways."""
    return [await connect(subject.process) for _ in range(2)]


def names(models: list[ModelInfo]) -> list[str]:
    return [model.name for model in models]


async def answer(peer: Peer, *frames: Any) -> ModelState:
    peer.send(*frames)
    return await peer.expect(ModelState)


async def add(subject: Subject, peers: list[Peer], **changes: Any) -> ModelInfo:
    """As both gateways hear of it."""
    frame = subject.load(**changes)
    peers[0].send(frame)
    told = [await peer.expect(Models) for peer in peers]
    assert told[0] == told[1]
    assert await peers[0].expect(ModelState) == ModelState(frame.name, "loaded")
    return next(model for model in told[0].models if model.name == frame.name)


async def remove(peers: list[Peer], name: str = "third") -> None:
    peers[0].send(UnloadModel(name))
    told = [await peer.expect(Models) for peer in peers]
    assert all(name not in names(models.models) for models in told)
    assert await peers[0].expect(ModelState) == ModelState(name, "unloaded")


async def run(subject: Subject, peer: Peer, model: str, **changes: Any) -> list[int]:
    frame = peer.submit(subject.fresh(), model=model, prompt_ids=PROMPT, stop_ids=[], **changes)
    peer.send(frame)
    ids, ending = (await peer.until_ended(frame.handle))[frame.handle]
    assert isinstance(ending, Finished), ending
    assert ending.reason == "length", ending
    return ids


async def watch(peer: Peer) -> Snapshot:
    peer.send(Watch())
    return await peer.expect(Snapshot)


async def places(peer: Peer) -> dict[str, ModelPlace]:
    return {place.name: place for place in (await watch(peer)).models}


async def report(peer: Peer) -> StatusReport:
    peer.send(Status())
    return await peer.expect(StatusReport)


def metric(found: StatusReport, name: str, **labels: str) -> float:
    total = 0.0
    for line in found.metrics.decode().splitlines():
        sample, _, value = line.rpartition(" ")
        if sample.partition("{")[0] == name and all(f'{k}="{v}"' in sample for k, v in labels.items()):
            total += float(value)
    return total


async def test_a_model_that_is_not_on_the_device_waits_and_runs(subject: Subject, peers: list[Peer]) -> None:
    """They take turns on the room of one, and each says what it says alone."""
    assert names(peers[0].hello.models) == ["one", "two"]
    alone = {name: await run(subject, peers[0], name) for name in ("one", "two")}
    handles = {subject.fresh(): name for name in ("one", "two") * 4}
    mine, other = list(handles)[::2], list(handles)[1::2]
    for peer, own in zip(peers, (mine, other), strict=True):
        peer.send(*(peer.submit(h, model=handles[h], prompt_ids=PROMPT, stop_ids=[]) for h in own))
    results = {**await peers[0].until_ended(*mine), **await peers[1].until_ended(*other)}
    assert {handle: ids for handle, (ids, _) in results.items()} == {h: alone[name] for h, name in handles.items()}
    shot = await watch(peers[0])
    assert shot.weights_bytes >= max(place.weights_bytes for place in shot.models) > 0
    assert sorted(place.where == "device" for place in shot.models) == [False, True], "the room is that of one"
    assert all(place.wait_s > 0 for place in shot.models if place.where != "device" and not place.coming)
    assert all(place.tokens_per_page >= 8 and place.page_waste_bytes >= 0 for place in shot.models)
    assert sum(place.loads for place in shot.models) >= 2
    found = await report(peers[0])
    assert metric(found, "laneway_model_resident") == 1
    assert metric(found, "laneway_model_loads_total") == sum(place.loads for place in shot.models)
    assert metric(found, "laneway_model_load_seconds_count") == sum(place.loads for place in shot.models)
    assert metric(found, "laneway_model_evictions_total") >= 1
    cold = sum(metric(found, "laneway_model_requests_total", storage=where) for where in ("host", "disk"))
    assert 1 <= cold < metric(found, "laneway_model_requests_total") == 10


async def test_a_model_is_added_and_every_gateway_hears_of_it(
    subject: Subject, peers: list[Peer], connect: Connect
) -> None:
    info = await add(subject, peers)
    assert (info.context_tokens, info.vocab_size, info.pinned) == (300, oracle.TINY_VOCAB, False)
    assert info.weights_bytes > 0
    assert len(info.digest) == 64
    later = await connect(subject.process)
    assert names(later.hello.models) == ["one", "two", "third"]
    # Known is known; whoever means another model by the name is told.
    assert await answer(peers[1], subject.load()) == ModelState("third", "loaded")
    for changes in ({"path": "/elsewhere"}, {"context_tokens": None}):
        state = await answer(peers[1], subject.load(**changes))
        assert state.state == "failed"
        assert "another model is served under this name" in state.message
        assert state.code == "other_served"
    assert len(await run(subject, peers[0], "third")) == 8
    peers[0].send(peers[0].submit(handle := subject.fresh(), model="third", prompt_ids=PROMPT, max_tokens=290))
    refused = await peers[0].expect(Refused)
    assert (refused.handle, refused.code) == (handle, "too_long")
    # Its names are of this engine: nobody has heard of a fourth.
    assert await answer(peers[0], UnloadModel("fourth")) == ModelState("fourth", "unloaded")
    await remove(peers)
    assert later.hello.epoch == subject.process.ready["epoch"]


async def test_another_model_under_a_name_that_is_being_loaded(subject: Subject, peers: list[Peer]) -> None:
    """Its files are being checked: whoever means another model, or wants it unloaded, is told to ask again."""
    [peer, other] = peers
    peer.send(subject.load(), subject.load(context_tokens=None), UnloadModel("third"))
    states = [await peer.expect(ModelState) for _ in range(3)]
    assert [(state.state, state.code) for state in states[:2]] == [("failed", "other_loading"), ("failed", "loading")]
    assert "another model is being loaded under this name" in states[0].message
    assert states[2] == ModelState("third", "loaded")
    await other.expect(Models)
    await remove(peers)


async def test_a_model_that_is_removed_drains_and_its_name_is_free(subject: Subject, peers: list[Peer]) -> None:
    mine, other = peers
    await add(subject, peers)
    before = await run(subject, mine, "third")
    runs, queued, late = (subject.fresh() for _ in range(3))
    frames = [other.submit(h, model="third", prompt_ids=PROMPT, max_tokens=MANY, stop_ids=[]) for h in (runs, queued)]
    other.send(frames[0])
    await other.expect(Tokens)
    other.send(frames[1])
    await report(other)  # it has been heard
    mine.send(UnloadModel("third"), UnloadModel("third"), subject.load())
    mine.send(mine.submit(late, model="third"))
    assert names((await mine.expect(Models)).models) == ["one", "two"]
    assert await mine.expect(ModelState) == ModelState("third", "failed", "it is being unloaded", "unloading")
    refused = await mine.expect(Refused)
    assert (refused.handle, refused.code) == (late, "model_unknown")
    place = (await places(mine))["third"]
    assert place.leaving
    results = await other.until_ended(runs, queued)
    endings = [(ending.usage.completion_tokens, ending.reason) for _, ending in results.values()]
    assert endings == [(MANY, "length")] * 2
    for _ in range(2):
        assert await mine.expect(ModelState) == ModelState("third", "unloaded")
    shot = await watch(mine)
    assert [place.name for place in shot.models] == ["one", "two"]
    assert all(owner.model != "third" for owner in shot.owners), "its pages are free"
    assert {owner.kind for owner in shot.owners} <= {"free", "cached"}
    found = await report(mine)
    assert b'vllm:num_requests_running{model_name="third"}' not in found.metrics
    assert b'model_name=""' not in found.metrics
    made = metric(found, "vllm:generation_tokens_total") + metric(found, "laneway_tokens_overrun_total")
    assert made == found.tokens_made
    await add(subject, peers)
    assert await run(subject, mine, "third") == before
    await remove(peers)


async def test_each_model_has_its_own_gauges_and_keeps_its_counters(subject: Subject, peers: list[Peer]) -> None:
    """Also one that is removed and restored: a counter never moves to another name, and never begins again."""
    mine = peers[0]
    running, made = "vllm:num_requests_running", "vllm:generation_tokens_total"
    await add(subject, peers)
    handle = subject.fresh()
    mine.send(mine.submit(handle, model="third", prompt_ids=PROMPT, max_tokens=MANY, stop_ids=[]))
    await mine.expect(Tokens)
    found = await report(mine)
    assert [metric(found, running, model_name=name) for name in ("one", "third")] == [0, 1]
    await mine.until_ended(handle)
    counted = metric(await report(mine), made, model_name="third")
    assert counted >= MANY
    await remove(peers)
    removed = await report(mine)
    assert metric(removed, made, model_name="third") == counted
    assert b'model_name=""' not in removed.metrics
    await add(subject, peers)
    await run(subject, mine, "third")
    assert metric(await report(mine), made, model_name="third") > counted
    await remove(peers)


async def test_what_is_aborted_while_a_model_drains_lets_it_go(subject: Subject, peers: list[Peer]) -> None:
    """Also by the gateway's death."""
    mine, other = peers
    await add(subject, peers)
    other.send(other.submit(1, model="third", prompt_ids=PROMPT, max_tokens=250, stop_ids=[]))
    await other.expect(Tokens)
    mine.send(UnloadModel("third"))
    await other.close()
    assert await mine.expect(ModelState) == ModelState("third", "unloaded")


async def test_adapters_go_with_their_model(subject: Subject, peers: list[Peer]) -> None:
    digest, path = subject.adapter
    for _ in range(2):
        await add(subject, peers)
        plain = await run(subject, peers[0], "third")
        peers[0].send(peers[0].submit(handle := subject.fresh(), model="third", adapter=digest))
        refused = await peers[0].expect(Refused)
        assert (refused.handle, refused.code) == (handle, "adapter_unknown")
        peers[0].send(LoadAdapter(digest, "third", path, pinned=True))
        assert (await peers[0].expect(AdapterState)).state == "loaded"
        assert await run(subject, peers[0], "third", adapter=digest) != plain
        await remove(peers)
        found = await report(peers[0])
        assert found.pages_adapters == 0
        assert found.adapters_resident == []
        assert (await watch(peers[0])).adapters_total == 0
    peers[0].send(LoadAdapter(digest, "third", path))
    state = await peers[0].expect(AdapterState)
    assert (state.state, state.message) == ("failed", "model 'third' is not served here")


@pytest.mark.parametrize("subject", ["real"], indirect=True)  # the fake's adapters are one model's
async def test_an_adapter_of_two_models_stays_for_the_other(subject: Subject, peers: list[Peer]) -> None:
    digest, path = subject.adapter
    for name in ("third", "twin"):
        await add(subject, peers, name=name)
        peers[0].send(LoadAdapter(digest, name, path))
        assert (await peers[0].expect(AdapterState)).state == "loaded"
    alone = await run(subject, peers[0], "twin", adapter=digest, max_tokens=MANY)
    peers[1].send(peers[1].submit(1, model="twin", adapter=digest, prompt_ids=PROMPT, max_tokens=MANY, stop_ids=[]))
    first = await peers[1].expect(Tokens)
    await remove(peers[:1])
    results = await peers[1].until_ended(1)
    assert first.ids + results[1][0] == alone
    assert await run(subject, peers[0], "twin", adapter=digest, max_tokens=MANY) == alone
    await remove(peers, "twin")
    assert (await report(peers[0])).pages_adapters == 0


async def test_a_pinned_model_comes_unasked_and_stays(subject: Subject, peers: list[Peer]) -> None:
    """Beside it there would be no room for the others."""
    state = await answer(peers[0], subject.load(pinned=True))
    assert state.state == "loaded"
    assert "pinned models would leave" in state.message
    assert not (await peers[1].expect(Models)).models[-1].pinned
    assert subject.process.events("model.not_pinned")[-1]["model"] == "third"
    await remove(peers)


def _config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _tensor(directory: Path, name: str, tensor: torch.Tensor | None) -> None:
    tensors = load_file(directory / "model.safetensors")
    if tensor is None:
        del tensors[name]
    else:
        tensors[name] = tensor
    save_file(tensors, directory / "model.safetensors")


def _truncate(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _words(directory: Path) -> None:
    (directory / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": oracle.TINY_VOCAB}}}))


NORM = "model.layers.1.input_layernorm.weight"
BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nothing there": (shutil.rmtree, "config.json: No such file"),
    "an unknown architecture": (lambda d: _config(d, architectures=["BertModel"]), "architectures: BertModel is not"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), r"no \*.safetensors"),
    "a file cut short": (_truncate, "model.safetensors: "),
    "a tensor missing": (lambda d: _tensor(d, NORM, None), f"{NORM} is missing"),
    "a wrong shape": (lambda d: _tensor(d, NORM, torch.ones(7)), f"{NORM} has shape (7,), the config says (48,)"),
    "a quantized tensor": (
        lambda d: _tensor(d, NORM, torch.ones(48, dtype=torch.int8)),
        f"{NORM} is of dtype I8, not of F64, F32, F16, BF16",
    ),
    "words beyond its vocabulary": (_words, "it has an id 320; config.json says vocab_size 320"),
    "too many bytes a token": (lambda d: oracle.save_tiny("qwen2", d, num_hidden_layers=40), "at least 8 are needed"),
    "too large": (
        lambda d: oracle.save_tiny("qwen2", d, intermediate_size=2000),
        "; weights_bytes is ",
    ),
}


@pytest.mark.parametrize("subject", ["real"], indirect=True)  # the fake looks at no weights
@pytest.mark.parametrize("kind", BROKEN)
async def test_a_model_that_cannot_be_served_is_refused_and_leaves_nothing(
    subject: Subject, peers: list[Peer], kind: str, tmp_path: Path
) -> None:
    spoil, why = BROKEN[kind]
    directory = shutil.copytree(subject.third, tmp_path / "model")
    spoil(directory)
    state = await answer(peers[0], subject.load(path=str(directory)))
    assert state.state == "failed"
    assert why.replace("\\", "") in state.message
    assert names((await connect_again(subject)).models) == ["one", "two"]
    await add(subject, peers)
    await remove(peers)


async def connect_again(subject: Subject) -> Any:
    peer = await Peer.connect(subject.process.socket)
    await peer.close()
    return peer.hello


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": ""}, "Expected `str` of length >= 1 - at `$.name`"),
        (
            {"dtype": "int3"},
            "Invalid enum value 'int3' - at `$.dtype`; it must be bfloat16, float16 or float32",
        ),
        ({"quantize": "x"}, "Invalid enum value 'x' - at `$.quantize`; it must be fp8, int4, int8 or none"),
        ({"kv_dtype": "x"}, "Invalid enum value 'x' - at `$.kv_dtype`; it must be auto or fp8"),
        ({"context_tokens": 1}, "Expected `int` >= 2 - at `$.context_tokens`"),
        ({"dtype": "bfloat16"}, "dtype: the models of one engine share one, here float32"),
    ],
    ids=str,
)
async def test_what_makes_no_model_is_refused_by_field(
    subject: Subject, peers: list[Peer], changes: dict[str, Any], why: str
) -> None:
    state = await answer(peers[0], subject.load(**changes))
    assert (state.name, state.state) == (changes.get("name", "third"), "failed")
    assert state.message == why


async def test_both_gateways_may_ask_at_once(subject: Subject, peers: list[Peer]) -> None:
    read = len(subject.process.events("model.read"))
    for peer in peers:
        peer.send(subject.load(), subject.load())
    for peer in peers:
        states = [await peer.expect(ModelState) for _ in range(2)]
        assert [state.state for state in states] == ["loaded"] * 2
    for peer in peers:
        peer.send(UnloadModel("third"))
    for peer in peers:
        assert (await peer.expect(ModelState)).state == "unloaded"
    assert len(subject.process.events("model.read")) == read + 1, "read once, for both"


async def test_models_come_and_go_under_traffic_of_the_others(subject: Subject, peers: list[Peer]) -> None:
    """Nobody who is served waits for it, and every request ends with what it asked for."""
    mine, other = peers
    until = time.monotonic() + 1.5
    done = 0

    async def traffic() -> None:
        nonlocal done
        while time.monotonic() < until:
            handles = [subject.fresh() for _ in range(4)]
            for h, model in zip(handles, itertools.cycle(("one", "two")), strict=False):
                other.send(other.submit(h, model=model, prompt_ids=PROMPT, max_tokens=8, stop_ids=[]))
            results = await other.until_ended(*handles)
            assert all(len(ids) == 8 and ending.reason == "length" for ids, ending in results.values())
            done += len(handles)

    async def changes() -> int:
        rounds = 0
        while time.monotonic() < until:
            assert (await answer(mine, subject.load())).state == "loaded"
            await run(subject, mine, "third")
            assert (await answer(mine, UnloadModel("third"))).state == "unloaded"
            rounds += 1
        return rounds

    _, rounds = await asyncio.gather(traffic(), changes())
    assert rounds >= 1
    assert done >= 4
    found = await report(mine)
    assert found.pages_free + found.pages_cached + found.pages_adapters == found.pages_total
