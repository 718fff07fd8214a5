"""The vectors of one request, reduced as they arrive to what its answer shows: a request may have thousands, each of
kilobytes."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from operator import mul

from gateway.api.generation_request import EmbeddingFormat


class PooledVectors:
    """Vectors are little-endian float32, of length 1. An answer with vectors keeps the first `dimensions` numbers of
    each. An answer with scores keeps the vector of a query, and of another prompt only until its query's arrives."""

    __slots__ = ("_queries", "_scores", "_vectors", "_wanted")

    def __init__(self, wanted: EmbeddingFormat) -> None:
        self._wanted = wanted
        self._queries = wanted.queries
        self._vectors: dict[int, bytes] = {}  # by prompt
        self._scores: dict[int, float] = {}  # by the prompt that is compared with a query

    @property
    def bytes_kept(self) -> int:
        return sum(map(len, self._vectors.values()))

    def add_vector(self, index: int, vector: bytes) -> None:
        """The vector of prompt `index` has arrived."""
        if self._wanted.shows_vectors:
            self._vectors[index] = shortened(vector, self._wanted.dimensions)
            return
        self._vectors[index] = vector
        if index >= self._queries:
            compared = index
        elif self._queries > 1:
            compared = index + self._queries
        else:
            return  # the vectors that wait for this query are compared by `score_of`: there may be thousands
        if compared in self._vectors and self._query_of(compared) in self._vectors:
            self.score_of(compared)

    def vector_of(self, index: int) -> bytes:
        """The vector of prompt `index`, in an answer with vectors."""
        return self._vectors[index]

    def score_of(self, index: int) -> float:
        """The cosine of prompt `index` and its query, once both have arrived."""
        if index not in self._scores:
            query = self._query_of(index)
            self._scores[index] = cosine(self._vectors[query], self._vectors.pop(index))
            if self._queries > 1:
                del self._vectors[query]
        return self._scores[index]

    def _query_of(self, index: int) -> int:
        return 0 if self._queries == 1 else index - self._queries


def shortened(vector: bytes, dimensions: int | None) -> bytes:
    """The first `dimensions` numbers, with length 1 again; None: all."""
    numbers = array("f", vector)
    if dimensions is None or dimensions >= len(numbers):
        return vector
    first = numbers[:dimensions]
    length = math.sqrt(_dot(first, first))
    return array("f", [number / length for number in first]).tobytes() if length else first.tobytes()


def cosine(one: bytes, other: bytes) -> float:
    """The cosine of the angle between two vectors of length 1."""
    return max(-1.0, min(1.0, _dot(array("f", one), array("f", other))))


def _dot(one: Iterable[float], other: Iterable[float]) -> float:
    return float(sum(map(mul, one, other)))
