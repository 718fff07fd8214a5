"""The frames between a gateway and an engine: length-prefixed msgpack over one stream per gateway.

It carries token ids, digests and opaque names, and must never carry a tenant's name, a key, a price or a prompt's text.
`codec.py` turns them into bytes; `client.py` implements the gateway's side, `server.py` the engine's.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from engine.protocol.quality import ModelQuality
from engine.protocol.snapshot_parts import (
    AdapterPlace,
    Digest,
    EngineLoad,
    ModelPlace,
    PageOwner,
    Preemption,
    RequestState,
    TierState,
    TokenAge,
)

# The newest version that this code speaks, and the oldest. Both ends use the smaller of the two newest versions. A new
# version may append fields to frames and add frames: msgspec ignores fields at the end that a struct does not have, and
# fills in the defaults of fields that are missing. No end sends a frame, or a value of a Literal, of a later version
# than the connection's: the other end could not decode it.
PROTOCOL_VERSION = 6
PROTOCOL_OLDEST = 4
# The first version with GatewayHello, Alive, Reclaim, DrainEngine and PagesChanged, and with a lease.
FLEET_VERSION = 5
# The first version with Submit.pooling and Vector.
POOLING_VERSION = 6
# Label of the summed metrics of models that were removed long ago (loop.metrics). No model can have this name.
REMOVED_MODELS = "(removed)"
# Of a page's name (page_names.py): what PagesChanged carries. Two of a million names are equal in 8 bytes with a
# probability of 3 × 10⁻⁸; a gateway then predicts one page too many, and nothing else.
PAGE_HEAD_BYTES = 8

# How the hidden states of a prompt become one vector: the last token's, or the mean over all tokens.
Pooling = Literal["last", "mean"]
FinishReason = Literal["stop", "length", "aborted", "error"]
GuideFault = Literal[
    "grammar",  # the grammar exceeds a limit after the ids that were made, or allows no id there
    "late",  # its masks were not ready in time
]
RefusalCode = Literal[
    "stale_epoch",  # the Submit names an earlier engine process
    "model_unknown",
    "adapter_unknown",
    "tier_unknown",
    "too_long",  # prompt + max_tokens exceed the context or could never fit the arena
    "queue_full",
    "bad_request",
    "shutting_down",
]

# Why a LoadModel or an UnloadModel failed. Another model under a name differs in a field of LoadModel, not counting
# `pinned`.
ModelFailure = Literal[
    "refused",  # the model's files, size or an engine's limit: only a different LoadModel may succeed
    "other_served",  # another model is served under this name: unload it first
    "other_loading",  # the files of another model are being checked under this name: send it again
    "loading",  # of an UnloadModel: the model's files are being checked: send it again
    "unloading",  # of a LoadModel: the model is removed once its running requests have ended: send it again
]

ModelName = Annotated[str, msgspec.Meta(max_length=128)]  # EngineConfig has the same limit
# Of one drawn id: (id, natural log of its raw probability), the drawn id first, then the requested number of likeliest
# ids.
Logprobs = list[tuple[int, float]]


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities of consecutive prompt tokens, the first at index `position` ≥ 1: token 0 has no log
    probability. Three packed little-endian arrays: `ids` (int32) and `values` (float32), `width` of each token: its own
    id, then the likeliest ids; `ranks` (int32), one for each token: 1 + the number of ids that are likelier than it.
    From the raw logits."""

    position: int
    width: int
    ids: bytes
    values: bytes
    ranks: bytes

    def tokens(self) -> int:
        """The number of prompt tokens."""
        return len(self.ranks) // 4


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """Base of all frames. Encoded as an array whose first element is the tag."""


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """How the next id is drawn. `temperature` 0 is greedy. The gateway always sets `seed`, also when the caller did
    not, so that the engine adds no randomness: the draw depends on (seed, choice, position) alone."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    seed: int = 0
    choice: int = 0
    min_p: float = 0.0  # ids less likely than this part of the likeliest id's probability are excluded
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0  # no stop id is drawn among the first `min_tokens` ids
    logprobs: int = -1  # likeliest ids to report beside each drawn one, 0 to 20; -1: none, nor the drawn one's
    prompt_logprobs: int = -1  # the same of each prompt token but the first


class Guide(msgspec.Struct, frozen=True, array_like=True):
    """Limits of a text's ids beyond sampling: a grammar, and a budget of reasoning. `protocol.guide_limits` bounds the
    fields."""

    grammar: str | None = None  # llguidance's text (engine.text.grammars); it applies to the ids after the reasoning
    # Ids that open the reasoning when the model draws them first. Empty: the prompt's end opened it, or the request has
    # none.
    reasoning_start_ids: list[int] = []
    reasoning_end_ids: list[int] = []  # ids that end the reasoning; empty: the model does not reason
    reasoning_open: bool = False  # the prompt's end opened it
    reasoning_max: int | None = None  # ids of reasoning after which the end ids are forced; None: no limit


class ModelInfo(msgspec.Struct, frozen=True, array_like=True):
    name: str
    digest: str  # SHA-256 over config and weights; the root of every prefix-cache chain
    context_tokens: int
    vocab_size: int
    tokens_per_page: int
    pages: int
    weights_bytes: int = 0  # device memory while the weights are resident
    pinned: bool = False  # its weights are never evicted
    weights_format: str = ""  # for people: "bfloat16", "fp8", "int4 g128 (awq)"; "": unknown
    kv_format: str = ""
    quality: ModelQuality | None = None  # None: unmeasured, as a model that is not quantised
    # Dtype and layout of K and V in pages, and the version of the kernels that write them; part of every chain's root.
    kv_identity: str = ""
    # Since version 5. Device kind, dtypes and kernel versions: engines with an equal digest, kv_identity and numerics
    # continue each other's texts. "": unknown, equal to nothing.
    numerics: str = ""
    # Since version 6. Numbers in a pooled vector; 0: the engine pools no vectors.
    vector_width: int = 0


class TierRecompute(msgspec.Struct, frozen=True, array_like=True):
    """Recompute that one tier's preemptions of a request caused, in tokens and device seconds."""

    tokens: int = 0
    device_s: float = 0.0


class EngineUsage(msgspec.Struct, frozen=True, array_like=True):
    """The resources that one request used. Seconds are of the engine's monotonic clock."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, found in the prefix cache when the request first ran
    completion_tokens: int = 0  # made, whether or not the gateway received them
    queue_s: float = 0.0  # from arrival until its first chunk began
    ttft_s: float = 0.0  # from arrival until its first id was known; 0 when there was none
    device_s: float = 0.0  # its part of the steps it took part in, without `recomputed`
    preemptions: int = 0
    recomputed_tokens: int = 0
    recomputed: dict[str, TierRecompute] = {}  # by the tier that caused it; their tokens add up to recomputed_tokens
    swapped_tokens: int = 0  # tokens whose KV was swapped to host memory and back
    # Of queue_s, the seconds in which the device computed for other requests, by their tier. Empty: the device
    # computed for no other request, or the engine is of an earlier build.
    queue_device_s: dict[str, float] = {}


# ---- gateway → engine ------------------------------------------------------------------------------------------


class Submit(Frame, frozen=True, tag="submit", array_like=True):
    """Run one request. `handle` is chosen by the gateway and never used again on its stream; answers name it. Every
    Submit gets exactly one Finished or Refused."""

    handle: int
    request_id: str  # for the logs of both sides
    epoch: str  # of the Hello; an engine with another epoch refuses the request
    model: str
    adapter: str | None  # content digest; loaded before by LoadAdapter
    namespace: str  # prefix-cache namespace, an opaque hash
    tier: str
    share: str  # fairness inside the tier counts by share: an opaque hash of the tenant
    prompt_ids: list[int]
    max_tokens: int  # 0: compute the prompt and draw no id
    sampling: Sampling
    stop_ids: list[int]  # the model's end-of-sequence ids; drawing one ends the request, and it is counted
    weight: float = 1.0  # of `share`: a share of weight 2 is served twice as much as one of weight 1
    guide: Guide | None = None
    # Since version 5. The last `resumed` ids of prompt_ids are output that another engine made: they count for
    # max_tokens, min_tokens, penalties and the guide, and are neither drawn nor reported again.
    resumed: int = 0
    attempt: int = 0  # 0: the text's first Submit; each further one, on whichever engine, has the next number
    # Since version 6. The answer is a Vector, and max_tokens is 0; None: the answer is ids.
    pooling: Pooling | None = None


class Abort(Frame, frozen=True, tag="abort", array_like=True):
    """Stop a request. Idempotent; unknown and finished handles are ignored. Finished("aborted") follows, unless the
    request had ended already."""

    handle: int


class Recorded(Frame, frozen=True, tag="recorded", array_like=True):
    """The ledger has the tokens of these requests. If a gateway disconnects first, they count as lost. Handles without
    an ending or without a token are ignored."""

    handles: list[int]


class LoadAdapter(Frame, frozen=True, tag="load_adapter", array_like=True):
    """Register an adapter. `path` is a directory of the store, named by digest, which the engine can read. Its weights
    are read when a request needs them, so the directory must exist until the digest is "unloaded". A `pinned` adapter
    is never evicted once it is resident. For a registered adapter the frame changes `pinned` alone.

    `sources`, since version 5: URLs of the adapter's directory, tried in order by an engine that cannot read `path`;
    it verifies fetched files by the digest."""

    digest: Digest
    model: str
    path: str
    pinned: bool = False
    sources: list[str] = []


class UnloadAdapter(Frame, frozen=True, tag="unload_adapter", array_like=True):
    """Forget an adapter once no request uses it; later Submits naming it are refused."""

    digest: Digest


class LoadModel(Frame, frozen=True, tag="load_model", array_like=True):
    """Serve one more base model beside the others. `path` is a directory that the engine can read, as Hugging Face lays
    it out, and must exist until the model is "unloaded". For a served model with otherwise equal fields the frame
    changes `pinned` alone."""

    name: ModelName
    path: str
    dtype: str
    context_tokens: int | None = None  # at most; None: the value of its config.json
    pinned: bool = False
    quantize: str = "none"  # this and kv_dtype as in ModelConfig
    kv_dtype: str = "auto"
    # Since version 5: as in LoadAdapter, with the digest of the directory's content, which is ModelInfo's too unless
    # `quantize` makes other numbers. "": the path alone.
    digest: str = ""
    sources: list[str] = []


class UnloadModel(Frame, frozen=True, tag="unload_model", array_like=True):
    """Stop serving a model: from now on a Submit that names it is refused as model_unknown, and queued requests run to
    their end. Then its pages, adapters and weights are freed, and it is "unloaded"."""

    name: ModelName


class Status(Frame, frozen=True, tag="status", array_like=True):
    """Ask for one StatusReport."""


class Watch(Frame, frozen=True, tag="watch", array_like=True):
    """Ask for one Snapshot, with the preemptions after number `preempted`; None: without preemptions."""

    preempted: int | None = None


# ---- gateway → engine, since version 5 ---------------------------------------------------------------------------


class GatewayHello(Frame, frozen=True, tag="gateway_hello", array_like=True):
    """The first frame of a gateway, if the engine's Hello has version 5 or later. Without it the connection has
    version 4. The gateway speaks the versions from `oldest` to `version`. `gateway` is unique per gateway process.
    `pages`: send PagesChanged frames; a repeated GatewayHello asks for a full one."""

    version: int
    gateway: Annotated[str, msgspec.Meta(max_length=128)]
    pages: bool = False
    oldest: int = 4


class Alive(Frame, frozen=True, tag="alive", array_like=True):
    """Sent every second. The engine closes the stream of a gateway that was silent for its Hello's `lease_s`."""


class AttemptTokens(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of one attempt that the gateway received: of the Submit with these three fields, `choice` in its
    Sampling."""

    request_id: str
    choice: int
    attempt: int
    tokens: int


class Reclaim(Frame, frozen=True, tag="reclaim", array_like=True):
    """The ledger has these tokens, which the gateway received over an earlier stream of this engine process: they are
    no longer lost. Sent again after a loss of the stream; each attempt counts once."""

    attempts: list[AttemptTokens]


class DrainEngine(Frame, frozen=True, tag="drain", array_like=True):
    """Refuse new requests as "shutting_down", and finish running ones. `draining` False: serve again."""

    draining: bool = True


# ---- engine → gateway ------------------------------------------------------------------------------------------


class RaisedTargets(msgspec.Struct, frozen=True, array_like=True):
    """Targets of a tier in ms, in place of the configured ones, which this machine cannot keep."""

    inter_token_ms: float
    ttft_base_ms: float
    queue_target_ms: float | None


class Hello(Frame, frozen=True, tag="hello", array_like=True):
    """The first frame on every stream. The engine speaks the versions from `oldest` to `version`."""

    version: int
    epoch: str  # unique per engine process
    models: list[ModelInfo]
    tiers: list[str]
    refused: dict[str, str] = {}  # as in Models
    raised: dict[str, RaisedTargets] = {}  # by tier, if its targets were raised at the start
    # Since version 5.
    oldest: int = 4
    lease_s: float = 0.0  # seconds of silence after which a gateway's stream is closed; 0: never
    build: str = ""  # of the engine's code, for people


class Tokens(Frame, frozen=True, tag="tokens", array_like=True):
    """The ids of one step for all requests of this gateway: `ids[i]` belongs to `handles[i]`."""

    step: int
    handles: list[int]
    ids: list[int]
    logprobs: list[Logprobs | None] | None = None  # of ids[i]; None if no request of the frame has logprobs
    # By handle, with its first id: prompt tokens found in the prefix cache, if any. Finished repeats the number, but a
    # gateway that loses the engine never gets a Finished.
    cached: dict[int, int] | None = None


class PromptPart(Frame, frozen=True, tag="prompt_part", array_like=True):
    """Log probabilities of a part of a request's prompt, before its first Tokens frame and its ending. The parts are in
    order and without a gap, each token in one part, however often the request is preempted."""

    handle: int
    part: PromptLogprobs


class Vector(Frame, frozen=True, tag="vector", array_like=True):
    """Since version 6. The pooled vector of a request's prompt, before its Finished: `ModelInfo.vector_width`
    little-endian float32, of length 1."""

    handle: int
    values: bytes


class Finished(Frame, frozen=True, tag="finished", array_like=True):
    """A request's ending, after all its Tokens frames. `message`: the failure, if `reason` is "error". `guide_fault`:
    set if the request's guide is the cause."""

    handle: int
    reason: FinishReason
    usage: EngineUsage
    message: str = ""
    guide_fault: GuideFault | None = None
    # Since version 5, if `reason` is "error": the engine stops, and another engine may continue the text.
    resumable: bool = False


class Refused(Frame, frozen=True, tag="refused", array_like=True):
    """The ending of a request that never ran."""

    handle: int
    code: RefusalCode
    message: str
    retry_after_s: float | None = None


class AdapterState(Frame, frozen=True, tag="adapter_state", array_like=True):
    """Answer to LoadAdapter and UnloadAdapter. `message`: the reason of `failed`, or with `loaded` why pinning it was
    impossible."""

    digest: str
    state: Literal["loaded", "unloaded", "failed"]
    message: str = ""


class ModelState(Frame, frozen=True, tag="model_state", array_like=True):
    """Answer to LoadModel and UnloadModel. `failed` has the reason in `message`, for people, and in `code`, for
    programs; `loaded` has in `message` why pinning it was impossible."""

    name: str
    state: Literal["loaded", "unloaded", "failed"]
    message: str = ""
    code: ModelFailure = "refused"  # of `failed` alone


class Models(Frame, frozen=True, tag="models", array_like=True):
    """All served models, in place of those in Hello; sent to every stream after each change. `refused`: configured
    models that could not be loaded at the start, and why."""

    models: list[ModelInfo]
    refused: dict[str, str] = {}


class StatusReport(Frame, frozen=True, tag="status_report", array_like=True):
    epoch: str
    step: int
    running: int
    waiting: dict[str, int]  # by tier
    pages_total: int
    pages_free: int
    pages_cached: int  # held by the prefix cache alone: reusable at once
    pages_adapters: int
    adapters_resident: list[str]
    tokens_made: int  # completion ids made since the process started, for all gateways, with the overrun
    metrics: bytes  # Prometheus text format, vLLM's names
    tokens_overrun: int = 0  # part of tokens_made in no answer: made after the request's ending, or by a probe
    tokens_lost: int = 0  # made for gateways that disconnected before they recorded them
    adapters_running: list[Digest] = []  # adapters that running requests use
    adapters_waiting: list[Digest] = []  # adapters that waiting requests will use
    adapters_step_max: int = 0  # limit of distinct adapters in one step
    # Since version 5: tokens that were counted as lost until a gateway reclaimed them. tokens_lost is without them.
    tokens_reclaimed: int = 0
    tokens_probed: int = 0  # of tokens_overrun, made by probes


class Snapshot(Frame, frozen=True, tag="snapshot", array_like=True):
    """The engine's state at one moment. Each list has a limit (`engine.loop.snapshot`) and its full count beside it.

    `runs` is the arena in page order: pairs of little-endian uint32, the index in `owners` and a number of pages; these
    numbers add up to `pages`. In an arena above MAP_CELLS_MAX pages each `map_cell_pages` pages have the first one's
    owner there; the counts of the owners are exact in any case."""

    epoch: str
    step: int
    page_bytes: int
    pages: int
    owners: list[PageOwner]
    runs: bytes
    map_cell_pages: int
    tiers: list[TierState]
    requests: list[RequestState]  # the running ones by tier, oldest first; then the waiting ones, oldest first
    requests_total: int
    preemptions: list[Preemption]  # the oldest first
    preempted: int  # number of the newest preemption
    adapters: list[AdapterPlace]  # adapters in the arena first
    adapters_total: int  # known
    models: list[ModelPlace] = []
    weights_bytes: int = 0  # device memory for weights; 0: no limit


class Heartbeat(Frame, frozen=True, tag="heartbeat", array_like=True):
    """Sent every second by the I/O thread. A loop that is busy while its step does not change is stuck."""

    step: int
    busy: bool
    running: int
    waiting: int
    # Since version 5.
    draining: bool = False
    load: EngineLoad | None = None
    tokens: dict[str, TokenAge] | None = None  # of models whose weights are resident; None: an earlier build


class PagesChanged(Frame, frozen=True, tag="pages_changed", array_like=True):
    """Since version 5, to gateways that asked for it: the names of cached pages that were added and removed, as the
    first PAGE_HEAD_BYTES of each name, one after another. Frames of a stream are numbered from 1 without a gap; `full`:
    `added` is the whole list, in place of all before. A head may be added twice, by two pages: it is removed twice."""

    number: int
    added: bytes
    removed: bytes = b""
    full: bool = False


ToEngine = (
    Submit
    | Abort
    | Recorded
    | LoadAdapter
    | UnloadAdapter
    | LoadModel
    | UnloadModel
    | Status
    | Watch
    | GatewayHello
    | Alive
    | Reclaim
    | DrainEngine
)
OfRequest = Tokens | PromptPart | Vector | Finished | Refused
FromEngine = Hello | Models | OfRequest | AdapterState | ModelState | StatusReport | Snapshot | Heartbeat | PagesChanged
