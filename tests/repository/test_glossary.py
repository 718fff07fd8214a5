"""The glossary holds: retired names and phrases are not used, and one public class name means one class."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from support.documents import DOCS, GUIDES
from support.paths import REPO

GLOSSARY = DOCS / "GLOSSARY.md"
PACKAGES = ("gateway", "engine", "adapters", "kernels", "billing", "migrations")
MODULES = sorted(path for package in PACKAGES for path in (REPO / package).rglob("*.py"))
PAGES = sorted(path for kind in ("*.ts", "*.tsx") for path in (REPO / "admin_ui/src").rglob(kind))
DOCUMENTS = sorted({*GUIDES, *DOCS.glob("*.md"), *(DOCS / "decisions").glob("*.md")} - {GLOSSARY, DOCS / "LOG.md"})


def table(heading: str) -> list[str]:
    """The first column of the table below a heading of the glossary."""
    section = re.split(r"^#+ ", GLOSSARY.read_text().split(f"### {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [re.split(r"(?<!\\)\|", line)[1].strip() for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


def names(heading: str, *, modules: bool) -> set[str]:
    rows = [row for row in table(heading) if row.startswith("modules ") is modules]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


CLASSES = names("Class names", modules=False)
FUNCTIONS = names("Functions, methods and modules", modules=False)
MODULE_NAMES = names("Functions, methods and modules", modules=True)
PHRASES = [row.strip("`").replace(r"\|", "|") for row in table("Phrases")]


def test_the_tables_are_found() -> None:
    assert {"Room", "Hosting", "Choices", "Asked"} <= CLASSES
    assert {"begin", "take", "forget"} <= FUNCTIONS
    assert "siblings" in MODULE_NAMES
    assert len(PHRASES) > 8


def definitions(path: Path) -> list[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(REPO).as_posix())
def test_no_retired_name_is_defined(path: Path) -> None:
    assert path.stem not in MODULE_NAMES
    for node in definitions(path):
        retired = CLASSES if isinstance(node, ast.ClassDef) else FUNCTIONS
        assert node.name not in retired, f"{path.relative_to(REPO)}:{node.lineno} defines the retired name {node.name}"


def test_two_public_classes_never_share_a_name() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(REPO).as_posix())
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_a_method_name_is_shared_by_few_unrelated_classes() -> None:
    """More than SHARED_MAX classes that do not inherit one another: the name needs its object (`begin_step`)."""
    shared_max = 5
    conventional = {
        "of",
        "run",
        "close",
        "check_integrity",
        "start",
        "stop",
        "read",
        "write",
        "get",
        "load",
        "check",
        "remove",
    }
    classes: defaultdict[str, set[str]] = defaultdict(set)
    bases: dict[str, set[str]] = {}
    for path in MODULES:
        for node in definitions(path):
            if not isinstance(node, ast.ClassDef):
                continue
            if any("Protocol" in ast.unparse(base) for base in node.bases):  # its implementations are related
                conventional |= {method.name for method in node.body if isinstance(method, ast.FunctionDef)}
            bases[f"{path.stem}.{node.name}"] = {ast.unparse(base) for base in node.bases}
            for method in node.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    classes[method.name].add(f"{path.stem}.{node.name}")
    for of in classes.values():
        names = {own.rpartition(".")[2] for own in of}
        of -= {own for own in of if bases[own] & names}  # it inherits from another one
    many = {name: sorted(of) for name, of in classes.items() if len(of) > shared_max}
    assert not {name: of for name, of in many.items() if not name.startswith("__") and name not in conventional}


def page_texts(path: Path) -> list[tuple[int, str]]:
    """What a person may read of a page: its lines without comments, imports, and addresses of the API."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = re.sub(r"//.*|/\*.*?\*/|[\"'`]/v1/[^\"'`]*[\"'`]|\w+\.\w+|^import .*", " ", line)
        found.append((number, text))
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(REPO).as_posix())
def test_no_page_uses_a_retired_phrase(path: Path) -> None:
    if path.name == "schema.d.ts":
        return
    for number, text in page_texts(path):
        for phrase in PHRASES:
            found = re.search(phrase, text, re.IGNORECASE)
            assert not found, f"{path.relative_to(REPO)}:{number} says {found[0]!r}: docs/GLOSSARY.md has what to say"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(REPO).as_posix())
def test_no_document_uses_a_retired_phrase(path: Path) -> None:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for phrase in PHRASES:
            found = re.search(phrase, line, re.IGNORECASE)
            assert not found, f"{path.relative_to(REPO)}:{number} says {found[0]!r}: docs/GLOSSARY.md has what to say"
