"""Everything one gateway process holds, put together, started and stopped in order.

It wires the parts and runs their background work. It must never know a route.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from adapters.files.store import AdapterStore
from billing.clock import database_now
from billing.database import Database, DatabaseUnavailable
from billing.ids import new_id
from billing.ledger import leases
from billing.ledger.expiry import Auditor
from billing.ledger.leases import Leases
from billing.ledger.ledger import CLOSE_PATIENCE_S, Ledger
from billing.ledger.settler import Settler
from billing.revision import Change
from engine.protocol.client import EngineClient, EngineUnavailable
from engine.protocol.frames import Hello, ModelInfo
from gateway.access.callers import USED_FLUSH_S, Callers, unusable
from gateway.access.sessions import Sessions, SignIns
from gateway.access.write_limits import WriteLimits
from gateway.catalog.registry import Registry
from gateway.catalog.router import Router
from gateway.catalog.served_models import ServedModels
from gateway.config.file import Config
from gateway.engines.adapter_sync import AdapterLoader
from gateway.engines.model_sync import RETRY_S, ModelLoader
from gateway.generation.exhausted_keys import ExhaustedBudgets
from gateway.generation.first_tokens import AttainmentCache, FirstTokens
from gateway.generation.generator import Generator
from gateway.generation.holds import RequestHolds
from gateway.generation.planning import RequestPlanner
from gateway.generation.replays import Replays
from gateway.generation.selector import Selector
from gateway.generation.tier_choice import Tiers
from gateway.host.workers import ALONE, WorkerIndex, Workers
from gateway.http.console_files import ConsoleFiles
from gateway.large_work.pool import LargeWork
from gateway.limits.client_pace import ClientPace
from gateway.limits.limiter import PLACE_S, Limiter
from gateway.limits.turn_pace import RequestPace
from gateway.metrics import Metrics
from gateway.upkeep.bookkeeper import Bookkeeper
from gateway.upkeep.exports import Exporter
from gateway.upkeep.health_checks import HealthChecks
from gateway.upkeep.live_feed import LiveFeed, RequestTenants
from gateway.upkeep.reloads import reload_scope
from gateway.upkeep.revision_watch import RevisionWatch
from gateway.upkeep.webhook_deliveries import Deliverer
from gateway.uploads.slab_maker import SlabMaker
from gateway.uploads.sweeper import Sweeper
from gateway.uploads.uploads import Uploads
from gateway.views.overview import Overviews

if TYPE_CHECKING:
    from gateway.limits.redis_rates import SharedRates

# Of shutdown_grace_s: running answers may go on for the first share, then they are stopped and settled.
FINISH_SHARE = 0.5
SETTLE_SHARE = 0.3
LEDGER_SHARE = 0.5  # of what is left then
# Delay after the start: starting the processes for large prompts takes half a second of a core, and first requests have
# priority.
LARGE_WORK_DELAY_S = 1.0

_log = logging.getLogger(__name__)


class Services:
    """Made before the event loop runs; `running()` starts and stops what is inside."""

    _behind = False  # models or adapters changed since the last `_load_once`

    def __init__(self, config: Config, secret: bytes, place: WorkerIndex = ALONE) -> None:
        """`secret`: what cache namespaces, and the keys that kept answers are encrypted with, are made from. `place`
        among the workers of this host. Raises OSError or ValueError for a model that cannot be used."""
        self.config = config
        self.place = place
        self.secret = secret
        self.gateway_id = new_id("gw")
        self.metrics = Metrics()
        self.pace = RequestPace()
        self.refusal_pace = ClientPace(config.gateway.refusals_per_s)
        self.siblings = Workers(config.data_dir, place, self.metrics.text)
        self.tiers = Tiers([(tier.name, tier.service_tier) for tier in config.tiers])
        self.database = Database(config.database_url)
        # An ending that the database does not take at once goes to the journal, so the ledger does not retry.
        self.ledger = Ledger(self.database, self.gateway_id, lease_s=config.lease.length_s)
        self.settler = _settler(config, self.ledger, self.gateway_id)
        self.metrics.journal_bytes.set_function(lambda: self.settler.bytes_used)
        self.leases = Leases(
            self.database, self.gateway_id, lease_s=config.lease.length_s, renew_s=config.lease.renew_s
        )
        self.auditor = Auditor(self.database, self.gateway_id, lease_s=config.lease.length_s)
        self.deliverer = Deliverer(
            self.database,
            self.metrics,
            timeout_s=config.webhooks.timeout_s,
            retry_s=config.webhooks.retry_s,
            private_addresses=config.webhooks.private_addresses,
        )
        self.exporter = _exporter(config, self.database, self.gateway_id)
        # Whether a key has expired is asked of the database's clock, not of this host's.
        self.callers = Callers(
            self.database,
            self.tiers.names,
            {"key": config.limits.allowance, "tenant": config.tenant_limits.allowance},
            wall_clock=lambda: self.watch.now_s(),
            freshen=lambda: self.watch.freshen(),
        )
        self.sessions = Sessions(self.database, self.callers)
        self.sign_ins = SignIns()
        self.console = ConsoleFiles(config.console_dir)
        self.overviews = Overviews(self.database)
        self.registry = Registry(self.database)
        self.models = ServedModels(config, self.database, self.registry)
        self.metrics.models_refused.set_function(lambda: len(self.models.all_refused()))
        self.store = AdapterStore(config.adapters_dir)
        self.uploads = Uploads(self.store, config, self.metrics)
        self.replays = Replays(self.database, self.gateway_id, secret)
        self.watch = RevisionWatch(self.database, self._changed, pace=self.pace)
        self.engine = EngineClient(config.socket_path)
        self.large_work = LargeWork(self._tokenizers)
        planner = RequestPlanner(config, self.models.served, self.registry, self.engine, self.large_work)
        self.router = Router(
            config, self.database, self.registry, planner.served, lambda: self.watch.now_s(), planner.context_tokens
        )
        self.bookkeeper = Bookkeeper(self.database, self.engine, self.metrics, every_s=config.billing.reconcile_s)
        self.limiter = Limiter(shared=_shared_rates(config), count_gateways=self._count_gateways, metrics=self.metrics)
        self.write_limits = WriteLimits(self.limiter, config.administration)
        registry = self.registry
        self.loader = AdapterLoader(self.engine, self.store, self._loadable, registry.kept, registry.pinned)
        self.model_loader = ModelLoader(
            self.engine,
            lambda: {model.name: model for model in self.models.all},
            self.models.refuse,
            self.loader.forget_model,
            lambda: self.watch.fresh,
        )
        self.sweeper = Sweeper(self.store, self.database, self.loader)
        self.slabs = SlabMaker(self.store, self.database, config)
        self.engine.on_connect = self._on_connect
        self.engine.on_models = self._on_models
        self.first_tokens = FirstTokens(self.database, self.gateway_id, config.tiers, lambda: self.watch.now_s())
        self.attained = AttainmentCache(self.database)
        self.generator = Generator(
            selector=Selector(self.router, planner, self.metrics),
            tiers=self.tiers,
            limiter=self.limiter,
            holding=RequestHolds(self.ledger, self.settler, self.metrics),
            engine=self.engine,
            loader=self.loader,
            callers=self.callers,
            metrics=self.metrics,
            first_tokens=self.first_tokens,
            exhausted=ExhaustedBudgets(lambda: self.watch.now_s(), lambda: self.watch.revision),
            secret=secret,
        )
        self.live = LiveFeed(self.engine, RequestTenants(self.database, self.generator.tenants), self.registry.names)
        self.health = _health_checks(self)
        self._loading: asyncio.Task[None] | None = None
        self._told: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Raises DatabaseUnavailable, OSError when there is no room for the journal, or GatewayRefused when another
        gateway serves from this SQLite file."""
        tasks: list[asyncio.Task[None]] = []
        try:
            await self.leases.acquire()
            await self.settler.start()
            await self.siblings.start()
            await self.watch.poll_revision()
            await self.models.load_files()
            await self.limiter.start()
            await self.engine.start()
            for name, work in self._background().items():
                tasks.append(asyncio.create_task(work, name=name))
                tasks[-1].add_done_callback(_ended)
            yield
        finally:
            await self.generator.stop(self.config.gateway.shutdown_grace_s * SETTLE_SHARE)
            if self._retry is not None:
                self._retry.cancel()
            await _cancel(tasks + [task for task in (self._loading, self._told) if task is not None])
            await self.model_loader.close()
            await self.large_work.close()
            await self.engine.close()
            await self.siblings.close()
            await self.limiter.close()
            await self._close_ledger()
            await self.settler.close()
            self.database.close()

    def _background(self) -> dict[str, Coroutine[Any, Any, None]]:
        return {
            "revision-watch": self.watch.run(),
            "lease": self.leases.run(),
            "journal": self.settler.run(),
            "audit": self.auditor.run(self.config.lease.audit_s),
            "books": self.bookkeeper.run(),
            "webhooks": self.deliverer.run(self.config.lease.audit_s),
            "exports": self.exporter.run(),
            "keys-used": self._flush_used(),
            "first-tokens": self.first_tokens.run(),
            "limits": self.limiter.run(),
            "store": self.sweeper.run(self.config.lease.audit_s),
            "replays": self.replays.run(self.config.lease.audit_s),
            "large-work": self._start_large_work(),
        } | ({"slabs": self.slabs.run(self.config.lease.audit_s)} if self.config.adapters.slabs else {})

    def _tokenizers(self) -> list[tuple[str, str]]:
        """Tokenizers that the processes for large work load: directory and encoding (see large_jobs.CountJob)."""
        return [(str(model.tokenizer.directory), model.encoding) for model in self.models.served.values()]

    async def _start_large_work(self) -> None:
        await asyncio.sleep(LARGE_WORK_DELAY_S)
        self.large_work.start()
        await asyncio.Event().wait()

    async def _count_gateways(self) -> int:
        """Raises DatabaseUnavailable."""
        renew_s = self.config.lease.renew_s
        return await self.database.read(lambda c: leases.live(c, database_now(c), renew_s))

    async def drain(self) -> None:
        """At the beginning of a stop: admit nothing, and after a while stop what still runs."""
        self.generator.begin_stop()
        self.live.close()
        grace_s = self.config.gateway.shutdown_grace_s
        await self.generator.wait_idle(grace_s * FINISH_SHARE)
        await self.generator.stop(grace_s * SETTLE_SHARE)

    async def _changed(self, changes: Sequence[Change] | None) -> None:
        """The revision moved: drop and reload what these writes concern (None: everything). The engine is updated by a
        task in the background."""
        found = reload_scope(changes)
        if found.callers_of is None:
            self.callers.clear()
        elif found.callers_of:
            self.callers.drop_tenants(found.callers_of)
        if self.config.gateway.end_streams_on_revoke and (running := self.generator.key_ids(found.callers_of)):
            self.generator.end_requests_of(await self.database.read(lambda connection: unusable(connection, running)))
        if uploading := self.uploads.key_ids():
            self.uploads.end_uploads_of(await self.database.read(lambda connection: unusable(connection, uploading)))
        if found.models:
            await self.models.follow()
        if found.adapters:
            await self.registry.reload()
        if found.routes:
            await self.router.reload()
        if found.models or found.adapters:
            self._follow()

    def _follow(self) -> None:
        """Update the engine after a change of the database or of the engine's models. Changes during a round cause one
        more round."""
        self._behind = True
        if self._loading is None or self._loading.done():
            self._loading = asyncio.create_task(self._reload(), name="models-and-adapters")

    async def _reload(self) -> None:
        """Repeat rounds until nothing changed during the last one."""
        while self._behind:
            self._behind = False
            await self._load_once()

    async def _load_once(self) -> None:
        """One round. An adapter is loaded after its model: a model that becomes ready causes another round."""
        if not await self.models.load_files() and self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._try_again)
        if self.engine.ready:
            self.model_loader.follow()
        try:
            await self.loader.on_change()
        except EngineUnavailable as error:  # it loads everything when it is back
            _log.info("adapters.later", extra={"fields": {"reason": str(error)}})

    def _try_again(self) -> None:
        self._retry = None
        self._follow()

    async def _on_connect(self, hello: Hello) -> None:
        """For the client, before it is ready: models that take their time keep no other waiting."""
        self.first_tokens.take_targets(hello.raised)
        self.model_loader.connected()
        await self.loader.on_connect(hello)

    def _on_models(self, models: dict[str, ModelInfo]) -> None:
        """What the engine serves changed: it may be that another gateway knows more of the database than this one."""
        if self._told is None or self._told.done():
            self._told = asyncio.create_task(self._catch_up(), name="models-told")

    async def _catch_up(self) -> None:
        with contextlib.suppress(DatabaseUnavailable):
            await self.watch.poll_revision()
        self._follow()

    def _loadable(self) -> dict[str, str]:
        """Digest → base model of the adapters that may be called, as far as the engine has the model."""
        have = self.engine.models
        return {digest: model for digest, model in self.registry.active().items() if model in have}

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
                await self.settler.settle_own_journal()
                await self.callers.flush_used()
                await self.first_tokens.flush()
                if not self.settler.bytes_used:  # else the lease keeps its holds until the next start settles them
                    await self.leases.release_lease()
        except (DatabaseUnavailable, TimeoutError) as error:
            _log.error("stop.unclean", extra={"fields": {"reason": repr(error)}})


def _health_checks(services: Services) -> HealthChecks:
    return HealthChecks(
        services.config,
        database=services.database,
        watch=services.watch,
        leases=services.leases,
        engine=services.engine,
        models=services.models,
        siblings=services.siblings,
        place=services.place,
        settler=services.settler,
        unrecordable=services.generator.unrecordable,
    )


def _settler(config: Config, ledger: Ledger, gateway_id: str) -> Settler:
    return Settler(
        ledger,
        config.journal_dir,
        gateway_id,
        bytes_max=config.journal.bytes_max,
        disk_free_min_bytes=config.journal.disk_free_min_bytes,
        wait_s=config.journal.settle_wait_s,
    )


def _exporter(config: Config, database: Database, gateway_id: str) -> Exporter:
    return Exporter(
        database,
        gateway_id,
        config.exports_dir,
        bytes_max=config.exports.bytes_max,
        free_min_bytes=config.upload_free_min_bytes,
        provider=config.exports.provider_name,
    )


def _shared_rates(config: Config) -> SharedRates | None:
    if not config.redis.url:
        return None
    from gateway.limits.redis_rates import SharedRates  # its client takes a fifth of a second to load

    return SharedRates(config.redis.url, round(PLACE_S * 1e6), config.redis.answer_ms / 1000)


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
