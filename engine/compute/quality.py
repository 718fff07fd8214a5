"""The quality gate: how far a quantised model is from its reference, measured on a fixed held-out text.

Both versions compute the text layer by layer, so that the device holds one layer of each. The measurement runs once
for each model digest, format, device and version of the kernels; its result lies beside the model's files.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from engine.models.config import ModelRefused
from engine.models.quantized import QUANTIZE_VERSION
from engine.protocol.config import QualityLimits
from engine.protocol.frames import Sampling
from engine.protocol.quality import ModelQuality, find_quality_fault
from engine.step import Chunk, Sequence
from engine.text.small_files import read_small
from engine.text.tokenizer import Tokenizer
from kernels.kv_layout import KV_KERNELS_VERSION

HELD_OUT_TEXT = Path(__file__).with_name("held_out.txt")
# Rows of consecutive tokens that attend to each other, and how many of them are measured: 20,480 tokens.
WINDOW_TOKENS = 512
WINDOWS = 40
# The error of a layer is measured on the first windows only: it needs the reference's input for both versions.
ERROR_WINDOWS = 4
# A layer whose relative error is at most this may stay unquantised. A larger error is a fault, not the rounding of a
# format, and the model is refused. The worst layer of SmolLM2 in int4 has 0.36; a layer of zeros has 1.
FAULT_ERROR = 0.5
# Largest part of the layers that may stay unquantised. Beyond it the model is refused, since quantising it would save
# little memory.
KEPT_PART_MAX = 0.5
# Rows whose logits are compared at once.
LOGIT_ROWS = 128
RESULTS = ".laneway-quality.json"
RESULTS_BYTES_MAX = 1 << 20
# Raised when the measurement changes, or a kernel that multiplies or writes quantised numbers.
MEASURE_VERSION = 2
PROGRESS_S = 5.0

_log = logging.getLogger(__name__)

LayerRun = Callable[[Tensor], Tensor]
"""One layer of a model: hidden [windows, WINDOW_TOKENS, hidden] → the same after the layer, in new memory."""


class MeasuredModel(Protocol):
    """A model in two versions that one device computes: the reference, in the model's dtype, and the quantised one with
    the same kernels as when it is served."""

    layers: int
    vocab: int
    may_keep_layers: bool
    """Whether a layer may be left unquantised: the weights are quantised on loading."""

    def embed(self, ids: Tensor) -> Tensor:
        """ids int64 [windows, WINDOW_TOKENS] → hidden [windows, WINDOW_TOKENS, hidden]."""
        ...

    def load_layer(self, index: int) -> tuple[LayerRun, LayerRun, LayerRun, int]:
        """The reference's layer, the quantised one, the quantised one with reference weights (it differs from the
        reference by the KV alone), and how many matrices are quantised in it. Raises ModelRefused, OSError."""
        ...

    def logits(self, hidden: Tensor, *, quantized: bool) -> Tensor:
        """Logits float32 [rows, vocab] of hidden [rows, hidden] after the last layer."""
        ...


class QualityResult(msgspec.Struct, frozen=True):
    """`kept`: the layers that stay unquantised, because their error is above `layer_error_max`."""

    quality: ModelQuality
    kept: tuple[int, ...] = ()
    layer_error_max: float = 0.0

    def holds_for(self, limits: QualityLimits) -> bool:
        """Whether a measurement under these limits would keep the same layers."""
        same = self.layer_error_max == limits.layer_error_max
        return same or (not self.kept and self.quality.worst_layer_error <= limits.layer_error_max)


@dataclass(frozen=True, slots=True)
class QualityKey:
    """The key of a result. `digest`: of the model's files; `weights`, `kv`: the formats; `device`: the device kind,
    such as `cpu` or `cuda 9.0`."""

    digest: str
    weights: str
    kv: str
    dtype: str
    device: str

    def text(self) -> str:
        parts = (self.digest, self.weights, self.kv, self.dtype, self.device)
        versions = (
            f"measure={MEASURE_VERSION} quantize={QUANTIZE_VERSION} kv={KV_KERNELS_VERSION} text={_text_digest()}"
        )
        return hashlib.sha256(" ".join((*parts, versions)).encode()).hexdigest()


def gate_model(
    directory: Path, key: QualityKey, limits: QualityLimits, open_model: Callable[[], MeasuredModel]
) -> QualityResult:
    """The result for a quantised model, measured if none is known. Raises ModelRefused naming the measure that is over
    its limit, and what `open_model` and its methods raise."""
    result = read_results(directory).get(key.text())
    if result is None or not result.holds_for(limits):
        model = open_model()
        result = measure_quality(model, held_out_ids(directory, model.vocab), limits, directory.name)
        if all(map(math.isfinite, msgspec.structs.astuple(result.quality))):  # JSON has no NaN
            write_results(directory, {**read_results(directory), key.text(): result})  # others may have measured, too
    fault = find_quality_fault(result.quality, limits)
    if fault is not None:
        raise ModelRefused(f"quality: {fault}")
    return result


def held_out_ids(directory: Path, vocab: int, windows: int = WINDOWS) -> Tensor:
    """The ids int64 [windows, WINDOW_TOKENS] of the held-out text in the model's tokens. A directory without a
    tokenizer has the bytes of the text as ids."""
    text, count = HELD_OUT_TEXT.read_text(), windows * WINDOW_TOKENS
    if (directory / "tokenizer.json").exists():
        ids = Tokenizer(directory).encode(text)
    else:
        ids = [byte % vocab for byte in text.encode()]
    if len(ids) < count:
        raise ModelRefused(f"quality: the held-out text has {len(ids)} tokens of this model, fewer than {count}")
    return torch.tensor(ids[:count]).view(windows, WINDOW_TOKENS)


def window_chunks(windows: int, pages: int) -> list[Chunk]:
    """A prompt of WINDOW_TOKENS for each window, in `pages` pages that no other window uses. The ids are not read: the
    layers' input is given."""
    chunks = []
    for window in range(windows):
        own = Sequence(
            handle=window,
            gateway=0,
            request_id="",
            model="",
            adapter=None,
            namespace="",
            tier="",
            share="",
            prompt_ids=[0] * WINDOW_TOKENS,
            max_tokens=1,
            sampling=Sampling(),
            stop_ids=frozenset(),
            arrived_at=0.0,
        )
        own.pages = list(range(window * pages, (window + 1) * pages))
        chunks.append(Chunk(own, 0, WINDOW_TOKENS, sample=False))
    return chunks


@torch.inference_mode()
def measure_quality(model: MeasuredModel, ids: Tensor, limits: QualityLimits, name: str) -> QualityResult:
    """Measure `model` on `ids` int64 [windows, WINDOW_TOKENS]. A layer whose error is above the limit, and no fault, is
    kept unquantised where the model allows it."""
    progress = _Progress(name, model.layers)
    reference = model.embed(ids)
    quantized = reference.clone()
    errors: list[float] = []
    kept: list[int] = []
    kept_matrices = 0
    for index in range(model.layers):
        run, run_quantized, run_kept, matrices = model.load_layer(index)
        first = reference[:ERROR_WINDOWS]
        expected = run(first)
        error = _relative_error(run_quantized(first), expected, first)
        may_keep = model.may_keep_layers and matrices and len(kept) < int(KEPT_PART_MAX * model.layers)
        if may_keep and limits.layer_error_max < error <= FAULT_ERROR:
            kept.append(index)
            kept_matrices += matrices
            run_quantized = run_kept
            error = _relative_error(run_quantized(first), expected, first)
        errors.append(error)
        reference, quantized = _run_windows(run, reference), _run_windows(run_quantized, quantized)
        progress.layer_done(index)
    found = _compare(model, ids, reference, quantized)
    worst = max(range(model.layers), key=lambda index: _nan_last(errors[index]))
    quality = ModelQuality(
        tokens=ids.numel(),
        mean_kl=found.mean_kl,
        top1=found.top1,
        perplexity=found.perplexity,
        reference_perplexity=found.reference_perplexity,
        worst_layer=worst,
        worst_layer_error=errors[worst],
        kept_layers=kept_matrices,
        measured_at=time.time(),
    )
    fields = {"model": name, "seconds": round(progress.seconds(), 1), "kept": kept, **msgspec.structs.asdict(quality)}
    _log.info("quality.measured", extra={"fields": fields})
    return QualityResult(quality, tuple(kept), limits.layer_error_max)


@dataclass(frozen=True, slots=True)
class _Comparison:
    mean_kl: float
    top1: float
    perplexity: float
    reference_perplexity: float


def _compare(model: MeasuredModel, ids: Tensor, reference: Tensor, quantized: Tensor) -> _Comparison:
    """Compare the distributions of the next token at every position."""
    kl = same = loss = reference_loss = 0.0
    targets = ids.roll(-1, dims=1).flatten()  # of the last token of a window: meaningless, and not counted
    predicted = torch.arange(ids.numel()) % WINDOW_TOKENS != WINDOW_TOKENS - 1
    reference, quantized = reference.flatten(0, 1), quantized.flatten(0, 1)
    for start in range(0, ids.numel(), LOGIT_ROWS):
        rows = slice(start, start + LOGIT_ROWS)
        expected = torch.log_softmax(model.logits(reference[rows], quantized=False), dim=-1)
        found = torch.log_softmax(model.logits(quantized[rows], quantized=True), dim=-1)
        kl += float((expected.exp() * (expected - found)).sum(dim=-1).clamp(min=0).double().sum())
        same += float((expected.argmax(dim=-1) == found.argmax(dim=-1)).double().sum())
        counted = predicted[rows].to(expected.device)
        target = targets[rows].to(expected.device)[:, None]
        loss -= float(found.gather(1, target)[counted].double().sum())
        reference_loss -= float(expected.gather(1, target)[counted].double().sum())
    tokens, counted_tokens = ids.numel(), int(predicted.sum())
    return _Comparison(
        kl / tokens, same / tokens, _exponential(loss / counted_tokens), _exponential(reference_loss / counted_tokens)
    )


def _run_windows(run: LayerRun, hidden: Tensor) -> Tensor:
    """A layer over all windows, ERROR_WINDOWS at once, in place."""
    for start in range(0, hidden.shape[0], ERROR_WINDOWS):
        windows = slice(start, start + ERROR_WINDOWS)
        hidden[windows] = run(hidden[windows])
    return hidden


def _relative_error(found: Tensor, expected: Tensor, before: Tensor) -> float:
    """Norm of the error of a layer's residual update, relative to the norm of the reference layer's update."""
    added = (expected.double() - before.double()).norm()
    return float((found.double() - expected.double()).norm() / added.clamp(min=1e-30))


def _nan_last(error: float) -> float:
    return error if error == error else float("inf")


def _exponential(mean_loss: float) -> float:
    return float(torch.tensor(mean_loss, dtype=torch.float64).exp())


class _Progress:
    """Logs how far a measurement is, every PROGRESS_S."""

    def __init__(self, name: str, layers: int) -> None:
        self._name, self._layers = name, layers
        self._began = self._logged = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def layer_done(self, index: int) -> None:
        now = time.monotonic()
        if now - self._logged < PROGRESS_S:
            return
        self._logged, done = now, index + 1
        remaining = (now - self._began) / done * (self._layers - done)
        fields = {"model": self._name, "layer": done, "layers": self._layers, "remaining_s": round(remaining)}
        _log.info("quality.measuring", extra={"fields": fields})


def read_results(directory: Path) -> Mapping[str, QualityResult]:
    """The results beside the model's files, by `QualityKey.text`; none if the file is missing or invalid."""
    try:
        return msgspec.json.decode(read_small(directory / RESULTS, RESULTS_BYTES_MAX), type=dict[str, QualityResult])
    except (OSError, ValueError, msgspec.DecodeError, RecursionError):
        return {}


def write_results(directory: Path, results: Mapping[str, QualityResult]) -> None:
    """Best effort: a model directory may be read-only. Then the model is measured again at the next start."""
    path = directory / RESULTS
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    with contextlib.suppress(OSError):
        scratch.write_bytes(msgspec.json.encode(results))
        scratch.replace(path)
    with contextlib.suppress(OSError):
        scratch.unlink(missing_ok=True)


def _text_digest() -> str:
    return hashlib.sha256(HELD_OUT_TEXT.read_bytes()).hexdigest()
