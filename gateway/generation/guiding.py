"""Tools, an output format and reasoning for one model: the engine's Guide, and the syntax of its answers."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence

import msgspec

from engine.protocol.frames import Guide
from engine.text.grammars import lark_grammar
from engine.text.json_schemas import GrammarRefused, json_schema_grammar
from gateway.catalog.served_models import ServedModel
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.large_work.jobs import GrammarPart
from gateway.tools.definitions import OutputFormat, Tooling
from gateway.tools.escaped_lark import escaped_lark
from gateway.tools.grammar import CallMode, arguments_schema, loose_tools, output_grammar
from gateway.tools.model_dialect import ModelDialect
from gateway.tools.parser import AnswerSyntax, ReasoningMarkers

# The prompt's last ids, among which a template opens the reasoning.
PROMPT_END_IDS = 16


class AnswerPlan(msgspec.Struct, frozen=True):
    """`guide`: None if the engine need not guide the answer. `syntax`: None if the answer is text alone. `param`: the
    field that a refused grammar is of. `loose`: the tools whose schema the grammar does not follow, although a strict
    tool's would be. `ignored`: fields of the request that this model cannot follow."""

    guide: Guide | None = None
    syntax: AnswerSyntax | None = None
    param: str = ""
    loose: frozenset[str] = frozenset()
    ignored: tuple[str, ...] = ()


PLAIN = AnswerPlan()


def check_tools(model: ServedModel, tooling: Tooling | None) -> None:
    """Raises UnsupportedParameter if the request has tools and the model cannot be offered any."""
    if tooling is not None and tooling.callable and model.dialect.format is None:
        raise UnsupportedParameter(
            f"Unsupported parameter: {tooling.param!r}. The model {model.name!r} knows no tools: neither its chat "
            "template nor the operator's configuration has a format for calls; leave it out.",
            param=tooling.param,
        )


def plan_answer(
    model: ServedModel,
    tooling: Tooling | None,
    prompt_ids: Sequence[int],
    whitespace_max: int,
    refused: Collection[str] = (),
) -> AnswerPlan:
    """`tooling`: None if the answer is any text. `whitespace_max`: white space characters between two JSON tokens.
    `refused`: names of tools that are not strict and whose schema cannot be compiled. Raises InvalidRequest."""
    if tooling is None:
        return PLAIN
    if tooling.text_only:
        assert tooling.output is not None
        return AnswerPlan(Guide(grammar=_output_grammar(tooling.output, whitespace_max)), param=tooling.output.param)
    check_tools(model, tooling)
    dialect = model.dialect
    tools = tooling.callable
    format_ = dialect.format if tools else None
    opened = dialect.reasoning is not None and _opens_reasoning(model, dialect.reasoning, prompt_ids)
    syntax = None
    if format_ is not None or dialect.reasoning is not None:
        syntax = AnswerSyntax(
            markers=dialect.markers,
            reasoning=dialect.reasoning,
            reasoning_open=opened,
            format=format_,
            tools={tool.name: tool for tool in tools},
            id_prefix=tooling.id_prefix,
        )
    loose = loose_tools(tools, refused)
    grammar, param = _grammar(dialect, tooling, whitespace_max, loose)
    return AnswerPlan(_guide(model, tooling, grammar, opened), syntax, param, loose, _ignored(dialect, tooling))


def grammar_parts(tooling: Tooling | None, whitespace_max: int, loose: Collection[str]) -> list[GrammarPart]:
    """The grammars inside the grammar of an answer with tools, to find the field that a refusal is of. `loose`: tools
    whose schema is not followed. Raises InvalidRequest."""
    if tooling is None or not tooling.callable:
        return []
    parts = []
    if tooling.output is not None:
        parts.append(GrammarPart(_output_grammar(tooling.output, whitespace_max), tooling.output.param))
    for tool in tooling.callable:
        if tool.name not in loose:
            with _refusing(tool.param or tooling.param):
                if tool.lark is not None:
                    grammar = lark_grammar(escaped_lark(tool.lark))
                else:
                    grammar = json_schema_grammar(arguments_schema(tool), whitespace_max=whitespace_max)
            loose_tool = "" if tool.strict or tool.custom else tool.name
            parts.append(GrammarPart(grammar, tool.param or tooling.param, loose_tool))
    return parts


def _grammar(
    dialect: ModelDialect, tooling: Tooling, whitespace_max: int, loose: Collection[str]
) -> tuple[str | None, str]:
    """The grammar, and the field that it is of. Raises InvalidRequest."""
    tools, output = tooling.callable, tooling.output
    if not tools:
        return (None, "") if output is None else (_output_grammar(output, whitespace_max), output.param)
    assert dialect.format is not None
    mode = CallMode(
        required=tooling.choice.mode == "required",
        parallel=tooling.choice.parallel,
        whitespace_max=whitespace_max,
        loose=loose,
    )
    with _refusing(tooling.param):
        try:
            return dialect.format.grammar(tools, dialect.markers, mode, output), tooling.param
        except GrammarRefused:
            grammar_parts(tooling, whitespace_max, loose)  # names the field, if a part is refused by itself
            raise


def _output_grammar(output: OutputFormat, whitespace_max: int) -> str:
    """Raises InvalidRequest."""
    with _refusing(output.param):
        return output_grammar(output, whitespace_max)


@contextlib.contextmanager
def _refusing(param: str) -> Iterator[None]:
    """A refused grammar is an InvalidRequest of this field."""
    try:
        yield
    except GrammarRefused as error:
        raise InvalidRequest(f"{param!r} cannot be served: {error}.", param=param) from None


def _guide(model: ServedModel, tooling: Tooling, grammar: str | None, opened: bool) -> Guide | None:
    reasoning, limit = model.dialect.reasoning, tooling.reasoning.tokens_max
    if reasoning is None:
        return None if grammar is None else Guide(grammar=grammar)
    if grammar is None and limit is None:
        return None
    return Guide(
        grammar=grammar,
        reasoning_start_ids=[] if opened else _ids_of(model, reasoning.start),
        reasoning_end_ids=_ids_of(model, reasoning.end),
        reasoning_open=opened,
        reasoning_max=limit,
    )


def _ids_of(model: ServedModel, marker: str) -> list[int]:
    id_ = model.tokenizer.markers.get(marker)
    return model.tokenizer.encode(marker) if id_ is None else [id_]


def _opens_reasoning(model: ServedModel, reasoning: ReasoningMarkers, prompt_ids: Sequence[int]) -> bool:
    """Whether the prompt ends inside the reasoning."""
    end = model.tokenizer.decode(prompt_ids[-PROMPT_END_IDS:], skip_special_tokens=False)
    return end.rstrip().endswith(reasoning.start)


def _ignored(dialect: ModelDialect, tooling: Tooling) -> tuple[str, ...]:
    reasoning = tooling.reasoning
    ignored = []
    if dialect.reasoning is None:
        if reasoning.enabled or reasoning.tokens_max is not None:
            ignored.append(reasoning.field)
        if reasoning.effort not in (None, "none"):
            ignored.append(reasoning.effort_field)
    else:
        if reasoning.enabled is False and dialect.switch is None and reasoning.effort == "none":
            ignored.append(reasoning.field)
        if reasoning.effort not in (None, "none") and not dialect.effort:
            ignored.append(reasoning.effort_field)
    return tuple(dict.fromkeys(ignored))
