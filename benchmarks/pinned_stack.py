"""A whole Laneway on two cores: the gateway alone on one; the fake engine, the load tool and all else on the other.

Everything a gateway does is on: keys, limits, budgets of tenant and key, hold, settle, ledger, log; on SQLite, or on
this machine's PostgreSQL and Redis. It knows no figure.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.rows import REPO

sys.path.insert(0, str(REPO / "tests"))

from billing.accounts import budgets
from engine.protocol.tiers import SHIPPED_TIERS
from support.services import REDIS_URL, fresh_postgres
from support.stack import MODEL, TIERS, Stack

GATEWAY_CORE, OTHER_CORE = 0, 1
MODEL_DIR = REPO / ".laneway" / "models" / "smollm2-135m-instruct"
STREAMS_MAX = 1024
STEP_TOKENS_MAX = 16_384
SERVICES = ("postgres", "redis-server")
LIMIT = 10**15  # of a budget, in tokens or picos: never reached, always looked at
RUN_S_MAX = 1200
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def lacks(model_dir: Path = MODEL_DIR) -> str:
    """What this machine lacks; "": nothing."""
    if not {GATEWAY_CORE, OTHER_CORE} <= os.sched_getaffinity(0):
        return "two cores"
    return "" if (model_dir / "tokenizer.json").exists() else "the demo model: `make run` converts it"


def machine() -> str:
    return f"{platform.machine()} {os.cpu_count()} cores, Python {platform.python_version()}"


def pin(pid: int, core: int) -> None:
    """Pin all threads of a process, and so the threads that they start later."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), {core})


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def services_cpu_s() -> float:
    """CPU seconds that the running processes of PostgreSQL and Redis have used."""
    found = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "comm").read_text().strip() in SERVICES:
                found += cpu_s(int(folder.name))
    return found


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


@contextlib.contextmanager
def pinned_stack(
    fake: dict[str, Any], gateway_toml: str = "", *, toml: str = "", services: bool = False
) -> Iterator[Stack]:
    """Started, with this process on the other core."""
    pin(os.getpid(), OTHER_CORE)
    roomy = {"queue_max": 2 * STREAMS_MAX, "inter_token_ms": 1000.0}  # prompts need not wait for slow steps
    tiers = [{"name": t.name, "service_tier": t.service_tier, "floor": t.floor, **roomy} for t in SHIPPED_TIERS]
    engine = {"sequences_max": STREAMS_MAX, "step_tokens_max": STEP_TOKENS_MAX, "tiers": tiers}
    limits = "[limits]\nrequests_per_minute = 100000000\ntokens_per_minute = 1000000000\nconcurrency = 100000\n"
    if services:
        limits += f'[redis]\nurl = "{REDIS_URL}"\n'
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack_of:
        directory = Path(name)
        url = stack_of.enter_context(fresh_postgres()) if services else f"sqlite:///{directory}/laneway.db"
        stack = Stack(directory, url, MODEL_DIR, fake, engine, gateway_toml=gateway_toml, toml=limits + toml)
        try:
            stack.start()
            pin(gateway_pid(stack), GATEWAY_CORE)
            set_budgets(stack)
            yield stack
        except BaseException:
            said = [line for line in stack.log_file.read_text().splitlines() if '"event":"request"' not in line]
            print("the gateway's log, without its requests:", *said[-20:], sep="\n  ", file=sys.stderr)
            raise
        finally:
            stack.stop()


def gateway_pid(stack: Stack) -> int:
    assert stack.gateway is not None
    return stack.gateway.pid


def set_budgets(stack: Stack) -> None:
    """One of money for each tenant, one of tokens for each key: every hold and every settlement counts in both."""

    def run(connection: sa.Connection) -> None:
        for tenant, tenant_id in stack.tenants.items():
            make = functools.partial(budgets.create_budget, connection, tenant_id=tenant_id, limit_amount=LIMIT)
            make(scope="tenant", scope_id=tenant_id, unit="money", period="month")
            make(scope="key", scope_id=stack.key_ids[tenant], unit="tokens", period="day")

    stack.write(run)


def restart_engine(stack: Stack, **fake: Any) -> None:
    """Restart the engine with other settings of the fake."""
    stack.kill_engine()
    stack.fake = {**stack.fake, **fake}
    stack.start_engine()
    stack.wait_ready()


async def load(stack: Stack, *arguments: str, failed_max: int = 0) -> dict[str, Any]:
    """One run of the load tool, all tenants in turn; its report. More failures than `failed_max` end the benchmark."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "report.json"
        keys = [word for tenant in TIERS for word in ("--key", f"{tenant}={stack.keys[tenant]}")]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.load", "--base-url", stack.url, *keys, "--models", MODEL, "--quiet"),
            *("--json", str(file), *arguments),
            cwd=REPO,
            stdout=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(RUN_S_MAX):
            await process.wait()
        report: dict[str, Any] = json.loads(file.read_bytes())
    assert report["total"]["failed"] <= failed_max, report["errors"]
    return report
