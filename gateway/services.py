"""Everything one gateway process holds, put together, started and stopped in order.

It wires the parts and runs their background work. It must never know a route.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

from adapters.store import AdapterStore
from billing.audit import Auditor
from billing.database import Database, DatabaseUnavailable
from billing.ids import new_id
from billing.leases import Leases
from billing.ledger import CLOSE_PATIENCE_S, Ledger
from engine.client import EngineClient, EngineUnavailable
from engine.tokenizer import Tokenizer
from gateway.callers import USED_FLUSH_S, Callers
from gateway.config import Config
from gateway.generation import Generator
from gateway.inflight import ServedModel
from gateway.limits import Allowance, Limiter
from gateway.loader import AdapterLoader
from gateway.metrics import Metrics
from gateway.registry import Registry
from gateway.tiers import Tiers
from gateway.watch import RevisionWatch

# Of shutdown_grace_s: running answers may go on for the first share, then they are stopped and settled.
FINISH_SHARE = 0.5
SETTLE_SHARE = 0.3
LEDGER_SHARE = 0.5  # of what is left then

_log = logging.getLogger(__name__)


class Services:
    """Made before the event loop runs; `running()` starts and stops what is inside."""

    def __init__(self, config: Config, secret: bytes) -> None:
        """`secret`: what cache namespaces are made from. Raises OSError or ValueError for a model that cannot be
        used."""
        self.config = config
        self.gateway_id = new_id("gw")
        self.metrics = Metrics()
        self.tiers = Tiers([(tier.name, tier.service_tier) for tier in config.tiers])
        self.models = {model.name: _served(config, model.name) for model in config.models}
        self.database = Database(config.database_url)
        self.ledger = Ledger(self.database, self.gateway_id, lease_s=config.lease.length_s)
        self.leases = Leases(
            self.database, self.gateway_id, lease_s=config.lease.length_s, renew_s=config.lease.renew_s
        )
        self.auditor = Auditor(self.database, self.gateway_id, lease_s=config.lease.length_s)
        self.callers = Callers(self.database, self.tiers.names)
        self.registry = Registry(self.database, {name: model.created for name, model in self.models.items()})
        self.store = AdapterStore(config.adapters_dir)
        self.watch = RevisionWatch(self.database, self._changed)
        self.engine = EngineClient(config.socket_path)
        self.loader = AdapterLoader(self.engine, self.store, self.registry.active)
        self.engine.on_connect = self.loader.on_connect
        self.generator = Generator(
            models=self.models,
            registry=self.registry,
            tiers=self.tiers,
            limiter=Limiter(time.monotonic),
            allowance=Allowance(
                config.limits.requests_per_minute, config.limits.tokens_per_minute, config.limits.concurrency
            ),
            ledger=self.ledger,
            engine=self.engine,
            loader=self.loader,
            metrics=self.metrics,
            secret=secret,
        )
        self._loading: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Raises DatabaseUnavailable, or GatewayRefused when another gateway serves from this SQLite file."""
        tasks: list[asyncio.Task[None]] = []
        try:
            await self.leases.acquire()
            await self.watch.poll()
            await self.engine.start()
            for name, work in self._background().items():
                tasks.append(asyncio.create_task(work, name=name))
                tasks[-1].add_done_callback(_ended)
            yield
        finally:
            await self.generator.stop(self.config.gateway.shutdown_grace_s * SETTLE_SHARE)
            await _cancel(tasks + ([self._loading] if self._loading else []))
            await self.engine.close()
            await self._close_ledger()

    def _background(self) -> dict[str, Coroutine[Any, Any, None]]:
        return {
            "revision-watch": self.watch.run(),
            "lease": self.leases.run(),
            "audit": self.auditor.run(self.config.lease.audit_s),
            "keys-used": self._flush_used(),
        }

    async def drain(self) -> None:
        """At the beginning of a stop: admit nothing, and after a while stop what still runs."""
        self.generator.begin_stop()
        grace_s = self.config.gateway.shutdown_grace_s
        await self.generator.wait_idle(grace_s * FINISH_SHARE)
        await self.generator.stop(grace_s * SETTLE_SHARE)

    async def _changed(self) -> None:
        """The revision moved: forget what was cached, and let the engine follow in its own time."""
        self.callers.clear()
        await self.registry.reload()
        self._loading = asyncio.create_task(self._load_after(self._loading), name="adapters")

    async def _load_after(self, before: asyncio.Task[None] | None) -> None:
        """One change after another."""
        if before is not None:
            await asyncio.wait([before])
        try:
            await self.loader.on_change()
        except EngineUnavailable as error:  # it loads everything when it is back
            _log.info("adapters.later", extra={"fields": {"reason": str(error)}})

    async def _flush_used(self) -> None:
        while True:
            await asyncio.sleep(USED_FLUSH_S)
            try:
                await self.callers.flush_used()
            except DatabaseUnavailable as error:
                _log.warning("keys.used_unwritten", extra={"fields": {"reason": str(error)}})

    async def _close_ledger(self) -> None:
        rest_s = self.config.gateway.shutdown_grace_s * (1 - FINISH_SHARE - SETTLE_SHARE)
        try:
            async with asyncio.timeout(rest_s):
                # Its patience ends before ours: whoever waits for it is told, and the lease can still be released.
                await self.ledger.close(patience_s=min(CLOSE_PATIENCE_S, rest_s * LEDGER_SHARE))
                await self.callers.flush_used()
                await self.leases.release()
        except (DatabaseUnavailable, TimeoutError) as error:
            _log.error("stop.unclean", extra={"fields": {"reason": repr(error)}})
        self.database.close()


def _served(config: Config, name: str) -> ServedModel:
    section = config.model(name)
    assert section is not None
    path = Path(section.path)
    return ServedModel(
        name=name,
        tokenizer=Tokenizer.load(path),
        default_max_tokens=section.max_tokens_default or config.gateway.max_tokens_default,
        created=int((path / "config.json").stat().st_mtime),
    )


def _ended(task: asyncio.Task[None]) -> None:
    """Background work never ends by itself: without it the gateway would serve on blindly. It stops in order, and
    whoever keeps it starts another."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.critical("background.died", exc_info=error, extra={"fields": {"task": task.get_name()}})
        signal.raise_signal(signal.SIGTERM)


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
