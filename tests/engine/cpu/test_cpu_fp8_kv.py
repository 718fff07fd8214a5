"""K and V in fp8 on the CPU: the kernels' definition, the same ids alone and in any company, and a scale that is not
its own.

One arena holds a model with K and V in float32 and the same directory with K and V in fp8.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Literal

import pytest
import torch

from engine.compute.shared import PAGE_TOKENS, page_size
from engine.cpu.batch import pack_step
from engine.cpu.decoder import Decoder, PagedKv
from engine.cpu.runner import TorchRunner, build_runner
from engine.models.config import load_config, parse_config
from engine.models.cpu_loading import load_weights
from engine.protocol.config import EngineConfig, EngineConfigError, ModelConfig, parse_engine_config
from engine.protocol.page_names import Chain
from engine.scheduler.scheduler import ModelLimits
from engine.step import Chunk, Sequence
from kernels import reference_attention, reference_step
from kernels.kv_layout import FP8, KV_KERNELS_VERSION, KvLayout
from support import oracle
from support.engine.in_process import MODEL, Drive
from support.engine.same_ids import GREEDY, Case, run_cases
from support.engine.swap_round_trip import run_swapped

CPU = torch.device("cpu")
WIDE, NARROW = "wide", "narrow"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return oracle.save_tiny("qwen3", tmp_path_factory.mktemp("model"), num_hidden_layers=2, head_dim=32)


def model_config(directory: Path, name: str) -> ModelConfig:
    kv_dtype: Literal["auto", "fp8"] = "fp8" if name == NARROW else "auto"
    return ModelConfig(name=name, path=str(directory), kv_dtype=kv_dtype)


def build(directory: Path, *names: str, host_pool_bytes: int = 0) -> TorchRunner:
    models = tuple(model_config(directory, name) for name in names)
    return build_runner(EngineConfig(models=models, arena_bytes=16 << 20, host_pool_bytes=host_pool_bytes, threads=1))


def random_ids(count: int, seed: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(10, oracle.TINY_VOCAB) for _ in range(count)]


# ---- the decoder


def test_the_decoder_writes_and_reads_what_the_references_do() -> None:
    torch.manual_seed(0)
    layout, tokens, rows = KvLayout(layers=3, kv_heads=3, head_dim=20, dtype=FP8), 7, 30
    arena = torch.full((9, 3 * layout.run_bytes(tokens) + 2), 0xFF, dtype=torch.uint8)
    wanted = arena.clone()
    kv = PagedKv.of(arena, layout)
    assert kv.tokens_per_page == tokens
    written = torch.randn(rows, 2 * 60)
    chosen = torch.randperm(9 * tokens)[:rows]
    kv.put_rows(1, chosen // tokens, chosen % tokens, written)
    still = torch.ones(rows, 10), torch.zeros(rows, 10)  # no rotation
    reference_step.rotary_write(
        torch.cat((torch.zeros(rows, 20), written), 1), torch.empty(rows, 20), wanted, *still,
        (chosen // tokens).int(), (chosen % tokens).int(), layer=1, heads=1, kv_heads=3, tokens_per_page=tokens,
    )  # fmt: skip
    assert torch.equal(arena, wanted)
    pages = torch.tensor([4, 0, 8])
    out = torch.empty(3, tokens * 2 * 60)
    kv.gather_pages(1, pages, out)
    k, v = reference_attention.gather_keys_values(
        wanted, pages, 3 * tokens, layer=1, kv_heads=3, head_dim=20, tokens_per_page=tokens
    )
    assert torch.equal(out.view(-1, 2, 60).nan_to_num(9.0), torch.stack((k, v), 1).flatten(2).nan_to_num(9.0))
    kv.clear(pages)
    kv.gather_pages(2, pages, out)
    assert not out.any(), "a page never written gives zeros"
    kv.gather_pages(1, torch.tensor([1]), out[:1])
    assert out[0].isfinite().any(), "another page is as it was"


@torch.inference_mode()
def logits_of(decoder: Decoder, ids: list[int], stale: tuple[int, float] | None = None) -> torch.Tensor:
    """Of the last id, computed alone over the others' K and V; the scale of one key of one head times a factor."""
    own = Sequence(0, 0, "r", "m", None, "n", "t", "s", ids, 9, GREEDY, frozenset(), 0.0, pages=[3, 1, 0, 2])
    size = decoder.kv.tokens_per_page
    for start, count in ((0, len(ids) - 1), (len(ids) - 1, 1)):
        if start and stale is not None:
            assert isinstance(decoder.kv, PagedKv)
            scales = decoder.kv._scales[1]  # type: ignore[attr-defined] # [pages, tokens, heads]
            scales[3, stale[0] % size, 0] *= stale[1]
        found = decoder.forward(pack_step([Chunk(own, start, count, True)], size, CPU, torch.float32), None)
    return found[0]


def test_a_stale_scale_changes_the_logits(directory: Path) -> None:
    config, ids = load_config(directory), random_ids(40, 1)
    layout = config.kv_layout(FP8)
    arena = torch.full((8, config.layers * layout.run_bytes(16)), 0xFF, dtype=torch.uint8)
    decoder = Decoder(config, load_weights(directory, config, torch.float32), PagedKv.of(arena, layout))
    right = logits_of(decoder, ids)
    assert torch.equal(logits_of(decoder, ids, stale=(5, 1.0)), right)
    wrong = logits_of(decoder, ids, stale=(5, 4.0))
    assert (wrong - right).abs().max() > 1e-3 * right.abs().max()
    assert logits_of(decoder, ids, stale=(5, torch.nan)).isnan().all()


def test_logits_are_near_those_of_float32(directory: Path) -> None:
    config, ids = load_config(directory), random_ids(100, 2)
    found = []
    for dtype in ("float32", FP8):
        layout = config.kv_layout(dtype)
        arena = torch.full((8, config.layers * layout.run_bytes(31)), 0xFF, dtype=torch.uint8)
        decoder = Decoder(config, load_weights(directory, config, torch.float32), PagedKv.of(arena, layout))
        found.append(logits_of(decoder, ids))
    difference = (found[1] - found[0]).norm() / found[0].norm()
    assert 1e-4 < difference < 0.08, "fp8 rounds to 2⁻⁴, and sums average it"


def test_a_page_is_sixteen_tokens_and_holds_every_tile() -> None:
    def size(dtype: str, **changes: int) -> int:
        """Of Llama-3.1-8B's shape, in a bfloat16 engine."""
        data = {
            "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 9,
            "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32,
            "max_position_embeddings": 9,
        }  # fmt: skip
        shape = parse_config(data | changes)
        return page_size([(shape, shape.kv_layout(dtype))], torch.bfloat16)

    assert size("bfloat16") == 2 << 20
    assert size(FP8) == 16 * 66_560
    # Qwen2.5-7B's: 16 tokens take 465,920 bytes, and a tile of down_proj more.
    qwen = {"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4}
    assert size(FP8, **qwen, num_hidden_layers=28) == 16 * 2 * (3584 + 18944)
    # A page that holds no tile in bfloat16 is no larger for fp8.
    flat = {"num_key_value_heads": 1, "num_hidden_layers": 2}
    assert size(FP8, **flat) == size("bfloat16", **flat)


# ---- one arena for both


@pytest.mark.parametrize("host_pool_bytes", [0, 4 << 20])
def test_the_same_ids_alone_in_any_batch_and_after_preemption(directory: Path, host_pool_bytes: int) -> None:
    """Each request alone first; then all at once; then in an arena that is too small for them. Prefixes are shared
    within a model and found again. The lower tiers come first: premium preempts them."""
    runner = build(directory, WIDE, NARROW, host_pool_bytes=host_pool_bytes)
    if runner.host_pool is not None:
        runner.host_pool.page_copy_s = 0.0  # whatever a step takes, a swap is worth its copies
    wide, narrow = runner.models[WIDE], runner.models[NARROW]
    assert wide.tokens_per_page == PAGE_TOKENS
    assert narrow.tokens_per_page == 60, "17 of 64 bytes of a number of float32, and a page of whole tokens"
    assert wide.digest == narrow.digest
    shared = random_ids(130, 9)
    tiers = ("batch", "standard", "premium")
    cases = [
        Case(model, shared[: 130 if index % 2 else 0] + random_ids(5 + 13 * index, index), tiers[index // 3])
        for index in range(9)
        for model in (WIDE, NARROW)
    ]
    for case in cases:
        run_cases(runner, [case])
    said = {case.model: [c.expected for c in cases if c.model == case.model] for case in cases}
    assert said[WIDE] != said[NARROW], "fp8 is not float32"
    assert run_cases(runner, cases).scheduler.preemptions == 0
    found = run_cases(runner, cases, pages=24, sequences_max=8)
    assert found.scheduler.preemptions > 0
    assert all(found.scheduler.prefix.hits_of_model[model] > 0 for model in (WIDE, NARROW))
    assert bool(found.swapped_tokens) == bool(host_pool_bytes)


def test_what_comes_back_from_host_memory_goes_on_as_if_never_interrupted(directory: Path) -> None:
    """The swap copies fp8 pages as bytes, scales included, and no token is computed again."""
    config = EngineConfig(
        models=(ModelConfig(name=MODEL, path=str(directory), kv_dtype="fp8"),), arena_bytes=16 << 20,
        host_pool_bytes=1 << 20, threads=1, step_tokens_max=96, sequences_max=1,
    )  # fmt: skip
    runner = build_runner(config)
    run_swapped(Drive(runner, directory, step_tokens_max=96, sequences_max=1), None)


def test_fp8_alone_says_what_it_says_beside_float32(directory: Path) -> None:
    """In pages of other sizes, too."""
    cases = [Case(NARROW, random_ids(20 + 31 * index, index)) for index in range(4)]
    alone = build(directory, NARROW)
    assert alone.page_bytes == 16 * 4 * (48 + 192), "the largest tile, more than 16 tokens of fp8"
    assert alone.models[NARROW].tokens_per_page == 56
    run_cases(alone, cases)
    run_cases(build(directory, WIDE, NARROW), cases)


def test_no_page_of_one_layout_is_found_by_another(directory: Path) -> None:
    """The same directory, and so the same digest, under two names: only the layouts keep the pages apart."""
    runner = build(directory, WIDE, NARROW)
    prompt = random_ids(200, 3)
    found = run_cases(runner, [Case(WIDE, prompt), Case(NARROW, prompt)], sequences_max=1)
    assert found.scheduler.prefix.hits == 0
    again = [Case(model, prompt) for model in (WIDE, NARROW, WIDE, NARROW)]
    assert run_cases(runner, again, sequences_max=1).scheduler.prefix.hits == 192 + 180
    identities = {name: info.kv_identity for name, info in runner.models.items()}
    assert identities == {
        WIDE: f"float32/v{KV_KERNELS_VERSION}",
        NARROW: f"fp8-e4m3-f16scales/v{KV_KERNELS_VERSION}",
    }
    assert ModelLimits.of(runner.models[NARROW]).kv_identity == identities[NARROW]
    chains = [Chain("m", None, "n", 16), Chain("m", None, "n", 16, kv_identity="a"), Chain("m", None, "n", 8)]
    names = {chain.name(0, lambda start, stop: list(range(stop - start))) for chain in chains}
    assert len(names) == 3


def test_a_name_that_is_no_dtype_of_kv_is_refused() -> None:
    with pytest.raises(EngineConfigError, match="kv_dtype"):
        parse_engine_config(b'{"models": [{"name": "m", "kv_dtype": "int4"}]}')
    assert parse_engine_config(b'{"models": [{"name": "m"}]}').models[0].kv_dtype == "auto"
