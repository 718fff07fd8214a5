"""Slabs on disk: byte for byte what reading the file gives, and never read when they are anything else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.device.host_weights import Source, open_source, read_numbers, read_weights
from adapters.files import slab_file, slab_order
from adapters.files.check import check_adapter
from adapters.files.generate import Recipe, recipes, write_random
from adapters.files.resolved import RESOLVED_FILE
from adapters.files.slab_file import HEADER_BYTES, MAGIC, SUMMED_BYTES, SlabUnusable, read_slab
from adapters.files.slab_names import slab_name
from adapters.files.slab_order import ReadStopped
from adapters.files.spec import PARENTS, AdapterRefused, BaseShape
from adapters.files.store import AdapterStore
from kernels import lora_work
from support.adapters.directories import add_directory
from support.adapters.files import BASE, CONFIG, WEIGHTS, peft_adapter, write_adapter
from support.adapters.peft_configs import CONFIGS
from support.paths import REPO

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@pytest.fixture
def store(tmp_path: Path) -> AdapterStore:
    return AdapterStore(tmp_path / "store")


def from_file(source: Source) -> torch.Tensor:
    slab = torch.zeros(source.layout.bytes, dtype=torch.uint8)
    read_weights(source, slab, lambda: False)
    return slab


def from_slab(source: Source, threads: int = 1) -> torch.Tensor:
    """From the slab file alone."""
    slab = torch.full((source.layout.bytes,), 0xA5, dtype=torch.uint8)
    path = source.file.with_name(slab_name(source.dtype))
    read_slab(path, source.slab_key, slab.numpy().data, lambda: False, threads)
    return slab


def stored(store: AdapterStore, directory: Path, base: BaseShape = BASE, dtype: torch.dtype = torch.float32) -> Source:
    """With its slab."""
    digest = add_directory(store, directory, base).digest
    store.add_slab(digest, base, NAMES[dtype])
    return open_source(store.path(digest), base, dtype)


@pytest.fixture
def one(store: AdapterStore, tmp_path: Path) -> Source:
    write_random(tmp_path / "one", BASE, Recipe(1, 20, tuple(PARENTS)))
    return stored(store, tmp_path / "one", dtype=torch.bfloat16)


def slab_of(source: Source) -> Path:
    return source.file.with_name(slab_name(source.dtype))


# ---- the same numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_what_reading_the_file_gives(store: AdapterStore, tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    """rsLoRA, patterns of ranks and alphas, layers of one's choice: whatever peft writes."""
    peft_adapter(tmp_path / "adapter", **CONFIGS[name])
    source = stored(store, tmp_path / "adapter", dtype=dtype)
    assert torch.equal(from_slab(source), from_file(source))


@pytest.mark.parametrize("held", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_whatever_dtype_the_file_has(
    store: AdapterStore, tmp_path: Path, dtype: torch.dtype, held: torch.dtype
) -> None:
    peft_adapter(tmp_path, r=19).to(held).save_pretrained(tmp_path)
    source = stored(store, tmp_path, dtype=dtype)
    assert torch.equal(from_slab(source), from_file(source))


def test_generated_and_trained_ones_too(store: AdapterStore, tmp_path: Path) -> None:
    for recipe in recipes(8):
        source = stored(store, write_random(tmp_path / f"random{recipe.seed}", BASE, recipe), dtype=torch.bfloat16)
        assert torch.equal(from_slab(source), from_file(source))
    smol = {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3,
    }  # fmt: skip
    base = BaseShape.from_config(smol)
    for example in ("pirate", "json-answers", "support-triage", "three-bullets"):
        source = stored(store, REPO / "examples" / "adapters" / example, base)
        assert source.layout.bytes > 1024 * 1024
        assert torch.equal(from_slab(source), from_file(source))


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_several_threads_read_the_same(one: Source, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(slab_file, "PART_BYTES_MIN", SUMMED_BYTES)
    monkeypatch.setattr(slab_file, "BLOCK_BYTES", 2 * SUMMED_BYTES)
    assert one.layout.bytes > 8 * SUMMED_BYTES
    assert torch.equal(from_slab(one, threads), from_file(one))


def test_tiles_are_as_the_kernels_want_them() -> None:
    assert (slab_order.TILE_RANK, slab_order.TILE_ALIGN_BYTES) == (lora_work.TILE_RANK, lora_work.TILE_ALIGN_BYTES)


# ---- never anything else ---------------------------------------------------------------------------------------


def loaded(source: Source) -> torch.Tensor:
    """As an engine loads it."""
    slab = torch.zeros(source.layout.bytes, dtype=torch.uint8)
    read_numbers(source, slab, lambda: False)
    return slab


@pytest.fixture
def whole(one: Source) -> bytes:
    """Its slab's file as it was made. Examples of one test share the folder."""
    return slab_of(one).read_bytes()


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_flipped_bit_is_found_and_the_file_is_read(one: Source, whole: bytes, data: st.DataObject) -> None:
    path, expected = slab_of(one), from_file(one)
    at = data.draw(st.sampled_from([*range(len(MAGIC) + 64), *range(HEADER_BYTES, len(whole))]))
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << data.draw(st.integers(0, 7))]) + whole[at + 1 :])
    with pytest.raises(SlabUnusable):
        from_slab(one)
    assert torch.equal(loaded(one), expected)
    assert not path.exists(), "so that another is made"


def swapped(whole: bytes) -> bytes:
    """Two blocks in each other's place."""
    first, second = HEADER_BYTES, HEADER_BYTES + SUMMED_BYTES
    end = second + SUMMED_BYTES
    return whole[:first] + whole[second:end] + whole[first:second] + whole[end:]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut short": lambda whole: whole[:-1],
    "a header alone": lambda whole: whole[:HEADER_BYTES],
    "half": lambda whole: whole[: len(whole) // 2],
    "longer": lambda whole: whole + b"\0",
    "zeros where a disk lost a block": lambda whole: whole[:8192] + bytes(4096) + whole[12288:],
    "zeros": lambda whole: bytes(len(whole)),
    "two blocks swapped": swapped,
    "never finished": lambda whole: bytes(HEADER_BYTES) + whole[HEADER_BYTES:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_the_file_is_read(one: Source, damage: str) -> None:
    path, expected = slab_of(one), from_file(one)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(SlabUnusable, match=path.name):
        from_slab(one)
    assert torch.equal(loaded(one), expected)
    assert not path.exists()


def test_anothers_slab_is_not_its_own(store: AdapterStore, tmp_path: Path) -> None:
    """Of the same shape, so that the headers of both files are the same."""
    first, second = (stored(store, write_random(tmp_path / str(seed), BASE, next(recipes(1, seed)))) for seed in (1, 2))
    assert first.header == second.header
    expected = from_file(second)
    shutil.copy(slab_of(first), slab_of(second))
    with pytest.raises(SlabUnusable, match="not a slab of this adapter"):
        from_slab(second)
    assert torch.equal(loaded(second), expected)


def test_another_base_another_dtype_another_format(one: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = one.file.parent
    assert open_source(directory, BASE, torch.float16).slab_key != one.slab_key
    monkeypatch.setattr(slab_file, "SLAB_FORMAT", 2)
    assert open_source(directory, BASE, torch.bfloat16).slab_key != one.slab_key
    monkeypatch.undo()
    monkeypatch.setattr(slab_order, "TILE_RANK", 4)
    other = open_source(directory, BASE, torch.bfloat16)
    assert other.slab_key != one.slab_key
    with pytest.raises(SlabUnusable):
        from_slab(other)


def test_who_does_not_wait_any_more_ends_it(one: Source) -> None:
    before = slab_of(one).read_bytes()
    with pytest.raises(ReadStopped):
        read_numbers(one, torch.zeros(one.layout.bytes, dtype=torch.uint8), lambda: True)
    assert slab_of(one).read_bytes() == before


# ---- made -------------------------------------------------------------------------------------------------------


def test_a_store_makes_those_that_lack(store: AdapterStore, tmp_path: Path) -> None:
    digest = add_directory(store, write_adapter(tmp_path / "source"), BASE).digest
    assert store.lacks_slab(digest, "float32")
    (store.path(digest) / "slab-0.float32").write_bytes(b"of a format before")
    store.add_slab(digest, BASE, "float32")
    assert not store.lacks_slab(digest, "float32")
    assert store.lacks_slab(digest, "bfloat16")
    assert sorted(path.name for path in store.path(digest).iterdir()) == sorted(
        (CONFIG, WEIGHTS, RESOLVED_FILE, "slab-1.float32")
    )
    store.remove_content(digest)
    assert not store.lacks_slab(digest, "float32"), "nothing is here"
    assert [path.name for path in (tmp_path / "store").rglob("*")] == [".incoming"], "it went with its adapter"


def test_none_is_made_of_what_is_not_what_its_name_says(store: AdapterStore, tmp_path: Path) -> None:
    digest = add_directory(store, write_adapter(tmp_path / "source"), BASE).digest
    weights = store.path(digest) / WEIGHTS
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(AdapterRefused, match="its content is"):
        store.add_slab(digest, BASE, "float32")
    assert store.lacks_slab(digest, "float32")
    assert not list((tmp_path / "store" / ".incoming").iterdir())


KILLED = """
import os, signal, sys
from pathlib import Path
from adapters.files import slab_file
from adapters.files.spec import BaseShape, ModuleShape
from adapters.files.store import AdapterStore
write, written = slab_file._write, []
def die(*arguments):
    written.append(write(*arguments))
    if len(written) == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
slab_file._write = die
modules = {name: ModuleShape(*sizes) for name, sizes in eval(sys.argv[4]).items()}
AdapterStore(Path(sys.argv[1])).add_slab(sys.argv[2], BaseShape(3, modules), "float32")
"""


@pytest.mark.parametrize("writes", [1, 4, 7])  # of 6 parts of tiles, the sums and the header
def test_a_process_killed_while_it_writes_leaves_none(store: AdapterStore, tmp_path: Path, writes: int) -> None:
    source = write_adapter(tmp_path / "source")
    digest = add_directory(store, source, BASE).digest
    modules = {name: (shape.in_features, shape.out_features) for name, shape in BASE.modules.items()}
    run = [sys.executable, "-c", KILLED, str(tmp_path / "store"), digest, str(writes), repr(modules)]
    assert subprocess.run(run, cwd=REPO, check=False).returncode == -9
    assert store.lacks_slab(digest, "float32")
    assert store.sweep() == 1
    store.add_slab(digest, BASE, "float32")
    loaded_one = open_source(store.path(digest), BASE, torch.float32)
    assert torch.equal(from_slab(loaded_one), from_file(loaded_one))


NO_ROOM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
from adapters.__main__ import main
sys.exit(main(sys.argv[2:]))
"""


def check(directory: Path, model: Path, bytes_max: int, *more: str) -> dict[str, Any]:
    """The process that checks an upload, which may write so much."""
    run = [sys.executable, "-c", NO_ROOM, str(bytes_max), "check", str(directory), "--model", str(model), *more]
    done = subprocess.run(run, cwd=REPO, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_check_of_an_upload_makes_it_where_there_is_room(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    shape = {
        "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 10,
    }  # fmt: skip
    (model / "config.json").write_text(json.dumps(shape))
    source = write_adapter(tmp_path / "source")
    size = sum(path.stat().st_size for path in source.iterdir())
    without = check(source, model, 10**9)
    assert not list(source.glob("slab*"))
    assert without["bytes"] == size
    full = check(source, model, 4096, "--slab")
    assert full == without, "it is served without one"
    assert not list(source.glob("slab*"))
    assert check(source, model, 10**9, "--slab") == without, "the two files' bytes"
    assert (source / "slab-1.float32").exists()
    # What was checked is kept under its digest.
    kept = source.rename(tmp_path / str(without["digest"]))
    assert check_adapter(kept, BASE).digest == without["digest"]
    opened = open_source(kept, BASE, torch.float32)
    assert torch.equal(from_slab(opened), from_file(opened))
