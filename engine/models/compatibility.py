"""Which models an engine can serve beside each other, and which come first: the same for every runner. No torch."""

from __future__ import annotations

from collections.abc import Iterable

from engine.protocol.config import ModelConfig
from engine.protocol.frames import ModelInfo


def check_weights_fit(size: int, bytes_max: int | None) -> None:
    """Raises ValueError for weights of `size` bytes that could never be there."""
    if bytes_max is not None and size > bytes_max:
        raise ValueError(f"its weights take {size} bytes; weights_bytes is {bytes_max}")


def check_dtype(model: ModelConfig, dtype: str) -> None:
    """Raises ValueError for a model that is not of the engine's, which is that of the first in its configuration."""
    if model.dtype != dtype:
        raise ValueError(f"dtype: the models of one engine share one, here {dtype}")


def loading_order(models: Iterable[ModelInfo]) -> list[ModelInfo]:
    """At the start: the pinned ones, then those before others."""
    return sorted(models, key=lambda model: not model.pinned)
