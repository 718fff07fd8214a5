"""Measures the parts of an engine's stop: it is started, serves streams, and gets SIGTERM while they run.

`python -m benchmarks.engine_stop --config ENGINE.json` (`laneway serve` writes engine.json into its data directory).
`requests_s`: until all requests were ended; `flush_s`: from then until the gateways had read the endings; both from the
engine's log. `process_s`: until the process had exited, including the kernel's part (unpinning host memory, the
device's context). Compare it with gateway.host.supervisor.STOP_ENGINE_S and STOP_ENGINE_ON_GPU_S.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.rows import REPO
from engine.protocol.client import EngineClient
from engine.protocol.frames import Sampling
from gateway.host.supervisor import STOP_ENGINE_ON_GPU_S, STOP_ENGINE_S

sys.path.insert(0, str(REPO / "tests"))

from support.engine.generations import IterableGeneration

START_S_MAX = 600.0
STREAM_S = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True, help="the engine's JSON configuration")
    parser.add_argument("--fake", action="store_true")
    parser.add_argument("--streams", type=int, default=16, help="streams that run when the engine gets SIGTERM")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    for _ in range(arguments.rounds):
        print(json.dumps(stopped(arguments.config, arguments.fake, arguments.streams)), flush=True)
    return 0


def stopped(config: Path, fake: bool, streams: int) -> dict[str, Any]:
    """Seconds of each part of one stop."""
    with tempfile.TemporaryDirectory() as scratch:
        socket, log = Path(scratch) / "engine.sock", Path(scratch) / "engine.log"
        argv = [sys.executable, "-m", "engine", "--socket", str(socket), "--config", str(config)]
        with log.open("wb") as written:
            command = [*argv, "--fake"] if fake else argv
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=written)
        assert process.stdout is not None
        try:
            if not process.stdout.readline():
                raise SystemExit(f"the engine did not start:\n{log.read_text()}")
            process_s = asyncio.run(_stop_amid(streams, socket, process))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            process.stdout.close()
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    events = {line["event"]: line for line in lines}
    parts = {part: events.get("engine.stopped", {}).get(part) for part in ("requests_s", "flush_s", "all_s")}
    limit_s = STOP_ENGINE_ON_GPU_S if json.loads(config.read_bytes()).get("device") == "cuda" else STOP_ENGINE_S
    forced = "engine.stop_forced" in events
    return {
        **parts,
        "process_s": round(process_s, 3),
        "status": process.returncode,
        "forced": forced,
        "limit_s": limit_s,
    }


async def _stop_amid(streams: int, socket: Path, process: subprocess.Popen[bytes]) -> float:
    """Seconds from SIGTERM, while streams run, to the end of the process."""
    client = EngineClient(socket, generation=IterableGeneration)
    await client.start()
    try:
        hello = await client.wait_ready(START_S_MAX)
        model = hello.models[0]
        reading = [
            asyncio.create_task(_read(client, model.name, hello.tiers[-1], number, model.context_tokens // 2))
            for number in range(streams)
        ]
        await asyncio.sleep(STREAM_S)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, START_S_MAX)
        seconds = time.monotonic() - began
        await asyncio.gather(*reading, return_exceptions=True)
        return seconds
    finally:
        await client.close()


async def _read(client: EngineClient, model: str, tier: str, number: int, max_tokens: int) -> None:
    generation = client.submit(
        request_id=f"req_{number}",
        model=model,
        adapter=None,
        namespace="",
        tier=tier,
        share=str(number),
        prompt_ids=[300 + number] * 8,
        max_tokens=max_tokens,
        sampling=Sampling(temperature=0.0),
        stop_ids=[],
    )
    assert isinstance(generation, IterableGeneration)
    async for _ in generation:
        pass


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    raise SystemExit(main())
