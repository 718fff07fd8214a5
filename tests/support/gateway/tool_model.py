"""A model directory whose chat template knows tools and reasoning, in Qwen3's way, and whose vocabulary has the markers
as ids. It has no weights: the engine of these tests is scripted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from engine.protocol.frames import EngineUsage, Finished, Submit, Tokens
from engine.text.tokenizer import Tokenizer
from support.gateway.scripted_engine import HELD, Said
from support.paths import EXAMPLES

MARKERS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
SMALL_MODEL = EXAMPLES / "models" / "laneway-tiny"
TEMPLATE = """\
{{- bos_token }}
{%- if tools %}
    {{- '<|system|># Tools\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '\\n</tools>\\nFor each call write <tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call>' + eos_token }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|assistant|>' }}
        {%- if message.reasoning_content is string %}
            {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '<|user|><tool_response>\\n' + message.content + '\\n</tool_response>' + eos_token }}
    {%- else %}
        {{- ('<|system|>' if message.role == 'system' else '<|user|>') + message.content + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""


def make_tool_model(directory: Path, template: str = TEMPLATE) -> Path:
    """Write the directory. Returns it."""
    directory.mkdir(parents=True)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        shutil.copy(SMALL_MODEL / name, directory / name)
    encoder = tokenizers.Tokenizer.from_file(str(SMALL_MODEL / "tokenizer.json"))
    encoder.add_tokens([tokenizers.AddedToken(name, special=False, normalized=False) for name in MARKERS])
    (directory / "tokenizer.json").write_text(encoder.to_str())
    config = json.loads((directory / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text(template)
    return directory


def says_text(
    tokenizer: Tokenizer, text: str, *, reason: str = "stop", held_after: str | None = None
) -> Callable[[Submit], Said]:
    """A script that answers every request with this text, one id a frame, its markers as ids where the vocabulary has
    them. It ends like a model: with its end id, or with `reason` "length" after `max_tokens` ids. The ids behind the
    text's beginning `held_after` are HELD."""
    ids = tokenizer.encode(text)
    if reason == "stop":
        ids.append(min(tokenizer.eos_ids))
    return says_ids(ids, reason=reason, held_from=None if held_after is None else len(tokenizer.encode(held_after)))


def says_ids(ids: Sequence[int], *, reason: str = "stop", held_from: int | None = None) -> Callable[[Submit], Said]:
    def script(submit: Submit) -> Said:
        given = list(ids)[: submit.max_tokens]
        ended = reason if len(given) == len(ids) else "length"
        frames: list[Any] = [Tokens(step, [submit.handle], [id_]) for step, id_ in enumerate(given)]
        usage = EngineUsage(completion_tokens=len(given))
        frames.append(Finished(submit.handle, ended, usage))  # type: ignore[arg-type]
        return [(0.0 if held_from is None or index < held_from else HELD, frame) for index, frame in enumerate(frames)]

    return script
