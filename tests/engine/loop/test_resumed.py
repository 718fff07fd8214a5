"""Submit.resumed: a text that another engine began continues as if it had never been interrupted, whichever id it was
interrupted at. On the fake and on a CPU with laneway-tiny; test_conformance.py has the same of every runner."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.compute.logprobs import LOGPROB_MIN
from engine.protocol.frames import (
    Abort,
    Finished,
    Guide,
    Logprobs,
    PromptPart,
    Refused,
    Sampling,
    Status,
    StatusReport,
    Submit,
    Tokens,
)
from engine.protocol.tiers import SHIPPED_TIERS
from engine.text.grammars import json_schema_grammar, regex_grammar
from engine.text.tokenizer import Tokenizer
from support.engine.process import EngineProcess, Peer
from support.paths import REPO

Start = Callable[..., EngineProcess]
Connect = Callable[[EngineProcess], Awaitable[Peer]]
TINY = REPO / "examples" / "models" / "laneway-tiny"
TOKENIZER = Tokenizer.load(TINY)
STOP_IDS = sorted(TOKENIZER.eos_ids)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
PROMPT = TOKENIZER.encode("The engine stops, and another engine continues the text at the next word. ")
# Ids of the whole text; not a multiple of a page, so that cuts are inside of pages and at their ends.
LENGTH = 37


@dataclass
class Subject:
    process: EngineProcess
    handles: Iterator[int]
    is_fake: bool


@pytest.fixture(scope="module", params=["fake", "fake_ahead", "tiny"])
def subject(request: pytest.FixtureRequest, socket_dir: Path) -> Iterator[Subject]:
    is_fake = request.param != "tiny"
    directory = TINY if is_fake else request.getfixturevalue("tiny_dir")
    model = {"name": "laneway-tiny", "path": str(directory)}
    # Targets that a busy machine keeps: the engine starts with no others.
    tiers = [
        {"name": t.name, "service_tier": t.service_tier, "floor": t.floor, "inter_token_ms": 10_000}
        for t in SHIPPED_TIERS
    ]
    config: dict[str, Any] = {"models": [model], "tiers": tiers, "sequences_max": 16}
    if is_fake:
        config["fake"] = {"step_ms": 0.2, "steps_ahead": int(request.param == "fake_ahead"), "tokens_per_page": 8}
    else:
        config |= {"threads": 1, "arena_bytes": 64 * 1024**2}
    process = EngineProcess(socket_dir / f"resumed-{request.param}.sock", config, *(["--fake"] if is_fake else []))
    yield Subject(process, itertools.count(1), is_fake)
    assert process.stop() == 0


@pytest.fixture
async def peer(subject: Subject, connect: Connect) -> Peer:
    return await connect(subject.process)


def whole(peer: Peer, subject: Subject, **changes: Any) -> Submit:
    fields: dict[str, Any] = {"prompt_ids": PROMPT, "max_tokens": LENGTH, "stop_ids": []}
    return peer.submit(next(subject.handles), **(fields | changes))


def resumed(subject: Subject, frame: Submit, made: list[int], **changes: Any) -> Submit:
    """The same text, of which `made` was made elsewhere."""
    fields: dict[str, Any] = {"prompt_ids": [*frame.prompt_ids, *made], "resumed": len(made), "attempt": 1}
    return msgspec.structs.replace(frame, handle=next(subject.handles), **(fields | changes))


SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"sampling": Sampling(temperature=0.9, seed=11, choice=2)},
    "filtered": {"sampling": Sampling(temperature=1.3, seed=5, top_p=0.9, top_k=40, min_p=0.01)},
    "penalties": {
        "sampling": Sampling(
            temperature=0.8, seed=3, presence_penalty=0.7, frequency_penalty=0.4, repetition_penalty=1.3
        )
    },
    "bias and min_tokens": {
        # Without min_tokens it ends with its first id.
        "sampling": Sampling(temperature=0.0, logit_bias={STOP_IDS[0]: 100.0}, min_tokens=LENGTH - 7),
        "stop_ids": STOP_IDS,
    },
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("cached", [True, False])
async def test_a_text_is_the_same_whichever_id_it_is_resumed_after(
    subject: Subject, peer: Peer, sampling: str, cached: bool
) -> None:
    frame = whole(peer, subject, **SAMPLINGS[sampling])
    peer.send(frame)
    ids, ending = (await peer.until_ended(frame.handle))[frame.handle]
    if sampling == "bias and min_tokens" and not subject.is_fake:
        assert (ending.reason, len(ids)) == ("stop", LENGTH - 6)
    # In the namespace of the first the pages are found again; in one of their own each is prefilled.
    frames = {
        cut: resumed(subject, frame, ids[:cut], namespace="ns" if cached else f"cut {cut}")
        for cut in range(1, len(ids))
    }
    peer.send(*frames.values())
    results = await peer.until_ended(*(own.handle for own in frames.values()), timeout_s=120)
    for cut, own in frames.items():
        rest, again = results[own.handle]
        assert ids[:cut] + rest == ids, f"resumed after {cut} ids"
        assert again.reason == ending.reason
        assert again.usage.completion_tokens == len(ids)
        assert again.usage.prompt_tokens == len(PROMPT)
        assert again.usage.cached_tokens <= len(PROMPT)
        assert again.usage.preemptions == again.usage.recomputed_tokens == 0


GUIDES: dict[str, tuple[Guide, dict[str, Any]]] = {
    "schema": (Guide(json_schema_grammar(SCHEMA)), {}),
    "regex and min_tokens": (Guide(regex_grammar("[a-z]{3,40}")), {"min_tokens": 20}),
    "reasoning": (
        Guide(regex_grammar("[a-d]{9}"), reasoning_end_ids=[900, 901], reasoning_open=True, reasoning_max=9),
        {},
    ),
    "budget alone": (Guide(reasoning_end_ids=[900, 901], reasoning_open=True, reasoning_max=12), {}),
}


@pytest.mark.parametrize("name", GUIDES)
async def test_a_guided_text_keeps_to_its_guide(subject: Subject, peer: Peer, name: str) -> None:
    guide, changes = GUIDES[name]
    sampling = Sampling(temperature=0.8, seed=21, presence_penalty=0.3, **changes)
    frame = whole(peer, subject, guide=guide, sampling=sampling, stop_ids=STOP_IDS, max_tokens=60)
    peer.send(frame)
    ids, ending = (await peer.until_ended(frame.handle))[frame.handle]
    if name == "schema":
        assert ending.reason == "stop"
        assert set(json.loads(TOKENIZER.decode(ids[:-1]))) == {"city", "days"}
    frames = {cut: resumed(subject, frame, ids[:cut]) for cut in range(1, len(ids))}
    peer.send(*frames.values())
    results = await peer.until_ended(*(own.handle for own in frames.values()), timeout_s=120)
    for cut, own in frames.items():
        rest, again = results[own.handle]
        assert ids[:cut] + rest == ids, f"resumed after {cut} ids"
        assert again.reason == ending.reason


async def test_ids_that_a_grammar_does_not_allow_end_the_request_as_its_grammar_s_fault(
    subject: Subject, peer: Peer
) -> None:
    frame = whole(peer, subject, guide=Guide(regex_grammar("[0-9]{30}")), stop_ids=STOP_IDS)
    frame = resumed(subject, frame, TOKENIZER.encode("abc"))
    peer.send(frame)
    ending = (await peer.until_ended(frame.handle))[frame.handle][1]
    assert (ending.reason, ending.guide_fault) == ("error", "grammar")


async def logprobs_of(peer: Peer, frame: Submit) -> tuple[list[Logprobs], int]:
    """Of the ids that were made, and how many parts of the prompt came."""
    peer.send(frame)
    found: list[Logprobs] = []
    parts = 0
    while not isinstance(got := await peer.next(), Finished):
        if isinstance(got, Tokens):
            assert got.logprobs
            assert got.logprobs[0]
            found.append(got.logprobs[0])
        parts += isinstance(got, PromptPart)
    return found, parts


async def test_log_probabilities_of_later_ids_and_none_of_the_prompt(subject: Subject, peer: Peer) -> None:
    sampling = Sampling(temperature=0.9, seed=4, logprobs=5, prompt_logprobs=3)
    frame = whole(peer, subject, sampling=sampling)
    found, parts = await logprobs_of(peer, frame)
    assert parts > 0, "the whole request's prompt is reported"
    ids = [own[0][0] for own in found]
    for cut in (1, 7, 8, 20, LENGTH - 1):
        again, parts = await logprobs_of(peer, resumed(subject, frame, ids[:cut]))
        assert parts == 0, "the other engine reported the prompt"
        assert [own[0][0] for own in again] == ids[cut:]
        for mine, theirs in zip(again, found[cut:], strict=True):
            assert len(mine) == 6
            assert all(
                math.isclose(value, other, abs_tol=1e-3) or LOGPROB_MIN in (value, other)
                for (_, value), (_, other) in zip(mine, theirs, strict=True)
            )


@pytest.mark.parametrize(
    ("prompt", "count", "changes", "why"),
    [
        (PROMPT, -1, {}, "resumed is -1"),
        (PROMPT, len(PROMPT), {"max_tokens": 500}, "resumed is"),
        (PROMPT, len(PROMPT) + 1, {"max_tokens": 500}, "resumed is"),
        (PROMPT, 8, {"max_tokens": 8}, "max_tokens is 8"),
        (PROMPT, 8, {"max_tokens": 0}, "max_tokens is 0"),
        (PROMPT, 2**40, {"max_tokens": 2**41}, "resumed is"),
        ([*PROMPT, STOP_IDS[0], 5], 2, {"stop_ids": STOP_IDS}, "a stop id"),
        ([*PROMPT, 2**31], 1, {}, "outside the vocabulary"),
        ([*PROMPT, -3], 1, {}, "outside the vocabulary"),
    ],
)
async def test_what_no_unfinished_text_can_end_with_is_refused(
    subject: Subject, peer: Peer, prompt: list[int], count: int, changes: dict[str, Any], why: str
) -> None:
    frame = whole(peer, subject, prompt_ids=prompt, resumed=count, **changes)
    peer.send(frame)
    ids, ending = (await peer.until_ended(frame.handle))[frame.handle]
    assert isinstance(ending, Refused)
    assert (ids, ending.code) == ([], "bad_request")
    assert why in ending.message


async def test_the_context_limit_counts_resumed_ids_once(subject: Subject, peer: Peer) -> None:
    context = peer.hello.models[0].context_tokens
    prompt = [300 + i % 500 for i in range(context - 20)]
    for limit, code in ((20, None), (21, "too_long")):
        frame = whole(peer, subject, prompt_ids=[*prompt, *range(400, 415)], resumed=15, max_tokens=limit)
        peer.send(frame)
        ids, ending = (await peer.until_ended(frame.handle))[frame.handle]
        assert getattr(ending, "code", None) == code
        assert code or len(ids) == 5


# ---- what is counted


async def report_of(peer: Peer) -> StatusReport:
    peer.send(Status())
    return await peer.expect(StatusReport)


def total(report: StatusReport, name: str) -> float:
    return sum(
        float(line.rpartition(" ")[2])
        for line in report.metrics.decode().splitlines()
        if line.partition("{")[0].partition(" ")[0] == name
    )


async def test_only_what_this_engine_made_is_counted(subject: Subject, peer: Peer) -> None:
    frame = whole(peer, subject)
    peer.send(frame)
    ids, _ = (await peer.until_ended(frame.handle))[frame.handle]
    before = await report_of(peer)
    again = resumed(subject, frame, ids[:30])
    peer.send(again)
    await peer.until_ended(again.handle)
    after = await report_of(peer)
    counted = {
        "vllm:generation_tokens_total": LENGTH - 30,
        "vllm:prompt_tokens_total": len(PROMPT),
        "vllm:time_to_first_token_seconds_count": 0,
        "vllm:inter_token_latency_seconds_count": LENGTH - 31,
        "laneway_requests_resumed_total": 1,
    }
    assert {name: total(after, name) - total(before, name) for name in counted} == counted
    made = after.tokens_made - before.tokens_made - (after.tokens_overrun - before.tokens_overrun)
    assert made == LENGTH - 30


async def test_of_a_resumed_text_only_what_was_made_here_can_be_lost(
    subject: Subject, peer: Peer, connect: Connect
) -> None:
    leaving = await connect(subject.process)
    before = await report_of(peer)
    frame = whole(leaving, subject, prompt_ids=[*PROMPT, *range(500, 530)], resumed=30, max_tokens=33)
    running = whole(leaving, subject, prompt_ids=[*PROMPT, *range(500, 530)], resumed=30, max_tokens=1500)
    leaving.send(frame, running)
    await leaving.expect(Finished)
    await leaving.close()
    while (after := await report_of(peer)).running:
        pass
    made = after.tokens_made - before.tokens_made - (after.tokens_overrun - before.tokens_overrun)
    assert after.tokens_lost - before.tokens_lost == made < 1500


# ---- load refuses none


async def test_a_full_queue_and_a_long_wait_refuse_no_resumed_request(start_engine: Start, connect: Connect) -> None:
    tiers = [
        {"name": t.name, "service_tier": t.service_tier, "queue_max": 2, "queue_target_ms": 1000} for t in SHIPPED_TIERS
    ]
    peer = await connect(start_engine({"step_ms": 20.0}, tiers=tiers, sequences_max=1))
    peer.send(peer.submit(1, max_tokens=4000, stop_ids=[]))
    await peer.expect(Tokens)
    peer.send(peer.submit(2), peer.submit(3))
    made = list(range(400, 404))
    for handle in range(4, 12):
        peer.send(peer.submit(handle, prompt_ids=[*range(300, 320), *made], resumed=4))
    peer.send(peer.submit(12))
    refused = await peer.expect(Refused)
    assert (refused.handle, refused.code) == (12, "queue_full")
    peer.send(Abort(1))
    order: list[int] = []
    while len(order) < 11:
        frame = await peer.next()
        assert not isinstance(frame, Refused)
        if isinstance(frame, Finished):
            order.append(frame.handle)
    # They are before requests that never ran, the oldest first, as preempted ones are.
    assert order == [1, *range(4, 12), 2, 3]
