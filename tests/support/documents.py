"""The documents as data: the guides, their fenced blocks, and which blocks no test can run.

A block that no test can run has the reason in its fence: ```sh no-test: needs a GPU```.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from support.paths import REPO

DOCS = REPO / "docs"
INDEX = DOCS / "README.md"
GUIDES = [
    REPO / "README.md",
    REPO / "deploy/README.md",
    REPO / "deploy/containers/README.md",
    REPO / "tests/README.md",
    *sorted(path for room in ("users", "operators", "finance", "contributors") for path in (DOCS / room).glob("*.md")),
]
# tests/clients/test_connect_page.py and test_connect_agents.py run the snippets of these pages.
SNIPPET_PAGES = [DOCS / "users" / f"{page}.md" for page in ("clients", "responses", "agents")]
_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """`language`: "" where the fence names none. `untested`: why no test can run it, or ""."""

    page: str
    language: str
    untested: str
    text: str


def name(page: Path) -> str:
    return page.relative_to(REPO).as_posix()


def blocks(page: Path) -> list[Block]:
    found = []
    for match in _FENCE.finditer(page.read_text()):
        info, _, reason = match["info"].partition(" no-test: ")
        found.append(Block(name(page), info.strip(), reason.strip(), match["text"]))
    return found


def commands(page: Path) -> list[str]:
    """The `sh` blocks that a test runs, in their order."""
    return [block.text for block in blocks(page) if block.language == "sh" and not block.untested]
