"""The oracle: the results of transformers and peft on the CPU in float32. Also small random models of every family.

The greedy ids that tests compare with are committed in tests/data; programs/write_oracle.py writes them.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from support.paths import REPO, TESTS

EXAMPLES = REPO / "examples" / "adapters"
COMMITTED = TESTS / "data" / "oracle.json"
SMOLLM2, TINY = "smollm2-135m-instruct", "laneway-tiny"
COMMITTED_OF = {SMOLLM2: COMMITTED, TINY: COMMITTED.with_name("oracle-tiny.json")}
BASE = ""  # the name of no adapter

FAMILIES = ("llama", "llama3-rope", "mistral", "qwen2", "qwen3", "tied")
TINY_VOCAB = 320
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def save_tiny(family: str, directory: Path, *, seed: int = 0, **changes: Any) -> Path:
    """Write a small random model of `family` as transformers does; `changes` go into its config."""
    import transformers as hf

    shape: dict[str, Any] = {
        "vocab_size": TINY_VOCAB,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "tie_word_embeddings": family == "tied",
        "head_dim": 8,
    }
    config_class, model_class = {
        "mistral": (hf.MistralConfig, hf.MistralForCausalLM),
        "qwen2": (hf.Qwen2Config, hf.Qwen2ForCausalLM),
        "qwen3": (hf.Qwen3Config, hf.Qwen3ForCausalLM),
    }.get(family, (hf.LlamaConfig, hf.LlamaForCausalLM))
    if family == "llama3-rope":
        shape["rope_parameters"] = LLAMA3_ROPE
    if family == "qwen2":
        del shape["head_dim"]
    if family == "qwen3":
        shape["head_dim"] = 16  # not hidden / heads
    torch.manual_seed(seed)
    model = model_class(config_class(**(shape | changes)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", "bias")):  # transformers starts them at one and zero, which hides mistakes
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(directory)
    return directory


def save_tiny_adapter(model: Any, directory: Path, *, seed: int = 0, **lora: Any) -> Path:
    """Write a random LoRA adapter for `model` as peft does, and resolve it so that an engine can load it; both factors
    are nonzero. `model` is unchanged."""
    import peft

    from adapters.files.check import resolve_stored

    torch.manual_seed(seed)
    with peft_on_transformers_5():
        wrapped = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **lora))
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.2)
    wrapped.save_pretrained(str(directory))
    wrapped.unload()
    resolve_stored(directory)
    return directory


def load(directory: Path, adapter: Path | None = None) -> Any:
    """A model ready to run, with the adapter's weights beside it and not merged."""
    import peft
    import transformers as hf

    hf.utils.logging.disable_progress_bar()
    model: Any = hf.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    if adapter is not None:
        with peft_on_transformers_5():
            model = peft.PeftModel.from_pretrained(model, adapter)
    return model.eval()


@contextmanager
def peft_on_transformers_5() -> Iterator[None]:
    """peft 0.21 asks transformers for a name that 5.23 calls deprecated."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        yield


@torch.inference_mode()
def logits(model: Any, ids: list[int]) -> torch.Tensor:
    """[tokens, vocab]"""
    result: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return result


@torch.inference_mode()
def greedy(model: Any, prompts: list[list[int]], new_tokens: int, stop_ids: Iterable[int] = ()) -> list[list[int]]:
    """The ids that greedy decoding makes for each prompt, up to and with the first of `stop_ids`. The prompts run
    together, padded on the left."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    out = model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    stops = frozenset(stop_ids)
    return [_until(row, stops) for row in out[:, width:].tolist()]


def _until(ids: list[int], stops: frozenset[int]) -> list[int]:
    for index, token in enumerate(ids):
        if token in stops:
            return ids[: index + 1]
    return ids


def example_adapters(base: str = SMOLLM2) -> list[str]:
    """The adapters that were trained for that base."""
    configs = {path.parent.name: json.loads(path.read_bytes()) for path in EXAMPLES.glob("*/adapter_config.json")}
    return sorted(n for n, c in configs.items() if c["base_model_name_or_path"].lower().rpartition("/")[2] == base)


def identities(model_dir: Path, base: str = SMOLLM2) -> dict[str, str]:
    """Content digests of the base model (under BASE) and of its example adapters, for which the committed ids hold."""
    from adapters.files.spec import BaseShape
    from adapters.files.store import AdapterStore
    from engine.contents.model_digests import model_digest
    from support.adapters.directories import add_directory

    shape = BaseShape.from_config(json.loads((model_dir / "config.json").read_bytes()))
    with tempfile.TemporaryDirectory() as scratch:
        store = AdapterStore(Path(scratch))
        digests = {name: add_directory(store, EXAMPLES / name, shape).digest for name in example_adapters(base)}
    return {BASE: model_digest(model_dir), **digests}


@torch.inference_mode()
def embedding(model: Any, ids: list[int], pooling: str) -> torch.Tensor:
    """[hidden]: the hidden states after the final norm, pooled and normalised to length 1."""
    hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0]
    pooled: torch.Tensor = hidden[-1] if pooling == "last" else hidden.mean(0)
    return torch.nn.functional.normalize(pooled, dim=0)
