"""The interface of an engine for the gateway. An engine on this host is one kind (`local`); an upstream server, or
several engines behind one, is another class of this protocol and does not change the request's path.

A kind of engine answers with token ids or with text: each stream says which in `output`. Prompts are given in both
forms. Values that an engine reports about itself (ModelInfo, EngineUsage, StatusReport, Snapshot) and Sampling are
plain structs of `engine.protocol.frames`; an engine that does not know a field leaves its default.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from engine.protocol.frames import (
    EngineUsage,
    Guide,
    GuideFault,
    Heartbeat,
    Logprobs,
    ModelFailure,
    ModelInfo,
    Pooling,
    PromptLogprobs,
    RaisedTargets,
    Sampling,
    Snapshot,
    StatusReport,
)
from gateway.api.generation_request import Prompt

NO_USAGE = EngineUsage()

OnConnect = Callable[[Mapping[str, RaisedTargets]], Awaitable[None]]
OnModels = Callable[[Mapping[str, ModelInfo]], None]


class EngineUnavailable(Exception):
    """No engine accepts requests now, or this request could not be sent to one."""


class AdapterFailed(Exception):
    """The engine could not load or unload the adapter; the message is its reason."""


class ModelFailed(Exception):
    """The engine could not load or unload the model. The message is its reason, for people; `code` is for programs."""

    def __init__(self, message: str, code: ModelFailure = "refused") -> None:
        super().__init__(message)
        self.code = code


class RefusalReason(enum.Enum):
    """Why an engine did not run a request."""

    STALE_EPOCH = "stale_epoch"  # the request was meant for an engine process that has ended
    MODEL_UNKNOWN = "model_unknown"
    ADAPTER_UNKNOWN = "adapter_unknown"
    TIER_UNKNOWN = "tier_unknown"
    TOO_LONG = "too_long"  # prompt and max_tokens exceed the context, or can never fit the engine's memory
    QUEUE_FULL = "queue_full"
    BAD_REQUEST = "bad_request"
    SHUTTING_DOWN = "shutting_down"


class StreamEnd(enum.Enum):
    """How the generation of one text ended, as its engine reports it."""

    STOP = "stop"  # a stop id, an end-of-sequence id, or a stop sequence that the engine looked for
    LENGTH = "length"
    ABORTED = "aborted"
    ERROR = "error"  # this request failed; the engine runs on
    LOST = "lost"  # the engine or its connection is lost
    REFUSED = "refused"  # the request never ran and made no token


class StreamEnding(msgspec.Struct, frozen=True):
    """The last that a stream reports. `usage` is None for a lost or refused request."""

    end: StreamEnd
    message: str = ""
    usage: EngineUsage | None = None
    refusal: RefusalReason | None = None  # set if `end` is REFUSED
    retry_after_s: float | None = None
    guide_fault: GuideFault | None = None  # set if `end` is ERROR and the request's grammar is the cause
    resumable: bool = False  # set if `end` is ERROR because the engine stops: another engine may continue the text


class OutputText(msgspec.Struct, frozen=True, gc=False):
    """New text of an engine that answers with text. `tokens`: how many the engine counts for it; 0 for a part of a
    token. `logprobs`, if requested: for each token its alternatives as (bytes, natural logarithm of the probability),
    the token's own first, then the likeliest."""

    text: str
    tokens: int
    logprobs: Sequence[Sequence[tuple[bytes, float]]] = ()


OutputKind = Literal["ids", "text"]
# The new output of a stream, never mixed: `int` ids, or OutputText. The list is typed loosely because its reader is
# chosen once per text, by `TokenStream.output`, and does not look at the type of each item.
Output = list[Any]


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One text to generate. Engines that take ids use `prompt_ids`; engines that take text use `prompt`, and where that
    is None (the body was parsed by another process) or ids, they decode `prompt_ids`."""

    request_id: str
    model: str
    adapter: str | None  # content digest
    namespace: str  # prefix-cache namespace, an opaque hash
    tier: str
    share: str  # an opaque hash of the tenant
    weight: float  # of `share` in its tier
    prompt_ids: list[int]
    prompt: Prompt | None
    max_tokens: int
    sampling: Sampling
    stop_ids: list[int]  # end-of-sequence ids among them; the id that ends the text is counted
    stops: list[str]  # the gateway searches for them itself; an engine may do so too
    guide: Guide | None = None  # an engine that cannot follow it refuses the request as BAD_REQUEST
    conversation: str = ""  # requests with an equal key prefer one engine where several are as fast
    resumed: int = 0  # of `prompt_ids`, the last ones: output of another engine, which this engine continues
    attempt: int = 0  # number of the text's submissions before this one
    pooling: Pooling | None = None  # the stream has a vector of the prompt, and no output


class TokenStream(Protocol):
    """One request in flight: output as it arrives, then exactly one ending. It has one reader."""

    cached_tokens: int  # of the prompt, known with the first output
    vector: bytes | None  # of a pooled prompt, known with the ending: little-endian float32, of length 1

    @property
    def attempts(self) -> Mapping[str, int]:
        """Completion tokens of this stream by the epoch of the engine process that made them, the newest attempt's
        epoch last. For an attempt whose engine reported its usage, the tokens made; for any other attempt, the tokens
        that arrived here. Tokens that an engine counts as lost, and that did not arrive, are not among them. The sum is
        at least the tokens that `take_output` has given."""
        ...

    @property
    def output(self) -> OutputKind:
        """Constant for a stream."""
        ...

    @property
    def final(self) -> StreamEnding | None:
        """None while the request runs."""
        ...

    def listen(self, on_news: Callable[[], None]) -> None:
        """Call `on_news` when there is output or a part of the prompt to take, or an ending; it must not raise. Must be
        called once, in the turn of the event loop in which the stream was made, before any output can arrive."""
        ...

    def take_output(self) -> Output:
        """The output since the last call."""
        ...

    def take_logprobs(self) -> list[Logprobs]:
        """The log probabilities of a stream of ids, if requested: one entry for each id that was taken last. A second
        call gives none."""
        ...

    def take_prompt(self) -> list[PromptLogprobs]:
        """If requested and reported by the engine: log probabilities of prompt tokens since the last call, all of
        them before the first output."""
        ...

    def abort(self) -> None:
        """Ask the engine to stop the request. Idempotent. The ending still arrives."""
        ...

    def confirm_recorded(self) -> None:
        """The ledger has the tokens of this request: the engine need not count them as lost."""
        ...


class ContentSources(Protocol):
    """URLs at which an engine on another host fetches this gateway's contents, in the order in which the engine tries
    them."""

    def sources_of_adapter(self, digest: str) -> list[str]: ...

    async def sources_of_model(self, path: str) -> tuple[str, list[str]]:
        """The digest of a model's directory, and its sources. Raises OSError, and ValueError for a directory without a
        model."""
        ...


class Engine(Protocol):
    """`start()` returns at once. `on_connect` runs before the engine is ready, at each connection, and gets the targets
    that the engine raised at its start, by tier. `on_models` runs whenever the served models change, before
    `on_connect` too; it must not raise. While the engine is disconnected, `models` and `epoch` keep their last value.

    The engine reports each token in exactly one place: in the `usage` of an ending, or as made and lost in `status`.
    The books rely on it: made = billed + discarded + lost."""

    on_connect: OnConnect | None
    on_models: OnModels | None

    @property
    def reports_prompts(self) -> bool:
        """Whether its streams have log probabilities of prompts. Constant."""
        ...

    @property
    def ready(self) -> bool:
        """Connected, and `on_connect` has returned."""
        ...

    @property
    def stuck(self) -> bool:
        """The engine answers, but makes no progress with the requests that it has."""
        ...

    @property
    def epoch(self) -> str:
        """The identity of the engine process; "" before the first connection."""
        ...

    @property
    def models(self) -> Mapping[str, ModelInfo]:
        """The models served now, by name."""
        ...

    @property
    def refused(self) -> Mapping[str, str]:
        """Models of the engine's configuration that it cannot serve, with the reason."""
        ...

    @property
    def last_heartbeat(self) -> Heartbeat | None:
        """The newest heartbeat of the connection; None before its first."""
        ...

    async def start(self) -> None:
        """Connect in the background, again after each loss."""
        ...

    async def close(self) -> None:
        """Running requests end as LOST."""
        ...

    async def wait_ready(self, timeout_s: float) -> None:
        """Raises EngineUnavailable after `timeout_s`."""
        ...

    def submit(self, request: EngineRequest) -> TokenStream:
        """Raises EngineUnavailable; then the engine has not received the request."""
        ...

    async def load_adapter(
        self, digest: str, model: str, path: str | Path, *, pinned: bool = False, sources: Sequence[str] = ()
    ) -> None:
        """Register an adapter of the store. `sources`: URLs from which an engine on another host fetches it. Raises
        AdapterFailed, EngineUnavailable."""
        ...

    async def unload_adapter(self, digest: str) -> None:
        """Returns once no request uses it. Raises AdapterFailed, EngineUnavailable."""
        ...

    async def load_model(
        self,
        name: str,
        path: str | Path,
        *,
        dtype: str = "float32",
        quantize: str = "none",
        kv_dtype: str = "auto",
        context_tokens: int | None = None,
        pinned: bool = False,
        digest: str = "",
        sources: Sequence[str] = (),
    ) -> str:
        """Serve one more base model. `digest`: of its content; `sources`: as in `load_adapter`. Returns why it is not
        pinned, if it was to be pinned; else "". Raises ModelFailed, EngineUnavailable."""
        ...

    async def unload_model(self, name: str) -> None:
        """Returns once no request uses it. Raises ModelFailed, EngineUnavailable."""
        ...

    async def status(self) -> StatusReport:
        """Counters and Prometheus text. Raises EngineUnavailable."""
        ...

    async def reports(self) -> list[StatusReport]:
        """The status of each engine process behind this object that answers within a few seconds."""
        ...

    async def watch(self, preempted: int | None = None) -> Snapshot:
        """A snapshot for the console, with the preemptions after number `preempted`. Raises EngineUnavailable."""
        ...
