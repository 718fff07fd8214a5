"""Runs `python -m adapters` in a separate process, so that a tenant's file cannot stall or crash the gateway.

The process gets none of the gateway's secrets: only the environment variables of ENVIRONMENT_KEPT are passed on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ANSWER_BYTES_MAX = 1024 * 1024
REASON_CHARS_MAX = 500
# Stored adapters that one process resolves. Each is refused after 2 s of CPU time (adapters.__main__.CONFIG_CPU_S_MAX).
RESOLVED_AT_ONCE_MAX = 16
RESOLVE_S_MAX = 60.0
# Variables that Python and numpy need to start as in this process.
ENVIRONMENT_KEPT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")

_log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class ProcessResult:
    """How a process ended. `status`: exit status, negative for a signal. `out`, `problems`: stdout and stderr."""

    status: int
    out: str
    problems: str

    @property
    def refused(self) -> str | None:
        """Why the process refused the adapter; None when its output is no refusal."""
        try:
            return str(json.loads(self.out)["refused"])[:REASON_CHARS_MAX]
        except (ValueError, KeyError, TypeError):
            return None


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of the process. OpenBLAS needs no threads: no matrices are multiplied."""
    return {name: environ[name] for name in ENVIRONMENT_KEPT if name in environ} | {"OPENBLAS_NUM_THREADS": "1"}


async def run_adapters(arguments: Sequence[str], within_s: float) -> ProcessResult:
    """Run `python -m adapters` with these arguments. After `within_s` seconds kill it and raise TimeoutError."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "adapters", *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=ANSWER_BYTES_MAX,
        env=environment(),
    )  # fmt: skip
    try:
        async with asyncio.timeout(within_s):
            out, problems = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return ProcessResult(process.returncode or 0, out.decode(errors="replace"), problems.decode(errors="replace"))


class Resolver:
    """Resolves stored adapters without `modules-1.json`, because they were registered before that file existed or the
    file was damaged (docs/decisions/0017). After a refusal the adapter is not tried again by this gateway process."""

    def __init__(self, store: Path, within_s: float = RESOLVE_S_MAX) -> None:
        self._store = store
        self._within_s = within_s
        self._refused: dict[str, str] = {}
        self._one = asyncio.Lock()

    async def resolve(self, digests: Sequence[str]) -> dict[str, str]:
        """Resolve these adapters, one process at a time. Returns the reason of each refusal, by digest."""
        async with self._one:
            waiting = [digest for digest in digests if digest not in self._refused]
            for start in range(0, len(waiting), RESOLVED_AT_ONCE_MAX):
                await self._run(waiting[start : start + RESOLVED_AT_ONCE_MAX])
        return {digest: self._refused[digest] for digest in digests if digest in self._refused}

    async def _run(self, digests: Sequence[str]) -> None:
        try:
            result = await run_adapters(["resolve", str(self._store), *digests], self._within_s)
            refused, problem = json.loads(result.out)["refused"], ""
        except TimeoutError:
            refused, problem = None, f"its configuration was not resolved within {self._within_s:g} s"
        except (ValueError, KeyError):
            refused, problem = None, "its configuration could not be resolved"
            fields = {"status": result.status, "stderr": result.problems[-2000:]}
            _log.error("resolve.failed", extra={"fields": fields})
        if refused is None and len(digests) > 1:  # only the adapter that stops or breaks a process is refused
            for digest in digests:
                await self._run([digest])
            return
        if refused is None:
            refused = dict.fromkeys(digests, problem)
        for digest, reason in refused.items():
            self._refused[digest] = str(reason)[:REASON_CHARS_MAX]
            _log.error("adapter.not_resolved", extra={"fields": {"digest": digest, "reason": self._refused[digest]}})
        _log.info("adapters.resolved", extra={"fields": {"count": len(digests) - len(refused)}})
