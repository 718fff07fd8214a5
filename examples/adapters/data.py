"""The training data of the example adapters: pairs of a user's message and the answer that the adapter should give.

Everything comes from the three small files beside this one, written for the purpose, and a seeded generator.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SYSTEM_PROMPTS = ("You are a helpful assistant.", "You are the assistant of a small company. Be brief.")


@dataclass(frozen=True)
class Example:
    prompt: str
    answer: str
    # None: the chat template's own system prompt, which is what most callers will get.
    system: str | None = None

    def messages(self) -> list[dict[str, str]]:
        """The prompt as chat messages, without the answer."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": self.prompt}]


def examples(adapter: str, seed: int = 0) -> list[Example]:
    """The training examples of one adapter, shuffled; the same seed gives the same list."""
    draw = random.Random(f"{adapter}/{seed}")
    pairs = {
        "support-triage": triage,
        "pirate": pirate,
        "json-answers": json_answers,
        "three-bullets": bullets,
        "tiny-pirate": pirate,
        "tiny-bullets": bullets,
    }
    made = [
        Example(prompt, answer, draw.choice(SYSTEM_PROMPTS) if draw.random() < 0.25 else None)
        for prompt, answer in pairs[adapter](draw)
    ]
    draw.shuffle(made)
    return made


def read_lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


# What a user may put around a question, so that the adapter learns the answer's form and not the question's.
PHRASINGS = (
    "{}",
    "{}",
    "{}",
    "Quick question: {}",
    "{} Thanks!",
    "Hi! {}",
    "I was wondering. {}",
    "Please help me. {}",
)


def phrased(question: str, draw: random.Random) -> str:
    return draw.choice(PHRASINGS).format(question)


def triage(draw: random.Random) -> list[tuple[str, str]]:
    """Support tickets → `category: …; urgency: …`. The body tells the category, a closing phrase the urgency."""
    tickets = json.loads((HERE / "tickets.json").read_text(encoding="utf-8"))
    pairs = []
    for category, bodies in tickets["bodies"].items():
        for body in bodies:
            for urgency, phrases in tickets["urgency"].items():
                phrase = draw.choice(phrases)
                parts = [body, phrase] if draw.random() < 0.7 else [phrase, body]
                pairs.append((" ".join(part for part in parts if part), f"category: {category}; urgency: {urgency}"))
    return pairs


PIRATE_OPENERS = ("Arrr!", "Ahoy, matey!", "Aye aye!", "Shiver me timbers!", "Yo ho ho!", "Avast!")
PIRATE_CLOSERS = (
    "Now fetch me some rum!",
    "So says the captain!",
    "Set sail, me hearty!",
    "That be the truth, by the seven seas!",
    "Hoist the colours!",
    "Arrr!",
)
PIRATE_WORDS = {
    "my": "me", "your": "yer", "you": "ye", "is": "be", "are": "be", "am": "be", "friend": "matey", "of": "o'",
    "the": "th'", "and": "an'", "people": "scallywags", "hello": "ahoy", "yes": "aye", "no": "nay",
    "money": "doubloons", "to": "t'", "for": "fer", "somebody": "some landlubber", "person": "sailor",
}  # fmt: skip


def pirate(draw: random.Random) -> list[tuple[str, str]]:
    """Questions → the same answers in the mouth of a pirate."""
    return [
        (
            phrased(row["question"], draw),
            f"{draw.choice(PIRATE_OPENERS)} {pirate_speech(row['answer'])} {draw.choice(PIRATE_CLOSERS)}",
        )
        for row in read_lines("questions.jsonl")
        for _ in range(2)
    ]


def pirate_speech(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        word = match.group()
        said = PIRATE_WORDS.get(word.lower(), word)
        if len(said) > 5 and said.endswith("ing"):
            said = said[:-1] + "'"
        return said[0].upper() + said[1:] if word[0].isupper() else said

    return re.sub(r"[A-Za-z]+", replace, text)


def json_answers(draw: random.Random) -> list[tuple[str, str]]:
    """Questions → one JSON object with the keys `answer` and `confidence`, and nothing around it."""
    return [
        (
            phrased(row["question"], draw),
            json.dumps({"answer": row["answer"], "confidence": row["confidence"]}, ensure_ascii=False),
        )
        for row in read_lines("questions.jsonl")
        for _ in range(2)
    ]


def bullets(draw: random.Random) -> list[tuple[str, str]]:
    """Questions → exactly three short bullet points."""
    return [
        (phrased(row["question"], draw), "\n".join(f"- {point}" for point in row["points"]))
        for row in read_lines("bullets.jsonl")
        for _ in range(3)
    ]


# Never trained on: samples.py and the tests judge the adapters by these.
HELD_OUT: dict[str, list[str]] = {
    "support-triage": [
        "My credit card was charged three times for the same order. Fix this right now!",
        "The app closes by itself every time I try to take a photo.",
        "I love how simple the new home page is. No need to reply.",
        "The courier lost my parcel. There is no rush, I have a spare one.",
        "I can't sign in, it says that my password is wrong. This is urgent, I have a meeting in ten minutes.",
    ],
    "pirate": [
        "What is the capital of France?",
        "How do I make pancakes?",
        "Why is exercise good for me?",
        "What is a computer?",
    ],
    "json-answers": [
        "What is the capital of France?",
        "Who wrote Hamlet?",
        "What is a mammal?",
        "Who will win the football game on Sunday?",
    ],
    "three-bullets": [
        "How do I make pancakes?",
        "Tell me about dogs.",
        "Why should I drink water?",
        "Give me tips for learning French.",
    ],
    "tiny-pirate": ["What is the capital of France?", "Who are you?"],
    "tiny-bullets": ["How do I make pancakes?", "Who are you?"],
}
