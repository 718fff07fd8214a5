"""Base models added, restricted, removed and brought back on a running gateway, with an engine that is real but for its
arithmetic."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.files.facts import Facts
from gateway.access import keys
from gateway.admin.administration import Administration
from gateway.admin.writes import Actor
from gateway.catalog.adapters import AdapterNameTaken, Registration
from gateway.catalog.base_models import configured_models
from gateway.commands.run import engine_file
from gateway.config.file import parse_gateway_config
from support.gateway.adapter_uploads import AdapterOperator
from support.stack import MODEL, Stack, body, events, register
from support.waiting import PATIENCE_S, eventually

TOKENIZER_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
# A stream that lasts until it is left alone, and a model's drain with it.
SLOW = {"step_ms": 5.0}


class Operated:
    """A stack, its operator, and directories in its models' folder."""

    def __init__(self, stack: Stack, model_dir: Path) -> None:
        self.stack, self._model_dir = stack, model_dir
        secret = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin")).secret
        self.operator = AdapterOperator(stack.url, secret)

    def lay(self, name: str) -> Path:
        """A model's directory, without weights: this engine reads none."""
        directory = self.stack.config.models_dir / name
        directory.mkdir(parents=True)
        for file in TOKENIZER_FILES:
            if (self._model_dir / file).exists():
                shutil.copy(self._model_dir / file, directory / file)
        return directory

    def price(self, name: str) -> None:
        self.operator.ok("POST", "prices", {"subject": name, "input": 100, "output": 400, "ahead": True})

    def add(self, name: str, **fields: Any) -> dict[str, Any]:
        self.lay(name)
        self.price(name)
        made = self.operator.ok("POST", "models", {"name": name, **fields})
        return dict(made)

    def shown(self, name: str) -> dict[str, Any]:
        [found] = [model for model in self.operator.ok("GET", "models")["data"] if model["name"] == name]
        return dict(found)

    def state(self, name: str) -> str:
        return str(self.shown(name)["state"])

    def refusal(self, method: str, path: str, sent: Any = None) -> tuple[int, str, str]:
        answer = self.operator.send(method, path, sent)
        error = answer.json()["error"]
        return answer.status_code, error["param"], error["message"]

    def listed(self, tenant: str = "acme", url: str = "") -> set[str]:
        answer = httpx.get(f"{url or self.stack.url}/v1/models", headers=self.stack.headers(tenant))
        return {card["id"] for card in answer.json()["data"]}


class Streaming:
    """A stream that runs while a test does other things. It has begun when this is made."""

    def __init__(self, stack: Stack, model: str, tokens: int) -> None:
        self._begun = threading.Event()
        self.text = ""
        self._thread = threading.Thread(
            target=self._read, args=(stack, body(model=model, max_tokens=tokens, stream=True))
        )
        self._thread.start()
        assert self._begun.wait(20)

    def _read(self, stack: Stack, sent: dict[str, Any]) -> None:
        url = f"{stack.url}/v1/chat/completions"
        try:
            with httpx.stream("POST", url, headers=stack.headers("globex"), json=sent, timeout=60) as answer:
                for piece in answer.iter_text():
                    self._begun.set()
                    self.text += piece
        finally:
            self._begun.set()

    def end(self) -> list[Any]:
        self._thread.join(60)
        return events(self.text)


@pytest.fixture
def operate(model_dir: Path) -> Iterator[Callable[[Stack], Operated]]:
    made: list[Operated] = []

    def make(stack: Stack) -> Operated:
        made.append(Operated(stack, model_dir))
        return made[-1]

    yield make
    for one in made:
        one.operator.close()


@pytest.fixture(scope="module")
def stack_of_models(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    """Shared here: each test adds what it needs under names of its own."""
    directory = tmp_path_factory.mktemp("models")
    aliases = f'[[aliases]]\nname = "taken-alias"\nmodels = [{{model = "{MODEL}"}}]\n'
    stack = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir, fake=SLOW, toml=aliases)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


@pytest.fixture
def own(stack_of_models: Stack, operate: Callable[[Stack], Operated]) -> Operated:
    return operate(stack_of_models)


def test_a_models_life(own: Operated) -> None:
    """From its directory to its removal under a running stream, and back."""
    stack = own.stack
    own.lay("second")
    status, param, why = own.refusal("POST", "models", {"name": "second"})
    assert (status, param) == (400, "name")
    assert "laneway prices publish second --ahead" in why
    assert stack.chat(model="second").status_code == 404
    own.price("second")
    made = own.operator.ok("POST", "models", {"name": "second"})
    assert (made["state"], made["origin"], made["path"], made["tenants"]) == ("serving", "added", "second", None)
    assert (made["running"], made["pinned"]) == (0, False)
    eventually(lambda: own.operator.ok("GET", "models/second")["where"] == "device")  # it comes beside what runs
    assert stack.chat(model="second").json()["model"] == "second"
    assert own.listed() >= {MODEL, "second"}
    again = own.operator.ok("POST", "models", {"name": "second"})
    assert again["changed_at"] == made["changed_at"], "the same again changes nothing"
    assert own.operator.ok("PATCH", "models/second", {"pinned": True})["pinned"]
    eventually(lambda: bool(own.shown("second")["pinned_there"]))
    stack.write(lambda c: register(c, name="second-style", tenant_id=None, digest="5" * 64, model="second"))
    eventually(lambda: stack.chat(model="second-style").status_code == 200)

    stream = Streaming(stack, "second", 300)
    assert own.operator.ok("DELETE", "models/second")["state"] == "draining"
    assert stack.chat(model="second").status_code == 404
    assert stack.chat(model="second-style").status_code == 404
    assert own.listed().isdisjoint({"second", "second-style"})
    whole = stream.end()
    assert whole[-1] == "[DONE]"
    assert whole[-2]["choices"][0]["finish_reason"] == "length"
    eventually(lambda: own.state("second") == "removed")
    assert own.operator.ok("DELETE", "models/second")["state"] == "removed"
    assert stack.chat().status_code == 200, "the others serve on"

    back = own.operator.ok("POST", "models/second/restore")
    assert (back["state"], back["pinned"]) == ("serving", True)
    assert stack.chat(model="second").status_code == 200
    eventually(lambda: stack.chat(model="second-style").status_code == 200)
    log = own.operator.ok("GET", "audit_log", limit=50)["data"]
    lines = [line for line in reversed(log) if line["after"] is not None and line["after"].get("name") == "second"]
    assert [line["action"] for line in lines] == ["model.add", "model.set", "model.remove", "model.restore"]
    assert stack.open_holds() == 0


def test_adding_a_model_again_changes_only_the_given_fields(own: Operated) -> None:
    """false, [] and null are values: only a field that is left out does not change."""
    own.lay("explicit")
    own.price("explicit")
    settings = {"pinned": True, "fallbacks": [MODEL], "tenants": ["acme"], "max_tokens_default": 5}
    made = own.operator.ok("POST", "models", {"name": "explicit", **settings})
    again = own.operator.ok("POST", "models", {"name": "explicit"})
    assert {name: again[name] for name in settings} == {name: made[name] for name in settings}
    assert (again["pinned"], again["fallbacks"], again["max_tokens_default"]) == (True, [MODEL], 5)
    plain = {"pinned": False, "fallbacks": [], "tenants": None}
    changed = own.operator.ok("POST", "models", {"name": "explicit", **plain})
    assert {name: changed[name] for name in plain} == plain
    assert changed["max_tokens_default"] == 5


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_the_formats_of_an_added_model(
    kind: str,
    make_stack: Callable[..., Stack],
    operate: Callable[[Stack], Operated],
    request: pytest.FixtureRequest,
) -> None:
    """They are its own, last through a removal and a new engine, and make another model of the same files."""
    stack = make_stack(request.getfixturevalue(f"{kind}_url"))
    own = operate(stack)

    def formats(name: str) -> tuple[str, str, str | None, str | None]:
        shown = own.operator.ok("GET", f"models/{name}")
        return shown["quantize"], shown["kv_dtype"], shown["weights_format"], shown["kv_format"]

    made = own.add("eight", quantize="fp8", kv_dtype="fp8")
    assert (made["state"], made["quality"]) == ("serving", None)
    own.add("plain", quantize=None, kv_dtype=None)
    assert formats("eight") == ("fp8", "fp8", "fp8", "fp8")
    assert formats("plain") == formats(MODEL) == ("none", "auto", "float32", "float32")
    again = own.operator.ok("POST", "models", {"name": "eight", "quantize": "fp8", "kv_dtype": "fp8"})
    assert again["changed_at"] == made["changed_at"]
    for other in ({}, {"quantize": "fp8"}, {"quantize": "int4", "kv_dtype": "fp8"}):
        refused = own.refusal("POST", "models", {"name": "eight", **other})
        assert refused == (409, "name", "there is another model 'eight'; remove it first")
    for field, value, words in (("quantize", "int3", "fp8, int4, int8 or none"), ("kv_dtype", "int8", "auto or fp8")):
        status, param, why = own.refusal("POST", "models", {"name": "plain", field: value})
        assert (status, param) == (400, field)
        assert why.endswith(f"{value!r}; it must be {words}")

    own.operator.ok("DELETE", "models/eight")
    eventually(lambda: own.state("eight") == "removed")
    assert formats("eight") == ("fp8", "fp8", None, None)
    own.operator.ok("POST", "models/eight/restore")
    assert formats("eight") == ("fp8", "fp8", "fp8", "fp8")
    stack.kill_engine()
    stack.start_engine()
    stack.wait_ready()
    eventually(lambda: own.state("eight") == "serving", 15)
    assert formats("eight") == ("fp8", "fp8", "fp8", "fp8")
    [added] = [
        line["after"]
        for line in own.operator.ok("GET", "audit_log", limit=50)["data"]
        if line["action"] == "model.add" and line["after"]["name"] == "eight"
    ]
    assert (added["quantize"], added["kv_dtype"]) == ("fp8", "fp8")


def test_two_gateways_and_an_engine_that_starts_again(
    make_stack: Callable[..., Stack], operate: Callable[[Stack], Operated], postgres_url: str
) -> None:
    stack = make_stack(postgres_url, fake=SLOW)
    stack.start_more_gateways(1)
    own = operate(stack)

    def statuses(model: str) -> list[int]:
        sent, headers = body(model=model, max_tokens=2), stack.headers()
        asked = [httpx.post(f"{url}/v1/chat/completions", headers=headers, json=sent) for url in stack.urls]
        return [answer.status_code for answer in asked]

    own.add("second")
    eventually(lambda: statuses("second") == [200, 200])
    own.operator.ok("PATCH", "models/second", {"tenants": ["globex"]})
    eventually(lambda: statuses("second") == [404, 404])
    own.operator.ok("PATCH", "models/second", {"tenants": None})
    stream = Streaming(stack, MODEL, 300)
    own.operator.ok("DELETE", f"models/{MODEL}")
    eventually(lambda: statuses(MODEL) == [404, 404])
    assert stream.end()[-1] == "[DONE]"
    # It starts with its file, which has the one that was removed, and knows the one that was added from elsewhere.
    stack.kill_engine()
    before = [{"name": MODEL, "path": str(stack.model_dir)}, {"name": "second", "path": str(stack.directory / "was")}]
    stack.engine_json["models"] = before
    stack.start_engine()
    stack.wait_ready()
    read = f'"model":"second","path":"{stack.config.models_dir / "second"}"'
    eventually(lambda: (stack.directory / "engine.log").read_text().count(read) == 2, 15)
    eventually(lambda: statuses("second") == [200, 200], 15)
    eventually(lambda: own.state(MODEL) == "removed", 15)
    assert statuses(MODEL) == [404, 404]
    own.operator.ok("POST", f"models/{MODEL}/restore")
    eventually(lambda: statuses(MODEL) == [200, 200])


def test_who_may_call_a_model(own: Operated) -> None:
    """A foreign model and an absent one are alike; so are the adapters of a foreign one."""
    stack = own.stack
    made = own.add("of-globex", tenants=["globex"], fallbacks=[MODEL], max_tokens_default=7)
    assert (made["tenants"], made["fallbacks"], made["max_tokens_default"]) == ([stack.tenants["globex"]], [MODEL], 7)
    stack.write(lambda c: register(c, name="foreign-style", tenant_id=None, digest="6" * 64, model="of-globex"))
    eventually(lambda: "foreign-style" in own.listed("globex"))
    assert own.listed("acme").isdisjoint({"of-globex", "foreign-style"})
    assert stack.chat("globex", model="of-globex").status_code == 200
    for name in ("of-globex", "foreign-style"):
        foreign, absent = stack.chat(model=name), stack.chat(model=name + "x")
        assert foreign.status_code == absent.status_code == 404
        assert foreign.text == absent.text.replace(name + "x", name)
        card = httpx.get(f"{stack.url}/v1/models/{name}", headers=stack.headers("acme"))
        assert (card.status_code, card.json()) == (404, absent.json() | json.loads(foreign.text))
    default = httpx.post(
        f"{stack.url}/v1/chat/completions",
        headers=stack.headers("globex"),
        json={"model": "of-globex", "messages": [{"role": "user", "content": "Go on."}]},
    )
    assert default.json()["usage"]["completion_tokens"] == 7
    own.operator.ok("PATCH", "models/of-globex", {"tenants": None, "max_tokens_default": None})
    assert stack.chat("acme", model="of-globex").status_code == 200
    assert own.shown("of-globex")["max_tokens_default"] == 2048
    secret = stack.write(
        lambda c: keys.create_key(c, tenant_id=stack.tenants["acme"], name="t", kind="admin", role="tenant_admin")
    ).secret
    admin = AdapterOperator(stack.url, secret)
    own.operator.ok("PATCH", "models/of-globex", {"tenants": ["globex"]})
    files = [(name, (name, b"{}", "application/json")) for name in ("adapter_config.json", "adapter_model.safetensors")]
    refused = admin.post_files(files, path="adapters/check", base="of-globex").json()["error"]
    assert (refused["param"], refused["code"]) == ("base", None)
    assert refused["message"].count("of-globex") == 1, "what is foreign is not listed"
    admin.close()


def test_without_a_database_a_tenants_own_model_is_nobodys() -> None:
    """Who that tenant is only the database knows."""
    config = parse_gateway_config(
        b'[[models]]\nname = "one"\n[[models]]\nname = "two"\ntenants = ["acme"]\n', Path("/"), "test", {}
    )
    assert [(model.name, model.allows("ten_acme")) for model in configured_models(config)] == [
        ("one", True),
        ("two", False),
    ]


def test_names_that_mean_something_already(own: Operated) -> None:
    for name in ("taken-alias", "shared-style", "other"):
        own.lay(name)
        own.price(name)
    assert own.refusal("POST", "models", {"name": "taken-alias"})[::2] == (409, "'taken-alias' is the name of an alias")
    status, _, why = own.refusal("POST", "models", {"name": "shared-style"})
    assert (status, why) == (409, "'shared-style' is the name of an adapter")
    assert own.refusal("POST", "models", {"name": MODEL, "path": "other"})[0] == 409
    own.operator.ok("POST", "models", {"name": "other"})
    own.lay("elsewhere")
    status, param, why = own.refusal("POST", "models", {"name": "other", "path": "elsewhere"})
    assert (status, param, why) == (409, "name", "there is another model 'other'; remove it first")
    for name, meaning in (("other", "a base model"), ("taken-alias", "an alias")):
        with pytest.raises(AdapterNameTaken, match=f"'{name}' is the name of {meaning}"):
            name_adapter(own.stack, name, "globex")


def name_adapter(stack: Stack, name: str, owner: str | None, shared: tuple[str, ...] | None = None) -> None:
    """Give a content a name, as the admin of that tenant, or without one as an operator."""
    tenant_id = None if owner is None else stack.tenants[owner]
    actor = Actor("cli:test", role="owner" if owner is None else "tenant_admin", tenant_id=tenant_id)
    wanted = Registration(name=name, tenant_id=tenant_id, base_model=MODEL, shared=shared, promote=True)
    facts = Facts(name.encode().hex().ljust(64, "7"))
    stack.write(lambda c: Administration(stack.config, actor).adapters.register(c, wanted, facts, lambda: None))


def test_a_tenant_hears_nothing_of_names_that_are_others(own: Operated) -> None:
    """Nor does what it calls its own keep a model from coming, or from coming back."""
    stack = own.stack
    own.add("secret", tenants=["globex"])
    own.operator.ok("PUT", "aliases/secret-alias", {"models": [{"model": "secret"}]})
    for name in ("secret", "secret-alias"):
        with pytest.raises(AdapterNameTaken):
            name_adapter(stack, name, "globex")
        with pytest.raises(AdapterNameTaken):
            name_adapter(stack, name, None)
        name_adapter(stack, name, "acme")
        eventually(lambda name=name: stack.chat("acme", model=name).status_code == 200)
        assert stack.chat("globex", model=name).json()["model"] == "secret"
        assert stack.chat("initech", model=name).status_code == 404
    card = httpx.get(f"{stack.url}/v1/models/secret", headers=stack.headers("acme")).json()
    assert (card["parent"], card["owned_by"]) == (MODEL, stack.tenants["acme"])
    # An operator who would have others call it is told.
    status, param, why = own.refusal("PATCH", "adapters/secret", {"shared": ["initech"]})
    assert (status, param, why) == (409, "name", "'secret' is the name of a base model")

    own.operator.ok("DELETE", "models/secret")
    name_adapter(stack, "secret", "globex")
    eventually(lambda: stack.chat("globex", model="secret").status_code == 200)
    assert own.operator.ok("POST", "models/secret/restore")["state"] == "serving"
    own.operator.ok("PATCH", "models/secret", {"tenants": None})
    own.add("acme-style")
    answers = {}
    for tenant in ("acme", "globex", "initech"):
        for name in ("secret", "acme-style"):
            eventually(lambda name=name, tenant=tenant: stack.chat(tenant, model=name).status_code == 200)
            row = stack.usage(stack.chat(tenant, model=name).headers["x-request-id"])
            assert row is not None
            answers[tenant, name] = row.model, row.adapter is not None
    adapter, secret, style = (MODEL, True), ("secret", False), ("acme-style", False)
    assert answers == {
        ("acme", "secret"): adapter, ("acme", "acme-style"): adapter,
        ("globex", "secret"): adapter, ("globex", "acme-style"): style,
        ("initech", "secret"): secret, ("initech", "acme-style"): style,
    }  # fmt: skip


def test_ids_to_an_alias_are_of_one_vocabulary(own: Operated, tiny_dir: Path) -> None:
    """To a model with another one they would be other words, made and billed."""
    own.add("same-words")
    for file in own.lay("other-words").iterdir():
        if file.name != "config.json":
            shutil.copy(tiny_dir / file.name, file)
    own.price("other-words")
    own.operator.ok("POST", "models", {"name": "other-words"})
    names: dict[str, list[Any]] = {
        "same": ["same-words"],
        "different": ["other-words"],
        "off": [{"model": "other-words", "weight": 0}],
    }
    for name, others in names.items():
        models = [{"model": MODEL}, *({"model": one} if isinstance(one, str) else one for one in others)]
        own.operator.ok("PUT", f"aliases/{name}", {"models": models})

    def ask(model: str, **fields: Any) -> httpx.Response:
        sent = {"model": model, "prompt": "Once", "max_tokens": 2} | fields
        return httpx.post(f"{own.stack.url}/v1/completions", headers=own.stack.headers(), json=sent)

    eventually(lambda: all(ask(name).status_code == 200 for name in names))
    for fields in ({"prompt": [500, 501]}, {"logit_bias": {"500": 1}}, {"stop_token_ids": [500]}):
        [field] = fields
        for name in ("same", "off", MODEL, "other-words"):
            assert ask(name, **fields).status_code == 200
        for user in ("one", "two", "three"):
            refused = ask("different", user=user, **fields)
            error = refused.json()["error"]
            assert (refused.status_code, error["param"]) == (400, field)
            assert f"{MODEL}, other-words" in error["message"]
    for path, field, value in (("tokenize", "prompt", "Hi"), ("detokenize", "tokens", [1])):
        url, headers = f"{own.stack.url}/v1/{path}", own.stack.headers()
        answers = [httpx.post(url, headers=headers, json={"model": name, field: value}) for name in names]
        assert [answer.status_code for answer in answers] == [200, 400, 200]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("../secrets", "no directory inside"),
        ("a/../../secrets", "no directory inside"),
        ("/etc", "no directory inside"),
        ("absent", "has no directory"),
        ("away", "leads out of the models' folder"),
        ("holds-a-link", "'config.json' of 'holds-a-link' leads out"),
        ("a-file", "has no directory"),
    ],
)
def test_an_admin_key_reads_nothing_beside_the_models_folder(own: Operated, path: str, why: str) -> None:
    folder = own.stack.config.models_dir
    folder.mkdir(exist_ok=True)
    (folder.parent / "secrets").mkdir(exist_ok=True)
    (folder / "a-file").write_text("{}")
    if path == "away":
        (folder / "away").symlink_to(folder.parent / "secrets")
    if path == "holds-a-link":
        (own.lay(path) / "config.json").unlink()
        (folder / path / "config.json").symlink_to("/etc/hostname")
    own.price("escaping")
    status, param, message = own.refusal("POST", "models", {"name": "escaping", "path": path})
    assert (status, param) == (400, "path")
    assert why in message or "pattern" in message or "regex" in message
    assert str(folder) not in message


def test_what_cannot_be_loaded_is_refused_with_its_reason(own: Operated) -> None:
    own.lay("no-tokenizer").joinpath("tokenizer.json").unlink()
    own.lay("bad-template").joinpath("chat_template.jinja").write_text("{% if")
    own.lay("bad-config").joinpath("config.json").write_text('{"vocab_size": "many"')
    for name in ("no-tokenizer", "bad-template", "bad-config"):
        own.price(name)
        status, param, why = own.refusal("POST", "models", {"name": name})
        assert (status, param) == (400, "path"), why
        assert name in why
        assert name not in {model["name"] for model in own.operator.ok("GET", "models")["data"]}
    assert "tokenizer.json" in own.refusal("POST", "models", {"name": "no-tokenizer"})[2]
    for sent, param in (
        ({"name": "x", "path": "bad-config", "fallbacks": ["nowhere"]}, "fallbacks"),
        ({"name": "x", "path": "bad-config", "tenants": ["nobody"]}, "tenant"),
        ({"name": "x", "path": "bad-config", "context_tokens": 1}, "context_tokens"),
    ):
        own.price("x") if param == "fallbacks" else None
        assert own.refusal("POST", "models", sent)[1] == param
    for method, path in (("DELETE", "models/nowhere"), ("PATCH", "models/nowhere"), ("POST", "models/nowhere/restore")):
        assert own.refusal(method, path, {} if method == "PATCH" else None)[0] == 404
    assert own.refusal("POST", f"models/{MODEL}/nothing")[0] == 404


def test_the_last_one_stays_and_a_start_knows_what_was_changed(
    make_stack: Callable[..., Stack], operate: Callable[[Stack], Operated]
) -> None:
    stack = make_stack()
    own = operate(stack)
    assert own.refusal("DELETE", f"models/{MODEL}")[::2] == (
        409,
        f"{MODEL!r} is the last base model that is served; add another one first",
    )
    own.add("a/second")
    own.lay("later")
    own.price("later")
    stack.kill_engine()
    away = own.operator.send("POST", "models", {"name": "later"})
    assert (away.status_code, away.json()["error"]["code"]) == (503, "engine_unavailable")
    assert "Nothing was changed" in away.json()["error"]["message"]
    assert [model["name"] for model in own.operator.ok("GET", "models")["data"]] == [MODEL, "a/second"]
    stack.start_engine()
    stack.wait_ready()
    assert own.operator.ok("POST", "models", {"name": "later"})["state"] == "serving"
    assert own.operator.ok("DELETE", f"models/{MODEL}")["origin"] == "config"
    assert own.operator.ok("GET", "models/a/second")["name"] == "a/second"
    # What an engine refuses that starts again is told, and may be tried again; the others serve.
    file = stack.config.models_dir / "later" / "tokenizer.json"
    whole = file.read_bytes()
    file.write_bytes(b"{}")
    stack.kill_engine()
    stack.start_engine()
    stack.wait_ready()
    eventually(lambda: own.state("later") == "refused", 10)
    assert own.shown("later")["reason"]
    assert stack.chat(model="later").json()["error"]["code"] == "model_unavailable"
    assert "later" not in own.listed()
    eventually(lambda: stack.chat(model="a/second").status_code == 200)
    file.write_bytes(whole)
    assert own.operator.ok("POST", "models/later/restore")["state"] == "serving"
    assert stack.chat(model="later").status_code == 200
    # A gateway that starts takes all of it from the database; what it cannot load is told, and keeps nothing else.
    file.unlink()
    assert stack.gateway is not None
    stack.gateway.terminate()
    stack.gateway.wait(PATIENCE_S)
    stack.start_gateway()
    stack.wait_ready()
    assert [line["models"] for line in stack.log_lines("models.removed")] == [[MODEL]]
    assert stack.chat(model=MODEL).status_code == 404
    assert stack.chat(model="a/second").status_code == 200
    shown = own.shown("later")
    assert shown["state"] == "refused"
    assert "tokenizer.json" in shown["reason"]
    refused = stack.chat(model="later")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_unavailable")
    assert own.listed().isdisjoint({"later", MODEL})
    health = {item["name"]: item for item in own.operator.ok("GET", "health")["data"]}
    assert health["models"]["status"] == "degraded"
    assert "later" in health["models"]["detail"]
    overview = own.operator.ok("GET", "overview")
    (told,) = [one for one in overview["attention"] if one["kind"] == "models"]
    assert (told["severity"], told["link"], overview["status"]) == ("critical", "/admin/models/later", "degraded")
    assert shown["reason"] in told["message"]
    assert str(file) in shown["reason"], "a path of the host: a tenant's own admin reads it nowhere"
    acme = stack.tenants["acme"]
    made = stack.write(lambda c: keys.create_key(c, tenant_id=acme, name="its", kind="admin", role="tenant_admin"))
    headers = {"Authorization": f"Bearer {made.secret}"}
    answers = [httpx.get(f"{stack.url}/v1/admin/{path}", headers=headers) for path in ("models", "health", "overview")]
    assert [answer.status_code for answer in answers] == [403, 403, 200]
    assert "later" not in answers[2].text
    assert "laneway_models_refused 1.0" in stack.metrics()
    # So does an engine: `laneway serve` and `laneway engine` write its file from the database.
    written = json.loads(engine_file(stack.config).read_bytes())["models"]
    assert [(model["name"], model["path"]) for model in written] == [
        (name, str(stack.config.models_dir / name)) for name in ("a/second", "later")
    ]
