"""Stop sequences, against a plain reference, over random texts, stops and pieces."""

from __future__ import annotations

import itertools
import time

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.generation.stops import StopScanner

LETTERS = st.text(alphabet="abé☃", max_size=40)
STOPS = st.lists(st.text(alphabet="abé☃", min_size=1, max_size=5), max_size=4)


def reference(text: str, stops: list[str]) -> tuple[str, bool]:
    """One character more at a time: the first end at which some stop is complete, cut before the longest such."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


def shown(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    scanner = StopScanner(stops)
    out: list[str] = []
    for piece in pieces:
        out.append(scanner.push_text(piece))
        if scanner.stopped:
            return out, True
    out.append(scanner.flush_text())
    return out, False


@given(text=LETTERS, stops=STOPS, cuts=st.lists(st.integers(0, 40), max_size=10))
@example(text="aab", stops=["ab", "aab"], cuts=[1, 2])
@example(text="abcab", stops=["abcabd"], cuts=[3])
def test_pieces_change_nothing(text: str, stops: list[str], cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(edges)]
    expected, stopped = reference(text, stops)
    out, found = shown(pieces, stops)
    assert ("".join(out), found) == (expected, stopped)
    assert not any(stop in "".join(out) for stop in stops)


@given(text=LETTERS, stops=STOPS)
def test_nothing_is_held_back_that_is_decided(text: str, stops: list[str]) -> None:
    """After each character: what is held is the longest end that may still become a stop, and no more."""
    scanner = StopScanner(stops)
    out = ""
    for at in range(len(text)):
        out += scanner.push_text(text[at])
        if scanner.stopped:
            return
        seen = text[: at + 1]
        held = seen[len(out) :]
        candidates = [seen[i:] for i in range(len(seen) + 1) if any(stop.startswith(seen[i:]) for stop in stops)]
        assert held == max(candidates, key=len, default="")


def test_a_long_repetitive_stop_is_cheap() -> None:
    scanner = StopScanner(["a" * 511 + "b"] * 4)
    began = time.thread_time()
    for _ in range(2000):
        scanner.push_text("a")
    assert time.thread_time() - began < 1.0
