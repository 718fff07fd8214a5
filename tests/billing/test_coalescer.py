"""The coalescer: batches, bounds, cancelled waiters, failures and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from billing.coalescer import Coalescer, TooManyWaiting


class Doubler:
    """Answers 2 × item for each; a batch waits until `gate` is open."""

    def __init__(self, *, batch_max: int = 4, backlog_max: int | None = None) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.coalescer: Coalescer[int, int] = Coalescer(
            self.run_batch, name="doubler", batch_max=batch_max, backlog_max=backlog_max
        )

    async def run_batch(self, items: list[int]) -> Sequence[int | Exception]:
        self.batches.append(items)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [2 * item if item >= 0 else ValueError(item) for item in items]


async def test_items_submitted_during_a_batch_share_the_next_one() -> None:
    doubler = Doubler()
    doubler.gate.clear()
    waiters = [doubler.coalescer.submit(0)]
    await asyncio.sleep(0)
    waiters += [doubler.coalescer.submit(item) for item in range(1, 7)]
    doubler.gate.set()
    assert await asyncio.gather(*waiters) == [2 * item for item in range(7)]
    assert doubler.batches == [[0], [1, 2, 3, 4], [5, 6]]


async def test_an_exception_of_one_item_is_its_own_and_a_raised_one_is_everybodys() -> None:
    doubler = Doubler()
    answers = await asyncio.gather(*map(doubler.coalescer.submit, (1, -1, 2)), return_exceptions=True)
    assert answers[0] == 2
    assert isinstance(answers[1], ValueError)
    assert answers[2] == 4
    doubler.error = OSError("down")
    answers = await asyncio.gather(*map(doubler.coalescer.submit, (1, 2)), return_exceptions=True)
    assert answers == [doubler.error] * 2
    doubler.error = None
    assert await doubler.coalescer.submit(3) == 6, "the next batch runs"


async def test_an_item_cancelled_before_its_batch_is_left_out_and_one_cancelled_later_runs() -> None:
    doubler = Doubler()
    doubler.gate.clear()
    running, waiting, other = (doubler.coalescer.submit(1), doubler.coalescer.submit(2), doubler.coalescer.submit(3))
    waiting.cancel()
    await asyncio.sleep(0)
    running.cancel()
    doubler.gate.set()
    assert await other == 6
    assert doubler.batches == [[1, 3]]


async def test_the_backlog_is_bounded_and_can_be_failed() -> None:
    doubler = Doubler(batch_max=1, backlog_max=2)
    doubler.gate.clear()
    running = doubler.coalescer.submit(1)
    await asyncio.sleep(0)
    waiting = [doubler.coalescer.submit(item) for item in (2, 3)]
    with pytest.raises(TooManyWaiting):
        doubler.coalescer.submit(4)
    doubler.coalescer.fail_backlog(OSError("down"))
    assert [type(waiter.exception()) for waiter in waiting] == [OSError, OSError]
    doubler.gate.set()
    assert await running == 2
    assert doubler.batches == [[1]]


async def test_stopped_it_answers_every_waiter() -> None:
    doubler = Doubler(batch_max=1)
    doubler.gate.clear()
    waiters = [doubler.coalescer.submit(item) for item in (1, 2)]
    await asyncio.sleep(0)
    await doubler.coalescer.stop(OSError("stopped"))
    assert [type(waiter.exception()) for waiter in waiters] == [OSError, OSError]
    assert doubler.batches == [[1]]


async def test_idle_means_that_everything_submitted_is_answered() -> None:
    doubler = Doubler(batch_max=1)
    waiters = [doubler.coalescer.submit(item) for item in range(3)]
    await doubler.coalescer.wait_idle()
    assert [waiter.result() for waiter in waiters] == [0, 2, 4]
