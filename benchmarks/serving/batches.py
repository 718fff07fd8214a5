"""Batches on one GPU: how much of the device they use alone, and how they affect premium traffic.

    python -m benchmarks.serving.batches [--seconds 30] [--tokenizer DIR] [--cpu]

One engine with Llama-3.1-8B's shape and the vocabulary of SmolLM2, random weights in bf16. The last three phases are
the whole product over HTTP, with keys, holds and the books in a database:

- "engine": the engine's offline best. 512 requests of 128 + 128 tokens are always outstanding on its socket;
- "premium": premium traffic alone, Poisson, 4 requests a second, 512 in and 64 out;
- "batch": one batch alone, lines of 128 + 128 tokens, uploaded by /v1/files and created by /v1/batches;
- "both": the premium traffic of "premium" beside the batch.

The bound of "batch" is the rate of "engine". The bound of "both" is the part of the device's time that premium's
requests leave, by their `device_s` in the usage rows, times the rate of "engine". Exit status 1 when a line or a
request fails, a hold stays open, the ledger is not sound, or a line is not billed at exactly the batch tier's price.
Appends rows to benchmarks/results/serving_batches.csv; `--cpu`: a small model in float32, appends no rows.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa

from benchmarks.rows import REPO, RESULTS, append_table

sys.path.insert(0, str(REPO / "tests"))

from benchmarks.serving import shapes
from benchmarks.serving.gateway import Phase, Traffic
from benchmarks.serving.processes import EngineProcess, SocketLine, measure, settings_of
from benchmarks.serving.two_engines import (
    TOKENIZER,
    UNLIMITED,
    VOCABULARY,
    engine_config,
    model_directory,
    tiers_toml,
)
from billing import tables
from billing.proofs.ledger_audit import audit_ledger
from support.stack import MODEL, Stack

BATCH_TENANT, PREMIUM_TENANT = "initech", "acme"
LEAD_S = 15.0  # of a batch before its window: the worker's pace reaches the engine's capacity
QUIET_S_MAX = 60.0
POLL_S = 0.5
FIRST_ID = 1000  # of random prompts: lower ids are special tokens
GENERATED = "vllm:generation_tokens_total"


@dataclass(frozen=True)
class Size:
    """Lengths in tokens; `rate`: premium requests a second; `outstanding`: requests in the phase "engine"."""

    outstanding: int
    prompt: int
    new: int
    lines_per_s: float  # more than the device can make
    premium_prompt: int
    premium_new: int
    rate: float


GPU_SIZE = Size(512, 128, 128, 160.0, 512, 64, 4.0)
CPU_SIZE = Size(16, 32, 16, 40.0, 96, 8, 1.0)


def batch_lines(count: int, size: Size, vocabulary: int, seed: int) -> bytes:
    """A batch's input file: completions of random ids, which end by length."""
    dice = random.Random(seed)
    lines = io.BytesIO()
    for number in range(count):
        ids = [dice.randrange(min(FIRST_ID, vocabulary // 2), vocabulary) for _ in range(size.prompt)]
        body = {"model": MODEL, "prompt": ids, "max_tokens": size.new, "temperature": 0, "ignore_eos": True}
        line = {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions", "body": body}
        lines.write(json.dumps(line).encode() + b"\n")
    return lines.getvalue()


@dataclass
class Stage:
    """One engine and one gateway."""

    stack: Stack
    size: Size
    vocabulary: int
    batches: int = 0

    def client(self, tenant: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.stack.keys[tenant]}"}
        return httpx.Client(base_url=self.stack.url, headers=headers, timeout=120)

    @contextlib.contextmanager
    def batch_running(self, seconds: float) -> Iterator[None]:
        """A batch with lines for more than `seconds`; it is in progress within the block, and cancelled after it."""
        self.batches += 1
        lines = batch_lines(round(self.size.lines_per_s * seconds), self.size, self.vocabulary, self.batches)
        with self.client(BATCH_TENANT) as client:
            form = {"file": ("lines.jsonl", lines, "application/jsonl")}
            file = checked(client.post("/v1/files", data={"purpose": "batch"}, files=form))
            asked = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
            batch = checked(client.post("/v1/batches", json=asked))
            self._wait(client, batch["id"], ("in_progress",))
            time.sleep(LEAD_S)
            yield
            ended = checked(client.get(f"/v1/batches/{batch['id']}"))
            assert ended["status"] == "in_progress", f"the batch is too short: {ended}"
            assert not ended["request_counts"]["failed"], ended
            checked(client.post(f"/v1/batches/{batch['id']}/cancel"))
            ended = self._wait(client, batch["id"], ("cancelled",))
            print(f"the batch was {ended['status']}: {ended['request_counts']}", flush=True)

    def _wait(self, client: httpx.Client, batch_id: str, statuses: tuple[str, ...]) -> dict[str, Any]:
        deadline = time.monotonic() + QUIET_S_MAX
        while (batch := checked(client.get(f"/v1/batches/{batch_id}")))["status"] not in statuses:
            assert time.monotonic() < deadline, f"the batch is not {statuses}: {batch}"
            assert batch["status"] not in ("failed", "expired"), batch
            time.sleep(POLL_S)
        return batch

    def generated(self) -> float:
        """Tokens that the engine made since its start."""
        lines = [line for line in self.stack.metrics().splitlines() if line.startswith(GENERATED)]
        return float(sum(float(line.rsplit(" ", 1)[1]) for line in lines))

    def premium(self, seconds: float) -> dict[str, Any]:
        """The report of the load tool."""
        size, file = self.size, self.stack.directory / "premium.json"
        argv = ["--base-url", self.stack.url, "--quiet", "--models", MODEL, "--json", str(file), "--timeout", "300"]
        argv += ["--key", f"{PREMIUM_TENANT}={self.stack.keys[PREMIUM_TENANT]}", "--rate", str(size.rate)]
        argv += ["--prompt-tokens", str(size.premium_prompt), "--max-tokens", str(size.premium_new)]
        argv += ["--duration", str(seconds), "--warmup", "4", "--seed", "1"]
        run_load(argv)
        report: dict[str, Any] = json.loads(file.read_bytes())
        assert not report["errors"], report["errors"]
        return report

    def premium_device_s(self) -> float:
        query = sa.select(sa.func.coalesce(sa.func.sum(tables.usage.c.device_s), 0.0))
        query = query.where(tables.usage.c.tier == "premium")
        return self.stack.read(lambda connection: float(connection.execute(query).scalar_one()))

    def book_faults(self) -> list[str]:
        deadline = time.monotonic() + QUIET_S_MAX
        while self.stack.open_holds() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        found = [f"{held} holds stay open"] if (held := self.stack.open_holds()) else []
        audit = self.stack.read(audit_ledger)
        if not audit.sound or audit.overshot:
            found.append(f"the ledger: {audit}")
        usage = tables.usage.c
        columns = (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.cost_picos)
        query = sa.select(*columns).where(usage.tier == "batch")
        for prompt, cached, completion, cost in self.stack.read(lambda c: list(c.execute(query))):
            full = (prompt - cached) * 100_000 + cached * 50_000 + completion * 400_000  # the prices of `Stack.seed`
            if 2 * int(cost) != full:
                found.append(f"a line cost {cost} instead of half of {full}")
                break
        return found


def run_load(argv: list[str]) -> None:
    subprocess.run([sys.executable, "-m", "benchmarks.load", *argv], cwd=REPO, check=True, stdout=subprocess.DEVNULL)


def checked(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, f"{answer.status_code}: {answer.text[:500]}"
    found: dict[str, Any] = answer.json()
    return found


def engine_rate(path: Path, size: Size, seconds: float) -> float:
    """Tokens a second of the engine alone, driven over its socket."""
    traffic = Traffic("batch", "batch", size.prompt, size.new, outstanding=size.outstanding)
    phase = Phase("engine", (traffic,), seconds=seconds, lead_s=LEAD_S)
    measured, failed = measure([SocketLine(path)], [phase], 1)
    assert not failed, failed
    return measured[0].tokens_per_s("batch")


def row_of(phase: str, rate: float, bound: float, premium: dict[str, Any] | None) -> dict[str, object]:
    """`rate`: of the batch's tokens; 0 without a batch."""
    total = None if premium is None else premium["total"]
    row: dict[str, object] = {
        "phase": phase,
        "batch_tok_s": f"{rate:.0f}",
        "bound_tok_s": f"{bound:.0f}" if bound else "",
        "of_bound": f"{rate / bound:.3f}" if bound else "",
        "premium_requests": "" if total is None else total["requests"],
    }
    for name in ("ttft_ms", "inter_token_ms"):
        for mark in ("p50", "p99"):
            row[f"premium_{name.removesuffix('_ms')}_{mark}_ms"] = "" if total is None else f"{total[name][mark]:.1f}"
    print(json.dumps(row), flush=True)
    return row


def run(stage: Stage, best: float, seconds: float) -> list[dict[str, object]]:
    rows = [row_of("engine", best, 0.0, None)]
    alone = stage.premium(seconds)
    rows.append(row_of("premium", 0.0, 0.0, alone))
    with stage.batch_running(seconds + 4 * LEAD_S):
        before, began = stage.generated(), time.monotonic()
        time.sleep(seconds)
        rate = (stage.generated() - before) / (time.monotonic() - began)
    rows.append(row_of("batch", rate, best, None))
    with stage.batch_running(seconds + 6 * LEAD_S):
        used, before, began = stage.premium_device_s(), stage.generated(), time.monotonic()
        report = stage.premium(seconds)
        spent = time.monotonic() - began
        of_premium = sum(report["total"][name] for name in ("completion_tokens",))
        rate = (stage.generated() - before - of_premium) / spent
        left = 1 - (stage.premium_device_s() - used) / spent
    rows.append(row_of("both", rate, left * best, report))
    ratio = report["total"]["ttft_ms"]["p99"] / alone["total"]["ttft_ms"]["p99"]
    print(f"premium's TTFT p99 beside a batch is {ratio:.3f} × its TTFT p99 alone; it leaves {left:.3f} of the device")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each phase")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER, help="directory of SmolLM2's tokenizer")
    parser.add_argument("--cpu", action="store_true", help="a small model on this CPU; appends no rows")
    options = parser.parse_args()
    cpu = bool(options.cpu)
    size = CPU_SIZE if cpu else GPU_SIZE
    shape = (shapes.SMALL if cpu else shapes.llama_8b()) | {"vocab_size": VOCABULARY}
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as leave:
        directory = Path(scratch)
        model_dir = model_directory(directory / "model", shape, options.tokenizer)
        config = engine_config(model_dir, cpu=cpu)
        database = f"sqlite:///{directory / 'laneway.db'}"
        stack = Stack(directory, database, model_dir)
        roster = f'[[engines]]\nname = "gpu-0"\naddress = "unix:{directory / "gpu-0.sock"}"\n'
        stack.toml = f"{UNLIMITED}{tiers_toml(cpu=cpu)}{roster}"
        flags = ("--raise-targets",) if cpu else ()
        engine = EngineProcess(directory, "gpu-0", settings_of(config), flags=flags)
        leave.callback(engine.stop)
        stack.prepare()
        print(f"ready after {engine.wait():.1f} s", flush=True)
        best = engine_rate(engine.path, size, options.seconds)
        stack.start_gateway()
        leave.callback(stack.stop)
        stack.wait_ready()
        stage = Stage(stack, size, VOCABULARY)
        rows = run(stage, best, options.seconds)
        faults = stage.book_faults()
        if faults:
            print(stack.log_file.read_text()[-3000:], file=sys.stderr)
    if not cpu:
        import torch

        append_table([{"gpu": torch.cuda.get_device_name()} | row for row in rows], RESULTS / "serving_batches.csv")
    for fault in faults:
        print(f"FAILED {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
