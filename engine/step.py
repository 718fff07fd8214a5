"""What the scheduler, the worker and a runner say to each other: a request in flight, and one step's work.

Plain data, no torch: the scheduler, the simulator and the fake engine load this without a tensor library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import msgspec

from engine.protocol.config import ModelConfig
from engine.protocol.frames import FinishReason, Logprobs, ModelInfo, Sampling, TierRecompute

# Stands in `output_ids` for an id that a step in flight is drawing: known on the device already, on the host not yet.
PENDING_ID = -1
# Prefix of the error of a row whose sampling values could not be prepared or used.
UNDRAWABLE = "its sampling could not be prepared"


@dataclass(slots=True, eq=False)
class Sequence:
    """One request in flight. The scheduler alone changes it; a runner reads it.

    Its tokens are `prompt_ids + output_ids`. The KV of the first `computed` tokens is in `pages`
    (token i lies in `pages[i // tokens_per_page]` at row `i % tokens_per_page`).
    A preempted sequence has computed 0 and no pages; its output_ids remain and are recomputed like a prompt, unless its
    KV was swapped to host memory and is copied back.

    While steps are in flight `computed` counts their tokens too, as soon as the next step is scheduled, and the last
    of `output_ids` may be PENDING_ID.
    """

    handle: int
    gateway: int  # the stream it came from
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
    weight: float = 1.0  # of its share
    recomputed: dict[str, TierRecompute] = field(default_factory=dict)  # by the tier that caused it; not in device_s
    swapped_tokens: int = 0  # whose KV came back from host memory

    def token_count(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Ids of tokens start ≤ i < stop, over the prompt and what was made since; the last may be PENDING_ID."""
        prompt = len(self.prompt_ids)
        if stop <= prompt:
            return self.prompt_ids[start:stop]
        if start >= prompt:
            return self.output_ids[start - prompt : stop - prompt]
        return self.prompt_ids[start:] + self.output_ids[: stop - prompt]

    def needs_ids(self) -> bool:
        """The next draw looks at the ids before it, on the host: it is scheduled only when all of them are known."""
        sampling = self.sampling
        return sampling.presence_penalty != 0 or sampling.frequency_penalty != 0 or sampling.repetition_penalty != 1


class Chunk(msgspec.Struct, frozen=True, eq=False):
    """Compute tokens start ≤ i < start + count of a sequence; when `sample`, the last of them yields the next id.
    A decode is a chunk of count 1. The pages for all of it are in `sequence.pages` already.

    The last token's id may be PENDING_ID, and then the chunk is a decode: its token is the id that the latest step
    begun before drew for this sequence, and never came to the host."""

    sequence: Sequence
    start: int
    count: int
    sample: bool


@dataclass(slots=True, frozen=True)
class Step:
    """One forward of one model. No order of the chunks is promised."""

    number: int
    model: str
    chunks: list[Chunk]


@dataclass(slots=True, frozen=True)
class StepResult:
    """`ids[i]` is the id drawn for `step.chunks[i]`, or None when it does not sample. A chunk named in `errors`
    (index → message) failed alone: its request ends with reason "error", the others go on. `logprobs` has those chunks
    (by index) that drew an id and whose request asked for them: of the model's own logits, see `Logprobs`."""

    ids: list[int | None]
    errors: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, Logprobs] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class RequestEnding:
    """The one ending of a request. `message` says what failed when `reason` is "error"."""

    sequence: Sequence
    reason: FinishReason
    message: str = ""


@dataclass(slots=True, frozen=True)
class StepOutcome:
    """What a step made: ids in the order of its chunks, logprobs of those requests that asked, and requests that ended
    with or before it."""

    tokens: list[tuple[Sequence, int]] = field(default_factory=list)
    ended: list[RequestEnding] = field(default_factory=list)
    logprobs: dict[Sequence, Logprobs] = field(default_factory=dict)


class AdapterMove(Protocol):
    """An adapter that came nearer: from "disk" to host memory, or from "host" memory towards a device. With an `error`
    it did not, and that says why."""

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

    What is wanted comes nearer beside the steps, which wait for nothing of it. `place` and `remove` are in order with
    the steps: one begun before still reads what lay there, one begun later finds what lies there now. On a device that
    is one stream, and steps may be in flight meanwhile."""

    adapters_max: int | None  # resident at once; None: as many as there are pages for

    def evictions(self) -> int:
        """From host memory, since the start."""
        ...

    def is_known(self, digest: str, model: str) -> bool: ...

    def adapter_location(self, digest: str) -> str:
        """Of a known one: "device", in the arena, or "host", in memory, or "disk"."""
        ...

    def adapter_locations(self, limit: int) -> tuple[list[tuple[str, str, int]], int]:
        """(digest, `where` it is, its bytes) of at most `limit` known ones, those in the arena first; and how many are
        known."""
        ...

    def request_load(self, digest: str) -> bool:
        """A request waits for it: bring it nearer. False: there is no room for that now; ask again."""
        ...

    def cancel_load(self, digest: str) -> None:
        """No request waits for it any more: what is under way ends."""
        ...

    def is_adapter_ready(self, digest: str, *, hidden: bool) -> bool:
        """Whether `place_adapter` would delay no step, until the next `poll_adapters`. Called for the first request of
        a queue, whose adapter has priority over the others requested. `hidden`: a copy would delay no other request,
        because a step is in flight or none waits."""
        ...

    def poll_adapters(self) -> Iterable[AdapterMove]:
        """What came nearer since, or failed to. Before each step."""
        ...

    def pin_adapter(self, digest: str, pinned: bool) -> None:
        """A pinned one never leaves host memory, once there."""
        ...

    def has_room(self) -> bool:
        """Whether one more can be resident, however many pages there are."""
        ...

    def pages_needed(self, digest: str) -> int:
        """Further arena pages needed to make it resident: 0 when it is, or fits what tile pages have free."""
        ...

    def pages_alone(self, digest: str) -> int:
        """Arena pages needed to make it resident in an arena without other adapters. Never changes."""
        ...

    def pages_of(self, digest: str) -> list[int]:
        """The arena pages with tiles of a resident adapter, each once: those given to `place`, and those of other
        adapters that had room."""
        ...

    def place_adapter(self, digest: str, pages: list[int]) -> None:
        """Copy it into the arena, using `pages` (as many as pages_needed said) beside free tiles. Idempotent."""
        ...

    def resident(self) -> list[str]:
        """Resident digests, least recently used first."""
        ...

    def evict_adapter(self, digest: str) -> list[int]:
        """Drop it from the arena; return the pages that are empty now. It stays known."""
        ...


class WeightsMove(NamedTuple):
    """A model whose weights came onto the device, from "host" memory or from "disk". With an `error` they did not, and
    that says why."""

    model: str
    source: str
    seconds: float
    error: str = ""


class WeightsTable(Protocol):
    """Where the models' weights are: on the device, in host memory, or only in their files. The scheduler decides what
    is loaded and evicted; this moves bytes while steps run, and no step waits for it.

    `drop` is in order with the steps: one begun before still reads the weights, which are free for others only when it
    is done."""

    bytes_max: int | None  # of all weights on the device; None: every model that is known stays there

    def weights_bytes(self, model: str) -> int:
        """Of the device, while it is there."""
        ...

    def free_bytes(self) -> int:
        """Bytes that no model has, nor is about to get, and no step reads."""
        ...

    def weights_location(self, model: str) -> Literal["device", "host", "disk"]:
        """The nearest place with all of its weights; a load in flight is not on the device yet."""
        ...

    def load_seconds(self, model: str) -> float:
        """Predicted seconds until the weights are on the device if their load began now, or the rest of a load in
        flight; 0 on the device. From the measured speed of copies."""
        ...

    def prefetch_weights(self, model: str) -> None:
        """It is waited for, and there is no room on the device: bring it from disk to host memory, if that has room."""
        ...

    def begin_load(self, model: str) -> None:
        """Bring it onto the device. `free` was at least its `bytes`."""
        ...

    def evict_weights(self, model: str) -> None:
        """Off the device, or off its way there. It stays known."""
        ...

    def poll_weights(self) -> Iterable[WeightsMove]:
        """The loads that completed or failed since the last call; a loaded model may be in steps from now on. Called
        before each step."""
        ...

    @property
    def is_reclaiming(self) -> bool:
        """What went is not free yet, and becomes so by `poll`: without a step too."""
        ...


class HostPool(Protocol):
    """Host memory for whole pages. The scheduler decides which; this copies.

    `copy_out` and `copy_in` are in order with the steps and with each other, as AdapterTable.place is: a slot or a page
    may be given to a later copy or step at once."""

    slots: int  # how many pages it holds
    page_copy_s: float  # seconds that one page takes, one way

    def copy_out(self, pages: list[int], slots: list[int]) -> None:
        """Each page into the slot at its place."""
        ...

    def copy_in(self, slots: list[int], pages: list[int]) -> None:
        """Each slot into the page at its place."""
        ...


class DeviceLost(Exception):
    """The device computes nothing more for this process, whatever it is asked: the process must end, so that another
    begins afresh."""


class Pending(Protocol):
    """A step that was begun."""

    def result(self) -> StepResult:
        """Wait until its ids are on the host. Asked for once. Raises what the step failed with, or DeviceLost."""
        ...


class CompletedStep(Pending):
    """A step whose result was there when it had begun: of a runner that computes in `begin`."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        return self._result


class Runner(Protocol):
    """Computes steps, one after another, in the order in which they are begun. Implemented by `cpu.runner.TorchRunner`,
    `gpu.runner.GpuRunner` and `fake.runner.FakeRunner`.

    A page, a tile or a table row may be given to a later step while an earlier one in flight still reads or writes
    it: as all work is in order, that harms neither. The id that a chunk draws after its request has ended, or after its
    chunk of the previous step failed, is ignored; it must not affect other chunks.
    """

    @property
    def adapters(self) -> AdapterTable: ...

    @property
    def weights(self) -> WeightsTable: ...

    @property
    def page_waste(self) -> Mapping[str, int]:
        """By model, the bytes of a page in which no token of it fits. For watchers."""
        ...

    @property
    def host_pool(self) -> HostPool | None:
        """None: preempted requests recompute everything."""
        ...

    @property
    def steps_ahead(self) -> int:
        """How many steps may be begun before the result of the oldest is taken; 0: each waits for the one before."""
        ...

    def begin_step(self, step: Step) -> Pending:
        """Start it. All that it needs of the sequences is read before this returns: later they change. Raises what
        kept it from starting; then nothing of it runs, and no further step is begun before its requests have ended."""
        ...

    def load_model(self, model: ModelConfig) -> ModelInfo:
        """Check the model's files and register it; `weights` loads its weights later. Runs while steps run. Raises
        ValueError with the reason, OSError."""
        ...

    def unload_model(self, name: str) -> None:
        """Forget it; the scheduler has dropped its weights before, and every step of it is completed."""
        ...

    def load_adapter(self, digest: str, model: str, path: str) -> None:
        """Check its files, and know it from now on. Runs beside the steps. Raises ValueError with the reason."""
        ...

    def unload_adapter(self, digest: str) -> None:
        """Forget it; the scheduler has removed it from the arena before, and every step that read it is completed."""
        ...
