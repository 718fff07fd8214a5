"""Trains on conversations that share their first message: the message is computed once for all of them. A row is the
shared ids and then each conversation, which sees the shared ids and itself alone, at the positions that it has in a
prompt of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]
SHARED = -1  # the conversation of the shared ids


@dataclass(frozen=True)
class SharedRow:
    """Ids, positions, the conversation of each id, and whether the id is one of the assistant's: [ids] each."""

    ids: torch.Tensor
    positions: torch.Tensor
    owners: torch.Tensor
    learnt: torch.Tensor

    def to(self, device: torch.device) -> SharedRow:
        return SharedRow(*(one.to(device) for one in (self.ids, self.positions, self.owners, self.learnt)))

    def mask(self) -> torch.Tensor:
        """bool [1, 1, ids, ids]: which ids each id sees."""
        owners = self.owners
        own = (owners[:, None] == owners[None, :]) | (owners[None, :] == SHARED)
        return (own & torch.ones(len(owners), len(owners), dtype=torch.bool).tril().to(owners.device))[None, None]


def encode_shared(tokenizer: PreTrainedTokenizerBase, first: Message, conversations: list[list[Message]]) -> SharedRow:
    def ids_of(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False).input_ids)

    def rendered(messages: list[Message], *, prompt: bool = False) -> str:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt))

    head = rendered([first])
    ids = ids_of(head)
    positions, owners, learnt = list(range(len(ids))), [SHARED] * len(ids), [False] * len(ids)
    for owner, messages in enumerate(conversations):
        at, said = len(ids_of(head)), head
        for number, message in enumerate(messages, 1):
            whole = rendered([first, *messages[:number]])
            pieces = [(whole[len(said) :], False)]
            if message["role"] == "assistant":
                prompt = rendered([first, *messages[: number - 1]], prompt=True)
                answer, end, rest = whole[len(prompt) :].rpartition(str(tokenizer.eos_token))
                pieces = [(prompt[len(said) :], False), (answer + end, True), (rest, False)]
            for text, is_answer in pieces:
                piece = ids_of(text)
                ids += piece
                positions += range(at, at + len(piece))
                owners += [owner] * len(piece)
                learnt += [is_answer] * len(piece)
                at += len(piece)
            said = whole
    return SharedRow(torch.tensor(ids), torch.tensor(positions), torch.tensor(owners), torch.tensor(learnt))


def learnt_logits(model: Any, row: SharedRow) -> tuple[torch.Tensor, torch.Tensor]:
    """(logits [learnt, vocab], the ids that should follow [learnt]). `model`: a causal model, or peft's of one."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    hidden = causal.model(
        input_ids=row.ids[None], attention_mask=row.mask(), position_ids=row.positions[None], use_cache=False
    ).last_hidden_state[0]
    at = row.learnt.nonzero()[:, 0]
    return causal.lm_head(hidden[at - 1]), row.ids[at]
