"""The engine's metrics, under vLLM's names where vLLM has one and as `laneway_*` otherwise, in Prometheus text format.

Labels come from known sets only: model, tier, reason, code. It must never know a tenant, a request's id or its text.
"""

from __future__ import annotations

import bisect
import collections
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.guided.requests import GuidedCounts
from engine.loop.gauges import Gauges, ModelCounts
from engine.memory.adapter_residency import AdapterCounts
from engine.protocol.frames import REMOVED_MODELS, FinishReason

FIRST_TOKEN_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
INTER_TOKEN_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
REQUEST_BUCKETS_S = (0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0)
LOAD_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# A model's weights are read from files of many GB.
MODEL_LOAD_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
# The series of a removed model remain, so that they continue when it is restored. Above this number of removed models,
# the counts of the models removed first are added to the name REMOVED_MODELS.
REMOVED_NAMED_MAX = 16


class Histogram:
    """Counts by upper bound. Plain numbers, since it is updated for every token; one thread."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def merge(self, other: Histogram) -> None:
        """Count what `other`, of the same bounds, has counted."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    def cumulative(self) -> list[tuple[str, float]]:
        labels = [*(str(bound) for bound in self.bounds), "+Inf"]
        return list(zip(labels, (float(n) for n in itertools.accumulate(self.counts)), strict=True))


class EngineMetrics(Collector):
    """Written by the loop's thread, which also renders it."""

    def __init__(self, models: Iterable[str], tiers: Iterable[str]) -> None:
        # By model and tier.
        self.first_token: dict[tuple[str, str], Histogram] = {}
        self.inter_token: dict[tuple[str, str], Histogram] = {}
        self.request: dict[tuple[str, str], Histogram] = {}
        self.queue: dict[tuple[str, str], Histogram] = {}
        self.step = Histogram(INTER_TOKEN_BUCKETS_S)
        self.adapter_load = {source: Histogram(LOAD_BUCKETS_S) for source in ("disk", "host")}
        self.model_load = {source: Histogram(MODEL_LOAD_BUCKETS_S) for source in ("disk", "host")}
        self.model_loads: collections.Counter[tuple[str, str]] = collections.Counter()  # by model and source
        self.prompt_tokens: collections.Counter[tuple[str, str]] = collections.Counter()
        self.generation_tokens: collections.Counter[tuple[str, str]] = collections.Counter()
        self.finished: collections.Counter[tuple[str, str]] = collections.Counter()  # by model and ending
        self.refused: collections.Counter[str] = collections.Counter()
        self.tokens_lost = 0  # made for gateways that disconnected before they recorded them
        self.tokens_reclaimed = 0  # lost tokens that were received and recorded later
        self.resumed = 0  # requests whose text another engine began
        self.snapshots = 0  # snapshots made for watchers
        self.step_errors = 0  # steps in which the runner itself raised
        self.chunk_errors = 0  # chunks that failed alone
        self.request_errors = 0  # frames whose handling raised: bugs of the engine
        self.guided = GuidedCounts()
        self.targets_out_of_reach = 0  # tiers' targets below the shortest step of the start
        self._tiers = list(tiers)
        self._models: list[str] = []  # served models
        self._removed: list[str] = []  # removed models that have their own series, in the order of removal
        for model in models:
            self.add_model(model)
        self._gauges: Gauges | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def add_model(self, model: str) -> None:
        """Idempotent."""
        if model in self._models:
            return
        bisect.insort(self._models, model)
        if model in self._removed:
            self._removed.remove(model)
            return
        for tier in self._tiers:
            pair = model, tier
            self.first_token[pair] = Histogram(FIRST_TOKEN_BUCKETS_S)
            self.inter_token[pair] = Histogram(INTER_TOKEN_BUCKETS_S)
            self.request[pair] = Histogram(REQUEST_BUCKETS_S)
            self.queue[pair] = Histogram(REQUEST_BUCKETS_S)
            self.prompt_tokens[pair] += 0
            self.generation_tokens[pair] += 0
        for reason in get_args(FinishReason):
            self.finished[model, reason] += 0

    def remove_model(self, model: str) -> None:
        """Note that the model is not served any more. Its counters remain, and continue if it is served again."""
        self._models.remove(model)
        self._removed.append(model)
        while len(self._removed) > REMOVED_NAMED_MAX:
            self._fold(self._removed.pop(0))

    def _fold(self, model: str) -> None:
        """Move the counts of a model that was removed long ago to REMOVED_MODELS."""
        for histograms in (self.first_token, self.inter_token, self.request, self.queue):
            for tier in self._tiers:
                folded = histograms.pop((model, tier))
                histograms.setdefault((REMOVED_MODELS, tier), Histogram(folded.bounds)).merge(folded)
        for counter in (self.prompt_tokens, self.generation_tokens, self.finished, self.model_loads):
            _fold_pairs(counter, model)

    def _name(self, model: str) -> str:
        """The label under which the model is counted."""
        return model if model in self._models or model in self._removed else REMOVED_MODELS

    def _by_name(self, by_model: Mapping[str, int]) -> dict[str, int]:
        """Counts by label, with 0 for a model that is served or has its own label and was not counted."""
        found = collections.Counter(dict.fromkeys([*self._models, *self._removed], 0))
        for model, count in by_model.items():
            found[self._name(model)] += count
        return found

    def observe_model_loads(self, loads: Iterable[tuple[str, str, float]]) -> None:
        """Adapter, origin of the load, and seconds."""
        for model, source, seconds in loads:
            self.model_load[source].observe(seconds)
            self.model_loads[self._name(model), source] += 1

    def observe_loads(self, loads: Iterable[tuple[str, float]]) -> None:
        """`loads`: the source and the seconds of each load."""
        for source, seconds in loads:
            self.adapter_load[source].observe(seconds)

    def render(self, gauges: Gauges) -> bytes:
        """Prometheus text format."""
        self._gauges = gauges
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        if self._gauges is None:
            return
        yield from self._state(self._gauges)
        yield from self._totals(self._gauges)
        for name, text, histograms in (
            ("vllm:time_to_first_token_seconds", "From arrival at this engine to the first id.", self.first_token),
            ("vllm:inter_token_latency_seconds", "Between two ids of a request.", self.inter_token),
            ("vllm:e2e_request_latency_seconds", "From arrival to the ending.", self.request),
            ("vllm:request_queue_time_seconds", "From arrival until its first chunk began.", self.queue),
        ):
            family = HistogramMetricFamily(name, text, labels=["model_name", "tier"])
            for (model, tier), histogram in histograms.items():
                family.add_metric([model, tier], histogram.cumulative(), histogram.sum)
            yield family
        steps = HistogramMetricFamily("laneway_step_seconds", "One forward of one model.")
        steps.add_metric([], self.step.cumulative(), self.step.sum)
        yield steps
        text = "An adapter read from its file to host memory (disk), or copied from there to the device (host)."
        loads = HistogramMetricFamily("laneway_adapter_load_seconds", text, labels=["source"])
        for source, histogram in self.adapter_load.items():
            loads.add_metric([source], histogram.cumulative(), histogram.sum)
        yield loads
        yield from self._adapters(self._gauges.adapters)
        yield from self._weights(self._gauges.models)

    def _adapters(self, now: AdapterCounts) -> Iterator[Metric]:
        text = "Requests with an adapter, by where it was when they arrived: device, host or disk."
        hits = CounterMetricFamily("laneway_adapter_requests", text, labels=["storage"])
        for storage, count in now.hits.items():
            hits.add_metric([storage], count)
        yield hits
        text = "Adapters that gave way in the arena (device) or in host memory."
        evictions = CounterMetricFamily("laneway_adapter_evictions", text, labels=["storage"])
        evictions.add_metric(["device"], now.evicted_device)
        evictions.add_metric(["host"], now.evicted_host)
        yield evictions
        text = "Adapters that could not be read; the requests that waited for them failed."
        yield _one(CounterMetricFamily("laneway_adapter_load_failures", text), [], now.failures)

    def _weights(self, now: ModelCounts) -> Iterator[Metric]:
        text = "Requests by where their model's weights were when they arrived: device, host or disk."
        hits = CounterMetricFamily("laneway_model_requests", text, labels=["storage"])
        for storage, count in now.hits.items():
            hits.add_metric([storage], count)
        text = "Whether a model's weights are on the device."
        resident = GaugeMetricFamily("laneway_model_resident", text, labels=["model"])
        for model, there in now.resident.items():
            resident.add_metric([model], float(there))
        text = "Times that a model's weights were evicted from the device."
        evictions = CounterMetricFamily("laneway_model_evictions", text, labels=["model"])
        for model, count in self._by_name(now.evicted).items():
            evictions.add_metric([model], count)
        yield from (hits, resident, evictions)
        text = "Weights brought onto the device, from files (disk) or from host memory (host)."
        loads = CounterMetricFamily("laneway_model_loads", text, labels=["model", "source"])
        for (model, source), count in self.model_loads.items():
            loads.add_metric([model, source], count)
        yield loads
        seconds = HistogramMetricFamily("laneway_model_load_seconds", text, labels=["source"])
        for source, histogram in self.model_load.items():
            seconds.add_metric([source], histogram.cumulative(), histogram.sum)
        yield seconds
        text = "Times that weights could not be brought; the requests that waited for them failed."
        yield _one(CounterMetricFamily("laneway_model_load_failures", text), [], now.failures)

    def _state(self, now: Gauges) -> Iterator[Metric]:
        used = now.pages_total - now.pages_free - now.pages_cached
        usage = used / max(1, now.pages_total)
        shared = "Share of the arena in use; 1 is all. The models share one arena: each has the same value."
        for name, text, by_model in (
            ("vllm:num_requests_running", "Requests in the batch.", now.running),
            ("vllm:num_requests_waiting", "Requests in the queues.", now.waiting_of_model),
            ("vllm:kv_cache_usage_perc", shared, dict.fromkeys(now.running, usage)),
        ):
            family = GaugeMetricFamily(name, text, labels=["model_name"])
            for model, value in by_model.items():
                family.add_metric([model], value)
            yield family
        waiting = GaugeMetricFamily("laneway_requests_waiting", "Requests in a tier's queue.", labels=["tier"])
        for tier, count in now.waiting.items():
            waiting.add_metric([tier], count)
        yield waiting
        pages = GaugeMetricFamily("laneway_pages", "Pages of the arena by what they hold.", labels=["state"])
        sequences = used - now.pages_adapters
        for state, count in (
            ("free", now.pages_free), ("cached", now.pages_cached),
            ("adapters", now.pages_adapters), ("sequences", sequences),
        ):  # fmt: skip
            pages.add_metric([state], count)
        yield pages
        text = "Adapters in the arena."
        yield _one(GaugeMetricFamily("laneway_adapters_resident", text), [], now.adapters_resident)

    def _totals(self, now: Gauges) -> Iterator[Metric]:
        for name, text, by_model in (
            ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", now.cache_queries),
            ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", now.cache_hits),
            ("vllm:num_preemptions", "Preemptions.", now.preemptions),
        ):
            family = CounterMetricFamily(name, text, labels=["model_name"])
            for model, count in self._by_name(by_model).items():
                family.add_metric([model], count)
            yield family
        for name, text, by_pair in (
            ("vllm:prompt_tokens", "Prompt tokens of requests that began.", self.prompt_tokens),
            ("vllm:generation_tokens", "Ids made.", self.generation_tokens),
        ):
            family = CounterMetricFamily(name, text, labels=["model_name", "tier"])
            for (name_of, tier), count in by_pair.items():
                family.add_metric([name_of, tier], count)
            yield family
        endings = CounterMetricFamily(
            "vllm:request_success", "Requests that ran, by ending.", labels=["model_name", "finished_reason"]
        )
        for (model, reason), count in self.finished.items():
            endings.add_metric([model, reason], count)
        yield endings
        text = "Requests that the engine refused, and that never ran."
        refused = CounterMetricFamily("laneway_engine_requests_refused", text, labels=["code"])
        for code, count in self.refused.items():
            refused.add_metric([code], count)
        yield refused
        for name, text, total in (
            (
                "laneway_tokens_lost",
                "Ids made for gateways that disconnected before they recorded them.",
                self.tokens_lost,
            ),
            ("laneway_tokens_reclaimed", "Ids counted as lost that their gateway had received.", self.tokens_reclaimed),
            ("laneway_requests_resumed", "Requests that continued the text of another engine.", self.resumed),
            ("laneway_tokens_overrun", "Ids in no answer, made after the ending or by a probe.", now.tokens_overrun),
            ("laneway_tokens_probed", "Ids made by probes, which are overrun.", now.tokens_probed),
            ("laneway_probes_failed", "Probes that made no id.", now.probes_failed),
            ("laneway_tokens_swapped", "Tokens whose KV was copied back from host memory.", now.tokens_swapped),
            ("laneway_snapshots", "Snapshots sent to gateways.", self.snapshots),
            ("laneway_step_errors", "Steps in which the runner raised.", self.step_errors),
            ("laneway_chunk_errors", "Chunks that failed alone.", self.chunk_errors),
            ("laneway_request_errors", "Frames whose handling raised.", self.request_errors),
            ("laneway_scheduling_errors", "Requests that ended because their scheduling raised.", now.faults),
        ):
            yield _one(CounterMetricFamily(name, text), [], total)
        guided = self.guided
        totals: tuple[tuple[str, str, float], ...] = (
            ("laneway_guided_requests", "Requests with a grammar or a budget of reasoning.", guided.requests),
            ("laneway_grammar_compilations", "Grammars compiled, refused ones included.", guided.compilations),
            ("laneway_grammar_refusals", "Grammars that could not be compiled.", guided.refusals),
            ("laneway_grammar_compile_seconds", "Compiling of grammars, on its threads.", guided.compile_s),
            ("laneway_masks", "Rows drawn under a mask.", guided.masks),
            ("laneway_mask_wait_seconds", "Waiting of draws for masks.", guided.mask_wait_s),
            ("laneway_draws_skipped", "Draws skipped because the row's mask was not ready.", guided.draws_skipped),
        )
        for name, text, seconds_or_count in totals:
            yield _one(CounterMetricFamily(name, text), [], seconds_or_count)
        text = "Tiers' targets that were below the shortest step when the engine started."
        yield _one(GaugeMetricFamily("laneway_tier_targets_out_of_reach", text), [], self.targets_out_of_reach)
        text = "The device's seconds for requests that had ended."
        yield _one(CounterMetricFamily("laneway_overrun_seconds", text), [], now.overrun_s)


def _fold_pairs(counter: collections.Counter[tuple[str, str]], model: str) -> None:
    for pair in [pair for pair in counter if pair[0] == model]:
        counter[REMOVED_MODELS, pair[1]] += counter.pop(pair)


def _one(family: GaugeMetricFamily | CounterMetricFamily, labels: list[str], value: float) -> Metric:
    family.add_metric(labels, value)
    return family
