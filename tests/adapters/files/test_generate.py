"""Random adapters: valid, mixed, and the same for the same seed everywhere; and the process that checks adapters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.files.check import check_adapter
from adapters.files.facts import Facts
from adapters.files.generate import Recipe, recipes, write_random
from adapters.files.store import AdapterStore
from support.adapters.directories import add_directory
from support.adapters.files import BASE, CONFIG, WEIGHTS, config_of, write_adapter
from support.paths import REPO

MODEL = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
}


def test_they_are_valid_mixed_and_all_different(tmp_path: Path) -> None:
    store = AdapterStore(tmp_path / "store")
    stored = [add_directory(store, write_random(tmp_path / "made", BASE, recipe), BASE) for recipe in recipes(12)]
    assert len({one.digest for one in stored}) == 12
    assert len({(one.spec.rank_max, one.spec.targets) for one in stored}) == 4
    scales = {round(module.scale, 6) for one in stored for module in one.spec.modules}
    assert scales == {16.0}


def test_a_seed_is_a_digest_for_ever(tmp_path: Path) -> None:
    """Benchmarks name what they ran on by it."""
    first = check_adapter(write_random(tmp_path / "a", BASE, Recipe(1)), BASE).digest
    assert first == check_adapter(write_random(tmp_path / "b", BASE, Recipe(1)), BASE).digest
    assert first == "33053cd69ca06cd122b9639247038d4bd97377b05a59e078ec2f82f75f5e2f29"
    assert first != check_adapter(write_random(tmp_path / "c", BASE, Recipe(2)), BASE).digest


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_numbers_are_small_and_of_either_sign(tmp_path: Path, dtype: str) -> None:
    directory = write_random(tmp_path, BASE, Recipe(3, 8, dtype=dtype))
    spec = check_adapter(directory, BASE).spec
    tensor = spec.modules[0].a
    raw = (directory / WEIGHTS).read_bytes()[tensor.start : tensor.stop]
    if dtype == "BF16":
        numbers = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        numbers = np.frombuffer(raw, np.float32 if dtype == "F32" else np.float16).astype(np.float32)
    assert np.abs(numbers).min() >= 2**-7
    assert np.abs(numbers).max() < 2**-5
    assert 0.3 < (numbers > 0).mean() < 0.7


@pytest.mark.parametrize(
    ("changes", "why"), [({"rank": 0}, "rank 0"), ({"dtype": "F64"}, "F64"), ({"modules": ("x",)}, "modules")]
)
def test_what_cannot_be_made_is_refused(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        write_random(tmp_path, BASE, Recipe(1, **changes))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "adapters", *arguments], cwd=REPO, capture_output=True, text=True, timeout=60
    )


def test_a_process_makes_and_checks_them(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MODEL | {"_name_or_path": "somebody/Tiny"}))
    made = run("generate", str(tmp_path / "made"), "--model", str(model), "--count", "2")
    assert made.returncode == 0, made.stderr
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["random-0000", "random-0001"]
    checked = run("check", str(tmp_path / "made/random-0001"), "--model", str(model))
    facts = Facts.from_json(checked.stdout)
    assert (facts.rank_max, facts.warnings, facts.trained_for) == (16, (), "model")
    assert facts.bytes == sum((tmp_path / "made/random-0001" / name).stat().st_size for name in (CONFIG, WEIGHTS))
    named = write_adapter(tmp_path / "named", config_of(base_model_name_or_path="elsewhere/TINY"))
    assert Facts.from_json(run("check", str(named), "--model", str(model)).stdout).warnings == ()
    other = write_adapter(tmp_path / "other", config_of(base_model_name_or_path="elsewhere/Large"))
    [warning] = Facts.from_json(run("check", str(other), "--model", str(model), "--name", "mine").stdout).warnings
    assert warning.startswith("base_model_name_or_path: it says 'elsewhere/Large', the base is 'mine'")
    refused = run("check", str(named), "--model", str(model), "--rank-max", "1")
    assert refused.returncode == 3
    assert "rank 2 is not from 1 to 1" in json.loads(refused.stdout)["refused"]
