"""The parts of an answer in the words of `/v1/responses`: output items, whole and as the events of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gateway.errors import encode
from gateway.tools.definitions import ToolSpec
from gateway.tools.parts import ArgumentsDelta, CallEnd, CallStart, ContentDelta, Part, ReasoningDelta

# An item or an event, as JSON data.
Data = dict[str, Any]


class ItemWriter:
    """Makes the output items of one answer, and the events of each part. The events have no `sequence_number` yet."""

    def __init__(
        self,
        response: str,
        tools: Mapping[str, ToolSpec],
        *,
        reasoning: bool,
        summarized: bool,
        seal: Callable[[str], str] | None = None,
    ) -> None:
        """`response`: the part of the response's id after its prefix, which the ids of items repeat. `reasoning`: it is
        shown; `summarized`: as a summary. `seal`: encrypts a text of reasoning, which its item then has as well."""
        self.items: list[Data] = []
        self._response, self._tools = response, tools
        self._reasoning, self._summarized = reasoning, summarized
        self._seal = seal
        self._kind: type[Part] | None = None  # of the open item
        self._texts: list[str] = []  # of the open item
        self._custom = False
        # The event of more text in the open item is encoded once, in two parts around the text: a stream has such an
        # event for nearly every token.
        self._extends: type[Part] | None = None  # the parts whose text is added
        self._head = self._tail = b""

    def extend(self, part: Part) -> bytes | None:
        """The server-sent event of a part that adds text to the open item, up to the value of its `sequence_number`.
        None: the part has other events."""
        if type(part) is not self._extends:
            return None
        text: str = part.text  # type: ignore[union-attr]  # `_extends` is a kind with text
        self._texts.append(text)
        return self._head + encode(text) + self._tail

    def events(self, part: Part) -> Iterator[Data]:
        """The events of a part for which `extend` has no events."""
        match part:
            case ContentDelta(text):
                yield from self._open(ContentDelta, part)
                yield self._delta(text)
            case ReasoningDelta(text):
                if not self._reasoning:
                    return
                yield from self._open(ReasoningDelta, part)
                yield self._delta(text)
            case CallStart():
                yield from self.close()
                yield from self._open(CallStart, part)
                return
            case ArgumentsDelta(text=text):
                yield self._delta(text)
            case CallEnd():
                yield from self.close(complete=part.complete)
                return
        self._texts.append(text)

    def close(self, *, complete: bool = True) -> Iterator[Data]:
        """The end of the open item. `complete`: the answer was not cut in it."""
        if self._kind is None:
            return
        kind, self._kind, self._extends = self._kind, None, None
        text, self._texts = "".join(self._texts), []
        item = self.items[-1]
        if "status" in item:
            item["status"] = "completed" if complete else "incomplete"
        if kind is ReasoningDelta and self._seal is not None:
            item["encrypted_content"] = self._seal(text)
        if kind is ContentDelta:
            yield self._event("response.output_text.done", content_index=0, text=text, logprobs=[])
            part = _output_text(text)
            yield self._event("response.content_part.done", content_index=0, part=part)
            item["content"] = [part]
        elif kind is ReasoningDelta and self._summarized:
            yield self._event("response.reasoning_summary_text.done", summary_index=0, text=text)
            part = {"type": "summary_text", "text": text}
            yield self._event("response.reasoning_summary_part.done", summary_index=0, part=part)
            item["summary"] = [part]
        elif kind is ReasoningDelta:
            yield self._event("response.reasoning_text.done", content_index=0, text=text)
            part = {"type": "reasoning_text", "text": text}
            yield self._event("response.content_part.done", content_index=0, part=part)
            item["content"] = [part]
        elif self._custom:
            yield self._event("response.custom_tool_call_input.done", input=text)
            item["input"] = text
        else:
            yield self._event("response.function_call_arguments.done", name=item["name"], arguments=text)
            item["arguments"] = text
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item}

    def _open(self, kind: type[Part], part: Part) -> Iterator[Data]:
        if self._kind is kind:
            return
        yield from self.close()
        self._kind = kind
        item = self._item(part)
        self.items.append(item)
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": dict(item)}
        if kind is ContentDelta:
            yield self._event("response.content_part.added", content_index=0, part=_output_text(""))
        elif kind is ReasoningDelta and self._summarized:
            empty = {"type": "summary_text", "text": ""}
            yield self._event("response.reasoning_summary_part.added", summary_index=0, part=empty)
        elif kind is ReasoningDelta:
            empty = {"type": "reasoning_text", "text": ""}
            yield self._event("response.content_part.added", content_index=0, part=empty)
        self._extends = ArgumentsDelta if kind is CallStart else kind
        self._head, self._tail = encode(self._delta("")).split(b'""')
        self._head = b"event: " + self._delta_kind().encode() + b"\ndata: " + self._head
        self._tail = self._tail[:-1] + b',"sequence_number":'

    def _delta(self, text: str) -> Data:
        """The event of more text in the open item."""
        kind = self._delta_kind()
        if self._kind is ContentDelta:
            return self._event(kind, content_index=0, delta=text, logprobs=[])
        if self._kind is ReasoningDelta:
            return self._event(kind, **{"summary_index" if self._summarized else "content_index": 0}, delta=text)
        return self._event(kind, delta=text)

    def _delta_kind(self) -> str:
        if self._kind is ContentDelta:
            return "response.output_text.delta"
        if self._kind is ReasoningDelta:
            return f"response.reasoning{'_summary' if self._summarized else ''}_text.delta"
        return f"response.{'custom_tool_call_input' if self._custom else 'function_call_arguments'}.delta"

    def _item(self, part: Part) -> Data:
        number = f"{self._response}_{len(self.items)}"
        if isinstance(part, ReasoningDelta):
            return {"id": f"rs_{number}", "type": "reasoning", "summary": []}
        if not isinstance(part, CallStart):
            message = {"id": f"msg_{number}", "type": "message", "status": "in_progress"}
            return {**message, "role": "assistant", "content": []}
        tool = self._tools.get(part.name)
        name = {"name": part.name}
        if tool is not None and tool.namespace:
            name = {"name": tool.plain_name, "namespace": tool.namespace}
        self._custom = part.custom
        if part.custom:
            return {"id": f"ctc_{number}", "type": "custom_tool_call", "call_id": part.id, **name, "input": ""}
        call = {"id": f"fc_{number}", "type": "function_call", "status": "in_progress", "call_id": part.id}
        return {**call, **name, "arguments": ""}

    def _event(self, kind: str, **fields: Any) -> Data:
        """An event of the open item."""
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **fields}


def _output_text(text: str) -> Data:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
