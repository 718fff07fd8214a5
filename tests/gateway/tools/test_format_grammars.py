"""The grammar of each format accepts what its parser reads, and nothing else behind a marker."""

from __future__ import annotations

import json

import pytest
import tokenizers

from engine.text.json_schemas import GrammarRefused
from gateway.tools.definitions import OutputFormat, ToolSpec
from gateway.tools.formats import FORMATS, ToolFormat
from gateway.tools.grammar import CallMode, loose_tools, output_grammar
from gateway.tools.parser import AnswerParser, AnswerSyntax
from gateway.tools.parts import ArgumentsDelta, ContentDelta
from gateway.tools.scanning import AnswerMarkers
from support.paths import EXAMPLES

llguidance = pytest.importorskip("llguidance")

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [ToolSpec("get_weather", parameters=CITY, strict=True), ToolSpec("now")]


class Vocabulary:
    """A small vocabulary, with or without the markers as ids."""

    def __init__(self, *, by_id: bool) -> None:
        text = (EXAMPLES / "models/laneway-tiny/tokenizer.json").read_text()
        encoder = tokenizers.Tokenizer.from_str(text)
        names = sorted({marker for format_ in FORMATS.values() for marker in format_.markers})
        if by_id:
            encoder.add_tokens(
                [tokenizers.AddedToken(name, special=name[0] == "[", normalized=False) for name in names]
            )
        self.encoder = encoder
        ids: dict[str, int] = {name: encoder.token_to_id(name) for name in names if by_id}
        self.markers = AnswerMarkers(names, ids)
        self._ll = llguidance.LLTokenizer(encoder.to_str())

    def accepts(self, grammar: str, text: str) -> bool:
        matcher = llguidance.LLMatcher(self._ll, grammar, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        ids = self.encoder.encode(text, add_special_tokens=False).ids
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


@pytest.fixture(scope="module", params=[False, True], ids=["markers as text", "markers as ids"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return Vocabulary(by_id=request.param)


def grammar_of(
    name: str,
    vocabulary: Vocabulary,
    *,
    required: bool = False,
    parallel: bool = True,
    output: OutputFormat | None = None,
    tools: list[ToolSpec] = TOOLS,
    loose: frozenset[str] = frozenset(),
) -> str:
    mode = CallMode(required=required, parallel=parallel, loose=loose)
    return FORMATS[name].grammar(tools, vocabulary.markers, mode, output)


def spell(format_: ToolFormat, *calls: tuple[str, dict[str, object]]) -> str:
    return format_.spell_calls(calls)


@pytest.mark.parametrize("name", FORMATS)
def test_auto_accepts_text_and_calls(name: str, vocabulary: Vocabulary) -> None:
    grammar = grammar_of(name, vocabulary)
    call = spell(FORMATS[name], ("get_weather", {"city": "Paris"}))
    assert vocabulary.accepts(grammar, "Hello {world}.\n")
    assert vocabulary.accepts(grammar, call)
    if FORMATS[name].markers:
        assert vocabulary.accepts(grammar, "I look.\n" + call)


@pytest.mark.parametrize("name", FORMATS)
def test_a_strict_tool_has_arguments_of_its_schema(name: str, vocabulary: Vocabulary) -> None:
    grammar = grammar_of(name, vocabulary)
    assert not vocabulary.accepts(grammar, spell(FORMATS[name], ("get_weather", {"town": "Paris"})))
    assert not vocabulary.accepts(grammar, spell(FORMATS[name], ("get_weather", {})))


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral", "mistral_args"])
def test_a_tool_without_a_schema_has_any_object(name: str, vocabulary: Vocabulary) -> None:
    grammar = grammar_of(name, vocabulary)
    assert vocabulary.accepts(grammar, spell(FORMATS[name], ("now", {"zone": ["</tool>", 1, None]})))


DAYS = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}


@pytest.mark.parametrize("name", FORMATS)
def test_a_tool_that_is_not_strict_follows_its_schema_unless_it_is_loose(name: str, vocabulary: Vocabulary) -> None:
    tools = [ToolSpec("f", parameters=DAYS)]
    wrong = spell(FORMATS[name], ("f", {"days": [1]}))
    followed = grammar_of(name, vocabulary, tools=tools)
    assert vocabulary.accepts(followed, spell(FORMATS[name], ("f", {"days": 1})))
    assert not vocabulary.accepts(followed, wrong)
    assert vocabulary.accepts(grammar_of(name, vocabulary, tools=tools, loose=frozenset({"f"})), wrong)


def test_schemas_that_cannot_be_followed_are_loose() -> None:
    long = {"type": "object", "properties": {f"key_{index}": {"enum": ["x" * 200]} for index in range(150)}}
    tools = [
        ToolSpec("strict", parameters={"not": {}}, strict=True),
        ToolSpec("custom", custom=True),
        ToolSpec("plain"),
        ToolSpec("keyword", parameters={"type": "object", "not": {}}),
        ToolSpec("text", parameters={"type": "string"}),
        ToolSpec("untyped", parameters={"properties": {"a": {"type": "string"}}}),
        ToolSpec("refused", parameters=CITY),
        ToolSpec("long", parameters=long),
        ToolSpec("as_long", parameters=long),
        ToolSpec("behind", parameters=CITY),
    ]
    assert loose_tools(tools, {"refused"}) == {"keyword", "text", "refused", "as_long"}


@pytest.mark.parametrize("name", FORMATS)
def test_no_other_tool_can_be_called(name: str, vocabulary: Vocabulary) -> None:
    grammar = grammar_of(name, vocabulary, tools=TOOLS[:1])
    assert not vocabulary.accepts(grammar, spell(FORMATS[name], ("now", {})))


@pytest.mark.parametrize("name", FORMATS)
def test_required_accepts_calls_alone(name: str, vocabulary: Vocabulary) -> None:
    grammar = grammar_of(name, vocabulary, required=True)
    call = spell(FORMATS[name], ("now", {}))
    assert vocabulary.accepts(grammar, call)
    assert not vocabulary.accepts(grammar, "Hello")
    assert not vocabulary.accepts(grammar, "")
    assert vocabulary.accepts(grammar, spell(FORMATS[name], ("now", {}), ("now", {})))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("required", [False, True])
def test_without_parallel_calls_one_call_ends_the_answer(name: str, required: bool, vocabulary: Vocabulary) -> None:
    grammar = grammar_of(name, vocabulary, required=required, parallel=False)
    assert vocabulary.accepts(grammar, spell(FORMATS[name], ("now", {})))
    assert not vocabulary.accepts(grammar, spell(FORMATS[name], ("now", {}), ("now", {})))


@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_with_an_output_format_is_its_json_or_calls(name: str, vocabulary: Vocabulary) -> None:
    grammar = grammar_of(name, vocabulary, output=OutputFormat("response_format", CITY))
    assert vocabulary.accepts(grammar, '{"city": "Paris"}')
    assert vocabulary.accepts(grammar, spell(FORMATS[name], ("now", {})))
    assert not vocabulary.accepts(grammar, "Paris")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "output",
    [
        OutputFormat("guided_regex", kind="regex", text="(?s)[a-z]+|a/b|.*x"),
        OutputFormat("guided_choice", kind="choice", choices=("ab", "a/b", "<tool", "{", "zx")),
    ],
    ids=["regex", "choice"],
)
def test_an_answer_with_a_text_format_is_that_text_or_calls(
    name: str, output: OutputFormat, vocabulary: Vocabulary
) -> None:
    grammar = grammar_of(name, vocabulary, output=output)
    for text in ("ab", "a/b", "zx"):
        assert vocabulary.accepts(grammar, text)
    assert not vocabulary.accepts(grammar, "AB")
    assert not vocabulary.accepts(grammar, "")
    call = spell(FORMATS[name], ("get_weather", {"city": "Paris"}))
    assert vocabulary.accepts(grammar, call)
    # The parser would read these as calls: no expression of the caller's avoids the schema of a tool.
    assert not vocabulary.accepts(grammar, call + "x")
    assert not vocabulary.accepts(grammar, spell(FORMATS[name], ("get_weather", {"town": "x"})) + "x")


@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_with_a_lark_grammar_is_its_text_or_calls(name: str, vocabulary: Vocabulary) -> None:
    output = OutputFormat("guided_grammar", kind="lark", text='start: call " " WORD\ncall: "a" | "b"\nWORD: /[a-z]+/')
    format_ = FORMATS[name]
    if not (format_.markers and vocabulary.markers.is_id(format_.markers[0])):
        with pytest.raises(GrammarRefused, match="'guided_grammar' beside 'tools'"):
            grammar_of(name, vocabulary, output=output)
        return
    grammar = grammar_of(name, vocabulary, output=output)
    assert vocabulary.accepts(grammar, "a xyz")
    assert not vocabulary.accepts(grammar, "c xyz")
    assert vocabulary.accepts(grammar, spell(format_, ("get_weather", {"city": "Paris"})))
    assert not vocabulary.accepts(grammar, spell(format_, ("get_weather", {"town": "Paris"})))


@pytest.mark.parametrize("whitespace_max", [0, 1, 4])
def test_white_space_between_json_tokens_is_bounded(whitespace_max: int, vocabulary: Vocabulary) -> None:
    output = OutputFormat("response_format", CITY)
    compact = OutputFormat("structured_outputs.json", CITY, compact=True)
    mode = CallMode(required=False, parallel=False, whitespace_max=whitespace_max)
    for grammar, most in (
        (FORMATS["hermes"].grammar(TOOLS, vocabulary.markers, mode, output), whitespace_max),
        (output_grammar(output, whitespace_max), whitespace_max),
        (output_grammar(compact, whitespace_max), 0),
    ):
        assert vocabulary.accepts(grammar, '{"city":' + " " * most + '"Paris"}')
        assert not vocabulary.accepts(grammar, '{"city":' + " " * (most + 1) + '"Paris"}')


@pytest.mark.parametrize("name", FORMATS)
def test_the_input_of_a_custom_tool_matches_its_pattern(name: str, vocabulary: Vocabulary) -> None:
    tool = ToolSpec("dial", custom=True, pattern="[0-9]{3}/[0-9]+")
    grammar = grammar_of(name, vocabulary, tools=[tool])
    assert vocabulary.accepts(grammar, spell(FORMATS[name], ("dial", {"input": "030/12"})))
    assert not vocabulary.accepts(grammar, spell(FORMATS[name], ("dial", {"input": "x"})))


PATCH = 'start: line+\nline: "+" /(.*)/ LF | "-" /[^\\n]+/ "\\n"\n%import common.LF'


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("required", [False, True])
def test_the_input_of_a_custom_tool_follows_its_lark_grammar(name: str, required: bool, vocabulary: Vocabulary) -> None:
    """Whole and in pieces, the parser decodes to a text that the grammar accepts."""
    tool = ToolSpec("patch", custom=True, lark=PATCH)
    format_ = FORMATS[name]
    grammar = grammar_of(name, vocabulary, tools=[tool, TOOLS[1]], required=required)
    text = '+a "b" \\ {</parameter>}\n-\t<x>é😀\n+\n'
    answer = spell(format_, ("patch", {"input": text}))
    if name == "qwen3_coder":
        value = json.dumps(text, ensure_ascii=False).replace("<", "\\u003c")
        answer = f"<tool_call>\n<function=patch>\n<parameter=input>\n{value}\n</parameter>\n</function>\n</tool_call>"
    answer = answer.replace("\\u00e9", "é").replace("\\ud83d\\ude00", "😀")
    assert vocabulary.accepts(grammar, answer)
    assert not vocabulary.accepts(grammar, answer.replace("+a", "*a"))
    for pieces in ([answer], list(answer)):
        syntax = AnswerSyntax(AnswerMarkers(format_.markers, {}), None, False, format_, {"patch": tool})
        parser = AnswerParser(syntax)
        for piece in pieces:
            parser.push_text(piece)
        parser.finish()
        parts = parser.take_parts()
        assert "".join([part.text for part in parts if isinstance(part, ArgumentsDelta)]) == text
        assert not [part for part in parts if isinstance(part, ContentDelta)]


def test_values_of_qwen3_coder_follow_the_types_of_the_schema(vocabulary: Vocabulary) -> None:
    schema = {
        "type": "object",
        "properties": {
            "unit": {"type": "string", "enum": ["C", "F"]},
            "days": {"type": "integer"},
            "note": {"type": "string"},
        },
        "required": ["unit", "days"],
    }
    grammar = grammar_of("qwen3_coder", vocabulary, tools=[ToolSpec("f", parameters=schema, strict=True)])
    format_ = FORMATS["qwen3_coder"]
    assert vocabulary.accepts(grammar, spell(format_, ("f", {"unit": "C", "days": 3})))
    assert vocabulary.accepts(grammar, spell(format_, ("f", {"unit": "C", "days": 3, "note": 'a "b"\n<c>'})))
    assert not vocabulary.accepts(grammar, spell(format_, ("f", {"unit": "K", "days": 3})))
    assert not vocabulary.accepts(grammar, spell(format_, ("f", {"unit": "C", "days": "many"})))


def test_newer_mistral_may_write_an_id_of_its_own(vocabulary: Vocabulary) -> None:
    grammar = grammar_of("mistral_args", vocabulary, required=True)
    assert vocabulary.accepts(grammar, "[TOOL_CALLS]now[CALL_ID]abc123XYZ[ARGS]{}")
    assert not vocabulary.accepts(grammar, "[TOOL_CALLS]now[CALL_ID]abc[ARGS]{}")
    assert not vocabulary.accepts(grammar, "[TOOL_CALLS]now[CALL_ID]abc123XYZ{}")


def test_definitions_are_one_line_of_json_for_the_template() -> None:
    assert json.loads(json.dumps(TOOLS[0].definition()))["function"]["parameters"] == CITY
