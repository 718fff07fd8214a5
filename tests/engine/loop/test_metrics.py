"""Which model's name each of the engine's series carries, while several are served, and after one is removed."""

from __future__ import annotations

import collections
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from engine.loop.gauges import Gauges, ModelCounts
from engine.loop.metrics import REMOVED_NAMED_MAX, EngineMetrics
from engine.memory.adapter_residency import AdapterCounts
from engine.protocol.frames import REMOVED_MODELS

TIERS = ("gold", "bulk")


def gauges(**changes: Any) -> Gauges:
    """Of an engine that did nothing yet."""
    fields: dict[str, Any] = dict.fromkeys(Gauges.__dataclass_fields__, 0)
    by_model = ("running", "waiting_of_model", "cache_queries", "cache_hits", "preemptions")
    fields |= {name: {} for name in (*by_model, "waiting")}
    fields |= {"pages_total": 100, "pages_free": 100}
    fields["adapters"] = AdapterCounts({}, 0, 0, 0)
    fields["models"] = ModelCounts(hits={}, resident={}, evicted={}, failures=0)
    return Gauges(**(fields | changes))


def samples(metrics: EngineMetrics, now: Gauges) -> dict[str, dict[tuple[str, ...], float]]:
    """By name, then by the labels' values, the model's first."""
    found: dict[str, dict[tuple[str, ...], float]] = collections.defaultdict(dict)
    for family in text_string_to_metric_families(metrics.render(now).decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            model = [labels.pop(name) for name in ("model_name", "model") if name in labels]
            found[sample.name][*model, *labels.values()] = sample.value
    return found


def test_what_is_known_by_model_carries_its_name() -> None:
    metrics = EngineMetrics(["one", "two"], TIERS)
    metrics.finished["two", "stop"] += 4
    found = samples(
        metrics,
        gauges(
            running={"one": 0, "two": 3},
            waiting_of_model={"one": 1, "two": 2},
            waiting={"gold": 3},
            pages_free=75,
            cache_queries={"two": 40},
            cache_hits={"two": 16},
            preemptions={"two": 5},
        ),
    )
    assert found["vllm:num_requests_running"] == {("one",): 0, ("two",): 3}
    assert found["vllm:num_requests_waiting"] == {("one",): 1, ("two",): 2}
    assert found["vllm:kv_cache_usage_perc"] == {("one",): 0.25, ("two",): 0.25}, "they share one arena"
    assert found["vllm:prefix_cache_queries_total"] == {("one",): 0, ("two",): 40}
    assert found["vllm:prefix_cache_hits_total"] == {("one",): 0, ("two",): 16}
    assert found["vllm:num_preemptions_total"] == {("one",): 0, ("two",): 5}
    assert found["vllm:request_success_total"]["two", "stop"] == 4
    assert found["vllm:request_success_total"]["one", "stop"] == 0


def test_a_model_that_is_removed_and_restored_keeps_its_counters() -> None:
    metrics = EngineMetrics(["one", "two"], TIERS)

    def count() -> None:
        metrics.generation_tokens["two", "gold"] += 7
        metrics.prompt_tokens["two", "gold"] += 9
        metrics.finished["two", "length"] += 1
        metrics.first_token["two", "gold"].observe(0.01)
        metrics.observe_model_loads([("two", "disk", 1.0)])

    count()
    counted = {"cache_queries": {"two": 9}, "preemptions": {"two": 2}}
    models = ModelCounts(hits={}, resident={"one": True}, evicted={"two": 3}, failures=0)
    before = samples(metrics, gauges(running={"one": 0, "two": 0}, models=models, **counted))
    metrics.remove_model("two")
    removed = samples(metrics, gauges(running={"one": 0}, models=models, **counted))
    for name in before.keys() - {"vllm:num_requests_running", "vllm:kv_cache_usage_perc"}:
        assert removed[name] == before[name], name
    assert removed["vllm:num_requests_running"] == {("one",): 0}, "it is served no more"
    metrics.add_model("two")
    count()
    restored = samples(metrics, gauges(running={"one": 0, "two": 0}, models=models, **counted))
    assert restored["vllm:generation_tokens_total"]["two", "gold"] == 14
    assert restored["vllm:request_success_total"]["two", "length"] == 2
    assert restored["vllm:time_to_first_token_seconds_count"]["two", "gold"] == 2
    assert restored["vllm:prefix_cache_queries_total"]["two",] == 9
    assert restored["vllm:num_preemptions_total"]["two",] == 2
    assert restored["laneway_model_loads_total"]["two", "disk"] == 2
    assert restored["laneway_model_evictions_total"]["two",] == 3


def test_names_of_removed_models_are_bounded_and_nothing_is_lost() -> None:
    metrics = EngineMetrics(["base"], TIERS)
    names = [f"model-{number:02}" for number in range(REMOVED_NAMED_MAX + 3)]
    for name in names:
        metrics.add_model(name)
        metrics.generation_tokens[name, "gold"] += 10
        metrics.finished[name, "stop"] += 1
        metrics.queue[name, "gold"].observe(0.2)
        metrics.observe_model_loads([(name, "host", 0.1)])
        metrics.remove_model(name)
    found = samples(metrics, gauges(running={"base": 0}, cache_hits=dict.fromkeys(names, 2)))
    kept = {"base", REMOVED_MODELS, *names[3:]}
    assert {labels[0] for labels in found["vllm:generation_tokens_total"]} == kept
    assert found["vllm:generation_tokens_total"][REMOVED_MODELS, "gold"] == 30
    for name, each in (
        ("vllm:generation_tokens_total", 10),
        ("vllm:request_success_total", 1),
        ("vllm:request_queue_time_seconds_count", 1),
        ("vllm:prefix_cache_hits_total", 2),
        ("laneway_model_loads_total", 1),
    ):
        assert sum(found[name].values()) == each * len(names), name
    metrics.add_model(names[0])
    assert samples(metrics, gauges())["vllm:generation_tokens_total"][names[0], "gold"] == 0


def test_without_a_model_there_is_no_series_without_a_name() -> None:
    metrics = EngineMetrics(["one"], TIERS)
    metrics.remove_model("one")
    assert b'model_name=""' not in metrics.render(gauges())
