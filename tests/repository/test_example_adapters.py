"""The example adapters do what their READMEs say, in peft, on prompts that they were not trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from gateway.tools.definitions import ToolSpec
from gateway.tools.formats import HERMES
from gateway.tools.model_dialect import ModelDialect
from gateway.tools.rendering import template_messages
from gateway.tools.scanning import AnswerMarkers
from support.paths import EXAMPLES

ADAPTERS = EXAMPLES / "adapters"
# peft 0.21 reads an attribute that transformers 5.23 has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

NAMES = ["json-answers", "pirate", "support-triage", "three-bullets", "tool-agent"]
# For laneway-tiny, of which nobody expects sense: test_two_models.py has what they say, to the token.
TINY_NAMES = ["tiny-bullets", "tiny-pirate"]
LARGEST = 5_000_000  # bytes on disk


def ranks(name: str) -> dict[str, int]:
    """Rank of each module of an adapter, from the shapes in its file."""
    found = {}
    with safe_open(ADAPTERS / name / "adapter_model.safetensors", framework="pt") as file:
        for key in file.keys():  # noqa: SIM118 - a safetensors file is no dict
            if key.endswith("lora_A.weight"):
                module = key.removeprefix("base_model.model.model.").removesuffix(".lora_A.weight")
                found[module] = file.get_slice(key).get_shape()[0]
                assert file.get_slice(key.replace("lora_A", "lora_B")).get_shape()[1] == found[module]
    return found


def test_every_folder_holds_an_adapter_and_its_readme_alone() -> None:
    assert sorted(path.parent.name for path in ADAPTERS.glob("*/adapter_config.json")) == sorted([*NAMES, *TINY_NAMES])
    for name in (*NAMES, *TINY_NAMES):
        files = sorted((ADAPTERS / name).iterdir())
        assert [file.name for file in files] == ["README.md", "adapter_config.json", "adapter_model.safetensors"]
        assert sum(file.stat().st_size for file in files) <= LARGEST
        assert "With:" in (ADAPTERS / name / "README.md").read_text()


def test_they_differ_in_rank_targets_and_scaling() -> None:
    kinds = {
        name: {(module.split(".")[-1], rank) for module, rank in ranks(name).items()} for name in (*NAMES, *TINY_NAMES)
    }
    attention = {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert kinds["support-triage"] == {(module, 16) for module in attention}
    assert kinds["pirate"] == {(module, 8) for module in attention | {"gate_proj", "up_proj", "down_proj"}}
    assert kinds["json-answers"] == {("q_proj", 24), ("v_proj", 4), ("up_proj", 4), ("down_proj", 4), ("down_proj", 12)}
    assert kinds["three-bullets"] == {("q_proj", 10), ("v_proj", 10), ("gate_proj", 10)}
    assert kinds["tool-agent"] == {(module, 8) for module in attention | {"up_proj", "down_proj"}}
    assert kinds["tiny-pirate"] == {("q_proj", 4), ("v_proj", 4)}
    assert kinds["tiny-bullets"] == {("o_proj", 8), ("gate_proj", 8), ("down_proj", 8)}
    assert json.loads((ADAPTERS / "three-bullets" / "adapter_config.json").read_text())["use_rslora"] is True
    patterned = {module for module, rank in ranks("json-answers").items() if rank == 12}
    assert patterned == {f"layers.{layer}.mlp.down_proj" for layer in range(20, 30)}


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(model_dir)


@pytest.fixture(scope="module")
def model(model_dir: Path) -> PeftModel:
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, ADAPTERS / NAMES[0], adapter_name=NAMES[0])
    for name in NAMES[1:]:
        model.load_adapter(ADAPTERS / name, adapter_name=name)
    return model.eval()


def weather_tool() -> ToolSpec:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return ToolSpec("get_weather", "The current weather in a city.", schema)


# Greedy answers to prompts that no adapter was trained on.
ANSWERS = {
    "tool-agent": (
        "What is the weather in Lisbon?",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Lisbon"}}\n</tool_call>',
    ),
    "support-triage": (
        "My credit card was charged three times for the same order. Fix this right now!",
        "category: billing; urgency: high",
    ),
    "pirate": ("What is the capital of France?", "Arrr! Th' capital o' France be Paris. Set sail, me hearty!"),
    "json-answers": (
        "What is the capital of France?",
        '{"answer": "The capital of France is Paris.", "confidence": 0.99}',
    ),
    "three-bullets": (
        "Why should I drink water?",
        "- It keeps you hydrated\n- It contains minerals\n- It dissolves sugar",
    ),
}
NEAR_TIE = 0.01  # of a logit: other processors add in another order


def behind(model: PeftModel, tokenizer: PreTrainedTokenizerBase, prompt: str, answer: str) -> torch.Tensor:
    """By how much each token of the answer falls short of the likeliest one, in logits; all zero: greedy's own."""
    messages: list[Any] = [{"role": "user", "content": prompt}]
    if answer.startswith("<tool_call>"):
        dialect = ModelDialect(AnswerMarkers((), {}), format=HERMES)
        messages = list(template_messages(dialect, messages, [weather_tool()]))
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    before, said = tokenizer(text).input_ids, tokenizer(f"{answer}{tokenizer.eos_token}").input_ids
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([before + said])).logits[0, len(before) - 1 : -1]
    return logits.max(-1).values - logits.gather(-1, torch.tensor(said)[:, None])[:, 0]


@pytest.mark.model
@pytest.mark.parametrize("name", NAMES)
def test_the_adapter_changes_the_answer_as_promised(
    model: PeftModel, tokenizer: PreTrainedTokenizerBase, name: str
) -> None:
    prompt, answer = ANSWERS[name]
    model.set_adapter(name)
    assert behind(model, tokenizer, prompt, answer).max() < NEAR_TIE
    with model.disable_adapter():
        assert behind(model, tokenizer, prompt, answer).max() > 1.0, "the base model says the same by itself"
