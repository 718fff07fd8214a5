"""A whole Laneway on the second kind of engine, which runs inside the gateway's process."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec

from support.paths import REPO
from support.stack import Stack


class TextStack(Stack):
    """`fake` has the Settings of its TextEngine."""

    def start_engine(self) -> None:
        pass

    def start_gateway(self) -> None:
        settings = msgspec.json.encode(self.fake).decode()
        argv = [sys.executable, str(REPO / "tests/programs/text_gateway.py"), str(self.config_file), settings]
        environ = {**os.environ, "PYTHONPATH": f"{REPO}:{REPO / 'tests'}"}
        with self.log_file.open("ab") as log:
            self.gateway = subprocess.Popen(argv, stdout=log, stderr=log, env=environ)
