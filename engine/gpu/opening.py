"""Opens the directory of a configured model: files and shapes are checked, and no weight is read."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch

from adapters.files.spec import BaseShape
from engine.compute.quality import QualityKey, QualityResult, gate_model
from engine.compute.shared import kv_layout
from engine.contents.model_digests import model_digest
from engine.gpu.products import check_fp8, check_products
from engine.gpu.quality import GpuMeasuredModel, memory_is_needed
from engine.models.config import DecoderConfig, ModelRefused, check_vocabulary, load_config
from engine.models.dummy import dummy_digest
from engine.models.quantized import quantized_digest
from engine.models.slab_source import DummySource, FileSource, SlabSource
from engine.protocol.config import ModelConfig, QualityLimits
from engine.protocol.quality import ModelQuality
from kernels.kv_layout import KvLayout

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """`base`: the same model as adapters see it."""

    name: str
    shape: DecoderConfig
    base: BaseShape
    source: SlabSource
    digest: str
    pinned: bool
    kv: KvLayout
    quality: ModelQuality | None = None  # None: it is not quantised, or has dummy weights


def dtype_of(name: str) -> torch.dtype:
    """Raises ModelRefused."""
    if name not in DTYPES:
        raise ModelRefused(f"dtype: a GPU serves bfloat16 or float16, {name} is the CPU's")
    return DTYPES[name]


def open_model(model: ModelConfig, dtype: torch.dtype, device: torch.device, limits: QualityLimits) -> OpenedModel:
    """`dtype` is the engine's. Without a cached digest the files are hashed, which takes longer than reading them. A
    quantised model without a known result is measured. Raises ModelRefused, OSError."""
    if dtype_of(model.dtype) != dtype:
        raise ModelRefused(f"dtype: the models of one engine share one, this is {model.dtype} and the others {dtype}")
    if model.kv_dtype == "fp8":
        check_fp8("kv_dtype: fp8 needs", torch.cuda.get_device_capability(device))
    directory = Path(model.path)
    shape = load_config(directory, quantized=True)
    if model.context_tokens is not None:
        shape = dataclasses.replace(shape, context_tokens=min(shape.context_tokens, model.context_tokens))
    source: SlabSource
    if model.dummy:
        found = dummy_digest(model.name)
        source = DummySource(shape, dtype, device, seed=int(found[:8], 16), quantize=model.quantize)
    else:
        check_vocabulary(directory, shape.vocab)
        source = FileSource(directory, shape, dtype, model.quantize)
        found = model.digest or model_digest(directory)
    check_products(source.layout, device)
    base, layout = BaseShape.from_directory(directory), kv_layout(model, shape, dtype)
    result = None
    if isinstance(source, FileSource) and (source.matrices or layout.is_fp8):
        result = _gate(model, source, shape, dtype, device, limits, found)
        if result.kept:
            source = FileSource(directory, shape, dtype, model.quantize, result.kept)
    digest = quantized_digest(model.digest or found, model.quantize, result.kept if result else ())
    quality = result.quality if result else None
    return OpenedModel(model.name, shape, base, source, digest, model.pinned, layout, quality)


def _gate(
    model: ModelConfig,
    source: FileSource,
    shape: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device,
    limits: QualityLimits,
    digest: str,
) -> QualityResult:
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    kv = kv_layout(model, shape, dtype).dtype
    key = QualityKey(digest, source.weights_format, kv, str(dtype), f"cuda {capability}")
    with memory_is_needed():
        return gate_model(Path(model.path), key, limits, lambda: GpuMeasuredModel(model, shape, dtype, device))
