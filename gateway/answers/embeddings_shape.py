"""The answers of `/v1/embeddings`, `/v1/rerank` and `/v1/score`, from one vector of each prompt.

Vectors take megabytes as JSON, so a body is rendered in parts of about PART_NUMBERS numbers.
"""

from __future__ import annotations

import time
from array import array
from base64 import b64encode
from collections.abc import Iterator, Sequence

from msgspec import UNSET

from gateway.answers.whole_shape import WholeShape
from gateway.api.pooling.embeddings_wire import FLOAT32_BYTES, NUMBER_FORMAT, EmbeddingUsage
from gateway.api.pooling.rerank_wire import RankedDocument, RerankAnswer, RerankDocument, ScoreAnswer, TextScore
from gateway.api.pooling.vectors import PooledVectors
from gateway.errors import encode
from gateway.generation.answer import Answer
from gateway.generation.inflight import InFlight

# Numbers of vectors in one part of a body: about a millisecond.
PART_NUMBERS = 8192
PART_SCORES = 4  # scores that are computed at once, of the vectors that arrived before their query's


class EmbeddingsShape(WholeShape):
    """Implements `gateway.answers.sse.Shape`, as the next two."""

    has_logprobs = True  # the body is made in parts

    def __init__(self, request: InFlight, _wants_usage: bool = False) -> None:
        self._request = request

    def render_body(self, answer: Answer) -> bytes:
        return b"".join(self.whole_parts(answer))

    def whole_parts(self, answer: Answer) -> Iterator[bytes]:
        wanted = self._request.asked.embedding
        assert wanted is not None
        pooled = _pooled(answer)
        step = max(1, PART_NUMBERS * FLOAT32_BYTES // len(pooled.vector_of(0)))
        yield b'{"object":"list","data":['
        for start in range(0, len(answer.texts), step):
            items = []
            for index in range(start, min(start + step, len(answer.texts))):
                vector = pooled.vector_of(index)
                shown = f'"{b64encode(vector).decode()}"' if wanted.base64 else numbers_json(array("f", vector))
                items.append(f'{{"object":"embedding","index":{index},"embedding":{shown}}}')
            yield ("," if start else "").encode() + ",".join(items).encode()
        yield b'],"model":' + encode(self._request.target.name) + b',"usage":' + encode(usage_of(answer)) + b"}"


class _ScoresShape(WholeShape):
    """The shape of an answer that compares vectors. Each step computes PART_SCORES comparisons, and the last step
    yields the body."""

    has_logprobs = True

    def __init__(self, request: InFlight, _wants_usage: bool = False) -> None:
        self._request = request
        self._created = int(time.time())

    def render_body(self, answer: Answer) -> bytes:
        return b"".join(self.whole_parts(answer))

    def whole_parts(self, answer: Answer) -> Iterator[bytes]:
        wanted = self._request.asked.embedding
        assert wanted is not None
        pooled, scores = _pooled(answer), list[float]()
        for index in range(wanted.queries, len(answer.texts)):
            if len(scores) % PART_SCORES == 0:
                yield b""
            scores.append(pooled.score_of(index))
        yield self.body_of(answer, scores)

    def body_of(self, answer: Answer, scores: Sequence[float]) -> bytes:
        """`scores`: of each prompt behind the queries."""
        raise NotImplementedError


class RerankShape(_ScoresShape):
    def body_of(self, answer: Answer, scores: Sequence[float]) -> bytes:
        wanted = self._request.asked.embedding
        assert wanted is not None
        prompts = self._request.prompts[wanted.queries :]
        best = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[: wanted.top_n]
        results = [
            RankedDocument(
                index=index,
                document=RerankDocument(text=prompts[index].text) if wanted.shows_texts else UNSET,
                relevance_score=scores[index],
            )
            for index in best
        ]
        number = self._request.request_id.removeprefix("req_")
        return encode(
            RerankAnswer(
                id=f"rerank-{number}", model=self._request.target.name, usage=usage_of(answer), results=results
            )
        )


class ScoreShape(_ScoresShape):
    def body_of(self, answer: Answer, scores: Sequence[float]) -> bytes:
        number = self._request.request_id.removeprefix("req_")
        return encode(
            ScoreAnswer(
                id=f"score-{number}",
                created=self._created,
                model=self._request.target.name,
                data=[TextScore(index=index, score=score) for index, score in enumerate(scores)],
                usage=usage_of(answer),
            )
        )


def _pooled(answer: Answer) -> PooledVectors:
    assert answer.pooled is not None, "only requests for vectors have this shape"
    return answer.pooled


def numbers_json(vector: array[float]) -> str:
    """The vector as a list in JSON, from which a client reads the same float32 numbers. With the digits of float64 the
    list would have 1.5 times as many bytes."""
    shown = (f"{NUMBER_FORMAT}," * len(vector))[:-1] % tuple(vector)
    if "n" in shown:  # JSON has no "nan" or "inf": null
        return encode(vector.tolist()).decode()
    return f"[{shown}]"


def usage_of(answer: Answer) -> EmbeddingUsage:
    assert answer.usage is not None
    return EmbeddingUsage(prompt_tokens=answer.usage.prompt, total_tokens=answer.usage.prompt)
