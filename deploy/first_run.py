"""What `make run` prints while it installs: sizes and free disk before anything, then its steps, none of them silent.

`first_run.py check VENV TORCH` refuses a machine that cannot. `first_run.py step N/T TITLE LOG -- COMMAND …` runs a
command, keeps its output in the file LOG, and shows its seconds, or its last words when it fails. It imports the
standard library only, and older Pythons run it too: the virtual environment is not there yet.
"""

from __future__ import annotations

import glob
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time

PYTHON_MIN = (3, 11)
GB = 1_000_000_000
# Measured for torch 2.13.0 on Linux x86_64 in November 2026, in GB: to download, and installed.
TORCH_WITH_CUDA = (2.8, 4.8)
TORCH_CPU = (0.2, 0.8)
OTHERS = (0.25, 0.5)  # Laneway's other packages and the demo model's
CONSOLE = (0.03, 0.15)  # npm's packages
MODELS_AND_DATA = 0.7
CPU_COMMAND = 'make run TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"'
LINE_EVERY_S = 10.0
TAIL_LINES = 30
EXIT_INTERRUPTED = 130


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["check"] and len(arguments) == 3:
        return check(*arguments[1:])
    if arguments[:1] == ["step"] and arguments[4:5] == ["--"]:
        return step(*arguments[1:4], command=arguments[5:])
    sys.stderr.write("usage: first_run.py check VENV TORCH | step N/T TITLE LOG -- COMMAND …\n")
    return 2


def check(venv: str, torch: str) -> int:
    """Says what the first run costs, or why it cannot be. `torch`: what pip is asked for."""
    if sys.version_info < PYTHON_MIN:
        this = platform.python_version()
        return refuse(f"Laneway needs Python 3.11 or newer; this is {this}. Name another: make run PYTHON=python3.12")
    cuda = "cpu" not in torch and sys.platform == "linux" and platform.machine() == "x86_64"
    download, installed = TORCH_WITH_CUDA if cuda else TORCH_CPU
    if glob.glob(os.path.join(venv, "lib", "python*", "site-packages", "torch", "version.py")):
        download, installed = 0.0, 0.0
    download += OTHERS[0] + CONSOLE[0]
    on_disk = installed + OTHERS[1] + CONSOLE[1] + MODELS_AND_DATA
    say(f"==> the first run downloads about {download:.1f} GB and takes {on_disk:.1f} GB on disk: 2 to 10 minutes")
    if cuda and installed and shutil.which("nvidia-smi") is None:
        less = TORCH_WITH_CUDA[0] - TORCH_CPU[0]
        say(f"    There is no NVIDIA driver here. Without CUDA {less:.1f} GB less is downloaded: Ctrl-C, then")
        say(f"    {CPU_COMMAND}")
    # pip downloads to the temporary directory, keeps a copy in its cache, and unpacks into the environment.
    places = ((os.path.dirname(os.path.abspath(venv)), on_disk), (tempfile.gettempdir(), download), (cache(), download))
    needs: dict[int, tuple[str, float]] = {}
    for place, needed in places:
        there = existing(place)
        device = os.stat(there).st_dev
        first, before = needs.get(device, (there, 0.0))
        needs[device] = (first, before + needed)
    for there, needed in needs.values():
        free = shutil.disk_usage(there).free / GB
        if free < needed and not os.environ.get("LANEWAY_ANY_DISK"):
            return refuse(
                f"the disk of {there} has {free:.1f} GB free, and the first run needs {needed:.1f} GB: free some, "
                "or use a checkout on another disk. To try all the same: LANEWAY_ANY_DISK=1 make run"
            )
    return 0


def cache() -> str:
    """pip's, as it looks for it."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("PIP_CACHE_DIR") or os.path.join(base, "pip")


def existing(path: str) -> str:
    """`path`, or the nearest directory above it that exists."""
    while not os.path.isdir(path):
        path = os.path.dirname(path) or "."
    return path


def step(number: str, title: str, log: str, command: list[str]) -> int:
    """The exit status of `command`."""
    say(f"==> {number} {title}")
    began = time.monotonic()
    os.makedirs(os.path.dirname(log) or ".", exist_ok=True)
    with open(log, "wb") as output:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        except OSError as error:
            return refuse(f"{command[0]} cannot be started: {error.strerror}")
        try:
            status = watch(process, log, began)
        except KeyboardInterrupt:  # the command has had it too
            process.wait()
            clear_line()
            say("stopped; what was finished is kept")
            return EXIT_INTERRUPTED
    clear_line()
    if status:
        for line in lines_of(log)[-TAIL_LINES:]:
            say(f"    {line}")
        return refuse(f"step {number} failed with status {status}; all its output: {log}")
    say(f"    done after {time.monotonic() - began:.0f} s")
    return 0


def watch(process: subprocess.Popen[bytes], log: str, began: float) -> int:
    """Wait for `process`, and show its seconds and its last line: on a terminal in one line, elsewhere every 10 s."""
    terminal = sys.stdout.isatty()
    while True:
        try:
            return process.wait(1.0 if terminal else LINE_EVERY_S)
        except subprocess.TimeoutExpired:
            last = (lines_of(log) or [""])[-1].strip()
            text = f"    … {time.monotonic() - began:.0f} s  {last}"[: shutil.get_terminal_size().columns - 1].rstrip()
            if terminal:
                sys.stdout.write(f"\r\033[K{text}")
                sys.stdout.flush()
            else:
                say(text)


def clear_line() -> None:
    if sys.stdout.isatty():
        sys.stdout.write("\r\033[K")


def lines_of(log: str) -> list[str]:
    with open(log, encoding="utf-8", errors="replace") as file:
        text = file.read().replace("\r", "\n")
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def refuse(reason: str) -> int:
    sys.stderr.write(f"error: {reason}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
