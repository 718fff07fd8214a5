"""The page names of recent prompts: a conversation's next prompt begins with its last one, whose pages need not be
hashed again.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable

from engine.protocol.page_names import Chain

# A page takes about 200 bytes for its ids and its name.
PAGES_MAX = 65_536


class NamedPrompts:
    """Chains by key, the least recently used ones forgotten beyond PAGES_MAX pages."""

    def __init__(self, pages_max: int = PAGES_MAX) -> None:
        self._pages_max = pages_max
        self._pages = 0
        self._prompts: OrderedDict[Hashable, tuple[Chain, bytes]] = OrderedDict()  # with the ids of the named pages

    def take_chain(self, key: Hashable, ids: array[int]) -> Chain | None:
        """The chain of the last prompt with this key, with the names of the pages that `ids` has in common with it.
        `keep_chain` returns it."""
        found = self._prompts.pop(key, None)
        if found is None:
            return None
        chain, before = found
        self._pages -= chain.named()
        now, page_bytes = ids.tobytes(), chain.tokens_per_page * ids.itemsize
        if not now.startswith(before):
            low, high = 0, min(chain.named(), len(now) // page_bytes)
            while low < high:  # the most pages with equal ids
                middle = (low + high + 1) // 2
                if now.startswith(before[: middle * page_bytes]):
                    low = middle
                else:
                    high = middle - 1
            chain.forget_names(low)
        return chain

    def keep_chain(self, key: Hashable, chain: Chain, ids: array[int]) -> None:
        """`ids`: of the prompt that the chain's names are of."""
        named = chain.named()
        if not named or named > self._pages_max:
            return
        self._prompts[key] = (chain, ids[: named * chain.tokens_per_page].tobytes())
        self._pages += named
        while self._pages > self._pages_max:
            _, (oldest, _) = self._prompts.popitem(last=False)
            self._pages -= oldest.named()
