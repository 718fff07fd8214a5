"""A request in the scheduler: its sequence, which others see, and the scheduler's own state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.protocol.frames import TierRecompute
from engine.protocol.page_names import Chain
from engine.step import Chunk, Sequence

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(slots=True, eq=False)
class Entry:
    """Waits until `running`; out of all structures once `ended`. A running request holds pages, a sequence slot and its
    adapter. A request that was preempted or has ended may still have chunks in flight."""

    sequence: Sequence
    tier: int  # rank; 0 is the highest
    number: int  # order of arrival
    chain: Chain
    running: bool = False
    ended: bool = False
    in_flight: int = 0  # its chunks in steps in flight
    aborting: bool = False  # aborted while in flight: it ends when its next step is completed
    shared: int = 0  # pages that it shared from the prefix cache when it last joined
    published: int = 0  # number of its pages that were found in the prefix cache or published to it
    peak: int = 0  # the most tokens it ever had computed: computing below it is recomputing
    charged: int = 0  # tokens that its share was charged for, or found in the prefix cache
    delayed: bool = False  # its decode was left out of the last step, for other requests' prefill
    preempted_for: str = ""  # name of the tier for which it was preempted last
    owed: bool = False  # preempted `preemptions_max` times: it joins inside its tier's floor next, and runs to its end
    reserved: int = 0  # pages of the floor that are reserved for it while it runs
    first: bool = False  # its share's first request in the tier (first_requests.py)
    preempts_as_first: bool = False  # it joins as its share's first request, without headroom for others' growth
    slot_reserved: bool = False  # … in a slot that was preempted or reserved for it
    preempted_for_share: str = ""  # the share whose first request preempted it last; "": another cause
    skips: int = 0  # consecutive steps whose draw was skipped, because its mask was not ready
    skipped_since: float = 0.0  # when the first of `skips` was completed
    reports_prompt: bool = field(init=False)  # the request has prompt logprobs to report; looked up for each chunk
    reported: int = 0  # prompt tokens whose logits were reported, if `reports_prompt`
    pooled: int = 0  # prompt tokens whose hidden states are in `vector` or are not pooled
    vector: NDArray[Any] | None = None  # float32: the sum of the pooled hidden states so far
    tier_s_before: tuple[float, ...] = ()  # TierSeconds when it arrived
    has_run: bool = field(init=False)  # it ran here and was preempted, or ran on another engine (Submit.resumed)

    def __post_init__(self) -> None:
        sequence = self.sequence
        self.has_run = sequence.resumed > 0
        # The other engine reported the prompt, and its tokens were served before: recomputing them is free.
        self.reports_prompt = sequence.sampling.prompt_logprobs >= 0 and not self.has_run
        if self.has_run:
            self.charged = sequence.token_count()
        if sequence.pooling == "last":
            self.pooled = len(sequence.prompt_ids) - 1

    def must_report(self) -> bool:
        """Whether log probabilities of its prompt are still to be reported."""
        return self.reports_prompt and self.reported < len(self.sequence.prompt_ids) - 1

    def cacheable(self) -> int:
        """Tokens whose KV may be taken from the prefix cache instead of being computed: not those to be reported or
        pooled, and not the last one, whose logits or hidden state are read."""
        if self.must_report():
            return self.reported
        last = self.sequence.token_count() - 1
        return last if self.sequence.pooling is None else min(self.pooled, last)

    def is_last_in_flight(self) -> bool:
        """Whether the request has nothing left to compute once its chunks in flight are completed."""
        own = self.sequence
        return len(own.output_ids) >= own.max_tokens if own.max_tokens else self.remaining() == 0

    def remaining(self) -> int:
        """Tokens to compute before the next id can be sampled; 1: a decode."""
        return self.sequence.token_count() - self.sequence.computed

    def ready(self) -> bool:
        """A running request may be in the next step: not if it is certain to end with a step in flight."""
        if not self.in_flight:
            return True
        if self.aborting:
            return False
        own = self.sequence  # as `is_last_in_flight`, without the call: this runs for each decode of each step
        return len(own.output_ids) < own.max_tokens if own.max_tokens else self.remaining() > 0

    def account(self, chunk: Chunk, seconds: float, skipped: bool) -> None:
        """The request's chunk took `seconds` of the device. The part that was computed before is accounted to the tier
        that the request was preempted for. `skipped`: its last token is computed again, which is no recompute."""
        sequence = self.sequence
        computed = chunk.start + chunk.count
        if skipped:
            computed -= 1
        recomputed = min(self.peak, computed) - chunk.start
        if computed > self.peak:
            self.peak = computed
        if recomputed > 0:
            part = seconds * recomputed / chunk.count
            before = sequence.recomputed.get(self.preempted_for, TierRecompute())
            sequence.recomputed[self.preempted_for] = TierRecompute(before.tokens + recomputed, before.device_s + part)
            sequence.recomputed_tokens += recomputed
            seconds -= part
        sequence.device_s += seconds

    def lost_work(self) -> float:
        """Computed tokens that a preemption would lose per page that it frees. Shared pages are neither lost nor
        freed."""
        own_pages = len(self.sequence.pages) - self.shared
        own_tokens = self.sequence.computed - self.shared * self.chain.tokens_per_page
        return own_tokens / own_pages
