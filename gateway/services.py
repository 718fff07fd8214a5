"""The composition root of a gateway process: it builds the parts, starts and stops them in order, and runs their
background work. It knows no routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

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
from engine.protocol.frames import ModelInfo, RaisedTargets
from gateway.access.break_glass import BreakGlass
from gateway.access.callers import USED_FLUSH_S, Callers, unusable
from gateway.access.deployment_secret import check_secrets
from gateway.access.end_users import EndUserDigests
from gateway.access.person_sign_ins import PersonSignIns
from gateway.access.sessions import Sessions, SignIns
from gateway.access.totp import KeyTotp
from gateway.access.write_limits import WriteLimits
from gateway.answers.recording import Recordings
from gateway.answers.responses_shape import usage_of_checkpoint
from gateway.batches.batches import Batches
from gateway.batches.build import build_worker
from gateway.batches.inline_batches import InlineBatches
from gateway.batches.progress_cache import ProgressCache
from gateway.catalog.registry import Registry
from gateway.catalog.router import Router
from gateway.catalog.served_models import ServedModels
from gateway.config.file import Config
from gateway.config.server_secrets import ServerSecrets
from gateway.engines.engine import Engine, EngineUnavailable
from gateway.engines.model_sync import RETRY_S
from gateway.files.backends import open_backend
from gateway.files.contents import FileContents
from gateway.files.files import Files
from gateway.fleet.build import build_fleet
from gateway.fleet.member import Catalog
from gateway.fleet.roster import build_roster
from gateway.generation.exhausted_budgets import ExhaustedBudgets
from gateway.generation.first_tokens import AttainmentCache, FirstTokens
from gateway.generation.generator import Generator
from gateway.generation.holds import RequestHolds
from gateway.generation.planning import RequestPlanner
from gateway.generation.replays import Replays
from gateway.generation.selector import Selector
from gateway.generation.tier_choice import Tiers
from gateway.host.schema_check import check_schema
from gateway.host.stop_state import StopReason, StopState
from gateway.host.workers import ALONE, WorkerIndex, Workers, WorkerState
from gateway.http.console_files import ConsoleFiles
from gateway.large_work.pool import LargeWork
from gateway.limits.body_memory import BodyMemory
from gateway.limits.client_pace import ClientPace
from gateway.limits.limiter import Limiter, shared_rates
from gateway.limits.turn_pace import RequestPace
from gateway.metrics import Metrics
from gateway.recovery.erasures import replay_file
from gateway.stored.background import BackgroundStore
from gateway.stored.conversations import ConversationStore
from gateway.stored.quotas import ResponseQuotas
from gateway.stored.responses import ResponseStore
from gateway.stored.texts import TextKeys
from gateway.telemetry.tracing import Tracing
from gateway.upkeep.batch_gauges import measure_batches, measure_worker
from gateway.upkeep.bookkeeper import Bookkeeper
from gateway.upkeep.connectors import ConnectorPusher
from gateway.upkeep.error_recorder import ErrorRecorder
from gateway.upkeep.exports import Exporter
from gateway.upkeep.gauges import measure_gateway
from gateway.upkeep.health_checks import HealthChecks
from gateway.upkeep.job_intervals import JobIntervals
from gateway.upkeep.live_feed import LiveFeeds, RequestTenants
from gateway.upkeep.problem_watch import ProblemWatch
from gateway.upkeep.readiness import Readiness
from gateway.upkeep.reloads import reload_scope
from gateway.upkeep.retention import Retention
from gateway.upkeep.revision_watch import RevisionWatch
from gateway.upkeep.sla_folder import SlaFolder
from gateway.upkeep.webhook_deliveries import Deliverer
from gateway.uploads.file_uploads import FileUploads
from gateway.uploads.fleet_store import FleetStore
from gateway.uploads.slab_maker import SlabMaker
from gateway.uploads.sweeper import Sweeper
from gateway.uploads.uploads import Uploads
from gateway.views.engines import measure_fleet
from gateway.views.overview import Overviews

LEDGER_SHARE = 0.5  # the part of StopTimes.close_s in which the ledger finishes its writes
# Starting the processes for large prompts takes half a second of a core, and first requests have priority.
LARGE_WORK_DELAY_S = 1.0
RECORDINGS_CLOSE_S = 2.0  # the longest wait of a stop for the last events of responses in the background

_log = logging.getLogger(__name__)


class Services:
    """The parts of one gateway process, built before the event loop runs. `running()` starts and stops them.

    Each part is built after the parts that it uses, so a part may be handed on as soon as it is assigned. Callbacks of
    this class run only in the event loop, after all parts exist."""

    _engine_outdated = False  # models or adapters changed since the last round of `_update_engine_once`

    def __init__(
        self,
        config: Config,
        secrets: ServerSecrets,
        worker_index: WorkerIndex = ALONE,
        *,
        engine: Engine | None = None,
        file: Path | None = None,
    ) -> None:
        """`secrets`: the cache namespaces, and the keys that encrypt texts, are derived from them. `worker_index`: of
        this process among the workers of the host. `engine`: by default the engine of this host. Raises OSError or
        ValueError if no model's files can be loaded."""
        self.config, self._file = config, file
        self.worker_index = worker_index
        self.secrets = secrets
        self.end_users = EndUserDigests(secrets)
        self.gateway_id = new_id("gw")
        self.metrics = Metrics()
        self.tracing = Tracing(config.telemetry, self.gateway_id, self.metrics)
        self.pace = RequestPace()
        self.tiers = Tiers([(tier.name, tier.service_tier) for tier in config.tiers])
        self.stopping = StopState(config.gateway)
        begin_drain = functools.partial(self.stopping.begin_stop, StopReason.DRAIN)
        self.workers = Workers(config.data_dir, worker_index, self.metrics.text, self._worker_state, begin_drain)
        self.console = ConsoleFiles(config.console_dir)
        self.database = Database(config.database_url)
        self.watch = RevisionWatch(self.database, self._on_revision, pace=self.pace)
        self._build_ledger()
        self._build_access()
        self._build_catalog()
        self._build_engine(engine)
        self._build_generation()
        self._build_jobs()
        self._engine_update: asyncio.Task[None] | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None

    def _build_ledger(self) -> None:
        """Holds, settlements and the lease that they depend on."""
        lease = self.config.lease
        # An ending that the database does not accept at once is written to the journal, so the ledger does not retry.
        self.ledger = Ledger(self.database, self.gateway_id, lease_s=lease.length_s)
        self.settler = _settler(self.config, self.ledger, self.gateway_id)
        self.leases = Leases(self.database, self.gateway_id, lease_s=lease.length_s, renew_s=lease.renew_s)

    def _build_access(self) -> None:
        """Keys, sessions and rate limits."""
        config = self.config
        # The database's clock decides whether a key has expired, not the clock of this host.
        self.callers = Callers(
            self.database,
            self.tiers.names,
            {"key": config.limits.allowance, "tenant": config.tenant_limits.allowance},
            wall_clock=self.watch.now_s,
            freshen=self.watch.freshen,
        )
        self.person_sign_ins = PersonSignIns(self.database, config.oidc, self.secrets)
        self.sessions = Sessions(self.database, self.callers, self.person_sign_ins)
        self.break_glass = BreakGlass(self.database, self.metrics)
        self.sign_ins = SignIns()
        self.totp = KeyTotp(self.secrets)
        self.refusal_pace = ClientPace(config.gateway.refusals_per_s)
        self.body_memory = BodyMemory(config.gateway.bodies_bytes_max, config.gateway.tenant_bodies_bytes_max)
        self.limiter = Limiter(shared=shared_rates(config), count_gateways=self._count_gateways, metrics=self.metrics)
        self.write_limits = WriteLimits(self.limiter, config.administration)

    def _build_catalog(self) -> None:
        """Models and adapters, and the files of both."""
        self.registry = Registry(self.database)
        self.models = ServedModels(self.config, self.database, self.registry)
        self.store = AdapterStore(self.config.adapters_dir)
        self.uploads = Uploads(self.store, self.config, self.metrics)
        active = self.models.active
        self.fleet_store = FleetStore(
            self.config, self.store, self.database, lambda: [model.path for model in active().values()]
        )

    def _build_engine(self, engine: Engine | None) -> None:
        """The fleet of engines, and the tasks that keep their models and adapters up to date. `engine`: its only
        member."""
        registry, models = self.registry, self.models
        catalog = Catalog(
            self.store,
            models=lambda: {model.name: model for model in models.all},
            models_fresh=lambda: self.watch.fresh,
            adapters=registry.active,
            sources=self.fleet_store.sources,
            kept=registry.kept,
            pinned=registry.pinned,
        )
        self.roster = build_roster(self.config, self._file)
        self.engine = build_fleet(self.config, self.roster, catalog, self.gateway_id, models.refuse, engine)
        measure_fleet(self.metrics, self.engine, self.config.certificates)
        self.engine.on_connect = self._on_connect
        self.engine.on_models = self._on_models

    def _build_generation(self) -> None:
        """Build the parts that plan, run and replay requests."""
        config, database, watch, models = self.config, self.database, self.watch, self.models
        quotas = ResponseQuotas(config.responses.count_max, config.responses.bytes_max)
        text_keys = TextKeys(self.secrets)
        self.responses = ResponseStore(self.database, self.gateway_id, text_keys, quotas)
        self.conversations = ConversationStore(self.database, text_keys, quotas)
        self.background = BackgroundStore(self.database, self.gateway_id, text_keys, usage_of_checkpoint)
        self.recordings = Recordings(self.background)
        contents = FileContents(open_backend(config.files.store, config.files_dir, config.upload_free_min_bytes))
        self.files = Files(self.database, contents, text_keys, config.files, self.metrics)
        self.file_uploads = FileUploads(self.files)
        self.replays = Replays(self.database, self.gateway_id, self.secrets)
        self.large_work = LargeWork(self._tokenizers)
        planner = RequestPlanner(config, self.models.served, self.registry, self.engine, self.large_work, self.secrets)
        self.router = Router(config, database, self.registry, watch.now_s, planner, models.capabilities)
        self.first_tokens = FirstTokens(self.database, self.gateway_id, config.tiers, watch.now_s, self.metrics)
        self.generator = Generator(
            selector=Selector(self.router, planner, self.metrics),
            planner=planner,
            tiers=self.tiers,
            limiter=self.limiter,
            holding=RequestHolds(self.ledger, self.settler, self.metrics, self.end_users),
            engine=self.engine,
            callers=self.callers,
            metrics=self.metrics,
            first_tokens=self.first_tokens,
            exhausted=ExhaustedBudgets(watch.now_s, lambda: watch.revision),
            secrets=self.secrets,
        )

    def _build_jobs(self) -> None:
        """Background jobs, and what operators are shown."""
        config, database = self.config, self.database
        self.batch_worker = build_worker(
            config, database, self.gateway_id, callers=self.callers, files=self.files, router=self.router,
            generator=self.generator, limiter=self.limiter, tiers=self.tiers, fleet=self.engine,
            metrics=self.metrics,
        )  # fmt: skip
        self.batch_progress = ProgressCache()
        self.batches = Batches(database, config.batches, self.batch_worker.notice_batch)
        measure_worker(self.metrics, self.batch_worker)
        self.inline_batches = InlineBatches(config, database, self.files, self.router, self.batch_worker.notice_batch)
        self.auditor = Auditor(database, self.gateway_id, lease_s=config.lease.length_s)
        self.bookkeeper = Bookkeeper(database, self.engine, self.metrics, every_s=config.billing.reconcile_s)
        self.deliverer = Deliverer(database, self.metrics, config.webhooks, self.secrets)
        self.exporter = _exporter(config, database, self.gateway_id)
        self.sweeper = Sweeper(self.store, database, self.engine)
        self.retention = Retention(database, config, self.secrets)
        self.request_errors = ErrorRecorder(
            database, self.gateway_id, self.metrics, now_s=self.watch.now_s, gateways=self.limiter.live_gateways
        )
        self.slabs = SlabMaker(self.store, database, config)
        self.overviews = Overviews(database)
        self.attainment = AttainmentCache(database)
        self.live = LiveFeeds(self.engine, RequestTenants(database, self.generator.tenants), self.registry.names)
        self.health = HealthChecks(
            config, database=database, watch=self.watch, leases=self.leases, engine=self.engine, models=self.models,
            workers=self.workers, place=self.worker_index, settler=self.settler, stopping=self.stopping,
            unrecordable=self.generator.unrecordable, untraced=self.tracing.problem,
        )  # fmt: skip
        self.problems = ProblemWatch(
            config, self.gateway_id, database=database, place=self.worker_index, check=self.health.report,
            attempt=self.deliverer.attempt, metrics=self.metrics,
        )  # fmt: skip
        self.readiness = Readiness(
            engine=self.engine, watch=self.watch, leases=self.leases, stopping=self.stopping,
            unrecordable=self.generator.unrecordable, storage_fault=self.settler.storage_fault,
            open_models=self.models.open_names,
        )  # fmt: skip
        measure_gateway(self.metrics, config, self.readiness, self.settler, self.stopping, self.models)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start all parts, and stop them when the block is left. Raises DatabaseUnavailable, OSError when there is no
        disk space for the journal, GatewayRefused when another gateway serves from this SQLite file, SchemaOutdated or
        WrongSecret."""
        tasks: list[asyncio.Task[None]] = []
        try:
            await self.database.read(check_schema)
            await self.database.write(lambda connection: check_secrets(connection, self.secrets))
            await self.database.write(self.end_users.make_key)
            await self.database.write(lambda connection: replay_file(connection, self.config))
            await self.leases.acquire()
            await self.settler.start()
            await self.workers.start()
            await self.watch.poll_revision()
            await self.models.load_files()
            await self.limiter.start()
            self.fleet_store.start()
            await self.engine.start()
            for name, work in self._background().items():
                tasks.append(asyncio.create_task(work, name=name))
                tasks[-1].add_done_callback(self._stop_on_failure)
            yield
        finally:
            await self.generator.stop(self.stopping.times.settle_s)
            await self.recordings.close(RECORDINGS_CLOSE_S)
            if self._retry is not None:
                self._retry.cancel()
            await _cancel(tasks + [task for task in (self._engine_update, self._catching_up) if task is not None])
            await self.large_work.close()
            await self.fleet_store.close()
            await self.engine.close()
            await self.workers.close()
            await self.limiter.close()
            await self._close_ledger()
            await self.settler.close()
            await self.tracing.close()
            self.database.close()

    def _background(self) -> dict[str, Coroutine[Any, Any, None]]:
        """The background tasks by name."""
        every = JobIntervals.of(self.config)
        tasks = {
            "revision-watch": self.watch.run(),
            "lease": self.leases.run(),
            "journal": self.settler.run(),
            "audit": self.auditor.run(every.expire_holds_s),
            "books": self.bookkeeper.run(),
            "sla": SlaFolder(self.database, self.metrics).run(),
            "webhooks": self.deliverer.run(every.deliver_webhooks_s),
            "problems": self.problems.run(every.deliver_webhooks_s),
            "exports": self.exporter.run(),
            "keys-used": self._flush_used(),
            "first-tokens": self.first_tokens.run(),
            "request-errors": self.request_errors.run(),
            "limits": self.limiter.run(),
            "store": self.sweeper.run(every.sweep_adapters_s),
            "fleet-store": self.fleet_store.run(every.sweep_adapters_s),
            "responses": self.responses.run(every.delete_responses_s),
            "background": self.background.run(every.expire_holds_s),
            "recordings": self.recordings.run(),
            "batches": self.batch_worker.run(),
            "batch-gauges": measure_batches(self.database, self.metrics, counts=self.worker_index.number == 0),
            "files": self.files.run(self.config.files.upkeep_s),
            "replays": self.replays.run(every.delete_replays_s),
            "traces": self.tracing.run(),
            "retention": self.retention.run(),
            "large-work": self._start_large_work(),
        }
        for section in self.config.connectors:
            pusher = ConnectorPusher(self.database, self.gateway_id, section, self.metrics)
            tasks[f"connector-{section.name}"] = pusher.run()
        if self.config.adapters.slabs:
            tasks["slabs"] = self.slabs.run(every.make_slabs_s)
        return tasks

    def _tokenizers(self) -> list[tuple[str, str]]:
        """The tokenizers that the job processes load: directory and encoding (see large_jobs.CountJob)."""
        return [(str(model.tokenizer.directory), model.encoding) for model in self.models.served.values()]

    async def _start_large_work(self) -> None:
        await asyncio.sleep(LARGE_WORK_DELAY_S)
        self.large_work.start()
        await asyncio.Event().wait()

    async def _count_gateways(self) -> int:
        """The number of gateways with a live lease. Raises DatabaseUnavailable."""
        renew_s = self.config.lease.renew_s
        return await self.database.read(lambda c: leases.count_live_gateways(c, database_now(c), renew_s))

    async def drain(self) -> None:
        """The end of a shutdown: admit no request, let running requests finish if nothing waited for them yet, then
        stop them."""
        self.generator.begin_stop()
        self.live.close()
        times = self.stopping.times
        if self.stopping.is_quick:
            await self.generator.wait_idle(times.finish_s)
        await self.generator.stop(times.settle_s)

    def _worker_state(self) -> WorkerState:
        return self.readiness.worker_state(
            number=self.worker_index.number, pid=os.getpid(), requests=self.generator.requests_running()
        )

    def _stop_on_failure(self, task: asyncio.Task[None]) -> None:
        """A background task must not end before shutdown. If one fails, shut down in order and let the supervisor start
        another gateway."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.critical("background.died", exc_info=error, extra={"fields": {"task": task.get_name()}})
            self.stopping.begin_stop(StopReason.QUICK)

    async def _on_revision(self, changes: Sequence[Change] | None) -> None:
        """The revision has changed: drop cached callers and reload tables that these writes concern (None: all of
        them). A background task updates the engine."""
        scope = reload_scope(changes)
        if scope.callers_of is None:
            self.callers.clear()
        elif scope.callers_of:
            self.callers.drop_tenants(scope.callers_of)
        if self.config.gateway.end_streams_on_revoke and (running := self.generator.key_ids(scope.callers_of)):
            self.generator.end_requests_of(await self.database.read(lambda connection: unusable(connection, running)))
        if uploading := self.uploads.key_ids() | self.file_uploads.key_ids():
            ended = await self.database.read(lambda connection: unusable(connection, uploading))
            self.uploads.end_uploads_of(ended)
            self.file_uploads.end_uploads_of(ended)
        if scope.models:
            await self.models.follow()
        if scope.adapters:
            await self.registry.reload()
        if scope.routes:
            await self.router.reload()
        if scope.models or scope.adapters:
            self._update_engine()

    def _update_engine(self) -> None:
        """Register models and adapters with the engine after the database's or the engine's models changed. Changes
        during a round cause one more round."""
        self._engine_outdated = True
        if self._engine_update is None or self._engine_update.done():
            self._engine_update = asyncio.create_task(self._update_engine_rounds(), name="models-and-adapters")

    async def _update_engine_rounds(self) -> None:
        """Repeat rounds until nothing changed during the last one."""
        while self._engine_outdated:
            self._engine_outdated = False
            await self._update_engine_once()

    async def _update_engine_once(self) -> None:
        """One round of the engine's updates. An adapter is loaded after its model: a model that becomes ready causes
        another round."""
        if not await self.models.load_files() and self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._retry_update)
        self.engine.follow_models()
        try:
            await self.engine.on_change()
        except EngineUnavailable as error:  # when the engine is connected again, `_on_connect` registers everything
            _log.info("adapters.later", extra={"fields": {"reason": str(error)}})

    def _retry_update(self) -> None:
        self._retry = None
        self._update_engine()

    async def _on_connect(self, raised: Mapping[str, RaisedTargets]) -> None:
        """Called when an engine has connected."""
        self.first_tokens.take_targets(raised)

    def _on_models(self, models: Mapping[str, ModelInfo]) -> None:
        """The engine's models changed, perhaps because another gateway has read a newer revision than this one."""
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.create_task(self._catch_up(), name="models-changed")

    async def _catch_up(self) -> None:
        with contextlib.suppress(DatabaseUnavailable):
            await self.watch.poll_revision()
        self._update_engine()

    async def _flush_used(self) -> None:
        while True:
            await asyncio.sleep(USED_FLUSH_S)
            try:
                await self.callers.flush_used()
            except DatabaseUnavailable as error:
                _log.warning("keys.used_unwritten", extra={"fields": {"reason": str(error)}})

    async def _close_ledger(self) -> None:
        rest_s = self.stopping.times.close_s
        try:
            async with asyncio.timeout(rest_s):
                # The ledger gives up before this timeout, so that its callers get an error and the lease is released.
                await self.ledger.close(patience_s=min(CLOSE_PATIENCE_S, rest_s * LEDGER_SHARE))
                await self.settler.settle_own_journal()
                await self.callers.flush_used()
                await self.first_tokens.flush()
                await self.request_errors.flush()
                if not self.settler.bytes_used:  # otherwise the holds remain until the next start settles the journal
                    await self.leases.release_lease()
        except (DatabaseUnavailable, TimeoutError) as error:
            _log.error("stop.unclean", extra={"fields": {"reason": repr(error)}})


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
    files, free, seller = config.exports, config.upload_free_min_bytes, config.exports.provider_name
    return Exporter(
        database, gateway_id, config.exports_dir, bytes_max=files.bytes_max, free_min_bytes=free, provider=seller
    )


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
