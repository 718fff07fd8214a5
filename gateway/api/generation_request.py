"""What a caller wants, whatever the endpoint it came through: prompts, how many texts of each, and how they are made.

Plain data between the wire modules, which make it, and the generator, which serves it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.protocol.frames import Sampling
from gateway.api.sampling import TextRules


class ChatPrompt(msgspec.Struct, frozen=True):
    """A conversation for the model's chat template: a role and one text each."""

    messages: list[dict[str, str]]
    add_generation_prompt: bool = True  # the template opens the answer
    continue_final: bool = False  # the last message is the beginning of the answer
    template_kwargs: dict[str, Any] = {}  # further arguments of the template: booleans, numbers, texts and null


Prompt = ChatPrompt | str | list[int]


class LargeBody(msgspec.Struct, frozen=True):
    """Prompts of a body too large to be parsed in the event loop; a process of `large_work` reads them from `body`."""

    kind: str  # that of `bodies.read_request`
    body: bytes
    prompts: int  # how many
    ids: bool  # at least one prompt is a list of ids
    words: int = 0  # a lower bound of the longest prompt's
    ignore_unknown: bool = False  # unknown fields of `body` are ignored


class GenerationRequest(msgspec.Struct, frozen=True):
    """`n` texts of each prompt; text j of prompt i is choice i × n + j."""

    model: str
    prompts: list[Prompt] | LargeBody
    param: str  # the field of the prompts, for what is said about them
    n: int
    max_tokens: int | None  # of each text; None: the default of the caller, else of the endpoint, else of the model
    sampling: Sampling
    rules: TextRules
    service_tier: str | None
    stream: bool
    echo: bool = False  # each text begins with its prompt
    max_tokens_default: int | None = None  # of the endpoint
    sticky: str | None = None  # requests that are alike in it are one user's, or one conversation's

    @property
    def ids_in(self) -> str | None:
        """The field in which something is said in ids of one vocabulary, and not in words."""
        prompts = self.prompts
        if prompts.ids if isinstance(prompts, LargeBody) else any(type(one) is list for one in prompts):
            return self.param
        if self.rules.stop_ids:
            return "stop_token_ids"
        return "logit_bias" if self.sampling.logit_bias else None

    @property
    def texts(self) -> int:
        return self._prompts * self.n

    @property
    def tokens_min(self) -> int:
        """It asks for no fewer tokens, whichever model is to serve it."""
        return self._prompts * (1 + self.n * (self.max_tokens or 1))

    @property
    def _prompts(self) -> int:
        return self.prompts.prompts if isinstance(self.prompts, LargeBody) else len(self.prompts)
