"""What the documents tell people to type exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main
from support.paths import REPO

README = (REPO / "README.md").read_text()
COMMANDS = sorted(set(re.findall(r"`laneway ((?:[a-z]+ ?){1,2})`|^laneway ([a-z]+ [a-z]+)", README, re.MULTILINE)))
LINKS = [
    (page, link)
    for page in [
        REPO / "README.md",
        REPO / "deploy/README.md",
        *sorted((REPO / "docs").rglob("*.md")),
        REPO / "examples/adapters/README.md",
        REPO / "examples/models/README.md",
        REPO / "examples/models/laneway-tiny/README.md",
    ]
    for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text())
]


@pytest.mark.parametrize("found", COMMANDS, ids=lambda found: " ".join(found).strip())
def test_a_command_of_the_readme_exists(found: tuple[str, str]) -> None:
    words = "".join(found).split()
    done = CliRunner().invoke(main, [*words, "--help"])
    assert done.exit_code == 0, done.output
    assert words[-1] in done.output


@pytest.mark.parametrize(("page", "link"), LINKS, ids=lambda value: str(value).removeprefix(str(REPO) + "/"))
def test_a_link_leads_somewhere(page: Path, link: str) -> None:
    assert (page.parent / link).exists(), f"{page.relative_to(REPO)} links to {link}"


def test_the_make_targets_of_the_readme_exist() -> None:
    for target in sorted(set(re.findall(r"make ([a-z-]+)", README))):
        done = subprocess.run(["make", "-n", target], cwd=REPO, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr


def test_what_the_units_start_exists(tmp_path: Path) -> None:
    """Their commands, on the configuration that they come with."""
    text = (REPO / "deploy/laneway.toml").read_text().replace("/var/lib/laneway", str(tmp_path))
    (tmp_path / "laneway.toml").write_text(text)
    units = sorted((REPO / "deploy/systemd").glob("*.service"))
    commands = [
        found for unit in units for found in re.findall(r"^ExecStart\w*=\S+ (.+)$", unit.read_text(), re.MULTILINE)
    ]
    assert len(commands) == 3
    for command in commands:
        words = command.replace("/etc/laneway", str(tmp_path)).split()
        done = CliRunner().invoke(main, [*words, "--help"])
        assert done.exit_code == 0, done.output
    done = CliRunner().invoke(main, ["--config", str(tmp_path / "laneway.toml"), "config", "check"])
    assert done.exit_code == 0, done.output
