"""What the load tool will send and when: reproducible, and distributed as it says."""

from __future__ import annotations

import itertools
import json
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.load.__main__ import main
from benchmarks.load.arrivals import read_trace
from benchmarks.load.settings import BadSetting, Popularity, Settings, Tenant
from benchmarks.load.workload import Planned, Workload
from engine.text.tokenizer import Tokenizer

TENANTS = (Tenant("acme", "a"), Tenant("globex", "b"), Tenant("initech", "c"))


def settings(**fields: Any) -> Settings:
    given: dict[str, Any] = {"base_url": "http://127.0.0.1:1/v1", "tenants": TENANTS, "models": tuple("abcdefgh")}
    if not fields.keys() & {"concurrency", "trace", "rate"}:
        given["rate"] = 50.0
    if not fields.keys() & {"requests", "duration_s", "trace"}:
        given["requests"] = 200
    made = Settings(**{**given, **fields})
    made.check()
    return made


def plan(made: Settings, models: dict[str, Any] | None = None) -> list[Planned]:
    trace = read_trace(made.trace) if made.trace is not None else []
    return list(Workload(made, models or {tenant.name: made.models for tenant in made.tenants}, trace).measured())


# ---- one seed, one schedule


MIXED = {"tiers": (("priority", 1.0), ("flex", 3.0)), "model_popularity": Popularity("zipf", 1.1), "shared_prefix": 20}


def test_the_same_seed_is_the_same_schedule() -> None:
    assert plan(settings(seed=7, **MIXED)) == plan(settings(seed=7, **MIXED))
    assert [one.prompt for one in plan(settings(seed=7))] != [one.prompt for one in plan(settings(seed=8))]


def test_one_aspect_changed_leaves_the_others() -> None:
    base, other = plan(settings(**MIXED)), plan(settings(**{**MIXED, "model_popularity": Popularity("uniform")}))
    assert [one.model for one in base] != [one.model for one in other]
    for aspect in ("at_s", "tenant", "tier", "prompt"):
        assert [getattr(one, aspect) for one in base] == [getattr(one, aspect) for one in other]


def test_warm_up_takes_nothing_from_what_is_measured() -> None:
    warm = settings(warmup=10, **MIXED)
    work = Workload(warm, {tenant.name: warm.models for tenant in TENANTS})
    assert len(list(work.warmup())) == 10
    assert list(work.measured()) == plan(settings(**MIXED))
    assert {one.prompt for one in work.warmup()}.isdisjoint(one.prompt for one in work.measured())


# ---- arrivals


def test_poisson_arrivals_have_the_rate_and_exponential_gaps() -> None:
    count, rate = 20_000, 400.0
    times = [one.at_s for one in plan(settings(rate=rate, requests=count, prompt_tokens=1))]
    gaps = np.diff([0.0, *(at for at in times if at is not None)])
    assert len(gaps) == count
    assert (gaps > 0).all()
    # The mean of n exponential gaps has a standard error of 1 / sqrt(n): four of them.
    assert abs(gaps.mean() * rate - 1) < 4 / count**0.5
    assert abs(gaps.std() * rate - 1) < 0.05
    # Kolmogorov-Smirnov against the exponential distribution, at 1 %.
    expected = 1 - np.exp(-rate * np.sort(gaps))
    assert np.abs(expected - np.arange(1, count + 1) / count).max() < 1.63 / count**0.5
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.03  # no memory


def test_time_and_number_both_end_a_run() -> None:
    by_time = plan(settings(rate=100.0, duration_s=3.0))
    assert 240 < len(by_time) < 360
    assert all(one.at_s is not None and one.at_s < 3.0 for one in by_time)
    assert len(plan(settings(rate=100.0, duration_s=3.0, requests=10))) == 10
    assert [one.at_s for one in plan(settings(concurrency=4, requests=5))] == [None] * 5


TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:15:46.6805900,374,44\r
2023-11-16 18:15:50.6805900,1000,0\r
2023-11-16 18:15:48.6805900,8,2000\r
"""


def test_a_trace_runs_on_a_scaled_clock(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(TRACE)
    made = plan(settings(trace=file, speed=2.0, prompt_scale=0.5, output_scale=0.1, output_cap=100, prompt_cap=300))
    assert [one.at_s for one in made] == [0.0, 1.0, 2.0]
    assert [len(one.prompt.split()) for one in made] == [187, 4, 300]
    assert [one.max_tokens for one in made] == [4, 100, 1]
    assert len(plan(settings(trace=file, duration_s=1.5))) == 1
    assert len(plan(settings(trace=file, requests=2))) == 2


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("TIMESTAMP,ContextTokens\n", "has no column GeneratedTokens"),
        (TRACE + "yesterday,1,1\n", "line 5"),
        (TRACE + "2023-11-16 18:15:48.68,1\n", "line 5"),
        (TRACE.splitlines()[0], "has no requests"),
        ("\0\1\2", "has no column TIMESTAMP"),
    ],
)
def test_a_trace_that_cannot_be_used_is_refused(tmp_path: Path, content: str, why: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(content)
    with pytest.raises(BadSetting, match=why):
        read_trace(file)


# ---- who and what


def drawn(popularity: Popularity, n: int, count: int) -> Counter[str]:
    names = tuple(f"m{i}" for i in range(n))
    return Counter(
        one.model for one in plan(settings(models=names, model_popularity=popularity, requests=count, prompt_tokens=1))
    )


def chi_square(counts: Counter[str], weights: dict[str, float], count: int) -> float:
    total = sum(weights.values())
    return sum((counts[name] - count * w / total) ** 2 / (count * w / total) for name, w in weights.items())


@pytest.mark.parametrize("s", [0.0, 0.8, 1.1])
def test_popularity_follows_its_law(s: float) -> None:
    n, count = 20, 20_000
    popularity = Popularity("zipf", s) if s else Popularity("uniform")
    weights = {f"m{i}": (i + 1) ** -s for i in range(n)}
    assert chi_square(drawn(popularity, n, count), weights, count) < 36.2  # 19 degrees of freedom, 1 %


def test_distinct_deals_and_identical_repeats() -> None:
    assert set(drawn(Popularity("distinct"), 8, 200).values()) == {25}
    assert [one.model for one in plan(settings(model_popularity=Popularity("distinct")))][:9] == list("abcdefgha")
    assert drawn(Popularity("identical"), 8, 200) == {"m0": 200}


def test_tiers_and_tenants_are_shared_out() -> None:
    made = plan(settings(requests=8000, tiers=(("priority", 1.0), ("flex", 3.0)), prompt_tokens=1))
    assert abs(sum(one.tier == "flex" for one in made) / 8000 - 0.75) < 4 * (0.75 * 0.25 / 8000) ** 0.5
    assert [one.tenant for one in made[:4]] == ["acme", "globex", "initech", "acme"]
    assert plan(settings())[0].tier is None


def test_each_tenant_asks_only_for_what_it_may_see() -> None:
    models = {"acme": ["base", "acme-style"], "globex": ["base", "globex-style"], "initech": ["base"]}
    made = plan(settings(models=(), model_popularity=Popularity("uniform")), models)
    assert {(one.tenant, one.model) for one in made} == {(name, m) for name, listed in models.items() for m in listed}


# ---- prompts


def test_a_prompt_has_about_the_tokens_asked_for(model_dir: Path) -> None:
    tokenizer = Tokenizer.load(model_dir)
    for tokens in (1, 7, 200, 3000):
        made = plan(settings(requests=5, prompt_tokens=tokens))
        counts = [len(tokenizer.encode(one.prompt)) for one in made]
        assert abs(statistics.mean(counts) - tokens) <= max(1, 0.02 * tokens), counts


def test_prompts_share_what_was_asked_and_nothing_more() -> None:
    def common(left: str, right: str) -> int:
        pairs = zip(left.split(), right.split(), strict=False)
        return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))

    for shared in (0, 40):
        made = plan(settings(requests=100, prompt_tokens=60, shared_prefix=shared))
        assert {len(one.prompt.split()) for one in made} == {60 + shared}
        alike = [common(left.prompt, right.prompt) for left, right in itertools.combinations(made, 2)]
        assert shared <= min(alike)
        assert max(alike) < shared + 5


# ---- bad arguments


HERE = ("--base-url", "http://127.0.0.1:1/v1", "--api-key", "k")
ENDS = ("--rate", "1", "--requests", "1")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ((*HERE, "--concurrency", "0", "--requests", "1"), ("--concurrency", "1<=x<=4096")),
        ((*HERE, "--rate", "1e9", "--requests", "1"), ("--rate", "20000")),
        ((*HERE, "--rate", "nan", "--requests", "1"), ("--rate", "0<x<=20000")),
        ((*HERE, "--requests", "1"), ("--concurrency / --rate / --trace", "exactly one")),
        ((*HERE, *ENDS, "--concurrency", "1"), ("--concurrency / --rate / --trace", "exactly one")),
        ((*HERE, "--rate", "1"), ("--requests / --duration", "without an end")),
        ((*HERE, "--rate", "1", "--requests", "1000001"), ("--requests", "1000000")),
        ((*HERE, "--rate", "1", "--duration", "90000"), ("--duration", "86400")),
        ((*HERE, *ENDS, "--prompt-tokens", "0"), ("--prompt-tokens", "1<=x<=1000000")),
        ((*HERE, *ENDS, "--timeout", "0"), ("--timeout", "0<x<=3600")),
        ((*HERE, *ENDS, "--temperature", "3"), ("--temperature", "0<=x<=2")),
        ((*HERE, *ENDS, "--popularity", "zipf:0"), ("--popularity", "0 < S <= 10")),
        ((*HERE, *ENDS, "--popularity", "often"), ("--popularity", "distinct, uniform, identical")),
        ((*HERE, *ENDS, "--tier", "flex=-1"), ("--tier", "0 < WEIGHT <= 1000000")),
        ((*HERE, *ENDS, "--tier", "flex", "--tier", "flex=2"), ("--tier", "'flex' is given twice")),
        ((*HERE, *ENDS, "--key", "acme"), ("--key", "TENANT=KEY")),
        ((*HERE, *ENDS, "--models", "a,,b"), ("--models", "empty name")),
        ((*HERE, *ENDS, "--speed", "2"), ("--speed", "only with --trace")),
        ((*HERE, *ENDS, "--body", "[]"), ("--body", "not a JSON object")),
        ((*HERE, *ENDS, "--body", '{"model": "x"}'), ("--body", "'model' is written by the tool")),
        ((*HERE, *ENDS, "--json", "/no/such/folder/r.json"), ("--json", "does not exist")),
        ((*HERE, "--trace", "/no/such/file"), ("--trace", "No such file")),
        (("--base-url", "ftp://x", "--api-key", "k", *ENDS), ("--base-url", "not an http or https URL")),
        (("--api-key", "k", *ENDS), ("--base-url", "say which server")),
        (("--base-url", "http://127.0.0.1:1", *ENDS), ("--api-key / --key / --demo", "at least one key")),
        (("--demo", "/no/such/demo.json", *ENDS), ("--demo", "while `make run` runs")),
    ],
)
def test_a_bad_argument_is_named_with_its_limit(arguments: tuple[str, ...], parts: tuple[str, str]) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2, result.output
    last = " ".join(result.stderr.split("Error: ")[1].split())
    assert all(part in last for part in parts), last


def test_keys_stay_out_of_the_report() -> None:
    described = json.dumps(settings(tenants=(Tenant("acme", "very-secret"),)).described())
    assert "acme" in described
    assert "very-secret" not in described


@pytest.mark.parametrize("make", [lambda: Popularity.parse("zipf", "x"), lambda: Popularity.parse("zipf:1", "x")])
def test_a_zipf_law_without_an_exponent_has_one(make: Callable[[], Popularity]) -> None:
    assert str(make()) == "zipf:1"
