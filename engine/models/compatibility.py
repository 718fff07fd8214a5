"""Which of the configured models an engine can serve together, and their loading order: shared by all runners. No
torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from engine.models.config import ModelRefused
from engine.protocol.config import ModelConfig
from engine.protocol.frames import ModelInfo


def check_weights_fit(size: int, bytes_max: int | None) -> None:
    """Raises ValueError for weights of `size` bytes that are larger than the device memory for weights."""
    if bytes_max is not None and size > bytes_max:
        raise ValueError(f"its weights take {size} bytes; weights_bytes is {bytes_max}")


def check_dtype(model: ModelConfig, dtype: str) -> None:
    """Raises ValueError if the model's dtype is not `dtype`, which the first configured model sets for the engine."""
    if model.dtype != dtype:
        raise ValueError(f"dtype: the models of one engine share one, here {dtype}")


def loading_order(models: Iterable[ModelInfo]) -> list[ModelInfo]:
    """At the engine's start: pinned models first, otherwise in the given order."""
    return sorted(models, key=lambda model: not model.pinned)


@contextmanager
def note_refusal(name: str, refused: dict[str, str]) -> Iterator[None]:
    """Note the ValueError or OSError of the block in `refused`, so that the engine serves its other models."""
    try:
        yield
    except (ValueError, OSError) as error:
        refused[name] = str(error) or type(error).__name__


def check_any_served(models: Iterable[ModelConfig], served: Collection[str], refused: Mapping[str, str]) -> None:
    """Raises ModelRefused, with the reason of each of the configured `models`, if no model can be served."""
    if not served:
        raise ModelRefused("; ".join(f"{model.name}: {refused[model.name]}" for model in models))
