"""The structs of protocol version 4, frozen, so that tests can check version 5 against them. Never change one.

`version_4_peers` has the two ends of a stream that speak it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

VERSION = 4


class PageOwner(msgspec.Struct, frozen=True, array_like=True):
    kind: Literal["free", "kv", "cached", "adapter"]
    tier: str | None
    model: str | None
    adapter: str | None
    pages: int


class TierState(msgspec.Struct, frozen=True, array_like=True):
    name: str
    waiting: int
    running: int
    preempted: int
    floor_pages: int
    held_pages: int


class RequestState(msgspec.Struct, frozen=True, array_like=True):
    number: int
    request_id: str
    tier: str
    model: str
    adapter: str | None
    state: Literal["waiting", "preempted", "prefill", "decode"]
    prompt_tokens: int
    completion_tokens: int
    age_s: float


class Preemption(msgspec.Struct, frozen=True, array_like=True):
    number: int
    age_s: float
    request_id: str
    tier: str
    caused_by: str
    kind: Literal["recompute", "swap"]


class AdapterPlace(msgspec.Struct, frozen=True, array_like=True):
    digest: str
    where: Literal["device", "host", "disk"]
    bytes: int


class ModelPlace(msgspec.Struct, frozen=True, array_like=True):
    name: str
    where: Literal["device", "host", "disk"]
    coming: bool
    leaving: bool
    pinned: bool
    weights_bytes: int
    tokens_per_page: int
    page_waste_bytes: int
    running: int
    waiting: int
    wait_s: float
    loads: int


class ModelQuality(msgspec.Struct, frozen=True, array_like=True):
    tokens: int
    mean_kl: float
    top1: float
    perplexity: float
    reference_perplexity: float
    worst_layer: int
    worst_layer_error: float
    kept_layers: int
    measured_at: float


FinishReason = Literal["stop", "length", "aborted", "error"]

GuideFault = Literal["grammar", "late"]

RefusalCode = Literal[
    "stale_epoch",
    "model_unknown",
    "adapter_unknown",
    "tier_unknown",
    "too_long",
    "queue_full",
    "bad_request",
    "shutting_down",
]

ModelFailure = Literal["refused", "other_served", "other_loading", "loading", "unloading"]

Digest = Annotated[str, msgspec.Meta(max_length=128)]

ModelName = Annotated[str, msgspec.Meta(max_length=128)]

Logprobs = list[tuple[int, float]]


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True):
    position: int
    width: int
    ids: bytes
    values: bytes
    ranks: bytes


class Frame(msgspec.Struct, frozen=True, array_like=True):
    pass


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    choice: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0
    logprobs: int = -1
    prompt_logprobs: int = -1


class Guide(msgspec.Struct, frozen=True, array_like=True):
    grammar: str | None = None
    reasoning_start_ids: list[int] = []
    reasoning_end_ids: list[int] = []
    reasoning_open: bool = False
    reasoning_max: int | None = None


class ModelInfo(msgspec.Struct, frozen=True, array_like=True):
    name: str
    digest: str
    context_tokens: int
    vocab_size: int
    tokens_per_page: int
    pages: int
    weights_bytes: int = 0
    pinned: bool = False
    weights_format: str = ""
    kv_format: str = ""
    quality: ModelQuality | None = None
    kv_identity: str = ""


class TierRecompute(msgspec.Struct, frozen=True, array_like=True):
    tokens: int = 0
    device_s: float = 0.0


class EngineUsage(msgspec.Struct, frozen=True, array_like=True):
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    queue_s: float = 0.0
    ttft_s: float = 0.0
    device_s: float = 0.0
    preemptions: int = 0
    recomputed_tokens: int = 0
    recomputed: dict[str, TierRecompute] = {}
    swapped_tokens: int = 0


class Submit(Frame, frozen=True, tag="submit", array_like=True):
    handle: int
    request_id: str
    epoch: str
    model: str
    adapter: str | None
    namespace: str
    tier: str
    share: str
    prompt_ids: list[int]
    max_tokens: int
    sampling: Sampling
    stop_ids: list[int]
    weight: float = 1.0
    guide: Guide | None = None


class Abort(Frame, frozen=True, tag="abort", array_like=True):
    handle: int


class Recorded(Frame, frozen=True, tag="recorded", array_like=True):
    handles: list[int]


class LoadAdapter(Frame, frozen=True, tag="load_adapter", array_like=True):
    digest: Digest
    model: str
    path: str
    pinned: bool = False


class UnloadAdapter(Frame, frozen=True, tag="unload_adapter", array_like=True):
    digest: Digest


class LoadModel(Frame, frozen=True, tag="load_model", array_like=True):
    name: ModelName
    path: str
    dtype: str
    context_tokens: int | None = None
    pinned: bool = False
    quantize: str = "none"
    kv_dtype: str = "auto"


class UnloadModel(Frame, frozen=True, tag="unload_model", array_like=True):
    name: ModelName


class Status(Frame, frozen=True, tag="status", array_like=True):
    pass


class Watch(Frame, frozen=True, tag="watch", array_like=True):
    preempted: int | None = None


class RaisedTargets(msgspec.Struct, frozen=True, array_like=True):
    inter_token_ms: float
    ttft_base_ms: float
    queue_target_ms: float | None


class Hello(Frame, frozen=True, tag="hello", array_like=True):
    version: int
    epoch: str
    models: list[ModelInfo]
    tiers: list[str]
    refused: dict[str, str] = {}
    raised: dict[str, RaisedTargets] = {}


class Tokens(Frame, frozen=True, tag="tokens", array_like=True):
    step: int
    handles: list[int]
    ids: list[int]
    logprobs: list[Logprobs | None] | None = None
    cached: dict[int, int] | None = None


class PromptPart(Frame, frozen=True, tag="prompt_part", array_like=True):
    handle: int
    part: PromptLogprobs


class Finished(Frame, frozen=True, tag="finished", array_like=True):
    handle: int
    reason: FinishReason
    usage: EngineUsage
    message: str = ""
    guide_fault: GuideFault | None = None


class Refused(Frame, frozen=True, tag="refused", array_like=True):
    handle: int
    code: RefusalCode
    message: str
    retry_after_s: float | None = None


class AdapterState(Frame, frozen=True, tag="adapter_state", array_like=True):
    digest: str
    state: Literal["loaded", "unloaded", "failed"]
    message: str = ""


class ModelState(Frame, frozen=True, tag="model_state", array_like=True):
    name: str
    state: Literal["loaded", "unloaded", "failed"]
    message: str = ""
    code: ModelFailure = "refused"


class Models(Frame, frozen=True, tag="models", array_like=True):
    models: list[ModelInfo]
    refused: dict[str, str] = {}


class StatusReport(Frame, frozen=True, tag="status_report", array_like=True):
    epoch: str
    step: int
    running: int
    waiting: dict[str, int]
    pages_total: int
    pages_free: int
    pages_cached: int
    pages_adapters: int
    adapters_resident: list[str]
    tokens_made: int
    metrics: bytes
    tokens_overrun: int = 0
    tokens_lost: int = 0
    adapters_running: list[Digest] = []
    adapters_waiting: list[Digest] = []
    adapters_step_max: int = 0


class Snapshot(Frame, frozen=True, tag="snapshot", array_like=True):
    epoch: str
    step: int
    page_bytes: int
    pages: int
    owners: list[PageOwner]
    runs: bytes
    map_cell_pages: int
    tiers: list[TierState]
    requests: list[RequestState]
    requests_total: int
    preemptions: list[Preemption]
    preempted: int
    adapters: list[AdapterPlace]
    adapters_total: int
    models: list[ModelPlace] = []
    weights_bytes: int = 0


class Heartbeat(Frame, frozen=True, tag="heartbeat", array_like=True):
    step: int
    busy: bool
    running: int
    waiting: int


ToEngine = Submit | Abort | Recorded | LoadAdapter | UnloadAdapter | LoadModel | UnloadModel | Status | Watch

OfRequest = Tokens | PromptPart | Finished | Refused

FromEngine = Hello | Models | OfRequest | AdapterState | ModelState | StatusReport | Snapshot | Heartbeat
