"""Two trees of Laneway under the flood of flood.py, in turn on one device: the cost of a change.

    python -m benchmarks.serving.paired_flood --other DIR [--names NEW,OLD] [--turns 4] [--seconds 15] [--cpu]
        [--quantize fp8] [--kv fp8]

A device that has just started is up to 2 % faster than minutes later, as much as a change may cost. So both trees load
at once, each in a separate process, and one runs the flood while the other is idle: new, old, old, new, and so on.
`--other` is the root of the old tree (`git worktree add DIR COMMIT`). Premium's requests are due at the same times in
each turn.

Appends a row for each turn to benchmarks/results/serving_paired_flood.csv, and prints the ratios of the means.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import REPO, RESULTS, append_table

Row = dict[str, Any]
SEED = 1
WARM_REQUESTS = 64


def side(seconds: float, lead_s: float, turns: int, options: list[str], *, cpu: bool) -> None:
    """One tree's process: reports that it is ready, runs the flood once for each line that it reads, and writes its
    row. `options`: further options of the flood."""
    from benchmarks.serving import flood, gateway
    from benchmarks.serving.gateway import Measured, Phase

    class InTurn(gateway.Gateway):
        def _run(self, measured: Measured) -> None:
            if measured.phase.name != "flood":
                return super()._run(measured)
            print("ready", flush=True)
            if not sys.stdin.readline():
                sys.exit("the process that started this one has ended")
            cpu_s, first = time.process_time(), {line: len(frames) for line, frames in self._frames.items()}
            super()._run(measured)
            row = {"cpu_s": round(time.process_time() - cpu_s, 2), **_figures(self, measured, first)}
            print(json.dumps(row), flush=True)

    gateway.Gateway = InTurn  # type: ignore[misc]  # `drive` makes one
    given = flood.parse(["--quick", *(["--cpu"] if cpu else []), *options])
    bench = flood.cpu_bench(given) if cpu else flood.gpu_bench(given)
    phases = [flood.flood_phases(bench, WARM_REQUESTS)[0]]
    phases += [Phase("flood", (bench.premium, bench.batch), seconds=seconds, lead_s=lead_s)] * turns
    gateway.drive(bench.config, bench.runner, bench.adapters, phases, SEED)


def _figures(own: Any, measured: Any, first: dict[Any, int]) -> Row:
    """The figures of one turn, from the frames that arrived since it began. The requests are left without times."""
    from benchmarks.serving.gateway import FrameReader, Tokens, decode_from_engine

    began, ended = measured.began_s, measured.ended_s
    tokens, at_s, rows = Counter[str](), list[float](), list[int]()
    for line, frames in own._frames.items():
        reader = FrameReader()
        for at, data in frames[first[line] :]:
            for body in reader.feed(data):
                frame = decode_from_engine(body)
                if not isinstance(frame, Tokens):
                    continue
                for handle in frame.handles:
                    own._requests[handle].token_s.append(at)
                if began <= at <= ended:
                    at_s.append(at)
                    rows.append(len(frame.handles))
                    tokens.update(own._requests[handle].traffic.name for handle in frame.handles)
    ttft_ms = [request.ttft_ms for request in measured.of("premium")]
    for request in measured.requests:
        request.token_s.clear()
    return {
        "batch_out_tok_s": round(tokens["batch"] / (ended - began), 1),
        "rows_per_step": round(float(np.mean(rows)), 2),
        "step_ms": round(1000 * float(np.mean(np.diff(at_s))), 3),
        "premium_ttft_p50_ms": round(float(np.percentile(ttft_ms, 50)), 1),
        "premium_ttft_p99_ms": round(float(np.percentile(ttft_ms, 99)), 1),
        "premium_requests": len(ttft_ms),
    }


def start(tree: Path, options: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).resolve()), "--side", *options]
    path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        command,
        cwd=tree,
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def read_row(process: subprocess.Popen[str]) -> Row | None:
    """The next row; None: it is ready for its next turn. Its other output is passed on."""
    assert process.stdout is not None
    for line in process.stdout:
        if line == "ready\n":
            return None
        if line.startswith("{"):
            return dict(json.loads(line))
        print(line, end="", flush=True)
    sys.exit(f"a tree's process ended with {process.wait()}")


def measure(trees: dict[str, Path], given: argparse.Namespace) -> list[Row]:
    options = ["--seconds", str(given.seconds), "--lead-s", str(given.lead_s), "--turns", str(-(-given.turns // 2))]
    options += ["--cpu"] if given.cpu else []
    options += format_options(given)
    own = "float32" if given.cpu else "bf16"
    formats = {
        "weights": own if given.quantize == "none" else given.quantize,
        "kv": own if given.kv == "auto" else given.kv,
    }
    rows = []
    with ExitStack() as stack:
        processes = {}
        for name, tree in trees.items():
            processes[name] = start(tree, options)
            stack.callback(processes[name].kill)
        for process in processes.values():
            assert read_row(process) is None
        new, old = trees
        for turn, name in enumerate(itertools.islice(itertools.cycle([new, old, old, new]), given.turns)):
            process = processes[name]
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            row = read_row(process)
            assert row is not None
            rows.append({"device": given.device, "tree": name, "turn": turn, **row, **formats})
            print(rows[-1], flush=True)
            if sum(other["tree"] == name for other in rows) < -(-given.turns // 2):
                assert read_row(process) is None
    return rows


def format_options(given: argparse.Namespace) -> list[str]:
    """The flood's options of formats; none if a tree may lack them."""
    options = [] if given.quantize == "none" else ["--quantize", given.quantize]
    return options + ([] if given.kv == "auto" else ["--kv", given.kv])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="the root of the old tree")
    parser.add_argument("--names", default="new,old", help="of this tree and the other, for the rows")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15.0, help="measured in a turn")
    parser.add_argument("--lead-s", type=float, default=10.0, help="of flood before that")
    parser.add_argument("--cpu", action="store_true", help="the demo model on this CPU")
    # Not imported from benchmarks.serving.formats: this file also runs in the other tree, which may lack that module.
    parser.add_argument("--quantize", choices=("none", "fp8", "int8", "int4"), default="none", help="of the weights")
    parser.add_argument("--kv", choices=("auto", "fp8"), default="auto", help="dtype of K and V")
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        side(given.seconds, given.lead_s, given.turns, format_options(given), cpu=given.cpu)
        return 0
    if given.other is None:
        parser.error("--other: the root of the tree to compare with")
    new, old = given.names.split(",")
    given.device = "CPU" if given.cpu else _gpu()
    rows = measure({new: REPO, old: given.other.resolve()}, given)
    append_table(rows, RESULTS / "serving_paired_flood.csv")
    for figure in ("batch_out_tok_s", "premium_ttft_p99_ms"):
        means = [float(np.mean([row[figure] for row in rows if row["tree"] == name])) for name in (new, old)]
        print(f"{figure}: {new} {means[0]:.1f}, {old} {means[1]:.1f}, {means[0] / means[1]:.3f} x")
    return 0


def _gpu() -> str:
    import torch

    return torch.cuda.get_device_name()


if __name__ == "__main__":
    sys.exit(main())
