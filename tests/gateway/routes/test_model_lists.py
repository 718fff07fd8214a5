"""GET /v1/models in OpenAI's shape, and for clients of Anthropic's API in theirs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import anthropic
import httpx
import openai
import pytest

from gateway.answers.models_shape import PAGE_DEFAULT, anthropic_page
from gateway.catalog.capabilities import ModelCapabilities, common_capabilities
from gateway.catalog.registry import ModelCard
from gateway.errors import InvalidRequest
from support.stack import MODEL, Stack

VERSION = {"anthropic-version": "2023-06-01"}
CONTEXT_TOKENS = 8192


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=stack.url, api_key=stack.keys["acme"], max_retries=0) as client:
        yield client


def test_anthropics_client_lists_the_models(client: anthropic.Anthropic, stack: Stack) -> None:
    page = client.models.list()
    ids = [model.id for model in page.data]
    names = httpx.get(f"{stack.url}/v1/models", headers=stack.headers("acme")).json()["data"]
    assert ids == [card["id"] for card in names]
    assert (page.first_id, page.last_id, page.has_more) == (ids[0], ids[-1], False)
    [model] = [model for model in page.data if model.id == MODEL]
    assert (model.type, model.display_name, model.lifecycle) == ("model", MODEL, "active")
    assert model.created_at <= datetime.now(UTC)
    assert (model.max_input_tokens, model.max_tokens) == (CONTEXT_TOKENS, CONTEXT_TOKENS)
    assert model.capabilities is not None
    assert model.capabilities.thinking.types.adaptive.supported
    assert not model.capabilities.image_input.supported
    assert client.models.retrieve(MODEL) == model


def test_anthropics_client_turns_the_pages(client: anthropic.Anthropic) -> None:
    whole = [model.id for model in client.models.list(limit=1000)]
    assert len(whole) >= 3
    assert [model.id for model in client.models.list(limit=1)] == whole  # the iterator asks for the next pages
    before = client.models.list(limit=1, before_id=whole[2])
    assert ([model.id for model in before.data], before.has_more) == ([whole[1]], True)
    assert client.models.list(lifecycle=["retired"]).data == []


@pytest.mark.parametrize("bearer", [False, True])
def test_a_tenants_path_and_either_key_header(stack: Stack, bearer: bool) -> None:
    key = stack.keys["globex"]
    headers = VERSION | ({"Authorization": f"Bearer {key}"} if bearer else {"x-api-key": key})
    listed = httpx.get(f"{stack.url}/t/globex/v1/models", headers=headers).json()
    assert "globex-style" in [model["id"] for model in listed["data"]]
    assert set(listed) == {"data", "has_more", "first_id", "last_id"}


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/v1/models/globex-style", 404, "not_found_error"),
        ("/v1/models?limit=0", 400, "invalid_request_error"),
        ("/v1/models?limit=1001", 400, "invalid_request_error"),
        ("/v1/models?limit=many", 400, "invalid_request_error"),
        ("/v1/models?after_id=nowhere", 400, "invalid_request_error"),
        ("/v1/models?before_id=nowhere", 400, "invalid_request_error"),
        ("/v1/models?before_id=a&after_id=b", 400, "invalid_request_error"),
        ("/t/globex/v1/models", 404, "not_found_error"),
    ],
)
def test_refusals_have_anthropics_shape(stack: Stack, path: str, status: int, kind: str) -> None:
    answer = httpx.get(stack.url + path, headers={"x-api-key": stack.keys["acme"], **VERSION})
    assert (answer.status_code, answer.json()["type"], answer.json()["error"]["type"]) == (status, "error", kind)
    assert answer.json()["request_id"] == answer.headers["request-id"]
    without = httpx.get(f"{stack.url}/v1/models", headers=VERSION)
    assert (without.status_code, without.json()["error"]["type"]) == (401, "authentication_error")


def test_openais_client_gets_its_own_shape(stack: Stack) -> None:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.keys["acme"]) as client:
        model = client.models.retrieve(MODEL)
    assert (model.object, model.owned_by) == ("model", "laneway")
    extra: dict[str, Any] = model.model_extra or {}
    assert extra["max_model_len"] == CONTEXT_TOKENS
    assert set(extra["capabilities"]) == {"tools", "reasoning", "structured_outputs", "embeddings"}
    refused = httpx.get(f"{stack.url}/v1/models/globex-style", headers=stack.headers("acme")).json()
    assert set(refused["error"]) == {"message", "type", "param", "code"}


def test_pages_of_many_models() -> None:
    cards = [ModelCard(id=f"m{number}", created=0, owned_by="laneway") for number in range(45)]
    first = anthropic_page(cards)
    assert (len(first.data), first.has_more, first.last_id) == (PAGE_DEFAULT, True, "m19")
    last = anthropic_page(cards, after_id="m39")
    assert ([model.id for model in last.data], last.has_more) == (["m40", "m41", "m42", "m43", "m44"], False)
    assert first.data[0].created_at == "1970-01-01T00:00:00Z"
    back = anthropic_page(cards, before_id="m2", limit="5")
    assert ([model.id for model in back.data], back.has_more) == (["m0", "m1"], False)
    assert anthropic_page([]).first_id is None
    with pytest.raises(InvalidRequest):
        anthropic_page(cards, limit="٣")


def test_an_alias_can_do_what_all_its_models_can() -> None:
    both = ModelCapabilities(tools=True, reasoning=True)
    assert common_capabilities([both, ModelCapabilities(tools=True)]) == ModelCapabilities(tools=True)
    assert common_capabilities([both, both]) == both
    assert common_capabilities([]) == ModelCapabilities()
