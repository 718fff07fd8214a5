"""Writes a model's file in tests/data anew (oracle.json: SmolLM2's): the greedy ids that transformers and peft make of
its prompts, alone and with each of its adapters. To be done when the model, an adapter or a prompt changes:

    python tests/programs/write_oracle.py .laneway/models/laneway-tiny
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

if __name__ == "__main__":  # beside support/, and beside the packages where those are not installed
    sys.path[:0] = [str(directory) for directory in Path(__file__).resolve().parents[1:3]]

from support.oracle import BASE, COMMITTED_OF, EXAMPLES, example_adapters, greedy, identities, load


def write_committed(model_dir: Path, base: str) -> None:
    """Keep the prompts of the base's file, and compute everything else in it."""
    import peft
    import transformers as hf

    from engine.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(model_dir)
    committed = COMMITTED_OF[base]
    kept = json.loads(committed.read_text())
    prompts = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in kept["prompts"]]
    ids = {}
    for name in (BASE, *example_adapters(base)):
        model = load(model_dir, EXAMPLES / name if name else None)
        ids[name] = greedy(model, prompts, kept["new_tokens"], tokenizer.eos_ids)
        print(name or "(base)", [tokenizer.decode(row)[:40] for row in ids[name][:3]], flush=True)
    found = {
        "made_with": f"transformers {hf.__version__}, peft {peft.__version__}",
        "digests": identities(model_dir, base),
    }
    text = json.dumps({**kept, **found, "ids": ids}, indent=1, ensure_ascii=False)
    # One row a line.
    rows = {json.dumps(row, indent=1): json.dumps(row) for table in ids.values() for row in table}
    for wide, narrow in rows.items():
        text = text.replace(wide.replace("\n", "\n   "), narrow)
    committed.write_text(text + "\n")


if __name__ == "__main__":
    write_committed(Path(sys.argv[1]), Path(sys.argv[1]).resolve().name)
