"""From prompts to ids, counted with the model's own tokenizer; what is too long is refused before it is counted.

It must never know who asks or what a token costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from engine.protocol import ModelInfo
from engine.tokenizer import ENCODE_IN_LOOP_CHARS_MAX, TemplateError, Tokenizer
from gateway import errors
from gateway.asked import ChatPrompt, Prompt

# A text longer than this many characters per token of the window is refused before it is counted.
CHARS_PER_TOKEN_MAX = 32
TOKENIZER_THREADS = 2
TOKENIZING_MAX = 64  # long prompts that wait for those threads


class Counted(msgspec.Struct, frozen=True):
    """A prompt as the model reads it. `text`: as the caller sent it; "" for a conversation and for ids."""

    ids: list[int]
    text: str = ""


class PromptCounter:
    """Encodes short prompts at once, long ones in threads of its own."""

    def __init__(self) -> None:
        self._waiting = 0
        self._threads = ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokenizer")

    async def count(
        self, tokenizer: Tokenizer, info: ModelInfo, prompts: Sequence[Prompt], param: str
    ) -> list[Counted]:
        """In order. `param` names the field. Raises ContextLengthExceeded, InvalidRequest, Overloaded."""
        chars = 0
        for prompt in prompts:
            length = _chars(prompt)
            if length > info.context_tokens * CHARS_PER_TOKEN_MAX:
                raise errors.ContextLengthExceeded(
                    f"{param!r} has {length} characters; no prompt of that length fits this model's context of "
                    f"{info.context_tokens} tokens.",
                    param=param,
                )
            chars += length
        try:
            if chars <= ENCODE_IN_LOOP_CHARS_MAX:
                return _encode_all(tokenizer, info, prompts, param)
            if self._waiting >= TOKENIZING_MAX:
                raise errors.Overloaded("Too many long prompts are being counted.")
            self._waiting += 1
            try:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, _encode_all, tokenizer, info, prompts, param)
            finally:
                self._waiting -= 1
        except TemplateError as error:
            raise errors.InvalidRequest(f"{param!r} do not fit this model: {error}.", param=param) from None

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _chars(prompt: Prompt) -> int:
    match prompt:
        case ChatPrompt():
            return sum([len(message["content"]) for message in prompt.messages])
        case str():
            return len(prompt)
    return 0


def _encode_all(tokenizer: Tokenizer, info: ModelInfo, prompts: Sequence[Prompt], param: str) -> list[Counted]:
    return [_encode(tokenizer, info, prompt, param) for prompt in prompts]


def _encode(tokenizer: Tokenizer, info: ModelInfo, prompt: Prompt, param: str) -> Counted:
    match prompt:
        case ChatPrompt():
            counted = Counted(
                tokenizer.encode_chat(
                    prompt.messages,
                    add_generation_prompt=prompt.add_generation_prompt,
                    continue_final_message=prompt.continue_final,
                )
            )
        case str():
            counted = Counted(tokenizer.encode(prompt, add_special_tokens=True), prompt)
        case _:
            if wrong := [id_ for id_ in prompt if id_ >= info.vocab_size]:
                message = f"{param!r} has the id {wrong[0]}; this model's ids are below {info.vocab_size}."
                raise errors.InvalidRequest(message, param=param)
            counted = Counted(prompt)
    if not counted.ids:
        raise errors.InvalidRequest(f"{param!r} is empty: there is nothing to go on from.", param=param)
    return counted
