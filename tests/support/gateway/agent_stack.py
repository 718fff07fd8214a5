"""A gateway whose scripted engine answers agents: by the case that a prompt names, and by how many answers the prompt
has already. Every answer to a guided request is checked against the request's grammar.

tests/programs/clients/record_agents.py runs agent frameworks against it and records their requests;
tests/clients/test_recorded_agents.py sends the requests again.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from engine.guided.mask_threads import MaskPool
from engine.guided.matcher import GuidedText
from engine.protocol.frames import ModelInfo, Submit
from engine.text.grammars import GrammarTokenizer, compile_grammar, run_with_stack
from engine.text.tokenizer import Tokenizer
from support.gateway.scripted_engine import Said, ScriptedStack
from support.gateway.tool_model import make_tool_model, says_text
from support.stack import MODEL

CONTEXT_TOKENS = 262_144
# Ids that the grammar's vocabulary has room for: the small model's and the markers that make_tool_model adds.
VOCABULARY = 4096


def call(name: str, **arguments: Any) -> str:
    """A call as the model of make_tool_model writes it."""
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


PARIS, ROME, NOW = call("get_weather", city="Paris"), call("get_weather", city="Rome"), call("now")
FORECAST = {"city": "Paris", "sky": "grey"}
FORECAST_TEXT = json.dumps(FORECAST)
# The files of agent_claude_code.py. Its tools need absolute paths.
NOTES, OTHER_NOTES = "/tmp/laneway-agent/repository/notes.txt", "/tmp/laneway-agent/repository/more.txt"
# The patch of agent_codex.py: as its tool, its shell and its code receive it.
PATCH = "*** Begin Patch\n*** Update File: notes.txt\n@@\n-one\n+two\n*** End Patch\n"
PATCH_COMMAND = f"apply_patch <<'END'\n{PATCH}END\n"
READ_BOTH = f"{call('exec_command', cmd='cat notes.txt')}\n{call('exec_command', cmd='cat more.txt')}"
READ_CODE = 'const read = await tools.exec_command({cmd: "cat notes.txt"}); text(read.output);\n'
PATCH_CODE = f"text(await tools.apply_patch({json.dumps(PATCH)}));\n"
THOUGHT = "<think>\nParis is in France.\n</think>\n\n"
# The answers of each case, in turn. A client chooses its case by the first words of its prompt: "Case loop."
ANSWERS = {
    "single": [PARIS, "It is 12 degrees in Paris."],
    "parallel": [f"{PARIS}\n{ROME}", "It is 12 degrees in Paris and in Rome."],
    "streamed": [f"I look.\n{PARIS}\n{NOW}", "It is 12 degrees in Paris at noon."],
    "no_arguments": [NOW, "It is noon."],
    "forced": [PARIS, "It is 12 degrees in Paris."],
    "none": ["I call nothing."],
    "talk": ["Hello.", "Hello again."],
    "strict": [PARIS, "It is 12 degrees in Paris."],
    "cut": [call("get_weather", city="Paris " * 100), "It was cut."],
    "loop": [PARIS, f"The time too.\n{NOW}", "It is 12 degrees in Paris at noon."],
    "failing": [call("get_weather", city="Nowhere"), PARIS, "It is 12 degrees in Paris."],
    "thinking": [f"{THOUGHT}{PARIS}", f"{THOUGHT}It is 12 degrees in Paris."],
    "schema": [FORECAST_TEXT],
    "forecast": [call("Forecast", **FORECAST)],
    "forecast_stream": [call("PartialForecast", **FORECAST)],
    "forecast_cut": [call("Forecast", city="Paris " * 100, sky="grey")],
    "forecast_retry": [call("CheckedForecast", city="paris", sky="grey"), call("CheckedForecast", **FORECAST)],
    "forecast_parallel": [f"{call('Forecast', **FORECAST)}\n{call('Forecast', city='Rome', sky='clear')}"],
    "forecast_markdown": [f"```json\n{FORECAST_TEXT}\n```"],
    "schema_after_tool": [PARIS, FORECAST_TEXT],
    "result_after_tool": [PARIS, call("final_result", **FORECAST)],
    "smol_tools": [PARIS, call("final_answer", answer="It is 12 degrees in Paris.")],
    "smol_loop": [PARIS, NOW, call("final_answer", answer="It is 12 degrees in Paris at noon.")],
    "smol_parallel": [f"{PARIS}\n{ROME}", call("final_answer", answer="It is 12 degrees in Paris and in Rome.")],
    "smol_code": ["Thought: I look.\n<code>\nfinal_answer(get_weather('Paris'))\n</code>"],
    "handoff": [call("transfer_to_clock"), NOW, "It is noon."],
    "claude_edit": [
        f"I read.\n{call('Read', file_path=NOTES)}\n{call('Read', file_path=OTHER_NOTES)}",
        f"{THOUGHT}{call('Edit', file_path=NOTES, old_string='one', new_string='two')}",
        "The notes say two.",
    ],
    "codex_edit": [
        f"I read.\n{READ_BOTH}",
        f"{THOUGHT}{call('exec_command', cmd=PATCH_COMMAND)}",
        "The notes say two.",
    ],
    "codex_patch": [f"{THOUGHT}{READ_BOTH}", f"I write.\n{call('apply_patch', input=PATCH)}", "The notes say two."],
    "codex_code": [
        call("functions__exec", input=READ_CODE),
        f"{THOUGHT}{call('functions__exec', input=PATCH_CODE)}",
        "The notes say two.",
    ],
    "snippet": [call("get_weather", city="Lisbon"), "It is sunny in Lisbon."],
}  # fmt: skip
SNIPPET_QUESTION = "What is the weather in Lisbon?"  # of docs/users/agents.md, instead of "Case snippet."


# Answers to the requests without tools that some agents send beside their loop.
WITHOUT_TOOLS = {"claude_edit": '{"title": "Edit the notes"}'}
_CASE = re.compile(rf"Case ({'|'.join(ANSWERS)})\.")


class AgentStack(ScriptedStack):
    """`start()` makes the model too. `outside`: answers that the grammar of their request does not allow, with the case
    and the reason."""

    def __init__(self, directory: Path) -> None:
        model = make_tool_model(directory / "model")
        super().__init__(directory, f"sqlite:///{directory}/laneway.db", model)
        self.outside: list[str] = []
        self._tokenizer = Tokenizer.load(model)
        self._grammar_tokenizer = GrammarTokenizer.load(model, VOCABULARY)

    def start_engine(self) -> None:
        super().start_engine()
        self.scripted.models = [ModelInfo(MODEL, "d" * 64, CONTEXT_TOKENS, VOCABULARY, 16, 100_000)]
        self.scripted.script = self._answer

    def _answer(self, submit: Submit) -> Said:
        prompt = self._tokenizer.decode(submit.prompt_ids, skip_special_tokens=False)
        found = _CASE.search(prompt)
        case = found[1] if found is not None else "snippet" if SNIPPET_QUESTION in prompt else "none"
        answers = ANSWERS[case]
        if case in WITHOUT_TOOLS and "<tools>" not in prompt:
            return self._say(submit, case, WITHOUT_TOOLS[case])
        turn = prompt.count("<|assistant|>") - 1
        if turn >= len(answers):
            self.outside.append(f"{case}: turn {turn} has no answer")
        return self._say(submit, f"{case}: turn {turn}", answers[min(turn, len(answers) - 1)])

    def _say(self, submit: Submit, where: str, text: str) -> Said:
        if reason := self._refusal(submit, text):
            self.outside.append(f"{where}: {reason}")
        return says_text(self._tokenizer, text)(submit)

    def _refusal(self, submit: Submit, text: str) -> str:
        """Why the grammar of the request does not allow the text; empty: it does."""
        guide = submit.guide
        if guide is None or guide.grammar is None:
            return ""
        compiled = run_with_stack(lambda: compile_grammar(self._grammar_tokenizer, guide.grammar or ""))
        stop_ids = frozenset(self._tokenizer.eos_ids)
        guided, pool = GuidedText(guide, compiled, self._grammar_tokenizer, VOCABULARY, stop_ids), MaskPool(1)
        ids = [*self._tokenizer.encode(text), min(stop_ids)][: submit.max_tokens]
        for count, id_ in enumerate(ids):
            guided.sync_ids(ids, count)
            guided.fill_words(pool.consume_ids)
            if guided.error or not int(guided.words[id_ >> 5]) >> (id_ & 31) & 1:
                said = self._tokenizer.decode(ids[: count + 1], skip_special_tokens=False)
                return f"the grammar does not allow the last id of {said!r}: {guided.error or guide.grammar}"
        return ""


# ---- an answer as a client reads it


def read_answer(path: str, content: bytes) -> dict[str, Any]:
    """The parts of a whole answer or a stream: its text, its calls (name and arguments) and its endings, without
    ids."""
    text = content.decode()
    whole_readers = {"/v1/messages": _read_message, "/v1/responses": _read_response}
    if not text.startswith(("data:", "event:", ":")):
        return whole_readers.get(path, _read_chat)(json.loads(text))
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    readers = {"/v1/messages": _read_message_events, "/v1/responses": _read_response_events}
    return readers.get(path, _read_chat_chunks)(events)


def _read_chat(whole: dict[str, Any]) -> dict[str, Any]:
    [choice] = whole["choices"]
    calls = [
        [one["function"]["name"], one["function"]["arguments"]] for one in choice["message"].get("tool_calls") or ()
    ]
    return {"ending": choice["finish_reason"], "text": choice["message"]["content"] or "", "calls": calls}


def _read_chat_chunks(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    read: dict[str, Any] = {"ending": None, "text": "", "calls": []}
    for choice in [choice for chunk in chunks for choice in chunk["choices"]]:
        read["ending"] = choice["finish_reason"] or read["ending"]
        read["text"] += choice["delta"].get("content") or ""
        for delta in choice["delta"].get("tool_calls") or ():
            if delta["index"] == len(read["calls"]):
                read["calls"].append([delta["function"]["name"], ""])
            read["calls"][delta["index"]][1] += delta["function"]["arguments"]
    return read


def _read_response(whole: dict[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = {"ending": whole["status"], "text": "", "calls": []}
    for item in whole["output"]:
        match item:
            case {"type": "message"}:
                read["text"] += "".join([part["text"] for part in item["content"]])
            case {"type": "function_call"} | {"type": "custom_tool_call"}:
                read["calls"].append([item["name"], item.get("arguments", item.get("input"))])
    return read


def _read_response_events(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The output items are equal to the items of their events, which Codex reads."""
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    return _read_response({"status": events[-1]["response"]["status"], "output": items})


def _read_message(whole: dict[str, Any]) -> dict[str, Any]:
    calls = [[one["name"], json.dumps(one["input"])] for one in whole["content"] if one["type"] == "tool_use"]
    text = "".join([one["text"] for one in whole["content"] if one["type"] == "text"])
    return {"ending": whole["stop_reason"], "text": text, "calls": calls}


def _read_message_events(events: list[dict[str, Any]]) -> dict[str, Any]:
    read: dict[str, Any] = {"ending": None, "text": "", "calls": []}
    for event in events:
        match event:
            case {"type": "content_block_start", "content_block": {"type": "tool_use", "name": name}}:
                read["calls"].append([name, ""])
            case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}:
                read["text"] += text
            case {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": piece}}:
                read["calls"][-1][1] += piece
            case {"type": "message_delta", "delta": {"stop_reason": ending}}:
                read["ending"] = ending
            case _:
                pass
    for read_call in read["calls"]:
        read_call[1] = read_call[1] or "{}"
    return read
