"""Names that stand for models, on a gateway with three: who serves, who is named, who is billed, who may see."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.access import keys
from gateway.catalog.router import choose
from gateway.config.settings import TargetSection
from gateway.limits import overrides
from gateway.limits.overrides import LimitsChange
from support.gateway.command_line import Laneway
from support.gateway.several_models import (
    BARE,
    SMALL,
    SMALL_CONTEXT,
    ManyModels,
    asked,
    billed,
    named_in,
    post,
    sections,
)
from support.stack import MODEL, Stack
from support.waiting import eventually

SMALL_TOO_MUCH = 60  # with any prompt, for the small one's context
ROUTES = ("chat/completions", "completions", "messages")
TOML = sections(
    first='aliases = ["main"]',
    small='aliases = ["tiny"]\ntenants = ["acme", "globex"]',
    rest=f"""
[[aliases]]
name = "split"
models = [{{model = "{MODEL}", weight = 1}}, {{model = "{SMALL}", weight = 1}}]

[[aliases]]
name = "off"
models = [{{model = "{MODEL}"}}, {{model = "{SMALL}", weight = 0}}]

[[aliases]]
name = "acmes"
models = [{{model = "{MODEL}"}}]
tenants = ["acme"]

[[aliases]]
name = "cheap"
cheapest = true
models = [{{model = "{MODEL}"}}, {{model = "{SMALL}", weight = 1e-9}}, {{model = "{BARE}", weight = 1e-9}}]
""",
)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("aliases")
    url = f"sqlite:///{directory}/laneway.db"
    if request.param == "postgres":
        url = request.getfixturevalue("modules_postgres_url")
    made = ManyModels(directory, url, model_dir, toml=TOML)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def operator(stack: Stack) -> Iterator[httpx.Client]:
    secret = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin")).secret
    headers = {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=f"{stack.url}/v1/admin", headers=headers, timeout=30) as client:
        yield client


def put(operator: httpx.Client, name: str, **fields: Any) -> httpx.Response:
    return operator.put(f"/aliases/{name}", json=fields)


def serves(stack: Stack, name: str, model: str, tenant: str = "globex") -> bool:
    answer = post(stack, "chat/completions", name, tenant)
    return answer.status_code == 200 and answer.json()["model"] == model


def refusal_of(stack: Stack, name: str, tenant: str) -> Any:
    answer = post(stack, "chat/completions", name, tenant)
    assert answer.status_code == 404, answer.text
    card = httpx.get(f"{stack.url}/v1/models/{name}", headers=stack.headers(tenant))
    assert (card.status_code, card.json()["error"]) == (404, answer.json()["error"])
    return answer.json()["error"]


def visible(stack: Stack, tenant: str) -> dict[str, Any]:
    cards = httpx.get(f"{stack.url}/v1/models", headers=stack.headers(tenant)).json()["data"]
    assert len({card["id"] for card in cards}) == len(cards)
    return {card["id"]: card["parent"] for card in cards}


def test_a_card_has_the_context_of_its_model_and_an_alias_the_shortest(stack: Stack) -> None:
    cards = httpx.get(f"{stack.url}/v1/models", headers=stack.headers("acme")).json()["data"]
    contexts = {card["id"]: card["max_model_len"] for card in cards}
    assert contexts[SMALL] == contexts["tiny"] == SMALL_CONTEXT
    assert contexts[MODEL] == contexts["acme-style"] == 8192
    assert contexts["main"] == contexts[MODEL]
    card = httpx.get(f"{stack.url}/v1/models/split", headers=stack.headers("acme")).json()
    assert card["max_model_len"] == contexts["split"] == SMALL_CONTEXT


# ---- who serves


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_and_the_bill_name_who_served(stack: Stack, route: str, stream: bool) -> None:
    for name, model in (("main", MODEL), ("tiny", SMALL), (SMALL, SMALL), ("off", MODEL)):
        answer = post(stack, route, name, stream=stream)
        assert named_in(route, answer) == {model}
        assert answer.headers["x-laneway-model"] == model
        assert billed(stack, answer) == model


def test_the_official_client(stack: Stack) -> None:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.keys["globex"]) as client:
        said: list[Any] = [{"role": "user", "content": "Hi"}]
        whole = client.chat.completions.create(model="tiny", messages=said, max_tokens=4, seed=3)
        pieces = list(client.chat.completions.create(model="tiny", messages=said, max_tokens=4, seed=3, stream=True))
        assert whole.model == SMALL
        assert {piece.model for piece in pieces} == {SMALL}
        text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
        assert text == whole.choices[0].message.content
        assert client.models.retrieve("tiny").owned_by == "laneway"


def test_requests_of_one_user_go_to_one_model(stack: Stack) -> None:
    parts = [TargetSection(model=MODEL), TargetSection(model=SMALL)]
    seen = set()
    for number in range(16):
        user = f"user {number}"
        expected = choose("split", stack.tenants["globex"], user, parts)
        for fields in ({"user": user}, {"prompt_cache_key": user, "user": "another"}, {"safety_identifier": user}):
            assert named_in("", post(stack, "chat/completions", "split", **fields)) == {expected}
        seen.add(expected)
    metadata: dict[str, Any] = {"metadata": {"user_id": user}}
    assert named_in("", post(stack, "messages", "split", **metadata)) == {expected}
    assert named_in("", post(stack, "completions", "split", user=user)) == {expected}
    assert seen == {MODEL, SMALL}


def test_without_a_user_each_request_draws(stack: Stack) -> None:
    models = {post(stack, "chat/completions", "split", max_tokens=1).json()["model"] for _ in range(24)}
    assert models == {MODEL, SMALL}, "one chance in eight million that this is luck"


def test_the_log_names_what_was_asked(stack: Stack) -> None:
    line = stack.request_line(post(stack, "chat/completions", "tiny").headers["x-request-id"])
    assert (line["asked"], line["model"]) == ("tiny", SMALL)
    assert "asked" not in stack.request_line(post(stack, "chat/completions", MODEL).headers["x-request-id"])


def test_tokens_are_counted_for_an_alias(stack: Stack) -> None:
    body = {"model": "main", "messages": [{"role": "user", "content": "Say something."}]}
    url = f"{stack.url}/v1/messages/count_tokens"
    counted = httpx.post(url, headers=stack.headers("globex"), json=body).json()["input_tokens"]
    usage = post(stack, "messages", "main").json()["usage"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_an_alias_has_the_ids_of_its_models(stack: Stack) -> None:
    def ask(name: str, path: str, **fields: Any) -> httpx.Response:
        sent = {"model": name, **fields}
        return httpx.post(f"{stack.url}/v1/{path}", headers=stack.headers("globex"), json=sent)

    for name in ("main", "tiny", "split", SMALL):
        found = ask(name, "tokenize", prompt="Once upon").json()
        assert ask(name, "detokenize", tokens=found["tokens"]).json()["prompt"] == "Once upon"
        assert found["max_model_len"] in ((8192,) if name == "main" else (SMALL_CONTEXT, 8192))


# ---- who may


def test_foreign_and_absent_look_the_same(stack: Stack) -> None:
    foreign, absent = refusal_of(stack, "acmes", "globex"), refusal_of(stack, "sesam", "globex")
    assert foreign == {key: value.replace("sesam", "acmes") if value else value for key, value in absent.items()}
    assert named_in("", post(stack, "chat/completions", "acmes", "acme")) == {MODEL}
    assert "acmes" not in visible(stack, "globex")
    assert visible(stack, "acme")["acmes"] is None


def test_a_model_that_the_tenant_may_not_call_is_not_chosen(stack: Stack) -> None:
    for number in range(8):
        answer = post(stack, "chat/completions", "split", "initech", user=f"user {number}")
        assert named_in("", answer) == {MODEL}
    refusal_of(stack, "tiny", "initech")
    seen = visible(stack, "initech")
    assert {"tiny", SMALL}.isdisjoint(seen)
    assert {"main", "split", "off", MODEL, BARE} <= set(seen)


# ---- the cheapest


def set_cheapest(stack: Stack, operator: httpx.Client, wanted: bool) -> None:
    changed = operator.patch("/tenants/globex", json={"cheapest": wanted})
    assert changed.json()["cheapest"] is wanted
    eventually(lambda: serves(stack, "cheap", SMALL if wanted else MODEL))


def test_the_cheapest_that_can(stack: Stack, operator: httpx.Client) -> None:
    def served(route: str = "chat/completions", **fields: Any) -> str:
        answer = post(stack, route, "cheap", **fields)
        [model] = named_in(route, answer)
        assert billed(stack, answer) == model
        return model

    assert operator.get("/tenants/globex").json()["cheapest"] is False
    assert served() == MODEL, "by weight, as long as nobody opted in"
    set_cheapest(stack, operator, True)
    try:
        assert served() == SMALL, "the cheapest of all has no chat template"
        assert served("completions") == BARE
        assert served(max_tokens=SMALL_TOO_MUCH) == MODEL, "asked for more than the small one's context"
        assert served(messages=[{"role": "user", "content": "word " * 70}]) == MODEL
        assert served("completions", prompt="word " * 70) == BARE
        refused = post(stack, "chat/completions", "cheap", max_tokens=2**20)
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        assert "8192" in refused.json()["error"]["message"], "the first one's error"
        assert named_in("", post(stack, "chat/completions", "cheap", "acme")) == {MODEL}, "not opted in"
    finally:
        set_cheapest(stack, operator, False)


def test_who_has_no_room_is_told_before_every_model_counts_the_prompt(stack: Stack, operator: httpx.Client) -> None:
    """If its least tokens exceed the limits. A request that no model can serve takes no tokens from them."""
    made = stack.new_key("globex")
    change = LimitsChange(requests_per_minute=6, tokens_per_minute=1000)
    tenant_id = stack.tenants["globex"]
    stack.write(
        lambda c: overrides.change_own_limits(
            c, scope="key", subject_id=made.key.id, tenant_id=tenant_id, change=change
        )
    )
    set_cheapest(stack, operator, True)

    def ask(**fields: Any) -> httpx.Response:
        sent = asked("chat/completions", "cheap", **fields)
        headers = {"Authorization": f"Bearer {made.secret}"}
        return httpx.post(f"{stack.url}/v1/chat/completions", headers=headers, json=sent, timeout=30)

    too_long = [{"role": "user", "content": "word " * 9000}]
    began = time.monotonic()
    try:
        stack.known()
        for _ in range(2):
            assert ask(messages=too_long, max_tokens=1).json()["error"]["code"] == "context_length_exceeded"
        for max_tokens in (1000, 4):
            refused = ask(messages=too_long, max_tokens=max_tokens)
            assert (refused.status_code == 429) == (max_tokens == 1000), refused.text
        served = ask()
        assert named_in("", served) == {SMALL}
        regained = (time.monotonic() - began) // 10  # one request each ten seconds
        assert 1 <= int(served.headers["x-ratelimit-remaining-requests"]) <= 1 + regained
        assert int(served.headers["x-ratelimit-remaining-tokens"]) > 900
        while (answer := ask()).status_code == 200:
            pass
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        refused = ask(messages=too_long, max_tokens=1)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    finally:
        set_cheapest(stack, operator, False)


# ---- who changes it


def test_an_operator_overrules_the_file(stack: Stack, operator: httpx.Client) -> None:
    before = operator.get("/aliases/tiny").json()
    assert (before["source"], before["models"]) == ("configuration", [{"model": SMALL, "weight": 1.0}])
    made = put(operator, "tiny", models=[{"model": MODEL, "weight": 2}], tenants=["globex"], fallbacks=[SMALL])
    assert made.status_code == 200, made.text
    assert made.json()["source"] == "row"
    assert made.json()["tenants"] == [stack.tenants["globex"]]
    eventually(lambda: serves(stack, "tiny", MODEL))
    refusal_of(stack, "tiny", "acme")
    names = [alias["name"] for alias in operator.get("/aliases").json()["data"]]
    assert names == sorted(names)
    assert {"tiny", "main", "split"} <= set(names)
    page = operator.get("/aliases", params={"limit": 2}).json()
    rest = operator.get("/aliases", params={"page": page["next_page"]}).json()
    assert [alias["name"] for alias in page["data"] + rest["data"]] == names
    assert put(operator, "tiny", models=[{"model": MODEL}], active=False).status_code == 200
    eventually(lambda: post(stack, "chat/completions", "tiny").status_code == 404)
    assert operator.delete("/aliases/tiny").status_code == 204
    eventually(lambda: serves(stack, "tiny", SMALL))
    assert operator.delete("/aliases/tiny").status_code == 404
    lines = operator.get("/audit_log").json()["data"]
    said = [line["action"] for line in lines if line["object_id"] == "tiny"]
    assert said == ["alias.remove", "alias.set", "alias.set"]
    [changed] = [line for line in lines if line["object_id"] == "tiny" and (line["before"] or {}).get("active") is True]
    assert changed["after"]["active"] is False


def test_a_name_with_slashes(stack: Stack, operator: httpx.Client) -> None:
    assert put(operator, "org/chat", models=[{"model": SMALL}]).status_code == 200
    eventually(lambda: serves(stack, "org/chat", SMALL))
    assert operator.get("/aliases/org/chat").json()["name"] == "org/chat"
    assert operator.delete("/aliases/org/chat").status_code == 204
    assert operator.get("/aliases/org/chat").status_code == 404


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        (MODEL, {"models": [{"model": SMALL}]}, "is the name of a base model"),
        ("shared-style", {"models": [{"model": SMALL}]}, "is the name of an adapter"),
        ("new", {"models": [{"model": "nobody"}]}, "there is no base model 'nobody'"),
        ("new", {"models": [{"model": "acme-style"}]}, "there is no base model 'acme-style'"),
        ("new", {"models": [{"model": "main"}]}, "there is no base model 'main'"),
        ("new", {"models": [{"model": MODEL}], "fallbacks": ["nobody"]}, "there is no base model 'nobody'"),
        ("new", {"models": [{"model": MODEL, "weight": 0}]}, "every weight is 0"),
        ("new", {"models": [{"model": MODEL, "weight": -1}]}, "Expected `float` >= 0"),
        ("new", {"models": [{"model": MODEL}, {"model": MODEL}]}, "is listed 2 times"),
        ("new", {"models": []}, "length >= 1"),
        ("new", {"models": [{"model": MODEL}], "tenants": ["nobody"]}, "there is no tenant 'nobody'"),
        ("new", {"models": [{"model": MODEL}], "weights": [1]}, "weights"),
        ("a b", {"models": [{"model": MODEL}]}, "an alias's name has 1 to 128 of"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    stack: Stack, operator: httpx.Client, name: str, fields: dict[str, Any], says: str
) -> None:
    answer = put(operator, name, **fields)
    assert answer.status_code in (400, 404, 409), answer.text
    assert says in answer.json()["error"]["message"]
    assert operator.get("/aliases/new").status_code == 404


def test_only_operators_may(stack: Stack) -> None:
    for role, tenant in (("tenant_admin", "acme"), ("read_only", None)):
        secret = stack.write(
            lambda c, role=role, tenant=tenant: keys.create_key(
                c, tenant_id=stack.tenants[tenant] if tenant else None, name="x", kind="admin", role=role
            )
        ).secret
        headers = {"Authorization": f"Bearer {secret}"}
        body = {"models": [{"model": MODEL}]}
        refused = httpx.put(f"{stack.url}/v1/admin/aliases/new", headers=headers, json=body)
        assert refused.json()["error"]["code"] == "insufficient_role"
        listed = httpx.get(f"{stack.url}/v1/admin/aliases", headers=headers)
        assert listed.status_code == (403 if tenant else 200)


def test_the_command_line(stack: Stack, tmp_path: Path) -> None:
    laneway = Laneway(tmp_path, stack.config_file.read_text())
    laneway.file = stack.config_file
    made = laneway.json("aliases", "set", "cli", f"{MODEL}=95", f"{SMALL}=5", "--fallback", SMALL, "--tenant", "globex")
    assert [target["weight"] for target in made["models"]] == [95, 5]
    eventually(lambda: post(stack, "chat/completions", "cli").status_code == 200)
    assert f"{MODEL}=95,{SMALL}=5" in laneway.text("aliases", "list")
    assert "cli" in {alias["name"] for alias in laneway.json("aliases", "list")}
    assert laneway.refusal("aliases", "set", "cli", "nobody").endswith("there is no base model 'nobody'")
    assert "neither a model's name nor MODEL=WEIGHT" in laneway.refusal("aliases", "set", "cli", f"{MODEL}=many")
    assert laneway.text("aliases", "remove", "cli") == "cli is removed\n"
    assert "no alias 'cli' was set" in laneway.refusal("aliases", "remove", "cli")
    assert laneway.json("tenants", "set", "initech", "--cheapest")["cheapest"] is True
    assert laneway.json("tenants", "set", "initech", "--name", "I")["cheapest"] is True
    assert laneway.json("tenants", "set", "initech", "--no-cheapest")["cheapest"] is False
