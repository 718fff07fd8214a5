"""Reads calls whose name stands before the arguments: newer Mistral's `[TOOL_CALLS]name[ARGS]{…}`, with `[CALL_ID]` and
an id behind the name in some of its tokenizers."""

from __future__ import annotations

from gateway.tools.readers import CallClosed, CallOpened, CallText, ReadEvent, ReadState
from gateway.tools.scanning import (
    BLANK,
    WORD,
    AnswerMarkers,
    JsonObjectScanner,
    MatchState,
    Pattern,
    Peek,
    match_any,
)

OPEN, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


class NamedCallReader:
    """Implements `CallReader`: a section is one call, which ends with its arguments. They are passed on as the model
    writes them; the model's own id of the call is dropped."""

    def __init__(self, markers: AnswerMarkers) -> None:
        self._markers = markers
        opened, call_id, arguments = (markers.symbol(one) for one in (OPEN, CALL_ID, ARGUMENTS))
        name: Pattern = [opened, BLANK, WORD, BLANK]
        ending: Pattern = [arguments, BLANK, Peek("{")]
        self._heads: list[Pattern] = [[*name, *ending], [*name, call_id, BLANK, WORD, BLANK, *ending]]
        self._scanner: JsonObjectScanner | None = None  # of the arguments, once the head is read

    def read(self, text: str, events: list[ReadEvent], *, last: bool) -> tuple[int, ReadState]:
        if self._scanner is not None:
            return self._read_arguments(text, events, last=last)
        _, matched = match_any(self._heads, text)
        if matched.state is MatchState.PARTIAL and not last:
            return 0, ReadState.MORE
        if matched.state is not MatchState.FULL:
            return 0, ReadState.FAILED
        events.append(CallOpened(matched.captures[0]))
        self._scanner = JsonObjectScanner()
        size, state = self._read_arguments(text[matched.end :], events, last=last)
        return matched.end + size, state

    def _read_arguments(self, text: str, events: list[ReadEvent], *, last: bool) -> tuple[int, ReadState]:
        assert self._scanner is not None
        cut = self._markers.find_symbol(text)
        size = self._scanner.push_text(text if cut < 0 else text[:cut])
        if size:
            events.append(CallText(text[:size]))
        # A marker inside the arguments ends them: no JSON text has it.
        if self._scanner.done or cut >= 0 or last:
            events.append(CallClosed(complete=self._scanner.done))
            return size, ReadState.DONE
        return size, ReadState.MORE
