"""The console's view of a running engine: a snapshot of the engine, with the names that only the gateway knows.

Pure functions: nothing here asks an engine or reads a database. Moments are Unix seconds, with a fraction.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Literal

import msgspec

from engine.protocol.frames import Snapshot
from gateway.access.callers import TenantName

# The names of adapters by digest.
AdapterNames = Mapping[str, str]


class LiveOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of `pages` pages. A page shared by several requests belongs to the highest of their tiers. `cached`
    pages are used by no request, and are reused by the next one with the same prompt. `adapter` is a name, or the
    digest if no name is known."""

    kind: Literal["free", "kv", "cached", "adapter"]
    tier: str | None
    model: str | None
    adapter: str | None
    adapter_digest: str | None
    pages: int


class LiveArena(msgspec.Struct, frozen=True, kw_only=True):
    """`map` is the arena in page order: pairs of an index into `owners` and a number of pages; these numbers add up to
    `pages`. In a very large arena, `map_cell_pages` pages are shown as the first of them."""

    page_bytes: int
    pages: int
    owners: list[LiveOwner]
    map: list[tuple[int, int]]
    map_cell_pages: int


class LiveTier(msgspec.Struct, frozen=True, kw_only=True):
    """`held_pages`: distinct pages, including those of its requests' adapters. `preempted_total`: preemptions of the
    tier's requests since the engine started."""

    tier: str
    waiting: int
    running: int
    preempted_total: int
    floor_pages: int
    held_pages: int


class LiveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`number` is unique: the engine's count of arrivals. Texts of one HTTP request share a `request_id`. `tenant` (a
    slug) is null until the request's tenant is known."""

    number: int
    request_id: str
    tier: str
    tenant: str | None
    tenant_id: str | None
    model: str
    adapter: str | None
    adapter_digest: str | None
    state: Literal["waiting", "preempted", "prefill", "decode"]
    prompt_tokens: int
    completion_tokens: int
    age_s: float


class LivePreemption(msgspec.Struct, frozen=True, kw_only=True):
    """`number` counts the engine's preemptions: a gap means that some are missing from the events."""

    number: int
    at: float
    request_id: str
    tier: str
    caused_by_tier: str
    kind: Literal["recompute", "swap"]


class LiveAdapter(msgspec.Struct, frozen=True, kw_only=True):
    digest: str
    name: str | None
    where: Literal["device", "host", "disk"]
    bytes: int


class EngineEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The data of an event `engine`: the state of one engine at one moment. `requests` are at most 256 of
    `requests_total`: running ones by tier, oldest first, then waiting ones, oldest first. `adapters` are at most 1,024
    of `adapters_total`, those in the arena first. `preemptions` are those since the previous event."""

    engine: str
    at: float
    epoch: str
    steps: int
    arena: LiveArena
    tiers: list[LiveTier]
    requests: list[LiveRequest]
    requests_total: int
    preemptions: list[LivePreemption]
    adapters: list[LiveAdapter]
    adapters_total: int


class AwayEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The data of an event `away`: the engine is unavailable."""

    at: float
    reason: str


def engine_event(
    engine: str, snapshot: Snapshot, at: float, tenants: Mapping[str, TenantName | None], names: AdapterNames
) -> EngineEvent:
    """`engine`: its name. `tenants` by request id."""

    def name(digest: str | None) -> str | None:
        return None if digest is None else names.get(digest, digest)

    return EngineEvent(
        engine=engine,
        at=at,
        epoch=snapshot.epoch,
        steps=snapshot.step,
        arena=LiveArena(
            page_bytes=snapshot.page_bytes,
            pages=snapshot.pages,
            owners=[
                LiveOwner(
                    kind=one.kind,
                    tier=one.tier,
                    model=one.model,
                    adapter=name(one.adapter),
                    adapter_digest=one.adapter,
                    pages=one.pages,
                )
                for one in snapshot.owners
            ],
            map=list(struct.iter_unpack("<II", snapshot.runs)),
            map_cell_pages=snapshot.map_cell_pages,
        ),
        tiers=[
            LiveTier(
                tier=one.name,
                waiting=one.waiting,
                running=one.running,
                preempted_total=one.preempted,
                floor_pages=one.floor_pages,
                held_pages=one.held_pages,
            )
            for one in snapshot.tiers
        ],
        requests=_requests(snapshot, tenants, names),
        requests_total=snapshot.requests_total,
        preemptions=[
            LivePreemption(
                number=one.number,
                at=round(at - one.age_s, 3),
                request_id=one.request_id,
                tier=one.tier,
                caused_by_tier=one.caused_by,
                kind=one.kind,
            )
            for one in snapshot.preemptions
        ],
        adapters=adapter_places(snapshot, names),
        adapters_total=snapshot.adapters_total,
    )


def adapter_places(snapshot: Snapshot, names: AdapterNames) -> list[LiveAdapter]:
    return [
        LiveAdapter(digest=one.digest, name=names.get(one.digest), where=one.where, bytes=one.bytes)
        for one in snapshot.adapters
    ]


def _requests(snapshot: Snapshot, tenants: Mapping[str, TenantName | None], names: AdapterNames) -> list[LiveRequest]:
    rows = []
    for one in snapshot.requests:
        tenant = tenants.get(one.request_id)
        rows.append(
            LiveRequest(
                number=one.number,
                request_id=one.request_id,
                tier=one.tier,
                tenant=None if tenant is None else tenant.slug,
                tenant_id=None if tenant is None else tenant.id,
                model=one.model,
                adapter=None if one.adapter is None else names.get(one.adapter, one.adapter),
                adapter_digest=one.adapter,
                state=one.state,
                prompt_tokens=one.prompt_tokens,
                completion_tokens=one.completion_tokens,
                age_s=round(one.age_s, 3),
            )
        )
    return rows
