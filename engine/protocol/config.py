"""The engine's own configuration: one JSON file, typed, with limits; unknown fields are refused.

It says what the engine process serves and how large it may grow. It must never hold a tenant, a key or a price.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.protocol.allowed_words import explain_wrong_word
from engine.protocol.tiers import SHIPPED_TIERS, Tier, check_tiers

CONFIG_BYTES_MAX = 1024 * 1024


class EngineConfigError(Exception):
    """The configuration cannot be used; the message names the field."""


def check_step_tokens(sequences_max: int, prefill_tokens_min: int, step_tokens_max: int) -> str | None:
    """The fault of these limits as a sentence, or None. A step must hold a token of every running request and
    `prefill_tokens_min` tokens of prompts, so that full decoding does not stop prefill."""
    if prefill_tokens_min > step_tokens_max:
        return f"prefill_tokens_min is {prefill_tokens_min}; its limit is step_tokens_max, {step_tokens_max}"
    decodes_max = step_tokens_max - prefill_tokens_min
    if sequences_max > decodes_max:
        return f"sequences_max is {sequences_max}; its limit is step_tokens_max - prefill_tokens_min, {decodes_max}"
    return None


class ConfigSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: a name that is not a field is refused."""


class ModelConfig(ConfigSection, frozen=True, kw_only=True):
    """One base model. `path` is a directory with config.json, model.safetensors and tokenizer.json; the fake reads
    only the shape and the words, and needs no directory."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    path: str = ""
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None  # None: computed over config and weights
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    quantize: Literal["none", "fp8", "int8", "int4"] = "none"  # weights made on loading from unquantised ones
    # Of its K and V in pages. "auto": the model's dtype; "fp8": float8_e4m3 with a float16 scale per token and head.
    kv_dtype: Literal["auto", "fp8"] = "auto"
    context_tokens: Annotated[int, Meta(ge=2, le=16_777_216)] | None = None  # at most; None: the value of config.json
    pinned: bool = False  # its weights never leave the device
    dummy: bool = False  # random weights in the shape of config.json; for benchmarks


class FakeFaults(ConfigSection, frozen=True, kw_only=True):
    """Faults on demand, for tests: a prompt that contains the id of a fault causes the fault."""

    chunk_error_id: int | None = None  # its chunk fails, alone
    draw_error_id: int | None = None  # drawing its id raises
    step_error_id: int | None = None  # the whole step raises
    device_lost_id: int | None = None  # the device is lost: the process ends
    stall_id: int | None = None  # the step takes stall_s
    stall_s: Annotated[float, Meta(ge=0, le=600)] = 10.0
    weights_error_model: str | None = None  # loads of models whose names have this prefix fail


class FakeConfig(ConfigSection, frozen=True, kw_only=True):
    """Speed and shape of the engine without a model."""

    step_ms: Annotated[float, Meta(ge=0, le=60_000)] = 5.0
    prefill_ms_per_1k_tokens: Annotated[float, Meta(ge=0, le=600_000)] = 20.0
    load_ms: Annotated[float, Meta(ge=0, le=60_000)] = 0.0  # reading one adapter
    model_load_ms: Annotated[float, Meta(ge=0, le=60_000)] = 0.0  # checking the files of a model that is added
    steps_ahead: Annotated[int, Meta(ge=0, le=1)] = 0  # steps begun before the previous step's result is taken
    stop_after: Annotated[int, Meta(ge=1)] | None = None  # the n-th id is a stop id of the request; None: never
    context_tokens: Annotated[int, Meta(ge=2, le=16_777_216)] = 8192  # where the model's config.json is not there
    vocab_size: Annotated[int, Meta(ge=16, le=16_777_216)] = 49152  # likewise
    tokens_per_page: Annotated[int, Meta(ge=1, le=4096)] = 16
    pages: Annotated[int, Meta(ge=1, le=16_777_216)] = 65536
    adapter_pages: Annotated[int, Meta(ge=1, le=65536)] = 1  # each adapter's
    host_pages: Annotated[int, Meta(ge=0, le=16_777_216)] = 0  # for preempted requests; 0: they compute all again
    page_copy_ms: Annotated[float, Meta(ge=0, le=60_000)] = 0.05  # of one of these, one way
    weights_bytes: Annotated[int, Meta(ge=1, le=2**48)] = 1024 * 1024  # each model's
    weights_host_ms: Annotated[float, Meta(ge=0, le=600_000)] = 0.0  # of their copy from host memory to the device
    weights_disk_ms: Annotated[float, Meta(ge=0, le=600_000)] = 0.0  # and from files, which is loaded first
    faults: FakeFaults = FakeFaults()


class QualityLimits(ConfigSection, frozen=True, kw_only=True):
    """The quality gate: a quantised model beyond one of these limits, on the held-out text, is refused."""

    mean_kl_max: Annotated[float, Meta(ge=0, le=100)] = 0.1  # nats, see quality.ModelQuality
    top1_min: Annotated[float, Meta(ge=0, le=1)] = 0.8
    layer_error_max: Annotated[float, Meta(ge=0, le=100)] = 0.2  # relative to what each layer adds to its input


class EngineLimits(ConfigSection, frozen=True, kw_only=True):
    """Memory, batch size and device of an engine: what an operator sets in `[engine]` of laneway.toml."""

    arena_bytes: Annotated[int, Meta(ge=16 * 1024 * 1024, le=2**48)] = 512 * 1024 * 1024
    # Host memory for pages of preempted requests that are cheaper to copy back than to recompute; 0: recompute all.
    host_pool_bytes: Annotated[int, Meta(ge=0, le=2**48)] = 0
    step_tokens_max: Annotated[int, Meta(ge=16, le=65536)] = 512
    prefill_tokens_min: Annotated[int, Meta(ge=1, le=65536)] = 64
    sequences_max: Annotated[int, Meta(ge=1, le=4096)] = 64
    device: Literal["cpu", "cuda"] = "cpu"
    adapters_max: Annotated[int, Meta(ge=1, le=65536)] = 1024  # in a GPU's arena at once; each takes a row of a table
    adapter_rank_max: Annotated[int, Meta(ge=1, le=256)] = 64  # on a GPU; memory between two kernels grows with it
    # Host memory for adapters, the least recently used evicted first; each must fit. On a GPU it is page-locked.
    adapter_host_bytes: Annotated[int, Meta(ge=1024 * 1024, le=2**48)] = 1024 * 1024 * 1024
    # Of a GPU's memory, beside the arena: the copy buffer of adapter loads. Each adapter must fit.
    adapter_staging_bytes: Annotated[int, Meta(ge=1024 * 1024, le=2**48)] = 512 * 1024 * 1024
    # Of the device, for weights: beyond it the least used models are evicted. 0: all models are resident.
    weights_bytes: Annotated[int, Meta(ge=0, le=2**48)] = 0
    # Of the host, page-locked on a GPU, for weights that are not resident; the others are read from their files.
    weights_host_bytes: Annotated[int, Meta(ge=0, le=2**48)] = 0
    # A model in use is resident for at least this number of seconds, unless a request of a higher tier waits for
    # another.
    weights_residence_s: Annotated[float, Meta(ge=0, le=3600)] = 2.0
    # Seconds without a token after which a resident model is probed. After as many seconds more without a token, the
    # model is silent. 0: no model is probed.
    probe_after_s: Annotated[float, Meta(ge=0, le=3600)] = 10.0
    graph_bytes: Annotated[int, Meta(ge=0, le=2**48)] = 8 * 1024**3  # of a GPU, for captured steps; 0: no capture
    # Adapters and models that were fetched from other hosts, in the engine's own store; 0: no limit.
    store_bytes_max: Annotated[int, Meta(ge=0, le=2**50)] = 0
    store_free_min_bytes: Annotated[int, Meta(ge=0, le=2**50)] = 1024**3  # disk space that a download leaves free
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0  # of the CPU's arithmetic; 0: measured at the start
    quality: QualityLimits = QualityLimits()

    def __post_init__(self) -> None:
        if fault := check_step_tokens(self.sequences_max, self.prefill_tokens_min, self.step_tokens_max):
            raise ValueError(fault)
        # Each running request may have a different adapter.
        if self.adapters_max < self.sequences_max:
            raise ValueError(f"adapters_max is {self.adapters_max}, less than sequences_max, {self.sequences_max}")


class EngineConfig(EngineLimits, frozen=True, kw_only=True):
    models: Annotated[tuple[ModelConfig, ...], Meta(min_length=1, max_length=64)]
    tiers: Annotated[tuple[Tier, ...], Meta(min_length=1, max_length=16)] = SHIPPED_TIERS  # high to low
    # Which idle model is evicted first: "use", whose bytes save the least loading; "lru", for comparison in benchmarks.
    weights_policy: Literal["use", "lru"] = "use"
    fake: FakeConfig = FakeConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [model.name for model in self.models]
        if len(set(names)) != len(names):
            raise ValueError("two models have the same name")
        check_tiers(self.tiers)


def parse_engine_config(data: bytes, source: str = "the configuration") -> EngineConfig:
    """Raises EngineConfigError."""
    if len(data) > CONFIG_BYTES_MAX:
        raise EngineConfigError(f"{source}: {len(data)} bytes; the limit is {CONFIG_BYTES_MAX}")
    try:
        return msgspec.json.decode(data, type=EngineConfig)
    except msgspec.ValidationError as error:
        raise EngineConfigError(f"{source}: {explain_wrong_word(error, EngineConfig)}") from error
    except msgspec.MsgspecError as error:
        raise EngineConfigError(f"{source}: {error}") from error


def load_engine_config(path: Path) -> EngineConfig:
    """Raises EngineConfigError."""
    try:
        return parse_engine_config(path.read_bytes(), str(path))
    except OSError as error:
        raise EngineConfigError(f"{path}: {error.strerror}") from error
