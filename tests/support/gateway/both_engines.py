"""Fixtures for tests that run on both kinds of engine: the fake one (ids over frames) and TextEngine (text)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.text.tokenizer import Tokenizer
from support.gateway.text_stack import TextStack
from support.stack import Stack

FAILING_ID = 28470  # both engines fail at the word of this id
STEP_S = 0.02
# For tests that need pages, processes or ids: they run on the fake engine alone.
ids_only = pytest.mark.parametrize("slow", ["ids"], indirect=True)


@contextmanager
def running_stack(kind: str, directory: Path, model_dir: Path, **settings: Any) -> Iterator[Stack]:
    """A stack with one token or word each STEP_S, on the engine that answers with `kind` ("ids" or "text")."""
    url = f"sqlite:///{directory}/laneway.db"
    if kind == "ids":
        fake = {"step_ms": STEP_S * 1000, "faults": {"chunk_error_id": FAILING_ID}}
        stack = Stack(directory, url, model_dir, fake=fake, **settings)
    else:
        fake = {"word_s": STEP_S, "fail": Tokenizer.load(model_dir).decode([FAILING_ID])}
        stack = TextStack(directory, url, model_dir, fake=fake, **settings)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()
