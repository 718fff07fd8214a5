"""The wire types of `/v1/rerank` and `/v1/score`, in vLLM's shape: request bodies and answers.

A score is the cosine of two embeddings. No model that reads both texts together is served.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.api.generation_request import EmbeddingFormat, GenerationRequest, Prompt
from gateway.api.parsing import BodyDecoder, UnsupportedField
from gateway.api.pooling import embeddings_wire
from gateway.api.pooling.embeddings_wire import INPUTS_MAX, EmbeddingUsage, InputText, ModelName, pooled_request
from gateway.api.unknown_fields import UnknownFields
from gateway.errors import InvalidRequest

DOCUMENTS_MAX = INPUTS_MAX - 1  # beside the query


class RerankDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: InputText


class RerankRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Documents by the cosine of their embedding and the query's, the nearest first."""

    model: ModelName
    query: InputText
    documents: Annotated[list[InputText | RerankDocument], Meta(min_length=1, max_length=DOCUMENTS_MAX)]
    top_n: Annotated[int, Meta(ge=0, description="0, the default: all")] | None = None
    return_documents: Annotated[bool, Meta(description="By default true")] | None = None
    service_tier: str | None = None
    user: str | None = None  # in HINTS
    # In UNSUPPORTED_FIELDS.
    max_chunks_per_doc: Any = None
    max_tokens_per_doc: Any = None
    priority: Any = None
    truncate_prompt_tokens: Any = None

    def generation_request(self) -> GenerationRequest:
        documents = [one if isinstance(one, str) else one.text for one in self.documents]
        ranking = EmbeddingFormat(top_n=self.top_n or len(documents), shows_texts=self.return_documents is not False)
        return pooled_request(
            self.model, [self.query, *documents], "documents", ranking, service_tier=self.service_tier, user=self.user
        )


class ScoreRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cosine of the embeddings of two texts, for each pair: two lists of equal length, or one text and a list."""

    model: ModelName
    text_1: InputText | Annotated[list[InputText], Meta(min_length=1, max_length=INPUTS_MAX)]
    text_2: InputText | Annotated[list[InputText], Meta(min_length=1, max_length=INPUTS_MAX)]
    service_tier: str | None = None
    user: str | None = None  # in HINTS
    # In UNSUPPORTED_FIELDS.
    priority: Any = None
    truncate_prompt_tokens: Any = None

    def prompts(self) -> tuple[list[Prompt], int]:
        """The texts, first those of `text_1`, whose number is the second value. Raises InvalidRequest for lists that
        are no pairs, or too long."""
        first = [self.text_1] if isinstance(self.text_1, str) else self.text_1
        second = [self.text_2] if isinstance(self.text_2, str) else self.text_2
        if len(first) not in (1, len(second)):
            raise InvalidRequest(
                f"'text_1' has {len(first)} texts and 'text_2' {len(second)}; send one text as 'text_1', or as many.",
                param="text_2",
            )
        if len(first) + len(second) > INPUTS_MAX:
            message = f"'text_1' and 'text_2' have {len(first) + len(second)} texts; the limit is {INPUTS_MAX}."
            raise InvalidRequest(message, param="text_2")
        return [*first, *second], len(first)

    def generation_request(self) -> GenerationRequest:
        prompts, first = self.prompts()
        scores = EmbeddingFormat(queries=first)
        return pooled_request(self.model, prompts, "text_2", scores, service_tier=self.service_tier, user=self.user)


HINTS = embeddings_wire.HINTS

UNSUPPORTED_FIELDS: dict[str, UnsupportedField] = {
    "max_chunks_per_doc": UnsupportedField("A document is one input"),
    "max_tokens_per_doc": UnsupportedField("Documents are not truncated"),
    "priority": embeddings_wire.UNSUPPORTED_FIELDS["priority"],
    "truncate_prompt_tokens": embeddings_wire.UNSUPPORTED_FIELDS["truncate_prompt_tokens"],
}
UNSUPPORTED_OF_SCORES = {name: UNSUPPORTED_FIELDS[name] for name in ("priority", "truncate_prompt_tokens")}

_rerank_decoder = BodyDecoder(RerankRequest)
_score_decoder = BodyDecoder(ScoreRequest)


def parse_rerank(body: bytes, unknown: UnknownFields) -> RerankRequest:
    """Decode and check a JSON body. Raises InvalidRequest that names the field."""
    return _rerank_decoder.decode_served(body, unknown, UNSUPPORTED_FIELDS)


def parse_score(body: bytes, unknown: UnknownFields) -> ScoreRequest:
    """Decode and check a JSON body. Raises InvalidRequest that names the field."""
    request = _score_decoder.decode_served(body, unknown, UNSUPPORTED_OF_SCORES)
    request.prompts()
    return request


# ---- answers ---------------------------------------------------------------------------------------------------


class RankedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Document `index` of the request. `relevance_score`: a cosine, from -1 to 1."""

    index: int
    document: RerankDocument | UnsetType = UNSET
    relevance_score: float


class RerankAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The nearest document first."""

    id: str
    model: str
    usage: EmbeddingUsage
    results: list[RankedDocument]


class TextScore(msgspec.Struct, frozen=True, kw_only=True):
    """The cosine of pair `index`, from -1 to 1."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreAnswer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[TextScore]
    usage: EmbeddingUsage
