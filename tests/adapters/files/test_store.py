"""The store: named by content, whole or not there, and nothing read but two regular files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.files import store as store_module
from adapters.files.config import CONFIG_BYTES_MAX
from adapters.files.resolved import RESOLVED_FILE
from adapters.files.store import AdapterRefused, AdapterStore
from support.adapters import directories
from support.adapters.directories import add_directory
from support.adapters.files import BASE, CONFIG, WEIGHTS, config_of, header_of, lora_tensors, packed, write_adapter
from support.paths import REPO


@pytest.fixture
def store(tmp_path: Path) -> AdapterStore:
    return AdapterStore(tmp_path / "store")


def everything_in(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() or path.is_symlink())


def digest_of(store: AdapterStore, source: Path) -> str:
    return add_directory(store, source, BASE).digest


def test_an_adapter_is_stored_whole(store: AdapterStore, tmp_path: Path) -> None:
    source = write_adapter(tmp_path / "source")
    (source / "README.md").write_text("peft writes one")
    stored = add_directory(store, source, BASE)
    assert stored.path == store.path(stored.digest) == tmp_path / "store" / stored.digest
    assert sorted(path.name for path in stored.path.iterdir()) == [CONFIG, WEIGHTS, RESOLVED_FILE]
    assert (stored.path / WEIGHTS).read_bytes() == (source / WEIGHTS).read_bytes()
    assert stored.bytes == sum((source / name).stat().st_size for name in (CONFIG, WEIGHTS))
    assert stored.spec.targets == ("q_proj",)
    assert not any((tmp_path / "store" / ".incoming").iterdir())


def test_the_same_content_is_stored_once(store: AdapterStore, tmp_path: Path) -> None:
    first = add_directory(store, write_adapter(tmp_path / "a"), BASE)
    before = (first.path / WEIGHTS).stat()
    assert digest_of(store, write_adapter(tmp_path / "b")) == first.digest
    assert (first.path / WEIGHTS).stat().st_ino == before.st_ino
    assert not any((tmp_path / "store" / ".incoming").iterdir())


def test_the_digest_is_of_the_meaning(store: AdapterStore, tmp_path: Path) -> None:
    """The order of keys, tensors and descriptive fields do not count; neither does another way to say one scale."""
    digest = digest_of(store, write_adapter(tmp_path / "plain"))
    assert len(digest) == 64
    backwards = dict(reversed(lora_tensors().items()))
    assert digest_of(store, write_adapter(tmp_path / "backwards", weights=backwards)) == digest
    spaced = packed(json.dumps({"__metadata__": {"a": "b"}, **header_of(lora_tensors())[0]}, indent=1).encode(),
                    header_of(lora_tensors())[1])  # fmt: skip
    assert digest_of(store, write_adapter(tmp_path / "spaced", weights=spaced)) == digest
    described = config_of(lora_dropout=0.3, base_model_name_or_path="x/y", peft_version="1")
    assert digest_of(store, write_adapter(tmp_path / "described", described)) == digest
    pattern = config_of(7, rank_pattern={"q_proj": 2}, alpha_pattern={"q_proj": 4})
    assert digest_of(store, write_adapter(tmp_path / "pattern", pattern)) == digest


def test_another_meaning_is_another_digest(store: AdapterStore, tmp_path: Path) -> None:
    one_bit = lora_tensors()
    next(iter(one_bit.values())).view(np.uint32)[0, 0] ^= 1
    half = {name: tensor.astype(np.float16) for name, tensor in lora_tensors().items()}
    fewer = {name: tensor for name, tensor in lora_tensors().items() if ".layers.0." not in name}
    later_layers = config_of(layers_to_transform=[1, 2])
    digests = [
        digest_of(store, write_adapter(tmp_path / "plain")),
        digest_of(store, write_adapter(tmp_path / "alpha", config_of(lora_alpha=5))),
        digest_of(store, write_adapter(tmp_path / "rslora", config_of(use_rslora=True))),
        digest_of(store, write_adapter(tmp_path / "layer", config_of(alpha_pattern={"layers.1.*": 5}))),
        digest_of(store, write_adapter(tmp_path / "bit", weights=one_bit)),
        digest_of(store, write_adapter(tmp_path / "half", weights=half)),
        digest_of(store, write_adapter(tmp_path / "fewer", later_layers, fewer)),
    ]
    assert len(set(digests)) == len(digests)


def test_the_digest_never_changes(store: AdapterStore, tmp_path: Path) -> None:
    """Digests are in databases and in names of directories: this one is for ever."""
    ones = {name: np.ones_like(tensor) for name, tensor in lora_tensors().items()}
    digest = digest_of(store, write_adapter(tmp_path / "ones", weights=ones))
    assert digest == "b140c623863dd105f6bcff9ea8867f0a95feb63e60f621c3c162071a5d3752b1"


def test_removing_is_idempotent(store: AdapterStore, tmp_path: Path) -> None:
    digest = digest_of(store, write_adapter(tmp_path / "source"))
    store.remove_content(digest)
    store.remove_content(digest)
    assert not store.path(digest).exists()
    assert everything_in(tmp_path / "store") == []
    assert digest_of(store, write_adapter(tmp_path / "source")) == digest


@pytest.mark.parametrize(
    "digest", ["", "..", "../" * 20 + "etc", "a" * 63, "A" * 64, "a" * 64 + "\n", "a" * 32 + "/" + "a" * 31]
)
def test_only_digests_are_paths(store: AdapterStore, digest: str) -> None:
    with pytest.raises(ValueError, match="not an adapter digest"):
        store.path(digest)
    with pytest.raises(ValueError, match="not an adapter digest"):
        store.remove_content(digest)


# ---- what is refused leaves nothing ----------------------------------------------------------------------------


def refusal(store: AdapterStore, source: Path) -> str:
    with pytest.raises(AdapterRefused) as caught:
        add_directory(store, source, BASE)
    return caught.value.reason


def test_wrong_adapters_leave_nothing(store: AdapterStore, tmp_path: Path) -> None:
    poisoned = lora_tensors()
    next(iter(poisoned.values()))[0, 0] = np.nan
    assert "NaN" in refusal(store, write_adapter(tmp_path / "nan", weights=poisoned))
    assert "use_dora" in refusal(store, write_adapter(tmp_path / "dora", config_of(use_dora=True)))
    assert "too few" in refusal(store, write_adapter(tmp_path / "empty", weights=b""))
    assert everything_in(tmp_path / "store") == []
    assert not any((tmp_path / "store" / ".incoming").iterdir())


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_symbolic_links_are_refused(store: AdapterStore, tmp_path: Path, name: str) -> None:
    source = write_adapter(tmp_path / "source")
    (source / name).rename(source / "elsewhere")
    (source / name).symlink_to(source / "elsewhere")
    assert refusal(store, source) == f"{name}: a symbolic link"
    (source / name).unlink()
    (source / name).symlink_to("/etc/shadow")
    assert refusal(store, source) == f"{name}: a symbolic link"
    assert everything_in(tmp_path / "store") == []


def test_other_kinds_of_files_are_refused(store: AdapterStore, tmp_path: Path) -> None:
    source = write_adapter(tmp_path / "source")
    (source / WEIGHTS).unlink()
    (source / WEIGHTS).mkdir()
    assert "not a regular file" in refusal(store, source)
    (source / WEIGHTS).rmdir()
    os.mkfifo(source / WEIGHTS)  # opening a pipe must not wait for its writer
    assert "not a regular file" in refusal(store, source)


def test_missing_files_are_named(store: AdapterStore, tmp_path: Path) -> None:
    source = write_adapter(tmp_path / "source")
    (source / WEIGHTS).unlink()
    assert refusal(store, source) == f"{WEIGHTS}: No such file or directory"
    (source / "adapter_model.bin").write_bytes(b"a pickle")
    assert "never read" in refusal(store, source)
    assert f"{CONFIG}: No such file or directory" in refusal(store, tmp_path / "nowhere")


def test_sizes_are_capped(store: AdapterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_adapter(tmp_path / "source")
    monkeypatch.setitem(store_module.FILES, WEIGHTS, 100)
    size = (source / WEIGHTS).stat().st_size
    assert refusal(store, source) == f"{WEIGHTS}: {size} bytes, more than 100"
    monkeypatch.setitem(store_module.FILES, WEIGHTS, 10**9)
    (source / CONFIG).write_bytes(b" " * (CONFIG_BYTES_MAX + 1))
    assert "more than" in refusal(store, source)
    assert everything_in(tmp_path / "store") == []


def test_a_file_that_is_too_large_is_not_copied_first(store: AdapterStore, tmp_path: Path) -> None:
    """A sparse file costs its owner nothing, but its copy would take gigabytes."""
    source = write_adapter(tmp_path / "source")
    size = 5 * 1024**3
    os.truncate(source / WEIGHTS, size)
    copied: list[int] = []
    with (
        store.begin_incoming() as incoming,
        pytest.raises(AdapterRefused, match=f"{size} bytes, more than {4 * 1024**3}"),
    ):
        incoming.copy_files(source, copied.append)
    assert sum(copied) == (source / CONFIG).stat().st_size


# ---- faults ----------------------------------------------------------------------------------------------------


DIES_HALFWAY = """
import os, signal, sys
from pathlib import Path
from adapters.files.store import AdapterStore
incoming = AdapterStore(Path(sys.argv[1])).begin_incoming()
(incoming.path / "adapter_config.json").write_text("{")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_import_is_invisible_and_swept(store: AdapterStore, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", DIES_HALFWAY, str(tmp_path / "store")], cwd=REPO, check=False)
    assert everything_in(tmp_path / "store")
    assert store.digests() == set()
    with store.begin_incoming() as alive:
        assert store.sweep() == 1
        assert alive.path.is_dir(), "of a process that lives"
        assert store.sweep() == 0
    assert not any((tmp_path / "store" / ".incoming").iterdir())


def test_what_is_checked_is_what_is_kept(store: AdapterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source changes after it was copied: what was checked stays."""
    source = write_adapter(tmp_path / "source")
    good = (source / WEIGHTS).read_bytes()
    check = directories.check_adapter

    def check_while_it_changes(path: Path, base: object) -> object:
        (source / WEIGHTS).write_bytes(b"something else")
        return check(path, base)  # type: ignore[arg-type]

    monkeypatch.setattr(directories, "check_adapter", check_while_it_changes)
    stored = add_directory(store, source, BASE)
    assert (stored.path / WEIGHTS).read_bytes() == good


def test_two_imports_at_once_make_one(store: AdapterStore, tmp_path: Path) -> None:
    sources = [write_adapter(tmp_path / f"source{i}") for i in range(8)]
    digests: list[str] = []
    threads = [threading.Thread(target=lambda s=s: digests.append(digest_of(store, s))) for s in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(digests) == 8
    assert len(set(digests)) == 1
    assert len(everything_in(tmp_path / "store")) == 3


def test_a_sweep_between_making_and_locking_takes_nothing_away(
    store: AdapterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.begin_incoming().close()
    made: list[Path] = []
    mkdir = Path.mkdir

    def swept_at_once(path: Path, *arguments: Any, **more: Any) -> None:
        mkdir(path, *arguments, **more)
        if path.parent.name == ".incoming":
            made.append(path)
            if len(made) == 1:
                assert AdapterStore(tmp_path / "store").sweep() == 1

    monkeypatch.setattr(Path, "mkdir", swept_at_once)
    with store.begin_incoming() as incoming:
        assert incoming.path == made[1]
        assert incoming.path.is_dir()


def test_a_full_disk_leaves_nothing(store: AdapterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module, "_sync", full)
    with pytest.raises(OSError, match="No space"):
        add_directory(store, write_adapter(tmp_path / "source"), BASE)
    assert everything_in(tmp_path / "store") == []


def test_a_store_on_a_moved_disk_still_serves(store: AdapterStore, tmp_path: Path) -> None:
    """Nothing in it says where it is."""
    digest = digest_of(store, write_adapter(tmp_path / "source"))
    shutil.move(tmp_path / "store", tmp_path / "moved")
    assert store_module.read_adapter(AdapterStore(tmp_path / "moved").path(digest), BASE).modules
