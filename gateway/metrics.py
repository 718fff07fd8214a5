"""The gateway's metrics, `laneway_*`, in a separate registry.

Label values come from small known sets. Tenants and keys are never labels: the database has the figures of each.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_WRITE_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Metrics:
    """The metrics of one gateway process. `text` renders them."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self._build_requests(registry)
        self._build_tokens_and_ledger(registry)
        self._build_books(registry)
        self._build_sign_ins(registry)
        self._build_resources(registry)
        self._build_process(registry)
        self._build_traces(registry)

    def _build_requests(self, registry: CollectorRegistry) -> None:
        """HTTP answers, refusals and requests."""
        self.responses = Counter(
            "laneway_http_responses", "HTTP answers by route and status", ["route", "status"], registry=registry
        )
        self.refusals = Counter("laneway_requests_refused", "Requests refused, by code", ["code"], registry=registry)
        self.request_errors = Counter(
            "laneway_requests_with_error",
            "Requests of known keys that got an error: refused (4xx) or failed (5xx), as request_error_counts has them",
            ["outcome", "code"],
            registry=registry,
        )
        self.request_errors_dropped = Counter(
            "laneway_error_rows_dropped",
            "Errors of requests without a row of their own: rate (of one tenant), full (the queue); uncounted: nor in "
            "request_error_counts",
            ["reason"],
            registry=registry,
        )
        self.refusals_delayed = Counter(
            "laneway_refusals_delayed", "Refusals above gateway.refusals_per_s, answered later", registry=registry
        )
        self.errors = Counter("laneway_internal_errors", "Faults of our own, each with a traceback", registry=registry)
        self.running = Gauge("laneway_requests_running", "Requests that hold budget now", ["tier"], registry=registry)
        self.endings = Counter("laneway_requests_ended", "Admitted requests", ["tier", "ending"], registry=registry)
        self.fallbacks = Counter(
            "laneway_fallbacks", "Requests that another model was tried for", ["from", "to"], registry=registry
        )
        self.ttft = Histogram(
            "laneway_time_to_first_token_seconds",
            "From the request's arrival to its first token here",
            ["tier"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.first_tokens = Counter(
            "laneway_first_tokens",
            "Requests by whether their first token met their own target; refused: a 503 before the first token",
            ["tier", "target"],
            registry=registry,
        )
        self.total = Histogram(
            "laneway_request_seconds", "From arrival to settled", ["tier"], buckets=_SECONDS, registry=registry
        )

    def _build_tokens_and_ledger(self, registry: CollectorRegistry) -> None:
        """Metrics of tokens, of the database and of the journal."""
        self.tokens = Counter(
            "laneway_tokens", "Tokens settled: prompt, cached, completion", ["tier", "kind"], registry=registry
        )
        self.discarded = Counter(
            "laneway_tokens_discarded", "Tokens made and not billed", ["reason"], registry=registry
        )
        self.hold = Histogram(
            "laneway_hold_seconds", "Time of one hold in the ledger", buckets=_WRITE_SECONDS, registry=registry
        )
        self.settle = Histogram(
            "laneway_settle_seconds", "Time of one settlement in the ledger", buckets=_WRITE_SECONDS, registry=registry
        )
        self.unsettled = Counter(
            "laneway_settlements_lost", "Settlements given up: the log has each of them whole", registry=registry
        )
        self.journaled = Counter(
            "laneway_settlements_journaled", "Settlements that the journal took first", registry=registry
        )
        self.journal_bytes = Gauge(
            "laneway_journal_bytes", "What waits in the journal for the database", registry=registry
        )

        self.journal_bytes_max = Gauge("laneway_journal_bytes_max", "The size of the journal's file", registry=registry)
        self.journal_age = Gauge(
            "laneway_journal_age_seconds", "How long endings have been waiting in the journal", registry=registry
        )

    def _build_sign_ins(self, registry: CollectorRegistry) -> None:
        self.person_sign_ins_refused = Counter(
            "laneway_person_sign_ins_refused",
            "Refused sign-ins of people at the provider; not_signed: without an ID token that it has signed",
            ["reason"],
            registry=registry,
        )

    def _build_books(self, registry: CollectorRegistry) -> None:
        """Proofs of the books, and alerts."""
        self.imbalances = Gauge(
            "laneway_ledger_imbalances", "What reconciling found since it was last sound as a whole", registry=registry
        )
        self.overshoot = Gauge(
            "laneway_budget_overshoot", "Windows of hard budgets that hold more than their limit", registry=registry
        )
        self.reconciled_at = Gauge(
            "laneway_reconciled_timestamp_seconds", "When the books were last reconciled", registry=registry
        )
        self.deliveries = Counter(
            "laneway_webhook_attempts", "Attempts to tell a webhook of an alert", ["outcome"], registry=registry
        )

    def _build_batches(self, registry: CollectorRegistry) -> None:
        """Batches, of this process and of all."""
        self.batch_lines_running = Gauge(
            "laneway_batch_lines_running", "Lines of batches that this process runs", registry=registry
        )
        self.batch_lines_limit = Gauge(
            "laneway_batch_lines_limit",
            "Lines that this process may run now, by the engines' queues",
            registry=registry,
        )
        self.batch_lines_ended = Counter(
            "laneway_batch_lines_ended", "Lines whose output this process recorded", ["outcome"], registry=registry
        )
        self.batches = Gauge(
            "laneway_batches",
            "Batches that have not ended, counted by one process of a host",
            ["status"],
            registry=registry,
        )
        self.batch_lines_waiting = Gauge(
            "laneway_batch_lines_waiting", "Lines of all these batches without an output", registry=registry
        )
        self.batch_age = Gauge("laneway_batch_age_seconds", "Age of the oldest of these batches", registry=registry)
        self.batches_late = Gauge(
            "laneway_batches_late", "Of these, batches that are expected to end after their deadline", registry=registry
        )
        self.batch_stalled = Gauge(
            "laneway_batch_stalled_seconds",
            "The longest time for which no line of a running batch has ended",
            registry=registry,
        )

    def _build_resources(self, registry: CollectorRegistry) -> None:
        """Shared limits, connections, uploads and models."""
        self.limits_shared = Gauge(
            "laneway_limits_shared", "1 while rate limits are shared through Redis", registry=registry
        )
        self.connections = Gauge("laneway_connections", "Client connections that are open", registry=registry)
        self.connections_max = Gauge(
            "laneway_connections_max", "Client connections that RLIMIT_NOFILE leaves room for", registry=registry
        )
        self.connections_closed = Counter(
            "laneway_connections_closed", "Connections refused or closed by a limit", ["reason"], registry=registry
        )
        self.upload_bytes = Counter(
            "laneway_adapter_upload_bytes", "Received of uploads of adapters", registry=registry
        )
        self.files_stored = Gauge(
            "laneway_files", "Files of all tenants, counted every files.upkeep_s by each gateway", registry=registry
        )
        self.file_bytes_stored = Gauge("laneway_file_bytes", "Bytes of all files before encryption", registry=registry)
        self._build_batches(registry)
        self.fleet_engines = Gauge(
            "laneway_fleet_engines", "Engines of this gateway's roster", ["state"], registry=registry
        )
        self.texts_continued = Gauge(
            "laneway_texts_continued",
            "Texts that went on elsewhere since this process started: resumed with ids of another engine, moved before "
            "they had an id, hedged on a second engine, or lost because no engine could continue them",
            ["how"],
            registry=registry,
        )
        self.models_refused = Gauge(
            "laneway_models_refused", "Base models that are to be served and cannot be loaded", registry=registry
        )

    def _build_traces(self, registry: CollectorRegistry) -> None:
        """Traces on their way to an OTLP collector."""
        self.traces_exported = Counter(
            "laneway_traces_exported", "Requests whose spans the collector accepted", registry=registry
        )
        self.traces_dropped = Counter(
            "laneway_traces_dropped", "Requests whose spans were dropped", ["reason"], registry=registry
        )
        self.spans_rejected = Counter(
            "laneway_trace_spans_rejected", "Spans that the collector rejected of exports it accepted",
            registry=registry,
        )  # fmt: skip
        self.traces_waiting = Gauge("laneway_traces_waiting", "Requests whose spans wait for export", registry=registry)

    def _build_process(self, registry: CollectorRegistry) -> None:
        """Whether this process can serve, and the state of its dependencies: gauges.py sets all of them."""
        self.problems = Gauge(
            "laneway_problem", "1 while this part keeps the process from serving, as /health/ready says", ["part"],
            registry=registry,
        )  # fmt: skip
        self.break_glass_uses = Counter(
            "laneway_break_glass_uses", "Requests with an admin key for emergencies", registry=registry
        )
        self.drain = Gauge(
            "laneway_drain_seconds", "How long the process has been draining; 0 before, and when it is drained",
            registry=registry,
        )  # fmt: skip
        self.roster_stale = Gauge(
            "laneway_roster_stale_seconds", "How long the source of the roster has not answered", registry=registry
        )
        self.disk_free = Gauge(
            "laneway_disk_free_bytes", "What may still be written on the disk of the journal", registry=registry
        )
        self.disk_free_min = Gauge(
            "laneway_disk_free_min_bytes", "With less free disk space, new requests get 503", registry=registry
        )
        self.certificate_expiry = Gauge(
            "laneway_certificate_expiry_timestamp_seconds",
            "When the first certificate expires of this gateway's file, of the authority's, and of the connected "
            "engines; 0: the file cannot be read",
            ["certificate"],
            registry=registry,
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)
