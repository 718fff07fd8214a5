"""Configurations of LoRA as peft has them: ranks, scales, patterns and modules of many kinds."""

from __future__ import annotations

from typing import Any

CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {"r": 8, "lora_alpha": 16},
    "attention only, odd rank": {"r": 5, "lora_alpha": 3, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
    "rslora, several tiles": {"r": 40, "lora_alpha": 8, "use_rslora": True},
    "patterns": {
        "r": 4,
        "lora_alpha": 8,
        "rank_pattern": {"q_proj": 17, r"layers\.1\.mlp\.up_proj": 33},
        "alpha_pattern": {"v_proj": 1, "layers.2.mlp.down_proj": 64},
    },
    "two modules of two layers": {"r": 1, "target_modules": ["v_proj", "gate_proj"], "layers_to_transform": [0, 2]},
    "one module": {"r": 16, "target_modules": r".*\.1\..*down_proj"},
}
