"""`laneway requests req_…` and the API say the same of one request: its phases, cost and prices, and its refusal."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gateway.limits import overrides
from gateway.limits.overrides import LimitsChange
from support.gateway.admin_client import Operator
from support.gateway.command_line import Laneway
from support.stack import MODEL, Stack
from support.waiting import eventually


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    """A stack whose engine runs one request at a time, in steps of 20 ms."""
    directory = tmp_path_factory.mktemp("facts")
    stack = Stack(
        directory,
        f"sqlite:///{directory}/laneway.db",
        model_dir,
        fake={"step_ms": 20.0},
        engine_json={"sequences_max": 1},
    )
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


@pytest.fixture
def laneway(narrow: Stack, tmp_path: Path) -> Laneway:
    return Laneway(tmp_path, f'[gateway]\ndatabase_url = "{narrow.database_url}"\n')


def facts_of(text: str) -> dict[str, str]:
    """The lines before the first table, by name."""
    lines = text.split("\n\n")[0].splitlines()
    return {name: value.strip() for name, _, value in (line.partition(" ") for line in lines)}


def test_the_queue_names_the_tiers_that_the_device_computed(narrow: Stack, laneway: Laneway) -> None:
    def is_behind() -> bool:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(narrow.chat, "acme", max_tokens=40)
            eventually(lambda: narrow.open_holds() > 0)
            waiting = pool.submit(narrow.chat, "initech", max_tokens=2)
            answers = [first.result(), waiting.result()]
        assert [answer.status_code for answer in answers] == [200, 200]
        nonlocal request_id
        request_id = answers[1].headers["x-request-id"]
        eventually(lambda: narrow.open_holds() == 0)
        return bool(Operator(narrow).ok("GET", f"requests/{request_id}")["slowness"]["queued_behind"])

    request_id = ""
    eventually(is_behind)  # on a busy machine the first request may have ended before the second was submitted
    one = Operator(narrow).ok("GET", f"requests/{request_id}")
    [behind] = one["slowness"]["queued_behind"]
    queue = next(phase for phase in one["slowness"]["phases"] if phase["name"] == "queue")
    assert behind["tier"] == "premium"
    assert 0.02 <= behind["device_s"] <= one["queue_s"] + 1e-6
    assert one["usage"]["queue_device_s"] == {"premium": behind["device_s"]}
    assert queue["seconds"] >= 0.02

    text = laneway.text("requests", request_id)
    timeline, targets, entries = text.split("\n\n")[1:]
    lines = [line.split() for line in timeline.splitlines()]
    assert lines[0] == ["PHASE", "AFTER_S", "SECONDS", "CAUSES"]
    assert [line[0] for line in lines[1:]] == [phase["name"] for phase in one["slowness"]["phases"]]
    by_phase = {line[0]: line for line in lines[1:]}
    assert by_phase["queue"][2:] == [f"{queue['seconds']:.4f}", "behind", "premium", f"{behind['device_s']:.4f}", "s"]
    assert by_phase["decode"][3:] == ["-"]
    verdict = one["slowness"]["verdict"]
    shown = {line[:18].strip(): line[18:].split() for line in targets.splitlines()[1:]}
    assert shown["first token"][-1] == ("yes" if verdict["ttft_met"] else "no")
    assert shown["first token"][:2] == ["batch", f"{verdict['ttft_target_s']:.4f}"]
    assert {line.split()[1] for line in entries.splitlines()[1:]} >= {"input", "output"}

    facts = facts_of(text)
    assert (facts["request_id"], facts["model"]) == (request_id, MODEL)
    assert (facts["tenant"], facts["key"]) == ("initech", "test")
    assert (facts["tier"], facts["completion_tokens"], facts["max_tokens"]) == ("batch", "2", "2")
    assert facts["price_output"] == "0.2 USD a million tokens"
    assert facts["cost"] == facts["settled"]
    assert "budgets" not in facts
    assert "picos" not in text
    assert laneway.json("requests", request_id) == one


def test_a_refusal_has_its_code_and_limit(narrow: Stack, laneway: Laneway) -> None:
    made = narrow.new_key("acme")
    narrow.keys["limited"] = made.secret

    def limit(connection: Any) -> None:
        change = LimitsChange(requests_per_minute=1)
        tenant_id = narrow.tenants["acme"]
        overrides.change_own_limits(connection, scope="key", subject_id=made.key.id, tenant_id=tenant_id, change=change)

    narrow.write(limit)
    refused: list[str] = []

    def is_refused() -> bool:
        answer = narrow.chat("limited", max_tokens=1)
        if answer.status_code == 429:
            refused.append(answer.headers["x-request-id"])
        return bool(refused)

    eventually(is_refused)
    eventually(lambda: laneway("requests", refused[0]).exit_code == 0)
    text = laneway.text("requests", refused[0])
    facts = facts_of(text)
    assert "\n\n" not in text, "no timeline, no target and no ledger entry"
    assert (facts["status"], facts["code"], facts["http_status"]) == ("refused", "rate_limit_exceeded", "429")
    assert facts["limit"] == "key requests per minute: 1"
    assert int(facts["retry_after_s"]) >= 1
    assert facts["route"] == "/v1/chat/completions"
    assert "cost" not in facts
    assert laneway.json("requests", refused[0])["error"]["limit_value"] == 1
    assert laneway.refusal("requests", "req_absent").endswith("there is no request 'req_absent'")
