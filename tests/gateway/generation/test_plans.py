"""What a request would be on each of several models: each prompt is counted once an encoding, not once a model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from billing.database import Database
from engine.protocol.frames import ModelInfo
from engine.text.tokenizer import Tokenizer
from gateway.access.callers import Caller
from gateway.api.bodies import PARSE_IN_LOOP_BYTES_MAX
from gateway.api.generation_request import GenerationRequest, LargeBody, Prompt
from gateway.api.sampling import TextRules, make_sampling
from gateway.catalog.registry import ModelTarget, Registry, ServedName
from gateway.catalog.served_models import ModelFiles, ServedModel
from gateway.config.file import parse_gateway_config
from gateway.config.server_secrets import ServerSecrets
from gateway.engines import engine as protocol
from gateway.errors import InvalidRequest
from gateway.generation.planning import CountedPrompts, RequestPlanner
from gateway.large_work.pool import LargeWork
from support.gateway.base_models import model


class Counting(Tokenizer):
    """Which texts were encoded."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        self.encoded = [*getattr(self, "encoded", []), text]
        return super().encode(text, add_special_tokens=add_special_tokens)


class Engine:
    ready = True

    def __init__(self, **models: int) -> None:
        """By name, how many ids each has."""
        self.models = {name: ModelInfo(name, "d" * 64, 128, ids, 16, 1000) for name, ids in models.items()}


def planner(directories: dict[str, Path], **ids: int) -> tuple[RequestPlanner, dict[str, Counting]]:
    tokenizers = {name: Counting(path) for name, path in directories.items()}
    served = {}
    for name, path in directories.items():
        files = ModelFiles(str(path))
        served[name] = ServedModel(name, tokenizers[name], files.vocabulary, files.encoding, 16, 0)
    registry = Registry(cast(Database, None))
    registry.serve([ServedName(model(name), 0) for name in directories])
    engine = cast(protocol.Engine, Engine(**ids))
    secrets = ServerSecrets(bytes(32))
    return RequestPlanner(
        parse_gateway_config(b"", Path(), "test", {}), served, registry, engine, LargeWork(), secrets
    ), tokenizers


def asked(*prompts: Prompt) -> GenerationRequest:
    sampling = make_sampling(temperature=None, top_p=None, top_k=None)
    return GenerationRequest("x", list(prompts), "prompt", 1, 4, sampling, TextRules([], []), None, False)


CALLER = Caller(
    key_id="key", first_key_id="key", tenant_id="t", tenant_slug="t", project_id=None, tier="standard",
    scopes=frozenset(),
    default_max_tokens=None, share_weight=1.0, subjects=(), expires_at=None, age=0,
)  # fmt: skip


async def test_models_of_one_encoding_count_once(model_dir: Path, tiny_dir: Path) -> None:
    directories = {"one": model_dir, "two": model_dir, "tiny": tiny_dir}
    plans, tokenizers = planner(directories, one=49152, two=49152, tiny=4096)
    known: CountedPrompts = {}
    made = {
        name: await plans.plan(CALLER, asked("Once upon"), ModelTarget(name, name, None), known) for name in directories
    }
    encoded = {name: getattr(tokenizer, "encoded", []) for name, tokenizer in tokenizers.items()}
    assert encoded == {"one": ["Once upon"], "two": [], "tiny": ["Once upon"]}
    assert made["one"].prompts == made["two"].prompts
    for name, plan in made.items():
        assert plan.prompts[0].ids == tokenizers[name].encode("Once upon", add_special_tokens=True)
        assert plan.target.model == name


async def test_ids_that_one_of_them_has_not(model_dir: Path) -> None:
    """Of the same files, one has fewer rows."""
    plans, _ = planner({"one": model_dir, "two": model_dir}, one=49152, two=400)
    known: CountedPrompts = {}
    assert await plans.plan(CALLER, asked([500]), ModelTarget("one", "one", None), known)
    with pytest.raises(InvalidRequest, match="below 400"):
        await plans.plan(CALLER, asked([500]), ModelTarget("two", "two", None), known)


def test_whose_ids_are_the_same_words(model_dir: Path, tiny_dir: Path) -> None:
    plans, _ = planner({"one": model_dir, "two": model_dir, "tiny": tiny_dir})
    targets: Any = {name: ModelTarget(name, name, None) for name in ("one", "two", "tiny", "unread")}
    assert plans.one_vocabulary([targets["one"], targets["two"]])
    assert not plans.one_vocabulary([targets["one"], targets["tiny"]])
    assert not plans.one_vocabulary([targets["one"], targets["unread"]])
    assert plans.one_vocabulary([targets["unread"]]), "it says itself that it is not there"


async def test_one_large_text_is_parsed_per_turn_of_the_loop(model_dir: Path) -> None:
    plans, _ = planner({"one": model_dir}, one=49152)
    body = msgspec.json.encode({"model": "one", "prompt": "word " * 20_000})
    values = msgspec.json.encode({"model": "one", "prompt": ["w"] * 20_000})
    assert min(len(body), len(values)) > PARSE_IN_LOOP_BYTES_MAX
    try:
        first, second = await asyncio.gather(*[plans.read(CALLER, "completions", body) for _ in range(2)])
        assert first.asked.prompts == ["word " * 20_000]
        assert isinstance(second.asked.prompts, LargeBody)
        third = await plans.read(CALLER, "completions", body)
        assert third.asked.prompts == first.asked.prompts
        with pytest.raises(InvalidRequest):  # too many prompts
            await plans.read(CALLER, "completions", values)
    finally:
        await plans._large_work.close()
