"""Turns prompts into ids with the model's own tokenizer, and ids into text: short ones in the event loop, larger ones
in processes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from engine.text.tokenizer import ENCODE_IN_LOOP_CHARS_MAX, Tokenizer
from gateway.api.generation_request import ChatPrompt, LargeBody, Prompt
from gateway.large_work.jobs import (
    ContextLimits,
    CountJob,
    CountResult,
    DecodeJob,
    DecodeResult,
    chars_of,
    check_sizes,
    check_window,
    check_words,
    count,
    decode,
    open_prompts,
)
from gateway.large_work.pool import LargeWork
from gateway.tools.model_dialect import ModelDialect
from gateway.tools.sealed_reasoning import ReasoningReader

# Rendering one message takes about as long as encoding MESSAGE_CHARS characters.
MESSAGE_CHARS = 128
# About two milliseconds of decoding: more ids are decoded by a process.
DECODE_IN_LOOP_IDS_MAX = 4096


class CountedPrompt(msgspec.Struct, frozen=True):
    """A prompt as the model reads it. `text`: as the caller sent it; "" for a conversation and for ids. `ignored`:
    fields of the request whose encrypted reasoning is left out."""

    ids: list[int]
    text: str = ""
    ignored: tuple[str, ...] = ()


class PromptCounter:
    """The counter of one gateway process."""

    def __init__(self, large_work: LargeWork) -> None:
        self._large_work = large_work
        # One thread is enough: encoding a prompt is a small part of the work of a request that waits for it.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="line-prompts")

    async def count(
        self,
        tokenizer: Tokenizer,
        encoding: str,
        window: ContextLimits,
        prompts: Sequence[Prompt] | LargeBody,
        *,
        tenant: str,
        echo: bool = False,
        dialect: ModelDialect | None = None,
        tools: str | None = None,
        reader: ReasoningReader | None = None,
        in_thread: bool = False,
    ) -> list[CountedPrompt]:
        """The prompts in order. `tools`: of the model's section in laneway.toml; `dialect`: made with it. `echo`: also
        return the texts of a LargeBody. `reader`: opens encrypted reasoning. `in_thread`: short prompts are encoded
        beside the event loop. Raises ContextLengthExceeded, InvalidRequest, RateLimited, Overloaded."""
        if isinstance(prompts, LargeBody):
            check_words(tokenizer, prompts.words, window)
            job = CountJob(prompts, str(tokenizer.directory), encoding, window, reader, echo, tools)
            return await self._in_process(job, tenant)
        ignored: list[str] = []
        if reader is not None:
            prompts, ignored = open_prompts(reader, prompts)
        check_sizes(tokenizer, prompts, window)
        if sum([_work_of(prompt) for prompt in prompts]) > ENCODE_IN_LOOP_CHARS_MAX:
            job = CountJob(list(prompts), str(tokenizer.directory), encoding, window, tools=tools)
            counted = await self._in_process(job, tenant)
            ids = [one.ids for one in counted]
        elif in_thread:
            loop = asyncio.get_running_loop()
            ids = await loop.run_in_executor(self._thread, count, tokenizer, prompts, window, dialect)
        else:
            ids = count(tokenizer, prompts, window, dialect)
        return [
            CountedPrompt(one, prompt if isinstance(prompt, str) else "", tuple(ignored))
            for one, prompt in zip(ids, prompts, strict=True)
        ]

    async def decode(
        self,
        tokenizer: Tokenizer,
        encoding: str,
        window: ContextLimits,
        prompts: Sequence[Prompt] | LargeBody,
        *,
        tenant: str,
    ) -> str:
        """The text of the only prompt, a list of ids. Raises ContextLengthExceeded, InvalidRequest, RateLimited,
        Overloaded."""
        if not isinstance(prompts, LargeBody):
            [ids] = prompts
            assert isinstance(ids, list)
            check_window(len(ids), window)
            if len(ids) <= DECODE_IN_LOOP_IDS_MAX:
                return decode(tokenizer, prompts, window)
            prompts = list(prompts)
        decoded = await self._large_work.do(tenant, DecodeJob(prompts, str(tokenizer.directory), encoding, window))
        assert isinstance(decoded, DecodeResult)
        return decoded.text

    async def _in_process(self, job: CountJob, tenant: str) -> list[CountedPrompt]:
        counts = await self._large_work.do(tenant, job)
        assert isinstance(counts, CountResult)
        ids, ignored = counts.all_ids(), tuple(counts.ignored)
        texts = counts.texts or [""] * len(ids)
        return [CountedPrompt(one, text, ignored) for one, text in zip(ids, texts, strict=True)]


def _work_of(prompt: Prompt) -> int:
    """The cost of rendering and encoding the prompt, in characters."""
    messages = len(prompt.messages) if isinstance(prompt, ChatPrompt) else 0
    return chars_of(prompt) + messages * MESSAGE_CHARS
