"""When the first model is saturated or not there: the next serves, is named and billed, and nothing is held twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from billing.accounts import budgets
from billing.proofs.ledger_audit import audit_ledger
from engine.protocol.frames import EngineUsage, Finished, Refused, Submit, Tokens
from gateway.limits import overrides
from gateway.limits.overrides import LimitsChange
from support.gateway.scripted_engine import Said
from support.gateway.several_models import (
    BARE,
    PRICES,
    SMALL,
    ManyModels,
    ScriptedModels,
    billed,
    named_in,
    post,
    sections,
)
from support.stack import MODEL, Stack, events, retries_after
from support.waiting import eventually

ROUTES = ("chat/completions", "completions", "messages")
FIRST_TOKEN_WAIT_S = 0.3
TOML = sections(
    first=f'fallbacks = ["{SMALL}", "{BARE}"]',
    small=f'fallbacks = ["{MODEL}"]',
    rest=f"""
[[aliases]]
name = "own"
models = [{{model = "{MODEL}"}}]
fallbacks = ["{BARE}"]
""",
)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[ScriptedModels]:
    directory = tmp_path_factory.mktemp("fallbacks")
    made = ScriptedModels(
        directory,
        f"sqlite:///{directory}/laneway.db",
        model_dir,
        gateway_toml=f"first_token_wait_s = {FIRST_TOKEN_WAIT_S}\nkeep_alive_s = 5.0\n",
        toml=TOML,
    )
    try:
        made.start()
        yield made
    finally:
        made.stop()


def full(*models: str, after_s: float = 0.0, code: Any = "queue_full", made: int = 2) -> Any:
    """These refuse, the first of them for 7 s, the others for 9; all others make tokens."""

    def script(submit: Submit) -> Said:
        if submit.model in models:
            retry_s = 7.0 if submit.model == models[0] else 9.0
            return [(after_s, Refused(submit.handle, code, "full", retry_s))]
        tokens = [(0.0, Tokens(1, [submit.handle], [400])) for _ in range(made)]
        used = EngineUsage(len(submit.prompt_ids), completion_tokens=made)
        return [*tokens, (0.0, Finished(submit.handle, "length", used))]

    return script


def tried(stack: ScriptedModels, before: int) -> list[str]:
    return [submit.model for submit in stack.scripted.submits[before:]]


def voided(stack: Stack, answer: httpx.Response) -> None:
    request_id = answer.headers["x-request-id"]
    eventually(lambda: stack.hold(request_id).state != "held")
    hold = stack.hold(request_id)
    assert (hold.state, hold.ending, hold.settled_picos) == ("voided", "engine_refused_queue_full", 0)
    assert stack.usage(request_id) is None


def metric(stack: Stack, one: str, other: str) -> float:
    text = stack.metrics()
    found = re.search(rf'^laneway_fallbacks_total{{from="{one}",to="{other}"}} (\S+)$', text, re.MULTILINE)
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after_s", [0.0, FIRST_TOKEN_WAIT_S * 1.5])
def test_the_next_serves_is_named_and_billed(stack: ScriptedModels, route: str, stream: bool, after_s: float) -> None:
    stack.says(full(MODEL, after_s=after_s))
    before, counted = len(stack.scripted.submits), metric(stack, MODEL, SMALL)
    answer = post(stack, route, MODEL, stream=stream)
    assert named_in(route, answer) == {SMALL}
    assert billed(stack, answer) == SMALL
    assert tried(stack, before) == [MODEL, SMALL]
    # Once the headers are out, the chunks alone say it.
    late = stream and after_s > 0
    assert answer.headers.get("x-laneway-model") == (None if late else SMALL)
    line = stack.request_line(answer.headers["x-request-id"])
    assert (line["asked"], line["model"], line["fallbacks"]) == (MODEL, SMALL, [SMALL])
    assert metric(stack, MODEL, SMALL) == counted + 1
    if late and route == "chat/completions":
        assert events(answer.text)[0] == ":", "a keep-alive before anything is known"
    if route == "messages" and stream:
        names = [line for line in answer.text.splitlines() if line.startswith("event: ")]
        assert names.count("event: message_start") == 1
        assert names.index("event: message_start") < names.index("event: content_block_start")


def test_all_are_tried_once_and_the_first_says_when_to_come_again(stack: ScriptedModels) -> None:
    stack.says(full(MODEL, SMALL, BARE))
    before = len(stack.scripted.submits)
    answer = post(stack, "completions", MODEL)
    assert (answer.status_code, retries_after(answer, 7)) == (503, True)
    assert answer.json()["error"]["code"] == "server_is_overloaded"
    assert tried(stack, before) == [MODEL, SMALL, BARE]
    voided(stack, answer)
    streamed = post(stack, "messages", MODEL, stream=True)
    assert (streamed.status_code, retries_after(streamed, 7)) == (503, True)
    voided(stack, streamed)


def test_one_that_cannot_do_it_is_passed_over(stack: ScriptedModels) -> None:
    """No chat template; a context that is too short; what its tokenizer has not."""
    stack.says(full(MODEL, SMALL))
    before = len(stack.scripted.submits)
    assert post(stack, "chat/completions", MODEL).status_code == 503
    assert tried(stack, before) == [MODEL, SMALL]
    stack.says(full(MODEL))
    answer = post(stack, "completions", MODEL, max_tokens=100)
    assert named_in("completions", answer) == {BARE}
    assert stack.request_line(answer.headers["x-request-id"])["fallbacks"] == [SMALL, BARE]
    refused = post(stack, "chat/completions", MODEL, max_tokens=100)
    assert (refused.status_code, retries_after(refused, 7)) == (503, True)


def test_an_aliass_own_list_comes_before_its_models(stack: ScriptedModels) -> None:
    stack.says(full(MODEL))
    assert named_in("completions", post(stack, "completions", "own")) == {BARE}


@pytest.mark.parametrize("code", ["model_unknown", "bad_request"])
def test_only_what_is_not_there_falls_back(stack: ScriptedModels, code: str) -> None:
    stack.says(full(MODEL, code=code))
    answer = post(stack, "completions", MODEL)
    if code == "model_unknown":
        assert named_in("completions", answer) == {SMALL}
        assert billed(stack, answer) == SMALL
    else:
        assert answer.status_code == 400


def test_an_adapter_never_falls_back(stack: ScriptedModels) -> None:
    stack.says(full(MODEL))
    before = len(stack.scripted.submits)
    answer = post(stack, "completions", "globex-style")
    assert (answer.status_code, retries_after(answer, 7)) == (503, True)
    assert tried(stack, before) == [MODEL]
    voided(stack, answer)


def test_what_was_made_stays_with_its_model(stack: ScriptedModels) -> None:
    """The second text is refused once the first has tokens."""

    def script(submit: Submit) -> Said:
        if submit.sampling.choice:
            return [(0.05, Refused(submit.handle, "queue_full", "full", 3.0))]
        return [(0.0, Tokens(1, [submit.handle], [400]))]

    stack.says(script)
    before = len(stack.scripted.submits)
    answer = post(stack, "completions", MODEL, n=2)
    assert (answer.status_code, retries_after(answer, 3)) == (503, True)
    assert set(tried(stack, before)) == {MODEL}


def test_several_texts_fall_back_together(stack: ScriptedModels) -> None:
    stack.says(full(MODEL))
    answer = post(stack, "completions", MODEL, n=3, prompt=["Once", "Twice"], max_tokens=2)
    assert named_in("completions", answer) == {SMALL}
    assert len(answer.json()["choices"]) == 6
    assert billed(stack, answer) == SMALL
    assert answer.json()["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize("ids", [{"prompt": [5, 6, 7]}, {"logit_bias": {"5": 1}}, {"stop_token_ids": [5]}])
def test_ids_mean_one_vocabulary(stack: ScriptedModels, ids: dict[str, Any]) -> None:
    """To another model they would be other words, made and billed."""
    stack.says(full(MODEL))
    before = len(stack.scripted.submits)
    refused = post(stack, "completions", MODEL, **ids)
    assert (refused.status_code, retries_after(refused, 7)) == (503, True)
    assert tried(stack, before) == [MODEL]
    voided(stack, refused)
    assert post(stack, "completions", SMALL, **ids).status_code == 200


def test_a_replay_is_the_fallbacks_answer(stack: ScriptedModels) -> None:
    stack.says(full(MODEL))
    headers = {**stack.headers("globex"), "Idempotency-Key": "once"}
    asked = {"model": MODEL, "prompt": "Once", "max_tokens": 4}
    first, again = [httpx.post(f"{stack.url}/v1/completions", headers=headers, json=asked) for _ in range(2)]
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() == first.json()
    assert again.json()["model"] == SMALL
    assert billed(stack, first) == SMALL


def ask(stack: Stack, secret: str, **fields: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {secret}"}
    asked = {"model": SMALL, "prompt": "Once", "max_tokens": 4} | fields
    return httpx.post(f"{stack.url}/v1/completions", headers=headers, json=asked, timeout=30, verify=False)


def test_a_budget_bears_the_fallback_or_the_first_ones_refusal_stands(stack: ScriptedModels) -> None:
    """The small model's fallback is the dear one."""
    dear_in, dear_out = PRICES[MODEL]
    made = stack.new_key("globex")
    tight = stack.budget(made.key, "money", dear_in + dear_out - 1)
    eventually(lambda: ask(stack, made.secret, model="nobody").status_code == 404)
    stack.says(full(SMALL))
    refused = ask(stack, made.secret)
    assert (refused.status_code, retries_after(refused, 7)) == (503, True)
    voided(stack, refused)
    stack.write(lambda c: budgets.change_budget(c, tight.id, limit_amount=dear_in + 2 * dear_out))
    answers: list[httpx.Response] = []

    def served() -> bool:
        answers.append(ask(stack, made.secret))
        return answers[-1].status_code == 200

    eventually(served)
    assert answers[-1].headers["x-laneway-max-tokens-granted"] == "2", "and not the four of the cheap one"
    assert billed(stack, answers[-1]) == MODEL
    findings = stack.read(audit_ledger)
    assert findings.sound
    assert findings.overshot == []


def test_a_limit_that_the_fallback_would_pass(stack: ScriptedModels) -> None:
    """It was admitted for less: the first one's refusal stands, and it takes nothing."""
    made = stack.new_key("initech", default_max_tokens=2048)
    change = LimitsChange(tokens_per_minute=200)
    tenant_id = stack.tenants["initech"]
    stack.write(
        lambda c: overrides.change_own_limits(
            c, scope="key", subject_id=made.key.id, tenant_id=tenant_id, change=change
        )
    )
    stack.says(full(SMALL))
    eventually(lambda: ask(stack, made.secret).status_code == 200)
    refused = ask(stack, made.secret, max_tokens=None)  # cut to the small one's context; the other's is larger
    assert (refused.status_code, retries_after(refused, 7)) == (503, True)
    voided(stack, refused)
    again = ask(stack, made.secret)
    assert again.status_code == 200
    assert int(again.headers["x-ratelimit-remaining-tokens"]) > 150, "nothing of it was kept"


def test_the_books_are_sound(stack: ScriptedModels) -> None:
    eventually(lambda: stack.open_holds() == 0)
    assert stack.read(audit_ledger).sound


def test_an_engine_that_is_full(postgres_url: str, tmp_path: Path, model_dir: Path) -> None:
    """Its own process, with slow steps for one request at a time. In a tier with one place whoever is refused was
    refused for every model; where the wait for a model is too long, another has a line of its own."""
    tiers: list[dict[str, Any]] = [
        {"name": "premium", "service_tier": "priority", "queue_max": 1},
        {"name": "standard", "service_tier": "default", "queue_target_ms": 300.0},
        {"name": "batch", "service_tier": "flex"},
    ]
    made = ManyModels(
        tmp_path / "full",
        postgres_url,
        model_dir,
        toml=TOML,
        fake={"step_ms": 50.0},
        engine_json={"tiers": tiers, "sequences_max": 1},
    )
    try:
        made.start()
        for tenant in ("acme", "globex"):
            with ThreadPoolExecutor(12) as pool:
                asking = [pool.submit(post, made, "chat/completions", MODEL, tenant) for _ in range(18)]
            answers = [answer.result() for answer in asking]
            for answer in answers:
                if answer.status_code == 200:
                    assert billed(made, answer) == answer.json()["model"]
                    continue
                assert answer.status_code == 503
                assert int(answer.headers["retry-after"]) >= 1
                assert made.request_line(answer.headers["x-request-id"])["fallbacks"] == [SMALL, BARE]
            if tenant == "acme":
                assert {answer.status_code for answer in answers} == {200, 503}
            else:
                served = {answer.json()["model"] for answer in answers if answer.status_code == 200}
                assert served == {MODEL, SMALL}
        eventually(lambda: made.open_holds() == 0)
        assert made.read(audit_ledger).sound
    finally:
        made.stop()
