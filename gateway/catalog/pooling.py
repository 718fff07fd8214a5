"""Which models make embeddings, and the limits of a request for them."""

from __future__ import annotations

from engine.protocol.frames import ModelInfo, Pooling
from gateway import errors
from gateway.api.generation_request import EmbeddingFormat, GenerationRequest
from gateway.catalog.capabilities import EmbeddingProperties
from gateway.catalog.served_models import ServedModel


def check_pooling(model: ServedModel, info: ModelInfo, embedding: EmbeddingFormat) -> Pooling:
    """How the model pools. Raises InvalidRequest if it makes no embeddings, or shorter ones than requested."""
    if model.pooling is None:
        message = f"The model {model.name!r} makes no embeddings. GET /v1/models lists the models that do."
        raise errors.InvalidRequest(message, param="model")
    if not info.vector_width:
        raise errors.InvalidRequest("The engine of this model makes no embeddings.", param="model")
    if (embedding.dimensions or 0) > info.vector_width:
        message = f"'dimensions' is {embedding.dimensions}; the embeddings of this model have {info.vector_width}."
        raise errors.InvalidRequest(message, param="dimensions")
    return model.pooling


def embedding_properties(model: ServedModel | None, info: ModelInfo | None) -> EmbeddingProperties | None:
    """What the model's card says of its embeddings; None: it makes none."""
    if model is None or info is None or model.pooling is None or not info.vector_width:
        return None
    return EmbeddingProperties(pooling=model.pooling, dimensions=info.vector_width)


def check_embedded_tokens(asked: GenerationRequest, tokens: int, most: int) -> None:
    """Raises InvalidRequest for more tokens than one request may have in all its inputs."""
    if tokens > most:
        message = f"{asked.param!r} has {tokens} tokens in all; the limit is {most} a request. Send several requests."
        raise errors.InvalidRequest(message, param=asked.param)
