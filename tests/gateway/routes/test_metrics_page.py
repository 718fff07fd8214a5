"""The whole of /metrics, as Prometheus and vLLM's dashboards read it."""

from __future__ import annotations

import collections
import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.access import keys
from support.gateway.several_models import SMALL, ManyModels, sections
from support.ports import free_port
from support.promtool import lint_metrics
from support.stack import MODEL, Stack
from support.waiting import eventually

# A stream that lasts until its client leaves.
SLOW = {"step_ms": 100.0}
VLLM_NAME = r"vllm:\S+ metric names should not contain ':'"


def check_page(text: str) -> dict[str, Metric]:
    """The families of a page by name. AssertionError for what the text format forbids: a family or a series that is
    there twice, a family in two places, a sample of no family."""
    for kind in ("HELP", "TYPE"):
        names = re.findall(rf"^# {kind} (\S+)", text, re.M)
        assert not [name for name, count in collections.Counter(names).items() if count > 1], kind
    families: dict[str, Metric] = {}
    for family in text_string_to_metric_families(text):
        assert family.name not in families, family.name
        assert family.type != "unknown", family.name
        assert family.documentation, family.name
        families[family.name] = family
        series = [(sample.name, *sorted(sample.labels.items())) for sample in family.samples]
        assert len(set(series)) == len(series), family.name
    return families


@contextlib.contextmanager
def streaming(stack: Stack, tenant: str, model: str, tokens: int = 1000) -> Iterator[None]:
    """A request runs, at least since its first token."""
    fields = {"model": model, "max_tokens": tokens, "stream": True, "messages": [{"role": "user", "content": "Go."}]}
    headers = stack.headers(tenant)
    with httpx.stream("POST", f"{stack.url}/v1/chat/completions", headers=headers, json=fields, timeout=60) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()  # which closes the answer when it is dropped
        next(lines)
        yield


def test_no_family_is_there_twice(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    assert stack.chat(model="acme-style").status_code == 200
    assert stack.chat(model="nowhere").status_code == 404
    assert stack.chat(tool_choice="x").status_code == 400
    families = check_page(stack.metrics())
    refused = {sample.labels["code"] for sample in families["laneway_requests_refused"].samples}
    assert "model_not_found" in refused
    assert "laneway_engine_requests_refused" in families
    # vLLM's names have a colon, which promtool keeps for recording rules.
    complaints = [line for line in lint_metrics(stack.metrics()) if line]
    assert [line for line in complaints if not re.fullmatch(VLLM_NAME, line)] == []
    assert stack.engine is not None
    stack.kill_engine()
    eventually(lambda: "vllm:" not in stack.metrics())
    check_page(stack.metrics())


def test_nor_on_the_page_of_several_workers(make_stack: Callable[..., Stack], postgres_url: str) -> None:
    stack = make_stack(postgres_url, workers=2)
    assert stack.chat().status_code == 200
    assert "laneway_worker_up" in check_page(stack.metrics())


def test_adapters_are_named_that_all_tenants_share(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack(fake=SLOW)

    def labels() -> dict[str, str]:
        [sample] = check_page(stack.metrics())["vllm:lora_requests_info"].samples
        return sample.labels

    def in_use() -> dict[tuple[str, ...], float]:
        samples = check_page(stack.metrics())["laneway_adapters_in_use"].samples
        return {(sample.labels["state"], sample.labels["shared"]): sample.value for sample in samples}

    idle = labels()
    assert int(idle["max_lora"]) > 1
    assert (idle["running_lora_adapters"], idle["waiting_lora_adapters"]) == ("", "")
    with streaming(stack, "acme", "acme-style"):
        assert labels()["running_lora_adapters"] == "private"
        with streaming(stack, "globex", "globex-style"), streaming(stack, "initech", "shared-style"):
            assert labels() == idle | {"running_lora_adapters": "shared-style,private"}
            assert in_use() == {
                ("running", "all"): 1, ("running", "private"): 2, ("waiting", "all"): 0, ("waiting", "private"): 0
            }  # fmt: skip
    eventually(lambda: labels() == idle)


@pytest.fixture
def several(tmp_path: Path, model_dir: Path) -> Iterator[ManyModels]:
    """Several models, one of them for acme alone, and a listener without a key."""
    place = f'metrics_address = "127.0.0.1:{free_port()}"'
    database_url, toml = f"sqlite:///{tmp_path}/laneway.db", sections(small='tenants = ["acme"]')
    made = ManyModels(
        tmp_path / "stack", database_url, model_dir, gateway_toml=place, toml=toml, fake={"step_ms": 200.0}
    )
    try:
        made.start()
        yield made
    finally:
        made.stop()


def value(text: str, name: str, model: str) -> float:
    return sum(
        sample.value
        for family in check_page(text).values()
        for sample in family.samples
        if sample.name == name and sample.labels.get("model_name") == model
    )


def test_gauges_name_the_model_whose_requests_run(several: ManyModels) -> None:
    several.metrics()  # its key is made
    with streaming(several, "acme", SMALL, tokens=25):
        text = several.metrics()
        running = {name: value(text, "vllm:num_requests_running", name) for name in (MODEL, SMALL)}
        assert running == {MODEL: 0, SMALL: 1}
        assert value(text, "vllm:prefix_cache_queries_total", SMALL) > 0
        assert value(text, "vllm:prefix_cache_queries_total", MODEL) == 0


def test_a_removed_model_keeps_its_name_and_its_secrecy(several: ManyModels) -> None:
    """Its counters continue when it is restored; the listener without a key hides it all the time."""
    stack, made = several, "vllm:generation_tokens_total"
    place = stack.config.gateway.metrics_host_port
    assert place is not None
    secret = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin")).secret
    operator = {"Authorization": f"Bearer {secret}"}

    def public() -> str:
        text = httpx.get(f"http://127.0.0.1:{place[1]}/metrics").text
        assert f'"{SMALL}"' not in text
        return text

    assert stack.chat(model=SMALL).status_code == 200
    counted = value(stack.metrics(), made, SMALL)
    assert counted == 8
    [hidden] = set(re.findall(r'model_name="(restricted-[0-9a-f]{12})"', public()))
    assert value(public(), made, hidden) == counted
    assert httpx.delete(f"{stack.url}/v1/admin/models/{SMALL}", headers=operator).status_code == 200
    eventually(lambda: value(stack.metrics(), "vllm:kv_cache_usage_perc", SMALL) == 0)
    eventually(lambda: f'vllm:num_requests_running{{model_name="{SMALL}"}}' not in stack.metrics())
    text = stack.metrics()
    assert 'model_name=""' not in text
    assert value(text, made, SMALL) == counted
    assert value(public(), made, hidden) == counted
    back = httpx.post(f"{stack.url}/v1/admin/models/{SMALL}/restore", headers=operator, timeout=60)
    assert back.status_code == 200
    eventually(lambda: stack.chat(model=SMALL).status_code == 200)
    assert value(stack.metrics(), made, SMALL) >= 2 * counted
    assert value(public(), made, hidden) >= 2 * counted
