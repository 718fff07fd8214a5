"""GET /v1/models in Anthropic's shape, for its SDKs and for agents. OpenAI's shape is `registry.ModelCard`.

It must never know which models a tenant may call.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from gateway.catalog.capabilities import ModelCapabilities
from gateway.catalog.registry import ModelCard
from gateway.errors import InvalidRequest

# Anthropic's limits of a page.
PAGE_DEFAULT = 20
PAGE_MAX = 1000
ACTIVE: Final = "active"


class Support(msgspec.Struct, frozen=True):
    supported: bool


class ThinkingTypes(msgspec.Struct, frozen=True, kw_only=True):
    """A type is supported if a request with it is answered; `thinking.supported` says whether thinking is made."""

    adaptive: Support = Support(True)
    between_tools: Support = Support(True)
    disabled: Support = Support(True)
    enabled: Support = Support(True)


class ThinkingSupport(msgspec.Struct, frozen=True, kw_only=True):
    supported: bool
    types: ThinkingTypes = ThinkingTypes()


class EffortSupport(msgspec.Struct, frozen=True, kw_only=True):
    supported: bool = False
    low: Support = Support(False)
    medium: Support = Support(False)
    high: Support = Support(False)
    xhigh: Support = Support(False)
    max: Support = Support(False)


class ContextManagementSupport(msgspec.Struct, frozen=True, kw_only=True):
    supported: bool = False


class ServerToolsSupport(msgspec.Struct, frozen=True, kw_only=True):
    supported: bool = False
    code_execution: Support = Support(False)
    web_search: Support = Support(False)


class AnthropicCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Anthropic's names of capabilities. It has no name for the caller's tools, because every Anthropic model supports
    them."""

    batch: Support = Support(False)
    citations: Support = Support(False)
    code_execution: Support = Support(False)
    context_management: ContextManagementSupport = ContextManagementSupport()
    effort: EffortSupport = EffortSupport()
    image_input: Support = Support(False)
    pdf_input: Support = Support(False)
    server_tools: ServerToolsSupport = ServerToolsSupport()
    structured_outputs: Support
    thinking: ThinkingSupport


class AnthropicModel(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="model"):
    """`created_at`: RFC 3339. `max_input_tokens`: the longest context; null while the engine is unavailable."""

    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = ACTIVE
    max_input_tokens: int | None
    max_tokens: int | None
    capabilities: AnthropicCapabilities


class AnthropicModelList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


def anthropic_model(card: ModelCard) -> AnthropicModel:
    can = card.capabilities or ModelCapabilities()
    return AnthropicModel(
        id=card.id,
        display_name=card.id,
        created_at=datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=card.max_model_len,
        max_tokens=card.max_model_len,
        capabilities=AnthropicCapabilities(
            structured_outputs=Support(can.structured_outputs), thinking=ThinkingSupport(supported=can.reasoning)
        ),
    )


def anthropic_page(
    cards: Sequence[ModelCard],
    *,
    limit: str | None = None,
    after_id: str | None = None,
    before_id: str | None = None,
    lifecycle: Sequence[str] = (),
) -> AnthropicModelList:
    """A page of the cards, by the query parameters of Anthropic's API: `limit` models after or before the model of an
    id. `lifecycle`: the stages to list, none for all. Raises InvalidRequest."""
    count = _limit(limit)
    if after_id is not None and before_id is not None:
        raise InvalidRequest("'after_id' and 'before_id' exclude each other: send one of them.", param="before_id")
    shown = list(cards) if not lifecycle or ACTIVE in lifecycle else []
    if before_id is not None:
        shown = shown[: _index(shown, before_id, "before_id")]
        page, has_more = shown[-count:], len(shown) > count
    else:
        shown = shown if after_id is None else shown[_index(shown, after_id, "after_id") + 1 :]
        page, has_more = shown[:count], len(shown) > count
    ids = [card.id for card in page]
    return AnthropicModelList(
        data=[anthropic_model(card) for card in page],
        has_more=has_more,
        first_id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
    )


def _limit(value: str | None) -> int:
    if value is None:
        return PAGE_DEFAULT
    if not (value.isascii() and value.isdigit() and len(value) <= len(str(PAGE_MAX)) and 1 <= int(value) <= PAGE_MAX):
        raise InvalidRequest(f"'limit' is wrong: it must be an integer from 1 to {PAGE_MAX}.", param="limit")
    return int(value)


def _index(cards: Sequence[ModelCard], id_: str, param: str) -> int:
    found = next((index for index, card in enumerate(cards) if card.id == id_), None)
    if found is None:
        raise InvalidRequest(f"{param!r} names no model of the list.", param=param)
    return found
