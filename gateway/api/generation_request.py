"""A request for generation, independent of its endpoint: prompts, the number of texts of each, and sampling.

Plain data: the wire modules build it, the generator serves it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from billing.accounts.prices import Operation
from engine.protocol.frames import Sampling
from gateway.api.sampling import TextRules
from gateway.tools.definitions import ReasoningRequest, Tooling, ToolSpec


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat"):
    """A conversation for the model's chat template: each message has a role, one text, and the further keys of
    `tools.rendering.Message`. `tools`: the tools that the prompt describes to the model."""

    messages: list[dict[str, Any]]
    add_generation_prompt: bool = True  # the template adds the beginning of an assistant's turn
    continue_final: bool = False  # the answer continues the last message
    template_kwargs: dict[str, Any] = {}  # further arguments of the template: booleans, numbers, texts and null
    tools: list[ToolSpec] = []
    reasoning: ReasoningRequest = ReasoningRequest()


class RawText(msgspec.Struct, frozen=True, tag="raw"):
    """A text to tokenize. Unlike the text of a completion it may be empty, and have no BOS."""

    text: str
    special_tokens: bool = True  # the ids begin with the model's BOS where it has one


Prompt = ChatPrompt | RawText | str | list[int]


class LargeBody(msgspec.Struct, frozen=True):
    """The prompts of a body too large for the event loop: a process of `large_work` parses `body`."""

    kind: str  # as for `bodies.read_request`
    body: bytes
    prompts: int  # number of prompts
    ids: bool  # at least one prompt is a list of ids
    words: int = 0  # a lower bound of the words in the longest prompt
    ignore_unknown: bool = False  # unknown fields of `body` are ignored


class EmbeddingFormat(msgspec.Struct, frozen=True):
    """The form of the prompts' vectors in an answer. `dimensions`: the first numbers of each, normalised again; None:
    all. `queries`: of the prompts, the first ones, which the others are compared with. `top_n`: comparisons shown.
    `shows_texts`: beside each comparison its text. `shows_vectors`: the answer has the vectors; False: comparisons of
    them."""

    dimensions: int | None = None
    base64: bool = False
    queries: int = 1
    top_n: int = 0
    shows_texts: bool = False
    shows_vectors: bool = False


class GenerationRequest(msgspec.Struct, frozen=True):
    """`n` texts of each prompt; text j of prompt i is choice i × n + j."""

    model: str
    prompts: list[Prompt] | LargeBody
    param: str  # the field that has the prompts, named in refusals
    n: int
    max_tokens: (
        int | None
    )  # of each text; 0: the prompt alone; None: the caller's default, else the endpoint's, else the model's
    sampling: Sampling
    rules: TextRules
    service_tier: str | None
    stream: bool
    echo: bool = False  # each text begins with its prompt
    prompt_logprobs: int | None = None  # likeliest ids beside each prompt token, in vLLM's format; None: not requested
    max_tokens_default: int | None = None  # the endpoint's
    tooling: Tooling | None = None  # None: the endpoint answers with text alone
    sticky: str | None = None  # an alias serves requests of one value by one model
    end_user: str | None = None  # the name of the caller's end user; None: not named
    continues: str | None = None  # the id of the stored response before this one
    conversation_id: str | None = None  # of the stored conversation that the response is added to
    has_sealed: bool = False  # a message has encrypted reasoning
    seals_reasoning: bool = False  # the answer has its reasoning encrypted as well
    store: bool = False  # the body says that the answer is stored
    background: bool = False  # generated without a waiting client; the answer is stored
    is_line: bool = False  # of a batch: its work must not delay the first tokens of other requests
    embedding: EmbeddingFormat | None = None  # set if a vector of each prompt is made, and no text
    repeated: bytes = b""  # members of the answer's JSON object that repeat the request, without braces

    @property
    def ids_in(self) -> str | None:
        """The field that has token ids and so fixes the vocabulary; None: the request has text alone."""
        prompts = self.prompts
        if prompts.ids if isinstance(prompts, LargeBody) else any(type(prompt) is list for prompt in prompts):
            return self.param
        if self.rules.stop_ids:
            return "stop_token_ids"
        return "logit_bias" if self.sampling.logit_bias else None

    @property
    def operation(self) -> Operation:
        """The operation under which the ledger books the request."""
        return "text" if self.embedding is None else "embedding"

    @property
    def is_completion(self) -> bool:
        """The answer continues a text; it is no turn of a chat."""
        return self.tooling is None or self.tooling.text_only

    def without_body(self) -> GenerationRequest:
        """The same without the bytes of a LargeBody: its prompts are counted, and no other model will count them."""
        if not isinstance(self.prompts, LargeBody):
            return self
        return msgspec.structs.replace(self, prompts=msgspec.structs.replace(self.prompts, body=b""))

    @property
    def texts(self) -> int:
        """The number of texts: prompts × n."""
        return self._prompts * self.n

    @property
    def answer_tokens_min(self) -> int:
        """Tokens that each text needs beside its prompt."""
        return 1 if self.max_tokens is None else self.max_tokens

    @property
    def tokens_min(self) -> int:
        """A lower bound of the request's tokens (prompts and answers) for every model: a prompt has at least one."""
        return self._prompts * (1 + self.n * self.answer_tokens_min)

    @property
    def _prompts(self) -> int:
        return self.prompts.prompts if isinstance(self.prompts, LargeBody) else len(self.prompts)
