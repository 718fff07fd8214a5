"""docs/clients.md as data: its snippets, its tables of fields, and what the console's page Connect is built from.

    PYTHONPATH=. python tests/connect_page.py

writes the tables anew from the wire types, and then the console's file. Run it after a change of either.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gateway.field_tables import STATES, Row, tables

REPO = Path(__file__).resolve().parents[1]
PAGE = REPO / "docs" / "clients.md"
README = REPO / "README.md"
CONSOLE_FILE = REPO / "admin_ui" / "src" / "pages" / "serve" / "connect.json"
BEGIN = "<!-- tables: written by `python tests/connect_page.py` from the wire types -->\n"
END = "<!-- end of tables -->\n"
# What the console puts a value in the place of.
URL_PLACE, MODEL_PLACE = "{{url}}", "{{model}}"
DEFAULT_MODEL = "smollm2-135m-instruct"
# By language: how a snippet reads the base URL and the model from the environment, and what the console has instead.
FROM_ENVIRONMENT = {
    "sh": (("$LANEWAY_URL", URL_PLACE), (f"${{MODEL:-{DEFAULT_MODEL}}}", MODEL_PLACE)),
    "python": (
        ('os.environ["LANEWAY_URL"]', f'"{URL_PLACE}"'),
        (f'os.environ.get("MODEL", "{DEFAULT_MODEL}")', f'"{MODEL_PLACE}"'),
    ),
    "js": (
        ("process.env.LANEWAY_URL", f'"{URL_PLACE}"'),
        (f'process.env.MODEL ?? "{DEFAULT_MODEL}"', f'"{MODEL_PLACE}"'),
    ),
}
_SNIPPET = re.compile(
    r"^### (?P<title>[^\n]+)\n\n`(?P<install>[^`\n]+)`\n\n```(?P<language>\w+)\n(?P<text>.+?)^```", re.M | re.S
)


@dataclass(frozen=True)
class Snippet:
    title: str
    install: str
    language: str
    text: str

    @property
    def id(self) -> str:
        return re.sub(r"[^a-z]+", "-", self.title.lower()).strip("-")

    def with_places(self) -> str:
        """With a place for the base URL and one for the model. Raises ValueError where it reads one otherwise."""
        text = self.text
        for read, place in FROM_ENVIRONMENT[self.language]:
            if text.count(read) != 1:
                raise ValueError(f"{self.title}: {read} must occur once")
            text = text.replace(read, place)
        return text


def snippets() -> list[Snippet]:
    part = PAGE.read_text().split("\n## Snippets\n", 1)[1].split("\n## ", 1)[0]
    found = [Snippet(**match.groupdict()) for match in _SNIPPET.finditer(part)]
    if len(found) != part.count("\n### "):
        raise ValueError("a section of Snippets has no install line in backticks, or no snippet below it")
    return found


def readme_snippet() -> str:
    """The README's first lines of Python."""
    return README.read_text().split("```python\n", 1)[1].split("```", 1)[0]


def markdown() -> str:
    return "".join([f"\n### `{table.path}`\n\n{_table(table.rows)}" for table in tables()]) + "\n"


def _table(rows: list[Row]) -> str:
    lines = ["| field | | values | why |", "|---|---|---|---|"]
    for row in rows:
        field = f"`{row.field}`" + (" (required)" if row.required else "")
        lines.append(f"| {field} | {STATES[row.state]} | {row.values} | {row.why} |")
    return "\n".join([line.replace("  ", " ") for line in lines]) + "\n"


def page() -> str:
    """docs/clients.md as it should be."""
    text = PAGE.read_text()
    before, rest = text.split(BEGIN, 1)
    return before + BEGIN + markdown() + END + rest.split(END, 1)[1]


def console_file() -> str:
    """admin_ui/src/pages/serve/connect.json as it should be."""
    data: dict[str, Any] = {
        "snippets": [
            {
                "id": one.id,
                "title": one.title,
                "install": one.install,
                "language": one.language,
                "text": one.with_places(),
            }
            for one in snippets()
        ],
        "states": STATES,
        "tables": msgspec.to_builtins(tables()),
    }
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    CONSOLE_FILE.write_text(console_file())
