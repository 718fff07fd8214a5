"""Checks grammars in a separate process, which is killed when a grammar takes too long.

llguidance's limits bound the states and items of a grammar, but not the time of every regular expression, and its
recursion can overflow a stack. Such a text ends this process, not the caller's.

`python -m engine.text.grammar_process` is the child: one JSON object a line in, one out.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import subprocess
import sys
import threading
import time
from pathlib import Path

from engine.text.grammars import GrammarRefused, GrammarTokenizer, check_grammar

# CPU seconds, so that a busy machine refuses no grammar.
CHECK_S_MAX = 5.0
POLL_S = 0.25
# A tokenizer of 262,144 tokens takes some 3 s; of the first check with it.
START_S_MAX = 60.0
MEMORY_BYTES_MAX = 4 * 1024**3


class GrammarProcess:
    """One child process, started with the first check and again after it was killed. Threads take turns."""

    def __init__(self, check_s_max: float = CHECK_S_MAX) -> None:
        self.killed = 0  # children that a grammar ended
        self._check_s_max = check_s_max
        self._child: subprocess.Popen[bytes] | None = None
        self._turn = threading.Lock()
        self._closed = False

    def check_text(self, directory: Path, vocab_size: int | None, text: str) -> None:
        """Like `check_grammar`, with the tokenizer of a model directory. Raises GrammarRefused, and OSError or
        ValueError when the tokenizer cannot be used."""
        with self._turn:
            if self._closed:
                raise OSError("the process that checks grammars is closed")
            child = self._child or self._start()
            about = {"directory": str(directory), "vocab_size": vocab_size}
            ready = self._ask(child, {**about, "text": None}, START_S_MAX)
            if ready is None or ready.get("fault"):
                raise ValueError((ready or {}).get("fault") or f"{directory}: its tokenizer cannot be read")
            answer = self._ask(child, {**about, "text": text}, START_S_MAX, self._check_s_max)
            if answer is None:
                self.killed += 1
                raise GrammarRefused("the grammar is too large: it could not be compiled in time")
            if refused := answer.get("refused"):
                raise GrammarRefused(refused)

    def close(self) -> None:
        """End the child; a check that waits for it is refused."""
        self._closed = True
        if (child := self._child) is not None:
            child.kill()  # a check that waits for it returns, and leaves its turn
        with self._turn:
            if self._child is not None:
                self._end(self._child)

    def _start(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "engine.text.grammar_process"]
        path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "RAYON_NUM_THREADS": "1"}
        self._child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        return self._child

    def _ask(
        self,
        child: subprocess.Popen[bytes],
        question: dict[str, object],
        seconds: float,
        cpu_s_max: float = START_S_MAX,
    ) -> dict[str, str] | None:
        """None: the child died, or was killed after `seconds` of wall time or `cpu_s_max` of its CPU time."""
        assert child.stdin is not None
        assert child.stdout is not None
        line = b""
        try:
            child.stdin.write(json.dumps(question).encode() + b"\n")
            child.stdin.flush()
            until, cpu_until = time.monotonic() + seconds, cpu_seconds(child.pid) + cpu_s_max
            with selectors.DefaultSelector() as selector:
                selector.register(child.stdout, selectors.EVENT_READ)
                while not line.endswith(b"\n"):
                    if not selector.select(POLL_S):
                        if time.monotonic() > until or cpu_seconds(child.pid) > cpu_until:
                            break
                        continue
                    piece = os.read(child.stdout.fileno(), 65536)
                    if not piece:
                        break
                    line += piece
        except OSError:
            pass
        if line.endswith(b"\n"):
            found: dict[str, str] = json.loads(line)
            return found
        self._end(child)
        return None

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._child = None


def cpu_seconds(pid: int) -> float:
    """CPU time of a process since its start. Raises OSError if there is no such process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Answer each line of standard input until it ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin.buffer:
        question = json.loads(line)
        answer: dict[str, str] = {}
        try:
            tokenizer = GrammarTokenizer.load(Path(question["directory"]), question["vocab_size"])
            if question["text"] is not None:
                check_grammar(tokenizer, question["text"])
        except GrammarRefused as refusal:
            answer = {"refused": str(refusal)}
        except (OSError, ValueError) as error:
            answer = {"fault": str(error)}
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
