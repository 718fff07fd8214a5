"""Which engines have which cached pages, according to the PagesChanged frames of all engines.

`engine.protocol.page_names` makes the names of pages; the index has only the head of each name.
"""

from __future__ import annotations

import sys
from array import array

from engine.protocol.frames import PAGE_HEAD_BYTES, PagesChanged
from engine.protocol.page_names import Chain, Tokens

# A dict of all heads would stall the event loop for 100 ms when it grows, and so would its sweep for removed engines.
SHARDS = 256
_SHARD = SHARDS - 1  # a mask
# Pages whose names are computed at once. A prompt that no engine knows costs the first number.
PAGES_FIRST, PAGES_NEXT = 4, 16
WORDS_OF_NAME = 32 // PAGE_HEAD_BYTES


class _CachedPages:
    """The cached pages of one engine. `bit` marks it in the masks; 0: nothing is known until a full frame."""

    __slots__ = ("bit", "number", "repeated")

    def __init__(self) -> None:
        self.bit = 0
        self.number = 0  # of the last frame
        self.repeated: dict[int, int] = {}  # head → how often it was added beyond the first time


class PageIndex:
    """Head of a page's name → bitmask of the engines that have the page.

    The bit of an engine that was removed, or that sent a full list, is retired: it is not valid from then on, and each
    frame sweeps it out of one shard. It is used again after it was swept out of all."""

    def __init__(self) -> None:
        self._shards: list[dict[int, int]] = [{} for _ in range(SHARDS)]
        self._engines: dict[str, _CachedPages] = {}
        self._names: list[str] = []  # by index of the bit
        self._valid = 0  # bits of engines
        self._retired = 0  # bits to sweep in the next round
        self._sweeping = 0  # bits of this round
        self._next_shard = 0
        self._free: list[int] = []  # indices of bits

    def set_pages(self, engine: str, frame: PagesChanged) -> bool:
        """Take in a frame. False: frames are missing before it, and the engine counts as empty until a full one."""
        pages = self._engines.get(engine)
        if pages is None:
            pages = self._engines[engine] = _CachedPages()
        if frame.full or (not pages.bit and frame.number == 1):
            self._retire_bit(pages)
            self._assign_bit(engine, pages)
        elif not pages.bit or frame.number != pages.number + 1:
            self._retire_bit(pages)
            pages.number = 0
            return False
        pages.number = frame.number
        self._note_added(pages, frame.added)
        if frame.removed:
            self._note_removed(pages, frame.removed)
        self._sweep_shard()
        return True

    def remove_engine(self, engine: str) -> None:
        """An unknown engine is ignored."""
        pages = self._engines.pop(engine, None)
        if pages is not None:
            self._retire_bit(pages)

    def cached_pages(self, chain: Chain, tokens: Tokens, pages_max: int) -> dict[str, int]:
        """The engines that have the chain's first page, and the length of each one's cached prefix in pages, at most
        `pages_max`. `tokens` as in Chain.name."""
        return {name: pages for mask, pages in self.find_runs(chain, tokens, pages_max) for name in self.engines(mask)}

    def find_runs(self, chain: Chain, tokens: Tokens, pages_max: int) -> list[tuple[int, int]]:
        """As `cached_pages`: bitmasks of engines with equally long cached prefixes, and that length, ascending."""
        runs: list[tuple[int, int]] = []
        shards, holders, count = self._shards, self._valid, 0
        while count < pages_max and holders:
            stop = min(pages_max, count + (PAGES_NEXT if count else PAGES_FIRST))
            heads = array("Q", b"".join(chain.names_between(count, stop, tokens)))[::WORDS_OF_NAME]
            for head in heads:
                found = shards[head & _SHARD].get(head, 0) & holders  # this runs for each page of each request
                if found != holders:
                    if count:
                        runs.append((holders ^ found, count))
                    holders = found
                    if not found:
                        return runs
                count += 1
        if count and holders:
            runs.append((holders, count))
        return runs

    def bit(self, engine: str) -> int:
        """The engine's bit in the masks of `find_runs`; 0: nothing is known of it."""
        pages = self._engines.get(engine)
        return pages.bit if pages else 0

    def engines(self, mask: int) -> list[str]:
        """The engines of a mask of `find_runs`."""
        found: list[str] = []
        while mask:
            index = mask.bit_length() - 1
            mask ^= 1 << index
            found.append(self._names[index])
        return found

    def heads(self) -> int:
        """Distinct heads, including heads of removed engines that are not yet swept out."""
        return sum(map(len, self._shards))

    def memory_bytes(self) -> int:
        """Bytes of all heads and masks; it visits each."""
        total = 0
        for shard in self._shards:
            total += sys.getsizeof(shard) + sum(map(sys.getsizeof, shard))
            # All pages that one engine alone has share its bit.
            total += sum(sys.getsizeof(mask) for mask in shard.values() if mask & (mask - 1))
        return total

    def _note_added(self, pages: _CachedPages, added: bytes) -> None:
        bit, shards = pages.bit, self._shards
        for head in _heads(added):
            shard = shards[head & _SHARD]
            mask = shard.get(head)
            if mask is None:
                shard[head] = bit  # all pages that one engine alone has share one object
            elif mask & bit:
                pages.repeated[head] = pages.repeated.get(head, 0) + 1
            else:
                shard[head] = mask | bit

    def _note_removed(self, pages: _CachedPages, removed: bytes) -> None:
        bit, shards, repeated = pages.bit, self._shards, pages.repeated
        for head in _heads(removed):
            shard = shards[head & _SHARD]
            mask = shard.get(head, 0)
            if repeated and head in repeated:
                repeated[head] -= 1
                if not repeated[head]:
                    del repeated[head]
            elif mask == bit:
                del shard[head]
            elif mask & bit:
                shard[head] = mask ^ bit

    def _assign_bit(self, engine: str, pages: _CachedPages) -> None:
        if self._free:
            index = self._free.pop()
            self._names[index] = engine
        else:
            index = len(self._names)
            self._names.append(engine)
        pages.bit = 1 << index
        self._valid |= pages.bit

    def _retire_bit(self, pages: _CachedPages) -> None:
        self._valid &= ~pages.bit
        self._retired |= pages.bit
        pages.bit = 0
        pages.repeated = {}

    def _sweep_shard(self) -> None:
        if not self._sweeping:
            if not self._retired:
                return
            self._sweeping, self._retired, self._next_shard = self._retired, 0, 0
        shard, sweeping = self._shards[self._next_shard], self._sweeping
        for head, mask in [(head, mask) for head, mask in shard.items() if mask & sweeping]:
            if mask & ~sweeping:
                shard[head] = mask & ~sweeping
            else:
                del shard[head]
        self._next_shard += 1
        if self._next_shard == SHARDS:
            while self._sweeping:
                index = self._sweeping.bit_length() - 1
                self._sweeping ^= 1 << index
                self._free.append(index)


def _heads(data: bytes) -> array[int]:
    """The heads as integers; the byte order is this machine's, as in `find_runs`."""
    return array("Q", data)


assert array("Q").itemsize == PAGE_HEAD_BYTES, f"{sys.platform} has no 8-byte integers"
