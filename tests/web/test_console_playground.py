"""The playground's tools, schemas and reasoning: calls stream as cards, their results continue the conversation, and
what a model does not serve is disabled or refused by its name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from billing.accounts import prices
from engine.protocol.frames import ModelInfo, Submit
from engine.text.tokenizer import Tokenizer
from support.gateway.scripted_engine import ScriptedStack
from support.gateway.tool_model import make_tool_model, says_text
from support.stack import MODEL
from support.web.console import BILLING, TINY, Console
from support.web.pages import serious_faults

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

Opens = Callable[..., "Page"]
PLAIN = "plain"  # its chat template knows no tools
THOUGHT = "<think>\nParis is in France.\n</think>\n\n"
HEAD = 'I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Pa'
CALL = HEAD + 'ris", "unit": "celsius"}}\n</tool_call>'
ARGUMENTS = '{\n  "city": "Paris",\n  "unit": "celsius"\n}'
RESULT = '{"degrees": 21}'


class PlaygroundStack(ScriptedStack):
    """With a model that knows tools and reasoning, and PLAIN."""

    def prepare(self) -> None:
        super().prepare()
        multipliers = {"premium": 3, "standard": 1, "batch": 1}
        self.write(
            lambda connection: prices.publish(
                connection, subject=PLAIN, input=20_000, cached_input=20_000, output=60_000, multipliers=multipliers
            )
        )

    def start_engine(self) -> None:
        super().start_engine()
        self.scripted.models = [ModelInfo(name, "d" * 64, 2048, 49152, 16, 1000) for name in (MODEL, PLAIN)]


@dataclass
class Scripted:
    stack: PlaygroundStack
    tokenizer: Tokenizer

    def says(self, *texts: str, held_after: str | None = None) -> None:
        """One text for each request from now on; the first is held behind its beginning `held_after`."""
        first, *later = texts
        scripts = [says_text(self.tokenizer, first, held_after=held_after)]
        scripts += [says_text(self.tokenizer, text) for text in later]
        self.stack.says(lambda submit: scripts.pop(0)(submit))

    def submitted(self) -> list[Submit]:
        return self.stack.scripted.submits

    def prompt(self) -> str:
        """Of the last request, as the model reads it."""
        return self.tokenizer.decode(self.submitted()[-1].prompt_ids, skip_special_tokens=False)


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    directory = tmp_path_factory.mktemp("playground")
    model = make_tool_model(directory / "model")
    toml = f'[[models]]\nname = "{PLAIN}"\npath = "{TINY}"\n{BILLING}'
    stack = PlaygroundStack(directory, f"sqlite:///{directory}/laneway.db", model, toml=toml)
    made = Console.over(stack, days=1, last_hour=5)
    yield made
    stack.stop()


@pytest.fixture(scope="module")
def scripted(console: Console) -> Scripted:
    assert isinstance(console.stack, PlaygroundStack)
    return Scripted(console.stack, Tokenizer.load(console.stack.model_dir))


def open_bench(page: Page, model: str = MODEL, compare: str = "") -> None:
    page.get_by_role("combobox", name="Call as").click()
    page.get_by_role("option", name="hooli").click()
    page.get_by_role("button", name="Create a key").click()
    page.get_by_role("button", name="Create key").click()
    page.get_by_label("Model", exact=True).select_option(model)
    page.get_by_label("Compare with").select_option(compare)
    page.get_by_label("Prompt").fill("Weather in Paris?")


def open_tools(page: Page) -> None:
    """With the keyboard."""
    page.locator("summary", has_text="Tools").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Tool definitions")).to_be_visible()


def send(page: Page, verb: str = "Send") -> None:
    page.get_by_role("button", name=verb, exact=True).click()


def answer_of(page: Page, model: str = MODEL) -> Locator:
    return page.get_by_label(f"Response of {model}")


def test_a_call_streams_and_its_result_continues_the_conversation(scripted: Scripted, open_page: Opens) -> None:
    page = open_page("/admin/playground")
    open_bench(page)
    open_tools(page)
    page.get_by_role("button", name="Add the example get_weather").click()
    page.get_by_text("1 tool: get_weather.").wait_for()
    scripted.says(THOUGHT + CALL, "It is 21 degrees.", held_after=THOUGHT + HEAD)
    send(page)
    answer = answer_of(page)
    expect(answer.get_by_role("region", name="Text of the reasoning")).to_have_text("Paris is in France.")
    arguments = answer.get_by_role("region", name="Arguments of get_weather")
    expect(arguments).to_have_text(re.compile('^\\{"city": "P'))
    expect(answer.locator(".call").get_by_text("streaming")).to_be_visible()
    assert answer.get_by_label("Result of get_weather").count() == 0
    scripted.stack.scripted.release_held()
    answer.get_by_text("done: tool_calls").wait_for()
    expect(arguments).to_have_text(ARGUMENTS, use_inner_text=True)
    expect(answer.locator(".answer-text")).to_have_text("I look.\n", use_inner_text=True)
    call_id = answer.locator(".call .id code").inner_text()
    assert call_id.startswith("call_")
    [reasoned] = re.findall(r"Reasoning\s+(\d+) tokens", answer.locator(".reasoning summary").inner_text())
    assert 0 < int(reasoned) <= len(scripted.tokenizer.encode(THOUGHT))
    assert serious_faults(page) == []

    # A result is required; then it continues the conversation, and the focus is on the answer.
    send(page, "Send the result")
    answer.get_by_role("alert").get_by_text("Enter the result of get_weather.").wait_for()
    expect(answer.get_by_label("Result of get_weather")).to_be_focused()
    page.keyboard.type(RESULT)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(answer.get_by_role("heading", level=2)).to_be_focused()
    expect(answer.get_by_role("region", name="Result of get_weather")).to_have_text(RESULT)
    answer.get_by_text("It is 21 degrees.").wait_for()
    answer.get_by_text("done: stop").wait_for()
    for text in ("Weather in Paris?", "Paris is in France.", '"city": "Paris"', f"<tool_response>\n{RESULT}\n"):
        assert text in scripted.prompt()
    expect(answer.get_by_text("View the request with these calls")).to_be_visible()
    assert serious_faults(page) == []


def test_a_fault_in_the_definitions_has_its_line_and_nothing_is_sent(scripted: Scripted, open_page: Opens) -> None:
    page = open_page("/admin/playground")
    open_bench(page)
    open_tools(page)
    page.get_by_label("Tool definitions").fill('[\n  {"type": "function",}\n]')
    fault = "Line 2, column 23: expected a name in quotation marks, found }."
    page.get_by_text(fault).wait_for()
    page.locator("summary", has_text="Tools").click()
    expect(page.get_by_label("Tool definitions")).to_be_hidden()
    before = len(scripted.submitted())
    send(page)
    page.get_by_role("alert").get_by_text(fault).wait_for()  # the field is open again
    expect(page.get_by_label("Tool definitions")).to_be_focused()
    page.get_by_label("Tool definitions").fill('[{"type": "function", "function": {}}]')
    page.get_by_text("tools[0].function.name must be the name of the tool.").wait_for()
    page.get_by_label("Tool definitions").fill("")
    page.get_by_label("JSON schema of the answer").fill("{")
    send(page)
    page.get_by_role("alert").get_by_text("Line 1, column 2").wait_for()
    assert len(scripted.submitted()) == before
    assert serious_faults(page) == []


def test_a_model_without_tools_has_the_field_disabled_or_refuses_by_name(scripted: Scripted, open_page: Opens) -> None:
    page = open_page("/admin/playground", width=390, dark=True)
    open_bench(page, MODEL, compare=PLAIN)
    open_tools(page)
    page.get_by_role("button", name="Add the example get_weather").click()
    page.get_by_text("the model plain has no tools and refuses the request").wait_for()
    page.expected.append(400)  # type: ignore[attr-defined]
    scripted.says(THOUGHT + CALL)
    send(page, "Send to both")
    answer_of(page, PLAIN).get_by_role("alert").get_by_text(f"'{PLAIN}' knows no tools").wait_for()
    answer_of(page).get_by_label("Result of get_weather").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert serious_faults(page) == []

    page.get_by_label("Compare with").select_option("")
    page.get_by_label("Model", exact=True).select_option(PLAIN)
    page.get_by_text("Disabled: the model plain has no tools.").wait_for()
    expect(page.get_by_label("Tool definitions")).to_be_disabled()
    expect(page.get_by_label("Tool choice")).to_be_disabled()
    expect(page.get_by_label("JSON schema of the answer")).to_be_enabled()
    scripted.says("Plain text.")
    send(page)
    answer_of(page, PLAIN).get_by_text("Plain text.").wait_for()
    assert serious_faults(page) == []


def test_a_required_call_that_was_cut_and_a_schema(scripted: Scripted, open_page: Opens) -> None:
    page = open_page("/admin/playground")
    open_bench(page)
    open_tools(page)
    page.get_by_role("button", name="Add the example get_weather").click()
    page.get_by_label("Tool choice").select_option("required")
    page.get_by_label("max_tokens").fill(str(len(scripted.tokenizer.encode(HEAD))))
    scripted.says(CALL)
    send(page)
    answer = answer_of(page)
    answer.get_by_text("done: length").wait_for()
    answer.get_by_text("not whole").wait_for()
    expect(answer.get_by_role("region", name="Arguments of get_weather")).to_have_text(re.compile('^\\{"city": "P'))
    assert answer.get_by_label("Result of get_weather").count() == 0

    # The next request of a required call may answer with text.
    page.get_by_label("max_tokens").fill("200")
    scripted.says(CALL + CALL[CALL.index("\n") :], "Done.")
    send(page)
    answer.get_by_text("has the tool choice auto").wait_for()
    required = scripted.submitted()[-1].guide
    answer.get_by_label("Result of get_weather, call 1").fill("one")
    answer.get_by_label("Result of get_weather, call 2").fill("two")
    # A continuation that failed is sent again with the same results.
    page.expected.append(503)  # type: ignore[attr-defined]
    refusal = '{"error": {"message": "The queue is full."}}'
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=503, body=refusal), times=1)
    send(page, "Send the results")
    answer.get_by_role("alert").get_by_text("The queue is full.").wait_for()
    answer.get_by_role("button", name="Try again").click()
    answer.get_by_text("Done.").wait_for()
    assert "<tool_response>\none\n" in scripted.prompt()
    assert "<tool_response>\ntwo\n" in scripted.prompt()
    continued = scripted.submitted()[-1].guide
    assert required is not None
    assert continued is not None
    assert required.grammar != continued.grammar

    page.get_by_label("Tool definitions").fill("")
    schema: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 2**63 - 1}}}
    page.get_by_label("JSON schema of the answer").fill(json.dumps(schema))
    scripted.says('{"n": 1}')
    send(page)
    answer.get_by_text('{"n": 1}').wait_for()
    guide = scripted.submitted()[-1].guide
    assert guide is not None
    assert str(2**63 - 1) in (guide.grammar or "")


def test_the_settings_of_reasoning_are_sent_where_a_model_reasons(scripted: Scripted, open_page: Opens) -> None:
    page = open_page("/admin/playground")
    open_bench(page, PLAIN)
    assert page.get_by_role("group", name="Reasoning").count() == 0
    page.get_by_label("Compare with").select_option(MODEL)
    settings = page.get_by_role("group", name="Reasoning")
    settings.get_by_text("plain does not reason.").wait_for()
    page.get_by_label("Model", exact=True).select_option(MODEL)
    page.get_by_label("Compare with").select_option("")
    expect(settings.get_by_text("does not reason")).to_have_count(0)

    settings.get_by_label("max_reasoning_tokens").fill("few")
    send(page)
    settings.get_by_role("alert").get_by_text("'few' is not a number.").wait_for()
    settings.get_by_label("max_reasoning_tokens").fill("5")
    settings.get_by_label("reasoning_effort").select_option("high")
    settings.get_by_label("Reasoning in the answer").select_option("left out")
    scripted.says(THOUGHT + "Paris is sunny.")
    send(page)
    answer = answer_of(page)
    answer.get_by_text("Paris is sunny.").wait_for()
    answer.get_by_text("done: stop").wait_for()
    assert answer.get_by_role("region", name="Text of the reasoning").count() == 0
    expect(answer.get_by_text("Without effect on this answer: reasoning_effort")).to_be_visible()  # of the template
    guide = scripted.submitted()[-1].guide
    assert guide is not None
    assert guide.reasoning_max == 5
    assert serious_faults(page) == []

    settings.get_by_label("reasoning_effort").select_option("none")
    settings.get_by_label("max_reasoning_tokens").fill("")
    scripted.says("Sunny.")
    send(page)
    answer.get_by_text("Sunny.", exact=True).wait_for()
    assert "<think>\n\n</think>" in scripted.prompt()
    assert answer.get_by_text("Without effect").count() == 0

    # A model that does not reason gets none of the settings.
    page.get_by_label("Model", exact=True).select_option(PLAIN)
    expect(settings).to_have_count(0)
    scripted.says("Plain text.")
    send(page)
    answer_of(page, PLAIN).get_by_text("Plain text.").wait_for()
    assert answer_of(page, PLAIN).get_by_text("Without effect").count() == 0
