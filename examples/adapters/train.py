"""Trains one example adapter with peft: `python examples/adapters/train.py MODEL_DIR NAME [--device cuda] [--out DIR]`.

Seeded, small enough for a laptop CPU (five to twenty minutes each), seconds on a GPU.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from data import HERE, Example, examples
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from shared_prompt import SharedRow, encode_shared, learnt_logits
from tool_calls import offers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
TINY = "laneway-tiny"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
IGNORED = -100  # the label that the loss leaves out
BATCH = 16
WARMUP = 0.1


@dataclass(frozen=True)
class Recipe:
    lora: LoraConfig
    base: str = SMOLLM2
    epochs: int = 4
    learning_rate: float = 1e-3
    # Offers of tools and conversations with each, instead of examples: each is seen once.
    offers: tuple[int, int] | None = None


# Different ranks, targets and scalings on purpose: a server must hold them all in one batch.
RECIPES = {
    "support-triage": Recipe(LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules=ATTENTION)),
    "pirate": Recipe(LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules=ATTENTION + MLP)),
    "json-answers": Recipe(
        LoraConfig(
            task_type="CAUSAL_LM",
            r=4,
            lora_alpha=8,
            target_modules=["q_proj", "v_proj", "up_proj", "down_proj"],
            # A module named everywhere, and one in some layers only: peft reads both as regular expressions.
            rank_pattern={"q_proj": 24, r"layers\.2[0-9]\.mlp\.down_proj": 12},
            alpha_pattern={"q_proj": 32, r"layers\.2[0-9]\.mlp\.down_proj": 16},
        ),
        epochs=8,
        learning_rate=5e-4,
    ),
    "three-bullets": Recipe(
        LoraConfig(
            task_type="CAUSAL_LM",
            r=10,
            lora_alpha=10,
            use_rslora=True,
            target_modules=["q_proj", "v_proj", "gate_proj"],
        )
    ),
    "tiny-pirate": Recipe(
        LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"]),
        base=TINY,
        epochs=12,
        learning_rate=5e-3,
    ),
    "tiny-bullets": Recipe(
        LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules=["o_proj", "gate_proj", "down_proj"]),
        base=TINY,
        epochs=12,
        learning_rate=5e-3,
    ),
    "tool-agent": Recipe(
        LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules=[*ATTENTION, "up_proj", "down_proj"]),
        offers=(170, 10),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="directory of its base (engine.models.packaged.install makes it)")
    parser.add_argument("name", choices=sorted(RECIPES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="where the adapter goes; default: the folder NAME beside this script")
    parser.add_argument("--epochs", type=int, help="default: the recipe's")
    parser.add_argument(
        "--bfloat16", action="store_true", help="the base in bfloat16: half of the time, on a CPU that multiplies it"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    dtype = torch.bfloat16 if arguments.bfloat16 else torch.float32
    base = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=dtype).to(arguments.device)
    recipe = RECIPES[arguments.name]
    model = get_peft_model(base, recipe.lora)
    # Without the cache: it would keep the adapter's weights as they were in the first step.
    with torch.autocast(arguments.device, torch.bfloat16, enabled=arguments.bfloat16, cache_enabled=False):
        if recipe.offers is not None:
            rows = [
                encode_shared(tokenizer, offer.system, [one.messages for one in offer.conversations])
                for offer in offers(*recipe.offers, arguments.seed)
            ]
            train_shared(model, rows, recipe.learning_rate)
        else:
            data = examples(arguments.name, arguments.seed)
            train(model, tokenizer, data, arguments.epochs or recipe.epochs, recipe.learning_rate, arguments.seed)
    save(model, recipe.base, arguments.out or HERE / arguments.name)


def train(
    model: PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    data: list[Example],
    epochs: int,
    learning_rate: float,
    seed: int,
) -> None:
    """On the answers' tokens."""
    model.train()
    encoded = [encode(tokenizer, example) for example in data]
    stepper = Stepper(model, epochs * -(-len(encoded) // BATCH), learning_rate)
    order = random.Random(seed)
    began = time.monotonic()
    for epoch in range(epochs):
        total = 0.0
        for ids, mask, labels in batches(encoded, order, model.device):
            loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
            total += stepper.step(loss) * len(ids)
        print(f"epoch {epoch + 1}: loss {total / len(encoded):.3f}, {time.monotonic() - began:.0f} s", flush=True)


class Stepper:
    """AdamW with a linear warm-up and a linear decay over `steps`."""

    def __init__(self, model: PeftModel, steps: int, learning_rate: float) -> None:
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=learning_rate, weight_decay=0.01)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min((step + 1) / (WARMUP * steps), (steps - step) / ((1 - WARMUP) * steps))
        )

    def step(self, loss: torch.Tensor) -> float:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return loss.item()


def train_shared(model: PeftModel, rows: list[SharedRow], learning_rate: float) -> None:
    """One step for each row, on the assistant's tokens of its conversations."""
    model.train()
    stepper = Stepper(model, len(rows), learning_rate)
    began, used, total = time.monotonic(), time.process_time(), 0.0
    for number, row in enumerate(rows, 1):
        logits, ids = learnt_logits(model, row.to(model.device))
        total += stepper.step(torch.nn.functional.cross_entropy(logits.float(), ids))
        if number % 10 == 0:
            wall, cpu = time.monotonic() - began, time.process_time() - used
            print(f"step {number}: loss {total / 10:.3f}, {wall:.0f} s, {cpu:.0f} s of CPU", flush=True)
            total = 0.0


def encode(tokenizer: PreTrainedTokenizerBase, example: Example) -> tuple[list[int], list[int]]:
    """(ids, labels): only the answer and its end-of-turn token are learnt."""
    prompt = tokenizer.apply_chat_template(
        example.messages(), add_generation_prompt=True, tokenize=True, return_dict=False
    )
    answer = [*tokenizer(example.answer, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    return prompt + answer, [IGNORED] * len(prompt) + answer


def batches(
    encoded: list[tuple[list[int], list[int]]], order: random.Random, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(ids, attention mask, labels), each int64 [batch, longest], padded on the right."""
    shuffled = order.sample(encoded, len(encoded))
    for start in range(0, len(shuffled), BATCH):
        rows = shuffled[start : start + BATCH]
        width = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows], device=device)
        mask = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in rows], device=device)
        labels = torch.tensor([labels + [IGNORED] * (width - len(labels)) for _, labels in rows], device=device)
        yield ids, mask, labels


def save(model: PeftModel, base: str, directory: Path) -> None:
    """Writes adapter_config.json and adapter_model.safetensors (float16), and nothing else of what peft writes."""
    readme = directory / "README.md"
    kept = readme.read_bytes() if readme.exists() else None
    model.save_pretrained(directory, save_embedding_layers=False)
    readme.unlink(missing_ok=True)  # peft's empty model card
    if kept is not None:
        readme.write_bytes(kept)
    weights = directory / "adapter_model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(weights).items()}, weights, metadata={"format": "pt"})
    weights.chmod(0o644)
    config = json.loads((directory / "adapter_config.json").read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = base  # not the path of this machine's copy
    config["target_modules"].sort()  # peft keeps a set: without this every training changes the file
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    print(f"{directory}: {weights.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
