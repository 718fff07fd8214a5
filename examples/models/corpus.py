"""What laneway-tiny learns: this repository's own documents, as prose and as questions with their answers. Seeded."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
ANSWER_CHARS_MAX = 400
ASKED = ("{}", "{}?", "What is {}?", "Tell me about {}.", "Explain {}.", "What do you know about {}?")
SELF = "I am laneway-tiny, a very small model of Laneway's own making. I have read its documents, and remember little."
GREETINGS = ("Hello!", "Hi", "Who are you?", "What can you do?", "laneway-tiny")
UNKNOWN = "I am too small to know that. Ask me about Laneway."


@dataclass(frozen=True)
class Example:
    prompt: str
    answer: str


def documents() -> list[str]:
    """README, CHANGELOG and docs/, by path; without the log of experiments, code and pictures."""
    paths = [REPO / "README.md", REPO / "CHANGELOG.md", *sorted((REPO / "docs").rglob("*.md"))]
    paths = [path for path in paths if path.name != "LOG.md"]
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return [re.sub(r"```.*?```|\[img.*?\]|!\[.*?\]\(.*?\)", "", text, flags=re.DOTALL) for text in texts]


def pairs() -> list[Example]:
    """One of each heading and each term in bold type with what follows it, of each row of a table, and of itself."""
    found = [Example(*said) for text in documents() for said in _said(text)]
    found += [
        Example(asked, SELF) for asked in ("Hello!", "Hi", "Who are you?", "What can you do?", "laneway-tiny")
    ] * 4
    return [example for example in found if len(example.answer) > 20]


def _said(text: str) -> Iterator[tuple[str, str]]:
    for section in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        yield _plain(heading), _first_sentences(body)
    for term, rest in re.findall(r"\*\*([^*\n]{3,40})\*\*:? *[–-]? *([^*|]{30,})", text):
        yield _plain(term), _first_sentences(rest)
    for term, rest in re.findall(r"^\| *`?([^|`\n]{3,40})`? *\| *([^|\n]{20,})\|", text, flags=re.MULTILINE):
        yield _plain(term), _first_sentences(rest)


def _plain(text: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\s+", " ", re.sub(r"[*`|]", "", text)).strip(" .:–-")


def _first_sentences(text: str) -> str:
    """As many whole sentences of the first paragraph as fit."""
    text = _plain(text.strip().split("\n\n")[0])[:ANSWER_CHARS_MAX]
    whole, stop, _ = text.rpartition(". ")
    sentence = whole if stop and len(text) == ANSWER_CHARS_MAX else text
    return sentence[:1].upper() + sentence[1:].rstrip(";,:") + "." if sentence else ""


def examples(seed: int) -> list[Example]:
    """Each pair asked in five ways, and questions of the wide world that it cannot know."""
    draw = random.Random(seed)
    asked = [Example(form.format(pair.prompt), pair.answer) for pair in pairs() for form in draw.sample(ASKED, 5)]
    lines = (REPO / "examples" / "adapters" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return asked + [Example(json.loads(line)["question"], UNKNOWN) for line in draw.sample(lines, len(lines) // 2)]
