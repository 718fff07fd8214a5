"""The names of full pages of KV: a SHA-256 chain over all ids before a page's end, rooted in (model, adapter content,
namespace, layout of the KV). Pages are shared exactly when all of these are equal. Engines and gateways compute equal
names.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable

# (start, stop) → the sequence's ids from index start to stop - 1.
Tokens = Callable[[int, int], Iterable[int]]


class Chain:
    """The names of one sequence's full pages, computed on demand."""

    def __init__(
        self,
        model: str,
        adapter: str | None,
        namespace: str,
        tokens_per_page: int,
        label: int = 0,
        kv_identity: str = "",
    ) -> None:
        """`model` and `adapter` name contents (digests). `label` (below 65,536) marks the chain's pages for observers.
        `kv_identity` names the dtype and layout of the KV and the version of its kernels. The ids of a page must not
        change once its name was computed."""
        root = hashlib.sha256()
        for part in (model, adapter or "", namespace, kv_identity, str(tokens_per_page)):
            data = part.encode()
            root.update(len(data).to_bytes(8, "little") + data)
        self.namespace = namespace
        self.label = label
        self.tokens_per_page = tokens_per_page
        self._root = root.digest()
        self._names: list[bytes] = []

    def name(self, index: int, tokens: Tokens) -> bytes:
        """The name of page `index`. `tokens(start, stop)` returns the sequence's ids, which must fill the page."""
        if index >= len(self._names):
            self._compute(index + 1, tokens)
        return self._names[index]

    def names(self, start: int, stop: int, tokens: Tokens) -> list[bytes]:
        """The names of pages `start` to `stop` - 1, as `name` returns them, in one pass over the ids."""
        if stop > len(self._names):
            self._compute(stop, tokens)
        return self._names[start:stop]

    def named(self) -> int:
        """The number of pages whose names were computed."""
        return len(self._names)

    def forget_names(self, start: int) -> None:
        """The ids of pages from `start` on are others now."""
        del self._names[start:]

    def _compute(self, stop: int, tokens: Tokens) -> None:
        names, sha256 = self._names, hashlib.sha256
        start = len(names) * self.tokens_per_page
        ids = array("q", tokens(start, stop * self.tokens_per_page))
        assert len(ids) == stop * self.tokens_per_page - start, "only full pages have names"
        data, page_bytes = ids.tobytes(), self.tokens_per_page * ids.itemsize
        name = names[-1] if names else self._root
        for at in range(0, len(data), page_bytes):
            name = sha256(name + data[at : at + page_bytes]).digest()
            names.append(name)
