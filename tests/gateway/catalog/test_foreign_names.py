"""A foreign adapter and an absent one: the same answer, in the same time. benchmarks/foreign_names.py asks oftener."""

from __future__ import annotations

import os

import httpx
import pytest

from benchmarks.foreign_names import absent_like, card, chat, compare
from support.stack import Stack

CALLS = int(os.environ.get("LANEWAY_TEST_FOREIGN_CALLS", "150"))
FOREIGN = "globex-style"
# Of a random deal of the labels: one run in ten thousand fails by chance.
LIKELY_MIN = 0.0001


@pytest.mark.parametrize("ask", [chat, card])
def test_time_does_not_tell_a_foreign_name_from_an_absent_one(stack: Stack, ask: object) -> None:
    found = compare(stack.url, stack.keys["acme"], FOREIGN, ask, CALLS)  # type: ignore[arg-type]
    assert found.same_body
    # Less than a hundredth of a call is nothing that a tenant sees, however sure we are of it.
    assert found.likely > LIKELY_MIN or abs(found.difference_us) < found.absent_us / 100, found


def test_the_very_same_name_reads_alike_foreign_and_absent(stack: Stack) -> None:
    """To one tenant the name is foreign, to nobody anything: the bytes are the same but for the request's id."""
    asked = {
        name: httpx.get(f"{stack.url}/v1/models/{name}", headers=stack.headers("acme"))
        for name in (FOREIGN, absent_like(FOREIGN))
    }
    bodies = {answer.content.replace(name.encode(), b"") for name, answer in asked.items()}
    assert len(bodies) == 1
    headers = [
        {key: value for key, value in answer.headers.items() if key not in ("x-request-id", "openai-processing-ms")}
        for answer in asked.values()
    ]
    assert {**headers[0], "date": ""} == {**headers[1], "date": ""}
