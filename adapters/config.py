"""peft's adapter_config.json: which modules it targets, with which rank and scale; and what of it we do not serve.

It must never load peft or torch: the gateway reads configurations too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from adapters.header import AdapterRefused, load_json

CONFIG_BYTES_MAX = 1024 * 1024
RANK_MAX = 256
PATTERN_CHARS_MAX = 1024
PATTERNS_MAX = 4096
# Of `*`, `+` and `{…}` in one pattern: a name has about 40 characters, and each may multiply the ways to match it.
PATTERN_REPEATS_MAX = 4

Value = TypeVar("Value", int, float)

# Keys that say how the adapter was trained or found, and leave the arithmetic of serving as it is.
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
    """What of the file changes the arithmetic, and the name of the base it says it was trained for."""

    r: int
    lora_alpha: float
    use_rslora: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    target_modules: tuple[str, ...] | str | None
    exclude_modules: tuple[str, ...] | str | None
    layers_to_transform: tuple[int, ...] | None
    layers_pattern: tuple[str, ...]
    base_model_name_or_path: str | None

    def rank(self, name: str) -> int:
        """Rank of a module by its full name, such as `model.layers.0.self_attn.q_proj`."""
        return _by_pattern(self.rank_pattern, name, self.r)

    def scale(self, name: str) -> float:
        alpha, rank = _by_pattern(self.alpha_pattern, name, self.lora_alpha), self.rank(name)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank

    def targets(self, name: str) -> bool:
        """Whether peft would put an adapter on this linear module."""
        if self.exclude_modules and _named(self.exclude_modules, name):
            return False
        if self.target_modules is None:
            return True  # peft fills it in by architecture; then the tensors say it
        if isinstance(self.target_modules, str):
            return self.target_modules.lower() == "all-linear" or _named(self.target_modules, name)
        return _named(self.target_modules, name) and self._transforms_layer_of(name)

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
    return AdapterConfig(
        r=_rank("r", raw.get("r", 8)),
        lora_alpha=_number("lora_alpha", raw.get("lora_alpha", 8)),
        use_rslora=_boolean("use_rslora", raw.get("use_rslora")),
        rank_pattern={key: _rank(f"rank_pattern.{key}", value) for key, value in _patterns("rank_pattern", raw)},
        alpha_pattern={key: _number(f"alpha_pattern.{key}", value) for key, value in _patterns("alpha_pattern", raw)},
        target_modules=_names("target_modules", raw.get("target_modules")),
        exclude_modules=_names("exclude_modules", raw.get("exclude_modules")),
        layers_to_transform=_layers(raw.get("layers_to_transform")),
        layers_pattern=_layers_pattern(raw.get("layers_pattern")),
        base_model_name_or_path=base,
    )


def _refuse_unserved(raw: Mapping[str, Any]) -> None:
    """Everything that would make the adapter more than, or other than, scale · B · A."""
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
    for pattern in value:
        _check_pattern(key, pattern)
    return list(value.items())


def _names(key: str, value: Any) -> tuple[str, ...] | str | None:
    """A list of names, or one regular expression."""
    if value is None:
        return None
    if isinstance(value, str):
        _check_pattern(key, value)
        return value
    if not isinstance(value, list) or len(value) > PATTERNS_MAX or not all(isinstance(item, str) for item in value):
        raise AdapterRefused(f"{key}: neither a string nor a list of at most {PATTERNS_MAX} strings")
    return tuple(value)


def _layers(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    found = value if isinstance(value, list) else [value]
    if len(found) > PATTERNS_MAX or not all(type(item) is int for item in found):
        raise AdapterRefused("layers_to_transform: neither an integer nor a list of integers")
    return tuple(found)


def _layers_pattern(value: Any) -> tuple[str, ...]:
    found = _names("layers_pattern", [value] if isinstance(value, str) else value) or ()
    patterns = tuple(pattern for pattern in found if pattern)
    for pattern in patterns:
        _check_pattern("layers_pattern", pattern)
    return patterns


def _check_pattern(key: str, pattern: str) -> None:
    """Refuses what does not compile, and what could keep the regex engine busy for ever."""
    shown = f"{key}: the pattern {pattern[:64]!r}"
    if len(pattern) > PATTERN_CHARS_MAX:
        raise AdapterRefused(f"{shown} has more than {PATTERN_CHARS_MAX} characters")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise AdapterRefused(f"{shown} is not a regular expression: {error}") from error
    if not _cheap(pattern):
        raise AdapterRefused(f"{shown} repeats an ambiguous group, or more than {PATTERN_REPEATS_MAX} times")


def _cheap(pattern: str) -> bool:
    """At most PATTERN_REPEATS_MAX repetitions, and none of a group that can match one text in several ways. That stops
    accidents and the classic attacks; somebody who may add adapters could still write a slower pattern."""
    plain = re.sub(r"\[\^?\]?(?:\\.|[^\]\\])*\]", "_", re.sub(r"\\[^\[\]]", "_", pattern))
    repeats, groups, before, ambiguous = 0, [False], "", False  # ambiguous: the atom before is such a group
    for char in plain:
        if char in "*+{":
            repeats += 1
            if ambiguous or repeats > PATTERN_REPEATS_MAX:
                return False
            groups[-1] = True
        elif char == "|" or (char == "?" and before != "("):
            groups[-1] = True
        elif char == "(":
            groups.append(False)
        ambiguous = char == ")" and len(groups) > 1 and groups.pop()
        groups[-1] = groups[-1] or ambiguous
        before = char
    return True


def _by_pattern(patterns: Mapping[str, Value], name: str, default: Value) -> Value:
    """The value of the first pattern that matches a whole suffix of the name: peft's rule."""
    matching = (value for pattern, value in patterns.items() if re.match(rf"(.*\.)?({pattern})$", name))
    return next(matching, default)


def _named(names: tuple[str, ...] | str, name: str) -> bool:
    """peft's rule: a string is a regular expression for the whole name, a list has names or dotted ends of names."""
    if isinstance(names, str):
        return re.fullmatch(names, name) is not None
    return any(name == item or name.endswith(f".{item}") for item in names)
