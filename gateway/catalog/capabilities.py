"""The capabilities of a base model beside continuing text, as GET /v1/models shows them.

A client may rely on a capability that is true: a request that uses it is not refused. It must never know a tenant.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import msgspec

from engine.protocol.frames import Pooling

if TYPE_CHECKING:
    from gateway.catalog.served_models import ServedModel


class ModelCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """`tools`: calls of tools, in chat completions and messages. `reasoning`: reasoning apart from the answer.
    `structured_outputs`: answers of a JSON Schema. `embeddings`: vectors, and scores, which are cosines of vectors."""

    tools: bool = False
    reasoning: bool = False
    structured_outputs: bool = False
    embeddings: bool = False


class EmbeddingProperties(msgspec.Struct, frozen=True, kw_only=True):
    """`pooling`: whether a vector is the last token's hidden state, or the mean over all tokens. `dimensions`: its
    numbers. `scores`: how /v1/rerank and /v1/score compare two texts: by the cosine of their vectors."""

    pooling: Pooling
    dimensions: int
    scores: Literal["cosine"] = "cosine"


def capabilities(model: ServedModel) -> ModelCapabilities:
    """The capabilities of a base model, which its adapters share."""
    dialect = model.dialect
    return ModelCapabilities(
        tools=dialect.format is not None,
        reasoning=dialect.reasoning is not None,
        structured_outputs=True,
        embeddings=model.pooling is not None,
    )


def common_capabilities(found: Iterable[ModelCapabilities]) -> ModelCapabilities:
    """The capabilities that all models in `found` have, as for an alias, which any of its models may serve; without
    models, no capability."""
    models = list(found)
    names = ModelCapabilities.__struct_fields__
    return ModelCapabilities(**{name: bool(models) and all(getattr(one, name) for one in models) for name in names})
