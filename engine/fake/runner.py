"""A runner without a model: deterministic ids at a configured speed, for tests with the real scheduler, loop and
server.

It must never load a tensor library or read weights.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from engine.compute.masks import allowed_id, mask_rows
from engine.fake.weights import FakeWeights
from engine.models.compatibility import check_dtype, check_weights_fit, loading_order
from engine.models.config import TokenizerFile
from engine.protocol.config import EngineConfig, FakeConfig, ModelConfig
from engine.protocol.frames import Logprobs, ModelInfo, PromptLogprobs
from engine.step import (
    PENDING_ID,
    UNDRAWABLE,
    AdapterMove,
    AdapterTable,
    Chunk,
    DeviceLost,
    HostPool,
    Masks,
    Pending,
    Sequence,
    Step,
    StepResult,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Ids that every byte-level vocabulary uses for plain text; below them lie special tokens.
FIRST_PLAIN_ID = 256
WORDS_MAX = 4096
VECTOR_WIDTH = 64  # without a config.json
Decoded = TypeVar("Decoded")
_WORD = re.compile("^Ġ[a-z]{2,10}$")
# Knuth's multiplicative hash and two other odd 32-bit constants: cheap mixing, no cryptography.
_MIX_A, _MIX_B, _MIX_C, _MASK = 2654435761, 2246822519, 3266489917, 0xFFFFFFFF


@dataclass(slots=True, frozen=True)
class FakeModel:
    """A model's shape, and the ids to draw from: `words`, none of them a special token."""

    info: ModelInfo
    words: list[int]


def _decoded(path: Path, kind: type[Decoded]) -> Decoded:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: {error}") from error


def fake_model(model: ModelConfig, fake: FakeConfig) -> FakeModel:
    """Shape and words from the files of the model's directory if they exist, otherwise from `fake`. Raises ValueError
    for invalid files."""
    shape: dict[str, object] = {}
    words: list[int] = []
    directory = Path(model.path) if model.path else None
    if directory is not None and (directory / "config.json").exists():
        shape = _decoded(directory / "config.json", dict)
    vocab_size, context = shape.get("vocab_size"), shape.get("max_position_embeddings")
    size = vocab_size if isinstance(vocab_size, int) else fake.vocab_size
    if directory is not None and (directory / "tokenizer.json").exists():
        vocabulary = _decoded(directory / "tokenizer.json", TokenizerFile).model.vocab
        words = sorted(index for word, index in vocabulary.items() if index < size and _WORD.match(word))[:WORDS_MAX]
    context_tokens = context if isinstance(context, int) else fake.context_tokens
    info = ModelInfo(
        name=model.name,
        digest=model.digest or hashlib.sha256(f"fake:{model.name}".encode()).hexdigest(),
        context_tokens=min(context_tokens, model.context_tokens or context_tokens),
        vocab_size=size,
        tokens_per_page=fake.tokens_per_page,
        pages=fake.pages,
        weights_bytes=fake.weights_bytes,
        pinned=model.pinned,
        weights_format=model.dtype if model.quantize == "none" else model.quantize,
        kv_format=model.dtype if model.kv_dtype == "auto" else model.kv_dtype,
        kv_identity=model.kv_dtype,
        numerics="fake",
        vector_width=hidden if isinstance(hidden := shape.get("hidden_size"), int) else VECTOR_WIDTH,
    )
    return FakeModel(info, words or list(range(min(FIRST_PLAIN_ID, size // 2), min(size, FIRST_PLAIN_ID + WORDS_MAX))))


class FakeAdapters(AdapterTable):
    """Every adapter takes `pages_each` pages. Nothing is copied, and every registered adapter is ready. Resident
    adapters are in order of use."""

    def __init__(self, pages_each: int, rows_max: int | None = None) -> None:
        """`rows_max`: limit of resident adapters; None: as many as the arena holds."""
        self.models: dict[str, str] = {}  # registered digest → model
        self.adapters_max = rows_max
        self._pages_each = pages_each
        self._resident: dict[str, list[int]] = {}

    def is_known(self, digest: str, model: str) -> bool:
        return self.models.get(digest) == model

    def forget_model(self, model: str) -> None:
        """Forget all adapters of a model, none of which is resident."""
        for digest in [digest for digest, own in list(self.models.items()) if own == model]:
            assert digest not in self._resident, f"{digest} is resident"
            del self.models[digest]

    def evictions(self) -> int:
        return 0

    def adapter_location(self, digest: str) -> str:
        return "device" if digest in self._resident else "host"

    def adapter_locations(self, limit: int) -> tuple[list[tuple[str, str, int]], int]:
        order = [*self._resident, *(digest for digest in list(self.models) if digest not in self._resident)]
        return [(digest, self.adapter_location(digest), self._pages_each) for digest in order[:limit]], len(order)

    def request_load(self, digest: str) -> bool:
        return True

    def cancel_load(self, digest: str) -> None:
        pass

    def is_adapter_ready(self, digest: str, *, hidden: bool) -> bool:
        return True

    def poll_adapters(self) -> Iterable[AdapterMove]:
        return ()

    def pin_adapter(self, digest: str, pinned: bool) -> None:
        pass

    def has_room(self) -> bool:
        return self.adapters_max is None or len(self._resident) < self.adapters_max

    def pages_needed(self, digest: str) -> int:
        return 0 if digest in self._resident else self._pages_each

    def pages_alone(self, digest: str) -> int:
        return self._pages_each

    def pages_of(self, digest: str) -> list[int]:
        return self._resident[digest]

    def place_adapter(self, digest: str, pages: list[int]) -> None:
        held = self._resident.pop(digest, None)
        if held is None:
            assert len(pages) == self._pages_each
            held = list(pages)
        self._resident[digest] = held

    def resident(self) -> list[str]:
        return list(self._resident)

    def evict_adapter(self, digest: str) -> list[int]:
        return self._resident.pop(digest, [])


class FakeHostPool(HostPool):
    """Remembers which page each slot was copied from; `copied(pages)` is called for every copy, out or in."""

    def __init__(self, slots: int, page_copy_s: float, copied: Callable[[int], None]) -> None:
        self.slots = slots
        self.page_copy_s = page_copy_s
        self.held: dict[int, int] = {}
        self._copied = copied

    def copy_out(self, pages: list[int], slots: list[int]) -> None:
        self.held.update(zip(slots, pages, strict=True))
        self._copied(len(pages))

    def copy_in(self, slots: list[int], pages: list[int]) -> None:
        assert len(pages) == len(slots)
        assert self.held.keys() >= set(slots), "a slot that nothing was copied to"
        self._copied(len(pages))


@dataclass(slots=True, eq=False)
class FakePending(Pending):
    """A step that completes at `ready_at`."""

    step: Step
    ready_at: float
    owner: FakeRunner
    outcome: StepResult | RuntimeError | None = None  # once drawn

    def is_forward_done(self) -> bool:
        return self.owner.is_past(self.ready_at)

    def draw(self, masks: Masks | None) -> None:
        assert self.outcome is None, "the step is drawn once"
        self.outcome = self.owner.draw_step(self, masks or Masks())

    def result(self) -> StepResult:
        assert self.outcome is not None, "the step was not drawn"
        self.owner.finish_step(self)
        if isinstance(self.outcome, RuntimeError):
            raise self.outcome
        return self.outcome


class FakeRunner:
    """Implements `engine.step.Runner`. Of Sampling it uses seed, choice, logprobs and whether temperature is 0.

    Its simulated device computes one step after another, beside the caller. A step takes its configured time, counted
    from its beginning or from the completion of the previous step."""

    def __init__(
        self,
        models: list[FakeModel],
        config: FakeConfig,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.perf_counter,
        *,
        weights_bytes: int = 0,
        weights_host_bytes: int = 0,
        dtype: str | None = None,
    ) -> None:
        """`weights_bytes`: device memory for weights; 0: all models are resident. `dtype`: of all models; None: any."""
        self._dtype = dtype
        self.weights = FakeWeights(config, clock, weights_bytes or None, weights_host_bytes)
        self.refused: dict[str, str] = {}
        self.page_waste = {model.info.name: 0 for model in models}
        for model in models:
            self.weights.know(model.info.name)
        for info in loading_order(model.info for model in models):
            if self.weights.free_bytes() >= info.weights_bytes:
                self.weights.put(info.name)
        self.adapters = FakeAdapters(config.adapter_pages)
        self.host_pool: HostPool | None = None
        if config.host_pages:
            self.host_pool = FakeHostPool(config.host_pages, config.page_copy_ms / 1000, self._copied)
        self.models = {model.info.name: model.info for model in models}
        self.pages, self.page_bytes = config.pages, 1
        self.steps_ahead = config.steps_ahead
        self._words = {model.info.name: model.words for model in models}
        self._config = config
        self._sleep = sleep
        self._clock = clock
        self._in_flight: deque[FakePending] = deque()  # oldest first
        self._idle_at = 0.0  # when the device has completed all of them

    def begin_step(self, step: Step) -> FakePending:
        """Takes step_ms, and prefill_ms_per_1k_tokens for the prefill tokens in it."""
        assert len(self._in_flight) <= self.steps_ahead, "too many steps are in flight"
        assert all(flight.outcome is not None for flight in self._in_flight), "the step before was not drawn"
        config = self._config
        ready_at = max(self._clock(), self._idle_at)
        prefill = sum(chunk.count for chunk in step.chunks if chunk.count > 1)
        ready_at += (config.step_ms + prefill * config.prefill_ms_per_1k_tokens / 1000) / 1000
        faults = config.faults
        if any(_hit(chunk, faults.device_lost_id) for chunk in step.chunks):
            raise DeviceLost("the device was made to be lost")
        if any(_hit(chunk, faults.stall_id) and _first(chunk) for chunk in step.chunks):
            ready_at += faults.stall_s
        self._idle_at = ready_at
        pending = FakePending(step, ready_at, self)
        self._in_flight.append(pending)
        return pending

    def is_past(self, ready_at: float) -> bool:
        """Whether the simulated device has completed a step that is ready at `ready_at`."""
        return self._clock() >= ready_at

    def draw_step(self, pending: FakePending, masks: Masks) -> StepResult | RuntimeError:
        """The result of a step in flight. It follows the completion of all earlier steps: ids are known."""
        assert self._in_flight[0] is pending, "the step before was not completed"
        if any(_hit(chunk, self._config.faults.step_error_id) for chunk in pending.step.chunks):
            return RuntimeError("the step was made to fail")
        return self._compute(pending.step, masks)

    def finish_step(self, pending: FakePending) -> None:
        """Wait until the step completes."""
        assert self._in_flight.popleft() is pending, "results are taken in the order of the steps"
        rest = pending.ready_at - self._clock()
        if rest > 0:
            self._sleep(rest)

    def load_model(self, model: ModelConfig) -> ModelInfo:
        """Register any model; its path need not exist."""
        if self._dtype is not None:
            check_dtype(model, self._dtype)
        if self._config.model_load_ms:
            self._sleep(self._config.model_load_ms / 1000)
        found = fake_model(model, self._config)
        check_weights_fit(found.info.weights_bytes, self.weights.bytes_max)
        self._words[model.name] = found.words
        self.page_waste[model.name] = 0
        self.weights.know(model.name)
        self.models[model.name] = found.info
        return found.info

    def unload_model(self, name: str) -> None:
        del self.models[name]
        del self._words[name]
        del self.page_waste[name]
        self.weights.forget_weights(name)
        self.adapters.forget_model(name)

    def load_adapter(self, digest: str, model: str, path: str) -> None:
        """Register any adapter of a registered model; `path` is ignored."""
        if model not in self._words:
            raise ValueError(f"model {model!r} is not served here")
        if self._config.load_ms:
            self._sleep(self._config.load_ms / 1000)
        self.adapters.models[digest] = model

    def unload_adapter(self, digest: str) -> None:
        self.adapters.models.pop(digest, None)

    def _copied(self, pages: int) -> None:
        """The device copies pages after all steps and copies begun before."""
        self._idle_at = max(self._clock(), self._idle_at) + pages * self._config.page_copy_ms / 1000

    def _compute(self, step: Step, masks: Masks) -> StepResult:
        words, vocab = self._words[step.model], self.models[step.model].vocab_size
        rows = mask_rows(step, masks, vocab)
        failing = self._config.faults.chunk_error_id
        errors = {i: "the chunk was made to fail" for i, chunk in enumerate(step.chunks) if _hit(chunk, failing)}
        ids: list[int | None] = []
        logprobs: dict[int, Logprobs] = {}
        for index, chunk in enumerate(step.chunks):
            if not chunk.sample or index in masks.skip:
                ids.append(None)
                continue
            sequence = chunk.sequence
            try:
                token = allowed_id(rows.get(index), self._draw(sequence, words), words, vocab)
            except Exception as error:  # noqa: BLE001 - one row's edge: its request ends, its neighbours are drawn
                ids.append(None)
                errors[index] = f"{UNDRAWABLE}: {type(error).__name__}: {error}"
                continue
            ids.append(token)
            if sequence.sampling.logprobs >= 0 and index not in errors:
                logprobs[index] = _logprobs(token, sequence.sampling.logprobs, words)
        prompts = {i: _prompt_part(chunk, words) for i, chunk in enumerate(step.chunks) if chunk.reported()}
        width = self.models[step.model].vector_width
        vectors = {i: _pooled_sum(chunk, width) for i, chunk in enumerate(step.chunks) if chunk.pooled()}
        return StepResult(ids, errors, logprobs, masks.skip, prompts, vectors)

    def _draw(self, sequence: Sequence, words: list[int]) -> int:
        """The next id: a pure function of prompt, outputs, adapter, seed and choice (greedy: of the first three)."""
        made = sequence.output_ids
        fault_id = self._config.faults.draw_error_id
        if fault_id is not None and fault_id in sequence.prompt_ids:
            raise OverflowError("the draw was made to fail")
        if self._config.stop_after is not None and len(made) + 1 >= self._config.stop_after and sequence.stop_ids:
            return min(sequence.stop_ids)
        if made:
            # The first output id depends on a hash of the whole prompt, and each id on the previous one.
            assert made[-1] != PENDING_ID, "ids are known when the next is drawn"
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


def build_fake_runner(config: EngineConfig) -> FakeRunner:
    """Raises ValueError when no model can be served."""
    models, refused = [], {}
    for model in config.models:
        try:
            check_dtype(model, config.models[0].dtype)
            found = fake_model(model, config.fake)
            check_weights_fit(found.info.weights_bytes, config.weights_bytes or None)
            models.append(found)
        except (ValueError, OSError) as error:
            refused[model.name] = str(error)
    if not models:
        raise ValueError("; ".join(f"{name}: {why}" for name, why in refused.items()))
    runner = FakeRunner(
        models,
        config.fake,
        weights_bytes=config.weights_bytes,
        weights_host_bytes=config.weights_host_bytes,
        dtype=config.models[0].dtype,
    )
    runner.refused = refused
    return runner


def _logprobs(drawn: int, count: int, words: list[int]) -> Logprobs:
    """Log probabilities as if the id had been the likeliest, and each next id half as likely: 1/2, 1/4, 1/8 and so
    on."""
    ranked = [drawn, *(word for word in words[: count + 1] if word != drawn)][:count]
    return [(drawn, -math.log(2)), *((word, -(rank + 1) * math.log(2)) for rank, word in enumerate(ranked))]


def _prompt_part(chunk: Chunk, words: list[int]) -> PromptLogprobs:
    """Log probabilities of every prompt token, like `_logprobs` of a drawn id."""
    rows, count = chunk.reported(), chunk.sequence.sampling.prompt_logprobs
    found = [_logprobs(id_, count, words) for id_ in chunk.sequence.prompt_ids[rows.start + 1 : rows.stop + 1]]
    ids = array("i", [id_ for own in found for id_, _ in own])
    values = array("f", [value for own in found for _, value in own])
    ranks = array("i", [1] * len(rows))
    return PromptLogprobs(rows.start + 1, len(found[0]), ids.tobytes(), values.tobytes(), ranks.tobytes())


def _pooled_sum(chunk: Chunk, width: int) -> NDArray[Any]:
    """As `StepResult.vectors`: the hidden state of a token is a pure function of the ids up to it and the adapter, so
    that it depends on no chunk and no cached page."""
    # Imported late: numpy starts threads, which must begin only after the process has blocked its signals.
    import numpy as np

    ids, rows = array("I", chunk.sequence.prompt_ids), chunk.pooled()
    state = zlib.crc32(ids[: rows.start].tobytes(), zlib.crc32((chunk.sequence.adapter or "").encode()))
    states = []
    for id_ in ids[rows.start : rows.stop]:
        state = zlib.crc32(id_.to_bytes(4, "little"), state)
        states.append(state)
    mixed = (np.array(states, np.uint64)[:, None] + np.arange(1, width + 1, dtype=np.uint64) * _MIX_B) * _MIX_A & _MASK
    mixed = (mixed ^ (mixed >> 15)) * _MIX_C & _MASK
    hidden: NDArray[Any] = (mixed / (_MASK / 2) - 1).sum(axis=0).astype(np.float32)
    return hidden


def _hit(chunk: Chunk, fault_id: int | None) -> bool:
    """The fault with that id is set, and the chunk's prompt contains it."""
    return fault_id is not None and fault_id in chunk.sequence.prompt_ids


def _first(chunk: Chunk) -> bool:
    return chunk.start + chunk.count <= len(chunk.sequence.prompt_ids) and not chunk.sequence.output_ids
