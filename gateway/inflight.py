"""One request after it was admitted: all that its owner and its writer need to know of it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from engine.protocol import Sampling
from engine.tokenizer import Tokenizer
from gateway.answer import Answer
from gateway.callers import Caller
from gateway.limiter import Admission
from gateway.log import RequestLine
from gateway.prompts import Counted
from gateway.registry import Target
from gateway.replays import First
from gateway.sampling import TextRules


@dataclass(slots=True, frozen=True)
class ServedModel:
    """A base model as the gateway knows it."""

    name: str
    tokenizer: Tokenizer
    default_max_tokens: int
    created: int  # Unix seconds


class InFlight(msgspec.Struct, frozen=True):
    """One request that was admitted under the limits, and the answer that its owner writes."""

    request_id: str
    caller: Caller
    target: Target
    model: ServedModel
    fingerprint: str
    tier: str
    service_tier: str
    prompts: list[Counted]
    n: int  # texts of each prompt
    max_tokens: int  # of each text, as asked; the hold may grant less
    sampling: Sampling
    rules: TextRules
    stop_ids: list[int]
    stream: bool
    echo: bool
    admission: Admission
    line: RequestLine
    answer: Answer
    first: First | None  # of the calls with its Idempotency-Key

    @property
    def texts(self) -> int:
        return len(self.prompts) * self.n

    @property
    def prompt_tokens(self) -> int:
        """Each prompt once, however many texts it gets."""
        return sum([len(prompt.ids) for prompt in self.prompts])
