"""POST /v1/embeddings, /v1/rerank and /v1/score: vectors of texts, and scores from their cosines."""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from litestar.types import ASGIApp

from gateway.answers.embeddings_shape import EmbeddingsShape, RerankShape, ScoreShape
from gateway.routes.answering import Endpoint, answer
from gateway.services import Services


@post(["/v1/embeddings", "/t/{tenant:str}/v1/embeddings"], status_code=200, opt={"route": "/v1/embeddings"})
async def embeddings(request: Request[Any, Any, Any], services: Services) -> ASGIApp:
    """Make a vector of each input, by pooling the model's last hidden states."""
    return await answer(services, request, EMBEDDINGS)


@post(["/v1/rerank", "/t/{tenant:str}/v1/rerank"], status_code=200, opt={"route": "/v1/rerank"})
async def rerank(request: Request[Any, Any, Any], services: Services) -> ASGIApp:
    """Order documents by the cosine of their embedding and the query's."""
    return await answer(services, request, RERANK)


@post(["/v1/score", "/t/{tenant:str}/v1/score"], status_code=200, opt={"route": "/v1/score"})
async def score(request: Request[Any, Any, Any], services: Services) -> ASGIApp:
    """The cosine of the embeddings of two texts, for each pair."""
    return await answer(services, request, SCORE)


EMBEDDINGS = Endpoint("embeddings", EmbeddingsShape)
RERANK = Endpoint("rerank", RerankShape)
SCORE = Endpoint("score", ScoreShape)
