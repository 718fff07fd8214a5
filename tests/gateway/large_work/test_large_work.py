"""Processes for large bodies and prompts: results, turns of tenants, and processes that hang."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.text.grammars import json_schema_grammar
from engine.text.tokenizer import ENCODE_IN_LOOP_CHARS_MAX, Tokenizer
from gateway.api.bodies import (
    PARSE_IN_LOOP_BYTES_MAX,
    PARSE_TEXT_IN_LOOP_BYTES_MAX,
    check_id_count,
    check_message_count,
    has_few_values,
    read_request,
)
from gateway.api.generation_request import ChatPrompt, LargeBody, Prompt
from gateway.errors import ApiError, ContextLengthExceeded, InvalidRequest, Overloaded, RateLimited
from gateway.generation import prompts
from gateway.generation.prompts import PromptCounter
from gateway.large_work import pool
from gateway.large_work.jobs import ContextLimits, CountJob, CountResult, GrammarJob, ReadJob, ReadResult, count
from gateway.large_work.pool import PROCESSES, TENANT_PROCESSES, TENANT_WAITING_MAX, LargeWork
from gateway.tools.definitions import ToolSpec
from support.waiting import eventually_async

LARGE_INTEGER = msgspec.json.encode({
    "model": "m",
    "messages": [{"role": "user", "content": "Hello"}],
    "tools": [{"type": "function", "function": {"name": "t", "parameters": {"const": 0}}}],
}).replace(b'"const":0', b'"const":1' + b"0" * 30)  # fmt: skip
WINDOW = ContextLimits(8192, 49152, 1, "messages")


@pytest.fixture
async def work(model_dir: Path) -> AsyncIterator[LargeWork]:
    made = LargeWork(lambda: [(str(model_dir), "any")])
    yield made
    await made.close()


def chat(messages: int, text: str = "a") -> ChatPrompt:
    return ChatPrompt([{"role": "user", "content": text}] * messages)


def job(directory: Path, *asked: Prompt, window: ContextLimits = WINDOW, texts: bool = False) -> CountJob:
    return CountJob(list(asked), str(directory), "any", window, texts=texts)


async def test_a_process_counts_as_this_one_does(work: LargeWork, model_dir: Path) -> None:
    tokenizer = Tokenizer.load(model_dir)
    asked: list[Prompt] = ["Once upon a time " * 50, [1, 2, 3], chat(40, "Hello <|im_end|> there")]
    counts = await work.do("t", job(model_dir, *asked, texts=True))
    assert isinstance(counts, CountResult)
    assert counts.all_ids() == count(tokenizer, asked, WINDOW)
    assert counts.texts == [asked[0], "", ""]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("chat", {"messages": [{"role": "user", "content": "Hello"}] * 3, "logit_bias": {"5": 1.5}, "seed": 3}),
        ("completions", {"prompt": ["One", "Two"], "stop": ["x"], "n": 2, "stop_token_ids": [4], "seed": 3}),
        (
            "completions",
            {"prompt": [[1, 2], [3]], "seed": 3, "stream": True, "stream_options": {"include_usage": True}},
        ),
        ("count", {"messages": [{"role": "user", "content": "Hello"}]}),
        ("tokenize", {"prompt": "Hello", "return_token_strs": True, "add_special_tokens": False}),
        ("detokenize", {"tokens": [1, 2, 3]}),
    ],
)
async def test_a_process_reads_as_this_one_does(work: LargeWork, kind: str, fields: dict[str, Any]) -> None:
    body = msgspec.json.encode({"model": "m", **fields})
    reply = await work.do("t", ReadJob(kind, body, ignore_unknown=False))
    assert isinstance(reply, ReadResult)
    here = read_request(kind, body, ignore_unknown=False)
    assert reply.read.wants_usage == here.wants_usage
    large = reply.read.asked.prompts
    assert isinstance(large, LargeBody)
    assert (large.prompts, reply.read.asked.ids_in) == (len(here.asked.prompts), here.asked.ids_in)  # type: ignore[arg-type]
    sampling = msgspec.structs.replace(reply.read.asked.sampling, seed=here.asked.sampling.seed)  # the seed is random
    assert msgspec.structs.replace(reply.read.asked, prompts=here.asked.prompts, sampling=sampling) == here.asked


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (ReadJob("chat", b"{", False), InvalidRequest),
        (ReadJob("completions", b'{"model": "m"}', False), InvalidRequest),
        (CountJob(["word " * 9000], "", "", WINDOW), ContextLengthExceeded),
        (CountJob([[1, 60000]], "", "", WINDOW), InvalidRequest),
        (CountJob([chat(9000)], "", "", WINDOW), ContextLengthExceeded),
        # An integer that JSON has and msgpack has not, in a reply and in a job.
        (ReadJob("chat", LARGE_INTEGER, False), InvalidRequest),
        (CountJob([ChatPrompt([], tools=[ToolSpec("t", None, {"const": 10**30})])], "", "", WINDOW), InvalidRequest),
    ],
)
async def test_what_a_process_refuses(work: LargeWork, model_dir: Path, asked: Any, error: type[ApiError]) -> None:
    if isinstance(asked, CountJob):
        asked = msgspec.structs.replace(asked, directory=str(model_dir))
    with pytest.raises(error) as refused:
        await work.do("t", asked)
    assert type(refused.value) is error
    assert refused.value.message


async def test_what_cannot_be_loaded_is_overload_and_ends_no_other(work: LargeWork, tmp_path: Path) -> None:
    with pytest.raises(Overloaded):
        await work.do("t", job(tmp_path, "text"))
    with pytest.raises(InvalidRequest):
        await work.do("t", ReadJob("chat", b"{", False))


async def test_one_tenant_takes_its_part_and_its_excess_names_its_limit(work: LargeWork, model_dir: Path) -> None:
    long = job(model_dir, chat(2000), window=ContextLimits(2**20, 49152, 1, "messages"))
    await work.do("theirs", long)  # so that a process runs
    limit = TENANT_PROCESSES + TENANT_WAITING_MAX
    theirs = [asyncio.create_task(work.do("theirs", long)) for _ in range(limit)]
    await asyncio.sleep(0)
    with pytest.raises(RateLimited, match=f"the tenant's large prompts at once: limit {limit}"):
        await work.do("theirs", long)
    assert work._running["theirs"] == TENANT_PROCESSES
    await work.do("another", job(model_dir, "Hello"))
    assert sum(one.done() for one in theirs) < len(theirs), "another tenant does not wait for all of them"
    for one in theirs:
        one.cancel()
    await asyncio.gather(*theirs, return_exceptions=True)


async def test_tenants_take_turns(work: LargeWork, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "PROCESSES", 1)  # so that jobs end in the order of their turns
    await work.do("first", job(model_dir, "Hello"))
    ended: list[str] = []

    async def ask(tenant: str) -> None:
        await work.do(tenant, job(model_dir, "Hello"))
        ended.append(tenant)

    await asyncio.gather(*[ask("many") for _ in range(12)], *[ask(f"one-{n}") for n in range(3)])
    assert set(ended[:5]) == {"many", "one-0", "one-1", "one-2"}


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_process_that_hangs_or_dies_is_replaced(
    work: LargeWork, model_dir: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    await work.do("t", job(model_dir, "Hello"))
    monkeypatch.setattr(pool, "JOB_S_MAX", 0.5)
    await eventually_async(lambda: bool(work._idle))
    for peer in work._idle:
        os.kill(peer.pid, how)
    pids = {peer.pid for peer in work._idle}
    with pytest.raises(Overloaded):
        await work.do("t", job(model_dir, "Hello"))
    monkeypatch.setattr(pool, "JOB_S_MAX", 10.0)
    answers = await asyncio.gather(
        *[work.do(f"t{n}", job(model_dir, "Hello")) for n in range(PROCESSES)], return_exceptions=True
    )
    assert any(isinstance(one, CountResult) for one in answers)
    assert isinstance(await work.do("t", job(model_dir, "Hello")), CountResult)
    assert {peer.pid for peer in work._idle} - pids


async def test_a_grammar_that_waits_for_a_busy_machine_is_no_mistake_of_its_caller(
    work: LargeWork, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process has no CPU time. Of a grammar that takes CPU time it is the mistake."""
    grammar = GrammarJob(str(model_dir), 49152, json_schema_grammar({"type": "integer"}), "tools")
    await work.do("t", grammar)
    monkeypatch.setattr(pool, "JOB_S_MAX", 1.0)
    await eventually_async(lambda: bool(work._idle))
    for peer in work._idle:
        os.kill(peer.pid, signal.SIGSTOP)
    with pytest.raises(Overloaded, match="could not be compiled"):
        await work.do("t", grammar)
    monkeypatch.setattr(pool, "JOB_S_MAX", 30.0)
    monkeypatch.setattr(pool, "GRAMMAR_CPU_S_MAX", -1.0)
    monkeypatch.setattr(pool, "POLL_S", 0.001)
    with pytest.raises(InvalidRequest, match="too long"):
        await work.do("other", grammar)


async def test_a_forker_that_dies_is_replaced(work: LargeWork, model_dir: Path) -> None:
    await work.do("t", job(model_dir, "Hello"))
    await eventually_async(lambda: work._forker is not None and not work._adding)
    assert work._forker is not None
    work._forker[0].kill()
    await work._forker[0].wait()
    for peer in work._idle:
        os.kill(peer.pid, signal.SIGKILL)
    counted = []
    for _ in range(2 * PROCESSES):
        try:
            counted.append(await work.do("t", job(model_dir, "Hello")))
        except Overloaded:
            continue
    assert counted


async def test_the_processes_end_with_their_gateway(work: LargeWork, model_dir: Path) -> None:
    await work.do("t", job(model_dir, "Hello"))
    await eventually_async(lambda: bool(work._idle))
    pids = [peer.pid for peer in work._idle]
    await work.close()

    def gone(pid: int) -> bool:
        return not Path(f"/proc/{pid}").exists()

    await eventually_async(lambda: all(map(gone, pids)))


class Remembering(LargeWork):
    """A stand-in for LargeWork that only records its jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Any] = []

    async def do(self, tenant: str, asked: Any) -> Any:
        self.jobs.append(asked)
        return CountResult([array("I", [7]).tobytes() for _ in asked.prompts], [])


@pytest.mark.parametrize(
    ("prompt", "in_loop"),
    [
        ("a" * ENCODE_IN_LOOP_CHARS_MAX, True),
        ("a" * (ENCODE_IN_LOOP_CHARS_MAX + 1), False),
        (chat(40), True),
        (chat(4096), False),
        ([5] * 8000, True),
    ],
)
async def test_work_is_bounded_by_messages_as_well_as_characters(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, prompt: Prompt, in_loop: bool
) -> None:
    rendered: list[object] = []

    def count(*_: object) -> list[list[int]]:
        rendered.append(1)
        return [[7]]

    monkeypatch.setattr(prompts, "count", count)
    work = Remembering()
    counter = PromptCounter(work)
    found = await counter.count(Tokenizer.load(model_dir), "any", WINDOW, [prompt], tenant="t")
    assert found[0].ids == [7]
    assert (len(rendered), len(work.jobs)) == ((1, 0) if in_loop else (0, 1))


async def test_a_line_s_prompt_is_encoded_beside_the_event_loop(model_dir: Path) -> None:
    class Noting(Tokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
            threads.append(threading.current_thread())
            return super().encode(text, add_special_tokens=add_special_tokens)

    threads: list[threading.Thread] = []
    counter, tokenizer = PromptCounter(Remembering()), Noting(model_dir)
    [loop] = await counter.count(tokenizer, "any", WINDOW, ["some text"], tenant="t")
    [thread] = await counter.count(tokenizer, "any", WINDOW, ["some text"], tenant="t", in_thread=True)
    assert loop == thread
    main = threading.current_thread()
    assert [one is main for one in threads] == [True, False]
    with pytest.raises(ContextLengthExceeded):
        await counter.count(tokenizer, "any", WINDOW, [[1] * 650_000], tenant="t", in_thread=True)


async def test_ids_over_the_context_are_refused_before_they_are_looked_at(model_dir: Path) -> None:
    class Untouched(list[int]):
        def __iter__(self) -> Any:
            raise AssertionError("looked at")

    ids = Untouched([1] * 650_000)
    with pytest.raises(ContextLengthExceeded, match="takes 650000"):
        await PromptCounter(Remembering()).count(Tokenizer.load(model_dir), "any", WINDOW, [ids], tenant="t")


def test_too_many_ids_are_found_before_the_body_is_parsed() -> None:
    for prompt in ([1] * 650_000, [[1] * 40_000] * 16):
        body = msgspec.json.encode({"model": "m", "prompt": prompt, "user": "x"})
        assert len(body) > PARSE_IN_LOOP_BYTES_MAX
        with pytest.raises(ContextLengthExceeded, match="'prompt' has over 131072 ids"):
            check_id_count(body, 8192)
    for fine in (
        [1] * 100_000,
        [[1] * 8192] * 16,
        "a, b, " * 100_000,
        ["a, b, " * 50_000, "c"],
        'x"prompt": ,,,' * 9999,
    ):
        check_id_count(msgspec.json.encode({"user": '"prompt"', "model": "m", "prompt": fine}), 8192)


@pytest.mark.parametrize(
    ("prompt", "few"),
    [
        ("word " * 60_000, True),
        ("one, two " * 4000, True),
        ("one, two " * 4200, False),
        ([[]] * 4000, False),
        ([42] * 11_000, False),
        (["a"] * 9000, False),
        ("x" * PARSE_TEXT_IN_LOOP_BYTES_MAX, False),
    ],
)
def test_bodies_with_few_values(prompt: Any, few: bool) -> None:
    assert has_few_values(msgspec.json.encode({"model": "m", "prompt": prompt})) is few


def test_too_many_messages_are_found_before_the_body_is_parsed() -> None:
    def conversation(count: int, text: str = "a") -> bytes:
        return msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": text}] * count})

    with pytest.raises(InvalidRequest, match="'messages' has over 2730 messages") as refused:
        check_message_count(conversation(2731), 8192)
    assert refused.value.param == "messages"
    check_message_count(conversation(2730), 8192)
    check_message_count(conversation(2048), 128)
    check_message_count(conversation(2731), 131_072)
    check_message_count(conversation(9, '"role"' * 9999), 8192)


@pytest.mark.parametrize("chat", [False, True])
async def test_a_text_with_more_words_than_the_context_is_refused_before_it_is_encoded(
    model_dir: Path, chat: bool
) -> None:
    text = "word " * 9000
    prompt = ChatPrompt([{"role": "user", "content": text}]) if chat else text
    with pytest.raises(ContextLengthExceeded, match=r"takes at least (8\d\d\d|9000) tokens"):
        await PromptCounter(Remembering()).count(Tokenizer.load(model_dir), "any", WINDOW, [prompt], tenant="t")
