"""The interface between scheduler, engine loop and runner: a request in flight, one step and its result.

Plain data, no torch: the scheduler, the simulator and the fake engine load this without a tensor library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from engine.protocol.config import ModelConfig
from engine.protocol.frames import (
    FinishReason,
    Logprobs,
    ModelInfo,
    Pooling,
    PromptLogprobs,
    Sampling,
    TierRecompute,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

# In `output_ids`: an id that a step in flight draws. The device knows it before the host does.
PENDING_ID = -1
# Prefix of the error of a row whose sampling values could not be prepared or used.
UNDRAWABLE = "its sampling could not be prepared"
# Error of a row from which no id can be drawn.
NO_ID = "the model's logits are not finite numbers, or its mask allows no id"
# Error of a chunk whose pooled hidden states are no vector.
NO_VECTOR = "the model's hidden states are not finite numbers"
# Rows of one step whose logits are kept for the log probabilities of prompts: so a device's buffer has a fixed size.
PROMPT_LOGPROB_ROWS_MAX = 256


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """One request in flight. The scheduler alone changes it; a runner reads it.

    Its tokens are `prompt_ids + output_ids`. The KV of the first `computed` tokens is in `pages`
    (token i lies in `pages[i // tokens_per_page]` at row `i % tokens_per_page`).
    A preempted sequence has computed 0 and no pages; its output_ids remain and are recomputed like a prompt, unless its
    KV was swapped to host memory and is copied back. A resumed sequence begins in the same state: another engine made
    the first `resumed` of its output_ids.

    While steps are in flight `computed` counts their tokens too, as soon as the next step is scheduled, and the last
    of `output_ids` may be PENDING_ID.
    """

    handle: int
    gateway: int  # number of the gateway's stream
    request_id: str
    model: str
    adapter: str | None
    namespace: str
    tier: str
    share: str
    prompt_ids: list[int]
    max_tokens: int
    sampling: Sampling
    stop_ids: frozenset[int]
    arrived_at: float
    output_ids: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    computed: int = 0
    cached_tokens: int = 0
    started_at: float | None = None
    first_token_at: float | None = None
    device_s: float = 0.0
    preemptions: int = 0
    recomputed_tokens: int = 0
    weight: float = 1.0  # of `share`
    recomputed: dict[str, TierRecompute] = field(default_factory=dict)  # by causing tier; not in device_s
    swapped_tokens: int = 0  # tokens whose KV was copied back from host memory
    resumed: int = 0  # number of `output_ids` that another engine made
    attempt: int = 0  # number of this Submit of the text
    pooling: Pooling | None = None  # the answer is a vector, and max_tokens is 0
    # Seconds in which the device computed for requests of each tier while this one waited for its first chunk.
    queue_device_s: dict[str, float] = field(default_factory=dict)

    def made_here(self) -> int:
        """Output ids that this engine made, pending ones included."""
        return len(self.output_ids) - self.resumed

    def token_count(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Ids of tokens start ≤ i < stop of prompt and output; the last may be PENDING_ID."""
        prompt = len(self.prompt_ids)
        if stop <= prompt:
            return self.prompt_ids[start:stop]
        if start >= prompt:
            return self.output_ids[start - prompt : stop - prompt]
        return self.prompt_ids[start:] + self.output_ids[: stop - prompt]


class Chunk(msgspec.Struct, frozen=True, eq=False):
    """Compute tokens start ≤ i < start + count of a sequence; when `sample`, the last of them yields the next id.
    A decode is a chunk of count 1. The pages for all of it are in `sequence.pages` already.

    `report_from`: the first token whose logits are reported as the log probabilities of the prompt token that follows
    it; None: no token's. At most PROMPT_LOGPROB_ROWS_MAX tokens of a step are reported.

    `pool_from`: the first token whose hidden state is pooled; None: no token's.

    If the last token's id is PENDING_ID, the chunk is a decode, and its token is the id that the previously begun step
    drew for this sequence on the device. The id is in `output_ids` when this chunk's id is drawn."""

    sequence: Sequence
    start: int
    count: int
    sample: bool
    report_from: int | None = None
    pool_from: int | None = None

    def reported(self) -> range:
        """The tokens whose logits are reported. The last token of a prompt is not: an output id follows it."""
        if self.report_from is None:
            return range(0)
        return range(self.report_from, min(self.start + self.count, len(self.sequence.prompt_ids) - 1))

    def pooled(self) -> range:
        """The tokens whose hidden states are pooled: the last ones of the chunk."""
        return range(0) if self.pool_from is None else range(self.pool_from, self.start + self.count)


@dataclass(slots=True, frozen=True)
class Step:
    """One forward pass of one model. The order of the chunks has no meaning."""

    number: int
    model: str
    chunks: list[Chunk]


@dataclass(slots=True, frozen=True, eq=False)
class Masks:
    """The ids that the chunks of one step may draw.

    `words`: int32 [sampling chunks, ceil(vocab / 32)], C-contiguous, in the order of the step's sampling chunks. Bit
    i % 32, counted from the least significant, of word i // 32 is 1 if id i is allowed, as llguidance fills it; the
    words of a row without a constraint are −1. None: no row has a constraint. `skip`: indices in `step.chunks` of
    sampling chunks whose mask is not ready: they draw no id, and their words are not read. `free`: rows of `words`
    without a constraint, which are not read either."""

    words: NDArray[Any] | None = None
    skip: frozenset[int] = frozenset()
    free: frozenset[int] = frozenset()


@dataclass(slots=True, frozen=True)
class StepResult:
    """`ids[i]`: the id drawn for `step.chunks[i]`, or None if the chunk does not sample. `errors` (chunk index →
    message): chunks that failed alone; their requests end with reason "error", the others continue. `logprobs` (by
    chunk index): of chunks that drew an id and whose request has logprobs, from the unchanged logits. `skipped`:
    `Masks.skip`; these chunks drew no id, and their last token is computed again in a later step. `prompts` (by chunk
    index): of chunks with reported tokens, the log probabilities of the tokens that follow them. `vectors` (by chunk
    index): of chunks with pooled tokens, float32 [vector_width], the sum of these tokens' hidden states after the final
    norm."""

    ids: list[int | None]
    errors: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, Logprobs] = field(default_factory=dict)
    skipped: frozenset[int] = frozenset()
    prompts: dict[int, PromptLogprobs] = field(default_factory=dict)
    vectors: dict[int, NDArray[Any]] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class RequestEnding:
    """The ending of a request. `message`: the failure, if `reason` is "error"."""

    sequence: Sequence
    reason: FinishReason
    message: str = ""


@dataclass(slots=True, frozen=True)
class StepOutcome:
    """The outcome of a step: ids in the order of its chunks, requested logprobs, the pooled vectors of requests that
    ended, as in frames.Vector, and the requests that ended with this step or since the previous one."""

    tokens: list[tuple[Sequence, int]] = field(default_factory=list)
    ended: list[RequestEnding] = field(default_factory=list)
    logprobs: dict[Sequence, Logprobs] = field(default_factory=dict)
    prompts: list[tuple[Sequence, PromptLogprobs]] = field(default_factory=list)
    vectors: list[tuple[Sequence, bytes]] = field(default_factory=list)


class AdapterMove(Protocol):
    """A completed part of an adapter's load: from "disk" to host memory, or from "host" memory to the device. `error`:
    why it failed, or ""."""

    @property
    def digest(self) -> str: ...

    @property
    def source(self) -> str: ...

    @property
    def seconds(self) -> float: ...

    @property
    def error(self) -> str: ...


class AdapterTable(Protocol):
    """Which adapters are registered, loading, and resident in the arena. The scheduler decides which are needed and
    assigns pages; this moves weights.

    Loads run beside the steps, and no step waits for a load. `place_adapter` and `evict_adapter` are in order with the
    steps, as in one CUDA stream: a step begun before reads the old contents of a page, a step begun later the new."""

    adapters_max: int | None  # resident at once; None: limited by pages alone

    def evictions(self) -> int:
        """Evictions from host memory since the start."""
        ...

    def is_known(self, digest: str, model: str) -> bool: ...

    def adapter_location(self, digest: str) -> str:
        """Where a registered adapter is: "device" (in the arena), "host" (in host memory) or "disk"."""
        ...

    def adapter_locations(self, limit: int) -> tuple[list[tuple[str, str, int]], int]:
        """(digest, location, bytes) of at most `limit` registered adapters, resident adapters first; and the number of
        all registered adapters."""
        ...

    def request_load(self, digest: str) -> bool:
        """Begin or continue the load of an adapter for which a request waits. False: no memory for it now; call
        again."""
        ...

    def cancel_load(self, digest: str) -> None:
        """Cancel its load: no request waits for it any more."""
        ...

    def is_adapter_ready(self, digest: str, *, hidden: bool) -> bool:
        """Whether `place_adapter` would delay no step, until the next `poll_adapters`. Called for the first request of
        a queue, whose adapter has priority over the others requested. `hidden`: a copy would delay no other request,
        because a step is in flight or none waits."""
        ...

    def poll_adapters(self) -> Iterable[AdapterMove]:
        """The parts of loads that completed or failed since the last call. Called before each step."""
        ...

    def pin_adapter(self, digest: str, pinned: bool) -> None:
        """A pinned adapter is never evicted from host memory."""
        ...

    def has_room(self) -> bool:
        """Whether `adapters_max` allows one more resident adapter."""
        ...

    def pages_needed(self, digest: str) -> int:
        """Further arena pages needed to make it resident: 0 if it is, or if it fits into the free bytes of tile
        pages."""
        ...

    def pages_alone(self, digest: str) -> int:
        """Arena pages needed to make it resident in an arena without other adapters. Never changes."""
        ...

    def pages_of(self, digest: str) -> list[int]:
        """The arena pages with tiles of a resident adapter, each once: the pages given to `place_adapter`, and tile
        pages that it shares with other adapters."""
        ...

    def place_adapter(self, digest: str, pages: list[int]) -> None:
        """Copy it into the arena, into `pages` (`pages_needed` of them) and the free bytes of tile pages.
        Idempotent."""
        ...

    def resident(self) -> list[str]:
        """Resident digests, least recently used first."""
        ...

    def evict_adapter(self, digest: str) -> list[int]:
        """Evict it from the arena; return the pages that are empty now. It remains registered."""
        ...


class WeightsMove(NamedTuple):
    """A completed load of a model's weights, from "host" memory or from "disk". `error`: why it failed, or ""."""

    model: str
    source: str
    seconds: float
    error: str = ""


class WeightsTable(Protocol):
    """Where the models' weights are: on the device, in host memory, or only in their files. The scheduler decides what
    is loaded and evicted; this moves bytes while steps run, and no step waits for it.

    `evict_weights` is in order with the steps: a step begun before still reads the weights, and their memory is free
    once that step is completed."""

    bytes_max: int | None  # device memory for weights; None: every registered model is resident

    def weights_bytes(self, model: str) -> int:
        """Device memory of the model while it is resident."""
        ...

    def free_bytes(self) -> int:
        """Device bytes that belong to no resident or loading model and that no step reads."""
        ...

    def weights_location(self, model: str) -> Literal["device", "host", "disk"]:
        """The nearest memory with all of its weights; a loading model is not on the device."""
        ...

    def load_seconds(self, model: str) -> float:
        """Predicted seconds until the weights are on the device if their load began now, or the rest of a load in
        flight; 0 on the device. From the measured speed of copies."""
        ...

    def prefetch_weights(self, model: str) -> None:
        """Read a model from disk into host memory, if there is space: requests wait for it, and the device is full."""
        ...

    def begin_load(self, model: str) -> None:
        """Begin its load to the device. `free_bytes` is at least its `weights_bytes`."""
        ...

    def evict_weights(self, model: str) -> None:
        """Evict it from the device, or cancel its load. It remains registered."""
        ...

    def poll_weights(self) -> Iterable[WeightsMove]:
        """The loads that completed or failed since the last call; a loaded model may be in steps from now on. Called
        before each step."""
        ...

    @property
    def is_reclaiming(self) -> bool:
        """Whether memory of evicted models is not free yet; `poll_weights` frees it, without a step too."""
        ...


class HostPool(Protocol):
    """Host memory for the pages of swapped requests. The scheduler chooses the pages; this copies them.

    `copy_out` and `copy_in` are in order with the steps and with each other: a slot or a page may be used by a later
    copy or step at once."""

    slots: int  # capacity in pages
    page_copy_s: float  # seconds for one page, one way

    def copy_out(self, pages: list[int], slots: list[int]) -> None:
        """Copy pages[i] to slots[i]."""
        ...

    def copy_in(self, slots: list[int], pages: list[int]) -> None:
        """Copy slots[i] to pages[i]."""
        ...


class DeviceLost(Exception):
    """The device computes nothing more for this process. The process must end; its supervisor starts another."""


class Pending(Protocol):
    """A step that was begun: its forward pass runs, and its ids are drawn by a second call."""

    def is_forward_done(self) -> bool:
        """Whether the forward pass has ended, so that the device waits for `draw`. Called before `draw`."""
        ...

    def draw(self, masks: Masks | None) -> None:
        """Launch the draw of the ids, without waiting for the device. Called once, when the ids of all earlier steps
        are in the sequences, and before another step begins. If this raises, the step has no ids: no further step
        begins before the step's requests have ended."""
        ...

    def result(self) -> StepResult:
        """Wait until its ids are on the host. Called once, after `draw`. Raises the step's error, or DeviceLost."""
        ...


class CompletedStep(Pending):
    """A step whose ids depend on no mask."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def is_forward_done(self) -> bool:
        return True

    def draw(self, masks: Masks | None) -> None:
        pass

    def result(self) -> StepResult:
        return self._result


class Runner(Protocol):
    """Computes steps, one after another, in the order in which they are begun. Implemented by `cpu.runner.TorchRunner`,
    `gpu.runner.GpuRunner` and `fake.runner.FakeRunner`.

    A page, a tile or a table row may be given to a later step while an earlier step in flight still uses it: all work
    is in order. The id that a chunk draws after its request has ended, or after its
    chunk of the previous step failed, is ignored; it must not affect other chunks.
    """

    @property
    def adapters(self) -> AdapterTable: ...

    @property
    def weights(self) -> WeightsTable: ...

    @property
    def page_waste(self) -> Mapping[str, int]:
        """Bytes of a page that are too few for one more token, by model. For snapshots."""
        ...

    @property
    def host_pool(self) -> HostPool | None:
        """None: preempted requests recompute everything."""
        ...

    @property
    def steps_ahead(self) -> int:
        """Steps that may begin before the oldest step's result is read: 1, or 0 if each step waits for the previous
        one."""
        ...

    def begin_step(self, step: Step) -> Pending:
        """Begin the forward pass of a step. Of the sequences, all but the ids that their penalties depend on is read
        before this returns, since they change later. If this raises, nothing of the step runs, and no further step
        begins before the step's requests have ended."""
        ...

    def load_model(self, model: ModelConfig) -> ModelInfo:
        """Check the model's files and register it; `weights` loads its weights later. Runs while steps run. Raises
        ValueError with the reason, OSError."""
        ...

    def unload_model(self, name: str) -> None:
        """Forget a model. Before, the scheduler has evicted its weights, and every step of it is completed."""
        ...

    def load_adapter(self, digest: str, model: str, path: str) -> None:
        """Check its files and register it. Runs beside the steps. Raises ValueError with the reason, OSError."""
        ...

    def unload_adapter(self, digest: str) -> None:
        """Forget an adapter. Before, the scheduler has evicted it from the arena, and every step that read it is
        completed."""
        ...


def run_step(runner: Runner, step: Step, masks: Masks | None = None) -> StepResult:
    """Begin, draw and complete one step, with no other step in flight."""
    pending = runner.begin_step(step)
    pending.draw(masks)
    return pending.result()
