"""Ranks and scales are resolved once, by a bounded process; loading an adapter evaluates no pattern."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from adapters.device.host_weights import open_source
from adapters.files import patterns
from adapters.files.check import check_adapter, check_stored, resolve_stored, stored_digest
from adapters.files.resolved import (
    RESOLVED_FILE,
    ModulesUnresolved,
    ResolvedModules,
    is_resolved,
    read_resolved,
    write_resolved,
)
from adapters.files.spec import AdapterRefused
from adapters.files.store import AdapterStore
from support.adapters.directories import add_directory
from support.adapters.files import BASE, CONFIG, config_of, lora_tensors, write_adapter
from support.paths import REPO, TESTS

# Accepted by the static test of earlier versions, although there are 2²⁸ ways to match it.
STALLING = "(?=model.layers.0.self_attn.q_proj)" + ".?" * 28 + "X"


@pytest.fixture
def store(tmp_path: Path) -> AdapterStore:
    return AdapterStore(tmp_path / "store")


def stored(store: AdapterStore, directory: Path, **changes: Any) -> Path:
    return add_directory(store, write_adapter(directory, config_of(**changes)), BASE).path


def stored_before(store: AdapterStore, directory: Path, **changes: Any) -> Path:
    """A directory as an earlier version left it: any pattern, not resolved."""
    kept = stored(store, directory)
    (kept / RESOLVED_FILE).unlink()
    (kept / CONFIG).write_text(json.dumps(config_of(**changes)))
    return kept


def resolve(store_root: Path, *digests: str) -> dict[str, str]:
    """Resolve as a gateway does. Returns digest → reason of each refusal."""
    command = [sys.executable, "-m", "adapters", "resolve", str(store_root), *digests]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False, timeout=60)
    refused: dict[str, str] = json.loads(done.stdout)["refused"]
    assert done.returncode == (3 if refused else 0), done.stderr
    return refused


def test_a_load_reads_no_configuration_and_evaluates_no_pattern(
    store: AdapterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"rank_pattern": {r".*\.0\..*": 2}, "alpha_pattern": {r"layers\.[01]\..*": 8, "layers.2.*": 2}}
    directory = stored(store, tmp_path / "source", rank=2, target_modules=".*q_proj", **changes)
    (directory / CONFIG).unlink()

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a tenant's pattern is evaluated")

    monkeypatch.setattr(patterns, "Pattern", never)
    monkeypatch.setattr(patterns, "PatternValues", never)
    spec = open_source(directory, BASE, torch.float32).spec
    assert [(module.layer, module.rank, module.scale) for module in spec.modules] == [(0, 2, 4), (1, 2, 4), (2, 2, 1)]


def test_a_process_that_loads_has_no_matcher(store: AdapterStore, tmp_path: Path) -> None:
    directory = stored(store, tmp_path / "source", alpha_pattern={r"layers\.[01]\..*": 8})
    program = (
        "import sys, torch, pathlib; from adapters.device.host_weights import open_source\n"
        "from support.adapters.files import BASE\n"
        f"open_source(pathlib.Path({str(directory)!r}), BASE, torch.float32)\n"
        "assert 're2' not in sys.modules"
    )
    path = f"{REPO}:{TESTS}"
    subprocess.run([sys.executable, "-c", program], cwd=REPO, check=True, timeout=60, env={"PYTHONPATH": path})


@pytest.mark.parametrize("field", ["rank_pattern", "alpha_pattern", "target_modules", "exclude_modules"])
def test_a_pattern_that_would_stall_is_refused_at_once(tmp_path: Path, field: str) -> None:
    value: Any = STALLING if field.endswith("modules") else {STALLING: 4}
    directory = write_adapter(tmp_path, config_of(**{field: value}))
    began = time.process_time()
    with pytest.raises(AdapterRefused, match=rf"^{field}: the pattern .* is not served"):
        check_adapter(directory, BASE)
    assert time.process_time() - began < 1


def test_what_was_stored_before_is_resolved(store: AdapterStore, tmp_path: Path) -> None:
    """With syntax that is refused now, and with targets that are not checked again."""
    directory = stored_before(
        store, tmp_path / "a", target_modules="^(?!.*mlp).*q_proj$", alpha_pattern={r"(?=l)layers\.[12]\..*": 8}
    )
    with pytest.raises(ModulesUnresolved, match="missing"):
        open_source(directory, BASE, torch.float32)
    assert store.lacks_modules(directory.name)
    assert resolve(tmp_path / "store", directory.name) == {}
    spec = open_source(directory, BASE, torch.float32).spec
    assert [module.scale for module in spec.modules] == [2, 4, 4]
    assert not store.lacks_modules(directory.name)


def test_what_was_stored_before_and_would_stall_is_refused_within_seconds(store: AdapterStore, tmp_path: Path) -> None:
    """Its CPU time is limited; the other adapters are resolved."""
    stalling = stored_before(store, tmp_path / "a", alpha_pattern={f"layers.0.{'.?' * 28}X": 4, STALLING: 3})
    good = add_directory(store, write_adapter(tmp_path / "b", config_of(lora_alpha=5)), BASE).path
    (good / RESOLVED_FILE).unlink()
    refused = resolve(tmp_path / "store", stalling.name, good.name)
    assert list(refused) == [stalling.name]
    assert "more than 2 s of processor time" in refused[stalling.name]
    assert is_resolved(good)
    assert not is_resolved(stalling)


def test_resolved_later_is_resolved_at_once(store: AdapterStore, tmp_path: Path) -> None:
    directory = stored(store, tmp_path / "a", use_rslora=True, alpha_pattern={"layers.1.*": 3.7})
    at_once = (directory / RESOLVED_FILE).read_bytes()
    (directory / RESOLVED_FILE).unlink()
    resolve_stored(directory)
    assert (directory / RESOLVED_FILE).read_bytes() == at_once
    assert check_stored(directory, BASE, "float32").digest == directory.name


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-9],
        lambda text: text.replace('"q_proj",2', '"q_proj",3'),
        lambda text: text.replace("0x1.0000000000000p+1", "0x1.1000000000000p+1"),
        lambda text: "[]",
        lambda text: "[" * 100_000,
        lambda text: "",
    ],
)
def test_a_damaged_one_is_refused_and_made_again(store: AdapterStore, tmp_path: Path, damage: Any) -> None:
    directory = stored(store, tmp_path / "a")
    path = directory / RESOLVED_FILE
    before = path.read_text()
    path.write_text(damage(before))
    with pytest.raises(ModulesUnresolved, match="damaged"):
        open_source(directory, BASE, torch.float32)
    assert store.lacks_modules(directory.name), "so that the gateway has it made"
    store.resolve(directory.name)
    assert path.read_text() == before


def test_another_file_than_was_checked_is_refused(store: AdapterStore, tmp_path: Path) -> None:
    directory = stored(store, tmp_path / "a")
    write_adapter(directory, weights=lora_tensors(rank=3))
    with pytest.raises(AdapterRefused, match="not the file that was checked"):
        open_source(directory, BASE, torch.float32)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    resolved = ResolvedModules("ab" * 32, {(0, "q_proj"): (2, 0.1), (11, "up_proj"): (256, 1e-30)})
    write_resolved(tmp_path, resolved)
    assert read_resolved(tmp_path) == resolved
    assert [path.name for path in tmp_path.iterdir()] == [RESOLVED_FILE]


def test_a_key_named_twice_among_very_many_is_found_in_linear_time(tmp_path: Path) -> None:
    names = ",".join(f'"k{i}":0' for i in range(80_000))
    directory = write_adapter(tmp_path, f'{{{names},"k79999":0}}'.encode())
    began = time.process_time()
    with pytest.raises(AdapterRefused, match=re.escape("adapter_config.json: k79999: named twice")):
        check_adapter(directory, BASE)
    assert time.process_time() - began < 5, "it took minutes"


@pytest.mark.parametrize("changes", [{}, {"alpha_pattern": {".*": 8}}, {"lora_alpha": 7, "use_rslora": True}])
def test_the_digest_of_a_stored_adapter_needs_neither_its_configuration_nor_its_base(
    changes: dict[str, Any], store: AdapterStore, tmp_path: Path
) -> None:
    directory = stored(store, tmp_path / "source", **changes)
    (directory / CONFIG).unlink()
    assert stored_digest(directory) == directory.name
    weights = directory / "adapter_model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert stored_digest(directory) != directory.name
    data[12] ^= 1
    weights.write_bytes(data)
    with pytest.raises(AdapterRefused):
        stored_digest(directory)


def test_another_scale_is_another_digest(store: AdapterStore, tmp_path: Path) -> None:
    directory = stored(store, tmp_path / "source")
    found = read_resolved(directory)
    louder = {key: (rank, scale * 2) for key, (rank, scale) in found.modules.items()}
    write_resolved(directory, ResolvedModules(found.header, louder))
    assert stored_digest(directory) != directory.name
