"""What a watcher is told agrees with the books, page by page: whoever holds a page owns it on the map."""

from __future__ import annotations

import struct

import pytest

from engine.loop import snapshot
from engine.protocol.codec import FRAME_BYTES_MAX, decode_from_engine, encode
from engine.protocol.frames import Snapshot
from engine.protocol.snapshot_parts import PageOwner
from engine.scheduler.preemption_log import PREEMPTIONS_KEPT, PreemptionLog
from support.engine.scheduler_auditor import House

ADAPTERS = {"a": ("base", 3), "b": ("base", 6), "c": ("other", 5)}


def take(house: House, after: int | None = 0) -> Snapshot:
    return snapshot.take_snapshot(house.scheduler, "epoch", house.steps, house.clock(), after)


def painted(shot: Snapshot) -> list[PageOwner]:
    """The owner of each page, in page order."""
    return [shot.owners[index] for index, length in struct.iter_unpack("<II", shot.runs) for _ in range(length)]


def check(house: House) -> Snapshot:
    """The map is that of the sequences, the adapters and the prefix cache, each looked at by itself."""
    house.scheduler.check_integrity()
    shot = take(house)
    owners = painted(shot)
    assert len(owners) == shot.pages == house.arena.pages
    for owner in shot.owners:
        assert owner.pages == sum(other is owner for other in owners) > 0
    ranks = {tier.name: rank for rank, tier in enumerate(house.tiers)}
    holders: dict[int, list[tuple[str, str, str | None]]] = {}
    for books in house.books.values():
        one = books.sequence
        for page in one.pages:
            holders.setdefault(page, []).append((one.tier, one.model, one.adapter))
    resident = reversed(list(house.scheduler.residency.pages().items()))
    of_adapters = {page: digest for digest, pages in resident for page in pages}
    for page, owner in enumerate(owners):
        if page in holders:
            assert owner.kind == "kv"
            best = min(ranks[tier] for tier, _, _ in holders[page])
            assert (owner.tier, owner.model, owner.adapter) in holders[page]
            assert ranks[str(owner.tier)] == best
        elif page in house.memory.tiles:
            assert (owner.kind, owner.adapter) == ("adapter", of_adapters.get(page))
        elif house.arena.is_cached(page):
            assert owner.kind == "cached"
        else:
            assert owner.kind == "free"
    kinds = {kind: sum(one.pages for one in shot.owners if one.kind == kind) for kind in ("free", "cached", "adapter")}
    prefix = house.scheduler.prefix
    assert kinds == {
        "free": house.arena.free_pages(),
        "cached": prefix.idle_pages(),
        "adapter": house.arena.adapter_pages(),
    }
    for tier in shot.tiers:
        assert tier.held_pages == house.arena.held(tier.name)
    return shot


def test_the_map_agrees_with_the_books_at_every_step() -> None:
    house = House(models=("base", "other"), pages=40, adapters=ADAPTERS, sequences_max=6, host_slots=4)
    seen: set[tuple[str, str | None]] = set()
    for number in range(36):
        tier = ("batch", "standard", "premium")[number % 3]
        adapter = (None, "a", "b", "c")[number % 4]
        model = "other" if adapter == "c" or (number % 5 == 0 and adapter is None) else "base"
        ids = [7, 8, 9, 10, 11, 12, 13, 14] + [number % 4] * (number % 11)
        house.submit(ids, tier=tier, adapter=adapter, model=model, max_tokens=4 + number % 9)
        for _ in range(2):
            house.run(1)
            seen |= {(owner.kind, owner.model) for owner in check(house).owners}
    house.run()
    shot = check(house)
    assert {("kv", "base"), ("kv", "other"), ("cached", "base"), ("cached", "other")} <= seen
    assert {("adapter", None), ("free", None)} <= seen
    assert shot.requests_total == 0
    assert shot.preempted > 0, "the arena was never too small"
    assert sum(tier.preempted for tier in shot.tiers) == shot.preempted == house.scheduler.preemptions


def test_preemptions_come_once_each_and_say_who_caused_them() -> None:
    house = House(pages=8)
    house.submit(20, tier="batch", max_tokens=8)
    house.run(1)
    assert take(house, None).preemptions == []
    house.submit(16, tier="premium")
    house.clock.now += 1.0
    house.run(1)
    shot = take(house, 0)
    [one] = shot.preemptions
    assert (one.number, one.request_id, one.tier, one.caused_by) == (1, "req_0", "batch", "premium")
    assert one.kind == "recompute"
    assert take(house, shot.preempted).preemptions == []
    states = {request.request_id: request.state for request in shot.requests}
    assert states["req_0"] == "preempted"
    house.run()


def test_the_log_of_preemptions_is_bounded_and_keeps_counting() -> None:
    log, request = PreemptionLog(2), House().submit(4, 1)
    for number in range(PREEMPTIONS_KEPT + 10):
        log.record_preemption(float(number), request, 1, 0, swapped=False)
    assert [one.number for one in log.after(PREEMPTIONS_KEPT + 7)] == [PREEMPTIONS_KEPT + 8 + i for i in range(3)]
    assert [one.number for one in log.after(0)] == list(range(11, PREEMPTIONS_KEPT + 11))
    assert (log.count, log.by_tier) == (PREEMPTIONS_KEPT + 10, [0, PREEMPTIONS_KEPT + 10])


def test_every_list_has_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "REQUESTS_MAX", 3)
    monkeypatch.setattr(snapshot, "ADAPTERS_MAX", 2)
    house = House(adapters=ADAPTERS, models=("base", "other"), sequences_max=2)
    for number in range(6):
        house.submit(8, request_id=f"{number}" * 500, max_tokens=20)
    house.run(1)
    shot = take(house)
    assert [request.state == "waiting" for request in shot.requests] == [False, False, True]
    assert shot.requests_total == 6
    assert all(len(request.request_id) == snapshot.REQUEST_ID_CHARS_MAX for request in shot.requests)
    assert (len(shot.adapters), shot.adapters_total) == (2, 3)


def test_the_pages_of_adapters_beyond_the_limit_stay_some_adapter_s(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(adapters=ADAPTERS, models=("base", "other"))
    for digest, (model, _) in ADAPTERS.items():
        house.submit(8, adapter=digest, model=model)
    house.run()
    assert {one.adapter for one in check(house).owners if one.kind == "adapter"} >= set(ADAPTERS)
    monkeypatch.setattr(snapshot, "ADAPTERS_MAX", 1)
    shot = take(house)
    named = [one.adapter for one in shot.owners if one.kind == "adapter"]
    assert named == [None, "a"]
    assert sum(one.pages for one in shot.owners if one.kind == "adapter") == house.arena.adapter_pages()


def test_a_large_arena_is_shown_in_cells_whose_sum_is_the_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAP_CELLS_MAX", 10)
    house = House(pages=64)
    house.submit(50, max_tokens=20)
    house.run(1)
    shot = take(house)
    assert shot.map_cell_pages == 7
    assert sum(length for _, length in struct.iter_unpack("<II", shot.runs)) == 64
    assert len(shot.runs) // 8 <= 10
    assert sum(owner.pages for owner in shot.owners) == 64


def test_the_largest_snapshot_fits_a_frame() -> None:
    cells = struct.pack("<II", 1, 1) * snapshot.MAP_CELLS_MAX
    house = House()
    shot = take(house)
    frame = encode(Snapshot(**{name: getattr(shot, name) for name in shot.__struct_fields__} | {"runs": cells}))
    assert len(frame) < FRAME_BYTES_MAX / 8
    assert decode_from_engine(encode(shot)[4:]) == shot
