"""Text of about a given number of tokens: common English words, each one token of nearly every vocabulary.

Seeded, and cheap enough to be made while requests are sent. It must never load a tokenizer.
"""

from __future__ import annotations

import random

TEXT = """
time people year work life world day part place case week point group number night water room money story fact month
lot right study book eye job word business issue side kind head house service friend father power hour game line end
member law car city community name president team minute idea body information back parent face others level office
door health person art war history party result change morning reason research girl guy moment air teacher force
education foot boy age policy music market sense nation plan college interest death experience effect use class
control care field development role effort rate heart drug show leader light voice wife police mind price report
decision son view relationship town road difference value building action model season society tax director position
player record paper space ground form event official matter center couple site project activity star table need court
oil situation cost industry figure street image phone data picture practice piece land product doctor wall patient
worker news test movie north love support technology step baby computer type attention film tree source organization
hair look century evidence window culture chance brother energy period course summer plant opportunity term letter
condition choice rule south husband floor campaign material population call economy hospital church risk fire future
bank east west sport board subject officer rest behavior performance fight top goal second bed order author blood
agency nature color store sound movement page race concern series language response animal factor article scene
"""
WORDS = TEXT.split()
POOL_WORDS = 65_536
HEAD_WORDS = 8  # drawn anew for every prompt, 63 bits: no two prompts share a prefix by chance


class Prompts:
    """Makes prompts: the shared prefix first, drawn once from `words`, then words of the prompt's own, from `rng`."""

    def __init__(self, words: random.Random, rng: random.Random, shared_tokens: int) -> None:
        self._rng = words
        pool = words.choices(WORDS, k=POOL_WORDS)
        self._text = "".join(f" {word}" for word in pool)
        self._starts = [0]
        for word in pool:
            self._starts.append(self._starts[-1] + 1 + len(word))
        self._shared = self._take(shared_tokens)
        self._rng = rng

    def make(self, tokens: int) -> str:
        """A prompt of about `tokens` tokens beyond the shared prefix."""
        head = "".join(f" {word}" for word in self._rng.choices(WORDS, k=min(tokens, HEAD_WORDS)))
        return (self._shared + head + self._take(tokens - HEAD_WORDS)).lstrip()

    def _take(self, words: int) -> str:
        """Take slices of the pool: a long prompt costs one copy, not a draw for each word."""
        pieces: list[str] = []
        while words > 0:
            count = min(words, POOL_WORDS)
            start = self._rng.randrange(POOL_WORDS - count + 1)
            pieces.append(self._text[self._starts[start] : self._starts[start + count]])
            words -= count
        return "".join(pieces)
