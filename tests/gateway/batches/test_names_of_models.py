"""Batches with very many names of models: the event loop runs other tasks while the names are resolved."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from gateway.batches.preparation import NAMES_AT_ONCE, BatchPreparer, in_groups
from gateway.batches.validation import ERRORS_MAX, LineScanner
from gateway.errors import ModelNotFound

CHAT = "/v1/chat/completions"


async def test_other_tasks_run_between_groups_of_names() -> None:
    turns, done = 0, asyncio.Event()

    async def count() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count())
    names = [f"m{number}" for number in range(10 * NAMES_AT_ONCE)]
    assert [name async for name in in_groups(names)] == names
    done.set()
    await counter
    assert turns >= 10


async def test_no_name_is_resolved_after_the_last_listed_error() -> None:
    asked: list[str] = []

    class NoModels:
        def route(self, caller: Any, name: str, sticky: str) -> Any:
            asked.append(name)
            raise ModelNotFound(name)

    preparer = BatchPreparer(*cast(Any, (None, None, NoModels(), None, None, "batch")))
    scanner, targets = LineScanner(CHAT, 1000), dict[str, str]()
    for number in range(10 * ERRORS_MAX):
        scanner.models[f"m{number}"] = number + 1
    await preparer._resolve(cast(Any, SimpleNamespace(id="batch_1")), cast(Any, None), scanner, targets)
    assert len(asked) == len(targets) == len(scanner.errors) == ERRORS_MAX
