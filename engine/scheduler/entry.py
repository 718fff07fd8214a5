"""A request as the scheduler remembers it: the sequence that others see, and what nobody else need know."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.memory.prefix_cache import Chain
from engine.protocol.frames import TierRecompute
from engine.step import PENDING_ID, Chunk, Sequence


@dataclass(slots=True, eq=False)
class Entry:
    """Waiting until `running`; gone once `ended`. A running one holds pages, a place and its adapter. One that was
    preempted, or has ended, may still have chunks in flight."""

    sequence: Sequence
    tier: int  # rank; 0 is served first
    number: int  # order of arrival
    chain: Chain
    needs_ids: bool = field(init=False)  # of the sequence, asked once
    running: bool = False
    ended: bool = False
    in_flight: int = 0  # its chunks in steps that were begun and not completed
    aborting: bool = False  # aborted while in flight: it ends with the next step of its to be completed
    shared: int = 0  # pages that it found in the prefix cache when it last joined
    published: int = 0  # of its pages, those found in the prefix cache or offered to it
    peak: int = 0  # the most tokens it ever had computed: below it, computing is recomputing
    charged: int = 0  # tokens that its share has been charged for, or need not be
    delayed: bool = False  # of its last step: it did not decode, for a higher tier's prefill
    preempted_for: str = ""  # the tier for which it was preempted last
    owed: bool = False  # preempted often enough: it runs next inside its tier's floor, and then to its end
    reserved: int = 0  # pages of that floor which are its own while it runs so
    first: bool = False  # its share's first request in the tier (first_requests.py)
    preempts_as_first: bool = False  # it joins as its share's first, without headroom for others' growth
    slot_reserved: bool = False  # … in a place that was preempted or reserved for it
    preempted_for_share: str = ""  # the share whose first request preempted it last; "": the last cause was another

    def __post_init__(self) -> None:
        self.needs_ids = self.sequence.needs_ids()

    def remaining(self) -> int:
        """Tokens whose KV is still to be computed before the next id can be drawn; 1 is a decode."""
        return self.sequence.token_count() - self.sequence.computed

    def ready(self) -> bool:
        """A running one may be in the next step: not when it is sure to end with a step in flight; nor, if its draw
        needs the ids before it, while one of them is pending."""
        if not self.in_flight:
            return True
        output_ids = self.sequence.output_ids
        if self.aborting or len(output_ids) >= self.sequence.max_tokens:
            return False
        return not (output_ids and output_ids[-1] == PENDING_ID and self.needs_ids)

    def account(self, chunk: Chunk, seconds: float) -> None:
        """Its chunk was computed and took `seconds` of the device. What it had before is on the account of the tier for
        which it was preempted."""
        sequence = self.sequence
        computed = chunk.start + chunk.count
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
        """Computed tokens lost per page freed, were it preempted now. What it shares is neither lost nor freed."""
        own_pages = len(self.sequence.pages) - self.shared
        own_tokens = self.sequence.computed - self.shared * self.chain.tokens_per_page
        return own_tokens / own_pages
