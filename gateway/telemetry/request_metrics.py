"""`gen_ai_*`: the metrics of OpenTelemetry's GenAI conventions, as Prometheus spells them.

The number of series is bounded: at most MODELS_MAX names of base models, and tenants, keys and adapters are no labels.
The durations by model are not sliced by `guided` and `cache`, and the sliced durations have no model.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram

from gateway.log import RequestRecord
from gateway.telemetry import names

MODELS_MAX = 64
OTHER = "(other)"  # further models
# Bounds that the conventions name.
_DURATIONS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
_FIRST_TOKENS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_BASE = (names.LABEL_OPERATION, names.LABEL_PROVIDER, "tier")


class RequestMetrics:
    """One per gateway process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._models: set[str] = set()
        self._duration = Histogram(
            names.OPERATION_DURATION,
            "From the request's arrival to the end of its generation",
            [*_BASE, names.LABEL_MODEL],
            buckets=_DURATIONS,
            registry=registry,
        )
        self._tokens = Histogram(
            names.TOKEN_USAGE,
            "Billed tokens of a request: input, output",
            [*_BASE, names.LABEL_MODEL, names.LABEL_TOKEN_TYPE],
            buckets=_TOKENS,
            registry=registry,
        )
        self._first_token = Histogram(
            names.TIME_TO_FIRST_TOKEN,
            "From the request's arrival to its first token; guided: its answer follows a grammar or a budget of "
            "reasoning; cache: hit if the prefix cache had a part of its prompt",
            [*_BASE, "guided", "cache"],
            buckets=_FIRST_TOKENS,
            registry=registry,
        )
        self._per_token = Histogram(
            names.TIME_PER_OUTPUT_TOKEN,
            "Mean time between the tokens of a request's slowest text, as they arrived at the gateway",
            [*_BASE, "guided", "cache"],
            buckets=_PER_TOKEN,
            registry=registry,
        )

    def observe(self, record: RequestRecord, operation: str, prompt_tokens: int, made_s: float) -> None:
        """Count a request that ran. `prompt_tokens`: billed. `made_s`: from its arrival to the end of its
        generation."""
        base = operation, names.PROVIDER, record.tier or ""
        model = self._label(record.model or "")
        self._duration.labels(*base, model).observe(made_s)
        self._tokens.labels(*base, model, "input").observe(prompt_tokens)
        self._tokens.labels(*base, model, "output").observe(record.completion_tokens)
        if record.ttft_s is None:
            return
        sliced = *base, "true" if record.guided else "false", "hit" if record.cached_tokens else "miss"
        self._first_token.labels(*sliced).observe(record.ttft_s)
        if record.itl_s is not None:
            self._per_token.labels(*sliced).observe(record.itl_s)

    def _label(self, model: str) -> str:
        if model in self._models:
            return model
        if len(self._models) >= MODELS_MAX:
            return OTHER
        self._models.add(model)
        return model
