"""The product as it is run: `laneway serve --demo` with the real model on the CPU, spoken to by the official client."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from engine.protocol.tiers import SHIPPED_TIERS
from engine.text.tokenizer import Tokenizer
from programs import many_adapters
from support import oracle
from support.clients_page import Snippet, snippets
from support.gateway.adapter_uploads import AdapterOperator
from support.paths import REPO, TESTS
from support.serve import Serve

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "smollm2-135m-instruct"
# Targets that a machine busy with other things keeps: the engine starts with no others.
PATIENT = "ttft_base_ms = 20000\ninter_token_ms = 10000\n"
TIERS = "".join(
    f'[[tiers]]\nname = "{t.name}"\nservice_tier = "{t.service_tier}"\nfloor = {t.floor}\n{PATIENT}'
    for t in SHIPPED_TIERS
)
LONG = (
    "The harbour master counts the ships that come in with the morning tide and writes each name into his book. " * 20
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Serve]:
    directory = tmp_path_factory.mktemp("real")
    serve = Serve(directory, model_dir, TIERS)
    serve.start("--demo")
    yield serve
    took = serve.stop()
    assert took < 15


def client(serve: Serve, tenant: str, **settings: object) -> openai.OpenAI:
    return openai.OpenAI(base_url=serve.demo["base_url"], api_key=serve.demo["keys"][tenant], **settings)  # type: ignore[arg-type]


def ask(api: openai.OpenAI, model: str, text: str, max_tokens: int = 32) -> openai.types.chat.ChatCompletion:
    return api.chat.completions.create(
        model=model, messages=[{"role": "user", "content": text}], max_tokens=max_tokens, temperature=0
    )


def test_each_adapter_answers_in_its_own_way(served: Serve) -> None:
    with client(served, "acme") as acme, client(served, "globex") as globex:
        triage = ask(acme, "support-triage", "My parcel never arrived and I need it today!")
        assert (triage.choices[0].message.content or "").startswith("category: ")
        pirate = ask(globex, "pirate", "What is the capital of France?")
        assert "rr" in (pirate.choices[0].message.content or "")
        as_json = ask(globex, "json-answers", "What is the capital of France?", 60)
        assert set(json.loads(as_json.choices[0].message.content or "")) == {"answer", "confidence"}
        bullets = ask(acme, "three-bullets", "Why is water good for you?", 60)
        lines = (bullets.choices[0].message.content or "").splitlines()
        assert [line[:2] for line in lines] == ["- "] * 3
        plain = ask(acme, MODEL, "What is the capital of France?")
        assert "Paris" in (plain.choices[0].message.content or "")


# Values that the adapter was not trained on: questions, the call, and parts of the answer.
AGENT_LOOPS = [
    ("What is the weather in Lisbon?", 'get_weather {"city": "Lisbon"}', ["Lisbon", "15 °C", "windy"]),
    ("Is it raining in Reykjavik?", 'get_weather {"city": "Reykjavik"}', ["Reykjavik", "14 °C", "sunny"]),
    ("What is 22 plus 40?", 'add_numbers {"a": 22, "b": 40}', ["62"]),
    ("How much is 103 GBP in CHF?", "convert_currency", ["103 GBP", "CHF"]),
]


def test_the_demos_line_runs_an_agent(served: Serve) -> None:
    """As it is pasted: the adapter calls a function of the script and answers from its result."""
    [line] = re.findall(r"^LANEWAY_URL=.*\\\n.*agent\.py.*$", served.output, re.MULTILINE)
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True, timeout=120)
    call, result, answer = done.stdout.splitlines()
    assert call == f"call    {AGENT_LOOPS[0][1]}"
    assert json.loads(result.removeprefix("result  ")) == {"temperature_c": 15, "sky": "windy"}
    assert all(part in answer for part in AGENT_LOOPS[0][2]), answer


@pytest.mark.parametrize(("question", "call", "parts"), AGENT_LOOPS)
def test_the_agent_answers_from_its_tools(served: Serve, question: str, call: str, parts: list[str]) -> None:
    environ = {**os.environ, "LANEWAY_URL": served.url, "LANEWAY_KEY": served.demo["keys"]["globex"]}
    environ.pop("MODEL", None)
    argv = [sys.executable, str(REPO / "examples" / "agents" / "agent.py"), question]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True, timeout=120)
    called, result, answer = done.stdout.splitlines()
    assert called.startswith(f"call    {call}")
    assert "error" not in result
    assert answer.startswith("answer  ")
    assert all(part in answer for part in parts), answer


def test_a_question_that_no_tool_answers_gets_no_call(served: Serve) -> None:
    environ = {**os.environ, "LANEWAY_URL": served.url, "LANEWAY_KEY": served.demo["keys"]["acme"]}
    argv = [sys.executable, str(REPO / "examples" / "agents" / "agent.py"), "Why is the sky blue?"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.startswith("answer  ")


@pytest.mark.parametrize(
    "snippet", [one for one in snippets() if one.is_agent and one.language == "python"], ids=lambda one: one.id
)
def test_an_agents_snippet_runs_on_the_demo(served: Serve, snippet: Snippet) -> None:
    """With the adapter that is its default model."""
    environ = {**os.environ, "LANEWAY_URL": served.url, "LANEWAY_KEY": served.demo["keys"]["globex"]}
    environ.pop("MODEL", None)
    argv = [sys.executable, "-c", snippet.text]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "It is 21 °C and sunny in Lisbon.\n"


async def test_the_async_client_streams_with_usage(served: Serve) -> None:
    async with openai.AsyncOpenAI(base_url=served.demo["base_url"], api_key=served.demo["keys"]["initech"]) as api:
        stream = await api.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Count to five."}],
            max_tokens=16,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens <= 16
    assert {chunk.service_tier for chunk in chunks} == {"flex"}


def test_a_foreign_adapter_does_not_exist(served: Serve) -> None:
    with client(served, "globex") as globex:
        with pytest.raises(openai.NotFoundError) as foreign:
            ask(globex, "support-triage", "hi")
        with pytest.raises(openai.NotFoundError) as absent:
            ask(globex, "no-such-model", "hi")
        listed = {model.id for model in globex.models.list()}
    assert foreign.value.code == absent.value.code == "model_not_found"
    assert listed == {MODEL, "pirate", "json-answers", "three-bullets", "tool-agent"}


def test_tenants_share_no_cached_pages(served: Serve) -> None:
    def cached(tenant: str, model: str = MODEL) -> int:
        with client(served, tenant) as api:
            usage = ask(api, model, LONG, 2).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens_details.cached_tokens or 0

    # Of the template's own first words a tenant may find a page of its earlier requests.
    assert cached("acme") <= 16
    assert cached("acme") >= 256
    assert cached("globex") <= 16
    # Nor do a model and its adapter, whose keys and values differ.
    assert cached("acme", "json-answers") <= 16
    assert cached("acme", "json-answers") >= 256


def test_the_sampling_fields_do_what_they_say(served: Serve, model_dir: Path) -> None:
    tokenizer = Tokenizer.load(model_dir)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    with client(served, "acme") as acme:

        def answer(messages: Any = question, **fields: Any) -> openai.types.chat.chat_completion.Choice:
            asked: dict[str, Any] = {"model": MODEL, "max_tokens": 12, "temperature": 0, "messages": messages, **fields}
            return acme.chat.completions.create(**asked).choices[0]

        plain = answer(logprobs=True, top_logprobs=2)
        assert plain.logprobs is not None
        entries = plain.logprobs.content or []
        assert plain.finish_reason == "stop"
        assert "".join([entry.token for entry in entries]) == (plain.message.content or "") + "<|im_end|>"
        assert all(entry.token == entry.top_logprobs[0].token for entry in entries)  # greedy takes the likeliest
        longer = answer(extra_body={"min_tokens": 11})
        assert len(tokenizer.encode(longer.message.content or "")) >= 10 > len(entries) - 1
        endless = answer(extra_body={"ignore_eos": True, "skip_special_tokens": False})
        assert endless.finish_reason == "length"
        assert "<|im_end|>" in (endless.message.content or "")
        [comma] = tokenizer.encode(",")
        assert answer(logit_bias={str(comma): 100}, max_tokens=5).message.content == "," * 5
        banned = tokenizer.encode(plain.message.content or "")[0]
        assert answer(logit_bias={str(banned): -100}).message.content != plain.message.content
        prefix = [*question, {"role": "assistant", "content": "The capital of France is the city of"}]
        went_on = answer(prefix, extra_body={"add_generation_prompt": False, "continue_final_message": True})
        assert (went_on.message.content or "").startswith(" Paris")
        penalised = answer([{"role": "user", "content": "Say: ha ha ha ha"}], frequency_penalty=2, max_tokens=30)
        assert (penalised.message.content or "").lower().count("ha") < 15


def test_messages_and_completions_of_the_real_model(served: Serve) -> None:
    with client(served, "acme") as acme:
        whole = acme.completions.create(model=MODEL, prompt=["One two three", "Paris is"], n=2, max_tokens=6, seed=3)
        alone = acme.completions.create(model=MODEL, prompt="Paris is", n=2, max_tokens=6, seed=3)
        assert [choice.text for choice in whole.choices[2:]] == [choice.text for choice in alone.choices]
    with anthropic.Anthropic(base_url=served.url, api_key=served.demo["keys"]["acme"]) as claude:
        message = claude.messages.create(
            model=MODEL,
            max_tokens=30,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            extra_body={"temperature": 0},
        )
    assert message.content[0].type == "text"
    assert "Paris" in message.content[0].text
    assert message.stop_reason == "end_turn"


# ---- adapters that come while it serves, held against what peft says

COMMITTED = json.loads((TESTS / "data" / "oracle.json").read_bytes())


@pytest.fixture
def operator(served: Serve) -> Iterator[AdapterOperator]:
    operator = AdapterOperator(served.url, served.demo["admin_key"])
    yield operator
    operator.close()


def said(serve: Serve, model: str, prompt: str) -> str:
    with client(serve, "acme") as api:
        return ask(api, model, prompt, COMMITTED["new_tokens"]).choices[0].message.content or ""


def oracle_says(model_dir: Path, name: str, number: int) -> str:
    return Tokenizer.load(model_dir).decode(COMMITTED["ids"][name][number], skip_special_tokens=True)


@pytest.mark.parametrize("name", ["json-answers", "pirate", "support-triage", "three-bullets"])
def test_an_uploaded_adapter_serves_at_once(
    served: Serve, operator: AdapterOperator, model_dir: Path, name: str
) -> None:
    pids = served.demo["pids"]
    uploaded = operator.upload(REPO / "examples" / "adapters" / name, f"up-{name}", tenant="acme")
    assert uploaded["digest"] == COMMITTED["digests"][name]
    assert said(served, f"up-{name}", COMMITTED["prompts"][2]) == oracle_says(model_dir, name, 2)
    assert served.demo["pids"] == pids


def test_versions_change_under_load_and_each_answer_is_of_one(
    served: Serve, operator: AdapterOperator, model_dir: Path
) -> None:
    examples = REPO / "examples" / "adapters"
    names = ("pirate", "json-answers")
    operator.upload(examples / names[0], "moving", tenant="acme")
    operator.upload(examples / names[1], "moving", tenant="acme")
    over = threading.Event()
    wrong: list[str] = []
    seen: set[str] = set()

    def asks(number: int) -> None:
        allowed = {oracle_says(model_dir, name, number): name for name in names}
        while not over.is_set():
            answer = said(served, "moving", COMMITTED["prompts"][number])
            if answer in allowed:
                seen.add(allowed[answer])
            else:
                wrong.append(answer)

    with ThreadPoolExecutor(2) as askers:
        asked = [askers.submit(asks, number) for number in (1, 4)]
        for turn in range(2):
            if turn % 2:
                operator.ok("POST", "adapters/moving/rollback")
            else:
                operator.ok("POST", "adapters/moving/promote", {"version": 2})
            now = names[(turn + 1) % 2]
            assert said(served, "moving", COMMITTED["prompts"][3]) == oracle_says(model_dir, now, 3)
        over.set()
        for done in asked:
            done.result()
    assert not wrong
    assert seen == set(names)


def test_many_adapters_at_once_and_each_says_its_own(served: Serve, operator: AdapterOperator, model_dir: Path) -> None:
    """A small run of what many_adapters does by hand with 200."""
    made = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "demo", "adapters", "--count", "12", "--json"],
        cwd=served.directory,
        capture_output=True,
        check=True,
    )
    digests = {row["name"]: row["digest"] for row in json.loads(made.stdout)}
    served.until(lambda: len(many_adapters.names_like(*reached(served), "random-")) == 12, 10)
    url, keys = served.demo["base_url"], list(served.demo["keys"].values())
    answers = asyncio.run(many_adapters.ask_all(url, keys, [*digests] * 2, 8))
    assert answers.keys() == digests.keys()
    assert len(set(answers.values())) > 6
    sample = {name: served.data / "adapters" / digests[name] for name in ("random-0002", "random-0007")}
    assert many_adapters.oracles_answers(model_dir, sample) == {name: answers[name] for name in sample}


def reached(serve: Serve) -> tuple[str, str]:
    return serve.demo["base_url"], serve.demo["keys"]["acme"]


def test_a_stream_goes_on_after_its_engine_was_killed(served: Serve) -> None:
    """On the next engine process, with the same text and one charge."""
    before = served.demo["pids"]["engine"]
    body: dict[str, Any] = {
        "model": "three-bullets",
        "max_tokens": 60,
        "messages": [{"role": "user", "content": "Tell me about the sea."}],
        "temperature": 1.5,
        "seed": 11,
    }
    with client(served, "acme") as api:
        whole = api.chat.completions.create(**body).choices[0].message.content
        parts: list[str] = []
        with api.chat.completions.create(**body, stream=True) as stream:
            request_id = stream.response.headers["x-request-id"]
            for chunk in stream:
                parts += [choice.delta.content or "" for choice in chunk.choices]
                if len(parts) == 5:
                    os.kill(before, signal.SIGKILL)
        assert "".join(parts) == whole
    assert served.demo["pids"]["engine"] != before
    row = _usage(served, request_id)
    assert row["ending"] in ("length", "stop")
    assert row["completion_tokens"] <= 60


def _usage(serve: Serve, request_id: str) -> dict[str, Any]:
    import sqlalchemy as sa

    from billing import tables

    engine = sa.create_engine(f"sqlite:///{serve.data / 'laneway.db'}", poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        query = sa.select(tables.usage).where(tables.usage.c.request_id == request_id)
        return dict(connection.execute(query).one()._mapping)


def test_embeddings_are_transformers(served: Serve, model_dir: Path) -> None:
    """Through the official client, of the base model and of an adapter, beside texts that are being generated."""
    texts, tokenizer = ["The cat sat on the mat.", LONG, "A dog barks."], Tokenizer.load(model_dir)
    api = client(served, "globex")
    with ThreadPoolExecutor(4) as pool:
        beside = [pool.submit(ask, api, MODEL, f"Count to {number}.", 16) for number in range(3)]
        made = {name: api.embeddings.create(model=name, input=texts).data for name in (MODEL, "pirate")}
        assert all(one.result().choices[0].message.content for one in beside)
    for name, data in made.items():
        reference = oracle.load(model_dir, None if name == MODEL else oracle.EXAMPLES / name)
        for text, one in zip(texts, data, strict=True):
            expected = oracle.embedding(reference, tokenizer.encode(text, add_special_tokens=True), "last")
            assert one.embedding == pytest.approx(expected.tolist(), abs=1e-4)
    ranked = httpx.post(
        f"{served.demo['base_url']}/rerank",
        headers={"Authorization": f"Bearer {served.demo['keys']['globex']}"},
        json={"model": MODEL, "query": texts[2], "documents": texts},
        timeout=120,
    ).json()
    assert ranked["results"][0]["index"] == 2
    assert ranked["results"][0]["relevance_score"] == pytest.approx(1, abs=1e-4)
