"""What tool-agent does on held-out conversations. An answer is right if greedy decoding makes exactly the expected
text: every id of it is the likeliest after the ids before it."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from peft import PeftModel
from shared_prompt import SharedRow, encode_shared, learnt_logits
from tool_calls import FAMILIES, UNTRAINED, Offer, judged
from transformers import PreTrainedTokenizerBase

OFFERS, CONVERSATIONS = 50, 5
UNTRAINED_OFFERS = 12
SAMPLES = 5
MAX_NEW_TOKENS = 64
CALLS, ANSWERS, NO_CALL = "the call: tool and arguments", "the answer after the result", "no call"


def answers(row: SharedRow, logits: torch.Tensor) -> Iterator[tuple[int, list[bool]]]:
    """For each answer of a row its conversation, and whether each of its ids is the likeliest. `logits`: [learnt,
    vocab]."""
    at = row.learnt.nonzero()[:, 0]
    likeliest = (logits.argmax(-1) == row.ids[at]).tolist()
    begins = [0, *(n for n in range(1, len(at)) if at[n] != at[n - 1] + 1), len(at)]
    for begin, end in itertools.pairwise(begins):
        yield int(row.owners[at[begin]]), likeliest[begin:end]


@torch.inference_mode()
def judge(model: PeftModel, tokenizer: PreTrainedTokenizerBase, offers: list[Offer]) -> Counter[tuple[str, str, bool]]:
    """How often: (family, what was judged, whether it was right)."""
    counts: Counter[tuple[str, str, bool]] = Counter()
    for offer in offers:
        row = encode_shared(tokenizer, offer.system, [one.messages for one in offer.conversations])
        logits, _ = learnt_logits(model, row)
        turns: Counter[int] = Counter()
        for owner, right in answers(row, logits):
            kind, turn = offer.conversations[owner].kind, turns[owner]
            turns[owner] += 1
            if kind in ("plain", "unoffered"):
                # Another text is as good, as long as it is no call: a call begins with an id of its own.
                begin = int(logits[_offset(row, owner)].argmax())
                counts[kind, NO_CALL, not str(tokenizer.decode(begin)).startswith("<")] += 1
            elif turn < 2:
                counts[kind, (CALLS, ANSWERS)[turn], all(right)] += 1
    return counts


def _offset(row: SharedRow, owner: int) -> int:
    """The row of the logits from which the conversation's first answer begins."""
    at = row.learnt.nonzero()[:, 0]
    return int((row.owners[at] == owner).nonzero()[0, 0])


def share(counts: Counter[tuple[str, str, bool]], what: str, kinds: set[str] | None = None) -> str:
    right = sum(n for (kind, judged_, good), n in counts.items() if good and judged_ == what and _in(kind, kinds))
    whole = sum(n for (kind, judged_, _), n in counts.items() if judged_ == what and _in(kind, kinds))
    return f"{right} of {whole} ({right / whole:.0%})" if whole else "–"


def _in(kind: str, kinds: set[str] | None) -> bool:
    return kinds is None or kind in kinds


def tables(model: PeftModel, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Markdown: the accuracy on held-out values, without and with the adapter, and on tools never trained."""
    held_out = judged(OFFERS, CONVERSATIONS)
    others = judged(UNTRAINED_OFFERS, CONVERSATIONS, untrained=True)
    found = judge(model, tokenizer, held_out)
    new = judge(model, tokenizer, others)
    with model.disable_adapter():
        before, new_before = judge(model, tokenizer, held_out), judge(model, tokenizer, others)
    lines = ["| | without | with |", "|---|---|---|"]
    for title, what, kinds in (
        ("right tool and right arguments", CALLS, None),
        ("the expected sentence after the result", ANSWERS, None),
        ("no call for a question that no tool answers", NO_CALL, {"plain"}),
        ("no call for a question whose tool is not offered", NO_CALL, {"unoffered"}),
    ):
        lines.append(f"| {title} | {share(before, what, kinds)} | {share(found, what, kinds)} |")
    title = "right tool and right arguments, of tools that no training had"
    lines.append(f"| {title} | {share(new_before, CALLS)} | {share(new, CALLS)} |")
    lines += ["", "| tool | right tool and right arguments | the expected sentence |", "|---|---|---|"]
    for kind in FAMILIES:
        name = FAMILIES[kind].names[0][0]
        lines.append(f"| {name} | {share(found, CALLS, {kind})} | {share(found, ANSWERS, {kind})} |")
    for kind in UNTRAINED:
        name = UNTRAINED[kind].names[0][0]
        lines.append(f"| {name} (not trained) | {share(new, CALLS, {kind})} | {share(new, ANSWERS, {kind})} |")
    return lines


def samples() -> Iterator[tuple[dict[str, Any], list[dict[str, Any]], list[str]]]:
    """(system message, messages before an answer, names of the tools): the first exchange with each of some tools."""
    seen: set[str] = set()
    for offer in judged(OFFERS, CONVERSATIONS):
        tools = [json.loads(line) for line in offer.system["content"].splitlines() if line.startswith('{"type"')]
        for one in offer.conversations:
            if one.kind not in (*seen, "unoffered") and len(tools) > 1 and len(seen) < SAMPLES:
                seen.add(one.kind)
                yield offer.system, one.messages, [tool["function"]["name"] for tool in tools]


@torch.inference_mode()
def greedy_answer(model: PeftModel, tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]]) -> str:
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    cut = "" if ids[-1] == tokenizer.eos_token_id else " …"
    return str(tokenizer.decode(ids, skip_special_tokens=True)).strip() + cut
