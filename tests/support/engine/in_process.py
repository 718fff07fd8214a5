"""The real scheduler over a runner, without sockets: driven until every request has ended."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adapters.files.spec import BaseShape
from adapters.files.store import AdapterStore
from engine.memory.arena import Arena
from engine.protocol.frames import Logprobs, Sampling
from engine.protocol.tiers import SHIPPED_TIERS, Tier
from engine.scheduler.scheduler import ModelLimits, Scheduler
from engine.step import Pending, Sequence, Step
from support.adapters.directories import add_directory

MODEL = "m"
# No target shrinks a step, and no floor reserves a page: the test chooses which requests run together.
TIERS = tuple(Tier(name=t.name, service_tier=t.service_tier, inter_token_ms=3_600_000) for t in SHIPPED_TIERS)


class Drive:
    """The models of a runner, all of the shape of one directory. MODEL is the default."""

    def __init__(self, runner: Any, directory: Path, *, step_tokens_max: int, sequences_max: int) -> None:
        self.directory = directory
        self.runner = runner
        self.scheduler = Scheduler(
            TIERS,
            {name: ModelLimits.of(info) for name, info in runner.models.items()},
            Arena(self.runner.pages, self.runner.page_bytes),
            self.runner.adapters,
            time.monotonic,
            step_tokens_max=step_tokens_max,
            sequences_max=sequences_max,
            steps_ahead=self.runner.steps_ahead,
            host_pool=self.runner.host_pool,
        )
        self.steps: list[Step] = []
        self.made: dict[int, list[int]] = {}  # by handle: the ids that steps made, as a worker would send them
        self.vectors: dict[int, list[float]] = {}  # by handle, of pooled requests
        self._handles = 0

    def add_adapters(self, directories: list[Path], scratch: Path, model: str = MODEL) -> dict[str, str]:
        """Digest by directory name; known, not yet in the arena."""
        shape: BaseShape = BaseShape.from_directory(self.directory)
        store = AdapterStore(scratch)
        digests = {}
        for directory in directories:
            stored = add_directory(store, directory, shape)
            self.runner.load_adapter(stored.digest, model, str(stored.path))
            digests[directory.name] = stored.digest
        return digests

    def request(
        self,
        prompt: list[int],
        new: int,
        adapter: str | None = None,
        sampling: Sampling | None = None,
        tier: str = "standard",
        stop_ids: frozenset[int] = frozenset(),
        model: str = MODEL,
    ) -> Sequence:
        self._handles += 1
        return Sequence(
            handle=self._handles,
            gateway=0,
            request_id=f"r{self._handles}",
            model=model,
            adapter=adapter,
            namespace="n",
            tier=tier,
            share="",
            prompt_ids=prompt,
            max_tokens=new,
            sampling=sampling or Sampling(temperature=0.0),
            stop_ids=stop_ids,
            arrived_at=0.0,
        )

    def run(
        self,
        requests: list[Sequence],
        after_step: Callable[[], None] = lambda: None,
        endings: tuple[str, ...] = ("length", "stop"),
    ) -> dict[int, list[Logprobs]]:
        """Run until all requests have ended as expected; returns the logprobs by handle of the requests that have them.
        `after_step` may submit and abort."""
        for request in requests:
            assert self.scheduler.submit(request) is None
        flight: deque[tuple[Step, Pending]] = deque()
        reported: dict[int, list[Logprobs]] = {}
        while True:
            while len(flight) <= self.runner.steps_ahead and (step := self.scheduler.schedule()) is not None:
                self.steps.append(step)
                flight.append((step, self.runner.begin_step(step)))
                if len(flight) == 1:
                    flight[0][1].draw(None)
            if not flight and self.scheduler.has_blocked_requests:
                for ended in self.scheduler.take_failed():
                    assert ended.reason in endings, (ended.reason, ended.message)
                time.sleep(0.0002)
                continue
            if not flight:
                break
            step, pending = flight.popleft()
            outcome = self.scheduler.complete(step, pending.result(), 0.001)
            if flight:
                flight[0][1].draw(None)
            for sequence, token in outcome.tokens:
                self.made.setdefault(sequence.handle, []).append(token)
            for sequence, found in outcome.logprobs.items():
                reported.setdefault(sequence.handle, []).append(found)
            for sequence, values in outcome.vectors:
                self.vectors[sequence.handle] = list(array("f", values))
            for ended in outcome.ended:
                assert ended.reason in endings, (ended.reason, ended.message)
            after_step()
        self.scheduler.arena.check_integrity()
        self.scheduler.prefix.check_integrity()
        self.runner.adapters.check_integrity()
        return reported
