"""The packages that deploy/README.md installs are pinned, hashed, and of the tested versions."""

from __future__ import annotations

import re

from support.paths import REPO

PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[a-z,]+\])?==([^ ;\\\n]+)", re.MULTILINE)
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")
# Needed only on other systems than the one on which constraints.txt was made.
ELSEWHERE = {"async-timeout", "colorama", "httpx2-jsfetch"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(file: str) -> dict[str, str]:
    return {normal(name): version for name, version in PIN.findall((REPO / file).read_text())}


def test_every_package_that_is_deployed_has_a_hash() -> None:
    text = (REPO / "deploy/requirements.txt").read_text()
    blocks = re.split(r"\n(?=[A-Za-z0-9])", text.partition("\n")[2])
    assert len(blocks) == len(pins("deploy/requirements.txt")) > 20
    for block in blocks:
        assert PIN.match(block), block[:80]
        assert HASH.search(block), block[:80]
    assert "://" not in text, "no host of an index belongs into it"


def test_the_versions_are_those_of_the_tests() -> None:
    tested, deployed = pins("constraints.txt"), pins("deploy/requirements.txt")
    differ = {name: version for name, version in deployed.items() if tested.get(name) != version}
    assert not {name: version for name, version in differ.items() if name not in ELSEWHERE}, differ


def test_what_laneway_depends_on_is_deployed() -> None:
    text = (REPO / "pyproject.toml").read_text()
    listed = text.partition("dependencies = [")[2].partition("\n]")[0]
    wanted = {normal(name) for name in re.findall(r'^    "([a-z0-9-]+)', listed, re.MULTILINE)}
    assert len(wanted) > 10
    assert wanted <= pins("deploy/requirements.txt").keys()
    # Exports as Parquet, and the object store of engines on other hosts: the images have them.
    assert {"pyarrow", "obstore"} <= pins("deploy/requirements.txt").keys()


def test_deploys_own_lines_use_them() -> None:
    readme = (REPO / "deploy/README.md").read_text()
    assert "--require-hashes --only-binary :all: -r deploy/requirements.txt" in readme
    torch = re.search(r"^TORCH \?= (torch==\S+)$", (REPO / "Makefile").read_text(), re.MULTILINE)
    assert torch is not None
    assert f"-c constraints.txt {torch[1]}\n" in readme
