"""The wire types of answers of `/v1/responses`, for its description. `answers/responses_shape.py` encodes them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gateway.api.responses_items import ConversationReference

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputTokensDetails(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cached_tokens: int
    cache_write_tokens: int


class ReasoningTokensDetails(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: ReasoningTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: Literal["max_output_tokens"]


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A response. `output`: items of the types reasoning, message, function_call and custom_tool_call. The fields from
    `background` on repeat the request."""

    id: str
    object: Literal["response"]
    created_at: float
    completed_at: float | None
    status: ResponseStatus
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[dict[str, Any]]
    service_tier: str
    usage: ResponseUsage | None
    background: bool
    conversation: ConversationReference | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    user: str | None


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a stream. `type`: response.created, response.in_progress, response.output_item.added, and so on, to
    response.completed, response.incomplete or response.failed, which have the whole `response`."""

    type: str
    sequence_number: int
    response: ResponseObject | None = None
