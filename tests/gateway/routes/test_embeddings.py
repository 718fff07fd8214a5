"""/v1/embeddings, /v1/rerank and /v1/score through the whole path, as clients send them: answers, bills, refusals."""

from __future__ import annotations

import base64
import json
import math
import random
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from engine.protocol.frames import EngineUsage, Finished, ModelInfo, Submit
from engine.text.tokenizer import Tokenizer
from gateway.answers.embeddings_shape import numbers_json
from gateway.api.pooling.embeddings_wire import INPUTS_MAX, NUMBER_BYTES_MAX
from gateway.generation.replays import ANSWER_BYTES_MAX
from support.gateway.batch_client import BatchClient
from support.gateway.scripted_engine import Said, ScriptedStack
from support.gateway.several_models import BARE, SMALL, ManyModels, sections
from support.stack import MODEL, Stack
from support.waiting import eventually

PICOS = 300_000  # of a prompt token of acme's, whose tier is premium
WIDTH = 576  # as the demo model's config.json says
TEXTS = ["The cat sat.", "A dog barks at night.", "Prices rose."]


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.keys["acme"], max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer(stack: Stack) -> Tokenizer:
    return Tokenizer.load(stack.model_dir)


def post(
    stack: Stack, path: str = "embeddings", headers: dict[str, str] | None = None, **fields: Any
) -> httpx.Response:
    sent = {name: value for name, value in ({"model": MODEL} | fields).items() if value is not None}
    return httpx.post(f"{stack.url}/v1/{path}", headers=stack.headers() | (headers or {}), json=sent, timeout=60)


def vectors(answer: httpx.Response) -> list[list[float]]:
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return [one["embedding"] for one in data]


def refusal(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


# ---- answers


def test_the_sdk_gets_floats_whether_it_asks_for_base64_or_not(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    as_sent = client.embeddings.create(model=MODEL, input=TEXTS)  # the SDK asks for base64
    as_floats = client.embeddings.create(model=MODEL, input=TEXTS, encoding_format="float")
    assert [one.index for one in as_sent.data] == [0, 1, 2]
    assert as_sent.model == MODEL
    for one, other in zip(as_sent.data, as_floats.data, strict=True):
        assert len(one.embedding) == WIDTH
        assert array("f", one.embedding) == array("f", other.embedding)
        assert math.hypot(*one.embedding) == pytest.approx(1, abs=1e-5)
    tokens = sum(len(tokenizer.encode(text)) for text in TEXTS)
    assert (as_sent.usage.prompt_tokens, as_sent.usage.total_tokens) == (tokens, tokens)


def test_texts_and_their_ids_have_the_same_vector(stack: Stack, tokenizer: Tokenizer) -> None:
    """As a text, a list of texts, a list of ids, and LangChain's lists of ids."""
    ids = [tokenizer.encode(text) for text in TEXTS]
    texts = vectors(post(stack, input=TEXTS))
    assert vectors(post(stack, input=ids)) == texts
    assert vectors(post(stack, input=TEXTS[1])) == vectors(post(stack, input=ids[1])) == texts[1:2]
    assert texts[0] != texts[1]


def test_base64_is_of_little_endian_float32(stack: Stack) -> None:
    [shown] = vectors(post(stack, input="hello", encoding_format="base64"))
    [numbers] = vectors(post(stack, input="hello"))
    assert base64.b64decode(shown) == struct.pack(f"<{WIDTH}f", *numbers)  # type: ignore[arg-type]


def test_dimensions_cut_and_normalise(stack: Stack) -> None:
    [whole] = vectors(post(stack, input="hello"))
    [cut] = vectors(post(stack, input="hello", dimensions=16))
    length = math.hypot(*whole[:16])
    assert cut == pytest.approx([number / length for number in whole[:16]], abs=1e-6)
    assert vectors(post(stack, input="hello", dimensions=WIDTH)) == [whole]


def test_an_adapter_has_vectors_of_its_own(stack: Stack) -> None:
    assert vectors(post(stack, model="acme-style", input="hello")) != vectors(post(stack, input="hello"))
    card = httpx.get(f"{stack.url}/v1/models/acme-style", headers=stack.headers()).json()
    assert card["embedding"] == {"pooling": "last", "dimensions": WIDTH, "scores": "cosine"}
    assert card["capabilities"]["embeddings"] is True


def test_as_many_inputs_as_openai_takes(stack: Stack) -> None:
    """More than the tier's queue has room for: the gateway submits a few at a time."""
    ids = [[300 + number, 301 + number % 7] for number in range(INPUTS_MAX)]
    answer = post(stack, input=ids, dimensions=2)
    assert len(vectors(answer)) == INPUTS_MAX
    assert answer.json()["usage"]["prompt_tokens"] == 2 * INPUTS_MAX
    row = stack.usage(answer.headers["x-request-id"])
    assert row is not None
    assert (row.prompt_tokens, row.cost_picos) == (2 * INPUTS_MAX, 2 * INPUTS_MAX * PICOS)


def test_numbers_are_short_and_read_as_the_same_float32() -> None:
    drawn = random.Random(7)
    numbers = array("f", [drawn.gauss(0, 1) * 10 ** drawn.randint(-38, 0) for _ in range(10_000)])
    numbers.extend([0.0, -0.0, 1.0, -1.0, 1e-45, -3.4e38])
    shown = numbers_json(numbers)
    assert array("f", json.loads(shown)) == numbers
    assert max(map(len, shown[1:-1].split(","))) + 1 <= NUMBER_BYTES_MAX
    assert numbers_json(array("f", [1.0, math.nan])) == "[1.0,null]"


# ---- bills


def test_an_embedding_is_settled_before_its_answer(stack: Stack, tokenizer: Tokenizer) -> None:
    text = "A sentence that is embedded twice, so that the second time its pages are in the prefix cache. " * 4
    for _ in range(2):
        answer = post(stack, input=[text, "b"])
        tokens = len(tokenizer.encode(text)) + 1
        assert answer.json()["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
        row = stack.usage(answer.headers["x-request-id"])
        assert row is not None
        assert (row.operation, row.ending) == ("embedding", "stop")
        assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.made_tokens) == (tokens, 0, 0, 0)
        assert row.cost_picos == tokens * PICOS
        assert answer.headers["x-laneway-max-tokens-granted"] == "0"
        assert stack.hold(answer.headers["x-request-id"]).state == "settled"


def test_an_embedding_that_no_budget_covers_is_refused_before_the_engine(stack: Stack) -> None:
    made = stack.new_key("acme")
    stack.budget(made.key, "money", 3 * PICOS)
    headers = {"Authorization": f"Bearer {made.secret}"}
    error = refusal(post(stack, headers=headers, input=[[300, 301, 302, 303]]), 429)
    assert error["code"] == "key_budget_exceeded"
    assert len(vectors(post(stack, headers=headers, input=[[300, 301, 302]]))) == 1
    assert refusal(post(stack, headers=headers, input=[[300]]), 429)["code"] == "key_budget_exceeded"


def test_a_repeated_call_is_answered_again_and_billed_once(stack: Stack) -> None:
    headers, before = {"Idempotency-Key": "embed-once"}, stack.holds()
    first, second = (post(stack, headers=headers, input=TEXTS) for _ in range(2))
    assert first.content == second.content
    assert vectors(first) == vectors(post(stack, input=TEXTS))
    assert second.headers["idempotent-replayed"] == "true"
    assert stack.holds() == before + 2


def test_a_call_whose_answer_could_not_be_replayed_is_refused_unbilled(stack: Stack) -> None:
    headers, before = {"Idempotency-Key": "embed-many"}, stack.holds()
    count = ANSWER_BYTES_MAX // (WIDTH * NUMBER_BYTES_MAX)
    ids = [[300]] * count
    error = refusal(post(stack, headers=headers, input=ids))
    assert error["param"] == "input"
    assert "'Idempotency-Key'" in error["message"]
    assert str(ANSWER_BYTES_MAX) in error["message"]
    assert stack.holds() == before
    first, second = (post(stack, headers=headers, input=ids, encoding_format="base64") for _ in range(2))
    assert first.status_code == 200, first.text
    assert second.headers["idempotent-replayed"] == "true"
    short = post(stack, headers={"Idempotency-Key": "embed-short"}, input=ids, dimensions=8)
    assert len(vectors(short)) == count


# ---- rerank and score


def test_documents_by_the_cosine_of_their_embeddings(stack: Stack) -> None:
    query, documents = TEXTS[0], [*TEXTS[1:], TEXTS[0]]
    found = post(stack, "rerank", query=query, documents=documents)
    assert found.status_code == 200, found.text
    answer = found.json()
    own, *others = vectors(post(stack, input=[query, *documents]))
    scores = [sum(a * b for a, b in zip(own, other, strict=True)) for other in others]
    order = sorted(range(3), key=lambda index: -scores[index])
    assert [one["index"] for one in answer["results"]] == order
    assert order[0] == 2
    assert [one["relevance_score"] for one in answer["results"]] == pytest.approx([scores[i] for i in order], abs=1e-5)
    assert [one["document"] for one in answer["results"]] == [{"text": documents[index]} for index in order]
    row = stack.usage(found.headers["x-request-id"])
    assert row is not None
    assert (row.operation, row.prompt_tokens) == ("embedding", answer["usage"]["prompt_tokens"])
    short = post(stack, "rerank", query=query, documents=[{"text": one} for one in documents], top_n=1,
                 return_documents=False).json()  # fmt: skip
    assert [set(one) for one in short["results"]] == [{"index", "relevance_score"}]


def test_scores_of_pairs_and_of_one_text_with_several(stack: Stack) -> None:
    one = post(stack, "score", text_1=TEXTS[0], text_2=TEXTS).json()
    assert [item["index"] for item in one["data"]] == [0, 1, 2]
    assert one["data"][0]["score"] == pytest.approx(1, abs=1e-5)
    pairs = post(stack, "score", text_1=TEXTS, text_2=TEXTS[::-1]).json()
    scores = [item["score"] for item in pairs["data"]]
    assert scores[1] == pytest.approx(1, abs=1e-5)
    assert scores[0] == pytest.approx(scores[2], abs=1e-5) == pytest.approx(one["data"][2]["score"], abs=1e-5)


def test_documents_of_a_large_body_are_shown(stack: Stack) -> None:
    documents = [f"document {number} " + 'says "x", "y", [z] ' * 12 for number in range(200)]
    answer = post(stack, "rerank", query="document", documents=documents, top_n=2)
    assert answer.status_code == 200, answer.text
    for one in answer.json()["results"]:
        assert one["document"]["text"] == documents[one["index"]]


# ---- refusals


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": ""}, "input", "length"),
        ({"input": []}, "input", "length"),
        ({"input": ["a", ""]}, "input[1]", "length"),
        ({"input": ["a", [5]]}, "input", "mixes"),
        ({"input": [["a"]]}, "input[0][0]", "int"),
        ({"input": [[]]}, "input[0]", "length"),
        ({"input": [[49152]]}, "input", "below 49152"),
        ({"input": [[5]] * (INPUTS_MAX + 1)}, "input", str(INPUTS_MAX)),
        ({"input": "a " * 9000}, "input", "maximum context length"),
        ({"input": "a", "dimensions": 0}, "dimensions", ">= 1"),
        ({"input": "a", "dimensions": WIDTH + 1}, "dimensions", str(WIDTH)),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "float"),
        ({"input": "a", "normalize": False}, "normalize", "length 1"),
        ({"input": "a", "pooling": "mean"}, "pooling", "Unknown parameter"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "not truncated"),
        ({"input": None}, "input", "input"),
    ],
)
def test_what_is_refused(stack: Stack, fields: dict[str, Any], param: str, words: str) -> None:
    before = stack.holds()
    error = refusal(post(stack, **fields))
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert words in error["message"]
    assert stack.holds() == before


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("rerank", {"query": "", "documents": ["a"]}, "query"),
        ("rerank", {"query": "a", "documents": []}, "documents"),
        ("rerank", {"query": "a", "documents": ["a"], "top_n": -1}, "top_n"),
        ("rerank", {"query": "a", "documents": ["a"], "max_tokens_per_doc": 9}, "max_tokens_per_doc"),
        ("score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_2"),
        ("score", {"text_1": "a", "text_2": "b", "weight": 2}, "weight"),
    ],
)
def test_what_is_refused_of_scores(stack: Stack, path: str, fields: dict[str, Any], param: str) -> None:
    assert refusal(post(stack, path, **fields))["param"] == param


def test_settings_of_a_model_and_of_a_gateway(tmp_path: Path, model_dir: Path) -> None:
    """A model whose pooling is the mean, and one that makes no embeddings; aliases; limits of tokens and numbers."""
    aliases = "".join(
        f'[[aliases]]\nname = "{name}"\nmodels = [{models}]\n'
        for name, models in (
            ("both", f'{{ model = "{MODEL}" }}, {{ model = "{BARE}" }}'),
            ("one", f'{{ model = "{MODEL}" }}'),
        )
    )
    stack = ManyModels(
        tmp_path, f"sqlite:///{tmp_path}/laneway.db", model_dir,
        gateway_toml=f"embedding_tokens_max = 5\nembedding_numbers_max = {2 * WIDTH}\n",
        toml=sections(first='pooling = "mean"', small='pooling = "none"', rest=aliases),
    )  # fmt: skip
    stack.start()
    try:
        assert len(vectors(post(stack, input=[[300, 301], [302, 303, 304]]))) == 2
        error = refusal(post(stack, input=[[300, 301], [302, 303, 304, 305]]))
        assert (error["param"], "has 6 tokens in all; the limit is 5" in error["message"]) == ("input", True)
        before = stack.holds()
        error = refusal(post(stack, input=[[300], [301], [302]]))
        assert error["param"] == "input"
        assert f"have {3 * WIDTH} numbers" in error["message"]
        assert f"the limit is {2 * WIDTH} a request" in error["message"]
        assert stack.holds() == before
        assert len(vectors(post(stack, input=[[300], [301], [302]], dimensions=WIDTH // 2))) == 3
        assert post(stack, "score", text_1="a", text_2=["b", "c"]).status_code == 200, "no vector is shown"
        assert "makes no embeddings" in refusal(post(stack, model=SMALL, input="a"))["message"]
        assert "cannot be compared" in refusal(post(stack, model="both", input="a"))["message"]
        check_lines(stack)
        assert vectors(post(stack, model="one", input="a")) == vectors(post(stack, input="a"))
        cards = httpx.get(f"{stack.url}/v1/models", headers=stack.headers()).json()["data"]
        found = {
            card["id"]: (card["capabilities"]["embeddings"], (card["embedding"] or {}).get("pooling")) for card in cards
        }
        assert {name: found[name] for name in (MODEL, SMALL, BARE, "both", "one")} == {
            MODEL: (True, "mean"), SMALL: (False, None), BARE: (True, "last"), "both": (False, None),
            "one": (True, "mean"),
        }  # fmt: skip
    finally:
        stack.stop()


def check_lines(stack: Stack) -> None:
    """A line of a batch has an eighth of the limit of numbers."""
    bodies = {"short": {"input": "a", "dimensions": WIDTH // 4}, "long": {"input": "a", "dimensions": WIDTH // 4 + 1}}
    url = "/v1/embeddings"
    lines = [
        {"custom_id": id_, "method": "POST", "url": url, "body": {"model": MODEL} | body}
        for id_, body in bodies.items()
    ]
    with BatchClient(stack, stack.keys["acme"]) as client:
        batch = client.finish(client.create(lines, url))
        assert set(client.outputs(batch)) == {"short"}
        error = client.errors(batch)["long"]["response"]["body"]["error"]
    assert error["param"] == "input"
    assert f"the limit is {WIDTH // 4} a line of a batch" in error["message"]


# ---- engines


@pytest.fixture
def scripted(tmp_path: Path, model_dir: Path) -> Iterator[ScriptedStack]:
    made = ScriptedStack(tmp_path, f"sqlite:///{tmp_path}/laneway.db", model_dir)
    made.start()
    yield made
    made.stop()


def test_an_engine_without_vectors(scripted: ScriptedStack) -> None:
    """An engine of an earlier version has no vector_width: nothing is submitted. An engine that ends without the vector
    fails the request, and nothing is billed."""
    error = refusal(post(scripted, input="hello"), 503)
    assert (error["code"], scripted.scripted.submits) == ("engine_unavailable", [])
    card = httpx.get(f"{scripted.url}/v1/models/{MODEL}", headers=scripted.headers()).json()
    assert card["embedding"] is None

    def no_vector(submit: Submit) -> Said:
        assert (submit.pooling, submit.max_tokens) == ("last", 0)
        return [(0.0, Finished(submit.handle, "length", EngineUsage(len(submit.prompt_ids))))]

    scripted.scripted.stop()
    scripted.start_engine()
    scripted.scripted.models = [ModelInfo(MODEL, "d" * 64, 2048, 49152, 16, 1000, vector_width=4)]
    scripted.says(no_vector)
    eventually(lambda: post(scripted, input="hello").status_code == 500)
    assert scripted.open_holds() == 0
