"""The ids of a step as frames, one for each gateway, with the parts and the pooled vectors of prompts; and the
latencies of ids."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.loop.metrics import EngineMetrics
from engine.protocol.frames import PromptPart, Tokens, Vector
from engine.protocol.outbox import Outbox
from engine.step import Sequence, Step, StepOutcome


class TokenFrames:
    """Used only by the loop's thread."""

    def __init__(self, outbox: Outbox, metrics: EngineMetrics, clock: Callable[[], float]) -> None:
        self._outbox, self._metrics, self._clock = outbox, metrics, clock
        self._last_token_at: dict[Sequence, float] = {}

    def forget_sequence(self, sequence: Sequence) -> None:
        """Drop the state of a sequence that has ended."""
        self._last_token_at.pop(sequence, None)

    def publish(self, step: Step, outcome: StepOutcome) -> None:
        """Send the ids of a step, and observe their latencies. The first id of a resumed request is in neither
        histogram: its text's first id and the id before it were another engine's."""
        now = self._clock()
        metrics, last = self._metrics, self._last_token_at
        frames: dict[int, Tokens] = {}  # by gateway
        cached: dict[int, dict[int, int]] = {}  # by gateway and handle
        for sequence, token in outcome.tokens:
            frame = frames.get(sequence.gateway)
            if frame is None:
                frame = frames[sequence.gateway] = Tokens(step.number, [], [])
            frame.handles.append(sequence.handle)
            frame.ids.append(token)
            pair = (step.model, sequence.tier)
            metrics.generation_tokens[pair] += 1
            before = last.get(sequence)
            if before is None:
                if not sequence.resumed:
                    metrics.first_token[pair].observe(now - sequence.arrived_at)
                if sequence.cached_tokens:
                    cached.setdefault(sequence.gateway, {})[sequence.handle] = sequence.cached_tokens
            else:
                metrics.inter_token[pair].observe(now - before)
            last[sequence] = now
        for gateway in {sequence.gateway for sequence in outcome.logprobs}:
            own = [outcome.logprobs.get(sequence) for sequence, _ in outcome.tokens if sequence.gateway == gateway]
            frames[gateway] = Tokens(step.number, frames[gateway].handles, frames[gateway].ids, own)
        for gateway, found in cached.items():
            frames[gateway] = msgspec.structs.replace(frames[gateway], cached=found)
        for sequence, part in outcome.prompts:
            self._outbox.add_frame(sequence.gateway, PromptPart(sequence.handle, part))
        for sequence, values in outcome.vectors:
            self._outbox.add_frame(sequence.gateway, Vector(sequence.handle, values))
        for gateway, frame in frames.items():
            self._outbox.add_frame(gateway, frame)
