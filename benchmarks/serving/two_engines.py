"""Two engines, a GPU each, behind one gateway host: throughput, hit rate and tiers beside one engine, and a kill.

    python -m benchmarks.serving.two_engines [--seconds 30] [--tokenizer DIR] [--workers 4] [--cpu]

The whole product over HTTP: keys, limits, holds, the ledger in PostgreSQL (LANEWAY_TEST_POSTGRES names the server),
routing by prefix. Llama-3.1-8B's shape with the vocabulary of SmolLM2, random weights in bf16, 64 adapters of rank 16.
`--cpu`: a small model in float32, appends no rows. With one engine, then with two:

- "throughput": 1,024 requests an engine of 128 + 128 tokens, streamed, 256 at once an engine;
- "mixed", for `--seconds`: batch, 512 in and 128 out, 256 always outstanding an engine; premium, Poisson, 4 a second an
  engine, 512 in and 64 out. 384 tokens of each prompt are the same for an adapter and a tenant.

Then "killed": "mixed" with two engines, of which one is killed (SIGKILL) in the middle. Exit status 1 when a request
fails, a hold stays open, the ledger is not sound or an answer's tokens are not billed. Appends rows to
benchmarks/results/serving_two_engines.csv.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import sqlalchemy as sa

from benchmarks.rows import REPO, RESULTS, append_table

sys.path.insert(0, str(REPO / "tests"))

from adapters.files.check import WEIGHTS_FILE
from adapters.files.generate import ATTENTION, Recipe, write_random
from adapters.files.spec import PARENTS, BaseShape
from adapters.files.store import AdapterStore
from benchmarks.serving import shapes
from benchmarks.serving.processes import EngineProcess, settings_of
from billing import tables
from billing.proofs.ledger_audit import audit_ledger
from engine.protocol.config import EngineConfig, ModelConfig
from engine.protocol.tiers import Tier
from gateway.access import keys
from gateway.views.engines import FleetView
from support.adapters.directories import add_directory
from support.services import fresh_postgres
from support.stack import MODEL, Stack, register

TOKENIZER = REPO / ".laneway" / "models" / "smollm2-135m-instruct"
VOCABULARY = 49_152
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
ENGINES, ADAPTERS, RANK = 2, 64, 16
TENANT_OF = {"premium": "acme", "batch": "initech"}
LOAD_PROCESSES = 4  # per engine
READY_S_MAX = 120.0
QUIET_S_MAX = 60.0
RUN_S_MAX = 400.0
UNLIMITED = "[limits]\nrequests_per_minute = 100000000\ntokens_per_minute = 1000000000\nconcurrency = 100000\n"


@dataclass(frozen=True)
class Size:
    """`requests`, `outstanding` and `rate` (of premium, a second) are per engine. Lengths in tokens."""

    adapters: int
    requests: int
    outstanding: int
    prompt: int
    new: int
    mixed_prompt: int
    prefix: int  # of mixed_prompt, the same in all prompts
    batch_new: int
    premium_new: int
    rate: float


GPU_SIZE = Size(ADAPTERS, 1024, 256, 128, 128, 512, 384, 128, 64, 4.0)
CPU_SIZE = Size(4, 16, 4, 32, 16, 96, 64, 16, 8, 1.0)


def model_directory(directory: Path, shape: dict[str, Any], tokenizer: Path) -> Path:
    """config.json and a tokenizer, without weights."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(shape))
    for name in TOKENIZER_FILES:
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, directory / name)
    return directory


def store_adapter(store: Path, source: Path, base: BaseShape, dtype: str, number: int) -> str:
    """The adapter of `source` with its numbers rotated by `number` places, so that its content is distinct. Returns its
    digest."""
    with tempfile.TemporaryDirectory(dir=store.parent) as scratch:
        own = Path(shutil.copytree(source, Path(scratch) / "adapter"))
        weights = (own / WEIGHTS_FILE).read_bytes()
        begin = 8 + int.from_bytes(weights[:8], "little")
        cut = begin + 2 * number
        (own / WEIGHTS_FILE).write_bytes(weights[:begin] + weights[cut:] + weights[begin:cut])
        adapters = AdapterStore(store)
        digest = add_directory(adapters, own, base).digest
        adapters.add_slab(digest, base, dtype)
    return digest


def store_adapters(stack: Stack, shape: dict[str, Any], count: int, dtype: str) -> list[str]:
    """Store adapters that every tenant may call. Returns their names."""
    base, store = BaseShape.from_config(shape), stack.config.adapters_dir
    recipe = Recipe(1, RANK, (*ATTENTION, *(name for name in PARENTS if name not in ATTENTION)), scale=1.0)
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=stack.directory) as scratch:
        source = write_random(Path(scratch) / "source", base, recipe)
        make = functools.partial(store_adapter, store, source, base, dtype)
        with concurrent.futures.ProcessPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
            digests = list(pool.map(make, range(count)))
    names = [f"adapter-{number}" for number in range(count)]

    def write(connection: sa.Connection) -> None:
        for name, digest in zip(names, digests, strict=True):
            register(connection, name=name, tenant_id=None, digest=digest)

    stack.write(write)
    return names


def tiers(*, cpu: bool) -> tuple[Tier, ...]:
    """The targets of benchmarks/serving/flood.py, and queues for the requests of a killed engine."""
    ttft_ms, per_1k_ms, gap_ms = (1000.0, 1000.0, 500.0) if cpu else (50.0, 100.0, 40.0)
    slow = {"ttft_base_ms": 3_600_000.0, "inter_token_ms": 25 * gap_ms, "queue_max": 100_000}
    return (
        Tier(
            name="premium", service_tier="priority", floor=0.30, preemptible=False, queue_max=100_000,
            ttft_base_ms=ttft_ms, ttft_per_1k_prompt_tokens_ms=per_1k_ms, inter_token_ms=gap_ms,
        ),
        Tier(name="standard", service_tier="default", **slow),
        Tier(name="batch", service_tier="flex", floor=0.05, crowd_part=1.0, **slow),
    )  # fmt: skip


def tiers_toml(*, cpu: bool) -> str:
    """The tiers as text for laneway.toml."""
    return "".join(
        "[[tiers]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in tier.items() if value is not None)
        for tier in msgspec.to_builtins(tiers(cpu=cpu))
    )


def engine_config(model_dir: Path, *, cpu: bool) -> EngineConfig:
    dtype = "float32" if cpu else "bfloat16"
    model = msgspec.convert({"name": MODEL, "path": str(model_dir), "dtype": dtype, "dummy": True}, ModelConfig)
    if cpu:
        return EngineConfig(models=(model,), tiers=tiers(cpu=True), arena_bytes=256 << 20, sequences_max=8, threads=1)
    return EngineConfig(
        models=(model,),
        tiers=tiers(cpu=False),
        arena_bytes=48 << 30,
        host_pool_bytes=4 << 30,
        step_tokens_max=4096,
        sequences_max=256,
        device="cuda",
        adapter_rank_max=RANK,
        adapter_host_bytes=8 << 30,
    )


@dataclass
class Stage:
    """One gateway host, and engines that the roster may list."""

    stack: Stack
    engines: list[EngineProcess]
    adapters: list[str]
    size: Size
    toml: str
    admin_key: str

    def list_engines(self, count: int) -> None:
        """The first `count` engines are the roster; returns once every worker of the gateway uses them."""
        listed = "".join(
            f'[[engines]]\nname = "gpu-{n}"\naddress = "unix:{self.engines[n].path}"\n' for n in range(count)
        )
        self.stack.config_file.write_text(f"{self.toml}\n{listed}")

    def wait_listed(self, count: int) -> None:
        """Each request may reach another worker, so `count` ready engines must be seen many times in a row."""
        deadline, seen = time.monotonic() + READY_S_MAX, 0
        while seen < 8 * self.stack.workers:
            assert time.monotonic() < deadline, f"{count} engines are not ready"
            answer = httpx.get(
                f"{self.stack.url}/v1/admin/engines", headers={"Authorization": f"Bearer {self.admin_key}"}, timeout=30
            )
            answer.raise_for_status()
            ready = msgspec.json.decode(answer.content, type=FleetView).data
            good = len(ready) == count and all(engine.state == "ready" for engine in ready)
            seen = seen + 1 if good else 0
            time.sleep(0.02 if good else 0.2)

    # ---- load

    def begin_load(self, tier: str, processes: int, *arguments: str) -> list[tuple[subprocess.Popen[bytes], Path]]:
        tenant = TENANT_OF[tier]
        started = []
        for number in range(processes):
            # The adapters are dealt in turn: each process begins at a different adapter.
            first = number * len(self.adapters) // processes
            models = self.adapters[first:] + self.adapters[:first]
            file = self.stack.directory / f"{tier}-{number}.json"
            argv = [sys.executable, "-m", "benchmarks.load", "--base-url", self.stack.url, "--quiet"]
            argv += ["--key", f"{tenant}={self.stack.keys[tenant]}", "--models", ",".join(models)]
            argv += ["--popularity", "distinct", "--json", str(file), "--timeout", "300", *arguments]
            started.append((subprocess.Popen(argv, cwd=REPO, stdout=subprocess.DEVNULL), file))
        return started

    def throughput(self, engines: int) -> list[dict[str, Any]]:
        size, processes = self.size, LOAD_PROCESSES * engines
        return finished(
            self.begin_load(
                "batch", processes,
                *("--requests", str(engines * size.requests // processes), "--max-tokens", str(size.new)),
                *("--concurrency", str(engines * size.outstanding // processes), "--warmup", "16"),
                *("--prompt-tokens", str(size.prompt), "--seed", str(engines)),
            )
        )  # fmt: skip

    def mixed(self, engines: int, seconds: float, seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The load tool's reports of premium and of batch."""
        size = self.size
        common = ("--prompt-tokens", str(size.mixed_prompt - size.prefix), "--shared-prefix", str(size.prefix))
        processes = LOAD_PROCESSES * engines
        batch = self.begin_load(
            "batch", processes, *common, "--max-tokens", str(size.batch_new), "--duration", str(seconds),
            "--concurrency", str(engines * size.outstanding // processes), "--warmup", "4", "--seed", str(seed),
        )  # fmt: skip
        premium = self.begin_load(
            "premium", 1, *common, "--max-tokens", str(size.premium_new), "--duration", str(seconds),
            "--rate", str(engines * size.rate), "--warmup", "4", "--seed", str(seed),
        )  # fmt: skip
        return finished(premium), finished(batch)

    # ---- books

    def book_faults(self, answered: int) -> list[str]:
        """`answered`: output tokens of all answers that clients received since the start."""
        deadline = time.monotonic() + QUIET_S_MAX
        while self.stack.open_holds() and time.monotonic() < deadline:
            time.sleep(0.2)
        found = [f"{held} holds stay open"] if (held := self.stack.open_holds()) else []
        audit = self.stack.read(audit_ledger)
        if not audit.sound or audit.overshot:
            found.append(f"the ledger: {audit}")
        query = sa.select(sa.func.coalesce(sa.func.sum(tables.usage.c.completion_tokens), 0))
        billed = self.stack.read(lambda connection: int(connection.execute(query).scalar_one()))
        if billed < answered:
            found.append(f"{answered} tokens were answered, {billed} were billed")
        return found


def finished(started: list[tuple[subprocess.Popen[bytes], Path]]) -> list[dict[str, Any]]:
    """The reports of load processes. Raises AssertionError when one ended without a report."""
    deadline = time.monotonic() + RUN_S_MAX
    for process, _ in started:
        process.wait(max(1.0, deadline - time.monotonic()))
    missing = [file.stem for _, file in started if not file.exists()]
    assert not missing, f"no report of {missing}"
    return [json.loads(file.read_bytes()) for _, file in started]


@contextlib.contextmanager
def staged(directory: Path, database_url: str, options: argparse.Namespace) -> Iterator[Stage]:
    """Start engines and gateway; the roster lists one engine."""
    cpu = bool(options.cpu)
    size = CPU_SIZE if cpu else GPU_SIZE
    shape = (shapes.SMALL if cpu else shapes.llama_8b()) | {"vocab_size": VOCABULARY}
    model_dir = model_directory(directory / "model", shape, options.tokenizer)
    config = engine_config(model_dir, cpu=cpu)
    stack = Stack(directory, database_url, model_dir, workers=options.workers)
    stack.toml = f"{UNLIMITED}[fleet]\nresume_wait_s = 60\n{tiers_toml(cpu=cpu)}"
    with contextlib.ExitStack() as leave:
        # While this process makes the adapters, the engines compile and capture.
        engines = []
        for number in range(ENGINES):
            environ = {**os.environ, "CUDA_VISIBLE_DEVICES": str(number)}
            flags = ("--raise-targets",) if cpu else ()
            engines.append(EngineProcess(directory, f"gpu-{number}", settings_of(config), environ=environ, flags=flags))
            leave.callback(engines[-1].stop)
        stack.prepare()
        began = time.monotonic()
        names = store_adapters(stack, shape, size.adapters, "float32" if cpu else "bfloat16")
        print(f"{len(names)} adapters stored in {time.monotonic() - began:.1f} s", flush=True)
        for number, engine in enumerate(engines):
            print(f"engine {number}: ready after {engine.wait():.1f} s", flush=True)
        admin = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="two", kind="admin", role="read_only"))
        stage = Stage(stack, engines, names, size, stack.config_file.read_text(), admin.secret)
        stage.list_engines(1)
        stack.start_gateway()
        leave.callback(stack.stop)
        stack.wait_ready()
        yield stage


# ---- figures


def tokens(reports: Sequence[dict[str, Any]], name: str = "completion_tokens") -> int:
    return sum(int(report["total"][name]) for report in reports)


def row_of(name: str, engines: int, premium: list[dict[str, Any]], batch: list[dict[str, Any]]) -> dict[str, object]:
    """`throughput` has no premium. Rates are of the tokens of whole answers that ended within the window."""
    both = [*premium, *batch]
    wall_s = max(report["window_s"] for report in both)
    total = premium[0]["total"] if premium else batch[0]["total"]
    prompt = tokens(both, "prompt_tokens")
    return {
        "phase": name,
        "engines": engines,
        "requests": sum(report["total"]["requests"] for report in both),
        "failed": sum(report["total"]["failed"] for report in both),
        "tok_s": f"{sum(report['total']['output_tokens_per_s'] for report in both):.0f}",
        "batch_tok_s": f"{sum(report['total']['output_tokens_per_s'] for report in batch):.0f}",
        "hit_rate": f"{tokens(both, 'cached_tokens') / max(prompt, 1):.3f}",
        "ttft_p50_ms": f"{total['ttft_ms']['p50']:.1f}",
        "ttft_p99_ms": f"{total['ttft_ms']['p99']:.1f}",
        "itl_p50_ms": f"{total['inter_token_ms']['p50']:.1f}",
        "itl_p99_ms": f"{total['inter_token_ms']['p99']:.1f}",
        "longest_gap_ms": f"{max(report['total']['inter_token_ms']['max'] for report in both):.0f}",
        "window_s": f"{wall_s:.1f}",
        "tool_short_of_cpu": int(any(report["tool"]["is_suspect"] for report in both)),
    }


def run(stage: Stage, options: argparse.Namespace) -> tuple[list[dict[str, object]], list[str]]:
    """The rows, and the failures."""
    rows: list[dict[str, object]] = []
    errors: dict[str, int] = {}
    answered = 0

    def note(name: str, engines: int, premium: list[dict[str, Any]], batch: list[dict[str, Any]]) -> None:
        nonlocal answered
        answered += tokens([*premium, *batch])
        for report in (*premium, *batch):
            for kind, count in report["errors"].items():
                errors[f"{name}: {kind}"] = errors.get(f"{name}: {kind}", 0) + count
        rows.append(row_of(name, engines, premium, batch))
        print(json.dumps(rows[-1]), flush=True)

    for engines in range(1, ENGINES + 1):
        stage.list_engines(engines)
        stage.wait_listed(engines)
        note("throughput", engines, [], stage.throughput(engines))
        note("mixed", engines, *stage.mixed(engines, options.seconds, engines))
    killer = threading.Timer(options.seconds / 2, stage.engines[-1].kill)
    killer.start()
    note("killed", ENGINES, *stage.mixed(ENGINES, options.seconds, ENGINES))
    killer.join()
    found = [f"{count} × {kind}" for kind, count in errors.items()]
    return rows, found + stage.book_faults(answered)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each mixed phase")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER, help="directory of SmolLM2's tokenizer")
    parser.add_argument("--workers", type=int, default=4, help="processes of the gateway")
    parser.add_argument("--cpu", action="store_true", help="a small model on this CPU; appends no rows")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as scratch,
        fresh_postgres() as database_url,
        staged(Path(scratch), database_url, options) as stage,
    ):
        rows, faults = run(stage, options)
        if faults:
            print(stage.stack.log_file.read_text()[-3000:], file=sys.stderr)
    if not options.cpu:
        import torch

        device = {"gpu": torch.cuda.get_device_name(), "workers": options.workers, "adapters": ADAPTERS}
        append_table([device | row for row in rows], RESULTS / "serving_two_engines.csv")
    for fault in faults:
        print(f"FAILED {fault}")
    one, two = (float(str(row["tok_s"])) for row in rows if row["phase"] == "throughput")
    print(f"two engines make {two / one:.2f} × the tokens of one")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
