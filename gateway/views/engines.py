"""How the engines of the fleet are shown: state, load and what each of them holds.

Pure functions over `gateway.fleet`: nothing here asks an engine.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gateway.engines.local import LocalEngine
from gateway.fleet.fleet import Fleet
from gateway.fleet.member import Member

EngineState = Literal["ready", "draining", "leaving", "stuck", "connecting"]


class EngineTierView(msgspec.Struct, frozen=True, kw_only=True):
    """A tier's backlog in one engine. `wait_s`: predicted for a new request."""

    name: str
    wait_s: float
    queued: int


class FleetEngineView(msgspec.Struct, frozen=True, kw_only=True):
    """One engine, as its last heartbeat and this gateway's connection have it. `state`: "leaving" when the roster has
    the engine no more. `protocol_version` null: it was never connected. `prefix_hit_rate`: the part of prompt tokens
    found in the prefix cache since the engine's start; null without prompts. `streams`: texts of this gateway."""

    name: str
    address: str
    state: EngineState
    epoch: str
    protocol_version: int | None
    build: str
    models: list[str]
    refused: dict[str, str]
    loading: dict[str, float]  # predicted seconds until the weights are resident, by model that is not
    running: int
    waiting: int
    tiers: list[EngineTierView]
    prefix_hit_rate: float | None
    adapters_resident: int
    tokens_per_s: float
    streams: int


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """All engines of this gateway's roster. Counts are of this gateway process since its start: `resumed`: texts that
    continued with ids of another engine; `moved`: before they had an id; `lost`: that no engine could continue;
    `hedged`: begun on a second engine. `roster_stale_s`: for how long the source of the roster has not answered; null:
    it answers."""

    data: list[FleetEngineView]
    resumed: int
    moved: int
    lost: int
    hedged: int
    roster_stale_s: float | None
    object: Literal["list"] = "list"


def fleet_view(fleet: Fleet, roster_stale_s: float | None) -> FleetView:
    members = sorted(fleet.members.values(), key=lambda member: member.name)
    return FleetView(
        data=[engine_view(member) for member in members],
        resumed=fleet.resumptions,
        moved=fleet.moves,
        lost=fleet.losses,
        hedged=fleet.hedged,
        roster_stale_s=roster_stale_s,
    )


def engine_view(member: Member) -> FleetEngineView:
    engine = member.engine
    beat = engine.last_heartbeat
    load = None if beat is None else beat.load
    return FleetEngineView(
        name=member.name,
        address=member.address.address,
        state=engine_state(member),
        epoch=engine.epoch,
        protocol_version=engine.protocol_version if isinstance(engine, LocalEngine) else None,
        build=engine.build if isinstance(engine, LocalEngine) else "",
        models=sorted(engine.models),
        refused=dict(member.refused),
        loading={} if load is None else load.models,
        running=0 if beat is None else beat.running,
        waiting=0 if beat is None else beat.waiting,
        tiers=[]
        if load is None
        else [
            EngineTierView(name=tier, wait_s=wait_s, queued=load.queued.get(tier, 0))
            for tier, wait_s in load.waits.items()
        ],
        prefix_hit_rate=None if load is None or not load.queries else load.hits / load.queries,
        adapters_resident=0 if load is None else len(load.adapters),
        tokens_per_s=0.0 if load is None else load.tokens_per_s,
        streams=member.streams,
    )


def engine_state(member: Member) -> EngineState:
    """In one word, the most urgent one."""
    if not member.engine.ready:
        return "connecting"
    if member.drains_here:
        return "leaving"
    if member.draining:
        return "draining"
    return "stuck" if member.engine.stuck else "ready"
