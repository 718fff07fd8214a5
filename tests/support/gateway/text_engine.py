"""A second kind of engine: it takes text and answers with text, inside the gateway's own process."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from engine.protocol.frames import EngineUsage, Logprobs, ModelInfo, PromptLogprobs, Snapshot, StatusReport
from engine.text.tokenizer import Tokenizer
from gateway.api.generation_request import ChatPrompt
from gateway.engines import engine as protocol
from gateway.engines.engine import EngineRequest, OutputText, RefusalReason, StreamEnd, StreamEnding
from support.stack import MODEL

EPOCH, SECOND_EPOCH = "text", "text-2"


class Settings(msgspec.Struct):
    """A prompt with one of these texts is refused, fails, loses the engine, or ends by a stop after three words; with
    `move`, another engine process continues after three words."""

    word_s: float = 0.002
    refuse: str = "refuse-me"
    fail: str = "fail-me"
    lose: str = "lose-me"
    stop: str = "stop-me"
    move: str = "move-me"


class TextStream:
    """Implements `TokenStream`: one word each `word_s`, of one token or two."""

    output: ClassVar[protocol.OutputKind] = "text"

    def __init__(self, engine: TextEngine, request: EngineRequest) -> None:
        self.cached_tokens = 0
        self.vector: bytes | None = None
        self.final: StreamEnding | None = None
        self._engine, self._request, self._prompt = engine, request, engine.text_of(request)
        self._made = self._words = self._made_first = 0
        self._pieces: list[OutputText] = []
        self._later = asyncio.get_running_loop().call_later(engine.settings.word_s, self._step)

    @property
    def attempts(self) -> dict[str, int]:
        if not self._made_first:
            return {EPOCH: self._made}
        return {EPOCH: self._made_first, SECOND_EPOCH: self._made - self._made_first}

    def listen(self, on_news: Callable[[], None]) -> None:
        self._on_news = on_news

    def take_output(self) -> list[OutputText]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def take_logprobs(self) -> list[Logprobs]:
        return []

    def take_prompt(self) -> list[PromptLogprobs]:
        return []

    def abort(self) -> None:
        if self.final is None:
            self._later.cancel()
            asyncio.get_running_loop().call_soon(self._end, StreamEnd.ABORTED)

    def confirm_recorded(self) -> None:
        pass

    def _step(self) -> None:
        settings, prompt = self._engine.settings, self._prompt
        if settings.refuse in prompt:
            self._end(StreamEnd.REFUSED)
        elif settings.fail in prompt:
            self._end(StreamEnd.ERROR)
        elif self._words == 3 and (settings.stop in prompt or settings.lose in prompt):
            self._end(StreamEnd.STOP if settings.stop in prompt else StreamEnd.LOST)
        else:
            if self._words == 3 and settings.move in prompt:
                self._made_first = self._made
            self._make_word()
            self._later = asyncio.get_running_loop().call_later(settings.word_s, self._step)
            self._on_news()
            if self.final is None and self._made == self._request.max_tokens:
                self._later.cancel()
                self._end(StreamEnd.LENGTH)

    def _make_word(self) -> None:
        """The word depends on prompt, seed, choice and position; at temperature 0 on prompt and position."""
        sampling = self._request.sampling
        drawn = f"{sampling.seed} {sampling.choice}" if sampling.temperature else ""
        digest = hashlib.sha256(f"{self._prompt} {drawn} {self._words}".encode()).hexdigest()
        tokens = [digest[:3], digest[3:6] + " "]
        if digest[-1] < "8" or self._request.max_tokens - self._made == 1:
            tokens = ["".join(tokens)]
        likeliest = [(f"{rank}".encode(), -2.0 - rank) for rank in range(sampling.logprobs)]
        logprobs = [[(token.encode(), -1.0), *likeliest] for token in tokens] if sampling.logprobs >= 0 else []
        self._pieces.append(OutputText("".join(tokens), len(tokens), logprobs))
        self._words += 1
        self._made += len(tokens)
        self._engine.made += len(tokens)

    def _end(self, end: StreamEnd) -> None:
        if self.final is None:
            ran = end is not StreamEnd.REFUSED
            usage = EngineUsage(completion_tokens=self._made) if ran and end is not StreamEnd.LOST else None
            self.final = StreamEnding(end, f"as told: {end.value}", usage, None if ran else RefusalReason.QUEUE_FULL, 7)
            self._on_news()


class TextEngine:
    """Implements `Engine`."""

    ready, stuck, epoch, last_heartbeat = True, False, EPOCH, None
    reports_prompts = False
    refused: ClassVar[dict[str, str]] = {}

    def __init__(self, model_dir: Path, settings: Settings) -> None:
        self.on_connect: protocol.OnConnect | None = None
        self.on_models: protocol.OnModels | None = None
        self.models = {MODEL: ModelInfo(MODEL, "d" * 64, 2048, 49152, 0, 0)}
        self.settings, self.made = settings, 0
        self._tokenizer = Tokenizer.load(model_dir)

    def text_of(self, request: EngineRequest) -> str:
        match request.prompt:
            case ChatPrompt(messages=messages):
                return "\n".join(f"{message['role']}: {message['content']}" for message in messages)
            case str(text):
                return text
            case _:
                return self._tokenizer.decode(request.prompt_ids)

    async def start(self) -> None:
        assert self.on_connect is not None
        await self.on_connect({})

    def submit(self, request: EngineRequest) -> TextStream:
        return TextStream(self, request)

    async def status(self) -> StatusReport:
        text = f'vllm:generation_tokens_total{{model_name="{MODEL}"}} {self.made}\n'.encode()
        return StatusReport(EPOCH, 0, 1, {}, 0, 0, 0, 0, [], self.made, text)

    async def reports(self) -> list[StatusReport]:
        return [await self.status()]

    async def watch(self, preempted: int | None = None) -> Snapshot:
        raise protocol.EngineUnavailable("this engine has no pages to show")

    async def load_model(self, name: str, path: str | Path, **_: Any) -> str:
        raise protocol.ModelFailed("this engine serves one model")

    async def nothing(self, *_: Any, **__: Any) -> None:
        pass

    close = wait_ready = load_adapter = unload_adapter = unload_model = nothing
