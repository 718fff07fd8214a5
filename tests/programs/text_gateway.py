"""A gateway on the second kind of engine: the real app, with a `TextEngine` in its process.

    python tests/programs/text_gateway.py LANEWAY.TOML SETTINGS

SETTINGS is the JSON of `text_engine.Settings`. `TextStack` runs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from gateway import log
from gateway.app import create_app
from gateway.config import file as configuration
from gateway.config.server_secrets import read_server_secrets
from gateway.engines.engine import Engine
from gateway.listen import serve
from gateway.routes.admin.router import admin_router
from gateway.services import Services
from support.gateway.text_engine import Settings, TextEngine


def main() -> None:
    log.configure()
    config = configuration.load_gateway_config(Path(sys.argv[1]))
    settings = msgspec.json.decode(sys.argv[2], type=Settings)
    engine: Engine = TextEngine(Path(config.models[0].path), settings)
    services = Services(config, read_server_secrets(config), engine=engine)
    sys.exit(0 if serve(config, services, create_app(services, [admin_router(services)])) else 1)


if __name__ == "__main__":
    main()
