"""A simulated engine around the scheduler with independent books: memory whose contents reveal any page used twice,
adapters packed into tiles, and a model whose next id depends on every id before it. Its device computes a step when the
step is begun, and reports the result when it is completed: work on a device is in order, so later work sees the step as
done.

It reads little of the scheduler's own state: `check_integrity`, the requests that are owed their run, and the
reservations for them.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from engine.memory.adapter_residency import AdapterResidency
from engine.memory.arena import Arena
from engine.protocol.frames import Sampling
from engine.protocol.tiers import SHIPPED_TIERS, Tier
from engine.scheduler.entry import Entry
from engine.scheduler.results import MASK_LATE_S, MASK_SKIPS_MAX
from engine.scheduler.scheduler import ModelLimits, Refusal, RequestEnding, Scheduler, StepOutcome
from engine.step import PENDING_ID, AdapterTable, Chunk, Sequence, Step, StepResult, WeightsMove, WeightsTable

VOCAB = 97
STOP_ID = 5
# Consecutive looks of 10 ms without a step, while adapters or weights load, after which the run counts as stuck.
IDLE_MAX = 3000


class Clock:
    """Time that only tests move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def state_after(state: int, token: int) -> int:
    """The state that a token's KV represents: all ids up to it."""
    return (state * 1_000_003 + token + 1) % (2**61 - 1)


def root_state(model: str, adapter: str | None) -> int:
    return sum((i + 1) * ord(c) for i, c in enumerate(f"{model}/{adapter}"))


def next_id(state: int) -> int:
    return state % VOCAB


def uninterrupted(sequence: Sequence) -> list[int]:
    """The ids that the request makes when it runs alone in unlimited memory."""
    state = root_state(sequence.model, sequence.adapter)
    for token in sequence.prompt_ids:
        state = state_after(state, token)
    made: list[int] = []
    while len(made) < sequence.max_tokens:
        made.append(next_id(state))
        if made[-1] in sequence.stop_ids:
            break
        state = state_after(state, made[-1])
    return made


class Memory:
    """The contents of every page: rows of KV (state, namespace), or tiles of adapters."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], tuple[int, str]] = {}
        self.tiles: dict[int, dict[str, int]] = {}  # page → adapter → its tiles there


@dataclass(frozen=True)
class Move:
    """An engine.step.AdapterMove."""

    digest: str
    source: str = "disk"
    seconds: float = 0.0
    error: str = ""


class TileTable:
    """An engine.step.AdapterTable whose adapters are packed first-fit into tiles, so that they share pages. A requested
    adapter is ready a fixed number of polls later, in one of a few slots; from there it is placed in the arena, or is
    evicted for another. No adapter is placed that was not promised since the last poll."""

    TILES_PER_PAGE = 4

    def __init__(
        self, memory: Memory, adapters: dict[str, tuple[str, int]], polls: int = 0, places: int = 1000
    ) -> None:
        """`adapters`: digest → (model, tiles)."""
        self._memory = memory
        self.adapters = dict(adapters)
        self.adapters_max = None
        self._resident: list[str] = []
        self.placed = 0
        self.dropped = 0
        self.failing: set[str] = set()
        self._polls = polls
        self._places = places
        self._coming: dict[str, int] = {}  # digest → polls until it is near
        self._near: list[str] = []  # least recently promised first
        self._promised: set[str] = set()
        self.wanted: set[str] = set()

    def evictions(self) -> int:
        return self.dropped

    def adapter_location(self, digest: str) -> str:
        return "device" if digest in self._resident else "host" if digest in self._near else "disk"

    def adapter_locations(self, limit: int) -> tuple[list[tuple[str, str, int]], int]:
        order = [*self._resident, *(digest for digest in self.adapters if digest not in self._resident)]
        return [(digest, self.adapter_location(digest), self.adapters[digest][1]) for digest in order[:limit]], len(
            order
        )

    def request_load(self, digest: str, *, urgent: bool = False) -> bool:
        self.wanted.add(digest)
        if digest in self._resident or digest in self._near or digest in self._coming:
            return True
        if len(self._coming) + len(self._near) >= self._places:
            idle = [near for near in self._near if near not in self._promised]
            if not urgent or not idle:
                return False
            self._near.remove(idle[0])
            self.dropped += 1
        self._coming[digest] = self._polls
        return True

    def cancel_load(self, digest: str) -> None:
        self.wanted.discard(digest)
        self._coming.pop(digest, None)
        if digest in self._near:
            self._near.remove(digest)

    def is_adapter_ready(self, digest: str, *, hidden: bool) -> bool:
        if digest in self._resident:
            return True
        if digest not in self._near:
            self.request_load(digest, urgent=True)
            if self._coming.get(digest) != 0 or digest in self.failing:
                return False
            del self._coming[digest]
            self._near.append(digest)
        self._near.remove(digest)
        self._near.append(digest)
        self._promised.add(digest)
        return True

    def poll_adapters(self) -> list[Move]:
        self._promised.clear()
        moves = []
        for digest, polls in list(self._coming.items()):
            self._coming[digest] = polls - 1
            if polls <= 1:
                del self._coming[digest]
                error = "made to fail" if digest in self.failing else ""
                moves.append(Move(digest, error=error))
                if not error:
                    self._near.append(digest)
                    self._promised.add(digest)
        return moves

    def pin_adapter(self, digest: str, pinned: bool) -> None:
        pass

    def is_known(self, digest: str, model: str) -> bool:
        return digest in self.adapters and self.adapters[digest][0] == model

    def _free_tiles(self) -> dict[int, int]:
        return {page: self.TILES_PER_PAGE - sum(tiles.values()) for page, tiles in self._memory.tiles.items()}

    def has_room(self) -> bool:
        return True

    def pages_needed(self, digest: str) -> int:
        if digest in self._resident:
            return 0
        lacking = self.adapters[digest][1] - sum(self._free_tiles().values())
        return max(0, -(-lacking // self.TILES_PER_PAGE))

    def pages_alone(self, digest: str) -> int:
        return -(-self.adapters[digest][1] // self.TILES_PER_PAGE)

    def pages_of(self, digest: str) -> list[int]:
        return [page for page, tiles in self._memory.tiles.items() if digest in tiles]

    def place_adapter(self, digest: str, pages: list[int]) -> None:
        assert len(pages) == self.pages_needed(digest)
        if digest in self._resident:
            return
        assert digest in self._promised, "it is placed, and was not promised to be near"
        self._near.remove(digest)
        for page in pages:
            assert page not in self._memory.tiles, f"page {page} holds tiles already"
            self._memory.tiles[page] = {}
        left = self.adapters[digest][1]
        for page, free in self._free_tiles().items():
            taken = min(left, free)
            if taken:
                self._memory.tiles[page][digest] = taken
                left -= taken
        assert left == 0
        self.placed += 1
        self._resident.append(digest)

    def resident(self) -> list[str]:
        return list(self._resident)

    def use(self, digest: str) -> None:
        self._resident.remove(digest)
        self._resident.append(digest)

    def evict_adapter(self, digest: str) -> list[int]:
        assert digest in self._resident
        self._resident.remove(digest)
        for tiles in self._memory.tiles.values():
            tiles.pop(digest, None)
        empty = [page for page, tiles in self._memory.tiles.items() if not tiles]
        for page in empty:
            del self._memory.tiles[page]
        return empty


class Slots:
    """An engine.step.HostPool whose slots hold rows of KV, as pages do. A row that is overwritten, or copied too late
    or to the wrong page, is detected when a token is computed on it."""

    def __init__(self, memory: Memory, slots: int, page_tokens: int, page_copy_s: float) -> None:
        self.slots = slots
        self.page_copy_s = page_copy_s
        self.copied_out = self.copied_in = 0  # pages
        self._memory = memory
        self._page_tokens = page_tokens
        self._held: dict[int, list[tuple[int, str] | None]] = {}

    def copy_out(self, pages: list[int], slots: list[int]) -> None:
        assert len(pages) == len(slots) == len(set(slots))
        for page, slot in zip(pages, slots, strict=True):
            assert 0 <= slot < self.slots
            assert page not in self._memory.tiles, f"page {page} holds an adapter's tiles"
            self._held[slot] = [self._memory.rows.get((page, i)) for i in range(self._page_tokens)]
        self.copied_out += len(pages)

    def copy_in(self, slots: list[int], pages: list[int]) -> None:
        assert len(pages) == len(slots) == len(set(pages))
        for slot, page in zip(slots, pages, strict=True):
            assert page not in self._memory.tiles, f"page {page} holds an adapter's tiles"
            for i, row in enumerate(self._held[slot]):
                self._memory.rows.pop((page, i), None)
                if row is not None:
                    self._memory.rows[page, i] = row
        self.copied_in += len(pages)


class Vault:
    """An engine.step.WeightsTable whose loads take `load_s` of the auditor's clock. It detects a load without space, a
    step of an absent model, and bytes that are freed while a step still reads them."""

    def __init__(self, sizes: dict[str, int], bytes_max: int | None, load_s: float, clock: Clock) -> None:
        """Make the models that fit resident, in their order."""
        self.sizes = dict(sizes)
        self.bytes_max = bytes_max
        self.load_s = load_s
        self.there: set[str] = set()
        self.coming: dict[str, float] = {}  # loading model → when its load ends
        self.failing: set[str] = set()
        self.loads: list[tuple[float, str]] = []  # (time, model) of each begun load
        self.drops: list[tuple[float, str]] = []  # (time, model) of each eviction
        self.on_disk: set[str] = set()  # models whose weights are only in their files unless resident
        self._clock = clock
        self._begun = self._completed = 0  # steps
        self._read: list[tuple[int, int]] = []  # freed bytes, and the last step that may read them
        for model, size in sizes.items():
            if self.free_bytes() >= size:
                self.there.add(model)

    def weights_bytes(self, model: str) -> int:
        return self.sizes[model]

    def free_bytes(self) -> int:
        if self.bytes_max is None:
            return 2**60
        held = sum(self.sizes[model] for model in (*self.there, *self.coming))
        return self.bytes_max - held - sum(size for size, step in self._read if step > self._completed)

    def weights_location(self, model: str) -> str:
        return "device" if model in self.there else "disk" if model in self.on_disk else "host"

    def load_seconds(self, model: str) -> float:
        if model in self.there:
            return 0.0
        return max(0.0, self.coming[model] - self._clock.now) if model in self.coming else self.load_s

    def prefetch_weights(self, model: str) -> None:
        self.on_disk.remove(model)

    def begin_load(self, model: str) -> None:
        assert model not in self.there
        assert model not in self.coming
        assert self.free_bytes() >= self.sizes[model], f"no room for {model}"
        self.coming[model] = self._clock.now + self.load_s
        self.loads.append((self._clock.now, model))

    def evict_weights(self, model: str) -> None:
        assert model in self.there or model in self.coming
        self.coming.pop(model, None)
        if model in self.there:
            self.there.remove(model)
            self.drops.append((self._clock.now, model))
            self._read.append((self.sizes[model], self._begun))

    def poll_weights(self) -> list[WeightsMove]:
        came = [model for model, at in self.coming.items() if at <= self._clock.now]
        for model in came:
            del self.coming[model]
            if model not in self.failing:
                self.there.add(model)
        return [
            WeightsMove(model, "host", self.load_s, "made to fail" if model in self.failing else "") for model in came
        ]

    @property
    def is_reclaiming(self) -> bool:
        return any(step > self._completed for _, step in self._read)

    # ---- the house's

    def begins(self, step: Step) -> None:
        assert step.model in self.there, f"a step of {step.model}, which is not there"
        self._begun += 1

    def completes(self) -> None:
        self._completed += 1


@dataclass
class Books:
    """The auditor's state of one request."""

    sequence: Sequence
    made: list[int] = field(default_factory=list)
    ending: RequestEnding | None = None
    abort_asked: bool = False
    failed: bool = False
    skips: int = 0  # draws skipped in a row
    skipped_since: float = 0.0  # when the first of them was completed
    drawn: list[int] = field(default_factory=list)  # by steps in flight, oldest first: known to the device alone


@dataclass
class Flight:
    """A step in flight, and its results on the device."""

    step: Step
    ids: list[int | None]
    skipped: frozenset[int] = frozenset()


class House:
    """A scheduler, its memory and its auditor. Every step is checked."""

    def __init__(
        self,
        *,
        tiers: tuple[Tier, ...] = SHIPPED_TIERS,
        models: tuple[str, ...] = ("base",),
        pages: int = 64,
        page_tokens: int = 4,
        context_tokens: int = 10_000,
        adapters: dict[str, tuple[str, int]] | None = None,
        step_tokens_max: int = 32,
        prefill_tokens_min: int = 4,
        sequences_max: int = 8,
        namespace_quota: float = 0.25,
        steps_ahead: int = 0,
        host_slots: int = 0,
        page_copy_s: float = 0.0,
        adapter_polls: int = 0,
        adapter_places: int = 1000,
        weights: dict[str, int] | None = None,
        weights_max: int | None = None,
        load_s: float = 0.03,
        residence_s: float = 2.0,
        pinned_models: tuple[str, ...] = (),
        **settings: Any,
    ) -> None:
        """`weights`: bytes by model, under a budget of `weights_max`; `settings`: further settings of the scheduler.
        `adapter_polls`: polls until a requested adapter is ready; `adapter_places`: slots of ready adapters."""
        self.clock = Clock()
        self.tiers = tiers
        self.page_tokens = page_tokens
        self.memory = Memory()
        self.table = TileTable(self.memory, adapters or {}, adapter_polls, adapter_places)
        self.slots = Slots(self.memory, host_slots, page_tokens, page_copy_s)
        self.arena = Arena(pages, 1)
        self.context_tokens = context_tokens
        self.vault = Vault(weights, weights_max, load_s, self.clock) if weights else None
        self.scheduler = Scheduler(
            tiers,
            {model: self.limits(model in pinned_models) for model in models},
            self.arena,
            cast(AdapterTable, self.table),
            self.clock,
            step_tokens_max=step_tokens_max,
            prefill_tokens_min=prefill_tokens_min,
            sequences_max=sequences_max,
            namespace_quota=namespace_quota,
            steps_ahead=steps_ahead,
            host_pool=self.slots if host_slots else None,
            weights=cast(WeightsTable | None, self.vault),
            weights_residence_s=residence_s,
            **settings,
        )
        # A floor guarantees pages and slots, not weights: preemptions to evict a model's weights are not checked.
        capacity, residency = self.scheduler._capacity, self.scheduler.weight_residency
        self._preempt, capacity._preempt = capacity._preempt, self._check_preemption
        self._evacuate, residency._evacuate = residency._evacuate, self._evacuate_unchecked
        self.step_tokens_max = step_tokens_max
        self.sequences_max = sequences_max
        self.books: dict[int, Books] = {}
        self.steps = 0
        self.seconds = 0.0
        self.overrun = 0
        self.overrun_chunks = 0
        self.left_out: set[int] = set()  # handles of requests that could have decoded in the step before
        self.steps_ahead = steps_ahead
        self.pinned: set[str] = set()
        self.flights: deque[Flight] = deque()
        self.excused = Counter[int]()  # handle → preemptions although it was owed its run: see _lacks_floor
        self.faults_made = False  # set by tests that make the scheduling of some requests raise
        self.faulty: list[RequestEnding] = []  # the requests whose scheduling raised

    # ---- models

    def limits(self, pinned: bool = False) -> ModelLimits:
        return ModelLimits(self.context_tokens, self.page_tokens, vocab_size=VOCAB, pinned=pinned)

    def add_model(self, model: str, size: int = 1, *, pinned: bool = False) -> str:
        if self.vault:
            self.vault.sizes[model] = size
        return self.scheduler.add_model(model, self.limits(), pinned=pinned)

    def forget_model(self, model: str) -> bool:
        """Forget the model as the worker does: once no request or step uses it."""
        self.scheduler.retire_model(model)
        if self.scheduler.uses_model(model):
            return False
        label = self.scheduler.served.labels.index(model)
        self.scheduler.forget_model(model)
        assert not self.scheduler.prefix.labelled(label), "a page of a model that was removed"
        own = {adapter for adapter, (of, _) in self.table.adapters.items() if of == model}
        assert not any(own & set(tiles) for tiles in self.memory.tiles.values()), (
            "a forgotten model's adapter left tiles"
        )
        self.pinned -= own
        for adapter in own:
            self.table.cancel_load(adapter)
        if self.vault:
            assert model not in self.vault.there
            assert model not in self.vault.coming
        return True

    # ---- asking

    def sequence(self, tokens: int | list[int] = 8, max_tokens: int = 4, **changes: object) -> Sequence:
        handle = len(self.books)
        fields: dict[str, object] = {
            "handle": handle,
            "gateway": 0,
            "request_id": f"req_{handle}",
            "model": "base",
            "adapter": None,
            "namespace": "ns",
            "tier": self.tiers[len(self.tiers) // 2].name,
            "share": "tenant",
            # Different first ids: nothing is shared unless a test gives the ids.
            "prompt_ids": [(handle * 7 + i * 3) % VOCAB for i in range(tokens)] if isinstance(tokens, int) else tokens,
            "max_tokens": max_tokens,
            "sampling": Sampling(),
            "stop_ids": frozenset(),
            "arrived_at": self.clock.now,
        }
        return Sequence(**(fields | changes))  # type: ignore[arg-type]

    def resume(self, sequence: Sequence, resumed: int) -> Sequence:
        """Let another engine have made its first `resumed` ids, or as many as it may have made before it stopped."""
        made = uninterrupted(sequence)
        sequence.resumed = min(resumed, len(made) - 1)
        sequence.output_ids = made[: sequence.resumed]
        return sequence

    def offer(self, sequence: Sequence) -> Refusal | None:
        refusal = self.scheduler.submit(sequence)
        if refusal is None:
            self.books[sequence.handle] = Books(sequence)
        return refusal

    def take_displaced(self) -> None:
        """Note the requests that were displaced from a full queue: they have ended."""
        for displaced, _ in self.scheduler.take_displaced():
            assert not displaced.output_ids, f"{displaced.request_id} had run, and lost its place in the queue"
            self.books[displaced.handle].ending = RequestEnding(displaced, "aborted")

    def submit(self, tokens: int | list[int] = 8, max_tokens: int = 4, **changes: object) -> Sequence:
        """Submit a request that must be accepted."""
        sequence = self.sequence(tokens, max_tokens, **changes)
        refusal = self.offer(sequence)
        assert refusal is None, refusal
        return sequence

    def abort(self, sequence: Sequence) -> None:
        self.books[sequence.handle].abort_asked = True
        ended = self.scheduler.abort(sequence.gateway, sequence.handle)
        if ended:
            self._end(ended)

    def pin(self, adapter: str, pinned: bool) -> None:
        if not self.scheduler.pin_adapter(adapter, pinned):
            self.pinned.discard(adapter)
            self.pinned |= {adapter} if pinned else set()

    def unload(self, adapter: str) -> None:
        """Unload as the worker does, once no request or step uses it."""
        self.pinned.discard(adapter)
        self.scheduler.remove_adapter(adapter)
        assert not any(adapter in tiles for tiles in self.memory.tiles.values()), "an unloaded adapter left tiles"
        self.table.cancel_load(adapter)

    # ---- steps

    def schedule(self) -> Step | None:
        """Schedule, audit the step plan, and begin the step."""
        before = [(sequence, sequence.preemptions) for sequence in self.running()]
        resident = set(self.table.resident())
        pinned = self.pinned & resident
        waited = {books.sequence.adapter: books.sequence.tier for books in self.books.values() if not books.ending}
        faults = self.scheduler.faults.count
        step = self.scheduler.schedule(self.flights[-1].skipped if self.flights else frozenset())
        evicted = resident - set(self.table.resident())
        assert not pinned & evicted, "a pinned adapter was evicted"
        self._check_adapters(waited)
        for ended in self.scheduler.take_failed():
            self._end(ended)
        self.scheduler.check_integrity()
        decoding = [sequence for sequence, preemptions in before if sequence.preemptions == preemptions]
        decoding = [sequence for sequence in decoding if self._can_decode(sequence)]
        if step is None:
            assert self.flights or not self.live() or self.scheduler.has_blocked_requests
            assert not decoding, f"{decoding[0].request_id} could decode"
            return None
        assert step.chunks, "an empty step"
        assert sum(chunk.count for chunk in step.chunks) <= self.step_tokens_max
        in_step = {chunk.sequence.handle for chunk in step.chunks}
        assert len(in_step) == len(step.chunks)
        assert len(self.running()) <= self.sequences_max
        victims = [s for s, preemptions in before if s.preemptions > preemptions]
        left_out = [s for s in decoding if s.model == step.model and s.handle not in in_step]
        # Others may have waited for a request whose planning then raised.
        excused = self.scheduler.faults.count > faults
        self._check_left_out(step, left_out, excused=excused)
        if not excused:
            self._check_first_requests([s for s, _ in before], victims)
            self._check_nobody_waits_for_borrowed_pages(step, evicted)
            self._check_owed(step)
        if self.vault:
            self.vault.begins(step)
        self.flights.append(Flight(step, [self._compute(chunk) for chunk in step.chunks]))
        return step

    def skip(self, *handles: int) -> None:
        """The masks of these requests are not ready for the draw of the newest step."""
        flight = self.flights[-1]
        assert not flight.skipped
        indices = [i for i, chunk in enumerate(flight.step.chunks) if chunk.sequence.handle in handles]
        for index in indices:
            assert flight.step.chunks[index].sample
            self.books[flight.step.chunks[index].sequence.handle].drawn.pop()
            flight.ids[index] = None
        flight.skipped = frozenset(indices)

    def complete(self, seconds: float = 0.01, errors: dict[int, str] | None = None) -> StepOutcome:
        """Complete the oldest step in flight, and audit its outcome."""
        flight = self.flights.popleft()
        if self.vault:
            self.vault.completes()
        result = StepResult(flight.ids, errors or {}, skipped=flight.skipped)
        self.steps += 1
        self.seconds += seconds
        self.clock.now += seconds
        alive: list[Sequence] = []
        for index, chunk in enumerate(flight.step.chunks):
            books = self.books[chunk.sequence.handle]
            drew = chunk.sample and index not in flight.skipped
            if drew:
                del books.drawn[0]
            if books.ending:
                self.overrun += drew and index not in result.errors
                self.overrun_chunks += 1
                continue
            skipped = index in flight.skipped
            if skipped and not books.skips:
                books.skipped_since = self.clock.now
            books.skips = 0 if drew else books.skips + skipped
            late = books.skips >= MASK_SKIPS_MAX and self.clock.now - books.skipped_since >= MASK_LATE_S
            books.failed |= index in result.errors or (skipped and late)
            if drew and index not in result.errors:
                alive.append(chunk.sequence)
        outcome = self.scheduler.complete(flight.step, result, seconds)
        if self.faults_made:  # the id of a request is discarded if taking it in raised
            # An id that was taken in before the request's ending raised is delivered.
            delivered = [sequence for sequence, _ in outcome.tokens]
            raised = [ended.sequence for ended in outcome.ended if ended.message.startswith("internal error: ")]
            faulty = [sequence for sequence in raised if sequence not in delivered]
            self.overrun += sum(sequence in faulty for sequence in alive)
            alive = [sequence for sequence in alive if sequence not in faulty]
        assert [sequence for sequence, _ in outcome.tokens] == alive, "an id for who had ended, or none for who had not"
        for sequence, token in outcome.tokens:
            self.books[sequence.handle].made.append(token)
        for ended in outcome.ended:
            self._end(ended)
        self.scheduler.check_integrity()
        return outcome

    def run(self, steps: int | None = None) -> int:
        """Complete steps until no work is left, or `steps` of them; before each, begin as many as may be in flight.
        Returns the number of completed steps."""
        count = idle = 0
        while steps is None or count < steps:
            while len(self.flights) <= self.steps_ahead and self.schedule():
                pass
            if self.flights:
                self.complete()
                count += 1
                idle = 0
            elif self.scheduler.has_blocked_requests:
                self.idle()
                idle += 1
                assert idle < IDLE_MAX, f"requests wait for ever: {self.live()[:3]}"
            else:
                break
        return count

    def idle(self, seconds: float = 0.01) -> None:
        """Advance the clock without a step."""
        self.clock.now += seconds

    def running(self) -> list[Sequence]:
        return [books.sequence for books in self.books.values() if books.sequence.pages]

    def live(self) -> list[Sequence]:
        return [books.sequence for books in self.books.values() if books.ending is None]

    def pages_held(self, sequence: Sequence) -> set[int]:
        """The request's pages and the pages of its adapter."""
        tiles = self.memory.tiles.items()
        return {*sequence.pages, *(page for page, adapters in tiles if sequence.adapter in adapters)}

    def held_by(self, tier: str) -> int:
        """Distinct pages that a tier holds, including its running requests' adapters."""
        adapters = {s.adapter for s in self.running() if s.tier == tier}
        tiles = {page for page, tiles in self.memory.tiles.items() if adapters & set(tiles)}
        return self.pages_of(tier) + len(tiles)

    def pages_of(self, tier: str) -> int:
        """Distinct KV pages that a tier holds."""
        return len({page for sequence in self.running() if sequence.tier == tier for page in sequence.pages})

    def check_the_end(self) -> None:
        """No pages are held, every request has ended, and every count adds up."""
        assert self.faults_made or not self.scheduler.faults.count, "a request's scheduling raised: see the log"
        assert not self.flights
        assert not self.live()
        assert not self.scheduler.has_work()
        assert self.scheduler.running == 0
        assert not any(self.scheduler.waiting().values())
        free = self.arena.free_pages() + self.scheduler.prefix.idle_pages()
        assert free + self.arena.adapter_pages() == self.arena.pages, "a page leaked"
        assert self.arena.adapter_pages() == len(self.memory.tiles)
        assert self.scheduler.swap.free_slots() == self.slots.slots, "a slot leaked"
        swapped = sum(books.sequence.swapped_tokens for books in self.books.values())
        assert self.scheduler.swap.tokens == swapped <= self.slots.copied_in * self.page_tokens
        assert self.slots.copied_in <= self.slots.copied_out
        device_s = sum(books.sequence.device_s for books in self.books.values())
        again = [r for books in self.books.values() for r in books.sequence.recomputed.values()]
        spent_s = device_s + sum(r.device_s for r in again) + self.scheduler.results.overrun_s
        assert abs(spent_s - self.seconds) < 1e-9 * max(1, self.steps)
        assert bool(self.overrun_chunks) == (self.scheduler.results.overrun_s > 0)
        for sequence in (books.sequence for books in self.books.values()):
            waited_s = (self.clock.now if sequence.started_at is None else sequence.started_at) - sequence.arrived_at
            assert sum(sequence.queue_device_s.values()) <= waited_s + 1e-9, "more than its wait"
        assert self.scheduler.results.tokens_overrun == self.overrun
        made = sum(len(books.made) for books in self.books.values())
        assert self.scheduler.results.tokens_made == made + self.overrun
        assert self.steps_ahead or self.faults_made or not self.overrun
        preemptions = sum(books.sequence.preemptions for books in self.books.values())
        assert self.scheduler.preemptions == preemptions

    # ---- promises

    def floor(self, tier: Tier, total: int) -> int:
        return int(tier.floor * total)

    def _evacuate_unchecked(self, model: str, rank: int | None) -> bool:
        """Preempt the requests of a model whose weights leave the device: floors do not protect them."""
        capacity = self.scheduler._capacity
        capacity._preempt = self._preempt
        try:
            return self._evacuate(model, rank)
        finally:
            capacity._preempt = self._check_preemption

    def _check_preemption(self, victim: Entry, cause: int) -> None:
        """Called in place of the scheduler's `preempt` before each preemption for room: a tier loses a request to
        another tier only while it holds more than its floor, of pages or of places."""
        tier = self.tiers[victim.tier]
        if cause != victim.tier:
            assert tier.preemptible, f"{tier.name} was preempted, and is not preemptible"
            over_pages = self.held_by(tier.name) > self.floor(tier, self.arena.pages)
            places = sum(s.tier == tier.name for s in self.running())
            over_places = places > self.floor(tier, self.sequences_max)
            assert over_pages or over_places, f"{tier.name} was preempted within its floor"
        elif victim.owed and self._lacks_floor(victim):
            self.excused[victim.sequence.handle] += 1
        self._preempt(victim, cause)

    def _lacks_floor(self, entry: Entry) -> bool:
        """Whether the floor of its tier is not enough for a request that is owed its run: it is promised to others, as
        the request's adapter lies in more pages than before, or its pages are held in common with other tiers."""
        running = self.scheduler._capacity.running[entry.tier]
        promised = sum(other.reserved for other in running if other is not entry)
        tiles = self.memory.tiles.values()
        need = self._pages_to_end(entry.sequence) + sum(entry.sequence.adapter in adapters for adapters in tiles)
        if promised + need > self.floor(self.tiers[entry.tier], self.arena.pages):
            return True
        return self._reach(entry.tier) <= self._common_pages()

    def _pages_to_end(self, sequence: Sequence) -> int:
        """KV pages with all tokens that it may make."""
        return -(-(len(sequence.prompt_ids) + sequence.max_tokens - 1) // self.page_tokens)

    def _check_first_requests(self, before: list[Sequence], victims: list[Sequence]) -> None:
        """A request is preempted for another share's first request only if that share runs nothing and its own share
        runs several. Its own share keeps at least one, and no request is preempted more often than its tier allows."""
        for sequence in victims:
            entry = self.scheduler._entries.get((sequence.gateway, sequence.handle))
            if not entry or not entry.preempted_for_share:
                continue
            tier = next(tier for tier in self.tiers if tier.name == sequence.tier)
            own = [s for s in before if s.tier == sequence.tier]
            assert not any(s.share == entry.preempted_for_share and s not in victims for s in own), (
                "it had a request that ran"
            )
            assert sequence.share != entry.preempted_for_share
            assert sequence.preemptions <= tier.preemptions_max, f"{sequence.request_id} was preempted too often"
            now = [s for s in self.running() if s.tier == sequence.tier]
            assert any(s.share == entry.preempted_for_share for s in now), "it was preempted in vain"
            assert any(s.share == sequence.share for s in now), "its share has nothing left that runs"

    def _check_adapters(self, waited: dict[str | None, str]) -> None:
        """A running request has its adapter; an adapter for which no request waits is not being loaded."""
        resident = set(self.table.resident())
        for sequence in self.running():
            assert sequence.adapter is None or sequence.adapter in resident, "an adapter in use was evicted"
        waiting = {sequence.adapter for sequence in self.live() if not sequence.pages}
        coming = self.pinned - set(self.table.resident())
        assert self.table.wanted <= waiting | coming, "an adapter is loading that no request waits for"
        assert waiting <= set(waited)

    def _check_left_out(self, step: Step, left_out: list[Sequence], *, excused: bool) -> None:
        """A request that could decode does, unless a higher tier prefills in its place, or other shares of a tier that
        its share crowds; and no request is passed over in two consecutive steps."""
        ranks = {tier.name: rank for rank, tier in enumerate(self.tiers)}
        prefilling = [chunk.sequence for chunk in step.chunks if self._prefills(chunk)]
        for sequence in left_out:
            rank = ranks[sequence.tier]
            higher = self.tiers[rank].preemptible and any(ranks[other.tier] < rank for other in prefilling)
            own = [other for other in prefilling if other.tier == sequence.tier and not self._crowds(other)]
            made_way = self._crowds(sequence) and own
            twice = sequence.handle in self.left_out
            for reason in (higher or made_way, not twice):
                assert reason or excused, f"{sequence.request_id} did not decode"
        self.left_out = {sequence.handle for sequence in left_out}

    def _crowds(self, sequence: Sequence) -> bool:
        """Whether the share crowds, by the scheduler's rule, which test_crowding.py tests."""
        entry = self.scheduler._entries[sequence.gateway, sequence.handle]
        return self.scheduler._queues[entry.tier].crowds(entry)

    def _prefills(self, chunk: Chunk) -> bool:
        return chunk.count > 1 or chunk.start < len(chunk.sequence.prompt_ids) or self._was_preempted(chunk)

    def _was_preempted(self, chunk: Chunk) -> bool:
        """Whether the request was preempted here, or resumed after another engine stopped."""
        return bool(chunk.sequence.preemptions or chunk.sequence.resumed)

    def _check_nobody_waits_for_borrowed_pages(self, step: Step, evicted: set[str]) -> None:
        """If requests of the highest tier wait after a step was planned that had tokens left, the pages that lower
        tiers hold above their floors would not be enough for all of them."""
        top, lower = self.tiers[0], self.tiers[1:]
        waiting = [s for s in self.live() if s.tier == top.name and not s.pages]
        # A request that is owed its run waits for pages of its own tier, and is not overtaken: see _check_owed.
        if any(self.scheduler._entries[s.gateway, s.handle].owed for s in waiting):
            return
        waiting = [s for s in waiting if s.model == step.model and not self._crowds(s)]
        # A preempted request joins again only after the step in flight; the requests behind it wait for it.
        if any(self._in_flight(s) for s in waiting):
            return
        # A request lacked room, and then lost its adapter to a lower tier that joined within its floor. From the next
        # step on the requests behind it may join before it.
        if any(s.adapter in evicted for s in waiting):
            return
        waiting = [s for s in waiting if s.adapter is None or self.table.adapter_location(s.adapter) != "disk"]
        tokens = sum(chunk.count for chunk in step.chunks)
        if (
            not waiting
            or tokens >= self.step_tokens_max
            or 0
            in self.scheduler._in_flight[-1].short_of_tokens  # it waits for tokens: a longer step would break a target
            or len({s.model for s in self.live()}) > 1
            or self.scheduler._first_requests.reserved_slots(0)  # it may wait for a reserved place
        ):
            return
        if len(self.running()) >= self.sequences_max - sum(self.floor(t, self.sequences_max) for t in lower):
            return
        reach = self._reach(0)
        needs = [-(-s.token_count() // self.page_tokens) + self._adapter_pages(s) for s in waiting]
        # Floors of lower tiers may later need other pages than the pages held in common: the tier leaves them free.
        limit = self.arena.pages - sum(self.floor(t, self.arena.pages) for t in lower) - self.held_by(top.name)
        if any(need + len(self.pages_held(s)) > limit for need, s in zip(needs, waiting, strict=True)):
            return
        headroom = sum(1 for s in self.running() if s.tier == top.name)
        assert max(needs) + headroom > reach - self._shared_pages(), (
            f"{top.name} waits for what others borrow: {max(needs)} pages and {headroom} to grow, {reach} in reach"
        )

    def _check_owed(self, step: Step) -> None:
        """After planning a step with tokens left, no tier that holds nothing has a waiting request that is owed its
        run, if the pages that its tier may take are enough for the oldest of them.

        They may be too few for a time. A tier's floor also counts pages that it holds in common with tiers that it
        cannot preempt. Once it gives up those pages, requests of the other tiers still hold them until they end."""
        scheduler = self.scheduler
        if sum(chunk.count for chunk in step.chunks) >= self.step_tokens_max:
            return
        owed = [e for e in scheduler._entries.values() if e.owed and not e.running and e.sequence.model == step.model]
        # A test may have replaced the object's method by a function that raises; the auditor calls the class's method.
        ready = partial(AdapterResidency.is_adapter_ready, scheduler.residency)
        oldest = {entry.tier: entry for entry in reversed(owed) if ready(entry.sequence.adapter)}
        for entry in oldest.values():
            own = entry.sequence
            if entry.in_flight or self._crowds(own):
                continue
            if entry.tier in scheduler._in_flight[-1].short_of_tokens or scheduler._capacity.running[entry.tier]:
                continue
            need = -(-own.token_count() // self.page_tokens) + self._adapter_pages(own)
            if (
                scheduler.weight_residency.can_join(own.model)
                and need <= self._reach(entry.tier) - self._common_pages()
            ):
                raise AssertionError(f"{own.request_id} is owed its run, and waits though its tier holds nothing")

    def _reach(self, rank: int) -> int:
        """Pages that a tier could take by evicting idle adapters and preempting what lower tiers hold above their
        floors. Pages that several tiers hold in common may be counted although they are not freed."""
        reach = self.arena.available() + self.arena.idle_adapter_pages()
        for other, tier in enumerate(self.tiers):
            over = self.held_by(tier.name) - self.floor(tier, self.arena.pages)
            if other > rank and (tier.preemptible or over < 0):
                reach += over
            elif other < rank and not self.tiers[rank].preemptible:
                reach += min(0, over)
        return reach

    def _common_pages(self) -> int:
        """Pages that requests of several tiers hold, their adapters' among them: each once per tier after the first, as
        it counts in the floors of all these tiers."""
        return sum(len(tiers) - 1 for tiers in self._holders().values())

    def _shared_pages(self) -> int:
        """Like `_common_pages`, with each page of an adapter at least once: it is freed only by its last holder."""
        holders = self._holders()
        pages = holders.keys() | self.memory.tiles.keys()
        return sum(max(len(holders.get(page, ())) - 1, page in self.memory.tiles) for page in pages)

    def _holders(self) -> dict[int, set[str]]:
        """Page → tiers whose running requests hold it."""
        tiers: dict[int, set[str]] = {}
        for sequence in self.running():
            for page in self.pages_held(sequence):
                tiers.setdefault(page, set()).add(sequence.tier)
        return tiers

    def _adapter_pages(self, sequence: Sequence) -> int:
        return self.table.pages_needed(sequence.adapter) if sequence.adapter is not None else 0

    def _in_flight(self, sequence: Sequence) -> bool:
        return any(chunk.sequence is sequence for flight in self.flights for chunk in flight.step.chunks)

    def _check_preemptions(self, sequence: Sequence) -> None:
        """A request that fits into its tier's floor is preempted at most `preemptions_max` + `excused` times."""
        tier = next(tier for tier in self.tiers if tier.name == sequence.tier)
        pages = self._pages_to_end(sequence)
        if sequence.adapter is not None:
            # At worst each tile of the adapter is in a separate page.
            pages += self.table.adapters[sequence.adapter][1]
        fits = pages <= self.floor(tier, self.arena.pages) and self.floor(tier, self.sequences_max) > 0
        assert not fits or sequence.preemptions <= tier.preemptions_max + self.excused[sequence.handle], (
            f"{sequence.request_id} was preempted too often"
        )

    # ---- inside

    def _can_decode(self, sequence: Sequence) -> bool:
        """Whether a request that ran before this step was planned has one token to compute, and is not ending."""
        if not sequence.pages or sequence.token_count() - sequence.computed != 1:
            return False
        return not self.books[sequence.handle].abort_asked and len(sequence.output_ids) < sequence.max_tokens

    def _compute(self, chunk: Chunk) -> int | None:
        """Write the chunk's rows, after checking that all rows before it are this sequence's, and of its namespace."""
        sequence = chunk.sequence
        books = self.books[sequence.handle]
        assert books.ending is None, f"{sequence.request_id} is computed after its ending"
        assert not books.abort_asked, f"{sequence.request_id} is computed after its abort"
        assert sequence.computed == chunk.start
        assert chunk.sample == (chunk.start + chunk.count == sequence.token_count())
        if sequence.adapter is not None:
            lying = sum(tiles.get(sequence.adapter, 0) for tiles in self.memory.tiles.values())
            assert lying == self.table.adapters[sequence.adapter][1], "its adapter does not lie in the arena"
            self.table.use(sequence.adapter)
        state = root_state(sequence.model, sequence.adapter)
        ids = sequence.tokens(0, chunk.start + chunk.count)
        pending = ids.count(PENDING_ID)
        if pending:
            assert chunk.count == 1, "only a decode's id is pending"
            ids[-pending:] = books.drawn[-pending:]
        for i, token in enumerate(ids):
            state = state_after(state, token)
            page = sequence.pages[i // self.page_tokens]
            assert page not in self.memory.tiles, f"page {page} holds an adapter's tiles"
            row = (page, i % self.page_tokens)
            if i < chunk.start:
                expected = (state, sequence.namespace)
                assert self.memory.rows.get(row) == expected, f"{sequence.request_id}: token {i} was overwritten"
            else:
                holders = [other for other in self.running() if page in other.pages]
                assert holders == [sequence], f"page {page} is written while shared"
                self.memory.rows[row] = (state, sequence.namespace)
        if not chunk.sample:
            return None
        assert sequence.token_count() - len(sequence.prompt_ids) < sequence.max_tokens, "an id too many"
        books.drawn.append(next_id(state))
        return books.drawn[-1]

    def _end(self, ended: RequestEnding) -> None:
        sequence = ended.sequence
        books = self.books[sequence.handle]
        assert books.ending is None, f"{sequence.request_id} ended twice"
        books.ending = ended
        assert PENDING_ID not in sequence.output_ids
        expected = uninterrupted(sequence)
        made = sequence.output_ids
        assert made[sequence.resumed :] == books.made, "an id was not reported, or a reported id was not made"
        assert made == expected[: len(made)], f"{sequence.request_id} differs from an uninterrupted run"
        assert not sequence.pages
        assert 0 <= sequence.cached_tokens < len(sequence.prompt_ids) + bool(sequence.resumed)
        assert sequence.preemptions or not sequence.recomputed_tokens
        assert sum(r.tokens for r in sequence.recomputed.values()) == sequence.recomputed_tokens
        self._check_preemptions(sequence)
        match ended.reason:
            case "stop":
                assert made == expected
                assert made[-1] in sequence.stop_ids
            case "length":
                assert made == expected
                assert len(made) == sequence.max_tokens
            case "aborted":
                assert books.abort_asked
            case "error":
                assert ended.message
                if self.faults_made and ended.message.startswith("internal error: "):
                    self.faulty.append(ended)
                    return
                unread = sequence.adapter in self.table.failing and "made to fail" in ended.message
                unread |= bool(self.vault and sequence.model in self.vault.failing and "its model" in ended.message)
                pinned = bool(self.pinned)  # pinned models may hold the pages that it lacks
                assert books.failed or unread or pinned or not self._fits_alone(sequence), "it failed for no reason"

    def _fits_alone(self, sequence: Sequence) -> bool:
        """Whether the arena can hold its tokens so far and its adapter, beside the floors that its tier cannot take."""
        tier = next(tier for tier in self.tiers if tier.name == sequence.tier)
        lower = self.tiers[self.tiers.index(tier) + 1 :]
        left_alone = lower if tier.preemptible else [other for other in self.tiers if other != tier]
        pages = -(-sequence.token_count() // self.page_tokens)
        if sequence.adapter is not None:
            pages += -(-self.table.adapters[sequence.adapter][1] // self.table.TILES_PER_PAGE)
        return pages + sum(int(other.floor * self.arena.pages) for other in left_alone) <= self.arena.pages

    def endings(self) -> Counter[str]:
        return Counter(books.ending.reason for books in self.books.values() if books.ending)
