"""Uploads that are no adapter of this base: each refused with its reason, leaving nothing on disk, troubling nobody."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.files.check import CONFIG_FILE, WEIGHTS_FILE
from adapters.files.generate import Recipe, write_random
from adapters.files.header import HEADER_BYTES_MAX, TENSORS_MAX
from adapters.files.spec import BaseShape
from gateway.access import keys
from support.gateway.adapter_uploads import AdapterOperator, Files, HalfUpload
from support.stack import MODEL, Stack
from support.waiting import eventually

A0 = "base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight"
B0 = A0.replace("lora_A", "lora_B")
UPLOAD_BYTES_MAX = 2 * 1024 * 1024


class Good:
    """A valid adapter of rank 1 on k_proj, in pieces that can be made wrong."""

    def __init__(self, directory: Path, base: BaseShape) -> None:
        write_random(directory, base, Recipe(7, 1, ("k_proj",)), MODEL)
        self.config: dict[str, Any] = json.loads((directory / CONFIG_FILE).read_bytes())
        whole = (directory / WEIGHTS_FILE).read_bytes()
        length = int.from_bytes(whole[:8], "little")
        self.header: dict[str, Any] = json.loads(whole[8 : 8 + length])
        self.data = whole[8 + length :]

    def configured(self, **changes: Any) -> Files:
        return parts(json.dumps(self.config | changes).encode(), self.weights())

    def weights(self, header: Any = None, data: bytes | None = None) -> bytes:
        found = self.header if header is None else header
        text = found if isinstance(found, bytes) else json.dumps(found).encode()
        return struct.pack("<Q", len(text)) + text + (self.data if data is None else data)

    def with_weights(self, weights: bytes) -> Files:
        return parts(json.dumps(self.config).encode(), weights)

    def headed(self, header: Any, data: bytes | None = None) -> Files:
        return self.with_weights(self.weights(header, data))

    def changed(self, tensor: str, **entry: Any) -> Files:
        return self.headed(self.header | {tensor: self.header[tensor] | entry})

    def renamed(self, old: str, new: str) -> Files:
        return self.headed({new if name == old else name: entry for name, entry in self.header.items()})

    def poisoned(self, bits: int) -> Files:
        data = bytearray(self.data)
        data[10:12] = bits.to_bytes(2, "little")
        return self.headed(self.header, bytes(data))

    def of(self, base: BaseShape, directory: Path, **recipe: Any) -> Files:
        """One for another base, or of another kind."""
        made = write_random(directory, base, Recipe(8, **{"rank": 1, "modules": ("k_proj",), **recipe}), MODEL)
        return parts((made / CONFIG_FILE).read_bytes(), (made / WEIGHTS_FILE).read_bytes())


def parts(config: bytes, weights: bytes) -> Files:
    return [(CONFIG_FILE, (CONFIG_FILE, config, "")), (WEIGHTS_FILE, (WEIGHTS_FILE, weights, ""))]


def archive(good: Good) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as file:
        file.writestr(WEIGHTS_FILE, good.weights())
    return whole.getvalue()


class Bomb:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/laneway-was-here",)


def other_base(**changes: int) -> BaseShape:
    shape = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
    return BaseShape.from_config(shape | {"num_key_value_heads": 3} | changes)


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


# What is sent, and what the refusal says.
Bad = Callable[[Good, Path], Files]
BAD: dict[str, tuple[Bad, str]] = {
    # the file as a whole
    "nothing": (lambda g, _: g.with_weights(b""), "header: the file has 0 bytes"),
    "four bytes": (lambda g, _: g.with_weights(b"\0" * 4), "header: the file has 4 bytes"),
    "truncated in its header": (lambda g, _: g.with_weights(g.weights()[:200]), "truncated"),
    "truncated in its numbers": (lambda g, _: g.with_weights(g.weights()[:-2]), "truncated"),
    "with more behind it": (lambda g, _: g.with_weights(g.weights() + b"more"), "4 bytes after the last tensor"),
    "a zip": (lambda g, _: g.with_weights(archive(g)), "a zip archive or a pickle"),
    "a pickle": (lambda g, _: g.with_weights(pickle.dumps({"a": Bomb()})), "a zip archive or a pickle"),
    "a gzip": (lambda g, _: g.with_weights(b"\x1f\x8b\x08\x00" + b"\0" * 60), "header: its length field says"),
    "a script": (lambda g, _: g.with_weights(b"#!/bin/sh\nrm -rf /\n" * 9), "header: its length field says"),
    # the header
    "a huge header": (
        lambda g, _: g.with_weights(struct.pack("<Q", 2**63) + b"{}"),
        f"{2**63} bytes, more than {HEADER_BYTES_MAX}",
    ),
    "the hugest header": (lambda g, _: g.with_weights(b"\xff" * 8 + b"{}"), f"says {2**64 - 1} bytes"),
    "no JSON": (lambda g, _: g.headed(b"{'a': 1}"), "header: not valid JSON"),
    "a list": (lambda g, _: g.headed(b"[1]"), "header: does not begin with"),
    "nested deeply": (lambda g, _: g.headed(nested(100_000)), "header: not valid JSON"),
    "a tensor twice": (
        lambda g, _: g.headed(json.dumps(g.header).encode()[:-1] + b"," + json.dumps({A0: g.header[A0]}).encode()[1:]),
        f"header: {A0}: named twice",
    ),
    "too many tensors": (
        lambda g, _: g.headed({f"t{i}": {} for i in range(TENSORS_MAX + 1)}),
        f"{TENSORS_MAX + 1} tensors, more than {TENSORS_MAX}",
    ),
    "a long name": (lambda g, _: g.renamed(A0, "x" * 5000), "a name of 5000 characters"),
    "an entry with code": (lambda g, _: g.changed(A0, run="import os"), f"{A0}: its header entry must have exactly"),
    # offsets
    "overlapping": (lambda g, _: g.changed(B0, data_offsets=g.header[A0]["data_offsets"]), f"{B0}: "),
    "a gap": (lambda g, _: g.changed(A0, **_moved(g.header[A0], 2)), "leaves a gap before it"),
    "beyond the end": (
        lambda g, _: g.changed(A0, data_offsets=[2**40, 2**40 + 1152]),
        "leaves a gap before it",
    ),
    "backwards": (lambda g, _: g.changed(A0, data_offsets=[1152, 0]), f"{A0}: its data_offsets are not"),
    "negative": (lambda g, _: g.changed(A0, data_offsets=[-1152, 0]), f"{A0}: its data_offsets are not"),
    "overflowing": (lambda g, _: g.changed(A0, shape=[2**62, 2**62]), f"{A0}: shape"),
    "fractional": (lambda g, _: g.changed(A0, shape=[1.0, 576]), f"{A0}: its shape is not"),
    # tensors
    "integers": (lambda g, _: g.changed(A0, dtype="I16"), f"{A0}: dtype 'I16'"),
    "eight bits": (lambda g, _: g.changed(A0, dtype="F8_E4M3"), f"{A0}: dtype 'F8_E4M3'"),
    "transposed": (lambda g, _: g.changed(A0, shape=[576, 1]), f"{A0}: shape [576, 1], the base needs [rank, 576]"),
    "a vector": (lambda g, _: g.changed(A0, shape=[576]), f"{A0}: shape [576]"),
    "NaN": (lambda g, _: g.poisoned(0x7FC0), "number 5 is NaN or infinite"),
    "infinite": (lambda g, _: g.poisoned(0xFF80), "number 5 is NaN or infinite"),
    "a path for a name": (lambda g, _: g.renamed(A0, "../../../etc/cron.d/x"), "../../../etc/cron.d/x: "),
    "a magnitude": (lambda g, _: g.renamed(A0, A0.replace("lora_A.weight", "lora_magnitude_vector")), "DoRA magnitude"),
    "an embedding": (
        lambda g, _: g.renamed(A0, "base_model.model.model.embed_tokens.weight"),
        "embed_tokens.weight: LoRA on (or a copy of) the embedding",
    ),
    "without its other half": (lambda g, _: g.renamed(A0, A0.replace("lora_A", "lora_C")), "lora_C.weight: "),
    # the base
    "fewer layers": (
        lambda g, d: g.of(other_base(num_hidden_layers=24), d),
        "the base has 30 layers, these tensors are of 24",
    ),
    "more layers": (lambda g, d: g.of(other_base(num_hidden_layers=32), d), "the base has 30 layers, 0 to 29"),
    "another width": (lambda g, d: g.of(other_base(hidden_size=2048), d), "the base needs [rank, 576]"),
    "another head count": (lambda g, d: g.of(other_base(num_key_value_heads=9), d), "the base needs [192, rank]"),
    # the configuration
    "rank 0": (lambda g, _: g.configured(r=0), "r: rank 0 is not"),
    "rank 10,000": (lambda g, _: g.configured(r=10_000), "r: rank 10000 is not"),
    "another rank than its tensors'": (lambda g, _: g.configured(r=2), "rank 1, the configuration says 2"),
    "DoRA": (lambda g, _: g.configured(use_dora=True), "use_dora: "),
    "biases": (lambda g, _: g.configured(bias="all"), "bias: "),
    "saved modules": (lambda g, _: g.configured(modules_to_save=["lm_head"]), "modules_to_save: "),
    "another method": (lambda g, _: g.configured(peft_type="IA3"), "peft_type: 'IA3'"),
    "remote code": (lambda g, _: g.configured(auto_map={"AutoModel": "evil.py"}), "auto_map: "),
    "an infinite alpha": (lambda g, _: g.configured(lora_alpha=1e300), "lora_alpha: "),
    "a pattern that backtracks": (lambda g, _: g.configured(target_modules="(a+)+k_proj"), "does not target"),
    "a pattern without end": (
        lambda g, _: g.configured(rank_pattern={"(?=model.layers.0.self_attn.k_proj)" + ".?" * 28 + "X": 4}),
        "rank_pattern: the pattern",
    ),
    "thousands of patterns": (
        lambda g, _: g.configured(rank_pattern={f"{'.*' * 4}{number}$": 1 for number in range(4000)}),
        "rank_pattern: more than 256 regular expressions",
    ),
    "modules it has not": (lambda g, _: g.configured(target_modules=["q_proj"]), "does not target"),
    "a key twice": (
        lambda g, _: parts(json.dumps(g.config).encode()[:-1] + b', "r": 1}', g.weights()),
        "adapter_config.json: r: named twice",
    ),
    "no configuration": (lambda g, _: parts(b"", g.weights()), "adapter_config.json: not valid JSON"),
    "a nested configuration": (lambda g, _: parts(nested(100_000), g.weights()), "adapter_config.json: not valid JSON"),
    # the form
    "a path for a file": (
        lambda g, _: [("f", (f"../{CONFIG_FILE}", b"{}", "")), *g.configured()[1:]],
        f"The file name '../{CONFIG_FILE}' is a path",
    ),
    "an absolute path": (lambda g, _: [("f", ("/etc/passwd", b"", "")), *g.configured()], "'/etc/passwd' is a path"),
    "a path of another system": (lambda g, _: [("f", ("a\\b", b"", "")), *g.configured()], "is a path"),
    "a third file": (lambda g, _: [*g.configured(), ("f", ("adapter_model.bin", b"x", ""))], "is not expected"),
    "a file twice": (lambda g, _: [*g.configured(), g.configured()[0]], f"{CONFIG_FILE} is in the form twice"),
    "no weights": (lambda g, _: g.configured()[:1], f"The form lacks the file {WEIGHTS_FILE}"),
    "a field that there is not": (lambda g, _: [("color", (None, b"red", "")), *g.configured()], "no field 'color'"),  # type: ignore[list-item]
    "a long field": (lambda g, _: [("notes", (None, b"n" * 20_000, "")), *g.configured()], "'notes' is over"),  # type: ignore[list-item]
    "too large": (lambda g, _: g.headed(g.header, b"\0" * UPLOAD_BYTES_MAX), "over the limit of"),
}


def _moved(entry: dict[str, Any], by: int) -> dict[str, Any]:
    return {"data_offsets": [offset + by for offset in entry["data_offsets"]]}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("bad")
    toml = f"[adapters]\nupload_bytes_max = {UPLOAD_BYTES_MAX}\nuploads_max = 2\nupload_idle_s = 1.0\n"
    stack = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir, toml=toml, fake={"step_ms": 1.0})
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Good:
    base = BaseShape.from_config(json.loads((model_dir / "config.json").read_bytes()))
    return Good(tmp_path_factory.mktemp("good"), base)


@pytest.fixture(scope="module")
def operator(served: Stack) -> Iterator[AdapterOperator]:
    secret = served.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin")).secret
    operator = AdapterOperator(served.url, secret)
    yield operator
    operator.close()


@pytest.fixture(scope="module", autouse=True)
def unharmed(served: Stack) -> Iterator[None]:
    """Somebody asks all the time, and never hears of any of this."""
    over = threading.Event()
    answers: list[int] = []

    def ask() -> None:
        while not over.is_set():
            answers.append(served.chat(model="acme-style", max_tokens=4).status_code)
            over.wait(0.05)

    asker = threading.Thread(target=ask)
    asker.start()
    assert served.engine is not None
    pid = served.engine.pid
    yield
    over.set()
    asker.join()
    assert set(answers) == {200}
    assert answers
    assert (served.engine.pid, served.engine.poll()) == (pid, None)


def left_on_disk(stack: Stack) -> list[Path]:
    root = stack.config.adapters_dir
    # Not rglob: a directory that goes while it looks is an error there.
    found = [Path(folder) / name for folder, folders, files in os.walk(root) for name in (*folders, *files)]
    return [path for path in found if path != root / ".incoming"]


@pytest.mark.parametrize("case", BAD)
def test_it_is_refused_by_name_and_leaves_nothing(
    served: Stack, operator: AdapterOperator, good: Good, tmp_path: Path, case: str
) -> None:
    make, reason = BAD[case]
    answer = operator.post_files(make(good, tmp_path), name="bad", tenant="acme")
    assert answer.status_code in (400, 413), answer.text
    assert reason in answer.json()["error"]["message"]
    assert left_on_disk(served) == []
    assert operator.send("GET", "adapters/bad").status_code == 404
    assert not Path("/tmp/laneway-was-here").exists()


FIELDS: dict[str, tuple[dict[str, Any], int, str]] = {
    "no name": ({"name": ""}, 400, "name"),
    "a base model's name": ({"name": MODEL}, 409, "name"),
    "a name with a line break": ({"name": "a\nb"}, 400, "name"),
    "a long name": ({"name": "n" * 201}, 400, "name"),
    "no such base": ({"base": "gpt"}, 404, "base"),
    "no such owner": ({"tenant": "nobody"}, 404, "tenant"),
    "shared with nobody": ({"shared": "acme,nobody"}, 404, "tenant"),
    "pinned by half": ({"pinned": "perhaps"}, 400, "pinned"),
    "long notes": ({"notes": "n" * 2001}, 400, "notes"),
    "two names": ({"name": ["a", "b"]}, 400, "name"),
}


@pytest.mark.parametrize("case", FIELDS)
def test_a_field_that_cannot_be_is_refused(served: Stack, operator: AdapterOperator, good: Good, case: str) -> None:
    fields, status, param = FIELDS[case]
    answer = operator.post_files(good.configured(), **{"name": "bad", "tenant": "acme", **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
    assert left_on_disk(served) == []


def test_a_dry_run_says_what_an_upload_would_and_keeps_nothing(
    served: Stack, operator: AdapterOperator, good: Good
) -> None:
    fits = operator.post_files(good.configured(base_model_name_or_path="meta-llama/Llama-3.1-8B"), "adapters/check")
    assert fits.status_code == 200, fits.text
    assert (fits.json()["rank_max"], fits.json()["targets"]) == (1, ["k_proj"])
    [warning] = fits.json()["warnings"]
    assert "it says 'meta-llama/Llama-3.1-8B', the base is" in warning
    refused = operator.post_files(good.poisoned(0x7FC0), "adapters/check")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_adapter")
    assert left_on_disk(served) == []


def test_a_body_that_is_no_form_is_refused(served: Stack, operator: AdapterOperator) -> None:
    assert operator.send("POST", "adapters", {"name": "x"}).status_code == 400
    url, headers = f"{served.url}/v1/admin/adapters", {**operator._client.headers}
    for kind, body in (
        ("multipart/form-data", b""),
        ("multipart/form-data; boundary=" + "b" * 300, b""),
        ("multipart/form-data; boundary=b", b"no form at all, and far from one" * 99),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\nno name\r\n--b--\r\n"),
        ("multipart/form-data; boundary=b", b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\nunfinished'),
    ):
        answer = httpx.post(url, headers=headers | {"content-type": kind}, content=body)
        assert answer.status_code == 400, (kind, body[:20], answer.text)
        assert answer.json()["error"]["message"]


def test_only_operators_upload(served: Stack, good: Good) -> None:
    answer = httpx.post(f"{served.url}/v1/admin/adapters", headers=served.headers(), files=good.configured())
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_scope")


def test_who_leaves_half_way_leaves_nothing(served: Stack, operator: AdapterOperator, good: Good) -> None:
    half = HalfUpload(served.port, operator, good.configured())
    eventually(lambda: len(operator.ok("GET", "adapters/uploads")) == 1)
    eventually(lambda: operator.ok("GET", "adapters/uploads")[0]["bytes_received"] > 10_000)
    [upload] = operator.ok("GET", "adapters/uploads")
    assert upload["state"] == "receiving"
    assert upload["bytes_received"] < upload["bytes_total"]
    assert left_on_disk(served)
    half.connection.close()
    eventually(lambda: left_on_disk(served) == [])
    eventually(lambda: operator.ok("GET", "adapters/uploads") == [])


def test_uploads_at_once_are_bounded_and_one_that_stands_still_is_given_up(
    served: Stack, operator: AdapterOperator, good: Good
) -> None:
    halves = [HalfUpload(served.port, operator, good.configured()) for _ in range(2)]
    eventually(lambda: len(operator.ok("GET", "adapters/uploads")) == 2)
    refused = operator.post_files(good.configured(), name="third")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_is_overloaded")
    assert "retry-after" in refused.headers
    for half in halves:
        assert b"408" in half.connection.recv(65536).partition(b"\r\n")[0]
        half.connection.close()
    eventually(lambda: left_on_disk(served) == [])
