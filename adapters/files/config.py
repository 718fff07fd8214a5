"""peft's adapter_config.json: which modules it targets, with which rank and scale; and which of its keys are refused.

It must never load peft or torch: the gateway reads configurations too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adapters.files.header import AdapterRefused, load_json
from adapters.files.patterns import PATTERNS_MAX, Names, Pattern, PatternBudget, PatternValues, StoredValues

CONFIG_BYTES_MAX = 1024 * 1024
RANK_MAX = 256
# A prefix of the path of layers, such as `layers` or `model.layers`. peft also takes regular expressions here.
LAYERS_PATTERNS_MAX = 16
LAYERS_PATTERN = re.compile(r"[A-Za-z0-9_]{1,64}(?:\.[A-Za-z0-9_]{1,64}){0,7}")

# Keys that describe the adapter's training or origin, and do not change the arithmetic of serving.
DESCRIPTIVE = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "eva_config",
        "inference_mode",
        "lora_dropout",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "task_type",
        "velora_config",
    }
)
# Keys that this module reads. Every other key must be null, false or empty, which is peft's default for all of them.
READ = frozenset(
    {
        "alpha_pattern",
        "bias",
        "exclude_modules",
        "fan_in_fan_out",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "lora_bias",
        "modules_to_save",
        "peft_type",
        "r",
        "rank_pattern",
        "target_modules",
        "use_dora",
        "use_rslora",
    }
)
# `init_lora_weights` that change the base model's own weights: without that changed base the adapter is another one.
BASE_CHANGING_INITS = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(slots=True, frozen=True)
class AdapterConfig:
    """The fields of the file that change the arithmetic, and the name of the base model for which the adapter was
    trained."""

    r: int
    lora_alpha: float
    use_rslora: bool
    rank_pattern: PatternValues[int]
    alpha_pattern: PatternValues[float] | StoredValues
    target_modules: Names | Pattern | None  # None: all modules in the file
    exclude_modules: Names | Pattern | None
    layers_to_transform: frozenset[int]  # empty: all
    layers_pattern: tuple[str, ...]
    base_model_name_or_path: str | None

    def rank(self, name: str) -> int:
        """Rank of a module by its full name, such as `model.layers.0.self_attn.q_proj`."""
        return self.rank_pattern.get(name, self.r)

    def scale(self, name: str) -> float:
        return self.scale_of_rank(name, self.rank(name))

    def scale_of_rank(self, name: str, rank: int) -> float:
        alpha = self.alpha_pattern.get(name, self.lora_alpha)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank

    def targets(self, name: str) -> bool:
        """Whether peft would put an adapter on this linear module."""
        if self.exclude_modules is not None and self.exclude_modules.matches(name):
            return False
        if self.target_modules is None:
            return True  # peft fills it in by architecture; then it is read from the tensors
        if not self.target_modules.matches(name):
            return False
        return isinstance(self.target_modules, Pattern) or self._transforms_layer_of(name)

    def _transforms_layer_of(self, name: str) -> bool:
        if not self.layers_to_transform:
            return True
        patterns = [rf"(?:^|.*?\.){pattern}" for pattern in self.layers_pattern] or [r".*?\.[^.]*"]
        found = next(filter(None, (re.match(rf"{pattern}\.(?P<layer>\d+)\.", name) for pattern in patterns)), None)
        return found is not None and int(found["layer"]) in self.layers_to_transform


def parse_config(data: bytes) -> AdapterConfig:
    """Raises AdapterRefused, naming the key."""
    if len(data) > CONFIG_BYTES_MAX:
        raise AdapterRefused(f"adapter_config.json: {len(data)} bytes, more than {CONFIG_BYTES_MAX}")
    raw = load_json(data, "adapter_config.json")
    if not isinstance(raw, dict):
        raise AdapterRefused("adapter_config.json: not a JSON object")
    _refuse_unserved(raw)
    base = raw.get("base_model_name_or_path")
    if base is not None and not isinstance(base, str):
        raise AdapterRefused("base_model_name_or_path: not a string")
    ranks = {key: _rank(f"rank_pattern.{key}", value) for key, value in _patterns("rank_pattern", raw)}
    alphas = {key: _number(f"alpha_pattern.{key}", value) for key, value in _patterns("alpha_pattern", raw)}
    budget = PatternBudget()
    return AdapterConfig(
        r=_rank("r", raw.get("r", 8)),
        lora_alpha=_number("lora_alpha", raw.get("lora_alpha", 8)),
        use_rslora=_boolean("use_rslora", raw.get("use_rslora")),
        rank_pattern=PatternValues("rank_pattern", ranks, budget),
        alpha_pattern=PatternValues("alpha_pattern", alphas, budget),
        target_modules=_target_modules(raw.get("target_modules"), budget),
        exclude_modules=_names("exclude_modules", raw.get("exclude_modules"), budget),
        layers_to_transform=_layers(raw.get("layers_to_transform")),
        layers_pattern=_layers_pattern(raw.get("layers_pattern")),
        base_model_name_or_path=base,
    )


def parse_stored_config(data: bytes) -> AdapterConfig:
    """The fields that determine the scales, for a stored adapter that was checked before modules were resolved. It
    targets all modules in the file. Matching its patterns may backtrack: only for a process whose CPU time is limited.
    Raises AdapterRefused."""
    raw = load_json(data, "adapter_config.json")
    if not isinstance(raw, dict):
        raise AdapterRefused("adapter_config.json: not a JSON object")
    alphas = {key: _number(f"alpha_pattern.{key}", value) for key, value in _patterns("alpha_pattern", raw)}
    by_pattern: PatternValues[float] | StoredValues
    try:
        by_pattern = PatternValues("alpha_pattern", alphas, PatternBudget())
    except AdapterRefused:
        by_pattern = StoredValues("alpha_pattern", alphas)
    return AdapterConfig(
        r=_rank("r", raw.get("r", 8)),
        lora_alpha=_number("lora_alpha", raw.get("lora_alpha", 8)),
        use_rslora=_boolean("use_rslora", raw.get("use_rslora")),
        rank_pattern=PatternValues[int]("rank_pattern", {}, PatternBudget()),
        alpha_pattern=by_pattern,
        target_modules=None,
        exclude_modules=None,
        layers_to_transform=frozenset(),
        layers_pattern=(),
        base_model_name_or_path=None,
    )


def _refuse_unserved(raw: Mapping[str, Any]) -> None:
    """Raise AdapterRefused for a key with which the adapter's product would not be scale · B · A."""
    if raw.get("peft_type") != "LORA":
        raise AdapterRefused(f"peft_type: {raw.get('peft_type')!r}; only LORA is served")
    if _boolean("use_dora", raw.get("use_dora")):
        raise AdapterRefused("use_dora: DoRA rescales the base's own weights; only plain LoRA is served")
    if raw.get("bias") not in (None, "none"):
        raise AdapterRefused(f"bias: {raw['bias']!r}; trained biases are not served")
    if _boolean("lora_bias", raw.get("lora_bias")):
        raise AdapterRefused("lora_bias: a bias on B is not served")
    if raw.get("modules_to_save"):
        raise AdapterRefused("modules_to_save: whole trained modules are not served, only LoRA on linear ones")
    if _boolean("fan_in_fan_out", raw.get("fan_in_fan_out")):
        raise AdapterRefused("fan_in_fan_out: the served models keep weights as [out, in]")
    init = raw.get("init_lora_weights")
    if isinstance(init, str) and init.lower().startswith(BASE_CHANGING_INITS):
        raise AdapterRefused(
            f"init_lora_weights: {init!r} changes the base's weights; convert it to plain LoRA when saving"
        )
    for key, value in raw.items():
        if key not in READ and key not in DESCRIPTIVE and not _neutral(value):
            raise AdapterRefused(f"{key[:128]}: {str(value)[:128]!r} is not null, false, empty or peft's default")


def _neutral(value: Any) -> bool:
    """Null, false or empty: peft's default for every key that we neither read nor know to be descriptive."""
    return value is None or value is False or value in ("", [], {})


def _boolean(key: str, value: Any) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool):
        raise AdapterRefused(f"{key}: {str(value)[:128]!r} is not a boolean")
    return value


def _rank(key: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= RANK_MAX:
        raise AdapterRefused(f"{key[:128]}: rank {str(value)[:32]} is not an integer from 1 to {RANK_MAX}")
    return value


def _number(key: str, value: Any) -> float:
    if type(value) not in (int, float) or abs(value) > 1e30:  # 1e400 is read as infinity
        raise AdapterRefused(f"{key[:128]}: {str(value)[:32]} is not a finite number")
    return float(value)


def _patterns(key: str, raw: Mapping[str, Any]) -> list[tuple[str, Any]]:
    value = raw.get(key)
    if value is None:
        return []
    if not isinstance(value, dict) or len(value) > PATTERNS_MAX:
        raise AdapterRefused(f"{key}: not an object of at most {PATTERNS_MAX} patterns")
    return list(value.items())


def _target_modules(value: Any, budget: PatternBudget) -> Names | Pattern | None:
    """None: all modules in the file."""
    if isinstance(value, str) and value.lower() == "all-linear":
        return Pattern("target_modules", ".*", budget)
    return _names("target_modules", value, budget)


def _names(key: str, value: Any, budget: PatternBudget) -> Names | Pattern | None:
    """A list of names, or one regular expression."""
    if value is None:
        return None
    return Pattern(key, value, budget) if isinstance(value, str) else Names(_strings(key, value))


def _strings(key: str, value: Any) -> list[str]:
    if not isinstance(value, list) or len(value) > PATTERNS_MAX or not all(isinstance(item, str) for item in value):
        raise AdapterRefused(f"{key}: neither a string nor a list of at most {PATTERNS_MAX} strings")
    return value


def _layers(value: Any) -> frozenset[int]:
    if value is None:
        return frozenset()
    found = value if isinstance(value, list) else [value]
    if len(found) > PATTERNS_MAX or not all(type(item) is int for item in found):
        raise AdapterRefused("layers_to_transform: neither an integer nor a list of integers")
    return frozenset(found)


def _layers_pattern(value: Any) -> tuple[str, ...]:
    if value is None or value == "":
        return ()
    patterns = [value] if isinstance(value, str) else _strings("layers_pattern", value)
    if len(patterns) > LAYERS_PATTERNS_MAX:
        raise AdapterRefused(f"layers_pattern: more than {LAYERS_PATTERNS_MAX} patterns")
    for pattern in patterns:
        if LAYERS_PATTERN.fullmatch(pattern) is None:
            raise AdapterRefused(f"layers_pattern: the pattern {pattern[:64]!r} is not a name such as 'model.layers'")
    return tuple(patterns)
