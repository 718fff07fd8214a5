"""Pooled vectors on the GPU: transformers' in bfloat16's precision, beside generation, under graphs and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from engine.step import Sequence
from engine.text.tokenizer import Tokenizer
from support import oracle
from support.engine.gpu import GpuEngine
from support.engine.gpu_oracle import load_oracle
from support.paths import MODEL_DIR

pytestmark = pytest.mark.gpu
# Cosine similarity with transformers in float32; the arithmetic of the engine is float16 or bfloat16.
COSINE_MIN = {"float16": 0.999, "bfloat16": 0.99}
POOLINGS: tuple[Literal["last", "mean"], ...] = ("last", "mean")


def cosine(reference: Any, request: Sequence, vector: list[float]) -> float:
    expected = oracle.embedding(reference, request.prompt_ids, str(request.pooling))
    return float(torch.tensor(vector) @ expected)


def pooled(engine: GpuEngine, prompt: list[int], pooling: Literal["last", "mean"], adapter: str | None) -> Sequence:
    request = engine.request(prompt, 0, adapter)
    request.pooling = pooling
    return request


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_vectors_of_small_models_match_transformers(family: str, capture: bool, tmp_path: Path) -> None:
    """In float16, with chunked prefill, prefix hits, preemption and an adapter, beside requests that generate. The
    generated ids are the same as without pooling beside them."""
    directory = oracle.save_tiny(family, tmp_path / "model", head_dim=16)
    base = oracle.load(directory)
    oracle.save_tiny_adapter(base, tmp_path / "one", r=4, target_modules=["q_proj", "v_proj", "down_proj"])
    engine = GpuEngine(
        directory, dtype="float16", arena_bytes=16 << 20, step_tokens_max=80, sequences_max=12, capture=capture
    )
    digest = engine.add_adapters([tmp_path / "one"], tmp_path / "store")["one"]
    generator = torch.Generator().manual_seed(3)
    prompts = [
        torch.randint(1, oracle.TINY_VOCAB, (1 + 23 * index % 150,), generator=generator).tolist()
        for index in range(12)
    ]
    prompts.append(prompts[11])  # its pages are in the prefix cache, or computed beside it
    wanted: list[tuple[Literal["last", "mean"], str | None, list[int]]] = [
        (POOLINGS[index % 2], (None, digest)[index // 2 % 2], prompt) for index, prompt in enumerate(prompts)
    ]
    pooling = [pooled(engine, prompt, kind, adapter) for kind, adapter, prompt in wanted]
    plain = [engine.request(prompt, 12, digest if index % 2 else None) for index, prompt in enumerate(prompts[:6])]
    engine.run(plain)
    beside = [engine.request(one.prompt_ids, 12, one.adapter) for one in plain]
    engine.run([request for pair in zip(pooling, beside, strict=False) for request in pair] + pooling[6:])
    assert engine.vectors.keys() == {request.handle for request in pooling}
    mixed = [step for step in engine.steps if {chunk.pool_from is None for chunk in step.chunks} == {True, False}]
    assert mixed, "no step pools beside generation"
    adapted = oracle.load(directory, tmp_path / "one")
    for request in pooling:
        reference = base if request.adapter is None else adapted
        assert cosine(reference, request, engine.vectors[request.handle]) > COSINE_MIN["float16"], request.request_id
    same = sum(one.output_ids == other.output_ids for one, other in zip(plain, beside, strict=True))
    assert same >= len(plain) - 1  # a near tie may differ in a batch of another size


@pytest.mark.model
def test_vectors_of_smollm2_match_transformers(model_dir: Path) -> None:
    engine = GpuEngine(model_dir, arena_bytes=256 << 20, step_tokens_max=256, sequences_max=32)
    tokenizer = Tokenizer.load(MODEL_DIR)
    texts = ["The cat sat on the mat.", "A dog barks.", "Prices of wheat rose again. " * 80]
    requests = [pooled(engine, tokenizer.encode(text), kind, None) for text in texts for kind in POOLINGS]
    engine.run(requests)
    again = [pooled(engine, tokenizer.encode(text), kind, None) for text in texts for kind in POOLINGS]
    engine.run(again)
    reference = load_oracle(MODEL_DIR, torch.float32).cpu()
    found = [cosine(reference, request, engine.vectors[request.handle]) for request in [*requests, *again]]
    print(f"\nSmolLM2 bf16: cosine with transformers in float32 at least {min(found):.5f}")
    assert min(found) > COSINE_MIN["bfloat16"]


def test_a_step_without_pooling_runs_no_pooling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = oracle.save_tiny("tied", tmp_path / "model", head_dim=16)
    engine = GpuEngine(directory, dtype="float16", arena_bytes=16 << 20, step_tokens_max=80, sequences_max=12)
    calls: list[int] = []
    served = engine.runner._served["m"]
    sums_of = served.pooled_sums

    def counted(spans: list[slice]) -> torch.Tensor:
        calls.append(len(spans))
        return sums_of(spans)

    monkeypatch.setattr(served, "pooled_sums", counted)
    engine.run([engine.request([1, 2, 3], 8)])
    assert calls == []
    engine.run([pooled(engine, [1, 2, 3], "last", None), engine.request([1, 2, 3, 4], 2)])
    assert calls == [1]
