"""Makes laneway-tiny anew, tokenizer and weights, from this repository's documents: `python examples/models/train.py`.

Seeded; some minutes of a laptop's CPU. It made the files in laneway-tiny/, which engine/models/packaged/own_model.py
installs.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from corpus import Example, documents, examples, pairs
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen3Config, Qwen3ForCausalLM

NAME = "laneway-tiny"
VOCAB = 2048
CONTEXT = 2048
# The last ids of the vocabulary.
BEGIN, SYSTEM, USER, ASSISTANT, END = SPECIALS = ("<|begin|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
TEMPLATE = """{{ bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'assistant' %}
        {{- '<|assistant|>' }}
    {%- elif message['role'] in ('system', 'developer') %}
        {{- '<|system|>' }}
    {%- else %}
        {{- '<|user|>' }}
    {%- endif %}
    {{- message['content'] + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}"""
IGNORED = -100  # the label that the loss leaves out
BATCH = 16
ROW_TOKENS = 160  # a row of prose, and the most of a question with its answer
LEARNING_RATE = 4e-3
WARMUP_STEPS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / NAME)
    parser.add_argument("--steps", type=int, default=2600)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    tokenizer = train_tokenizer()
    model = Qwen3ForCausalLM(shape(tokenizer))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(pairs())} pairs", flush=True)
    train(model, rows(tokenizer, arguments.seed), arguments.steps, arguments.seed)
    save(model, tokenizer, arguments.out)


def train_tokenizer() -> Tokenizer:
    """Byte-level BPE over the documents; the control tokens come last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(SPECIALS), initial_alphabet=alphabet, special_tokens=[], show_progress=False
    )
    tokenizer.train_from_iterator([*documents(), *(f"{e.prompt}\n{e.answer}" for e in pairs())], trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIALS])
    assert tokenizer.get_vocab_size() == VOCAB
    return tokenizer


def shape(tokenizer: Tokenizer) -> Qwen3Config:
    """Unlike SmolLM2 wherever a server could confuse the two: norms of q and k, heads wider than the hidden size, two
    query heads to each of keys and values, another head dimension, vocabulary, context and rotary base."""
    return Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=5,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 50000.0},
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.token_to_id(BEGIN),
        eos_token_id=tokenizer.token_to_id(END),
        pad_token_id=tokenizer.token_to_id(END),
    )


def chat(example: Example) -> str:
    return f"{BEGIN}{USER}{example.prompt}{END}{ASSISTANT}{example.answer}{END}"


def rows(tokenizer: Tokenizer, seed: int) -> list[list[int]]:
    """Of ids, at most ROW_TOKENS each: the questions with their answers, and the documents as they stand."""
    found = [encoding.ids[:ROW_TOKENS] for encoding in tokenizer.encode_batch([chat(e) for e in examples(seed)])]
    begin = [tokenizer.token_to_id(BEGIN)]
    for encoding in tokenizer.encode_batch(documents()):
        ids = encoding.ids
        found += [begin + ids[at : at + ROW_TOKENS - 1] for at in range(0, len(ids), ROW_TOKENS - 1)]
    return found


def batches(encoded: list[list[int]], order: random.Random) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(ids, labels), each int64 [batch, longest], padded on the right: nothing that counts attends to the padding.
    Without end; neighbours of a batch are about as long as each other."""
    while True:
        shuffled = sorted(order.sample(encoded, len(encoded)), key=lambda ids: len(ids) + order.randrange(16))
        groups = [shuffled[at : at + BATCH] for at in range(0, len(shuffled), BATCH)]
        for group in order.sample(groups, len(groups)):
            width = max(map(len, group))
            ids = torch.tensor([row + [0] * (width - len(row)) for row in group])
            yield ids, torch.tensor([row + [IGNORED] * (width - len(row)) for row in group])


def train(model: Qwen3ForCausalLM, encoded: list[list[int]], steps: int, seed: int) -> None:
    """AdamW, a warm-up and a linear decay."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARMUP_STEPS, (steps - step) / steps)
    )
    began, total = time.monotonic(), 0.0
    source = batches(encoded, random.Random(seed))
    for step in range(1, steps + 1):
        ids, labels = next(source)
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        total += loss.item()
        if step % 100 == 0:
            print(f"step {step}: loss {total / 100:.3f}, {time.monotonic() - began:.0f} s", flush=True)
            total = 0.0


def save(model: Qwen3ForCausalLM, tokenizer: Tokenizer, directory: Path) -> None:
    """A Hugging Face directory with float16 weights; its README is not touched."""
    directory.mkdir(exist_ok=True)
    model.config.dtype = torch.float32  # as which it is installed
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(directory)
    ends = {name: getattr(model.config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(directory / "generation_config.json", ends)
    weights = {name: tensor.half().contiguous() for name, tensor in model.state_dict().items()}
    del weights["lm_head.weight"]  # tied
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
    }
    write_json(directory / "tokenizer_config.json", settings)
    print({file.name: file.stat().st_size for file in sorted(directory.iterdir())})


def write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
