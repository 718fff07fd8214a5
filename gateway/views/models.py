"""How base models are shown to operators: their settings, and their state in the engine.

Pure functions: nothing here asks an engine or reads a database.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from engine.protocol.config import QualityLimits
from engine.protocol.frames import ModelInfo
from engine.protocol.quality import ModelQuality
from engine.protocol.snapshot_parts import ModelPlace
from gateway.catalog.base_models import BaseModel, Dtype, KvDtype, Origin, Quantize
from gateway.views.live import LiveAdapter

# `loading`: the engine does not have the active model yet, or is unavailable. `draining`: a removed model
# whose requests still run. `refused`: a model that cannot be loaded; its callers get 503 model_unavailable.
State = Literal["serving", "loading", "draining", "refused", "removed"]


class ModelQualityView(msgspec.Struct, frozen=True, kw_only=True):
    """A quantised model beside the same model with unquantised weights, on a held-out text of `tokens` tokens.
    `mean_kl`: mean divergence of the next token's distribution, in nats. `top1`: part of the positions with the same
    likeliest token. `worst_layer_error`: relative error of that layer's output. `kept_layers`: matrices left in 16
    bits. `measured_at` in Unix seconds."""

    tokens: int
    mean_kl: float
    top1: float
    perplexity: float
    reference_perplexity: float
    worst_layer: int
    worst_layer_error: float
    kept_layers: int
    measured_at: int


class QualityLimitsView(msgspec.Struct, frozen=True, kw_only=True):
    """`[engine.quality]` of laneway.toml: a quantised model beyond one of these limits is refused."""

    mean_kl_max: float
    top1_min: float
    layer_error_max: float


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """A base model. `reason`: why it is refused. `path`: of an added model, inside gateway.models_dir; empty for a role
    that may not write models, which also gets a general `reason` only. `quantize` and `kv_dtype`: as configured;
    `weights_format` and `kv_format`: as the engine has them. `quality`: null for a model that is not quantised or not
    measured. `tenants`: ids of the tenants that may call it; null: all. Fields from the engine are null until an engine
    was connected; those from `where` on also while no engine answers. `wait_s`: seconds until the weights are ready for
    a new request. `loads`: of weights to the device since the engine started. `changed_at` in Unix seconds; null:
    unchanged from laneway.toml."""

    id: str | None  # in the audit log; null: unchanged from laneway.toml
    name: str
    origin: Origin
    state: State
    reason: str | None
    path: str
    dtype: Dtype
    quantize: Quantize
    kv_dtype: KvDtype
    pinned: bool
    tenants: tuple[str, ...] | None
    fallbacks: tuple[str, ...]
    max_tokens_default: int
    changed_at: int | None
    adapters: int  # active ones
    digest: str | None
    context_tokens: int | None
    vocab_size: int | None
    tokens_per_page: int | None
    pages: int | None
    kv_tokens: int | None  # that fit in the whole arena
    weights_bytes: int | None  # on the device, while the model is resident
    weights_format: str | None
    kv_format: str | None
    quality: ModelQualityView | None
    where: Literal["device", "host", "disk"] | None
    coming: bool | None  # its weights are being loaded to the device
    leaving: bool | None  # the model drains: it is being removed or evicted
    pinned_there: bool | None  # the engine has pinned it; false if there was no space for that
    page_waste_bytes: int | None  # per page
    running: int | None
    waiting: int | None
    wait_s: float | None
    loads: int | None


class ModelsView(msgspec.Struct, frozen=True, kw_only=True):
    """Base models, and the location of each adapter that the engine knows: at most 1,024 of `adapters_total`, those in
    the arena first. `weights_bytes`: device memory for all weights; 0: no limit; null: unknown because the engine is
    unavailable. `engine_away` is the reason."""

    data: list[ModelView]
    adapters: list[LiveAdapter]
    adapters_total: int
    weights_bytes: int | None
    quality_limits: QualityLimitsView
    engine_away: str | None
    object: Literal["list"] = "list"


class ModelStates(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway's current view of all models. `refused` and `draining`: by name."""

    max_tokens_default: int
    infos: Mapping[str, ModelInfo]
    places: Mapping[str, ModelPlace]
    refused: Mapping[str, str]
    draining: frozenset[str]
    adapters: Mapping[str, int]


def model_view(model: BaseModel, now: ModelStates, *, paths: bool) -> ModelView:
    """`paths`: whether the caller may see paths on the host."""
    info, place = now.infos.get(model.name), now.places.get(model.name)
    return ModelView(
        id=model.id,
        name=model.name,
        origin=model.origin,
        state=_state(model, now),
        reason=_reason(model, now, paths=paths),
        path=model.directory if paths else "",
        dtype=model.dtype,
        quantize=model.quantize,
        kv_dtype=model.kv_dtype,
        pinned=model.pinned,
        tenants=model.tenants,
        fallbacks=model.fallbacks,
        max_tokens_default=model.max_tokens_default or now.max_tokens_default,
        changed_at=model.changed_at,
        adapters=now.adapters.get(model.name, 0),
        digest=None if info is None else info.digest,
        context_tokens=model.context_tokens if info is None else info.context_tokens,
        vocab_size=None if info is None else info.vocab_size,
        tokens_per_page=None if info is None else info.tokens_per_page,
        pages=None if info is None else info.pages,
        kv_tokens=None if info is None else info.pages * info.tokens_per_page,
        weights_bytes=None if info is None else info.weights_bytes,
        weights_format=None if info is None else info.weights_format or None,
        kv_format=None if info is None else info.kv_format or None,
        quality=None if info is None else quality_view(info.quality),
        where=None if place is None else place.where,
        coming=None if place is None else place.coming,
        leaving=None if place is None else place.leaving,
        pinned_there=None if place is None else place.pinned,
        page_waste_bytes=None if place is None else place.page_waste_bytes,
        running=None if place is None else place.running,
        waiting=None if place is None else place.waiting,
        wait_s=None if place is None else round(place.wait_s, 3),
        loads=None if place is None else place.loads,
    )


def quality_view(quality: ModelQuality | None) -> ModelQualityView | None:
    if quality is None:
        return None
    return ModelQualityView(**msgspec.structs.asdict(quality) | {"measured_at": int(quality.measured_at)})


def quality_limits_view(limits: QualityLimits) -> QualityLimitsView:
    return QualityLimitsView(**msgspec.structs.asdict(limits))


def _reason(model: BaseModel, now: ModelStates, *, paths: bool) -> str | None:
    """Why the model is refused. Without `paths` a general text: errors of unreadable files name their paths."""
    reason = now.refused.get(model.name) if model.active else None
    return reason if reason is None or paths else "it cannot be loaded; the roles owner and operator see why"


def _state(model: BaseModel, now: ModelStates) -> State:
    if not model.active:
        there = model.name in now.infos or model.name in now.places or model.name in now.draining
        return "draining" if there else "removed"
    if model.name in now.refused:
        return "refused"
    return "serving" if model.name in now.infos else "loading"
