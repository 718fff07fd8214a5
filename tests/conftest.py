"""What every test may need: a real database of either kind, a real Redis, the real demo model.

A service that is not there skips its tests with a loud line, and fails them when LANEWAY_REQUIRE_SERVICES=1.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import forked
from support.failure_lines import FailureLines
from support.paths import MODEL_DIR
from support.redis_server import RedisServer
from support.services import REDIS_URL, fresh_postgres, missing_service
from support.stack import Stack

# Before any test loads torch, as `python -m engine` has it: threads that wait sleep.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Nor may anything load triton before this: where there is no NVIDIA GPU, its interpreter runs the kernels.
if not Path("/dev/nvidia0").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# No test speaks TLS to the world. httpx reads the host's certificates for every request that has no client of its own,
# which takes fifty times as long as the request: here it finds none.
os.environ |= {"SSL_CERT_FILE": "", "SSL_CERT_DIR": str(Path(__file__).parent)}


forked.enable_forks()


@pytest.hookimpl(trylast=True)  # the terminal's plugin is registered by this hook, too
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:  # a worker of pytest-xdist has none
        config.pluginmanager.register(FailureLines(terminal))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked `long`: other tests run the same code in CI, on fewer cases."""
    if os.environ.get("LANEWAY_LONG"):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture(scope="session")
def postgres_template() -> Iterator[str]:
    """The name of a PostgreSQL database with our tables and no rows: a copy takes less than the migrations."""
    import sqlalchemy as sa

    from migrations.upgrade import upgrade

    with fresh_postgres() as url:
        upgrade(url)
        yield str(sa.make_url(url).database)


@pytest.fixture
def postgres_url(postgres_template: str) -> Iterator[str]:
    """SQLAlchemy URL of a PostgreSQL database of the test's own, migrated and without rows; dropped afterwards."""
    with fresh_postgres(postgres_template) as url:
        yield url


@pytest.fixture
def empty_postgres_url() -> Iterator[str]:
    """One without tables."""
    with fresh_postgres() as url:
        yield url


@pytest.fixture(scope="session")
def shared_postgres_url() -> Iterator[str]:
    """One PostgreSQL database for the whole run: to make one takes half a second. Its users clean up themselves."""
    with fresh_postgres() as url:
        yield url


@pytest.fixture(scope="module")
def modules_postgres_url() -> Iterator[str]:
    """A fresh, empty one for the tests of one file."""
    with fresh_postgres() as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'laneway.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """URL of a database of each kind without rows. Run the migrations yourself, `migrations.upgrade(url)`: PostgreSQL's
    has them already."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=["sqlite_url", "empty_postgres_url"], ids=["sqlite", "postgres"])
def empty_database_url(request: pytest.FixtureRequest) -> str:
    """One without tables."""
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def redis_url() -> Iterator[str]:
    """A real Redis, one of the databases 8 to 15, flushed before and after."""
    import redis

    client = redis.Redis.from_url(REDIS_URL)
    try:
        client.flushdb()
    except redis.ConnectionError as error:
        missing_service("Redis", str(error))
    yield REDIS_URL
    client.flushdb()
    client.close()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis of the test's own, that it may freeze, kill and start again."""
    if not RedisServer.installed():
        missing_service("Redis", "there is no redis-server to start")
    server = RedisServer(tmp_path)
    yield server
    server.kill()


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The converted demo model: config.json, model.safetensors (float32), tokenizer.json, chat_template.jinja."""
    if not (MODEL_DIR / "model.safetensors").exists():
        from engine.models.packaged.convert import convert_demo_model

        convert_demo_model(MODEL_DIR)
    return MODEL_DIR


@pytest.fixture(scope="session")
def tiny_dir() -> Path:
    """laneway-tiny, installed: another architecture, head dimension and tokenizer than the demo model's. Kept under its
    content's name: the code that it comes with may change it."""
    from engine.models.packaged.own_model import OWN_MODEL, install_own_model, kept_files

    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(kept_files().iterdir()))).hexdigest()
    directory = MODEL_DIR.parent / digest[:12] / OWN_MODEL
    install_own_model(directory)
    return directory


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    """Shared: a test may add tenants' keys and budgets to it, and must not stop anything."""
    directory = tmp_path_factory.mktemp("stack")
    made = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def make_stack(tmp_path: Path, model_dir: Path) -> Iterator[Callable[..., Stack]]:
    """Makes and starts a stack of the test's own: `make_stack(database_url=…, fake={…}, gateway_toml="…")`."""
    made: list[Stack] = []

    def make(database_url: str = "", **settings: Any) -> Stack:
        directory = tmp_path / f"stack{len(made)}"
        stack = Stack(directory, database_url or f"sqlite:///{directory}/laneway.db", model_dir, **settings)
        made.append(stack)
        stack.start()
        return stack

    yield make
    for stack in made:
        stack.stop()
