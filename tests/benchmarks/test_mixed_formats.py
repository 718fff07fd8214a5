"""The benchmark of mixed formats on the CPU: every check runs and holds, and each planted fault fails its check."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.serving import llama, mixed_formats
from benchmarks.serving.audit import NAN_BYTE, Audit
from benchmarks.serving.flood import tiers
from engine.memory.arena import PageKind

CHECKS = [
    "endings", "finite logits", "guard", "integrity", "books of tokens", "books of seconds", "premium TTFT p99",
    "premium inter-token p99", "batch advances", "preemptions",
]  # fmt: skip
# Targets that a busy machine keeps, too: what is tested is the program.
LAX = ["--ttft-base-ms", "60000", "--inter-token-ms", "60000"]
FAULT_STEP = 40


def run(seconds: str, after_step: Callable[[Audit], None] = lambda _: None, *more: str) -> int:
    given = ["--cpu", "--seconds", seconds, "--lead-s", "0.3", "--check-steps", "20", *LAX, *more]
    return mixed_formats.main(given, after_step)


def failed_checks(printed: str) -> set[str]:
    return {line.removeprefix("FAILED ").partition(":")[0] for line in printed.splitlines() if "FAILED" in line}


def test_all_checks_hold_over_three_formats(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Audit] = []
    unpoisoned: list[int] = []

    def keep(audit: Audit) -> None:
        seen[:] = [audit]
        free = [page for page, kind in enumerate(audit.scheduler.arena.kinds()) if kind == PageKind.FREE]
        unpoisoned.extend(page for page in free if audit.bytes[page].min() < NAN_BYTE)

    status, printed = run("5", keep), capsys.readouterr().out
    assert status == 0, printed
    assert [line[7:].partition(":")[0] for line in printed.splitlines() if line.startswith("holds  ")] == CHECKS
    table = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if line}
    assert table["weights"] == ["float32", "fp8", "int4"]
    assert table["kv"] == ["float32", "fp8", "fp8"]
    assert all(float(number) > 0 for number in table["batch_tok_s"])
    assert all(int(tokens) > 0 for tokens in table["cached_tokens"])
    [audit] = seen
    assert set(audit.drawn) == set(table["model"])
    assert audit.integrity_checks > 1
    assert audit.poisoned > audit.scheduler.arena.pages, "pages are poisoned again after each release"
    assert not unpoisoned


def poison_used_pages(audit: Audit) -> None:
    audit.poison([page for page, kind in enumerate(audit.scheduler.arena.kinds()) if kind == PageKind.KV])


def write_guard(audit: Audit) -> None:
    audit.bytes[audit.scheduler.arena.pages, 5] = 0


def count_id_twice(audit: Audit) -> None:
    audit.scheduler.results.tokens_made += 1


def charge_second_twice(audit: Audit) -> None:
    audit.scheduler.results.overrun_s += 1.0


def share_page(audit: Audit) -> None:
    arena = audit.scheduler.arena
    arena._references[0] += 1
    audit.check_integrity()
    arena._references[0] -= 1


def planted(*faults: Callable[[Audit], None]) -> Callable[[Audit], None]:
    def plant(audit: Audit) -> None:
        if audit.steps == FAULT_STEP:
            for fault in faults:
                fault(audit)

    return plant


def test_poison_in_a_page_in_use_ends_its_requests_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("0.6", planted(poison_used_pages)) == 1
    # So short a run may end before batch is preempted, or advances in each model.
    failed = failed_checks(capsys.readouterr().out) - {"preemptions", "batch advances"}
    assert failed == {"endings", "finite logits"}


def test_each_other_fault_fails_its_own_check(capsys: pytest.CaptureFixture[str]) -> None:
    plant = planted(write_guard, count_id_twice, charge_second_twice, share_page)
    targets = ["--ttft-base-ms", "0.001", "--ttft-per-1k-ms", "0.001", "--inter-token-ms", "1"]
    assert run("0.6", plant, *targets) == 1
    failed = failed_checks(capsys.readouterr().out) - {"preemptions", "batch advances", "premium inter-token p99"}
    assert failed == {"guard", "integrity", "books of tokens", "books of seconds", "premium TTFT p99"}


def test_each_model_of_a_gpu_has_its_own_formats() -> None:
    given = mixed_formats.parse([])
    config = llama.gpu_config(tiers(given), 1, 16, 2048, 256, 3, formats=mixed_formats.FORMATS)
    assert [(model.quantize, model.kv_dtype) for model in config.models] == list(mixed_formats.FORMATS)
    assert len({model.name for model in config.models}) == 3
