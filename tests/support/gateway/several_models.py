"""Stacks with several base models beside the demo model, each with its own prices: a small model and a model without a
chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from billing.accounts import prices
from engine.protocol.frames import ModelInfo
from support.gateway.scripted_engine import ScriptedStack
from support.stack import MODEL, Stack

SMALL, BARE = "small", "org/bare"
SMALL_CONTEXT = 64
MODELS = (MODEL, SMALL, BARE)
# Picos a token of input and output in tier standard; cached input costs the same.
PRICES = {MODEL: (100_000, 400_000), SMALL: (20_000, 60_000), BARE: (10_000, 40_000)}
MULTIPLIERS = {"premium": 3, "standard": 1, "batch": 1}


def make_models(directory: Path, model_dir: Path) -> None:
    """Write the models' files, without weights, which no engine here reads."""
    shape = json.loads((model_dir / "config.json").read_bytes())
    for name in (SMALL, BARE):
        own = directory / "data/models" / name
        own.mkdir(parents=True)
        changed = {"max_position_embeddings": SMALL_CONTEXT} if name == SMALL else {}
        (own / "config.json").write_text(json.dumps(shape | changed))
        (own / "tokenizer.json").write_bytes((model_dir / "tokenizer.json").read_bytes())
        settings = json.loads((model_dir / "tokenizer_config.json").read_bytes())
        template = model_dir / "chat_template.jinja"
        if name == BARE:
            settings.pop("chat_template", None)
        elif template.exists():
            (own / template.name).write_bytes(template.read_bytes())
        (own / "tokenizer_config.json").write_text(json.dumps(settings))


def publish(stack: Stack) -> None:
    for name, (input, output) in PRICES.items():
        if name != MODEL:
            stack.write(
                lambda c, name=name, input=input, output=output: prices.publish(
                    c, subject=name, input=input, cached_input=input, output=output, multipliers=MULTIPLIERS
                )
            )


def sections(**extra: str) -> str:
    """Sections for `toml` of a stack: settings of the demo model, of the other models, and after them."""
    return (
        f"{extra.get('first', '')}\n"
        f'[[models]]\nname = "{SMALL}"\n{extra.get("small", "")}\n'
        f'[[models]]\nname = "{BARE}"\n{extra.get("bare", "")}\n'
        f"{extra.get('rest', '')}\n"
    )


class ManyModels(Stack):
    """A stack with the fake engine's process."""

    def prepare(self) -> None:
        make_models(self.directory, self.model_dir)
        super().prepare()
        publish(self)

    def start_engine(self) -> None:
        paths = {MODEL: self.model_dir} | {name: self.directory / "data/models" / name for name in (SMALL, BARE)}
        self.engine_json = {"models": [{"name": name, "path": str(path)} for name, path in paths.items()]} | (
            self.engine_json
        )
        super().start_engine()


class ScriptedModels(ScriptedStack):
    """A stack with a scripted engine."""

    def prepare(self) -> None:
        make_models(self.directory, self.model_dir)
        super().prepare()
        publish(self)

    def start_engine(self) -> None:
        super().start_engine()
        self.scripted.models = [
            ModelInfo(name, "d" * 64, SMALL_CONTEXT if name == SMALL else 2048, 49152, 16, 1000) for name in MODELS
        ]


def asked(route: str, model: str, **fields: Any) -> dict[str, Any]:
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "Say something."}]}
    return {"model": model, "max_tokens": 4} | ({"prompt": "Once"} if route == "completions" else prompt) | fields


def post(stack: Stack, route: str, model: str, tenant: str = "globex", **fields: Any) -> httpx.Response:
    # Certificates are not needed here, and loading them takes longer than the request.
    with httpx.Client(base_url=stack.url, headers=stack.headers(tenant), timeout=30, verify=False) as client:
        return client.post(f"/v1/{route}", json=asked(route, model, **fields))


def named_in(route: str, answer: httpx.Response) -> set[str]:
    """Every model that an answer names."""
    assert answer.status_code == 200, answer.text
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return {answer.json()["model"]}
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    found = [json.loads(line) for line in lines]
    if route == "messages":
        return {event["message"]["model"] for event in found if event["type"] == "message_start"}
    return {event["model"] for event in found}


def billed(stack: Stack, answer: httpx.Response) -> str:
    """The model of the one usage row, whose cost is that model's price."""
    row = stack.usage(answer.headers["x-request-id"])
    assert row is not None
    input, output = PRICES[row.model]
    cached = 50_000 if row.model == MODEL else input
    times = MULTIPLIERS[row.tier]
    plain = (row.prompt_tokens - row.cached_tokens) * input + row.cached_tokens * cached
    assert row.cost_picos == (plain + row.completion_tokens * output) * times
    assert stack.hold(row.request_id).model == row.model
    return str(row.model)
