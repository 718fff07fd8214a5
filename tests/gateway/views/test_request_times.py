"""The times of a request whose hold has to wait for the database."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa

from support.gateway.admin_client import Operator
from support.stack import Stack
from support.waiting import PATIENCE_S

LOCK_S = 0.5  # for which the database accepts no hold


def test_the_duration_includes_the_wait_for_the_hold(stack: Stack) -> None:
    locked, released = threading.Event(), threading.Event()

    def lock_database(_connection: sa.Connection) -> None:
        locked.set()
        assert released.wait(PATIENCE_S)

    with ThreadPoolExecutor(2) as pool:
        locking = pool.submit(stack.write, lock_database)
        assert locked.wait(PATIENCE_S)
        answering = pool.submit(stack.chat, "acme", max_tokens=2)
        with contextlib.suppress(TimeoutError):
            answering.result(LOCK_S)
        released.set()
        locking.result()
        answer = answering.result()
    assert answer.status_code == 200, answer.text
    one = Operator(stack).ok("GET", f"requests/{answer.headers['x-request-id']}")
    assert 0 < one["ttft_s"] <= one["duration_s"]
    assert {"prefill", "decode"} <= {phase["name"] for phase in one["slowness"]["phases"]}
