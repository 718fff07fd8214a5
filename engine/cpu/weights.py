"""The weights of a CPU's models: resident in the layout that the decoder multiplies with, or only in their files.

A separate thread loads and frees them while steps run. It must never know a request; the scheduler decides.
"""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from engine.compute.quality import QualityKey, QualityResult, gate_model
from engine.compute.shared import kv_layout
from engine.contents.model_digests import model_digest
from engine.cpu.decoder import Decoder, PagedKv
from engine.cpu.quality import CpuMeasuredModel
from engine.models.checkpoints import load_quantization
from engine.models.compatibility import check_dtype
from engine.models.config import DecoderConfig, ModelRefused, check_vocabulary, load_config
from engine.models.cpu_loading import LoadStopped, check_weights, cpu_bytes, load_weights, packs
from engine.models.dummy import dummy_digest, dummy_weights
from engine.models.files import stamps, weight_files
from engine.models.linear import multiplies_int8
from engine.models.matrix_readers import StackedMatrix
from engine.models.quantized import format_name, formats_on_loading, quantized_digest
from engine.protocol.config import ModelConfig, QualityLimits
from engine.step import WeightsMove, WeightsTable
from kernels.kv_layout import KvLayout

# Speed of reading files, assumed until one was measured.
FIRST_BYTES_PER_S = 400e6
DEFAULT_LIMITS = QualityLimits()
# Loads whose measured speed predicts the next ones.
LOADS_KEPT = 8

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CpuModel:
    """A checked model."""

    config: ModelConfig
    shape: DecoderConfig
    dtype: torch.dtype
    files: tuple[tuple[str, int, int], ...]  # name, size, modification time when checked
    bytes: int
    weights_format: str  # for people: `float32`, `int8`, `int4 g128 (awq)`
    quality: QualityResult | None = None  # None: it is not quantised, or has dummy weights

    @classmethod
    def from_config(cls, config: ModelConfig, dtype: torch.dtype, limits: QualityLimits = DEFAULT_LIMITS) -> CpuModel:
        """Check everything but the numbers; a quantised model without a known result is measured. `dtype` is the
        engine's. Raises ValueError with the reason, OSError."""
        check_dtype(config, str(dtype).removeprefix("torch."))
        directory = Path(config.path)
        shape = load_config(directory, quantized=True)
        check_vocabulary(directory, shape.vocab)
        if config.dummy:
            plain = str(dtype).removeprefix("torch.")
            name = plain if config.quantize == "none" else config.quantize
            formats = formats_on_loading(shape, config.quantize)
            size = cpu_bytes(shape, dtype, packed=False, formats=formats, quantize=config.quantize)
            return cls(config, shape, dtype, (), size, name)
        files = weight_files(directory)
        seen = stamps(files)
        matrices = check_weights(directory, shape, config.quantize)
        name = format_name(matrices, load_quantization(directory), str(dtype).removeprefix("torch."))
        found = cls(config, shape, dtype, seen, _weights_bytes(config, shape, dtype, files, matrices), name)
        if not matrices and not found.kv.is_fp8:
            return found
        result = found.measured(limits)
        if result.kept:
            matrices = check_weights(directory, shape, config.quantize, result.kept)
        size = _weights_bytes(config, shape, dtype, files, matrices)
        return dataclasses.replace(found, bytes=size, quality=result)

    def measured(self, limits: QualityLimits) -> QualityResult:
        """The result of the quality gate. Raises ModelRefused, OSError."""
        config, directory = self.config, Path(self.config.path)
        device = "cpu int8" if multiplies_int8() else "cpu"
        digest = config.digest or model_digest(directory)
        key = QualityKey(digest, self.weights_format, self.kv.dtype, str(self.dtype), device)
        return gate_model(directory, key, limits, lambda: CpuMeasuredModel(config, self.shape, self.dtype))

    @property
    def is_quantised(self) -> bool:
        """Whether some of its matrices are."""
        return self.weights_format != str(self.dtype).removeprefix("torch.")

    @property
    def digest(self) -> str:
        """The digest of the served content."""
        config = self.config
        own = config.digest or (dummy_digest(config.name) if config.dummy else model_digest(Path(config.path)))
        return quantized_digest(own, config.quantize, self._kept)

    @property
    def _kept(self) -> tuple[int, ...]:
        return self.quality.kept if self.quality else ()

    def build_decoder(self, arena: Tensor, stopped: Callable[[], bool] = lambda: False) -> Decoder:
        """Read the weights. K and V are in `arena` [pages, page_bytes] uint8. Raises ModelRefused, OSError,
        LoadStopped."""
        if self.config.dummy:
            weights = dummy_weights(self.shape, self.dtype, self.config.quantize)
        else:
            self._check_unchanged()
            path, quantize = Path(self.config.path), self.config.quantize
            weights = load_weights(path, self.shape, self.dtype, stopped, quantize=quantize, kept=self._kept)
            self._check_unchanged()  # files may have been replaced during the read
        return Decoder(self.shape, weights, PagedKv.of(arena, self.kv))

    def _check_unchanged(self) -> None:
        directory = Path(self.config.path)
        if stamps(weight_files(directory)) != self.files:
            raise ModelRefused(f"{directory}: its files are not those that were checked")

    @property
    def kv(self) -> KvLayout:
        return kv_layout(self.config, self.shape, self.dtype)

    @property
    def read_bytes(self) -> int:
        return sum(size for _, size, _ in self.files) or self.bytes


def _weights_bytes(
    config: ModelConfig,
    shape: DecoderConfig,
    dtype: torch.dtype,
    files: list[Path],
    matrices: Mapping[str, StackedMatrix],
) -> int:
    formats = {name: matrix.format for name, matrix in matrices.items()}
    return cpu_bytes(shape, dtype, packed=packs(files), formats=formats, quantize=config.quantize)


@dataclass(slots=True, eq=False)
class _Job:
    """A load or a release of a model, for the weights thread."""

    model: CpuModel
    decoder: Decoder | None = None
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    error: str = ""
    is_release: bool = False  # set at the start, or when a load is cancelled


class CpuWeights(WeightsTable):
    """Implements engine.step.WeightsTable for the loop's thread. `register_model` may run on another, and `load_now`
    runs before requests are served."""

    def __init__(self, arena: Tensor, bytes_max: int | None) -> None:
        """`arena`: as in `CpuModel.build_decoder`."""
        self.bytes_max = bytes_max
        self._arena = arena
        self._known: dict[str, CpuModel] = {}
        self._decoders: dict[str, Decoder] = {}
        self._loading: dict[str, _Job] = {}
        self._releasing: set[_Job] = set()  # releases: their bytes are not free yet
        self._loads: deque[tuple[int, float]] = deque(maxlen=LOADS_KEPT)  # bytes read, seconds
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._loaded: list[_Job] = []
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._jobs.put, None)

    # ---- for the runner

    def register_model(self, model: CpuModel) -> None:
        self._known[model.config.name] = model

    def load_now(self, name: str) -> None:
        """Load in this thread, before requests are served. Raises ModelRefused, OSError."""
        model, began = self._known[name], time.monotonic()
        self._decoders[name] = model.build_decoder(self._arena)
        self._loads.append((model.read_bytes, time.monotonic() - began))
        _trim_heap()

    def forget_weights(self, name: str) -> None:
        self.evict_weights(name)
        del self._known[name]

    def decoder(self, name: str) -> Decoder:
        return self._decoders[name]

    # ---- the table

    def weights_bytes(self, model: str) -> int:
        return self._known[model].bytes

    def free_bytes(self) -> int:
        if self.bytes_max is None:
            return sys.maxsize
        self._take_done()
        held = sum(self._known[name].bytes for name in (*self._decoders, *self._loading))
        return self.bytes_max - held - sum(job.model.bytes for job in self._releasing)

    def weights_location(self, model: str) -> Literal["device", "host", "disk"]:
        return "device" if model in self._decoders else "disk"

    def load_seconds(self, model: str) -> float:
        if model in self._decoders:
            return 0.0
        before, now = 0.0, time.monotonic()
        for name, job in self._loading.items():  # one after another
            began = max(job.began, now - before)
            before += max(0.0, self._load_s(job.model) - (now - began))
            if name == model:
                return before
        return before + self._load_s(self._known[model])

    def prefetch_weights(self, model: str) -> None:
        """Does nothing: the device's memory is the host's."""

    def begin_load(self, model: str) -> None:
        assert model not in self._decoders, f"{model} is in memory"
        assert model not in self._loading, f"{model} is on its way"
        assert self.free_bytes() >= self._known[model].bytes, "there is no room"
        self._loading[model] = self._queue_job(_Job(self._known[model]))

    def evict_weights(self, model: str) -> None:
        """The thread frees the memory, which takes longer than a step may wait."""
        job = self._loading.pop(model, None)
        if job is None and model in self._decoders:
            job = self._queue_job(_Job(self._known[model], self._decoders.pop(model), is_release=True))
        if job is not None:
            job.is_release = True
            self._releasing.add(job)

    def poll_weights(self) -> Iterable[WeightsMove]:
        self._take_done()
        loaded, self._loaded = self._loaded, []
        moves = []
        for job in loaded:
            name = job.model.config.name
            if self._loading.get(name) is not job:  # evicted since its load completed
                self._queue_job(job)
                continue
            del self._loading[name]
            if job.decoder is not None:
                self._decoders[name] = job.decoder
                self._loads.append((job.model.read_bytes, job.seconds))
            moves.append(WeightsMove(name, "disk", job.seconds, job.error))
        return moves

    @property
    def is_reclaiming(self) -> bool:
        return bool(self._releasing)

    def _load_s(self, model: CpuModel) -> float:
        read, seconds = (sum(column) for column in zip(*self._loads, strict=True)) if self._loads else (0, 0.0)
        rate = read / seconds if read and seconds else FIRST_BYTES_PER_S
        return model.read_bytes / rate

    def _take_done(self) -> None:
        while not self._done.empty():
            job = self._done.get()
            if job not in self._releasing:
                self._loaded.append(job)
            elif job.decoder is None:
                self._releasing.discard(job)
            else:  # loaded after its load was cancelled
                self._queue_job(job)

    def _queue_job(self, job: _Job) -> _Job:
        self._jobs.put(job)
        if self._thread is None:
            own = (self._arena, self._jobs, self._done)
            self._thread = threading.Thread(target=_serve, args=own, name="weights", daemon=True)
            self._thread.start()
        return job

    def check_integrity(self) -> None:
        """AssertionError names the mismatch."""
        assert self._decoders.keys() | self._loading.keys() <= self._known.keys()
        assert not self._decoders.keys() & self._loading.keys()
        assert self.free_bytes() >= 0, "more weights are in memory than weights_bytes"


def _serve(arena: Tensor, jobs: queue.SimpleQueue[_Job | None], done: queue.SimpleQueue[_Job]) -> None:
    """The weights thread."""
    while (job := jobs.get()) is not None:
        if job.is_release:
            job.decoder = None
            _trim_heap()
        else:
            _load(job, arena)
        done.put(job)
        del job


def _load(job: _Job, arena: Tensor) -> None:
    job.began = time.monotonic()
    try:
        job.decoder = job.model.build_decoder(arena, lambda: job.is_release)
    except LoadStopped:
        pass
    except (ModelRefused, OSError) as error:
        job.error = str(error) or type(error).__name__
    except Exception as error:  # noqa: BLE001 - the thread's edge: one model fails alone, and loudly
        _log.exception("weights.load_failed", extra={"fields": {"model": job.model.config.name}})
        job.error = f"{type(error).__name__}: {error}"
    job.seconds = time.monotonic() - job.began
    _trim_heap()


def _trim_heap() -> None:
    """Return freed memory to the system: glibc would keep most of it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
