"""The dialect of one model for tools and reasoning: found by rendering its chat template with marked values, or named
by the operator in `[[models]] tools`."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from engine.text.tokenizer import TemplateError, Tokenizer
from gateway.tools.definitions import ToolSpec
from gateway.tools.formats import FORMATS, HERMES, LLAMA3_JSON, MISTRAL, MISTRAL_ARGS, QWEN3_CODER, ToolFormat
from gateway.tools.named_calls import OPEN
from gateway.tools.parser import PYTHON_TAG, ReasoningMarkers
from gateway.tools.scanning import AnswerMarkers

# The value of `[[models]] tools` with which the model is not offered tools, whatever its template describes.
NO_FORMAT = "none"
# Arguments of chat templates that switch reasoning, and that set its effort.
REASONING_SWITCHES = ("enable_thinking", "thinking")
EFFORT_ARGUMENT = "reasoning_effort"

_TOOL = "sentineltool"
_VALUE = "sentinelvalue"
_USER = {"role": "user", "content": "sentineluser"}


class ModelDialect(msgspec.Struct, frozen=True):
    """`format`: None if the model cannot be offered tools. `native`: its template describes tools and writes calls;
    otherwise the conversation is rewritten (`rendering`). `reasoning`: None if it does not reason. `switch`: the
    argument of the template that turns reasoning on and off. `effort`: its template reads EFFORT_ARGUMENT."""

    markers: AnswerMarkers
    format: ToolFormat | None = None
    native: bool = False
    reasoning: ReasoningMarkers | None = None
    switch: str | None = None
    effort: bool = False


# The dialect of a model that has neither tools nor reasoning.
PLAIN_DIALECT = ModelDialect(AnswerMarkers((), {}))


def dialect_of(tokenizer: Tokenizer, override: str | None = None) -> ModelDialect:
    """`override`: the name of a format, NO_FORMAT, or None for the template's own. Raises KeyError for another name."""
    rendered = _rendered_call(tokenizer)
    found = None if rendered is None else _format_of(rendered)
    format_ = found if override is None else None if override == NO_FORMAT else FORMATS[override]
    reasoning = _reasoning_of(tokenizer)
    texts = [*(() if format_ is None else format_.markers), PYTHON_TAG]
    if reasoning is not None:
        texts += [reasoning.start, reasoning.end]
    arguments = tokenizer.template_arguments
    return ModelDialect(
        markers=AnswerMarkers(texts, tokenizer.markers),
        format=format_,
        native=found is not None and format_ is found,
        reasoning=reasoning,
        switch=next((name for name in REASONING_SWITCHES if name in arguments), None),
        effort=EFFORT_ARGUMENT in arguments,
    )


def _rendered_call(tokenizer: Tokenizer) -> str | None:
    """A conversation with a call as the template renders it, without the template's text about tools before it; None if
    the template ignores tools or calls."""
    tool = ToolSpec(_TOOL, "", {"type": "object", "properties": {_VALUE: {"type": "string"}}})
    call = {"name": _TOOL, "arguments": {_VALUE: _VALUE}}
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "abcdefghi", "type": "function", "function": call}],
    }
    described = _render(tokenizer, [_USER], [tool])
    if described is None or _TOOL not in described:
        return None
    whole = _render(tokenizer, [_USER, message], [tool])
    # Mistral's template describes the tools before the last user message: compare what follows that message.
    after = "" if whole is None else whole[whole.rfind(_USER["content"]) :]
    return after if _TOOL in after else None


def _format_of(call: str) -> ToolFormat | None:
    if f"<function={_TOOL}>" in call:
        return QWEN3_CODER
    if OPEN in call:
        if re.search(re.escape(OPEN) + r"\s*" + _TOOL + r"\s*(\[CALL_ID\]\s*\w+\s*)?\[ARGS\]\s*\{", call):
            return MISTRAL_ARGS
        return MISTRAL if re.search(re.escape(OPEN) + r"\s*\[\s*\{", call) else None
    if "<tool_call>" in call and re.search(r'"name":\s*"' + _TOOL, call):
        return HERMES
    return LLAMA3_JSON if re.search(r'\{\s*"name":\s*"' + _TOOL + r'",\s*"parameters"', call) else None


def _reasoning_of(tokenizer: Tokenizer) -> ReasoningMarkers | None:
    """A model reasons if its template writes the reasoning of a message between the markers, or opens it."""
    markers = ReasoningMarkers()
    answer = {"role": "assistant", "content": "sentinelanswer", "reasoning_content": _VALUE}
    whole = _render(tokenizer, [_USER, answer], [])
    pattern = re.escape(markers.start) + r"\s*" + _VALUE + r"\s*" + re.escape(markers.end)
    if whole is not None and re.search(pattern, whole):
        return markers
    prompt = _render(tokenizer, [_USER], [])
    return markers if prompt is not None and prompt.rstrip().endswith(markers.start) else None


def _render(tokenizer: Tokenizer, messages: list[dict[str, Any]], tools: list[ToolSpec]) -> str | None:
    try:
        return tokenizer.render_chat(messages, tools=[tool.definition() for tool in tools] or None)
    except TemplateError:
        return None
