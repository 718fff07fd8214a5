"""With K and V in fp8, a row's bits depend on its own tokens alone: every byte of its pages is the same whole, in
chunks, token by token, in any batch, beside other adapters."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import torch

from adapters.device.layer import LoraBatch, cpu_threads
from engine.cpu.batch import pack_step
from engine.cpu.decoder import EXACT_ROWS, Decoder, PagedKv
from engine.cpu.runner import build_runner
from engine.models.config import load_config
from engine.models.cpu_loading import load_weights
from engine.protocol.config import EngineConfig, ModelConfig
from engine.protocol.frames import Sampling
from engine.step import Chunk, Sequence
from kernels.kv_layout import FP8
from support import oracle
from support.engine.in_process import MODEL, Drive

CPU = torch.device("cpu")
PAGES_EACH, SIZE = 12, 9  # of a sequence; tokens a page

Schedule = list[list[tuple[int, int]]]  # steps of (a prompt, a number of its tokens)


def sequence(ids: list[int], place: int, adapter: str | None = None) -> Sequence:
    pages = list(range(PAGES_EACH * place, PAGES_EACH * (place + 1)))
    return Sequence(
        0, 0, "r", MODEL, adapter, "n", "t", "s", ids, 9, Sampling(temperature=0.0), frozenset(), 0.0, pages=pages
    )


def random_ids(count: int, seed: int, vocab: int = oracle.TINY_VOCAB) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(10, vocab) for _ in range(count)]


def schedules(lengths: list[int]) -> dict[str, Schedule]:
    """Ways to compute the same prompts."""
    dice = random.Random(4)
    alone = [[(place, length)] for place, length in enumerate(lengths)]
    mixed: Schedule = []
    left = list(lengths)
    while any(left):
        step = [(place, min(count, dice.choice([0, 1, 1, 2, 7, 20]))) for place, count in enumerate(left)]
        step = [(place, count) for place, count in step if count]
        for place, count in step:
            left[place] -= count
        mixed += [step] if step else []
    return {
        "alone": alone,
        "together": [list(itertools.chain.from_iterable(alone))],
        "token by token": [[(place, 1)] for place, length in enumerate(lengths) for _ in range(length)],
        "mixed": mixed,
    }


class Rows:
    """Prompts, each with pages of its own."""

    def __init__(self, directory: Path, lengths: list[int]) -> None:
        self.config = load_config(directory)
        self._weights = load_weights(directory, self.config, torch.float32)
        self.prompts = [random_ids(length, length, self.config.vocab) for length in lengths]

    @torch.inference_mode()
    def pages(self, steps: Schedule, *, exact: bool = True) -> torch.Tensor:
        """The decoder's pages after these steps."""
        layout = self.config.kv_layout(FP8)
        # Zeros, as fresh pages become: a page that is written whole keeps its padding.
        shape = PAGES_EACH * len(self.prompts), self.config.layers * layout.run_bytes(SIZE)
        arena = torch.zeros(shape, dtype=torch.uint8)
        decoder = Decoder(self.config, self._weights, PagedKv.of(arena, layout))
        assert decoder.exact
        own = [sequence(prompt, place) for place, prompt in enumerate(self.prompts)]
        for step in steps:
            chunks = [Chunk(own[place], own[place].computed, count, True) for place, count in step]
            decoder.forward(pack_step(chunks, SIZE, CPU, torch.float32, exact=exact), None)
            for chunk in chunks:
                chunk.sequence.computed += chunk.count
        assert all(one.computed == len(one.prompt_ids) for one in own)
        return arena


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [("llama", 8), ("qwen2", 8), ("qwen3", 32)], ids=str)
def test_pages_are_the_same_bits(shape: tuple[str, int], threads: int, tmp_path: Path) -> None:
    family, head_dim = shape
    changes = {} if family == "qwen2" else {"head_dim": head_dim}
    lengths = [1, 8, 9, 10, 33, 64, 100]
    rows = Rows(oracle.save_tiny(family, tmp_path, **changes), lengths)
    ways = schedules(lengths)
    with cpu_threads(threads):
        pages = rows.pages(ways.pop("alone"))
        for name, steps in ways.items():
            other = rows.pages(steps)
            assert torch.equal(other, pages), f"{name}: {int((other != pages).sum())} of {pages.numel()} bytes differ"


@pytest.mark.model
def test_the_demo_model_s_pages_are_the_same_bits(model_dir: Path) -> None:
    lengths = [3, 60, 21]
    rows, ways = Rows(model_dir, lengths), schedules(lengths)
    pages = rows.pages(ways["alone"])
    for name in ("together", "mixed"):
        other = rows.pages(ways[name])
        assert torch.equal(other, pages), f"{name}: {int((other != pages).sum())} of {pages.numel()} bytes differ"
    assert not torch.equal(rows.pages(ways["token by token"], exact=False), pages), "packed otherwise, bits differ"


def test_rows_of_adapters_are_the_same_bits(tmp_path: Path) -> None:
    """Ranks of one and of several tiles; rows of an adapter beside each other and apart."""
    model = oracle.save_tiny("llama", tmp_path / "model", num_hidden_layers=2, head_dim=32)
    base = oracle.load(model)
    adapters = [
        oracle.save_tiny_adapter(base, tmp_path / f"a{rank}", r=rank, target_modules="all-linear", seed=rank)
        for rank in (4, 33)
    ]
    config = EngineConfig(
        models=(ModelConfig(name=MODEL, path=str(model), kv_dtype="fp8"),), arena_bytes=16 << 20, threads=1
    )
    runner = build_runner(config)
    drive = Drive(runner, model, step_tokens_max=96, sequences_max=16)
    digests = list(drive.add_adapters(adapters, tmp_path / "store").values())
    free = list(range(runner.pages))
    for digest in digests:
        count = runner.adapters.pages_needed(digest)
        runner.adapters.place_adapter(digest, free[-count:])
        del free[-count:]
    decoder = runner.weights.decoder(MODEL)
    size = decoder.kv.tokens_per_page
    prompts = [(random_ids(10 + 7 * place, place), [None, *digests][place % 3]) for place in range(9)]

    @torch.inference_mode()
    def pages_of(steps: Schedule, *, adapted: bool = True) -> torch.Tensor:
        own = [sequence(ids, place, digest if adapted else None) for place, (ids, digest) in enumerate(prompts)]
        used = torch.arange(PAGES_EACH * len(own))
        assert len(used) <= len(free)
        decoder.kv.clear(used)
        for step in steps:
            chunks = [Chunk(own[place], own[place].computed, count, False) for place, count in step]
            batch = pack_step(chunks, size, CPU, torch.float32, exact=decoder.exact)
            runs = [(chunk.sequence.adapter, chunk.count) for chunk in batch.chunks]
            decoder.forward(batch, LoraBatch(runner.adapters, runs, CPU, rows_per_product=EXACT_ROWS))
            for chunk in chunks:
                chunk.sequence.computed += chunk.count
        return runner.adapters._arena[used].clone()

    ways = schedules([len(ids) for ids, _ in prompts])
    pages = pages_of(ways["alone"])
    for name in ("together", "mixed", "token by token"):
        assert torch.equal(pages_of(ways[name]), pages), name
    assert not torch.equal(pages_of(ways["alone"], adapted=False), pages), "adapters change K and V"
