"""A runner without a model: deterministic ids at a settable speed, for everything that is tested around an engine.

It serves the real scheduler, loop and server. It must never load a tensor library or read weights.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.config import EngineConfig, FakeConfig, ModelConfig
from engine.protocol import Logprobs, ModelInfo
from engine.step import AdapterTable, Chunk, Sequence, Step, StepResult

# Ids that every byte-level vocabulary uses for plain text; below them lie special tokens.
FIRST_PLAIN_ID = 256
WORDS_MAX = 4096
_WORD = re.compile("^Ġ[a-z]{2,10}$")
# Knuth's multiplicative hash and two other odd 32-bit constants: cheap mixing, no cryptography.
_MIX_A, _MIX_B, _MIX_C, _MASK = 2654435761, 2246822519, 3266489917, 0xFFFFFFFF


@dataclass(slots=True, frozen=True)
class FakeModel:
    """A model's shape, and the ids that are drawn: plain `words`, none of them special."""

    info: ModelInfo
    words: list[int]


def fake_model(model: ModelConfig, fake: FakeConfig) -> FakeModel:
    """Shape and words from the model's directory where that is there, from `fake` where not."""
    shape: dict[str, object] = {}
    words: list[int] = []
    directory = Path(model.path) if model.path else None
    if directory is not None and (directory / "config.json").exists():
        shape = msgspec.json.decode((directory / "config.json").read_bytes())
    vocab_size, context = shape.get("vocab_size"), shape.get("max_position_embeddings")
    size = vocab_size if isinstance(vocab_size, int) else fake.vocab_size
    if directory is not None and (directory / "tokenizer.json").exists():
        vocabulary = msgspec.json.decode((directory / "tokenizer.json").read_bytes())["model"]["vocab"]
        words = sorted(index for word, index in vocabulary.items() if index < size and _WORD.match(word))[:WORDS_MAX]
    info = ModelInfo(
        name=model.name,
        digest=model.digest or hashlib.sha256(f"fake:{model.name}".encode()).hexdigest(),
        context_tokens=context if isinstance(context, int) else fake.context_tokens,
        vocab_size=size,
        tokens_per_page=fake.tokens_per_page,
        pages=fake.pages,
    )
    return FakeModel(info, words or list(range(min(FIRST_PLAIN_ID, size // 2), min(size, FIRST_PLAIN_ID + WORDS_MAX))))


class FakeAdapters(AdapterTable):
    """Every adapter takes `pages_each` pages, and nothing is copied. Kept in order of use."""

    def __init__(self, pages_each: int) -> None:
        self.models: dict[str, str] = {}  # digest → model, of the known
        self._pages_each = pages_each
        self._resident: dict[str, list[int]] = {}

    def known(self, digest: str, model: str) -> bool:
        return self.models.get(digest) == model

    def pages_needed(self, digest: str) -> int:
        return 0 if digest in self._resident else self._pages_each

    def place(self, digest: str, pages: list[int]) -> None:
        held = self._resident.pop(digest, None)
        if held is None:
            assert len(pages) == self._pages_each
            held = list(pages)
        self._resident[digest] = held

    def resident(self) -> list[str]:
        return list(self._resident)

    def remove(self, digest: str) -> list[int]:
        return self._resident.pop(digest, [])


class FakeRunner:
    """Implements `engine.step.Runner`. Of Sampling it heeds seed, choice, logprobs and whether temperature is 0."""

    def __init__(
        self, models: list[FakeModel], config: FakeConfig, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.adapters = FakeAdapters(config.adapter_pages)
        self.models = {model.info.name: model.info for model in models}
        self.pages, self.page_bytes = config.pages, 1
        self._words = {model.info.name: model.words for model in models}
        self._config = config
        self._sleep = sleep
        faults = config.faults
        self._faulty = {i for i in (faults.chunk_error_id, faults.step_error_id, faults.stall_id) if i is not None}

    def execute(self, step: Step) -> StepResult:
        """Takes step_ms, and prefill_ms_per_1k_tokens for the prefill tokens in it."""
        started = time.perf_counter()
        config = self._config
        errors = self._inject(step) if self._faulty else {}
        words = self._words[step.model]
        ids: list[int | None] = []
        logprobs: dict[int, Logprobs] = {}
        prefill = 0
        for index, chunk in enumerate(step.chunks):
            if chunk.count > 1:
                prefill += chunk.count
            drawn = self._draw(chunk.sequence, words) if chunk.sample else None
            ids.append(drawn)
            if drawn is not None and chunk.sequence.sampling.logprobs >= 0 and index not in errors:
                logprobs[index] = _logprobs(drawn, chunk.sequence.sampling.logprobs, words)
        seconds = (config.step_ms + prefill * config.prefill_ms_per_1k_tokens / 1000) / 1000
        rest = seconds - (time.perf_counter() - started)
        if rest > 0:
            self._sleep(rest)
        return StepResult(ids, errors, logprobs)

    def load_adapter(self, digest: str, model: str, path: str) -> None:
        """Any adapter of a known model; `path` is not looked at."""
        if model not in self._words:
            raise ValueError(f"model {model!r} is not served here")
        if self._config.load_ms:
            self._sleep(self._config.load_ms / 1000)
        self.adapters.models[digest] = model

    def unload_adapter(self, digest: str) -> None:
        self.adapters.models.pop(digest, None)

    def _draw(self, sequence: Sequence, words: list[int]) -> int:
        """The next id: a pure function of prompt, outputs, adapter, seed and choice (greedy: of the first three)."""
        made = sequence.output_ids
        if self._config.stop_after is not None and len(made) + 1 >= self._config.stop_after and sequence.stop_ids:
            return min(sequence.stop_ids)
        if made:
            # The first output is a hash of the whole prompt, and each id hands it on to the next.
            state = made[-1] * _MIX_A + made[0]
        else:
            state = hash(tuple(sequence.prompt_ids))
        sampling = sequence.sampling
        if sampling.temperature > 0:
            state += sampling.seed * _MIX_B + sampling.choice * _MIX_C
        if sequence.adapter is not None:
            state += zlib.crc32(sequence.adapter.encode())
        state = ((state + len(made) + len(sequence.prompt_ids)) * _MIX_A) & _MASK
        state = ((state ^ (state >> 15)) * _MIX_B) & _MASK
        return words[(state ^ (state >> 13)) % len(words)]

    def _inject(self, step: Step) -> dict[int, str]:
        faults = self._config.faults
        errors: dict[int, str] = {}
        for index, chunk in enumerate(step.chunks):
            hit = self._faulty.intersection(chunk.sequence.prompt_ids)
            if faults.stall_id in hit and _first(chunk):
                self._sleep(faults.stall_s)
            if faults.step_error_id in hit:
                raise RuntimeError("the step was made to fail")
            if faults.chunk_error_id in hit:
                errors[index] = "the chunk was made to fail"
        return errors


def build_fake_runner(config: EngineConfig) -> FakeRunner:
    return FakeRunner([fake_model(model, config.fake) for model in config.models], config.fake)


def _logprobs(drawn: int, count: int, words: list[int]) -> Logprobs:
    """As if it had been the likeliest, and each next one half as likely: 1/2, 1/4, 1/8 and so on."""
    ranked = [drawn, *(word for word in words[: count + 1] if word != drawn)][:count]
    return [(drawn, -math.log(2)), *((word, -(rank + 1) * math.log(2)) for rank, word in enumerate(ranked))]


def _first(chunk: Chunk) -> bool:
    return chunk.start + chunk.count <= len(chunk.sequence.prompt_ids) and not chunk.sequence.output_ids
