"""The house numbers of docs/contributors/README.md: sizes of functions and files, empty package files, first lines.

Offenders over the number are listed; the test fails only above 1.5 times it.
"""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from support.paths import REPO

ROOMS = ["gateway", "engine", "adapters", "kernels", "billing", "migrations"]
FUNCTION_LINES_MAX = 60
KERNEL_LINES_MAX = 120
FILE_LINES_MAX = 500
SLACK = 1.5

FILES = sorted(path for room in ROOMS for path in (REPO / room).rglob("*.py"))


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("triton" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_function_and_file_sizes() -> None:
    over: list[str] = []
    failed: list[str] = []
    for path in FILES:
        if "migrations/versions" in path.as_posix():
            continue
        source = path.read_text()
        sizes = [(path.name, len(source.splitlines()), FILE_LINES_MAX)]
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                sizes.append((node.name, lines, KERNEL_LINES_MAX if is_kernel(node) else FUNCTION_LINES_MAX))
        for name, lines, limit in sizes:
            if lines > limit:
                line = f"{path.relative_to(REPO)}: {name} has {lines} lines, the house number is {limit}"
                (failed if lines > limit * SLACK else over).append(line)
    if over:
        print("\n".join(over))
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REPO)))
def test_a_module_opens_with_what_it_is_for(path: Path) -> None:
    if path.name == "__init__.py":
        # `kernels` and `adapters` are names on PyPI too: what probes for those must find nothing to run.
        assert path.read_text() == ""
        return
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path.relative_to(REPO)} has no opening docstring"


def top_level(repo: Path) -> set[str]:
    """What lies in a checkout and is not ignored by git."""
    argv = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(argv, cwd=repo, capture_output=True, text=True, check=True).stdout
    return {name.split("/")[0] for name in listed.split("\0") if name and (repo / name).exists()}


def test_the_top_level_is_what_git_does_not_ignore(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("*.egg-info/\n")
    for name in ("laneway.egg-info", "gateway", "empty"):
        (tmp_path / name).mkdir()
    for name in ("laneway.egg-info/x", "gateway/x.py", "focus-2026-10.csv"):
        (tmp_path / name).write_text("")
    assert top_level(tmp_path) == {".gitignore", "gateway", "focus-2026-10.csv"}


def test_the_top_level_is_the_agreed_one() -> None:
    allowed = {
        *ROOMS, "admin_ui", "tests", "benchmarks", "docs", "deploy", "examples",
        "pyproject.toml", "constraints.txt", "Makefile", "README.md", "CHANGELOG.md", "LICENSE", "laneway.toml",
            "SECURITY.md",
    }  # fmt: skip
    present = top_level(REPO)
    strange = {name for name in present - allowed if not name.startswith(".")}
    assert not strange, f"not of the agreed top level: {sorted(strange)}"


def test_no_name_of_a_second_version() -> None:
    assert not [str(path) for path in FILES if path.stem.endswith(("_v2", "_new", "_old"))]
    assert not [str(path) for path in FILES if path.stem in {"utils", "common", "helpers"}]


MODULES_MAX = 20
# A folder of one kind of file each, read by name: an API, a command, an operation on tensors.
WIDE_ROOMS = {"gateway/routes", "gateway/commands", "kernels"}


def test_a_room_is_small_enough_to_read() -> None:
    """A package holds at most MODULES_MAX modules directly; a larger one hides what it is about."""
    sizes = Counter(path.parent.relative_to(REPO).as_posix() for path in FILES if path.name != "__init__.py")
    large = {room: size for room, size in sizes.items() if size > MODULES_MAX and room not in WIDE_ROOMS}
    assert not {room for room in large if not room.startswith("migrations/versions")}, large
