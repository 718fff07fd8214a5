"""Fields by which agents (Claude Code, the Claude Agent SDK) tune Anthropic's own service.

The gateway accepts these fields, because a 400 would stop the agent. The response header `laneway-ignored` names each
ignored field that Anthropic's service would have used. The fields are typed, so that a field can get an effect later
without another parser.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

# Claude Code's first system block. Its value differs between requests of one session, so a prompt that began with it
# would share no prefix with the request before.
BILLING_BLOCK = "x-anthropic-billing-header:"
BETA_HEADER = "anthropic-beta"


class CacheControl(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="ephemeral"
):
    """A hint: every prompt is cached here, by its pages."""

    ttl: Literal["5m", "1h"] | None = None
    scope: str | None = None


class Thinking(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`budget_tokens`: of the type `enabled`. `display`: whether the answer shows the thinking."""

    type: Literal["enabled", "adaptive", "disabled", "between_tools"]
    budget_tokens: int | None = None
    display: str | None = None

    @property
    def requested(self) -> bool:
        """Whether the answer should begin with thinking."""
        return self.type in ("enabled", "adaptive")


class SchemaFormat(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"
):
    """The text of the answer is JSON that the schema allows."""

    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the answer is made."""

    effort: str | None = None
    task_budget: dict[str, Any] | None = None
    format: SchemaFormat | None = None


class ToolHints(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a tool's definition that describe how Anthropic's service treats the tool, not the tool itself."""

    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    input_examples: list[Any] | None = None


TOOL_HINTS: dict[str, str] = {
    "eager_input_streaming": "Arguments are always streamed as they are made",
    "defer_loading": "Every tool is described in the prompt",
    "allowed_callers": "No code is run, so the model alone calls tools",
    "input_examples": "The chat template describes a tool without examples",
}


def is_billing_block(text: str) -> bool:
    return text.startswith(BILLING_BLOCK)


def ignored_headers(betas: Sequence[str]) -> tuple[str, ...]:
    """The names of request headers that were ignored. `betas`: the values of `anthropic-beta`."""
    return (BETA_HEADER,) if any(value.strip() for value in betas) else ()
