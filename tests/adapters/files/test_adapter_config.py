"""adapter_config.json: what peft writes is read as peft reads it; what we do not serve is refused by name."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from adapters.files.config import CONFIG_BYTES_MAX, DESCRIPTIVE, READ, AdapterConfig, parse_config
from adapters.files.spec import AdapterRefused
from support.adapters.files import config_of

NAMES = [
    f"model.layers.{layer}.{module}"
    for layer in (0, 1, 2, 11)
    for module in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
] + ["lm_head", "model.embed_tokens"]


def parse(**changes: Any) -> AdapterConfig:
    return parse_config(json.dumps(config_of(**changes)).encode())


def reason(data: bytes) -> str:
    with pytest.raises(AdapterRefused) as caught:
        parse_config(data)
    assert caught.value.reason == str(caught.value)
    return caught.value.reason


# ---- what peft writes ------------------------------------------------------------------------------------------


def test_pefts_own_defaults_pass(tmp_path: Path) -> None:
    from peft import LoraConfig

    LoraConfig().save_pretrained(str(tmp_path))
    config = parse_config((tmp_path / "adapter_config.json").read_bytes())
    assert (config.r, config.lora_alpha, config.target_modules) == (8, 8.0, None)


def test_every_key_of_the_installed_peft_is_accounted_for(tmp_path: Path) -> None:
    """A key is read, descriptive, or neutral by default: a new peft may add keys, but not with a default that bites."""
    from peft import LoraConfig

    LoraConfig().save_pretrained(str(tmp_path))
    written = json.loads((tmp_path / "adapter_config.json").read_bytes())
    assert len(written) >= 40
    for key, value in written.items():
        assert key in READ | DESCRIPTIVE or value in (None, False, {}, [], ""), key
    known = {field.name for field in dataclasses.fields(LoraConfig)}
    assert known >= READ


@pytest.mark.parametrize(
    "changes",
    [
        {"task_type": "CAUSAL_LM", "inference_mode": True, "lora_dropout": 0.1, "revision": "main"},
        {"auto_mapping": {"base_model_class": "X", "parent_library": "y"}, "peft_version": "0.99"},
        {"megatron_core": "megatron.core", "qalora_group_size": 16, "use_qalora": False, "loftq_config": {}},
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": "eva", "eva_config": {"rho": 2.0}},
        {"a_key_from_the_future": None, "another": False, "third": [], "fourth": {}, "fifth": ""},
        {"modules_to_save": None, "rank_pattern": None, "alpha_pattern": None, "layers_pattern": None},
        {"modules_to_save": [], "bias": None, "use_dora": None, "lora_bias": None, "trainable_token_indices": None},
    ],
)
def test_harmless_keys_pass(changes: dict[str, Any]) -> None:
    assert parse(**changes).r == 2


def test_the_base_is_remembered() -> None:
    assert parse(base_model_name_or_path="org/model").base_model_name_or_path == "org/model"


# ---- what is refused -------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "IA3"}, "peft_type: 'IA3'"),
    ({"peft_type": None}, "peft_type: None"),
    ({"use_dora": True}, "use_dora: DoRA"),
    ({"bias": "all"}, "bias: 'all'"),
    ({"bias": "lora_only"}, "bias: 'lora_only'"),
    ({"lora_bias": True}, "lora_bias:"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save:"),
    ({"fan_in_fan_out": True}, "fan_in_fan_out:"),
    ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights: 'pissa_niter_16'"),
    ({"init_lora_weights": "loftq"}, "init_lora_weights:"),
    ({"trainable_token_indices": [1, 2]}, "trainable_token_indices:"),
    ({"target_parameters": ["mlp.experts"]}, "target_parameters:"),
    ({"layer_replication": [[0, 2]]}, "layer_replication:"),
    ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens:"),
    ({"use_qalora": True}, "use_qalora:"),
    ({"use_bdlora": {"nblocks": 2}}, "use_bdlora:"),
    ({"kasa_config": {"beta": 1}}, "kasa_config:"),
    ({"arrow_config": {"top_k": 3}}, "arrow_config:"),
    ({"corda_config": {"corda_method": "kpm"}}, "corda_config:"),
    ({"megatron_config": {"x": 1}}, "megatron_config:"),
    ({"a_key_from_the_future": 1}, "a_key_from_the_future:"),
    ({"a_key_from_the_future": 0}, "a_key_from_the_future:"),
    ({"rank": 0}, "r: rank 0"),
    ({"rank": 257}, "r: rank 257"),
    ({"rank": 10_000}, "r: rank 10000"),
    ({"rank": -1}, "r: rank -1"),
    ({"rank": True}, "r: rank True"),
    ({"rank": 8.0}, "r: rank 8.0"),
    ({"rank": "8"}, "r: rank 8"),
    ({"lora_alpha": "16"}, "lora_alpha:"),
    ({"lora_alpha": True}, "lora_alpha:"),
    ({"lora_alpha": None}, "lora_alpha:"),
    ({"lora_alpha": 10**400}, "lora_alpha:"),
    ({"use_rslora": 1}, "use_rslora:"),
    ({"rank_pattern": {"q_proj": 0}}, "rank_pattern.q_proj:"),
    ({"rank_pattern": [1]}, "rank_pattern:"),
    ({"rank_pattern": {"(": 4}}, "rank_pattern: the pattern '('"),
    ({"alpha_pattern": {"q_proj": None}}, "alpha_pattern.q_proj:"),
    ({"alpha_pattern": {"(?=a)b": 1}}, "alpha_pattern: the pattern '(?=a)b': '(?=a'"),
    ({"rank_pattern": {"(?=model.layers.0.self_attn.q_proj)" + ".?" * 28 + "X": 4}}, "rank_pattern: the pattern"),
    ({"rank_pattern": {f"a{i}.*": 4 for i in range(257)}}, "rank_pattern: more than 256 regular expressions"),
    ({"rank_pattern": {f".{{0,999}}{i}": 4 for i in range(40)}}, "rank_pattern: its regular expressions are too large"),
    ({"rank_pattern": {")|(": 4}}, "rank_pattern: the pattern ')|(' is not a regular expression"),
    ({"rank_pattern": {"(?i)Q_PROJ": 4}}, "rank_pattern: the pattern '(?i)Q_PROJ': '(?i'"),
    ({"rank_pattern": {"\u017f": 4}}, "rank_pattern: the pattern 'ſ' has characters other than"),
    ({"rank_pattern": {f"{i}": 4 for i in range(5000)}}, "rank_pattern:"),
    ({"target_modules": 7}, "target_modules:"),
    ({"target_modules": ["q_proj", 7]}, "target_modules:"),
    ({"target_modules": "["}, "target_modules: the pattern"),
    ({"target_modules": r"(a)\1"}, "target_modules: the pattern '(a)\\\\1': '\\\\1'"),
    ({"target_modules": "a{,3}"}, "target_modules: the pattern 'a{,3}': '{,3}'"),
    ({"target_modules": "[[:alpha:]]*"}, "target_modules: the pattern"),
    ({"target_modules": "[a&&b]"}, "target_modules: the pattern"),
    ({"target_modules": "a*+"}, "target_modules: the pattern"),
    ({"target_modules": "(?:a{1000}){1000}"}, "target_modules: the pattern '(?:a{1000}){1000}' is refused by RE2"),
    ({"target_modules": "x" * 5000}, "target_modules: the pattern"),
    ({"exclude_modules": {"a": 1}}, "exclude_modules:"),
    ({"layers_to_transform": "0"}, "layers_to_transform:"),
    ({"layers_to_transform": [0.0]}, "layers_to_transform:"),
    ({"layers_pattern": ["("]}, "layers_pattern: the pattern"),
    ({"layers_pattern": ["(?:.?.?)*"]}, "layers_pattern: the pattern"),
    ({"layers_pattern": ["(?P<layer>a)"]}, "layers_pattern: the pattern"),
    ({"layers_pattern": ["layers"] * 17}, "layers_pattern: more than 16"),
    ({"base_model_name_or_path": 7}, "base_model_name_or_path:"),
]


@pytest.mark.parametrize(
    ("changes", "named"), REFUSED, ids=[f"{i}-{named[:24]}" for i, (_, named) in enumerate(REFUSED)]
)
def test_what_is_not_served_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    assert reason(json.dumps(config_of(**changes)).encode()).startswith(named)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"peft_type": "LORA", "r": NaN}', "NaN"),
        (b'{"peft_type": "LORA", "lora_alpha": Infinity}', "Infinity"),
        (b'{"peft_type": "LORA", "lora_alpha": 1e400}', "lora_alpha"),
        (b'{"peft_type": "LORA", "r": 8, "r": 4}', "r: named twice"),
        (b'{"a":' * 100_000, "not valid JSON"),
        (b'{"r": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b" " * (CONFIG_BYTES_MAX + 1), "bytes, more than"),
        (b"PK\x03\x04", "not valid JSON"),
    ],
)
def test_bad_json_is_refused(data: bytes, named: str) -> None:
    assert named in reason(data)


# ---- the same meaning as peft's --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": ["q_proj", "o_proj"]},
        {"target_modules": ["self_attn.q_proj", "model.layers.1.mlp.up_proj", "_proj"]},
        {"target_modules": []},
        {"target_modules": r"(?:model\.)?layers\.\d+\.[(|*+]?(?:self_attn|mlp)\.(?:q_proj|up_proj)"},
        {"target_modules": r".*layers\.(0|2)\..*(q|k)_proj"},
        {"target_modules": r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj))|(?:\bmodel\.layers\.[\d]{1,}\."
         r"(?:self_attn|mlp)\.(?:(?:q_proj|up_proj)))"},
        {"target_modules": ["q_proj", "up_proj"], "layers_to_transform": [1, 11]},
        {"target_modules": ["q_proj", "up_proj"], "layers_to_transform": 2},
        {"target_modules": ["q_proj", "up_proj"], "layers_to_transform": [1], "layers_pattern": "layers"},
        {"target_modules": ["q_proj", "up_proj"], "layers_to_transform": [1], "layers_pattern": ["h", "layers"]},
        {"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": "blocks"},
        {"target_modules": ["q_proj", "up_proj"], "exclude_modules": ["layers.1.mlp.up_proj"]},
        {"target_modules": ["q_proj", "up_proj"], "exclude_modules": r".*\.1\..*"},
    ],
)  # fmt: skip
def test_targets_are_pefts(changes: dict[str, Any]) -> None:
    from peft import LoraConfig
    from peft.tuners.tuners_utils import check_target_module_exists

    theirs, ours = LoraConfig(**changes), parse(**changes)
    for name in NAMES:
        assert ours.targets(name) == bool(check_target_module_exists(theirs, name)), name


PATTERNS = st.dictionaries(
    st.sampled_from(["q_proj", "proj", "mlp.up_proj", "layers.1.self_attn.q_proj", r".*\.1\..*", r"layers\.\d\.mlp.*",
                     "^model.layers.0.self_attn.k_proj", "model.layers.2.mlp.down_proj", "o_proj|k_proj"]),
    st.integers(1, 256),
    max_size=5,
)  # fmt: skip


@given(ranks=PATTERNS, alphas=PATTERNS, rslora=st.booleans(), name=st.sampled_from(NAMES))
@settings(max_examples=200, deadline=None)
def test_ranks_and_scales_are_pefts(ranks: dict[str, int], alphas: dict[str, int], rslora: bool, name: str) -> None:
    from peft.utils.other import get_pattern_key

    ours = parse(rank=8, lora_alpha=16, use_rslora=rslora, rank_pattern=ranks, alpha_pattern=alphas)
    rank = ranks.get(get_pattern_key(list(ranks), name), 8)
    alpha = alphas.get(get_pattern_key(list(alphas), name), 16)
    assert ours.rank(name) == rank
    assert ours.scale(name) == (alpha / math.sqrt(rank) if rslora else alpha / rank)


# ---- patterns: accepted ones match as in peft --------------------------------------------------

ATOMS = st.sampled_from(
    ["a", "q_proj", "layers", "1", ".", r"\.", r"\d", r"\w", "[a-m]", "[^.]", "[]_]", "^", "$", r"\b", "-"]
)
PARTS = st.recursive(
    ATOMS,
    lambda inner: (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map(lambda both: f"(?:{both[0]}|{both[1]})")
        | inner.map(lambda part: f"(?:|{part})")
        | st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "??", "{2}", "{0,2}", "{1,}"])).map(
            lambda both: f"({both[0]}){both[1]}"
        )
    ),
    max_leaves=7,
)
# Malformed patterns: unbalanced, doubled, cut short.
SCRAPS = st.lists(ATOMS | st.sampled_from(list("()[]{}|*+?\\,:<>=!")) | st.sampled_from(["(?:", "(?=", "(?i)", "{,2}"]),
                  max_size=7).map("".join)  # fmt: skip
TWO_NAMES = st.sampled_from(["model.layers.1.self_attn.q_proj", "model.layers.11.mlp.up_proj"])


@given(pattern=PARTS | SCRAPS, name=TWO_NAMES, target=st.booleans())
@settings(max_examples=400, deadline=None)
def test_patterns_that_are_accepted_are_pefts(pattern: str, name: str, target: bool) -> None:
    from peft.utils.other import get_pattern_key, match_target_against_key

    assume(sum(pattern.count(repeat) for repeat in "*+?{") <= 4)  # else peft's own matching would not end
    try:
        ours = parse(target_modules=pattern) if target else parse(rank=8, rank_pattern={pattern: 7, "_proj|.*": 5})
    except AdapterRefused:
        return
    if target:
        assume(pattern.lower() != "all-linear")
        assert ours.targets(name) == (match_target_against_key(pattern, name) is not None)
    else:
        theirs = {pattern: 7, "_proj|.*": 5}
        assert ours.rank(name) == theirs.get(get_pattern_key(list(theirs), name), 8)


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "((.*)*)*q_proj", "(?:a|a)*X", "(.?.?){9}X", ".*.*.*.*.*.*.*X", ".?" * 40 + "X"]
)
def test_patterns_that_backtrack_for_ever_elsewhere_are_matched_at_once(pattern: str) -> None:
    config = parse(rank=8, rank_pattern={pattern: 4}, target_modules=pattern)
    names = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(200)]
    began = time.process_time()
    assert {config.rank(name) for name in names} == {4 if pattern.endswith("q_proj") else 8}
    assert all(config.targets(name) for name in names) == pattern.endswith("q_proj")
    assert time.process_time() - began < 5, "it is linear: milliseconds"


def test_a_value_for_each_module_takes_no_regular_expression() -> None:
    """Like a configuration of peft's EVA: a rank by full name, for hundreds of modules."""
    ranks = {
        f"model.layers.{layer}.mlp.{module}": 1 + layer for layer in range(200) for module in ("up_proj", "x_proj")
    }
    config = parse(rank=8, rank_pattern={**ranks, "self_attn.q_proj": 9}, alpha_pattern=ranks)
    assert config.rank("model.layers.17.mlp.up_proj") == 18
    assert config.rank("model.layers.0.self_attn.q_proj") == 9
    assert config.rank("model.layers.0.self_attn.v_proj") == 8


def test_all_linear_and_null_take_any_linear() -> None:
    for targets in ("all-linear", "ALL-LINEAR", None):
        assert parse(target_modules=targets).targets("model.layers.0.mlp.up_proj")


@given(st.dictionaries(st.sampled_from(sorted(READ | DESCRIPTIVE | {"x"})), st.from_type(type(None)) | st.booleans()
       | st.integers() | st.floats() | st.text(max_size=9) | st.lists(st.integers() | st.text(max_size=3), max_size=3)
       | st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=3), max_size=3)))  # fmt: skip
@settings(max_examples=250, deadline=None)
def test_any_json_is_parsed_or_refused(changes: dict[str, Any]) -> None:
    try:
        parsed = parse_config(json.dumps({"peft_type": "LORA", **changes}).encode())
    except AdapterRefused:
        return
    parsed.targets("model.layers.0.self_attn.q_proj")
    assert math.isfinite(parsed.scale("model.layers.0.self_attn.q_proj"))
