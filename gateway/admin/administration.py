"""All administrative writes, for one actor: the command line and the admin API both use this module.

Each part makes its change and the change's audit line in one transaction. A part checks what only the configuration or
the actor's rights decide; every other rule is checked by the module that owns its rows, in billing, keys or catalog.
This module knows neither HTTP nor a terminal.
"""

from __future__ import annotations

from gateway.access.write_replays import IdempotentWrite
from gateway.admin.adapters import AdapterWrites
from gateway.admin.aliases import AliasWrites
from gateway.admin.budgets import BudgetWrites
from gateway.admin.corrections import CorrectionWrites
from gateway.admin.documents import DocumentWrites
from gateway.admin.engines import EngineWrites
from gateway.admin.jobs.batches import BatchWrites, FileWrites
from gateway.admin.jobs.exports import ExportWrites
from gateway.admin.keys import KeyWrites
from gateway.admin.limits import LimitWrites
from gateway.admin.models import ModelWrites
from gateway.admin.periods import PeriodWrites
from gateway.admin.prices import PriceWrites
from gateway.admin.tenants import ProjectWrites, TenantWrites
from gateway.admin.webhooks import WebhookWrites
from gateway.admin.writes import Actor, Writes
from gateway.config.file import Config


class Administration:
    """The writes of one actor, grouped by the objects that they change. A `tenant_id` may be a slug everywhere."""

    def __init__(self, config: Config, actor: Actor, idempotent: IdempotentWrite | None = None) -> None:
        """`idempotent`: of the request that writes, if it has an Idempotency-Key."""
        self.writes = writes = Writes(config, actor, idempotent)
        self.tenants = TenantWrites(writes)
        self.projects = ProjectWrites(writes)
        self.keys = KeyWrites(writes)
        self.limits = LimitWrites(writes)
        self.prices = PriceWrites(writes)
        self.budgets = BudgetWrites(writes)
        self.webhooks = WebhookWrites(writes)
        self.exports = ExportWrites(writes)
        self.batches = BatchWrites(writes)
        self.files = FileWrites(writes)
        self.periods = PeriodWrites(writes)
        self.corrections = CorrectionWrites(writes)
        self.documents = DocumentWrites(writes)
        self.adapters = AdapterWrites(writes)
        self.aliases = AliasWrites(writes)
        self.models = ModelWrites(writes)
        self.engines = EngineWrites(writes)
