"""Streams over many adapters at once on a running demo, and the oracle's tokens for some of them. By hand, beside
`laneway serve --demo`:

    laneway demo adapters --count 200
    python tests/programs/many_adapters.py .laneway --streams 50 --sample 8
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

MODEL = "smollm2-135m-instruct"
QUESTIONS = ("Why is the sky blue?", "Name three rivers.", "What is bread made of?", "Who sails the seas?")
TOKENS = 12


def names_like(base_url: str, key: str, prefix: str) -> list[str]:
    answer = httpx.get(f"{base_url}/models", headers={"Authorization": f"Bearer {key}"}, timeout=30)
    return [card["id"] for card in answer.json()["data"] if card["id"].startswith(prefix)]


def question_of(name: str) -> str:
    return QUESTIONS[sum(name.encode()) % len(QUESTIONS)]


async def ask_all(base_url: str, keys: Sequence[str], names: Sequence[str], streams: int) -> dict[str, str]:
    """The streamed answer of each named adapter; `streams` requests are in flight at a time. Raises AssertionError and
    httpx.HTTPError for a failed request."""
    places = asyncio.Semaphore(streams)
    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=streams)) as client:

        async def ask(number: int, name: str) -> tuple[str, str]:
            async with places:
                return name, await _stream(client, base_url, keys[number % len(keys)], name)

        return dict(await asyncio.gather(*(ask(number, name) for number, name in enumerate(names))))


async def _stream(client: httpx.AsyncClient, base_url: str, key: str, name: str) -> str:
    body = {
        "model": name,
        "messages": [{"role": "user", "content": question_of(name)}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
    }
    said: list[str] = []
    headers = {"Authorization": f"Bearer {key}"}
    async with client.stream("POST", f"{base_url}/chat/completions", json=body, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        lines = [line[6:] async for line in answer.aiter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", lines[-1]
    for line in lines[:-1]:
        said += [choice["delta"].get("content") or "" for choice in json.loads(line)["choices"]]
    return "".join(said)


def oracles_answers(model_dir: Path, directories: dict[str, Path]) -> dict[str, str]:
    """The answers of peft to the same questions, one adapter after another."""
    from engine.text.tokenizer import Tokenizer
    from support import oracle

    tokenizer = Tokenizer.load(model_dir)
    found = {}
    for name, directory in directories.items():
        ids = tokenizer.encode_chat([{"role": "user", "content": question_of(name)}])
        model = oracle.load(model_dir, directory)
        [made] = oracle.greedy(model, [ids], TOKENS, tokenizer.eos_ids)
        found[name] = tokenizer.decode(made, skip_special_tokens=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--model-dir", type=Path)
    parser.add_argument("--prefix", default="random-")
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--sample", type=int, default=8)
    options = parser.parse_args()
    demo: dict[str, Any] = json.loads((options.data_dir / "demo.json").read_text())
    model_dir = options.model_dir or options.data_dir / "models" / MODEL
    names = names_like(demo["base_url"], demo["keys"]["acme"], options.prefix)
    began = time.monotonic()
    answers = asyncio.run(ask_all(demo["base_url"], list(demo["keys"].values()), names, options.streams))
    took = time.monotonic() - began
    different = len(set(answers.values()))
    print(f"{len(answers)} adapters, {options.streams} streams at once: {took:.1f} s, {different} different answers")
    headers = {"Authorization": f"Bearer {demo['admin_key']}"}
    sample = random.Random(1).sample(names, min(options.sample, len(names)))
    directories = {
        name: options.data_dir
        / "adapters"
        / httpx.get(f"{demo['base_url']}/admin/adapters/{name}", headers=headers, timeout=30).json()["digest"]
        for name in sample
    }
    expected = oracles_answers(model_dir, directories)
    same = [name for name in sample if answers[name] == expected[name]]
    for name in sample:
        print(f"{'same ' if name in same else 'OTHER'} {name}: {answers[name]!r}")
    return 0 if len(same) == len(sample) else 1


if __name__ == "__main__":
    sys.path[:0] = [str(directory) for directory in Path(__file__).resolve().parents[1:3]]
    sys.exit(main())
