"""The base models that are served: their limits, the labels of their cached pages, and their numbers of requests.

It does not know where weights are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from engine.memory.prefix_cache import PrefixCache
from engine.protocol.frames import ModelInfo
from engine.protocol.page_names import Chain
from engine.scheduler.entry import Entry
from engine.step import Sequence


@dataclass(slots=True, frozen=True)
class ModelLimits:
    """The scheduler's data of a model. `digest` names its content in the prefix cache; "": its name is used instead."""

    context_tokens: int
    tokens_per_page: int
    digest: str = ""
    vocab_size: int | None = None  # None: the ids of prompts are not checked
    pinned: bool = False  # its weights are never evicted
    kv_identity: str = ""  # dtype, layout and kernels of its KV

    @classmethod
    def of(cls, info: ModelInfo) -> ModelLimits:
        """Not pinned: the scheduler decides."""
        return cls(
            info.context_tokens, info.tokens_per_page, info.digest, info.vocab_size, kv_identity=info.kv_identity
        )


class ModelTable:
    def __init__(self, tiers: int, prefix: PrefixCache) -> None:
        self.limits: dict[str, ModelLimits] = {}
        self.retired: set[str] = set()  # models that take no further requests
        self.live: dict[str, list[int]] = {}  # model → requests by tier
        self.labels: list[str] = []  # label → model
        self._tiers = tiers
        self._prefix = prefix
        self._label: dict[str, int] = {}
        self._shares: dict[str, Counter[str]] = {}  # model → share → requests

    def add_limits(self, model: str, limits: ModelLimits) -> None:
        assert model not in self.limits, f"model {model} is served already"
        self.limits[model] = limits
        self.live[model] = [0] * self._tiers
        self._shares[model] = Counter()
        used = set(self._label.values())
        free = (n for n in range(len(self.labels)) if n not in used and not self._prefix.labelled(n))
        label = self._label[model] = next(free, len(self.labels))
        self.labels[label:] = [model, *self.labels[label + 1 :]]

    def remove_model(self, model: str) -> None:
        """The model is not in use. Its label is reused when no page carries it."""
        assert not any(self.live[model])
        del self.limits[model], self.live[model], self._shares[model]
        self.retired.discard(model)
        self._prefix.forget_label(self._label.pop(model))

    def chain(self, sequence: Sequence) -> Chain:
        limits, label = self.limits[sequence.model], self._label[sequence.model]
        root = limits.digest or sequence.model
        return Chain(
            root, sequence.adapter, sequence.namespace, limits.tokens_per_page, label, kv_identity=limits.kv_identity
        )

    def note_arrival(self, entry: Entry) -> None:
        self.live[entry.sequence.model][entry.tier] += 1
        self._shares[entry.sequence.model][entry.sequence.share] += 1

    def note_ending(self, entry: Entry) -> None:
        sequence = entry.sequence
        self.live[sequence.model][entry.tier] -= 1
        shares = self._shares[sequence.model]
        shares[sequence.share] -= 1
        if not shares[sequence.share]:
            del shares[sequence.share]

    def shares(self, model: str) -> int:
        """Distinct shares that have requests of the model."""
        return len(self._shares.get(model, ()))
