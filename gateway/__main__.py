"""`python -m gateway [--config laneway.toml]`: one gateway process, from start to a clean stop."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

import prometheus_client

from gateway import config as configuration
from gateway import log
from gateway.app import create_app
from gateway.listen import serve
from gateway.routes.admin import admin_router
from gateway.services import Services

_log = logging.getLogger("gateway.main")


def main(argv: list[str] | None = None) -> int:
    """The process's exit status: 0 after a clean stop, 1 when it could not start, 2 for a bad configuration."""
    parser = argparse.ArgumentParser(prog="python -m gateway", description="One Laneway gateway process.")
    parser.add_argument(
        "--config", type=Path, default=None, help="laneway.toml; default: $LANEWAY_CONFIG, ./laneway.toml"
    )
    arguments = parser.parse_args(argv)
    # Read by `tokenizers`: each prompt is encoded alone, so its pool of threads would be a detour.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    log.configure()
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        config = configuration.load(arguments.config)
        services = Services(config, configuration.server_secret(config))
    except (configuration.ConfigError, OSError, ValueError) as error:
        _log.critical("gateway.cannot_start", extra={"fields": {"reason": str(error)}})
        return 2
    return 0 if serve(config, services, create_app(services, [admin_router(services)])) else 1


if __name__ == "__main__":
    sys.exit(main())
