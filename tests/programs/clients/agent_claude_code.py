"""Claude Code, headless: it reads two files of a repository in one answer, and edits one of them. CLAUDE_CODE is its
executable."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import speak
from speak import MODEL
from weather import ask

CLAUDE = os.environ.get("CLAUDE_CODE", "claude")
REPOSITORY = Path("/tmp/laneway-agent/repository")
RUN_S_MAX = 120


def edit(url: str) -> object:
    shutil.rmtree(REPOSITORY, ignore_errors=True)
    REPOSITORY.mkdir(parents=True)
    (REPOSITORY / "notes.txt").write_text("one\n")
    (REPOSITORY / "more.txt").write_text("more\n")
    try:
        with tempfile.TemporaryDirectory() as home:
            environ = {
                "PATH": os.environ["PATH"],
                "HOME": home,
                "ANTHROPIC_BASE_URL": url,
                "ANTHROPIC_API_KEY": speak.KEY,
                "ANTHROPIC_MODEL": MODEL,
                "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
                "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "2000",
            }
            command = [CLAUDE, "-p", ask("claude_edit"), "--allowedTools", "Read,Edit"]
            done = subprocess.run(
                command, env=environ, cwd=REPOSITORY, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=RUN_S_MAX, check=False,
            )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert (REPOSITORY / "notes.txt").read_text() == "two\n"
        assert done.stdout.strip() == "The notes say two."
        return done.stdout.strip()
    finally:
        shutil.rmtree(REPOSITORY.parent)


if __name__ == "__main__":
    version = subprocess.run([CLAUDE, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[0]
    speak.tell(versions={"claude-code": version, "python": platform.python_version()})
    speak.run_case(edit, {})
