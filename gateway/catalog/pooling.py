"""Which models make embeddings, and the limits of a request for them."""

from __future__ import annotations

from collections.abc import Sequence

from engine.protocol.frames import ModelInfo, Pooling
from gateway import errors
from gateway.access.write_replays import HEADER
from gateway.api.generation_request import EmbeddingFormat, GenerationRequest
from gateway.api.pooling.embeddings_wire import FLOAT32_BYTES, FRAME_BYTES_MAX, NUMBER_BYTES_MAX, VECTOR_BYTES_MAX
from gateway.catalog.capabilities import EmbeddingProperties
from gateway.catalog.registry import ModelTarget
from gateway.catalog.served_models import ServedModel

# A line of a batch may make `gateway.embedding_numbers_max` ÷ LINE_PART numbers: its output is encrypted and stored in
# one piece.
LINE_PART = 8
OLD_ENGINES_RETRY_S = 30.0


def check_pooling(model: ServedModel, info: ModelInfo, embedding: EmbeddingFormat) -> Pooling:
    """How the model pools. Raises InvalidRequest if it makes no embeddings, or shorter ones than requested, and
    EngineDown if all its engines are of a protocol version without embeddings."""
    if model.pooling is None:
        message = f"The model {model.name!r} makes no embeddings. GET /v1/models lists the models that do."
        raise errors.InvalidRequest(message, param="model")
    if not info.vector_width:
        message = f"The engines that serve {model.name!r} now are of a version without embeddings. Try again later."
        raise errors.EngineDown(message, retry_after_s=OLD_ENGINES_RETRY_S)
    if (embedding.dimensions or 0) > info.vector_width:
        message = f"'dimensions' is {embedding.dimensions}; the embeddings of this model have {info.vector_width}."
        raise errors.InvalidRequest(message, param="dimensions")
    return model.pooling


def embedding_properties(model: ServedModel | None, info: ModelInfo | None) -> EmbeddingProperties | None:
    """The embeddings in the model's card; None: the model makes no embeddings."""
    if model is None or info is None or model.pooling is None or not info.vector_width:
        return None
    return EmbeddingProperties(pooling=model.pooling, dimensions=info.vector_width)


def check_embedded_tokens(asked: GenerationRequest, tokens: int, most: int) -> None:
    """Raises InvalidRequest for more tokens than one request may have in all its inputs."""
    if tokens > most:
        message = f"{asked.param!r} has {tokens} tokens in all; the limit is {most} a request. Send several requests."
        raise errors.InvalidRequest(message, param=asked.param)


def shown_dimensions(embedding: EmbeddingFormat | None, info: ModelInfo) -> int:
    """Numbers of each vector that the answer shows; 0: it shows no vectors."""
    if embedding is None or not embedding.shows_vectors:
        return 0
    return embedding.dimensions or info.vector_width


def check_shown_numbers(asked: GenerationRequest, dimensions: int, most: int, where: str) -> None:
    """Raises InvalidRequest for more numbers than the answer of `where` may have. `dimensions`: of each vector."""
    if (numbers := asked.texts * dimensions) > most:
        raise errors.InvalidRequest(
            f"The embeddings of {asked.param!r} have {numbers} numbers (inputs times dimensions: {asked.texts} × "
            f"{dimensions}); the limit is {most} {where}. Send fewer inputs, or a smaller 'dimensions'.",
            param=asked.param,
        )


def check_replayable(asked: GenerationRequest, dimensions: int, most_bytes: int) -> None:
    """Raises InvalidRequest for a request with an Idempotency-Key whose answer may be too long to be stored."""
    assert asked.embedding is not None
    shown = -(-dimensions * FLOAT32_BYTES // 3) * 4 if asked.embedding.base64 else dimensions * NUMBER_BYTES_MAX
    size = FRAME_BYTES_MAX + asked.texts * (shown + VECTOR_BYTES_MAX)
    if size > most_bytes:
        raise errors.InvalidRequest(
            f"With the header {HEADER!r} the answer is stored, and has at most {most_bytes} bytes. {asked.texts} "
            f"embeddings of {dimensions} dimensions may have {size} bytes. Send fewer inputs, 'encoding_format' "
            f"'base64' or a smaller 'dimensions', or leave out {HEADER!r}.",
            param=asked.param,
        )


def check_one_model(name: str, among: Sequence[ModelTarget]) -> None:
    """Raises InvalidRequest for a name that stands for several models: `among`."""
    if len(among) > 1:
        raise errors.InvalidRequest(
            f"{name!r} stands for several models, whose embeddings cannot be compared. Name one of them as 'model': "
            f"{', '.join(one.name for one in among)}.",
            param="model",
        )
