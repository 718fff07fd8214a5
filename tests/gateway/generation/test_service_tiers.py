"""Service tiers from a request's field to the engine, the answer, the price and the usage row; and refusals."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from billing import tables
from billing.accounts import tenants
from billing.books import usage
from billing.ledger.messages import Recompute
from engine.protocol import frames
from engine.protocol.frames import Finished, Refused, Submit, Tokens
from support.gateway.scripted_engine import Said, ScriptedStack
from support.stack import MODEL, Stack, body, events, retries_after
from support.waiting import eventually

TIER_OF = {"priority": "premium", "default": "standard", "flex": "batch"}
MULTIPLIER = {"premium": 3.0, "standard": 1.0, "batch": 0.5}
# What Anthropic's API calls them in answers.
SPOKEN = {"priority": "priority", "default": "standard", "flex": "batch"}
ROUTES = ("chat/completions", "completions", "messages")
FIRST_TOKEN_WAIT_S = 0.4


def asked(route: str, **fields: Any) -> dict[str, Any]:
    if route == "completions":
        return {"model": MODEL, "prompt": "Once", "max_tokens": 4, **fields}
    return body(**({"max_tokens": 4} | fields))


def post(stack: Stack, route: str, tenant: str = "acme", **fields: Any) -> httpx.Response:
    return httpx.post(f"{stack.url}/v1/{route}", headers=stack.headers(tenant), json=asked(route, **fields), timeout=30)


def served_in(route: str, answer: httpx.Response) -> set[str]:
    """Every tier that an answer names."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        whole = answer.json()
        return {whole["usage"]["service_tier"] if route == "messages" else whole["service_tier"]}
    if route == "messages":
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
        return {json.loads(lines[0])["message"]["usage"]["service_tier"]}
    return {event["service_tier"] for event in events(answer.text) if isinstance(event, dict)}


@pytest.mark.parametrize(("route", "stream", "wanted"), list(itertools.product(ROUTES, (False, True), TIER_OF)))
def test_a_tier_is_served_named_priced_and_recorded(stack: Stack, route: str, stream: bool, wanted: str) -> None:
    answer = post(stack, route, service_tier=wanted, stream=stream)
    assert answer.status_code == 200, answer.text
    named = SPOKEN if route == "messages" else {one: one for one in SPOKEN}
    assert served_in(route, answer) == {named[wanted]}
    row = stack.usage(answer.headers["x-request-id"])
    assert row is not None
    assert row.tier == TIER_OF[wanted]
    plain = (row.prompt_tokens - row.cached_tokens) * 100_000 + row.cached_tokens * 50_000
    assert row.cost_picos == (plain + row.completion_tokens * 400_000) * MULTIPLIER[row.tier]


@pytest.mark.parametrize("route", ROUTES)
def test_no_route_raises_a_tier(stack: Stack, route: str) -> None:
    answer = post(stack, route, "initech", service_tier="priority")
    assert served_in(route, answer) == {"batch" if route == "messages" else "flex"}
    refused = post(stack, route, service_tier="gold")
    assert refused.status_code == 400
    assert "must be one of auto, priority, default, flex" in refused.json()["error"]["message"]


# ---- with an engine that says what it is told


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[ScriptedStack]:
    directory = tmp_path_factory.mktemp("scripted")
    made = ScriptedStack(
        directory,
        f"sqlite:///{directory}/laneway.db",
        model_dir,
        gateway_toml=f"first_token_wait_s = {FIRST_TOKEN_WAIT_S}\nkeep_alive_s = 5.0\n",
    )
    try:
        made.start()
        yield made
    finally:
        made.stop()


def refuses(after_s: float, retry_after_s: float | None = 6.2) -> Any:
    why = "a quieter tenant has the place"
    return lambda submit: [(after_s, Refused(submit.handle, "queue_full", why, retry_after_s))]


def nothing_is_billed(stack: Stack, answer: httpx.Response) -> None:
    request_id = answer.headers["x-request-id"]
    eventually(lambda: stack.hold(request_id).state != "held")
    hold = stack.hold(request_id)
    assert (hold.state, hold.ending, hold.settled_picos) == ("voided", "engine_refused_queue_full", 0)
    assert stack.usage(request_id) is None


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("after_s", [0.0, FIRST_TOKEN_WAIT_S / 2])
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_before_the_headers_is_a_503(
    scripted: ScriptedStack, route: str, after_s: float, stream: bool
) -> None:
    scripted.says(refuses(after_s))
    answer = post(scripted, route, stream=stream, service_tier="flex")
    assert answer.status_code == 503, answer.text
    assert retries_after(answer, 7), "rounded up"
    assert answer.headers["x-should-retry"] == "true"
    error = answer.json()["error"]
    assert "flex" in error["message"]
    assert error["type"] == ("overloaded_error" if route == "messages" else "service_unavailable_error")
    assert route == "messages" or error["code"] == "server_is_overloaded"
    nothing_is_billed(scripted, answer)


def test_what_comes_to_nothing_takes_nothing_from_the_limits(scripted: ScriptedStack) -> None:
    """The engine fails before the first token, or the prompt that is to be counted cannot be."""

    def fails(submit: Submit) -> Said:
        return [(0.0, Finished(submit.handle, "error", frames.EngineUsage(), "it broke"))]

    def makes(submit: Submit) -> Said:
        used = frames.EngineUsage(len(submit.prompt_ids), completion_tokens=1)
        return [(0.0, Tokens(1, [submit.handle], [400])), (0.0, Finished(submit.handle, "length", used))]

    def left() -> list[int]:
        scripted.says(makes)
        answer = post(scripted, "chat/completions", max_tokens=1)
        return [int(answer.headers[f"x-ratelimit-remaining-{what}"]) for what in ("requests", "tokens")]

    one, before = left(), left()
    scripted.says(fails)
    for _ in range(20):
        assert post(scripted, "chat/completions", max_tokens=50).status_code >= 500
    body = {"model": MODEL, "messages": [{"role": "user", "content": "word " * 300_000}]}
    for _ in range(20):
        url = f"{scripted.url}/v1/messages/count_tokens"
        assert httpx.post(url, json=body, headers=scripted.headers("globex"), timeout=60).status_code == 400
    after = left()
    # What this test itself took, and not twenty times as much; time gives back a little meanwhile.
    assert before[0] - after[0] <= one[0] - before[0] + 1
    assert before[1] - after[1] <= one[1] - before[1] + 50


def test_a_whole_answer_is_refused_as_late_as_it_comes(scripted: ScriptedStack) -> None:
    scripted.says(refuses(FIRST_TOKEN_WAIT_S * 2, None))
    answer = post(scripted, "chat/completions")
    assert (answer.status_code, retries_after(answer, 1)) == (503, True)
    nothing_is_billed(scripted, answer)


@pytest.mark.parametrize("route", ROUTES)
def test_a_refusal_after_the_headers_is_an_event(scripted: ScriptedStack, route: str) -> None:
    scripted.says(refuses(FIRST_TOKEN_WAIT_S * 2))
    answer = post(scripted, route, stream=True)
    assert answer.status_code == 200
    if route == "messages":
        *_, name, data = answer.text.strip().splitlines()
        assert name == "event: error"
        assert json.loads(data.removeprefix("data: "))["error"]["type"] == "overloaded_error"
    else:
        comment, *_opening, error = events(answer.text)
        assert comment == ":"
        assert error["error"]["code"] == "server_is_overloaded", "and no [DONE] follows"
    nothing_is_billed(scripted, answer)


def test_several_texts_of_which_a_later_one_is_refused(scripted: ScriptedStack) -> None:
    """The first has tokens by then: a whole answer is refused and free; what was streamed is paid for."""

    def script(submit: Submit) -> Said:
        if submit.sampling.choice:
            return [(0.05, Refused(submit.handle, "queue_full", "full", 3.0))]
        return [(0.0, Tokens(1, [submit.handle], [400]))]  # and goes on until it is aborted

    scripted.says(script)
    whole = post(scripted, "chat/completions", n=2)
    assert (whole.status_code, retries_after(whole, 3)) == (503, True)
    row = scripted.usage(whole.headers["x-request-id"])
    assert row is not None
    assert (row.cost_picos, row.completion_tokens, row.discarded_tokens) == (0, 0, 1)
    streamed = post(scripted, "chat/completions", n=2, stream=True)
    assert events(streamed.text)[-1]["error"]["code"] == "server_is_overloaded"
    row = scripted.usage(streamed.headers["x-request-id"])
    assert row is not None
    assert (row.completion_tokens, row.discarded_tokens) == (1, 0)
    assert scripted.open_holds() == 0


def test_the_tenants_weight_goes_with_its_requests(scripted: ScriptedStack) -> None:
    scripted.says(refuses(0.0))

    def sent(tenant: str) -> float:
        post(scripted, "chat/completions", tenant)
        return scripted.scripted.submits[-1].weight

    assert sent("globex") == 1.0
    scripted.write(lambda connection: tenants.update_tenant(connection, scripted.tenants["globex"], share_weight=2.5))
    eventually(lambda: sent("globex") == 2.5, 1.0)
    assert sent("acme") == 1.0


def test_what_preemption_cost_is_recorded_by_its_cause(scripted: ScriptedStack) -> None:
    """Over all texts of a request, and shown to the operator and to the key."""
    costs = [
        {"premium": frames.TierRecompute(30, 0.5)},
        {"premium": frames.TierRecompute(10, 0.25), "standard": frames.TierRecompute(4, 0.125)},
    ]

    def script(submit: Submit) -> Said:
        cost = costs[submit.sampling.choice]
        used = frames.EngineUsage(
            prompt_tokens=len(submit.prompt_ids),
            completion_tokens=1,
            device_s=1.5,
            preemptions=len(cost),
            recomputed_tokens=sum(one.tokens for one in cost.values()),
            recomputed=cost,
            swapped_tokens=16,
            queue_s=0.5,
            queue_device_s={"premium": 0.25, "standard": 1e-9},
        )
        return [
            (0.0, Tokens(1, [submit.handle], [400 + submit.sampling.choice])),
            (0.0, Finished(submit.handle, "length", used)),
        ]

    scripted.says(script)
    made = scripted.new_key("initech")
    scripted.keys["preempted"] = made.secret

    def answers() -> bool:
        return post(scripted, "chat/completions", "preempted", n=2).status_code == 200

    eventually(answers)
    which = usage.UsageFilter(key_id=made.key.id)
    [row] = scripted.read(lambda connection: usage.list_usage_rows(connection, which))
    recomputed = {"premium": Recompute(40, 0.75), "standard": Recompute(4, 0.125)}
    assert (row.tier, row.device_s, row.preemptions, row.swapped_tokens) == ("batch", 3.0, 3, 32)
    assert (row.recomputed_tokens, row.recomputed) == (44, recomputed)
    assert (row.queue_s, row.queue_device_s) == (0.5, {"premium": 0.25})
    own = httpx.get(f"{scripted.url}/v1/usage", headers=scripted.headers("preempted")).json()
    assert (own["device_s"], own["preemptions"], own["swapped_tokens"]) == (3.0, 3, 32)
    assert own["recomputed"] == {
        "premium": {"tokens": 40, "device_s": 0.75},
        "standard": {"tokens": 4, "device_s": 0.125},
    }
    columns = tables.usage_recompute.c
    stored = scripted.read(lambda c: c.execute(columns.request_id.table.select().order_by(columns.tier)).all())
    assert [(one.request_id, one.tier, one.tokens) for one in stored] == [
        (row.request_id, "premium", 40),
        (row.request_id, "standard", 4),
    ]
