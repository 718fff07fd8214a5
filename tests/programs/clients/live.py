"""Runs the clients against a Laneway that is up (`make run`), each from its own virtual environment; prints a table.

    python tests/programs/clients/live.py openai=VENV/bin/python anthropic=VENV/bin/python … ai_sdk=node jdk=java

The cases are the recorded ones. The exit status is 1 when a case failed, or when `GET /v1/usage` lacks usage of a case.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DEMO = HERE.parents[2] / ".laneway" / "demo.json"
CLIENT_S_MAX = 600
# By client: the script, where it is not speak_CLIENT.py.
SCRIPTS = {"ai_sdk": "speak_ai_sdk.mjs", "anthropic_0": "speak_anthropic.py", "jdk": "SpeakJdk.java"}


def run(client: str, interpreter: str, url: str, key: str) -> list[dict[str, Any]]:
    script = HERE / SCRIPTS.get(client, f"speak_{client}.py")
    environ = {**os.environ, "CLIENT_URL": url, "CLIENT_KEY": key}
    done = subprocess.run(
        [interpreter, str(script)], env=environ, stdout=subprocess.PIPE, text=True, check=True, timeout=CLIENT_S_MAX
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def requests_used(url: str, key: str) -> int:
    asked = urllib.request.Request(f"{url}/v1/usage", headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        return int(json.load(answer)["requests"])


def main(argv: list[str]) -> int:
    demo = json.loads(Path(os.environ.get("LANEWAY_DEMO", DEMO)).read_text())
    url, key = demo["base_url"].removesuffix("/v1"), demo["keys"]["globex"]
    failed = 0
    for argument in argv:
        client, interpreter = argument.split("=", 1)
        before = requests_used(url, key)
        first, *results = run(client, interpreter, url, key)
        used = requests_used(url, key) - before
        versions = ", ".join([f"{name} {version}" for name, version in first["versions"].items()])
        print(f"\n{client} ({versions}): {len(results)} cases, {used} requests in the usage")
        for result in results:
            print(
                f"  {'ok    ' if result['ok'] else 'FAILED'} {result['case']:22} {result['seconds']:6.2f} s  ", end=""
            )
            print(repr(result["detail"])[:90])
        failed += sum(not result["ok"] for result in results) + (used == 0)
    print(f"\n{failed} failed")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
