"""What lies between a generation's owner and a reader who comes when it likes."""

from __future__ import annotations

import gc
import weakref

import pytest

from gateway.errors import InternalError
from gateway.generation.answer import PIECES_MAX, Answer, TokenUsage


@pytest.mark.parametrize("every", [1, 7, PIECES_MAX, PIECES_MAX + 1, 1000, 5000])
def test_a_text_is_whole_however_seldom_it_is_read(every: int) -> None:
    """Unread, it is its characters and a bounded number of objects, not an object a token."""
    answer = Answer(2, stream=True)
    tokens = [f" {number}" for number in range(3000)]
    read = ["", ""]
    for number, token in enumerate(tokens, 1):
        answer.add_text(number % 2, token)
        assert all(len(text._pieces) <= PIECES_MAX for text in answer.texts)
        if number % every == 0:
            for piece in answer.take_pieces():
                read[piece.index] += piece.text
    answer.finish_answer(TokenUsage(1, 0, 3000))
    for piece in answer.take_all():
        read[piece.index] += piece.text
    assert read == ["".join(tokens[1::2]), "".join(tokens[0::2])]


class Owner:
    """As the choices of a request: the answer knows it, and it the answer."""

    def __init__(self) -> None:
        self.answer = Answer(1, stream=True)
        self.answer.on_leave(self.stop)

    def stop(self) -> None:
        raise AssertionError("nobody left")


@pytest.mark.parametrize("ends_well", [True, False])
def test_what_ended_is_gone_without_a_collector(ends_well: bool) -> None:
    gc.disable()
    try:
        owner = Owner()
        gone = weakref.ref(owner)
        if ends_well:
            owner.answer.finish_answer(TokenUsage(1, 0, 1))
        else:
            owner.answer.fail(InternalError())
        owner.answer.leave()
        owner.answer.stop()
        del owner
        assert gone() is None
    finally:
        gc.enable()
