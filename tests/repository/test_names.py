"""`kernels` and `adapters` are also names on PyPI, and transformers probes for a package `kernels`.

So a transformers model must load beside our rooms: from the repository's root, and from the installed wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.paths import REPO

LOADS = """
import kernels, adapters
from transformers import LlamaConfig, LlamaForCausalLM
import torch
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                     num_attention_heads=2, num_key_value_heads=1)
model = LlamaForCausalLM(config).eval()
print(model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=2, do_sample=False).shape[1], kernels.__file__)
"""


def load(cwd: Path, path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LOADS],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_transformers_model_loads_from_the_repository_root() -> None:
    assert str(REPO) in load(REPO, REPO)


@pytest.mark.slow
def test_a_transformers_model_loads_from_the_installed_wheel(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = (tmp_path / "dist").glob("laneway-*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    assert (site / "migrations" / "env.py").exists()
    assert str(site) in load(tmp_path, site)
    installed = subprocess.run(
        [sys.executable, "-m", "engine.models.packaged.install", "laneway", str(tmp_path / "model")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert installed.returncode == 0, installed.stderr
    assert (tmp_path / "model" / "model.safetensors").exists(), "the wheel carries laneway-tiny"
