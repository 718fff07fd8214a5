"""The command line in this process, against one configuration file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from gateway.cli import main


class Laneway:
    """Runs commands against one configuration file."""

    def __init__(self, directory: Path, toml: str) -> None:
        self.file = directory / "laneway.toml"
        self.file.write_text(toml)

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["--config", str(self.file), *arguments], catch_exceptions=False)

    def text(self, *arguments: str) -> str:
        result = self(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.text(*arguments, "--json"))

    def refusal(self, *arguments: str) -> str:
        """The one sentence of a refused command."""
        result = self(*arguments)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        last = result.stderr.strip().splitlines()[-1]
        assert last.startswith("Error: ")
        return last.removeprefix("Error: ")
