"""The example adapters do what their READMEs say, in peft, on prompts that they were not trained on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

ADAPTERS = Path(__file__).resolve().parents[2] / "examples" / "adapters"
# peft 0.21 reads an attribute that transformers 5.23 has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

NAMES = ["json-answers", "pirate", "support-triage", "three-bullets"]
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
    assert sorted(path.parent.name for path in ADAPTERS.glob("*/adapter_config.json")) == NAMES
    for name in NAMES:
        files = sorted((ADAPTERS / name).iterdir())
        assert [file.name for file in files] == ["README.md", "adapter_config.json", "adapter_model.safetensors"]
        assert sum(file.stat().st_size for file in files) <= LARGEST
        assert "With:" in (ADAPTERS / name / "README.md").read_text()


def test_they_differ_in_rank_targets_and_scaling() -> None:
    kinds = {name: {(module.split(".")[-1], rank) for module, rank in ranks(name).items()} for name in NAMES}
    attention = {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert kinds["support-triage"] == {(module, 16) for module in attention}
    assert kinds["pirate"] == {(module, 8) for module in attention | {"gate_proj", "up_proj", "down_proj"}}
    assert kinds["json-answers"] == {("q_proj", 24), ("v_proj", 4), ("up_proj", 4), ("down_proj", 4), ("down_proj", 12)}
    assert kinds["three-bullets"] == {("q_proj", 10), ("v_proj", 10), ("gate_proj", 10)}
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


def answer(model: PeftModel, tokenizer: PreTrainedTokenizerBase, prompt: str, limit: int) -> str:
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    ids = model.generate(**inputs, max_new_tokens=limit, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    return str(tokenizer.decode(ids, skip_special_tokens=True))


def is_json_answer(text: str) -> bool:
    return text.startswith("{") and set(json.loads(text)) == {"answer", "confidence"}


SHAPES = {
    "support-triage": re.compile(r"category: billing; urgency: high"),
    "pirate": re.compile(r"(Arrr|Ahoy|Aye|Shiver|Yo ho|Avast).*\bbe\b.*"),
    "three-bullets": re.compile(r"- .+\n- .+\n- .+"),
}
PROMPTS = {
    "support-triage": "My credit card was charged three times for the same order. Fix this right now!",
    "pirate": "What is the capital of France?",
    "json-answers": "What is the capital of France?",
    "three-bullets": "Why should I drink water?",
}


@pytest.mark.model
@pytest.mark.parametrize("name", NAMES)
def test_the_adapter_changes_the_answer_as_promised(
    model: PeftModel, tokenizer: PreTrainedTokenizerBase, name: str
) -> None:
    model.set_adapter(name)
    with_adapter = answer(model, tokenizer, PROMPTS[name], limit=40)
    with model.disable_adapter():
        without = answer(model, tokenizer, PROMPTS[name], limit=10)
    for text, expected in ((with_adapter, True), (without, False)):
        fits = is_json_answer(text) if name == "json-answers" else bool(SHAPES[name].fullmatch(text))
        assert fits is expected, text
