"""What lies between a generation's owner and a reader who comes when it likes."""

from __future__ import annotations

import pytest

from gateway.answer import PIECES_MAX, Answer
from gateway.wire import PromptTokensDetails, Usage


@pytest.mark.parametrize("every", [1, 7, PIECES_MAX, PIECES_MAX + 1, 1000, 5000])
def test_a_text_is_whole_however_seldom_it_is_read(every: int) -> None:
    """Unread, it is its characters and a bounded number of objects, not an object a token."""
    answer = Answer(2, stream=True)
    tokens = [f" {number}" for number in range(3000)]
    read = ["", ""]
    for number, token in enumerate(tokens, 1):
        answer.add(number % 2, token)
        assert all(len(text._pieces) <= PIECES_MAX for text in answer.texts)
        if number % every == 0:
            for piece in answer.take():
                read[piece.index] += piece.text
    answer.finish(Usage(1, 3000, 3001, PromptTokensDetails(cached_tokens=0)))
    for piece in answer.take_all():
        read[piece.index] += piece.text
    assert read == ["".join(tokens[1::2]), "".join(tokens[0::2])]
