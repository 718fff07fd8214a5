"""The host's cost of one step: 256 requests decode while others wait for their slots, through the real
scheduler and loop, over a runner whose device takes no time.

    python -m benchmarks.scheduler_step [--sequences N] [--waiting 0,50,5000] [--steps N] [--note TEXT]

While the device computes a step, the host completes the one before, publishes its ids and schedules the next step: the
sum of these must be shorter than the step. Times are the thread's own, so that nothing else on the machine counts: the
loop never waits here. Appends rows to benchmarks/results/scheduler_step.csv.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import time

import msgspec

from benchmarks.rows import append_rows
from engine.fake.runner import FakeAdapters
from engine.fake.weights import FakeWeights
from engine.loop.worker import EngineLoop
from engine.memory.arena import Arena
from engine.protocol.config import FakeConfig, ModelConfig
from engine.protocol.frames import PROTOCOL_VERSION, Hello, ModelInfo, Sampling, Submit
from engine.protocol.inbox import Inbox, LoopProgress, Stop
from engine.protocol.server import OutgoingFrames
from engine.protocol.tiers import SHIPPED_TIERS
from engine.scheduler.scheduler import ModelLimits, Scheduler, StepOutcome
from engine.step import CompletedStep, Step, StepResult

CONTEXT_MIN, CONTEXT_MAX, PAGE_TOKENS, ADAPTERS, GATEWAYS, VOCAB = 192, 8192, 16, 64, 2, 128_256
STEP_TOKENS_MAX, PREFILL_TOKENS_MIN = 16_384, 1024


class InstantRunner:
    """Implements engine.step.Runner. Draws the same id for all; adapters take one page each."""

    steps_ahead = 1
    host_pool = None

    def __init__(self) -> None:
        self.adapters = FakeAdapters(pages_each=1)
        self.weights = FakeWeights(FakeConfig(), time.monotonic)
        self.page_waste = dict[str, int]()

    def begin_step(self, step: Step) -> CompletedStep:
        return CompletedStep(StepResult([1000 if chunk.sample else None for chunk in step.chunks]))

    def load_model(self, model: ModelConfig) -> ModelInfo:
        raise ValueError("it serves the one model")

    def unload_model(self, name: str) -> None:
        raise AssertionError("its model is never removed")

    def load_adapter(self, digest: str, model: str, path: str) -> None:
        self.adapters.models[digest] = model

    def unload_adapter(self, digest: str) -> None:
        del self.adapters.models[digest]


class TimedScheduler(Scheduler):
    """Notes how long it takes for steps in which all of `sequences` requests decode, and nothing else."""

    sequences = 0

    def schedule(self, skipped: frozenset[int] = frozenset()) -> Step | None:
        began = time.thread_time()
        step = super().schedule(skipped)
        if step is not None and self._full(step):
            self.schedule_s.append(time.thread_time() - began)
        return step

    def complete(self, step: Step, result: StepResult, seconds: float) -> StepOutcome:
        began = time.thread_time()
        outcome = super().complete(step, result, seconds)
        if self._full(step):
            ended = time.thread_time()
            self.complete_s.append(ended - began)
            self.completed_at.append(ended)
        return outcome

    def watch(self, sequences: int) -> None:
        self.sequences = sequences
        self.schedule_s: list[float] = []
        self.complete_s: list[float] = []
        self.completed_at: list[float] = []

    def _full(self, step: Step) -> bool:
        chunks = step.chunks
        return len(chunks) == self.sequences and chunks[-1].count == 1 and chunks[0].count == 1


def measure(sequences: int, waiting: int, steps: int) -> dict[str, float]:
    """Microseconds of one step's parts; `publish` is the loop's round without schedule and complete."""
    new_tokens = steps + 1000  # no request ends before the measurement does
    contexts = [CONTEXT_MIN + (CONTEXT_MAX - CONTEXT_MIN) * i // max(1, sequences - 1) for i in range(sequences)]
    context_max = CONTEXT_MAX + new_tokens
    pages = sum(-(-(context + new_tokens) // PAGE_TOKENS) for context in contexts) + ADAPTERS + 2 * sequences
    runner = InstantRunner()
    tiers = [
        msgspec.structs.replace(tier, queue_target_ms=None, queue_max=sequences + waiting) for tier in SHIPPED_TIERS
    ]
    scheduler = TimedScheduler(
        tiers,
        {"m": ModelLimits(context_max, PAGE_TOKENS, "", VOCAB)},
        Arena(2 * pages, 1),
        runner.adapters,
        time.monotonic,
        step_tokens_max=STEP_TOKENS_MAX,
        prefill_tokens_min=PREFILL_TOKENS_MIN,
        sequences_max=sequences,
        steps_ahead=runner.steps_ahead,
    )
    scheduler.watch(sequences)
    inbox = Inbox()
    info = ModelInfo("m", "", context_max, VOCAB, PAGE_TOKENS, 2 * pages)
    hello = Hello(PROTOCOL_VERSION, "epoch", [info], [tier.name for tier in tiers])
    for handle, context in enumerate(contexts):
        digest = f"{handle % ADAPTERS:064x}"
        runner.load_adapter(digest, "m", "")
        prompt = [1000 + (handle * 31 + i) % 100_000 for i in range(context)]
        who = f"req_{handle}", "epoch", "m", digest, f"ns{handle % 8}", tiers[handle % 3].name, f"share{handle % 8}"
        frame = Submit(handle, *who, prompt, new_tokens, Sampling(seed=handle), [2])
        inbox.receive(handle % GATEWAYS, frame, time.monotonic(), 0)

    for handle in range(sequences, sequences + waiting):  # of the lowest tier, which can preempt no request
        prompt = [1000 + (handle * 31 + i) % 100_000 for i in range(CONTEXT_MIN)]
        who = f"req_{handle}", "epoch", "m", None, f"ns{handle % 64}", tiers[-1].name, f"share{handle % 64}"
        frame = Submit(handle, *who, prompt, new_tokens, Sampling(seed=handle), [2])
        inbox.receive(handle % GATEWAYS, frame, time.monotonic(), 0)

    def send(batch: list[OutgoingFrames]) -> None:
        measured = len(scheduler.complete_s)
        assert measured >= steps or not any(outgoing.ended for outgoing in batch), "a request was refused or ended"
        if measured == steps:
            inbox.put(Stop("measured"))

    worker = EngineLoop(
        hello=hello, scheduler=scheduler, runner=runner, inbox=inbox, progress=LoopProgress(), send=send
    )
    gc.collect()
    gc.freeze()  # as `python -m engine` does
    worker.run()
    rounds = [b - a for a, b in zip(scheduler.completed_at, scheduler.completed_at[1:], strict=False)]
    parts = zip(rounds, scheduler.schedule_s[1:], scheduler.complete_s[1:], strict=False)
    return {
        "schedule_us": statistics.median(scheduler.schedule_s) * 1e6,
        "complete_us": statistics.median(scheduler.complete_s) * 1e6,
        "scheduler_us": statistics.median(map(sum, zip(scheduler.schedule_s, scheduler.complete_s, strict=False)))
        * 1e6,
        "publish_us": statistics.median(total - schedule - complete for total, schedule, complete in parts) * 1e6,
        "step_us": statistics.median(rounds) * 1e6,
        "step_p99_us": statistics.quantiles(rounds, n=100)[98] * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--waiting", default="0,50,500,5000", help="how many wait, one measurement each")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--note", default="")
    arguments = parser.parse_args()
    machine = f"{platform.machine()} {os.cpu_count()} cores, Python {platform.python_version()}"
    for waiting in map(int, arguments.waiting.split(",")):
        found = measure(arguments.sequences, waiting, arguments.steps)
        workload = (
            f"{arguments.sequences} decoding, {CONTEXT_MIN} to {CONTEXT_MAX} tokens, pages of {PAGE_TOKENS}, "
            f"{ADAPTERS} adapters, {GATEWAYS} gateways, {waiting} waiting"
        )
        print(f"{waiting} waiting:")
        append_rows("scheduler_step", found, machine, workload, arguments.note)


if __name__ == "__main__":
    main()
