"""Samples answers under random JSON Schemas from a real engine on a CPU, and checks each with a validator.

    python tests/programs/guided_schemas.py [--model DIRECTORY] [--schemas 1000] [--seed 1] [--suite DIRECTORY]

`--suite`: a directory of the JSON-Schema-Test-Suite, such as tests/draft2020-12. Its schemas that are supported
and have a valid instance are used instead, each once.

Of each schema 1 to 4 choices are drawn, with random sampling values, beside answers of other schemas and beside
unguided texts, in an arena so small that requests are preempted. `play` raises Broken unless

- every answer that ends "stop" is an instance of its schema;
- every answer that ends "length" is a beginning that the grammar accepts;
- no request ends otherwise, and the engine is the same process at the end;
- an unguided text of one seed has the same ids beside guided texts as before them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # beside support/, and beside the packages where those are not installed
    sys.path[:0] = [str(directory) for directory in Path(__file__).resolve().parents[1:3]]

import jsonschema_rs

from adapters.files.spec import BaseShape
from adapters.files.store import AdapterStore
from engine.protocol.frames import AdapterState, Finished, Guide, LoadAdapter, Sampling, Submit
from engine.text.grammars import GrammarRefused, GrammarTokenizer, compile_grammar, json_schema_grammar
from engine.text.tokenizer import Tokenizer
from support import oracle
from support.adapters.directories import add_directory
from support.engine.process import EngineProcess, Peer
from support.engine.schemas import Made, SchemaMaker
from support.paths import MODEL_DIR

TOGETHER = 6  # schemas in one batch
TOKENS_MIN = 24
REFERENCE = 999_999_999  # seed of the unguided text


class Broken(AssertionError):
    """A condition of this module's docstring is violated."""


def sampling(rng: random.Random, choice: int) -> Sampling:
    return Sampling(
        temperature=rng.choice([0.0, 0.7, 1.0, 1.5]),
        top_p=rng.choice([1.0, 0.9]),
        top_k=rng.choice([0, 0, 40]),
        min_p=rng.choice([0.0, 0.02]),
        seed=rng.randrange(2**31),
        choice=choice,
        presence_penalty=rng.choice([0.0, 0.0, 1.5]),
        frequency_penalty=rng.choice([0.0, 0.0, 0.5]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
        logit_bias=rng.choice([{}, {}, {5: 100.0, 30: -100.0}]),
        min_tokens=rng.choice([0, 0, 5]),
        logprobs=rng.choice([-1, -1, 2]),
    )


def finite(digits: str) -> float:
    """JSON has numbers such as 1E+2248, which Python reads as infinity and a validator then calls no number."""
    return max(-sys.float_info.max, min(sys.float_info.max, float(digits)))


class Player:
    def __init__(self, peer: Peer, directory: Path, seed: int, suite: list[Made]) -> None:
        """`suite`: schemas to use; empty: random ones."""
        self.counts: Counter[str] = Counter()
        self._peer = peer
        self._text = Tokenizer.load(directory)
        self._grammars = GrammarTokenizer.load(directory)
        self._stop = sorted(self._text.eos_ids)
        self._rng = random.Random(seed)
        maker = SchemaMaker(seed)
        self._schemas = iter(suite or iter(maker.make_schema, None))
        self._handles = 0
        self._adapters: list[str | None] = [None]  # digests
        # A page and more that all prompts share.
        self._head = self._text.encode("Answer with one value of JSON, as short as can be, and nothing else. " * 2)

    async def load_adapters(self, directory: Path, adapters: list[Path], scratch: Path) -> None:
        """Let each choice use one of these LoRA adapters or none."""
        store, shape = AdapterStore(scratch), BaseShape.from_directory(directory)
        for path in adapters:
            stored = add_directory(store, path, shape)
            self._peer.send(LoadAdapter(stored.digest, "m", str(stored.path)))
            state = await self._peer.expect(AdapterState)
            if state.state != "loaded":
                raise Broken(state.message)
            self._adapters.append(stored.digest)

    def _submit(self, **fields: Any) -> Submit:
        self._handles += 1
        return self._peer.submit(self._handles, **fields)

    def reference(self) -> Submit:
        """The unguided text that must not change."""
        return self._submit(
            prompt_ids=self._head, max_tokens=24, stop_ids=[], sampling=Sampling(seed=REFERENCE), tier="premium",
            share="other",
        )  # fmt: skip

    async def play_batch(self, count: int, expected: list[int]) -> None:
        asked: dict[int, tuple[Made, str]] = {}
        frames = [self.reference()]
        for _ in range(count):
            made = next(self._schemas)
            grammar = json_schema_grammar(made.schema, whitespace_max=self._rng.choice([0, 1, 1, 2]))
            tokens = max(TOKENS_MIN, 4 * len(self._text.encode(json.dumps(made.shortest))))
            prompt = self._head + self._text.encode(f" Seed {self._rng.randrange(1000)}.")
            for choice in range(self._rng.choice([1, 1, 2, 4])):
                frames.append(
                    self._submit(
                        prompt_ids=prompt, max_tokens=tokens, stop_ids=self._stop, guide=Guide(grammar),
                        sampling=sampling(self._rng, choice), tier=self._rng.choice(["standard", "batch"]),
                        adapter=self._rng.choice(self._adapters),
                    )
                )  # fmt: skip
                asked[frames[-1].handle] = (made, grammar)
        # The unguided text comes last, from another share of a higher tier: guided texts are preempted for it.
        self._peer.send(*frames[1:])
        await self._peer.drain()
        await asyncio.sleep(0.1)
        self._peer.send(frames[0])
        ended = await self._peer.until_ended(*(frame.handle for frame in frames), timeout_s=600.0)
        if ended[frames[0].handle][0] != expected:
            raise Broken("an unguided text has other ids beside guided texts")
        for handle, (made, grammar) in asked.items():
            self._check(made, grammar, *ended[handle])

    def _check(self, made: Made, grammar: str, ids: list[int], ending: Any) -> None:
        if not isinstance(ending, Finished) or ending.reason not in ("stop", "length"):
            raise Broken(f"{ending} of {json.dumps(made.schema)}")
        self.counts[ending.reason] += 1
        self.counts["preemptions"] += ending.usage.preemptions
        self.counts["cached"] += ending.usage.cached_tokens > 0
        text = self._text.decode([id_ for id_ in ids if id_ not in self._text.eos_ids])
        if ending.reason == "length":
            if compile_grammar(self._grammars, grammar).validate_tokens(ids) != len(ids):
                raise Broken(f"{text!r} is no beginning under {json.dumps(made.schema)}")
            return
        try:
            value = json.loads(text, parse_float=finite)
        except ValueError:
            raise Broken(f"{text!r} is no JSON, of {json.dumps(made.schema)}") from None
        if not jsonschema_rs.is_valid(made.schema, value, validate_formats=True):
            raise Broken(f"{text!r} is no instance of {json.dumps(made.schema)}")


async def play(
    process: EngineProcess,
    directory: Path,
    schemas: int,
    seed: int,
    adapters: list[Path],
    scratch: Path,
    suite: Path | None = None,
) -> Counter[str]:
    """The counts of endings and other events. Raises Broken."""
    peer = await Peer.connect(process.socket)
    found = suite_schemas(suite, GrammarTokenizer.load(directory)) if suite else []
    schemas = len(found) or schemas
    player = Player(peer, directory, seed, found)
    player.counts["schemas"] = schemas
    await player.load_adapters(directory, adapters, scratch)
    reference = player.reference()
    peer.send(reference)
    expected, _ = (await peer.until_ended(reference.handle))[reference.handle]
    left = schemas
    while left > 0:
        await player.play_batch(min(TOGETHER, left), expected)
        left -= TOGETHER
    await peer.close()
    if not process.alive() or process.events("submit.failed") or process.events("step.failed"):
        raise Broken("the engine failed:\n" + process.log()[-4000:])
    return player.counts


def suite_schemas(directory: Path, tokenizer: GrammarTokenizer) -> list[Made]:
    """The supported schemas of a directory of the JSON-Schema-Test-Suite, each with its shortest valid instance."""
    found = []
    for path in sorted(directory.glob("*.json")):
        for group in json.loads(path.read_text()):
            valid = [test["data"] for test in group["tests"] if test["valid"]]
            try:
                compile_grammar(tokenizer, json_schema_grammar(group["schema"]))
            except GrammarRefused:
                continue
            if valid:
                found.append(Made(group["schema"], min(valid, key=lambda value: len(json.dumps(value)))))
    return found


def trained_adapters(model: Path) -> list[Path]:
    """The example adapters of a base model."""
    return [oracle.EXAMPLES / name for name in oracle.example_adapters(model.name)]


def start(socket: Path, directory: Path, arena_bytes: int) -> EngineProcess:
    model = {"name": "m", "path": str(directory), "dtype": "float32"}
    config = {"models": [model], "device": "cpu", "arena_bytes": arena_bytes, "threads": 2, "sequences_max": 4}
    return EngineProcess(socket, config, "--raise-targets")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument("--schemas", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--suite", type=Path)
    parser.add_argument("--arena-bytes", type=int, default=40 * 1024 * 1024)
    parser.add_argument("--adapters", type=Path, nargs="*", default=None, help="those of the examples if not given")
    arguments = parser.parse_args()
    adapters = arguments.adapters
    if adapters is None:
        adapters = trained_adapters(arguments.model)
    with tempfile.TemporaryDirectory(prefix="lw") as scratch:
        process = start(Path(scratch) / "e.sock", arguments.model, arguments.arena_bytes)
        try:
            began = time.monotonic()
            counts = asyncio.run(
                play(
                    process, arguments.model, arguments.schemas, arguments.seed, adapters, Path(scratch),
                    arguments.suite,
                )
            )  # fmt: skip
            print(f"{counts.pop('schemas')} schemas in {time.monotonic() - began:.0f} s: {dict(counts)}")
        finally:
            process.stop()


if __name__ == "__main__":
    main()
