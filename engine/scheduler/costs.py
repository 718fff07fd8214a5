"""The terms of a step's duration. The scheduler fits them while running; the simulator has them as settings.

Plain numbers: no clock, no tiers.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.step import Step


@dataclass(slots=True, frozen=True)
class StepLoad:
    """The contents of a step on which its duration depends."""

    prefill_tokens: int  # of chunks of more than one token
    sequences: int  # chunks of any kind: each reads its KV and may sample an id
    kv_tokens: int  # that the chunks attend to, their own among them
    adapters: int  # distinct adapters: each is read once


@dataclass(slots=True, frozen=True)
class Costs:
    """seconds ≈ base_s + Σ (each term of a StepLoad · its cost)."""

    base_s: float = 0.0
    prefill_token_s: float = 0.0
    sequence_s: float = 0.0
    kv_token_s: float = 0.0
    adapter_s: float = 0.0

    def step_seconds(self, load: StepLoad) -> float:
        return (
            self.base_s
            + self.prefill_token_s * load.prefill_tokens
            + self.sequence_s * load.sequences
            + self.kv_token_s * load.kv_tokens
            + self.adapter_s * load.adapters
        )


def load_of(step: Step) -> StepLoad:
    prefill = kv = 0
    adapters = set()
    for chunk in step.chunks:
        if chunk.count > 1:
            prefill += chunk.count
        kv += chunk.start + chunk.count
        adapters.add(chunk.sequence.adapter)
    return StepLoad(prefill, len(step.chunks), kv, len(adapters - {None}))
