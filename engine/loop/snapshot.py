"""A snapshot of the engine for watchers: the owner of each page, queues, running requests, where adapters are.

It is made on request in the loop's thread, between two steps. Therefore pages are counted as arrays and every list has
a limit. It only reads, and knows neither watchers nor tenants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Ordered
from itertools import chain, islice
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt

from engine.memory.arena import PageKind
from engine.protocol.frames import Snapshot
from engine.protocol.snapshot_parts import AdapterPlace, ModelPlace, PageOwner, Preemption, RequestState, TierState
from engine.scheduler.entry import Entry
from engine.scheduler.preemption_log import PreemptionRecord
from engine.scheduler.scheduler import Scheduler

REQUESTS_MAX = 256
ADAPTERS_MAX = 1024
# Cells of the map of pages. In a larger arena a cell represents several pages.
MAP_CELLS_MAX = 65_536
# A request's id is its gateway's, of any length.
REQUEST_ID_CHARS_MAX = 128

Owners = npt.NDArray[np.uint32]
PageMap = npt.NDArray[np.uint16]
# Kind, tier, model and adapter of a PageOwner.
PageOwnerKey = tuple[str, str | None, str | None, str | None]


def take_snapshot(
    scheduler: Scheduler,
    epoch: str,
    step: int,
    now: float,
    after: int | None,
    page_waste: Mapping[str, int] = MappingProxyType({}),
) -> Snapshot:
    """`now` by the scheduler's clock; `after`: the number of the preemption that was seen last, None for none;
    `page_waste` by model, see `step.Runner`."""
    tiers = [tier.name for tier in scheduler.tiers]
    owners, runs, cell = _arena(scheduler)
    places, known = scheduler.residency.adapter_locations(ADAPTERS_MAX)
    seen = scheduler.preempted.count if after is None else after
    return Snapshot(
        epoch=epoch,
        step=step,
        page_bytes=scheduler.arena.page_bytes,
        pages=scheduler.arena.pages,
        owners=owners,
        runs=runs,
        map_cell_pages=cell,
        tiers=_tiers(scheduler),
        requests=[_request(entry, now) for entry in islice(_in_flight(scheduler), REQUESTS_MAX)],
        requests_total=scheduler.request_count,
        preemptions=[_preemption(one, tiers, now) for one in scheduler.preempted.after(seen)],
        preempted=scheduler.preempted.count,
        adapters=[AdapterPlace(digest, where, size) for digest, where, size in places],  # type: ignore[arg-type]
        adapters_total=known,
        models=_models(scheduler, now, page_waste),
        weights_bytes=scheduler.weight_residency.bytes_max or 0,
    )


# ---- the arena


def _arena(scheduler: Scheduler) -> tuple[list[PageOwner], bytes, int]:
    """Owners that have a page, the runs of the map by their index, and how many pages a cell of it has."""
    owners: list[PageOwnerKey] = [("free", None, None, None)]
    owner_of = _unheld(scheduler, owners)
    _paint_adapters(scheduler, owner_of, owners)
    _paint_requests(scheduler, owner_of, owners)
    counts = np.bincount(owner_of, minlength=len(owners))
    shown = np.flatnonzero(counts)
    index = np.zeros(len(owners), np.uint16)
    index[shown] = np.arange(len(shown), dtype=np.uint16)
    held = [PageOwner(*owners[number], int(counts[number])) for number in shown.tolist()]  # type: ignore[arg-type]
    cell = -(-len(owner_of) // MAP_CELLS_MAX)
    return held, _runs(index[owner_of[::cell]], cell, len(owner_of)), cell


def _unheld(scheduler: Scheduler, owners: list[PageOwnerKey]) -> Owners:
    """The owner of each page: 0 is free; cached pages, by their label's model, and adapters are added to `owners`. The
    owners of held pages overwrite that."""
    kinds = np.frombuffer(scheduler.arena.kinds(), np.uint8)
    owner_of = np.zeros(len(kinds), np.uint32)
    cached = kinds == PageKind.CACHED
    labels, models = np.frombuffer(scheduler.prefix.labels, np.uint16)[cached], scheduler.served.labels
    present = np.flatnonzero(np.bincount(labels))
    owner_of_label = np.zeros(len(models) + 1, np.uint32)
    owner_of_label[present] = len(owners) + np.arange(len(present), dtype=np.uint32)
    owners += [("cached", None, models[label], None) for label in present.tolist()]
    owner_of[cached] = owner_of_label[labels]
    owner_of[kinds == PageKind.ADAPTER] = len(owners)
    owners.append(("adapter", None, None, None))
    return owner_of


def _paint_adapters(scheduler: Scheduler, owner_of: Owners, owners: list[PageOwnerKey]) -> None:
    """Make each of the first ADAPTERS_MAX adapters the owner of its pages; the other adapter pages have no name. A page
    with tiles of several adapters is shown as that of the first of them."""
    shown = list(islice(scheduler.residency.pages().items(), ADAPTERS_MAX))
    first = len(owners)
    owners += [("adapter", None, None, digest) for digest, _ in shown]
    _paint(owner_of, [(first + index, pages) for index, (_, pages) in reversed([*enumerate(shown)])])


def _paint_requests(scheduler: Scheduler, owner_of: Owners, owners: list[PageOwnerKey]) -> None:
    """Tier by tier, the highest last, so that a page that tiers share is attributed to the highest."""
    numbers: dict[PageOwnerKey, int] = {}
    held = []
    for running in reversed(scheduler.running_entries()):
        for entry in running:
            sequence = entry.sequence
            owner = ("kv", sequence.tier, sequence.model, sequence.adapter)
            held.append((numbers.setdefault(owner, len(owners) + len(numbers)), sequence.pages))
    owners += numbers
    _paint(owner_of, held)


def _paint(owner_of: Owners, held: Ordered[tuple[int, Ordered[int]]]) -> None:
    """A page that is named twice has the owner that was named last."""
    counts = [len(pages) for _, pages in held]
    pages = np.fromiter(chain.from_iterable(pages for _, pages in held), np.intp, sum(counts))
    owner_of[pages] = np.repeat(np.array([owner for owner, _ in held], np.uint32), counts)


def _runs(owner_of: PageMap, cell: int, pages: int) -> bytes:
    ends = np.append(np.flatnonzero(owner_of[1:] != owner_of[:-1]), len(owner_of) - 1)
    pairs = np.empty((len(ends), 2), "<u4")
    pairs[:, 0] = owner_of[ends]
    until = np.minimum((ends + 1) * cell, pages)
    pairs[0, 1] = until[0]
    pairs[1:, 1] = until[1:] - until[:-1]
    return pairs.tobytes()


# ---- models, requests, tiers, preemptions


def _models(scheduler: Scheduler, now: float, page_waste: Mapping[str, int]) -> list[ModelPlace]:
    residency = scheduler.weight_residency
    running = Counter(entry.sequence.model for entries in scheduler.running_entries() for entry in entries)
    waiting = Counter(entry.sequence.model for entry in scheduler.waiting_entries())
    tokens = scheduler.probes.token_times()
    return [
        ModelPlace(
            name=name,
            where=residency.weights_location(name),  # type: ignore[arg-type]
            coming=weights.loading,
            leaving=weights.leaving or name in scheduler.served.retired,
            pinned=weights.pinned,
            weights_bytes=weights.bytes,
            tokens_per_page=scheduler.models[name].tokens_per_page,
            page_waste_bytes=page_waste.get(name, 0),
            running=running[name],
            waiting=waiting[name],
            wait_s=scheduler.admission.weights_wait_s(name),
            loads=weights.loads,
            token_age_s=max(0.0, now - tokens[name].token_at) if name in tokens else None,
        )
        for name, weights in residency.models.items()
    ]


def _tiers(scheduler: Scheduler) -> list[TierState]:
    waiting, running = scheduler.waiting(), scheduler.running_entries()
    return [
        TierState(
            name=tier.name,
            waiting=waiting[tier.name],
            running=len(running[rank]),
            preempted=scheduler.preempted.by_tier[rank],
            floor_pages=scheduler.floor_pages(rank),
            held_pages=scheduler.arena.held(tier.name),
        )
        for rank, tier in enumerate(scheduler.tiers)
    ]


def _in_flight(scheduler: Scheduler) -> Iterator[Entry]:
    return chain(chain.from_iterable(scheduler.running_entries()), scheduler.waiting_entries())


def _request(entry: Entry, now: float) -> RequestState:
    sequence = entry.sequence
    state: Literal["waiting", "preempted", "prefill", "decode"]
    if entry.running:
        state = "prefill" if entry.remaining() > 1 else "decode"
    else:
        state = "preempted" if sequence.preemptions else "waiting"
    return RequestState(
        entry.number,
        sequence.request_id[:REQUEST_ID_CHARS_MAX],
        sequence.tier,
        sequence.model,
        sequence.adapter,
        state,
        len(sequence.prompt_ids),
        len(sequence.output_ids),
        now - sequence.arrived_at,
    )


def _preemption(one: PreemptionRecord, tiers: list[str], now: float) -> Preemption:
    kind: Literal["recompute", "swap"] = "swap" if one.swapped else "recompute"
    request_id = one.request_id[:REQUEST_ID_CHARS_MAX]
    return Preemption(one.number, now - one.at, request_id, tiers[one.tier], tiers[one.cause], kind)
