"""Shared by all commands: the configuration, output as tables or JSON, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import msgspec

from billing.texts import visible
from gateway.access import audit_log
from gateway.admin.administration import Administration
from gateway.admin.writes import Actor
from gateway.config import file as configuration
from gateway.config.file import Config

Row = Mapping[str, object]
Command = TypeVar("Command", bound=Callable[..., Any])
EXIT_REFUSED = 2
CHECKOUT_FILE = Path(__file__).resolve().parents[2] / configuration.DEFAULT_FILE


class CommandRefused(click.ClickException):
    """The command cannot be carried out. The message is one sentence with the reason."""

    exit_code = EXIT_REFUSED


def fail(message: str) -> NoReturn:
    raise CommandRefused("\n".join(map(visible, message.splitlines())))


@dataclass(slots=True)
class Console:
    """Made by the root command. The configuration is read when a command first needs it."""

    file: Path | None
    _config: Config | None = None

    @property
    def config(self) -> Config:
        if self._config is None:
            try:
                self._config = configuration.load_gateway_config(self.file)
            except configuration.ConfigError as error:
                fail(str(error))
        return self._config

    @property
    def located(self) -> Path | None:
        """The configuration file's absolute path; None: no file, so the defaults apply."""
        found = configuration.locate(self.file)
        return None if found is None else found.resolve()

    @property
    def administration(self) -> Administration:
        """Administrative writes, with this host's user as the actor."""
        return Administration(self.config, Actor(audit_log.host_actor()))


def checkout_config() -> Config | None:
    """The configuration of the checkout that contains this code; None: no checkout, or an invalid file."""
    try:
        return configuration.load_gateway_config(CHECKOUT_FILE, {}) if CHECKOUT_FILE.exists() else None
    except configuration.ConfigError:
        return None


pass_console = click.make_pass_decorator(Console)


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(command)


def yes_option(command: Command) -> Command:
    return click.option("--yes", is_flag=True, help="Do not ask.")(command)


def ask(question: str) -> None:
    """Ask on stderr. Without a yes, also at the end of stdin, the command ends and changes nothing."""
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        agreed = False
    if not agreed:
        fail("nothing was changed; --yes does it without a question")


def show_rows(rows: Sequence[Row], columns: Sequence[str], *, as_json: bool, err: bool = False) -> None:
    """Print a table of `columns`, or all fields as JSON. `err`: on stderr."""
    if as_json:
        show_json(list(rows))
        return
    cells = [[_cell(name, row.get(name)) for name in columns] for row in rows]
    widths = [max(len(name), *(len(line[i]) for line in cells), 0) for i, name in enumerate(columns)]
    for line in ([name.upper() for name in columns], *cells):
        text_line = "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        click.echo(text_line, err=err)


def show_row(row: Row, *, as_json: bool) -> None:
    """Print a line for each field, or one JSON object."""
    if as_json:
        show_json(row)
        return
    width = max(len(name) for name in row)
    for name, value in row.items():
        click.echo(f"{name.ljust(width)}  {_cell(name, value)}")


def _cell(name: str, value: object) -> str:
    if value is None:
        return "-"
    if name.endswith("_at") and isinstance(value, int):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, list | tuple):
        return visible(",".join(str(item) for item in value)) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return visible(str(value))


def show_json(value: object) -> None:
    """Print one line of JSON, with characters that are not printable as escapes."""
    click.echo(escaped_json(msgspec.json.encode(value).decode()))


def escaped_json(text: str) -> str:
    """The same JSON with escapes for characters that are not printable: they occur only inside its strings."""
    return "".join(char if char.isprintable() else _json_escape(char) for char in text)


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
