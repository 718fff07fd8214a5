"""The simulator's command line: its options with their ranges, and the scenario that they describe.

Invalid arguments raise BadInput, with a sentence that names the option and the limit.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from engine.memory.eviction import EVICTION_VALUES
from engine.protocol.tiers import SHIPPED_TIERS, Tier, check_tiers
from engine.simulate.conversations import ConversationRate
from engine.simulate.devices import DEVICES, BadInput, Device, device, named, read_file
from engine.simulate.fleet import ONE_ENGINE, FleetSettings, Kill
from engine.simulate.routing_policies import POLICIES
from engine.simulate.trace import REQUESTS_MAX, TOKENS_MAX, TraceRow, read_trace
from engine.simulate.traffic import Burst, Flood, Noise, Poisson, Population, Traffic, flood_name
from engine.simulate.world import Stall, World

Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(dir_okay=False, path_type=Path)

DURATION_S_MAX = 7 * 86_400.0
PER_S_MAX = 10_000.0
OUTSTANDING_MAX = 100_000
FACTOR_MAX = 1000.0
TENANTS_MAX, ADAPTERS_MAX, MODELS_MAX = 1000, 1000, 64
ZIPF_MAX = 10.0
SPEED_MAX = 10_000.0
WEIGHT_MIN, WEIGHT_MAX = 0.001, 1000.0
ENGINES_MAX, GATEWAYS_MAX = 1000, 64
TURNS_MAX = 1000.0
NAMED_MAX = 8  # names listed in an error message
# Lengths of a burst without lengths.
BURST_PROMPT_TOKENS, BURST_NEW_TOKENS = 512, 128


class Number(click.FloatRange):
    """A range of floats that excludes NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


OPTIONS = [
    # tiers and device
    click.option("--device", "device_name", default="h200-8b", show_default=True, metavar="NAME|FILE", help=(
        f"What the steps cost: {', '.join(DEVICES)}, or a .toml or .json file with base_s, prefill_token_s, "
        "sequence_s, kv_token_s, adapter_s and, optionally, sizes."
    )),
    click.option("--tiers", "tiers_file", type=FILE, help="A TOML file with [[tiers]], as laneway.toml has them."),
    click.option("--pages", type=int, help="Pages of the arena, instead of the device's."),
    click.option("--host-pages", type=int, help="Pages of host memory for swapping, instead of the device's."),
    click.option("--sequences-max", type=int, help="Requests in one step, instead of the device's."),
    click.option("--step-tokens-max", type=int, help="Tokens of one step, instead of the device's."),
    click.option("--prefill-tokens-min", type=int, help=(
        "Prefill tokens of a step with decodes, instead of the device's."
    )),
    click.option("--step-noise", type=Number(0, 2), default=0.0, show_default=True, help=(
        "Standard deviation of the logarithm of a step's time."
    )),
    # the traffic
    click.option("--trace", type=FILE, help="Arrivals and lengths: a CSV (TIMESTAMP, ContextTokens, GeneratedTokens)."),
    click.option("--speed", type=Number(0, SPEED_MAX, min_open=True), default=1.0, show_default=True, help=(
        "How many times faster the trace's clock runs."
    )),
    click.option("--duration", "duration_s", type=Number(0, DURATION_S_MAX, min_open=True), metavar="SECONDS", help=(
        "Requests arrive for this time.  [default: the length of the trace, or 60]"
    )),
    click.option("--mix", multiple=True, metavar="TIER=WEIGHT", help=(
        "Weights of tiers among the trace's requests.  [default: all equal]"
    )),
    click.option("--tenants", type=click.IntRange(1, TENANTS_MAX), default=20, show_default=True, help=(
        "Tenants of each tier: TIER-1, the busiest, TIER-2 and so on."
    )),
    click.option("--tenant-zipf", type=Number(0, ZIPF_MAX), default=1.0, show_default=True),
    click.option("--adapters", type=click.IntRange(0, ADAPTERS_MAX), default=4, show_default=True, help=(
        "Adapters of each tenant."
    )),
    click.option("--adapter-zipf", type=Number(0, ZIPF_MAX), default=1.0, show_default=True),
    click.option("--base-share", type=Number(0, 1), default=0.25, show_default=True, help=(
        "Part of the requests without an adapter."
    )),
    click.option("--system-tokens", type=click.IntRange(0, TOKENS_MAX), default=256, show_default=True, help=(
        "Tokens with which all sufficiently long prompts of a tenant begin."
    )),
    click.option("--models", type=click.IntRange(1, MODELS_MAX), default=1, show_default=True, help=(
        "Base models, each with different adapters; of several, model-1 gets most requests."
    )),
    click.option("--model-zipf", type=Number(0, ZIPF_MAX), default=1.0, show_default=True),
    click.option("--models-resident", type=click.IntRange(1, MODELS_MAX), help=(
        "How many models' weights the device holds; others are loaded from host memory.  [default: all]"
    )),
    click.option("--keep", type=click.Choice([*EVICTION_VALUES]), default="use", show_default=True, help=(
        "Which idle models stay on the device: by use, or the last used."
    )),
    # synthetic traffic
    click.option("--poisson", multiple=True, metavar="TIER:PER_S:PROMPT:NEW", help="Arrivals at a mean rate."),
    click.option("--flood", multiple=True, metavar="TIER:OUTSTANDING:PROMPT:NEW", help=(
        "An additional tenant that always has OUTSTANDING requests in flight."
    )),
    click.option("--burst", multiple=True, metavar="AT_S:COUNT:TIER[:PROMPT:NEW]", help="COUNT requests at once."),
    click.option("--weight", multiple=True, metavar="TENANT=WEIGHT", help=(
        "A tenant's share weight. The tenants of floods are TIER-flood-1, TIER-flood-2, …"
    )),
    click.option("--noisy", metavar="TENANT:FACTOR", help="Multiply this tenant's request rate."),
    # a fleet
    click.option("--engines", type=click.IntRange(1, ENGINES_MAX), help=(
        "Simulate this number of such engines behind gateways."
    )),
    click.option("--gateways", type=click.IntRange(1, GATEWAYS_MAX), default=2, show_default=True),
    click.option("--routing", multiple=True, type=click.Choice([*POLICIES, ONE_ENGINE]), help=(
        "How gateways choose an engine; several are compared. one-engine is one engine with the memory and the speed "
        "of all.  [default: predicted and one-engine]"
    )),
    click.option("--conversations", multiple=True, metavar="TIER:PER_S:TURNS:PROMPT:NEW:THINK_S", help=(
        "With --engines: conversations that begin at a mean rate, with these means of turns, tokens and seconds."
    )),
    click.option("--kill-at", multiple=True, metavar="AT_S:ENGINE[:RESTART_S]", help=(
        "With --engines: engine number ENGINE dies; its texts continue on others."
    )),
    click.option("--simple-engines", is_flag=True, help=(
        "With --engines: a queueing model in place of the scheduler, for hundreds of engines."
    )),
    click.option("--adapter-load-s", type=Number(0, 60), help=(
        "Seconds to load an adapter that is not resident, instead of the device's."
    )),
    # disturbances
    click.option("--abort-rate", type=Number(0, 1), default=0.0, show_default=True, help=(
        "Part of the requests whose client disconnects …"
    )),
    click.option("--patience", "patience_s", type=Number(0, DURATION_S_MAX, min_open=True), default=5.0, help=(
        "… after this many seconds on average.  [default: 5.0]"
    )),
    click.option("--stall", multiple=True, metavar="AT_S:FOR_S", help=(
        "The device computes nothing for FOR_S seconds from AT_S on."
    )),
    click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same simulation."),
]  # fmt: skip


def scenario_options(command: Command) -> Command:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Scenario:
    tiers: tuple[Tier, ...]
    device: Device
    traffic: Traffic
    system_tokens: int
    stalls: tuple[Stall, ...]
    step_noise: float
    seed: int
    models_resident: int | None
    keep: str

    def world(self) -> World:
        """Raises BadInput."""
        return World(
            self.tiers,
            self.device,
            self.traffic,
            system_tokens=self.system_tokens,
            stalls=self.stalls,
            step_noise=self.step_noise,
            seed=self.seed,
            models_resident=self.models_resident,
            keep=self.keep,
        )

    def described(self) -> dict[str, Any]:
        """The settings as plain data, for the report, with the number of the trace's rows in place of the rows."""
        settings: dict[str, Any] = msgspec.to_builtins(self)
        settings["traffic"]["rows"] = len(self.traffic.rows)
        return settings


def scenario(given: dict[str, Any]) -> Scenario:
    """The scenario that the options describe. Raises BadInput."""
    for name in ("conversations", "kill_at", "routing", "simple_engines"):
        if given[name]:
            raise BadInput(f"--{name.replace('_', '-')} needs --engines")
    tiers = read_tiers(given["tiers_file"]) if given["tiers_file"] else SHIPPED_TIERS
    stalls = tuple(_stall(value) for value in given["stall"])
    return Scenario(
        tiers,
        _sized(device(given["device_name"]), given),
        _traffic(given, [tier.name for tier in tiers]),
        given["system_tokens"],
        stalls,
        given["step_noise"],
        given["seed"],
        given["models_resident"],
        given["keep"],
    )


def fleet_settings(given: dict[str, Any]) -> FleetSettings:
    """The fleet that the options describe. Raises BadInput."""
    for name in ("models_resident", "stall", "flood"):
        if given[name]:
            raise BadInput(f"--{name.replace('_', '-')} is not simulated with --engines")
    if given["abort_rate"]:
        raise BadInput("--abort-rate is not simulated with --engines")
    tiers = read_tiers(given["tiers_file"]) if given["tiers_file"] else SHIPPED_TIERS
    names = [tier.name for tier in tiers]
    conversations = tuple(_conversations(value, names) for value in given["conversations"])
    traffic = _traffic(given, names, needed=not conversations)
    return FleetSettings(
        tiers=tiers,
        device=_sized(device(given["device_name"]), given),
        traffic=traffic,
        conversations=conversations,
        engines=given["engines"],
        gateways=given["gateways"],
        system_tokens=given["system_tokens"],
        kills=tuple(_kill(value, given["engines"], traffic.duration_s) for value in given["kill_at"]),
        simple=given["simple_engines"],
        step_noise=given["step_noise"],
        seed=given["seed"],
    )


def read_tiers(path: Path) -> tuple[Tier, ...]:
    """The [[tiers]] of a TOML file, whose other sections are ignored; the shipped tiers if it has no tiers. Raises
    BadInput."""
    try:
        fields = tomllib.loads(read_file(path, "--tiers").decode()).get("tiers")
        tiers = SHIPPED_TIERS if fields is None else msgspec.convert(fields, tuple[Tier, ...])
        check_tiers(tiers)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError, ValueError) as error:
        raise BadInput(f"--tiers: {path}: {named(error)}") from error
    return tiers


def _sized(shipped: Device, given: dict[str, Any]) -> Device:
    sizes = ("pages", "host_pages", "sequences_max", "step_tokens_max", "prefill_tokens_min", "adapter_load_s")
    changes = {name: given[name] for name in sizes if given[name] is not None}
    try:
        return msgspec.convert(msgspec.structs.asdict(shipped) | changes, Device)
    except msgspec.ValidationError as error:
        raise BadInput(f"the device: {named(error)}") from error


def _traffic(given: dict[str, Any], tiers: Sequence[str], *, needed: bool = True) -> Traffic:
    """`needed`: without requests the traffic is invalid."""
    population = Population(
        mix=_mix(given["mix"], tiers),
        tenants=given["tenants"],
        tenant_zipf=given["tenant_zipf"],
        adapters=given["adapters"],
        adapter_zipf=given["adapter_zipf"],
        base_share=given["base_share"],
        models=given["models"],
        model_zipf=given["model_zipf"],
    )
    rows = _rows(given)
    duration_s = given["duration_s"] or (rows[-1].at_s + 1e-6 if rows else 60.0)  # after the last row
    floods = tuple(_flood(value, tiers) for value in given["flood"])
    names = [name for tier in tiers for name in population.names(tier)]
    traffic = Traffic(
        population,
        duration_s,
        rows,
        poissons=tuple(_poisson(value, tiers) for value in given["poisson"]),
        floods=floods,
        bursts=tuple(_burst(value, tiers, duration_s) for value in given["burst"]),
        weights=_weights(given["weight"], [*names, *map(flood_name, floods, range(len(floods)))]),
        noise=_noise(given["noisy"], names) if given["noisy"] else None,
        abort_rate=given["abort_rate"],
        patience_s=given["patience_s"],
    )
    if needed and not (rows or traffic.poissons or traffic.floods or traffic.bursts):
        raise BadInput("there are no requests: --trace, --poisson, --flood, --burst or --conversations is needed")
    return traffic


def _rows(given: dict[str, Any]) -> tuple[TraceRow, ...]:
    if given["trace"] is None:
        return ()
    speed = given["speed"]
    return tuple(TraceRow(row.at_s / speed, row.prompt_tokens, row.new_tokens) for row in read_trace(given["trace"]))


def _mix(values: Sequence[str], tiers: Sequence[str]) -> dict[str, float]:
    """The weights of the named tiers; without values, 1 for each tier."""
    if not values:
        return dict.fromkeys(tiers, 1.0)
    mix: dict[str, float] = {}
    for value in values:
        tier, _, weight = value.partition("=")
        _known(tier, tiers, "--mix", value)
        mix[tier] = _number(weight, "--mix", value, 0.0, 1e6)
    if not any(mix.values()):
        raise BadInput("--mix: all weights are 0; at least one must be greater")
    return {tier: mix[tier] for tier in tiers if mix.get(tier)}


def _poisson(value: str, tiers: Sequence[str]) -> Poisson:
    tier, per_s, prompt, new = _parts("--poisson", value, "TIER:PER_S:PROMPT:NEW", (4,))
    _known(tier, tiers, "--poisson", value)
    rate = _number(per_s, "--poisson", value, 1e-6, PER_S_MAX)
    return Poisson(tier, rate, *_lengths(prompt, new, "--poisson", value))


def _flood(value: str, tiers: Sequence[str]) -> Flood:
    tier, outstanding, prompt, new = _parts("--flood", value, "TIER:OUTSTANDING:PROMPT:NEW", (4,))
    _known(tier, tiers, "--flood", value)
    count = _whole(outstanding, "--flood", value, 1, OUTSTANDING_MAX)
    return Flood(tier, count, *_lengths(prompt, new, "--flood", value))


def _burst(value: str, tiers: Sequence[str], duration_s: float) -> Burst:
    at_s, count, tier, *lengths = _parts("--burst", value, "AT_S:COUNT:TIER[:PROMPT:NEW]", (3, 5))
    _known(tier, tiers, "--burst", value)
    tokens = (BURST_PROMPT_TOKENS, BURST_NEW_TOKENS)
    if lengths:
        tokens = _lengths(lengths[0], lengths[1], "--burst", value)
    when = _number(at_s, "--burst", value, 0.0, duration_s)
    return Burst(when, _whole(count, "--burst", value, 1, REQUESTS_MAX), tier, *tokens)


def _conversations(value: str, tiers: Sequence[str]) -> ConversationRate:
    option = "--conversations"
    tier, per_s, turns, prompt, new, think = _parts(option, value, "TIER:PER_S:TURNS:PROMPT:NEW:THINK_S", (6,))
    _known(tier, tiers, option, value)
    return ConversationRate(
        tier,
        _number(per_s, option, value, 1e-6, PER_S_MAX),
        _number(turns, option, value, 1.0, TURNS_MAX),
        *_lengths(prompt, new, option, value),
        _number(think, option, value, 0.0, DURATION_S_MAX),
    )


def _kill(value: str, engines: int, duration_s: float) -> Kill:
    option = "--kill-at"
    at_s, engine, *restart = _parts(option, value, "AT_S:ENGINE[:RESTART_S]", (2, 3))
    return Kill(
        _number(at_s, option, value, 0.0, duration_s),
        _whole(engine, option, value, 1, engines),
        _number(restart[0], option, value, 0.0, DURATION_S_MAX) if restart else None,
    )


def _weights(values: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    weights: dict[str, float] = {}
    for value in values:
        tenant, _, weight = value.partition("=")
        _known(tenant, names, "--weight", value, "tenant")
        weights[tenant] = _number(weight, "--weight", value, WEIGHT_MIN, WEIGHT_MAX)
    return weights


def _noise(value: str, names: Sequence[str]) -> Noise:
    tenant, factor = _parts("--noisy", value, "TENANT:FACTOR", (2,))
    _known(tenant, names, "--noisy", value, "tenant")
    return Noise(tenant, _number(factor, "--noisy", value, 1.0, FACTOR_MAX))


def _stall(value: str) -> Stall:
    at_s, for_s = _parts("--stall", value, "AT_S:FOR_S", (2,))
    limits = ("--stall", value, 0.0, DURATION_S_MAX)
    return Stall(_number(at_s, *limits), _number(for_s, *limits))


# ---- one value


def _parts(option: str, value: str, form: str, counts: Sequence[int]) -> list[str]:
    parts = value.split(":")
    if len(parts) not in counts:
        raise BadInput(f"{option} {value!r}: {form} is needed")
    return parts


def _known(name: str, names: Sequence[str], option: str, value: str, what: str = "tier") -> None:
    if name not in names:
        few = names if len(names) <= NAMED_MAX else [*names[:NAMED_MAX], "…"]
        raise BadInput(f"{option} {value!r}: there is no {what} {name!r}; there are {', '.join(few)}")


def _lengths(prompt: str, new: str, option: str, value: str) -> tuple[int, int]:
    return _whole(prompt, option, value, 1, TOKENS_MAX), _whole(new, option, value, 1, TOKENS_MAX)


def _whole(text: str, option: str, value: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise BadInput(f"{option} {value!r}: {text!r} is not a whole number from {least} to {most}")
    return int(text)


def _number(text: str, option: str, value: str, least: float, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise BadInput(f"{option} {value!r}: {text!r} is not a number from {least:g} to {most:g}")
    return number
