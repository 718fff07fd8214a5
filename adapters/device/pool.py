"""Which adapters are registered, loading, and resident in the device arena, as tiles packed first-fit.

The scheduler assigns pages; this module places tiles in them. It knows no requests and no tenants.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch

from adapters.device.host_cache import HostMemory
from adapters.device.host_weights import AdapterLayout, HostAdapter, Source, open_source, tile
from adapters.device.resident import Places, ResidentAdapter
from adapters.device.staging import CopyBuffer
from adapters.device.table import AdapterRows, RowForm
from adapters.device.tile_pages import TilePages, TilePlacement
from adapters.files.slab_order import TileSpan
from adapters.files.spec import AdapterRefused, BaseShape

# Host memory for adapters if the caller gives none.
HOST_BYTES = 256 << 20
# Bytes placed between two steps at most, if they are of several adapters: PLACE_BYTES_MAX by the host, STAGED_BYTES_MAX
# from a GPU's copy buffer. The GPU copies fast, but each adapter takes the host one or two milliseconds, which must end
# before the step in flight does.
PLACE_BYTES_MAX, STAGED_BYTES_MAX = 32 << 20, 128 << 20
# Copies of HIDDEN_BYTES_MAX together are assumed to end while the step in flight runs.
HIDDEN_BYTES_MAX = 128 << 20
# Cached page counts, by the tuple of tile sizes; adapters of equal rank share an entry.
SIZES_KEPT = 1024
# Seconds between two polls of a read for which `bring` waits.
WAIT_S = 0.0005


@dataclass(slots=True)
class _KnownAdapter:
    """A registered adapter and the models it is registered for. Its numbers are in a file (`source`), or in host memory
    that the caller allocated (`slab`, see `add_host_adapter`)."""

    layout: AdapterLayout
    base: BaseShape
    source: Source | None
    sizes: tuple[int, ...]  # of its tiles
    form: RowForm | None = None  # where there is a table of rows
    slab: torch.Tensor | None = None
    models: set[str] = field(default_factory=set)


class PoolMove(NamedTuple):
    """A completed part of an adapter's load: from "disk" to host memory, or from "host" memory to the device's copy
    buffer; with an `error`, a failed one."""

    digest: str
    source: str
    seconds: float
    error: str = ""


class TilePool:
    """Adapters by digest: registered, in host memory, in the arena. Structurally an `engine.step.AdapterTable`. One
    thread uses it; only `register_adapter` and `add_base` may run on others.

    A load: a thread reads the file into host memory; a GPU copies the slab into its copy buffer while steps run; then
    the adapter is ready, and `place_adapter` copies its tiles into pages, a few large copies in the order of the steps.
    `place_adapter` accepts an adapter that is not ready, and blocks until it is."""

    def __init__(
        self,
        arena: torch.Tensor,
        dtype: torch.dtype,
        bases: Mapping[str, BaseShape],
        rows: AdapterRows | None = None,
        *,
        host: HostMemory | None = None,
        staging: CopyBuffer | None = None,
    ) -> None:
        """`arena` [pages, page_bytes] uint8 on the device, contiguous; only pages given to `place_adapter` are written.
        `rows`: the table in which kernels find the tiles of resident adapters; tiles and rows are then written in the
        order of the current stream. Without `staging`, `place_adapter` copies from host memory."""
        assert arena.dtype == torch.uint8
        assert arena.dim() == 2
        assert arena.shape[1] % dtype.itemsize == 0
        self.rows = rows
        self.adapters_max = None if rows is None else int(rows.table.entries.shape[0])
        self.host = host or HostMemory(torch.empty(HOST_BYTES, dtype=torch.uint8))
        self.staging = staging
        self._arena = arena
        self._page_bytes = int(arena.shape[1])
        self._dtype = dtype
        self._bases: dict[str, BaseShape] = {}
        # Threads register bases and adapters, one thread forgets them.
        self._knowing = threading.Lock()
        self._place_bytes_max = PLACE_BYTES_MAX if staging is None else STAGED_BYTES_MAX
        self._known: dict[str, _KnownAdapter] = {}
        self._resident: dict[str, ResidentAdapter] = {}  # least recently used first
        self._pages = TilePages(self._page_bytes)
        # Tile placements by tile sizes, which many adapters share; valid until the free extents change.
        self._plans: dict[tuple[int, ...], TilePlacement] = {}
        self._alone: dict[tuple[int, ...], int] = {}  # tile sizes → pages of an adapter that shares no page
        self._wanted: set[str] = set()
        self._pinned: set[str] = set()
        # Since the last `poll_adapters`: adapters reported as ready or loaded, which are not evicted; and bytes placed.
        self._kept: set[str] = set()
        self._placed = 0
        self._full_host = self._full_staging = False  # the memory had no space even for an urgent load
        for model, base in bases.items():
            self.add_base(model, base)

    # ---- registration

    def add_base(self, model: str, base: BaseShape) -> None:
        """Allow adapters of this model. Raises ValueError. May run on any thread."""
        if self.rows is not None and base.layers > self.rows.layers:
            raise ValueError(f"it has {base.layers} layers; this engine's table of adapters is for {self.rows.layers}")
        with self._knowing:
            self._bases[model] = base

    def remove_base(self, model: str) -> None:
        """Forget a model, and its adapters that no other model uses. None of these adapters is resident."""
        with self._knowing:
            del self._bases[model]
            for digest, known in list(self._known.items()):
                known.models.discard(model)
                if not known.models:
                    self.unload(digest)

    def register_adapter(self, digest: str, model: str, path: Path) -> None:
        """Check an adapter's directory, without its numbers, and register it. Idempotent. Raises AdapterRefused,
        OSError. May run on any thread."""
        if self.is_known(digest, model):
            return
        base = self._base(model)
        source = open_source(path, base, self._dtype)
        for room, limit in ((self.host, "adapter_host_bytes"), (self.staging, "adapter_staging_bytes")):
            if room is not None and source.layout.bytes > room.bytes:
                raise AdapterRefused(f"it takes {source.layout.bytes} bytes; {limit} is {room.bytes}")
        with self._knowing:
            self._know(digest, model, source.layout, source)

    def _base(self, model: str) -> BaseShape:
        base = self._bases.get(model)
        if base is None:
            raise AdapterRefused(f"model {model!r} is not served here")
        return base

    def add_host_adapter(self, digest: str, model: str, host: HostAdapter) -> None:
        """Register an adapter whose slab is in memory that the caller allocated and is never evicted from there."""
        self._know(digest, model, host.layout, None)
        self._known[digest].slab = host.slab

    def _know(self, digest: str, model: str, layout: AdapterLayout, source: Source | None) -> None:
        assert layout.dtype == self._dtype
        if layout.cuts and layout.cuts[0].bytes > self._page_bytes:
            largest = layout.cuts[0]
            raise AdapterRefused(
                f"layers.{largest.layer}.{largest.module}: a tile of {largest.rank} rank rows takes {largest.bytes} "
                f"bytes, an arena page has {self._page_bytes}"
            )
        rank = layout.rank_max
        if self.rows is not None and rank > self.rows.rank_max:
            raise AdapterRefused(f"rank {rank}: this engine serves ranks up to {self.rows.rank_max} (adapter_rank_max)")
        base = self._base(model)
        form = None if self.rows is None else self.rows.form(layout.cuts, layout.scales)
        known = self._known.setdefault(
            digest, _KnownAdapter(layout, base, source, tuple(cut.bytes for cut in layout.cuts), form)
        )
        if known.base.modules != base.modules:  # its tiles contain the columns of stacked modules
            raise AdapterRefused(f"{digest} serves {min(known.models)}, whose modules have other sizes than {model}'s")
        known.models.add(model)

    def unload(self, digest: str) -> None:
        """Forget an adapter, which must not be resident."""
        assert digest not in self._resident
        self.cancel_load(digest)
        self.host.forget_adapter(digest)
        self._pinned.discard(digest)
        self._known.pop(digest, None)

    def is_known(self, digest: str, model: str) -> bool:
        return digest in self._known and model in self._known[digest].models

    # ---- loads

    def evictions(self) -> int:
        """Evictions from host memory since the start."""
        return self.host.evictions

    def adapter_location(self, digest: str) -> str:
        """Where it is: "device" (in the arena), "host" (in host memory) or "disk"."""
        if digest in self._resident:
            return "device"
        return "host" if self._slab(digest) is not None else "disk"

    def adapter_locations(self, limit: int) -> tuple[list[tuple[str, str, int]], int]:
        """(digest, location, bytes) of at most `limit` registered adapters, resident adapters first; and the number of
        all registered adapters."""
        known, resident = self._known, self._resident
        rest = (digest for digest in list(known) if digest not in resident)  # a copy: other threads add to it
        order = [*resident, *islice(rest, limit)][:limit]
        return [(digest, self.adapter_location(digest), known[digest].layout.bytes) for digest in order], len(known)

    def request_load(self, digest: str, *, urgent: bool = False) -> bool:
        """Begin or continue a load, beside the steps. An `urgent` load may evict adapters that waiting requests
        requested too. False: no memory for it now."""
        self._wanted.add(digest)
        if digest in self._resident:
            return True
        if self.staging is not None and self.staging.has(digest):
            return True
        slab = self._slab(digest)
        self.host.touch(digest)
        if slab is None:
            source = self._known[digest].source
            assert source is not None
            if not self._full_host:
                begun = self.host.fetch(digest, source, lambda other: self._may_leave_host(other, urgent=urgent))
                self._full_host = urgent and not begun
                return begun
            return False
        if self.staging is None:
            return True
        if not self._full_staging:
            begun = self.staging.begin_copy(digest, slab, lambda other: self._may_go(other, urgent=urgent))
            self._full_staging = urgent and not begun
            return begun
        return False

    def bring(self, digest: str) -> torch.Tensor:
        """Load into host memory, blocking until it is there. Returns its slab. Raises AdapterRefused."""
        while (slab := self._slab(digest)) is None:
            self._full_host = False
            self.request_load(digest, urgent=True)
            time.sleep(WAIT_S)
            for read in self.host.poll_reads():
                if read.error and read.digest == digest:
                    raise AdapterRefused(read.error)
        self._wanted.discard(digest)
        return slab

    def cancel_load(self, digest: str) -> None:
        """Cancel the load of an adapter. `poll_adapters` does not report it."""
        self._wanted.discard(digest)
        self.host.stop_read(digest)
        if self.staging is not None:
            self.staging.discard_copy(digest)

    def is_adapter_ready(self, digest: str, *, hidden: bool = False) -> bool:
        """Whether `place_adapter` would not block, until the next `poll_adapters`. If it would, the adapter's load gets
        priority over loads not requested now. `hidden`: a copy may still be in flight, because it ends during the step
        in flight, or because no other request would wait for it."""
        if digest in self._resident:
            return True
        if not self._is_near(digest, hidden) and not (
            self.request_load(digest, urgent=True) and self._is_near(digest, hidden)
        ):
            return False
        size = self._known[digest].layout.bytes
        if self._placed and self._placed + size > self._place_bytes_max:
            return False
        self._kept.add(digest)
        return True

    def poll_adapters(self) -> list[PoolMove]:
        """Take the loads that have ended. A loaded adapter is not evicted before the next call, so that a waiting
        request can use it."""
        self._kept.clear()
        self._placed = 0
        self._full_host = self._full_staging = False
        moved = []
        for read in self.host.poll_reads():
            moved.append(PoolMove(read.digest, "disk", read.seconds, read.error))
            if not read.error:
                self._kept.add(read.digest)
                if read.digest in self._wanted:
                    self.request_load(read.digest)
        if self.staging is not None:
            for digest, seconds in self.staging.poll_copies():
                moved.append(PoolMove(digest, "host", seconds))
                self._kept.add(digest)
        return moved

    def pin_adapter(self, digest: str, pinned: bool) -> None:
        """A pinned adapter is never evicted from host memory."""
        if pinned:
            self._pinned.add(digest)
        else:
            self._pinned.discard(digest)

    def _slab(self, digest: str) -> torch.Tensor | None:
        own = self._known[digest].slab
        return own if own is not None else self.host.get(digest)

    def _is_near(self, digest: str, hidden: bool) -> bool:
        if self.staging is None:
            return self._slab(digest) is not None
        if self.staging.is_there(digest):
            return True
        return hidden and self.staging.has(digest) and self.staging.bytes_copying() <= HIDDEN_BYTES_MAX

    def _may_go(self, digest: str, *, urgent: bool) -> bool:
        return digest not in self._kept and (urgent or digest not in self._wanted)

    def _may_leave_host(self, digest: str, *, urgent: bool) -> bool:
        copied = self.staging is not None and self.staging.reads(digest)
        return not copied and digest not in self._pinned and self._may_go(digest, urgent=urgent)

    # ---- the arena

    def has_room(self) -> bool:
        """Whether the table has a row for one more resident adapter."""
        return self.rows is None or self.rows.free_rows > 0

    def pages_needed(self, digest: str) -> int:
        """Further arena pages needed to make it resident: 0 if it is, or if it fits into the free bytes of tile
        pages."""
        if digest in self._resident:
            return 0
        return self._plan(self._known[digest]).fresh

    def pages_alone(self, digest: str) -> int:
        """Arena pages needed to make it resident in an arena without other adapters."""
        sizes = self._known[digest].sizes
        if sizes not in self._alone:
            if len(self._alone) >= SIZES_KEPT:
                self._alone.clear()
            self._alone[sizes] = TilePages(self._page_bytes).plan(self._known[digest].layout.cuts).fresh
        return self._alone[sizes]

    def pages_of(self, digest: str) -> list[int]:
        """The arena pages with tiles of a resident adapter, each once."""
        return list(dict.fromkeys(page for page, _ in self._resident[digest].places))

    def _plan(self, known: _KnownAdapter) -> TilePlacement:
        plan = self._plans.get(known.sizes)
        if plan is None:
            plan = self._plans[known.sizes] = self._pages.plan(known.layout.cuts)
        return plan

    def place_adapter(self, digest: str, pages: list[int]) -> None:
        """Copy it into the arena, into `pages` (`pages_needed` of them) and the free bytes of tile pages. Idempotent.
        Raises ValueError if the table of rows is full, and the errors of reading its file and of the copy; `pages` are
        unused then."""
        assert len(pages) == self.pages_needed(digest)
        assert not set(pages) & self._pages.pages.keys()
        if digest in self._resident:
            return
        if self.rows is not None:
            self.rows.check_room()
        known = self._known[digest]
        data = self._take_out(digest)
        places = self._pages.take_tiles(self._plan(known), pages)
        try:
            self._copy(data, known.layout.cuts, places)
            if self.rows is not None:
                assert known.form is not None
                self.rows.add_row(digest, known.form, places)
        except Exception:
            self._give_back(known, places)
            raise
        self._resident[digest] = ResidentAdapter(known.base, known.layout, places, self._arena)
        self._placed += known.layout.bytes
        self._plans.clear()
        if self.staging is not None and self.staging.has(digest):
            self.staging.note_taken(digest)

    def _take_out(self, digest: str) -> torch.Tensor:
        """Its slab: in the copy buffer if it is there, otherwise in host memory, read now if necessary."""
        if self.staging is not None and self.staging.has(digest):
            return self.staging.take_out(digest)
        return self.bring(digest)

    def resident(self) -> list[str]:
        """Resident digests, least recently used first."""
        return list(self._resident)

    def use(self, digest: str) -> ResidentAdapter:
        """A resident adapter for the step being built; it becomes the most recently used."""
        adapter = self._resident.pop(digest)
        self._resident[digest] = adapter
        return adapter

    def evict_adapter(self, digest: str) -> list[int]:
        """Evict it from the arena; return the pages that are empty now. It remains registered."""
        adapter = self._resident.pop(digest, None)
        if adapter is None:
            return []
        if self.rows is not None:
            self.rows.remove_row(digest)
        return self._give_back(self._known[digest], adapter.places)

    def _give_back(self, known: _KnownAdapter, places: Places) -> list[int]:
        """Free the extents of an adapter's tiles. Returns the pages that are empty now."""
        cuts = known.layout.cuts
        empty = [
            page for (page, at), cut in zip(places, cuts, strict=True) if self._pages.free_tile(page, at, cut.bytes)
        ]
        self._plans.clear()
        return empty

    def _copy(self, data: torch.Tensor, cuts: Sequence[TileSpan], places: Places) -> None:
        """Copy a slab into its places. Tiles that are neighbours in both are one run; on a GPU all runs are few
        launches."""
        wide = torch.int32  # the copy kernel moves 16 bytes at once, as four int32
        whole, arena = data.view(wide), self._arena.view(-1).view(wide)
        sources, targets = [], []
        for page, offset, start, size in _runs(cuts, places):
            first = (page * self._page_bytes + offset) // wide.itemsize
            targets.append(arena[first : first + size // wide.itemsize])
            sources.append(whole[start // wide.itemsize : (start + size) // wide.itemsize])
        if data.is_cuda:
            torch._foreach_copy_(targets, sources)
            return
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source, non_blocking=True)

    def check_integrity(self) -> None:
        """Every byte of every page is free or in exactly one tile, and every tile holds its adapter's numbers.
        For idle moments and tests. Raises AssertionError with the fault."""
        extents: dict[int, list[tuple[int, int]]] = {
            page: list(state.free.free) for page, state in self._pages.pages.items()
        }
        for digest, adapter in self._resident.items():
            layout, slab = self._known[digest].layout, self._slab(digest)
            for cut, (page, offset) in zip(layout.cuts, adapter.places, strict=True):
                extents[page].append((offset, cut.bytes))
                if slab is None:
                    continue
                lies = tile(self._arena[page, offset : offset + cut.bytes], cut, self._dtype)
                meant = tile(slab[cut.start : cut.start + cut.bytes], cut, self._dtype)
                for one, other in zip(lies, meant, strict=True):
                    assert torch.equal(one.cpu(), other.cpu()), f"{digest}: {cut} differs from host memory"
            if self.rows is not None:
                form = self._known[digest].form
                assert form is not None
                self.rows.check_row(digest, form, adapter.places)
        for page, found in extents.items():
            position = 0
            for offset, size in sorted(found):
                assert offset == position, f"page {page}: a gap or an overlap at byte {position}"
                position = offset + size
            assert position == self._page_bytes, f"page {page}: {position} of {self._page_bytes} bytes accounted for"
        self.host.check_integrity()
        if self.staging is not None:
            self.staging.check_integrity()


def _runs(cuts: Sequence[TileSpan], places: Places) -> list[tuple[int, int, int, int]]:
    """(page, offset in it, offset in the slab, bytes) of each run of tiles that are neighbours in both."""
    runs: list[tuple[int, int, int, int]] = []
    page, offset, start, size = -1, 0, 0, 0  # of the current run
    for cut, (own_page, own_offset) in zip(cuts, places, strict=True):
        if own_page == page and own_offset == offset + size:
            size += cut.bytes
            continue
        if size:
            runs.append((page, offset, start, size))
        page, offset, start, size = own_page, own_offset, cut.start, cut.bytes
    return [*runs, (page, offset, start, size)] if size else runs
