"""Ten models over a budget for the weights of three, requested by Zipf's law: the hit rate on the device, and the
waits.

    python -m benchmarks.serving.many_models [--cpu | --fake] [--policies own,lru,all] [--seconds 15] [--host 10]

Llama-3.2-1B's shape in bfloat16 (`--cpu`: a small one in float32), one file of random weights under ten names, so that
"disk" is the page cache. An engine process for each policy, the same seeded traffic to each: "own" is the engine's
default, "lru" evicts the least recently used model (only where the engine has the setting `weights_policy`), "all" has
a budget for all ten models, the baseline of the other two. First requests arrive at Poisson times, then as many as
`in_flight` are always outstanding. Just before each request, the location of its model is queried on the same stream.
`--fake`: the engine without a model, at the speeds of `FAKE`, which are no device's; it compares policies, not
machines.

Beside the hit rate stands the share of the three most requested models, which no policy without knowledge of the future
exceeds for long; beside the first tokens stands the time of one copy from page-locked host memory at this device's
speed. Rows are appended to benchmarks/results/serving_many_models.csv as each policy is done, so a failure does not
lose the rows of other policies.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import append_rows, cpu_name
from benchmarks.serving import ceilings, shapes
from benchmarks.serving.gateway import ZIPF, Measured, Phase, Request, Traffic
from benchmarks.serving.processes import NotStarted, SocketLine, known_setting, measure, settings_of, started
from engine.protocol.config import EngineConfig, FakeConfig, ModelConfig
from engine.protocol.tiers import Tier

POLICIES = ("own", "lru", "all")
POLICY_SETTING = "weights_policy"
PLACES = ("device", "host", "disk")
# Bytes that a runner adds by rounding up, or stores beside the numbers of the file.
WEIGHTS_SLACK = 1.05
PATIENT_MS = 3_600_000.0
# No floors reserve capacity: the workload has no targets, and one share.
TIER = Tier(
    name="one",
    service_tier="default",
    ttft_base_ms=PATIENT_MS,
    inter_token_ms=PATIENT_MS,
    queue_max=100_000,
    crowd_part=1.0,
)


@dataclass(frozen=True)
class Sizes:
    shape: dict[str, Any]
    dtype: str
    models: int
    room: int  # models whose weights fit on the device
    host: int  # and models in host memory
    residence_s: float
    arena_bytes: int
    sequences: int
    step_tokens: int
    rate: float
    in_flight: int
    prompt: int
    new: int
    lead_s: float
    seconds: float

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights of one model."""
        return shapes.parameters(self.shape) * (4 if self.dtype == "float32" else 2)

    @property
    def names(self) -> tuple[str, ...]:
        """The likeliest first."""
        return tuple(f"model-{index}" for index in range(self.models))

    @property
    def hits_max(self) -> float:
        weights = [1 / (1 + rank) ** ZIPF for rank in range(self.models)]
        return sum(weights[: self.room]) / sum(weights)


# The engine's default residence. Of 1,200 requests 12 are beyond p99; the p99 of 10 seconds says nothing about a
# policy.
GPU = Sizes(shapes.LLAMA_1B, "bfloat16", 10, 3, 10, 2.0, 16 << 30, 64, 512, 40.0, 64, 128, 32, 3.0, 30.0)
CPU = Sizes(shapes.SMALL, "float32", 10, 3, 10, 0.5, 32 << 20, 8, 128, 8.0, 8, 16, 8, 1.0, 4.0)

# Steps and loads of about an H200's length, by its bounds.
FAKE = FakeConfig(
    step_ms=3.0, prefill_ms_per_1k_tokens=10.0, steps_ahead=1, weights_bytes=GPU.weights_bytes, weights_host_ms=50.0,
    weights_disk_ms=500.0,
)  # fmt: skip


def settings(policy: str, sizes: Sizes, models: Sequence[ModelConfig], device: str) -> dict[str, Any]:
    """engine.json for this policy."""
    one = int(WEIGHTS_SLACK * sizes.weights_bytes)
    config = EngineConfig(
        models=tuple(models),
        tiers=(TIER,),
        arena_bytes=sizes.arena_bytes,
        step_tokens_max=sizes.step_tokens,
        sequences_max=sizes.sequences,
        device=device,  # type: ignore[arg-type]
        adapters_max=sizes.sequences,
        adapter_rank_max=16,
        adapter_host_bytes=16 << 20,
        adapter_staging_bytes=16 << 20,
        weights_bytes=0 if policy == "all" else sizes.room * one,
        weights_host_bytes=0 if policy == "all" else sizes.host * one,
        weights_residence_s=sizes.residence_s,
        fake=FAKE,
    )
    return settings_of(config, **({POLICY_SETTING: policy} if policy == "lru" else {}))


def phases(sizes: Sizes) -> list[Phase]:
    def traffic(name: str, **more: Any) -> Traffic:
        return Traffic(name, TIER.name, sizes.prompt, sizes.new, models=sizes.names, asks_where=True, **more)

    each = tuple(Traffic(f"warm-{name}", TIER.name, sizes.prompt, 2, rate=4.0, models=(name,)) for name in sizes.names)
    return [
        Phase("warm", each, seconds=max(1.0, sizes.lead_s)),
        Phase("open", (traffic("open", rate=sizes.rate),), lead_s=sizes.lead_s, seconds=sizes.seconds, watch_s=1.0),
        Phase(
            "closed",
            (traffic("closed", outstanding=sizes.in_flight),),
            lead_s=sizes.lead_s,
            seconds=sizes.seconds,
            watch_s=1.0,
        ),
    ]


# ---- figures


def percentile(values: Sequence[float], q: float) -> float:
    return float(np.percentile(values, q)) if values else float("nan")


def loads(measured: Measured) -> float:
    """Models that were loaded onto the device between the first and the last snapshot of the window."""
    within = [seen for at, seen in measured.watched if measured.began_s <= at <= measured.ended_s]
    if not within or not within[-1].models:
        return float("nan")
    first, last = ({place.name: place.loads for place in seen.models} for seen in (within[0], within[-1]))
    return float(sum(last.values()) - sum(first.values()))


def phase_figures(measured: Measured) -> dict[str, float]:
    """Hit rates count all requests that arrived within the window; an engine that does not report where models are has
    no hit rate."""
    name = measured.phase.name
    came = [r for r in measured.requests if measured.began_s <= r.due_s <= measured.ended_s]
    own = [request for request in came if request.token_s]
    found = {f"{name}_tok_s": measured.tokens_per_s(), f"{name}_requests": float(len(came))}
    found[f"{name}_failed"] = float(sum(bool(request.failed) for request in came))
    found |= _first_tokens(name, own)
    places = Counter(request.found for request in came if request.found)
    for place in PLACES:
        if places:
            found[f"{name}_found_{place}"] = places[place] / places.total()
        there = [request for request in own if request.found == place]
        if there:
            found |= _first_tokens(f"{name}_{place}", there)
    found[f"{name}_loads"] = loads(measured)
    return found


def _first_tokens(name: str, requests: Sequence[Request]) -> dict[str, float]:
    ttft = [request.ttft_ms for request in requests]
    return {f"{name}_ttft_p{q}_ms": percentile(ttft, q) for q in (50, 95, 99)}


def report(found: Mapping[str, Mapping[str, float]], bounds: Mapping[str, float]) -> dict[str, float]:
    """Print the table, and the ratio of the engine's default policy to each other policy."""
    names = list(dict.fromkeys(name for own in found.values() for name in own))
    print(f"{'':28}" + "".join(f"{policy:>12}" for policy in found))
    for name in names:
        print(f"{name:28}" + "".join(f"{own.get(name, float('nan')):12.3f}" for own in found.values()))
    print("bounds: " + "; ".join(f"{name} {value:.4g}" for name, value in bounds.items()))
    ratios = {}
    for other in ("lru", "all"):
        for name in ("closed_tok_s", "open_ttft_p50_ms", "open_ttft_p99_ms", "open_found_device", "closed_loads"):
            ours, theirs = (found.get(policy, {}).get(name, float("nan")) for policy in ("own", other))
            if theirs and np.isfinite(ours / theirs):
                ratios[f"own_over_{other}_{name.removesuffix('_ms')}"] = ours / theirs
    for name, value in ratios.items():
        print(f"{name:40} {value:8.3f}")
    return ratios


# ---- runs


def run(policy: str, sizes: Sizes, models: Sequence[ModelConfig], directory: Path, kind: str) -> dict[str, float]:
    """The measurements with this policy; partial if it failed."""
    found: dict[str, float] = {}
    began = time.monotonic()
    try:
        own = {f"engine-{policy}": settings(policy, sizes, models, "cuda" if kind == "cuda" else "cpu")}
        with started(directory, own, fake=kind == "fake") as lines:
            found["start_s"] = time.monotonic() - began
            found |= figures(lines, sizes)
    except (NotStarted, OSError) as error:
        print(f"FAILED: {policy}: {error}", flush=True)
    print(f"{policy}: {time.monotonic() - began:.0f} s with its start", flush=True)
    return found


def figures(lines: Sequence[SocketLine], sizes: Sizes) -> dict[str, float]:
    done, failed = measure(lines, phases(sizes), seed=1)
    found = {"phases_failed": float(bool(failed))}
    for measured in done[1:]:
        found |= phase_figures(measured)
    return found


def policies(asked: str) -> list[str]:
    """The policies that this engine has."""
    found = asked.split(",")
    unknown = sorted(set(found) - set(POLICIES))
    if unknown:
        raise SystemExit(f"--policies: {unknown[0]!r} is none of {', '.join(POLICIES)}")
    if "lru" in found and not known_setting(POLICY_SETTING):
        print(f"the engine has no setting {POLICY_SETTING}: lru is left out")
        found.remove("lru")
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="small models on this CPU: appends no rows without --note")
    parser.add_argument("--fake", action="store_true", help="no model at all: likewise")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--seconds", type=float, help="of each load that is measured")
    parser.add_argument("--host", type=int, help="how many models' weights fit in host memory")
    parser.add_argument("--residence-s", type=float, help="minimum residence of a model")
    parser.add_argument("--rate", type=float, help="requests a second, at Poisson times")
    parser.add_argument("--dummy", action="store_true", help="random weights that no file has")
    parser.add_argument("--directory", type=Path, help="where the files lie: on a disk with room for one model")
    parser.add_argument("--note", default="")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    given = {name: getattr(arguments, name) for name in ("seconds", "host", "residence_s", "rate")}
    changed = {name: value for name, value in given.items() if value is not None}
    sizes = replace(CPU if arguments.cpu else GPU, **changed)
    kind = "fake" if arguments.fake else "cpu" if arguments.cpu else "cuda"
    device = ceilings.ask() if kind == "cuda" else None
    if device is None and kind == "cuda":
        print("--cpu runs it on the CPU", file=sys.stderr)
        return 2
    machine = device.name if device else f"{cpu_name()}, {os.cpu_count()} cores" + ", fake" * arguments.fake
    workload = (
        f"{sizes.models} of {sizes.weights_bytes / 2**20:.4g} MiB, room for {sizes.room}, host {sizes.host}, Zipf "
        f"{ZIPF:g}, {sizes.prompt}+{sizes.new}, {sizes.rate:g}/s, then {sizes.in_flight} in flight, residence "
        f"{sizes.residence_s:g} s"
    )
    bounds = {"bound_found_device": sizes.hits_max}
    if device:
        bounds["bound_load_ms_from_host"] = 1000 * sizes.weights_bytes / device.to_device_bytes_per_s
    note, found = arguments.note, dict[str, dict[str, float]]()
    asked = policies(arguments.policies)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as scratch:
        directory = Path(scratch)
        models = make_models(directory, sizes, dummy=arguments.dummy or arguments.fake)
        for policy in asked:
            own = run(policy, sizes, models, directory, kind)
            if own:
                found[policy] = own
                if note or device:
                    rows = {f"{policy}_{name}": value for name, value in own.items() if np.isfinite(value)}
                    append_rows("serving_many_models", rows, machine, workload, note)
    ratios = report(found, bounds)
    if note or device:
        append_rows("serving_many_models", bounds | ratios, machine, workload, note)
    return 0 if list(found) == asked else 1


def make_models(directory: Path, sizes: Sizes, *, dummy: bool) -> list[ModelConfig]:
    if dummy:
        return [shapes.dummy(directory, name, sizes.shape, sizes.dtype) for name in sizes.names]
    began = time.monotonic()
    files = shapes.write_files(directory / "files", sizes.shape, sizes.dtype)
    print(f"weights written in {time.monotonic() - began:.1f} s", flush=True)
    return [shapes.linked(directory, name, files, sizes.dtype) for name in sizes.names]


if __name__ == "__main__":
    sys.exit(main())
