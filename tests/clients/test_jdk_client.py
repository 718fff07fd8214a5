"""The JDK's HttpClient with its defaults, against a gateway: it offers an upgrade to HTTP/2 with each request."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

from support.paths import TESTS
from support.services import missing_service
from support.stack import MODEL, Stack

SCRIPT = TESTS / "programs" / "clients" / "SpeakJdk.java"
RUN_S_MAX = 300.0  # the launcher compiles the file first, and a busy machine stands still now and then


def test_a_client_of_the_jdk_with_its_defaults(stack: Stack) -> None:
    """Also with the bodies of LangChain4j and Spring AI, streamed or not, of a known length or in chunks."""
    if shutil.which("java") is None or shutil.which("javac") is None:
        missing_service("a JDK of 17 or newer", "no java or no javac in PATH")
    environ = {**os.environ, "CLIENT_URL": stack.url, "CLIENT_KEY": stack.keys["globex"], "CLIENT_MODEL": MODEL}
    done = subprocess.run(
        ["java", str(SCRIPT)], env=environ, capture_output=True, text=True, check=False, timeout=RUN_S_MAX
    )
    assert done.returncode == 0, done.stderr
    _, *results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(results) >= 15
    assert [result for result in results if not result["ok"]] == []
