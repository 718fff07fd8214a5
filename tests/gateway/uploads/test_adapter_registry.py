"""Adapters uploaded, promoted, rolled back, shared and removed on a running gateway; the files behind them."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.files.check import CONFIG_FILE, FILES, WEIGHTS_FILE
from adapters.files.generate import Recipe, write_random
from adapters.files.resolved import RESOLVED_FILE
from adapters.files.slab_names import slab_name
from adapters.files.spec import BaseShape
from gateway.access import keys
from gateway.engines.local import LocalEngine
from support.gateway.adapter_uploads import AdapterOperator, HalfUpload, files_of
from support.stack import MODEL, Stack
from support.waiting import eventually

SMALL = ("k_proj",)


@pytest.fixture
def base(model_dir: Path) -> BaseShape:
    return BaseShape.from_config(json.loads((model_dir / "config.json").read_bytes()))


@pytest.fixture
def made(tmp_path: Path, base: BaseShape) -> Callable[[int], Path]:
    """Adapters with random numbers, by their seeds."""
    return lambda seed: write_random(tmp_path / f"made{seed}", base, Recipe(seed, 1, SMALL), MODEL)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    """A stack whose store is swept often."""
    directory = tmp_path_factory.mktemp("registry")
    toml = "[adapters]\nupkeep_s = 0.2\n"
    stack = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir, toml=toml, fake={"step_ms": 1.0})
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


@pytest.fixture
def operator(own: Stack) -> Iterator[AdapterOperator]:
    secret = own.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin")).secret
    operator = AdapterOperator(own.url, secret)
    yield operator
    operator.close()


def stored(stack: Stack, *digests: str) -> set[str]:
    """Which of them lie in the store."""
    return {digest for digest in digests if (stack.config.adapters_dir / digest / WEIGHTS_FILE).exists()}


def unfinished(stack: Stack) -> list[Path]:
    return list((stack.config.adapters_dir / ".incoming").iterdir())


def text_of(stack: Stack, model: str, tenant: str = "acme", **fields: Any) -> str:
    answer = stack.chat(tenant, model=model, temperature=0, max_tokens=6, **fields)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def test_from_upload_to_removal(own: Stack, operator: AdapterOperator, made: Callable[[int], Path]) -> None:
    """What an operator does with an adapter in its life, and what lies on the disk meanwhile."""
    first = operator.upload(made(1), "style", tenant="acme", notes="trained on Monday")
    assert (first["tenant_id"], first["base_model"], first["shared"]) == (own.tenants["acme"], MODEL, [])
    assert (first["version"], first["added"]["number"], first["notes"]) == (1, 1, "trained on Monday")
    assert (first["added"]["rank_max"], first["added"]["targets"], first["added"]["warnings"]) == (1, ["k_proj"], [])
    one = text_of(own, "style")
    assert own.chat("globex", model="style").status_code == 404

    again = operator.upload(made(1), "style", tenant="acme")
    assert again["added"] == first["added"], "the same content is the same version"
    second = operator.upload(made(2), "style", tenant="acme", pinned="true")
    assert (second["version"], second["added"]["number"], second["pinned"]) == (1, 2, True)
    assert second["notes"] == "trained on Monday"
    assert text_of(own, "style") == one, "a further version waits"
    assert operator.ok("POST", "adapters/style/promote", {"version": 2})["digest"] == second["added"]["digest"]
    two = text_of(own, "style")
    assert two != one
    back = operator.ok("POST", f"adapters/{first['id']}/rollback")
    assert (back["version"], back["digest"]) == (1, first["digest"])
    assert text_of(own, "style") == one
    assert operator.ok("POST", "adapters/style/promote", {"version": second["added"]["digest"][:12]})["version"] == 2
    third = operator.upload(made(3), "style", tenant="acme", promote="true")
    assert third["version"] == 3
    listed = operator.ok("GET", "adapters/style/versions", limit=2)
    assert [version["number"] for version in listed["data"]] == [3, 2]
    assert [version["replaced"] for version in listed["data"]] == [2, 1]
    rest = operator.ok("GET", "adapters/style/versions", limit=2, page=listed["next_page"])
    assert ([version["number"] for version in rest["data"]], rest["has_more"]) == ([1], False)
    for named in ("2", second["added"]["digest"][:12]):
        assert operator.ok("GET", f"adapters/style/versions/{named}") == listed["data"][1]
    for absent, param in (("9", "version"), ("0123456789ab", "version")):
        unknown = operator.send("GET", f"adapters/style/versions/{absent}")
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, param)

    refused = operator.send("DELETE", "adapters/style/versions/3")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "version")
    operator.ok("DELETE", "adapters/style/versions/2")
    assert operator.send("POST", "adapters/style/promote", {"version": 2}).status_code == 404
    assert operator.ok("POST", "adapters/style/rollback")["version"] == 1, "it passes by what was removed"
    digests = [version["digest"] for version in (first, second["added"], third)]
    eventually(lambda: stored(own, *digests) == {first["digest"], third["digest"]})

    other = operator.upload(made(1), "another", tenant="globex")
    assert other["digest"] == first["digest"], "one content, one file"
    assert operator.send("DELETE", "adapters/style").status_code == 204
    eventually(lambda: own.chat(model="style").status_code == 404)
    assert operator.send("GET", "adapters/style").status_code == 404
    assert text_of(own, "another", "globex") == one
    eventually(lambda: stored(own, *digests) == {first["digest"]})
    reborn = operator.upload(made(3), "style", tenant="acme")
    assert (reborn["id"], reborn["version"], reborn["pinned"], reborn["notes"]) == (first["id"], 4, False, None)

    log = operator.ok("GET", "audit_log", object_id=first["id"], limit=50)["data"]
    actions = [line["action"].removeprefix("adapter.") for line in reversed(log)]
    assert actions == [
        *("register", "register", "promote", "rollback", "promote", "register", "rollback", "remove", "register"),
    ]
    [made_line, removed] = reversed(operator.ok("GET", "audit_log", object_id=f"{first['id']}/2")["data"])
    assert (made_line["action"], removed["action"]) == ("adapter.version", "adapter.remove_version")
    assert removed["after"]["removed_at"] is not None
    assert {line["tenant_id"] for line in log} == {own.tenants["acme"]}


def test_whom_an_adapter_is_shared_with(own: Stack, operator: AdapterOperator, made: Callable[[int], Path]) -> None:
    def listed(tenant: str) -> set[str]:
        answer = httpx.get(f"{own.url}/v1/models", headers=own.headers(tenant))
        return {card["id"] for card in answer.json()["data"]} & {"given"}

    given = operator.upload(made(1), "given", tenant="acme", shared="globex")
    assert [listed(tenant) for tenant in own.tenants] == [{"given"}, {"given"}, set()]
    assert own.chat("initech", model="given").status_code == 404
    operator.ok("PATCH", "adapters/given", {"shared": ["*"]})
    eventually(lambda: own.chat("initech", model="given").status_code == 200)
    assert [listed(tenant) for tenant in own.tenants] == [{"given"}] * 3
    operator.upload(made(2), "given", tenant="initech")
    assert text_of(own, "given", "initech") != text_of(own, "given", "globex"), "one's own comes first"
    operator.ok("PATCH", f"adapters/{given['id']}", {"shared": []})
    eventually(lambda: own.chat("globex", model="given").status_code == 404)
    assert own.chat("acme", model="given").status_code == 200

    operator.upload(made(3), "of-two", tenant="acme", shared=f"globex,{own.tenants['initech']}")
    taken = operator.post_files(files_of(made(4)), name="of-two", tenant="initech", shared="globex")
    assert (taken.status_code, taken.json()["error"]["param"]) == (409, "shared"), "whose would globex get?"
    everyones = operator.upload(made(5), "everyones")
    assert (everyones["shared"], everyones["tenant_id"]) == (["*"], None)
    for_few = operator.upload(made(5), "for-few", shared="acme")
    assert for_few["shared"] == [own.tenants["acme"]]
    assert [own.chat(tenant, model="for-few").status_code for tenant in own.tenants] == [200, 404, 404]
    several = operator.send("GET", "adapters/given")
    assert "the name of several adapters" in several.json()["error"]["message"]


def test_a_version_is_tried_split_with_the_served_one_and_compared(
    own: Stack, operator: AdapterOperator, made: Callable[[int], Path]
) -> None:
    adapter = operator.upload(made(11), "canary", tenant="acme")
    operator.upload(made(12), "canary", tenant="acme")
    one, two = text_of(own, "canary"), text_of(own, "canary@2")
    assert one == text_of(own, "canary@1") != two
    assert own.chat(model="canary@2", max_tokens=1).json()["model"] == "canary@2"
    for tenant, name in (("acme", "canary@3"), ("acme", "canary@02x"), ("globex", "canary@2"), ("acme", f"{MODEL}@1")):
        assert own.chat(tenant, model=name).status_code == 404, name

    arms = [{"model": "canary@1", "weight": 1}, {"model": "canary@2", "weight": 1}]
    refused = operator.send("PUT", "aliases/split", {"models": [{"model": "canary@9"}]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (404, "models")
    refused = operator.send("PUT", "aliases/split", {"models": arms, "cheapest": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "cheapest")
    operator.ok("PUT", "aliases/split", {"models": arms})
    eventually(lambda: own.chat(model="split", max_tokens=1).status_code == 200)
    assert own.chat("globex", model="split").status_code == 404, "it may call none of the arms"
    before = {arm["adapter_version"]: arm["requests"] for arm in operator.ok("GET", "alias_use/split")["data"]}
    served = [own.chat(model="split", max_tokens=2, user=f"person {n}").json()["model"] for n in range(12)]
    assert set(served) == {"canary@1", "canary@2"}

    compared = {arm["adapter_version"]: arm for arm in operator.ok("GET", "alias_use/split")["data"]}
    for version in (1, 2):
        arm = compared[version]
        assert arm["requests"] - before.get(version, 0) == served.count(f"canary@{version}")
        assert (arm["adapter"], arm["failed"]) == (adapter["id"], 0)
        assert arm["completion_tokens"] > 0 < arm["cost_picos"]["USD"]
        assert 0 < arm["ttft_p50_s"] <= arm["ttft_p95_s"]
    whole = {arm["adapter_version"]: arm["requests"] for arm in operator.ok("GET", "adapters/canary/use")["data"]}
    assert whole[1] - compared[1]["requests"] == 2  # the name alone, and canary@1
    assert whole[2] - compared[2]["requests"] == 2
    last = operator.ok("GET", "requests", tenant="acme", limit=1)["data"][0]
    assert (last["asked"], f"canary@{last['adapter_version']}") == ("split", served[-1])
    whole_request = operator.ok("GET", f"requests/{last['request_id']}")
    assert (whole_request["asked"], whole_request["usage"]["asked"]) == ("split", "split")
    operator.ok("DELETE", "aliases/split")


def test_a_replaced_version_leaves_no_cached_prefix(
    own: Stack, operator: AdapterOperator, made: Callable[[int], Path]
) -> None:
    """Cached pages are named by the content of the adapter that made them."""
    messages = [{"role": "user", "content": "one two three four five six seven eight nine ten " * 10}]

    def cached() -> int:
        usage = own.chat(model="cached", messages=messages, max_tokens=2).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    operator.upload(made(21), "cached", tenant="acme")
    assert cached() == 0
    assert (whole := cached()) > 64
    operator.upload(made(22), "cached", tenant="acme", promote="true")
    assert cached() == 0, "the other version's keys and values are not its own"
    assert cached() == whole
    operator.ok("POST", "adapters/cached/rollback")
    assert cached() == whole, "the same content again: what it made still holds"


async def test_what_another_gateway_had_unloaded_is_loaded_again(own: Stack) -> None:
    """The engine refuses what it does not know; the request had not begun, and begins again."""
    before = text_of(own, "acme-style")
    another = LocalEngine(own.config.socket_path)
    await another.start()
    try:
        await another.wait_ready(30)
        await another.unload_adapter(b"acme-style".hex().ljust(64, "0"))
        assert await asyncio.to_thread(text_of, own, "acme-style") == before
    finally:
        await another.close()
    assert own.open_holds() == 0


def test_what_a_crash_leaves_is_swept_at_the_next_start(
    own: Stack, operator: AdapterOperator, made: Callable[[int], Path]
) -> None:
    kept = operator.upload(made(1), "kept", tenant="acme")
    half = HalfUpload(own.port, operator, files_of(made(2)))
    eventually(lambda: bool(unfinished(own)))
    orphan = own.config.adapters_dir / ("f" * 64)  # renamed, and the transaction was never committed
    assert own.gateway is not None
    own.gateway.kill()
    own.gateway.wait()
    shutil.copytree(own.config.adapters_dir / kept["digest"], orphan)
    half.connection.close()
    assert unfinished(own)
    assert stored(own, kept["digest"], orphan.name) == {kept["digest"], orphan.name}
    own.start_gateway()
    own.wait_ready()
    eventually(lambda: not unfinished(own) and stored(own, orphan.name) == set())
    assert stored(own, kept["digest"])
    assert text_of(own, "kept")


def test_a_slab_comes_with_each_and_is_made_where_it_lacks(
    own: Stack, operator: AdapterOperator, made: Callable[[int], Path]
) -> None:
    digest = operator.upload(made(2100), "laid-out", tenant="acme")["digest"]
    directory = own.config.adapters_dir / digest
    slab = directory / slab_name("float32")
    first = slab.read_bytes()
    slab.unlink()
    old = directory / "slab-0.float32"
    old.write_bytes(b"of a format before")
    eventually(slab.exists)
    eventually(lambda: not old.exists())
    assert slab.read_bytes() == first
    # One of which none can be made is tried once, and served.
    weights = directory / WEIGHTS_FILE
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    slab.unlink()
    eventually(lambda: bool(own.log_lines("slab.not_made")))
    time.sleep(0.6)
    (line,) = own.log_lines("slab.not_made")
    assert line["digest"] == digest
    assert "its content is" in line["reason"]
    assert text_of(own, "laid-out")
    operator.ok("DELETE", "adapters/laid-out")
    eventually(lambda: not directory.exists())


def test_what_was_stored_before_is_resolved_by_the_gateway_and_served(
    own: Stack, operator: AdapterOperator, made: Callable[[int], Path]
) -> None:
    """Also without making slabs, and without an operator's action. An adapter that stalls does not delay others."""
    names = {name: operator.upload(made(2300 + n), name, tenant="acme")["digest"] for n, name in enumerate("xy")}
    for name, digest in names.items():
        directory = own.config.adapters_dir / digest
        (directory / RESOLVED_FILE).unlink()
        (directory / slab_name("float32")).touch()  # so that only the loader resolves it, not the slab maker
        config = json.loads((directory / CONFIG_FILE).read_bytes())
        config["alpha_pattern"] = {"(?=m)" + ".?" * 28 + "X": 1} if name == "x" else {"(?=m)model.*": 16}
        (directory / CONFIG_FILE).write_text(json.dumps(config))
    assert own.gateway is not None
    own.gateway.kill()
    own.gateway.wait()
    own.start_gateway()
    own.wait_ready()
    eventually((own.config.adapters_dir / names["y"] / RESOLVED_FILE).exists, 30)
    eventually(lambda: bool(own.log_lines("adapter.not_resolved")), 30)
    assert own.log_lines("adapter.not_resolved")[0]["digest"] == names["x"]
    assert text_of(own, "y")
    assert own.chat("acme", model="x").status_code == 503
    for name in names:
        operator.ok("DELETE", f"adapters/{name}")


def test_without_slabs_there_are_none(
    make_stack: Callable[..., Stack], tmp_path: Path, made: Callable[[int], Path]
) -> None:
    stack = make_stack(toml="[adapters]\nslabs = false\nupkeep_s = 0.1\n")
    secret = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin")).secret
    operator = AdapterOperator(stack.url, secret)
    try:
        digest = operator.upload(made(2200), "plain", tenant="acme")["digest"]
        time.sleep(1.0)
        assert {path.name for path in (stack.config.adapters_dir / digest).iterdir()} == {*FILES, RESOLVED_FILE}
        assert text_of(stack, "plain")
    finally:
        operator.close()


def test_files_stay_while_a_request_runs_on_them(
    own: Stack, operator: AdapterOperator, made: Callable[[int], Path]
) -> None:
    digest = operator.upload(made(9), "leaving", tenant="acme")["digest"]
    asked = {"messages": [{"role": "user", "content": "hi"}], "model": "leaving", "max_tokens": 1500, "stream": True}
    missing: list[str] = []
    with httpx.stream(
        "POST", f"{own.url}/v1/chat/completions", headers=own.headers(), json=asked, timeout=30
    ) as answer:
        lines = answer.iter_lines()
        next(lines)
        operator.ok("DELETE", "adapters/leaving")
        for line in lines:
            if not stored(own, digest):
                missing.append(line)
    assert line == ""
    # The last lines may lie here for a while after the engine was done with it.
    assert len(missing) < 200, "it ran for seconds, and its files were there"
    eventually(lambda: not stored(own, digest))


def test_no_request_is_lost_and_none_is_mixed_while_versions_change(
    make_stack: Callable[..., Stack], made: Callable[[int], Path], postgres_url: str
) -> None:
    """Two gateways, many streams of many tokens, and versions that change under them."""
    stack = make_stack(postgres_url, fake={"step_ms": 1.0})
    stack.start_more_gateways(1)
    secret = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin")).secret
    operator = AdapterOperator(stack.url, secret)
    for seed in (1, 2, 3):
        operator.upload(made(seed), "moving", tenant="acme")
    allowed: dict[str, int] = {}
    fields: dict[str, Any] = {"model": "moving", "temperature": 0, "max_tokens": 24}
    for number in (1, 2, 3):
        operator.ok("POST", "adapters/moving/promote", {"version": number})
        allowed[stack.chat(**fields).json()["choices"][0]["message"]["content"]] = number
    assert len(allowed) == 3
    over = threading.Event()
    seen: list[tuple[float, int]] = []
    wrong: list[str] = []

    def ask(url: str) -> None:
        body = {"messages": [{"role": "user", "content": "Say something."}], **fields}
        with httpx.Client(headers=stack.headers(), timeout=60) as client:
            while not over.is_set():
                answer = client.post(f"{url}/v1/chat/completions", json=body)
                text = answer.json()["choices"][0]["message"]["content"] if answer.status_code == 200 else answer.text
                if text in allowed:
                    seen.append((time.monotonic(), allowed[text]))
                else:
                    wrong.append(text)

    askers = [threading.Thread(target=ask, args=(url,)) for url in stack.urls for _ in range(3)]
    for asker in askers:
        asker.start()
    try:
        for turn in range(24):
            if turn % 3 == 2:
                served = operator.ok("POST", "adapters/moving/rollback")["version"]
            else:
                served = operator.ok("POST", "adapters/moving/promote", {"version": turn % 3 + 1})["version"]
            assert allowed[_text(stack.url, stack, fields)] == served, "whoever comes after the answer gets it"
    finally:
        over.set()
        for asker in askers:
            asker.join()
    assert not wrong, wrong[:3]
    numbers = [number for _, number in sorted(seen)]
    assert sum(one != other for one, other in pairwise(numbers)) > 8, "it changed under them"
    for url in stack.urls:
        eventually(lambda url=url: allowed[_text(url, stack, fields)] == served, 2.0)
    eventually(lambda: stack.open_holds() == 0)
    operator.close()


def _text(url: str, stack: Stack, fields: dict[str, Any]) -> str:
    body = {"messages": [{"role": "user", "content": "Say something."}], **fields}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=stack.headers(), timeout=60)
    return str(answer.json()["choices"][0]["message"]["content"])
