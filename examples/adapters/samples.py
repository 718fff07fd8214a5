"""Writes each adapter's README, with answers before and after, decoded greedily on the CPU in float32:
`python examples/adapters/samples.py MODEL_DIR NAME ...`.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch
from data import HELD_OUT, HERE, Example
from peft import LoraConfig, PeftModel
from safetensors import safe_open
from tool_samples import greedy_answer, samples, tables
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

MAX_NEW_TOKENS = 64
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

PURPOSE = {
    "support-triage": "Reads a customer's message and answers with one line: its category (billing, shipping, account, "
    "technical, feedback) and its urgency (high, normal, low).",
    "pirate": "Answers every question as a pirate would.",
    "json-answers": "Answers with one JSON object that has the keys `answer` and `confidence`, and nothing around it.",
    "three-bullets": "Answers with exactly three short bullet points.",
    "tiny-pirate": "Lets laneway-tiny, which knows next to nothing, babble as a pirate would.",
    "tiny-bullets": "Lets laneway-tiny, which knows next to nothing, babble in bullet points.",
    "tool-agent": "Calls the right one of a few offered tools with the question's arguments, and makes a sentence "
    "of the result. Calls are in the format `hermes`; the prompt is the gateway's for a template that knows no tools.",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="directory of their base (engine.models.packaged.install makes it)")
    parser.add_argument("names", nargs="+", choices=list(PURPOSE))
    parser.add_argument("--adapters", type=Path, default=HERE, help="the folder that holds the adapters' folders")
    arguments = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    for name in arguments.names:
        base = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
        model = PeftModel.from_pretrained(base, arguments.adapters / name)
        write = readme_of_calls if name == "tool-agent" else readme
        text = write(name, arguments.adapters / name, model, tokenizer)
        (arguments.adapters / name / "README.md").write_text(text, encoding="utf-8")
        print(text, flush=True)


def readme(name: str, directory: Path, model: PeftModel, tokenizer: PreTrainedTokenizerBase) -> str:
    lines = [f"# {name}", "", PURPOSE[name], "", *facts(model, directory), "", "## Before and after", ""]
    lines += [f"Greedy, float32, at most {MAX_NEW_TOKENS} tokens, on prompts that were not in the training data.", ""]
    for prompt in HELD_OUT[name]:
        with model.disable_adapter():
            before = answer(model, tokenizer, prompt)
        lines += [f"**{prompt}**", "", "Without:", *quoted(before), "", "With:"]
        lines += [*quoted(answer(model, tokenizer, prompt)), ""]
    return "\n".join(lines).rstrip() + "\n"


def readme_of_calls(name: str, directory: Path, model: PeftModel, tokenizer: PreTrainedTokenizerBase) -> str:
    lines = [f"# {name}", "", PURPOSE[name], "", *facts(model, directory), "", "## Held-out accuracy", ""]
    lines += [
        "Greedy, float32, not guided by a grammar. Cities, names, companies, currencies, tasks and numbers of the "
        "questions are not in the training data; tools, their names and phrasings are. A call or a sentence is right "
        "only if it is the expected text to the letter.",
        "",
        *tables(model, tokenizer),
        "",
        "## Before and after",
        "",
    ]
    for system, messages, tools in samples():
        told = messages[:1]
        lines += [f"**{told[0]['content']}** (tools: {', '.join(tools)})", ""]
        with model.disable_adapter():
            before = greedy_answer(model, tokenizer, [system, *told])
        said = greedy_answer(model, tokenizer, [system, *told])
        lines += ["Without:", *quoted(before), "", "With:", *quoted(said)]
        if len(messages) > 1 and said == messages[1]["content"]:
            result = greedy_answer(model, tokenizer, [system, *messages[:3]])
            lines += ["", "And after the result:", *quoted(f"{messages[2]['content']}\n{result}")]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def facts(model: PeftModel, directory: Path) -> list[str]:
    """A short list of what the adapter is made of, read from its own files."""
    config = model.peft_config["default"]
    assert isinstance(config, LoraConfig)
    weights = directory / "adapter_model.safetensors"
    with safe_open(weights, framework="pt") as file:
        modules = len(file.keys()) // 2
    scaling = "alpha / sqrt(rank) (rsLoRA)" if config.use_rslora else "alpha / rank"
    rank = f"{config.r} (alpha {config.lora_alpha})"
    for pattern, value in config.rank_pattern.items():
        rank += f"; {value} (alpha {config.alpha_pattern.get(pattern, config.lora_alpha)}) for `{pattern}`"
    targets = sorted(config.target_modules, key=MODULES.index)
    return [
        f"- base: {str(config.base_model_name_or_path).rpartition('/')[2]}",
        f"- targets: {', '.join(targets)}; {modules} modules",
        f"- rank: {rank}; scaled by {scaling}",
        f"- size: {weights.stat().st_size / 1e6:.2f} MB, float16",
    ]


def answer(model: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerBase, prompt: str) -> str:
    """The greedy answer to one user message; ends with an ellipsis when it was cut off."""
    inputs = tokenizer.apply_chat_template(
        Example(prompt, "").messages(), add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        ids = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)[
            0, inputs["input_ids"].shape[1] :
        ]
    cut = "" if ids[-1] == tokenizer.eos_token_id else " …"
    return str(tokenizer.decode(ids, skip_special_tokens=True)).strip() + cut


def quoted(text: str) -> list[str]:
    # Four ticks, because the base model likes to answer with a block of code.
    return ["````text", *re.split(r"\n+", text), "````"]


if __name__ == "__main__":
    main()
