"""The answers of `/v1/embeddings`, `/v1/rerank` and `/v1/score`, from one vector of each prompt.

Vectors take megabytes as JSON: a body is made in parts, of a few vectors each.
"""

from __future__ import annotations

import math
import time
from array import array
from base64 import b64encode
from collections.abc import Iterator, Sequence
from operator import mul

from msgspec import UNSET

from gateway.answers.whole_shape import WholeShape
from gateway.api.pooling.embeddings_wire import NUMBER_FORMAT, EmbeddingUsage
from gateway.api.pooling.rerank_wire import RankedDocument, RerankAnswer, RerankDocument, ScoreAnswer, TextScore
from gateway.errors import encode
from gateway.generation.answer import Answer
from gateway.generation.inflight import InFlight

# Numbers of vectors in one part of a body: about a millisecond.
PART_NUMBERS = 8192


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
        width = len(vector_of(answer, 0))
        step = max(1, PART_NUMBERS // width)
        yield b'{"object":"list","data":['
        for start in range(0, len(answer.texts), step):
            items = []
            for index in range(start, min(start + step, len(answer.texts))):
                vector = shortened(vector_of(answer, index), wanted.dimensions)
                shown = f'"{b64encode(vector.tobytes()).decode()}"' if wanted.base64 else numbers_json(vector)
                items.append(f'{{"object":"embedding","index":{index},"embedding":{shown}}}')
            yield ("," if start else "").encode() + ",".join(items).encode()
        yield b'],"model":' + encode(self._request.target.name) + b',"usage":' + encode(usage_of(answer)) + b"}"


class _ScoresShape(WholeShape):
    """Of answers that compare vectors. One part has `PART_NUMBERS` numbers' worth of comparisons, and the last part is
    the body."""

    has_logprobs = True

    def __init__(self, request: InFlight, _wants_usage: bool = False) -> None:
        self._request = request
        self._created = int(time.time())

    def render_body(self, answer: Answer) -> bytes:
        return b"".join(self.whole_parts(answer))

    def whole_parts(self, answer: Answer) -> Iterator[bytes]:
        wanted = self._request.asked.embedding
        assert wanted is not None
        queries = wanted.queries
        width, scores = len(vector_of(answer, 0)), list[float]()
        for index in range(queries, len(answer.texts)):
            if len(scores) * width % PART_NUMBERS < width:
                yield b""
            query = 0 if queries == 1 else index - queries
            scores.append(cosine(vector_of(answer, query), vector_of(answer, index)))
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


def vector_of(answer: Answer, index: int) -> array[float]:
    """The vector of prompt `index`: float32, of length 1."""
    values = answer.texts[index].vector
    assert values is not None, "each prompt of an answer without an error has a vector"
    return array("f", values)


def numbers_json(vector: array[float]) -> str:
    """The vector as a list in JSON, from which a client reads the same float32 numbers. With the digits of float64 the
    list would have half as many bytes more."""
    shown = (f"{NUMBER_FORMAT}," * len(vector))[:-1] % tuple(vector)
    if "n" in shown:  # JSON has no "nan" or "inf": null
        return encode(vector.tolist()).decode()
    return f"[{shown}]"


def shortened(vector: array[float], dimensions: int | None) -> array[float]:
    """The first `dimensions` numbers, with length 1 again; None: all."""
    if dimensions is None or dimensions >= len(vector):
        return vector
    first = vector[:dimensions]
    length = math.sqrt(_dot(first, first))
    return array("f", [number / length for number in first]) if length else first


def cosine(one: array[float], other: array[float]) -> float:
    """Of two vectors of length 1."""
    return max(-1.0, min(1.0, _dot(one, other)))


def _dot(one: array[float], other: array[float]) -> float:
    return float(sum(map(mul, one, other)))


def usage_of(answer: Answer) -> EmbeddingUsage:
    assert answer.usage is not None
    return EmbeddingUsage(prompt_tokens=answer.usage.prompt, total_tokens=answer.usage.prompt)
