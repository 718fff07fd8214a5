"""A grammar with slow masks, over the real loop and scheduler: its neighbours draw an id in every step."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from engine.fake.runner import FakePending, build_fake_runner
from engine.guided.matcher import ConsumeIds, GuidedText
from engine.loop.mask_budget import MaskBudget
from engine.loop.worker import EngineLoop
from engine.memory.arena import Arena
from engine.protocol.codec import FrameReader, decode_from_engine
from engine.protocol.config import EngineConfig, FakeConfig, ModelConfig
from engine.protocol.frames import PROTOCOL_VERSION, Finished, FromEngine, Guide, Hello, Sampling, Submit, Tokens
from engine.protocol.inbox import Inbox, LoopProgress, Stop
from engine.protocol.server import OutgoingFrames
from engine.protocol.tiers import SHIPPED_TIERS
from engine.scheduler.results import SKIPS_MESSAGE
from engine.scheduler.scheduler import ModelLimits, Scheduler
from engine.text.grammars import regex_grammar
from engine.text.tokenizer import Tokenizer
from support.paths import EXAMPLES
from support.waiting import eventually

TINY = EXAMPLES / "models" / "laneway-tiny"
TOKENIZER = Tokenizer.load(TINY)
STOP_IDS = sorted(TOKENIZER.eos_ids)
SLOW, QUICK = regex_grammar("[a-f]{12}"), regex_grammar("[a-z]+")
MASK_S = 0.05
STEP_MS = 10.0
# A draw waits so long for a mask that is not slow. A busy machine makes any mask late, with and without a slow one.
PATIENCE_MASK_S = 5.0
AHEAD = pytest.mark.parametrize("steps_ahead", [0, 1])


class Loop:
    """The engine's loop on a thread, with the words of laneway-tiny and ids from a hash."""

    mask_wait_s = PATIENCE_MASK_S

    def __init__(self, steps_ahead: int) -> None:
        model = ModelConfig(name="m", path=str(TINY))
        runner = build_fake_runner(
            EngineConfig(models=(model,), fake=FakeConfig(step_ms=STEP_MS, steps_ahead=steps_ahead))
        )
        info = runner.models["m"]
        self.inbox = Inbox()
        self.tokens: list[Tokens] = []
        self.endings: dict[int, Finished] = {}
        limits = ModelLimits(info.context_tokens, info.tokens_per_page, info.digest, info.vocab_size)
        self.loop = EngineLoop(
            hello=Hello(PROTOCOL_VERSION, "epoch", [info], [tier.name for tier in SHIPPED_TIERS]),
            scheduler=Scheduler(
                SHIPPED_TIERS, {"m": limits}, Arena(runner.pages, runner.page_bytes), runner.adapters, time.monotonic,
                steps_ahead=runner.steps_ahead,
            ),
            runner=runner,
            inbox=self.inbox,
            progress=LoopProgress(),
            send=self._take,
            configs=(model,),
            mask_wait_s=self.mask_wait_s,
        )  # fmt: skip
        self._thread = threading.Thread(target=self.loop.run)
        self._thread.start()

    def submit(self, handle: int, grammar: str | None, max_tokens: int, **changes: Any) -> None:
        guide = None if grammar is None else Guide(grammar)
        frame = Submit(
            handle=handle, request_id=f"req_{handle}", epoch="epoch", model="m", adapter=None, namespace="n",
            tier="standard", share="s", prompt_ids=[300 + handle] * 5, max_tokens=max_tokens,
            sampling=Sampling(seed=handle), stop_ids=STOP_IDS if grammar == SLOW else [], guide=guide, **changes,
        )  # fmt: skip
        self.inbox.receive(1, frame, time.monotonic(), 100)

    def stop(self) -> None:
        self.inbox.put(Stop("the test is done"))
        self._thread.join()

    def steps_of(self, handle: int) -> list[int]:
        """The steps that drew an id of the request."""
        return [frame.step for frame in self.tokens for own in frame.handles if own == handle]

    def text_of(self, handle: int) -> str:
        ids = [id_ for frame in self.tokens for own, id_ in zip(frame.handles, frame.ids, strict=True) if own == handle]
        return TOKENIZER.decode([id_ for id_ in ids if id_ not in STOP_IDS])

    def _take(self, batch: list[OutgoingFrames]) -> None:
        for outgoing in batch:
            frame: FromEngine
            for frame in map(decode_from_engine, FrameReader().feed(outgoing.data)):
                if isinstance(frame, Tokens):
                    self.tokens.append(frame)
                elif isinstance(frame, Finished):
                    self.endings[frame.handle] = frame


def use_cpu(seconds: float) -> None:
    """On this thread, without the GIL, as llguidance does."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        hashlib.pbkdf2_hmac("sha256", b"laneway", b"salt", 2000)


def slow_down(monkeypatch: pytest.MonkeyPatch, before: Callable[[GuidedText], None]) -> None:
    """Call `before` in front of each mask of the grammar SLOW."""
    fill_words = GuidedText.fill_words

    def filled(text: GuidedText, consume_ids: ConsumeIds) -> None:
        if text._guide.grammar == SLOW:
            before(text)
        if not text.error:
            fill_words(text, consume_ids)

    monkeypatch.setattr(GuidedText, "fill_words", filled)


@AHEAD
def test_neighbours_of_a_mask_of_50_ms_miss_no_step(monkeypatch: pytest.MonkeyPatch, steps_ahead: int) -> None:
    slow_down(monkeypatch, lambda _: use_cpu(MASK_S))
    monkeypatch.setattr(MaskBudget, "wait_s", lambda *_: PATIENCE_MASK_S)  # with a step ahead
    monkeypatch.setattr(FakePending, "is_forward_done", lambda _: False)
    loop = Loop(steps_ahead)
    plain, guided, slow = (1, 2, 3), (4, 5, 6), 9
    try:
        for handle in plain + guided:
            loop.submit(handle, QUICK if handle in guided else None, 1500)
        # Threads are started and steps are measured with the first masks.
        eventually(lambda: all(len(loop.steps_of(handle)) >= 10 for handle in plain + guided))
        first = loop.steps_of(plain[0])[-1]
        loop.submit(slow, SLOW, 60)
        eventually(lambda: slow in loop.endings)
        last = loop.tokens[-1].step
        eventually(lambda: all(loop.steps_of(handle)[-1] >= last for handle in plain + guided))
    finally:
        loop.stop()
    ending = loop.endings[slow]
    if ending.reason == "stop":
        assert len(loop.text_of(slow)) == 12
    else:  # on a busy machine 50 ms of CPU may take a second
        assert ending.guide_fault == "late"
    assert set(loop.text_of(slow)) <= set("abcdef")
    # It is behind its neighbours, each of which has an id of every step while the slow text runs.
    steps = range(first, last + 1)
    assert 2 * len(loop.steps_of(slow)) < len(steps), "the draws waited for the slow masks"
    for handle in plain + guided:
        missed = set(steps) - set(loop.steps_of(handle))
        assert not missed, f"{handle} has no id of {missed}"
        assert len(loop.steps_of(handle)) == len(set(loop.steps_of(handle)))


@AHEAD
def test_a_mask_that_never_comes_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch, steps_ahead: int) -> None:
    go = threading.Event()

    def wait(_: GuidedText) -> None:
        go.wait(30)

    slow_down(monkeypatch, wait)
    monkeypatch.setattr(Loop, "mask_wait_s", 0.02)
    loop = Loop(steps_ahead)
    try:
        loop.submit(1, None, 1500)
        eventually(lambda: len(loop.steps_of(1)) >= 3)
        loop.submit(9, SLOW, 60)
        eventually(lambda: 9 in loop.endings)
    finally:
        go.set()
        loop.stop()
    ending = loop.endings[9]
    assert (ending.reason, ending.message, ending.guide_fault) == ("error", SKIPS_MESSAGE, "late")
    steps = loop.steps_of(1)
    assert steps == list(range(steps[0], steps[-1] + 1))


@AHEAD
def test_a_grammar_that_cannot_be_continued_is_named_as_the_fault(
    monkeypatch: pytest.MonkeyPatch, steps_ahead: int
) -> None:
    def fails(text: GuidedText) -> None:
        if text._taken == 3:
            text.begin_words()
            text.fail("the grammar cannot be continued: too many states")

    slow_down(monkeypatch, fails)
    loop = Loop(steps_ahead)
    try:
        loop.submit(1, None, 40)
        loop.submit(9, SLOW, 60)
        eventually(lambda: {1, 9} <= set(loop.endings))
    finally:
        loop.stop()
    ending = loop.endings[9]
    assert (ending.reason, ending.guide_fault) == ("error", "grammar")
    assert ending.message == "the grammar cannot be continued: too many states"
    assert ending.usage.completion_tokens == 3
    assert (loop.endings[1].reason, loop.endings[1].guide_fault) == ("length", None)
