"""What the documents tell people to type exists and is run by a test, and their links and pages are found."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import click
import pytest
from click.testing import CliRunner

from gateway.cli import main
from support.documents import DOCS, GUIDES, INDEX, SNIPPET_PAGES, Block, blocks, name
from support.paths import REPO

EXAMPLES = [
    REPO / "examples/adapters/README.md",
    REPO / "examples/models/README.md",
    REPO / "examples/models/laneway-tiny/README.md",
    REPO / "admin_ui/README.md",
]
PAGES = [
    *GUIDES,
    *sorted(set(DOCS.rglob("*.md")) - set(GUIDES)),
    REPO / "CHANGELOG.md",
    REPO / "SECURITY.md",
    *EXAMPLES,
]
LINES_MAX = {"README.md": 120, "CHANGELOG.md": 30, "docs/ARCHITECTURE.md": 90, "tests/README.md": 40}
GUIDE_LINES_MAX = 170
BLOCKS = [block for page in GUIDES for block in blocks(page)]
# tests/system/test_readme.py runs `sh`, a test below `toml`, and tests/clients/test_connect_page.py and
# tests/deploy/test_chart.py these.
SNIPPETS = {
    ("docs/users/files.md", "python"),
    ("docs/users/batches.md", "python"),
    ("docs/users/message-batches.md", "python"),
    ("README.md", "python"),
    ("docs/operators/kubernetes.md", "yaml"),
    *((name(page), language) for page in SNIPPET_PAGES for language in ("python", "js")),
}
# These replace the process that is asked for their help.
RUN_AS_PROGRAMS = {"bench", "simulate"}
# How many blocks no test runs, by page and reason. A further one is a decision, made here.
UNTESTED = {
    ("README.md", "needs Docker"): 1,
    ("README.md", "a picture"): 1,
    ("deploy/README.md", "installs into /opt/laneway"): 1,
    ("deploy/containers/README.md", "needs Docker"): 5,
    ("deploy/containers/README.md", "needs a GPU"): 1,
    ("docs/contributors/README.md", "rewrites files of the checkout"): 1,
    ("docs/contributors/benchmarks.md", "needs a GPU"): 1,
    ("docs/contributors/load-tool.md", "loads the demo for half a minute; tests/benchmarks run the tool"): 1,
    ("docs/contributors/simulator.md", "needs Azure's public trace"): 1,
    ("docs/finance/exports.md", "needs pandas"): 1,
    ("docs/operators/backup.md", "replaces the database of a running deployment"): 1,
    ("docs/operators/backup.md", "needs two hosts"): 1,
    ("docs/operators/batches.md", "needs the id of a batch and of a file"): 1,
    ("docs/operators/batches.md", "waits for a batch of a file"): 1,
    ("docs/operators/configuration.md", "needs the installed command"): 1,
    ("docs/operators/drain-and-upgrade.md", "installs into /opt"): 1,
    ("docs/operators/drain-and-upgrade.md", "needs PostgreSQL and a running service"): 1,
    ("docs/operators/drain-and-upgrade.md", "takes a gateway out of service"): 1,
    ("docs/operators/drain-and-upgrade.md", "is a part of a Kubernetes manifest"): 1,
    ("docs/operators/fleet-drivers.md", "needs a Ray cluster"): 1,
    ("docs/operators/kubernetes.md", "needs a cluster"): 3,
    ("docs/operators/install.md", "runs until it is stopped"): 1,
    ("docs/operators/monitoring.md", "needs a start at a terminal"): 1,
    ("docs/operators/security.md", "changes the secret of a running deployment"): 1,
    ("docs/operators/scaling.md", "needs PostgreSQL and runs until it is stopped"): 1,
    ("docs/operators/webhooks.md", "needs the key of an account"): 1,
    ("docs/users/claude-code.md", "the program is not installed with Laneway"): 1,
    ("docs/users/codex.md", "the program is not installed with Laneway"): 1,
    ("docs/users/responses.md", "needs a tenant whose responses are stored"): 1,
    ("docs/users/agents.md", "the program is not installed with Laneway"): 1,
    ("docs/users/clients.md", "sets the reader's own values"): 1,
    ("docs/users/responses.md", "needs a tenant that opted in"): 1,
    ("tests/README.md", "runs the tests"): 1,
}


def _text(pages: list[Path]) -> str:
    return "\n".join([page.read_text() for page in pages])


def _links() -> list[tuple[Path, str]]:
    found = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())]
    return [(page, link) for page, link in found if "://" not in link]


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _laneway_commands() -> list[str]:
    text = _text([*GUIDES, *DOCS.glob("*.md"), *EXAMPLES])
    found = re.findall(r"`laneway ((?:[a-z][a-z-]* ?){1,2})", text)
    found += re.findall(r"^ *laneway ([a-z][a-z-]*(?: [a-z][a-z-]*)?)", text, re.MULTILINE)
    return sorted({command.strip() for command in found})


def _module_commands() -> list[str]:
    return sorted(set(re.findall(r"python -m ([a-z_.]+[a-z_])", _text(GUIDES))))


@pytest.mark.parametrize("command", _laneway_commands())
def test_a_command_of_the_documents_exists(command: str) -> None:
    words = command.split()
    found = main.commands[words[0]]
    if words[0] in RUN_AS_PROGRAMS:
        return
    # A second word may be an argument, as in `laneway audit`.
    words = words if isinstance(found, click.Group) else words[:1]
    done = CliRunner().invoke(main, [*words, "--help"])
    assert done.exit_code == 0, done.output
    assert words[-1] in done.output


def _named_files() -> list[tuple[Path, str]]:
    """The files and folders of the repository that documents name in backticks; `a/{b,c}.py` is two."""
    pages = [*GUIDES, DOCS / "ARCHITECTURE.md", *sorted((DOCS / "decisions").glob("*.md"))]
    rooms = "gateway|engine|billing|adapters|kernels|migrations|benchmarks|tests|docs|deploy|examples|admin_ui"
    found = []
    for page in pages:
        for named in re.findall(rf"`((?:{rooms})/[^\s`:]*)`", page.read_text()):
            choice = re.search(r"{(.*?)}", named)
            names = [named.replace(choice[0], part) for part in choice[1].split(",")] if choice else [named]
            found += [(page, each) for each in names]
    return found


@pytest.mark.parametrize(("page", "named"), _named_files(), ids=lambda value: str(value).removeprefix(f"{REPO}/"))
def test_a_file_that_a_document_names_exists(page: Path, named: str) -> None:
    if "…" in named or named.startswith("admin_ui/dist"):
        return
    assert list(REPO.glob(named.rstrip("/"))), f"{name(page)} names {named}"


@pytest.mark.parametrize("module", _module_commands())
def test_a_module_that_the_documents_start_exists(module: str) -> None:
    assert importlib.util.find_spec(module) is not None


def test_the_make_targets_of_the_documents_exist() -> None:
    targets = set(re.findall(r"(?:^|`|\s)make ([a-z-]+)(?=`|\s|$)", "\n".join(_typed())))
    assert {"run", "test", "check"} <= targets
    for target in sorted(targets):
        done = subprocess.run(["make", "-n", target], cwd=REPO, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr


def _typed() -> list[str]:
    """What the guides give to type: their `sh` blocks, and inline code."""
    return [block.text for block in BLOCKS if block.language == "sh"] + re.findall(r"`make [^`\n]+`", _text(GUIDES))


@pytest.mark.parametrize(("page", "link"), _links(), ids=lambda value: str(value).removeprefix(str(REPO) + "/"))
def test_a_link_leads_somewhere(page: Path, link: str) -> None:
    path, _, anchor = unquote(link).partition("#")
    target = (page.parent / path).resolve() if path else page
    assert target.exists(), f"{name(page)} links to {link}"
    if anchor:
        assert anchor in _anchors(target), f"{name(page)} links to {link}"


def test_every_page_is_reached_from_the_index() -> None:
    links: dict[Path, set[Path]] = {}
    for page, link in _links():
        links.setdefault(page, set()).add((page.parent / link.partition("#")[0]).resolve())
    reached, waiting = set(), [INDEX]
    while waiting:
        page = waiting.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            waiting += links.get(page, set())
    missing = set(DOCS.rglob("*.md")) - reached
    assert not missing, sorted(map(name, missing))
    assert INDEX in links[REPO / "README.md"]


def test_pages_are_short() -> None:
    long = []
    for page in PAGES:
        limit = LINES_MAX.get(name(page), GUIDE_LINES_MAX if page in GUIDES else None)
        lines = page.read_text().splitlines()
        if limit is not None and len(lines) > limit:
            long.append(f"{name(page)} has {len(lines)} lines, more than {limit}")
    assert not long, "\n".join(long)


def test_the_architecture_fits_120_columns() -> None:
    assert not [line for line in (DOCS / "ARCHITECTURE.md").read_text().splitlines() if len(line) > 120]


def test_every_block_is_run_or_says_why_not() -> None:
    """A block without a language, in a language that no test runs, or with a new reason fails."""
    unmarked = [
        block
        for block in BLOCKS
        if not block.untested and block.language not in {"sh", "toml"} and (block.page, block.language) not in SNIPPETS
    ]
    assert not unmarked, [(block.page, block.language, block.text[:60]) for block in unmarked]
    assert Counter((block.page, block.untested) for block in BLOCKS if block.untested) == UNTESTED


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "toml"], ids=lambda block: str(block.page)
)
def test_a_configuration_of_the_documents_is_valid(block: Block, tmp_path: Path) -> None:
    (tmp_path / "laneway.toml").write_text(block.text)
    done = CliRunner().invoke(main, ["--config", str(tmp_path / "laneway.toml"), "config", "check"])
    assert done.exit_code == 0, done.output


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
