"""The engines of the fleet as operators see them: state, load, and contents.

The data are in the memory of `gateway.fleet`; this module sends no request to an engine.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Literal, get_args

import msgspec

from engine.protocol.tls import CertificateFiles
from gateway.engines.local import LocalEngine
from gateway.fleet.fleet import Fleet
from gateway.fleet.member import Member
from gateway.fleet.members import MemberGroup
from gateway.host.fleet_certificates import first_expiry
from gateway.metrics import Metrics
from gateway.views.token_ages import TokenAgeCollector, makes_no_token, token_ages

EXPIRED = "a certificate between gateway and engine has expired"
EngineState = Literal["ready", "draining", "leaving", "stuck", "connecting"]


class EngineTierView(msgspec.Struct, frozen=True, kw_only=True):
    """A tier's backlog in one engine. `wait_s`: predicted for a new request."""

    name: str
    wait_s: float
    queued: int


class FleetEngineView(msgspec.Struct, frozen=True, kw_only=True):
    """One engine, as its last heartbeat and this gateway's connection have it. `name`: unique; an engine whose address
    changed is listed as NAME@ADDRESS until its texts end. `address`: of a Unix socket the file's name alone. `state`:
    "leaving" when the roster has the engine no more. `protocol_version` null: it was never connected.
    `prefix_hit_rate`: the part of prompt tokens found in the prefix cache since the engine's start; null without
    prompts. `streams`: texts of this gateway. `token_age_s`: seconds since the last token of each resident model;
    `silent`: why, of those that owe one."""

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
    token_age_s: dict[str, float]
    silent: dict[str, str]


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


class EngineCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many of the engines that the roster lists are ready: connected, not draining and not stuck."""

    ready: int
    listed: int

    def __str__(self) -> str:
        noun, verb = "engine" if self.listed == 1 else "engines", "is" if self.ready == 1 else "are"
        return f"{self.ready} of {self.listed} {noun} {verb} ready"


def count_engines(fleet: MemberGroup) -> EngineCounts:
    listed = [member for member in fleet.members.values() if not member.drains_here]
    return EngineCounts(ready=sum(engine_state(member) == "ready" for member in listed), listed=len(listed))


def describe_unready(fleet: MemberGroup) -> str:
    """The engines of the roster that are not ready, with their states; "" when all are."""
    states = {name: engine_state(member) for name, member in sorted(fleet.members.items()) if not member.drains_here}
    return ", ".join(f"{name} ({state})" for name, state in states.items() if state != "ready")


def why_no_engine_serves(fleet: MemberGroup) -> str | None:
    """Why no engine serves, without an engine's name, because any caller may read it. None: an engine serves."""
    ready = [member for member in fleet.members.values() if member.engine.ready]
    if not ready:
        fault = engine_fault(fleet)
        return f"no engine is connected and loaded: {fault}" if fault else "no engine is connected and loaded"
    serving = [member for member in ready if not member.draining]
    if not serving:
        return "every connected engine drains and refuses new requests"
    if all(member.engine.stuck for member in serving):
        return "the engine is connected, but its loop makes no progress"
    if makes_no_token(serving):
        return "the engine is connected, but its models make no tokens"
    return None


def engine_fault(fleet: MemberGroup) -> str:
    """The part that an operator must repair so that an engine serves, without an engine's name; "": unknown."""
    members = fleet.members.values()
    if makes_no_token(member for member in members if member.engine.ready):
        return "the models of the engine make no tokens"
    engines = [member.engine for member in members if isinstance(member.engine, LocalEngine)]
    failures = [engine.connect_failure for engine in engines if not engine.ready]
    return EXPIRED if any("expired" in failure for failure in failures) else ""


def fleet_view(fleet: Fleet) -> FleetView:
    return FleetView(
        data=[engine_view(name, member) for name, member in sorted(fleet.members.items())],
        resumed=fleet.resumptions,
        moved=fleet.moves,
        lost=fleet.losses,
        hedged=fleet.hedged,
        roster_stale_s=fleet.roster_stale_s,
    )


def engine_view(name: str, member: Member) -> FleetEngineView:
    engine = member.engine
    beat = engine.last_heartbeat
    load = None if beat is None else beat.load
    return FleetEngineView(
        name=name,
        address=member.address.shown_address,
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
        token_age_s={model: round(age.age_s, 1) for model, age in token_ages(member).items()},
        silent={
            model: age.error or "its step has not ended" for model, age in token_ages(member).items() if age.silent
        },
    )


def engine_state(member: Member) -> EngineState:
    """The most urgent state, in one word."""
    if not member.engine.ready:
        return "connecting"
    if member.drains_here:
        return "leaving"
    if member.draining:
        return "draining"
    return "stuck" if member.engine.stuck else "ready"


def measure_fleet(metrics: Metrics, fleet: Fleet, files: CertificateFiles | None) -> None:
    """Let the metrics read the fleet whenever they are scraped. `files`: this gateway's certificates, which it shows to
    engines; None: it has no certificates."""

    def count(state: EngineState) -> int:
        return sum(engine_state(member) == state for member in fleet.members.values())

    for state in get_args(EngineState):
        metrics.fleet_engines.labels(state).set_function(functools.partial(count, state))
    metrics.registry.register(TokenAgeCollector(fleet))
    metrics.roster_stale.set_function(lambda: fleet.roster_stale_s or 0.0)
    if files is not None:
        for certificate, expiry in _expiries(fleet, files).items():
            metrics.certificate_expiry.labels(certificate).set_function(expiry)
    texts = metrics.texts_continued
    texts.labels("resumed").set_function(lambda: fleet.resumptions)
    texts.labels("moved").set_function(lambda: fleet.moves)
    texts.labels("hedged").set_function(lambda: fleet.hedged)
    texts.labels("lost").set_function(lambda: fleet.losses)


def certificate_expiries(fleet: MemberGroup, files: CertificateFiles) -> dict[str, float]:
    """When the first certificate expires, in Unix seconds, of the gateway's file, the authority's, and the connected
    engines; 0: the file cannot be read. Infinite without an engine over TLS."""
    return {certificate: expiry() for certificate, expiry in _expiries(fleet, files).items()}


def _expiries(fleet: MemberGroup, files: CertificateFiles) -> dict[str, Callable[[], float]]:
    return {
        "gateway": functools.partial(first_expiry, files.certificate),
        "authority": functools.partial(first_expiry, files.authority),
        "engines": functools.partial(_first_engine_expiry, fleet),
    }


def _first_engine_expiry(fleet: MemberGroup) -> float:
    """When the first certificate of an engine expires, in Unix seconds; infinite without an engine over TLS."""
    engines = [member.engine for member in fleet.members.values()]
    found = [engine.certificate_expires_at for engine in engines if isinstance(engine, LocalEngine)]
    return min((expiry for expiry in found if expiry is not None), default=math.inf)
