"""`laneway models` beside a running gateway and its engine, and where there is none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from gateway.cli import main
from support.stack import MODEL, Stack
from support.waiting import eventually

PRICE = ("--input", "0.1", "--output", "0.4")


def command(stack: Stack, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["--config", str(stack.config_file), *arguments], catch_exceptions=False)


def told(stack: Stack, *arguments: str) -> Any:
    result = command(stack, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(stack: Stack, *arguments: str) -> str:
    result = command(stack, *arguments)
    assert result.exit_code == 2, result.output
    return result.stderr.strip().splitlines()[-1]


def test_models_come_and_go_by_command(make_stack: Callable[..., Stack], model_dir: Path) -> None:
    stack = make_stack()
    directory = stack.config.models_dir / "second"
    shutil.copytree(model_dir, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    assert "laneway prices publish second --ahead" in refusal(stack, "models", "add", "second")
    assert "there is no base model 'second'" in refusal(stack, "prices", "publish", "second", *PRICE)
    told(stack, "prices", "publish", "second", "--ahead", *PRICE)
    absent = refusal(stack, "models", "add", "absent", "--name", "second")
    assert absent.endswith(f"no directory 'absent', or a dead link in it; the folder is {stack.config.models_dir}")
    assert "no directory inside" in refusal(stack, "models", "add", "../second", "--name", "second")
    made = command(stack, "models", "add", "second", "--tenant", "acme", "--fallback", MODEL, "--json")
    assert made.exit_code == 0, made.output
    assert "the engine is checking the files" in made.stderr
    added = json.loads(made.stdout)
    assert (added["name"], added["tenants"], added["fallbacks"]) == ("second", [stack.tenants["acme"]], [MODEL])
    eventually(lambda: stack.chat("acme", model="second").status_code == 200)
    assert stack.chat("globex", model="second").status_code == 404
    listed = {model["name"]: model for model in told(stack, "models", "list")}
    assert {name: (model["state"], model["origin"]) for name, model in listed.items()} == {
        MODEL: ("serving", "config"),
        "second": ("serving", "added"),
    }

    assert "nothing was given to change" in refusal(stack, "models", "set", "second")
    assert "exclude each other" in refusal(stack, "models", "set", "second", "--fallback", "x", "--no-fallbacks")
    changed = told(
        stack, "models", "set", "second", "--tenant", "*", "--no-fallbacks", "--pinned", "--max-tokens-default", "9"
    )
    shown = (changed["tenants"], changed["fallbacks"], changed["pinned"], changed["max_tokens_default"])
    assert shown == ("*", [], True, 9)
    assert told(stack, "models", "set", "second", "--max-tokens-default", "0")["max_tokens_default"] is None
    eventually(lambda: stack.chat("globex", model="second").status_code == 200)

    again = told(stack, "models", "add", "second", "--tenant", "acme", "--fallback", MODEL)
    assert (again["tenants"], again["fallbacks"], again["pinned"]) == ([stack.tenants["acme"]], [MODEL], True)
    again = told(stack, "models", "add", "second", "--tenant", "*", "--no-fallbacks", "--not-pinned")
    assert (again["tenants"], again["fallbacks"], again["pinned"]) == ("*", [], False)
    assert "exclude each other" in refusal(stack, "models", "add", "second", "--fallback", MODEL, "--no-fallbacks")

    assert "laneway models restore second" in command(stack, "models", "remove", "second").stdout
    eventually(lambda: stack.chat(model="second").status_code == 404)
    states = {model["name"]: model["state"] for model in told(stack, "models", "list")}
    assert states == {MODEL: "serving", "second": "removed"}
    assert "the last base model" in refusal(stack, "models", "remove", MODEL)
    eventually(lambda: "second" not in stack_models(stack))
    assert told(stack, "models", "restore", "second")["active"]
    eventually(lambda: stack.chat(model="second").status_code == 200)

    told(stack, "tenants", "list")
    stack.kill_engine()
    assert "nothing was changed" in refusal(stack, "models", "restore", "second")
    table = command(stack, "models", "list").stdout.splitlines()
    assert table[0].split()[:3] == ["NAME", "STATE", "ORIGIN"]
    assert table[1].split()[:3] == [MODEL, "active", "config"]
    lines = [line["action"] for line in told(stack, "audit") if line["action"].startswith("model.")]
    assert sorted(lines) == sorted([*["model.add"] * 3, *["model.set"] * 2, "model.remove", "model.restore"])


def test_formats_and_quality_by_command(make_stack: Callable[..., Stack], model_dir: Path) -> None:
    stack = make_stack()
    shutil.copytree(model_dir, stack.config.models_dir / "eight", ignore=shutil.ignore_patterns("*.safetensors"))
    told(stack, "prices", "publish", "eight", "--ahead", *PRICE)
    for option, allowed in (("--quantize", ("none", "fp8", "int8", "int4")), ("--kv-dtype", ("auto", "fp8"))):
        wrong = command(stack, "models", "add", "eight", option, "int3")
        assert wrong.exit_code == 2
        assert option in wrong.stderr
        assert all(f"'{word}'" in wrong.stderr for word in allowed)
    made = told(stack, "models", "add", "eight", "--quantize", "fp8", "--kv-dtype", "fp8")
    assert (made["quantize"], made["kv_dtype"]) == ("fp8", "fp8")
    eventually(lambda: told(stack, "models", "show", "eight")["state"] == "serving")
    shown = told(stack, "models", "show", "eight")
    assert (shown["weights_format"], shown["kv_format"], shown["quality"]) == ("fp8", "fp8", None)
    plain = {model["name"]: model for model in told(stack, "models", "list")}[MODEL]
    assert (plain["quantize"], plain["kv_dtype"]) == ("none", "auto")
    assert (plain["weights_format"], plain["kv_format"]) == ("float32", "float32")
    assert "there is no base model 'absent'" in refusal(stack, "models", "show", "absent")
    heads = command(stack, "models", "list").stdout.splitlines()[0].split()
    assert heads[6:9] == ["DTYPE", "WEIGHTS_FORMAT", "KV_FORMAT"]


def stack_models(stack: Stack) -> set[str]:
    """What the engine says that it serves."""
    return {model["name"] for model in told(stack, "models", "list") if model["state"] == "serving"}
