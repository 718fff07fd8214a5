"""`python -m gateway [--config laneway.toml]`: one gateway process, from start to a clean stop."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

import prometheus_client

from gateway import log
from gateway.app import create_app
from gateway.config import file as configuration
from gateway.config.private_files import UMASK, close_file, close_to_others
from gateway.config.server_secrets import read_server_secrets
from gateway.host.workers import WorkerIndex
from gateway.listen import serve
from gateway.routes.admin.router import admin_router
from gateway.services import Services

_log = logging.getLogger("gateway.main")


def main(argv: list[str] | None = None) -> int:
    """Run the process; return its exit status: 0 after a clean stop, 1 if it could not start, 2 for a bad
    configuration."""
    parser = argparse.ArgumentParser(prog="python -m gateway", description="One Laneway gateway process.")
    parser.add_argument(
        "--config", type=Path, default=None, help="laneway.toml; default: $LANEWAY_CONFIG, ./laneway.toml"
    )
    parser.add_argument("--workers", type=int, default=1, help="gateway processes that share the port; default: 1")
    parser.add_argument("--worker", type=int, default=0, help="the index of this process among them, from 0")
    # A supervisor of an older version starts this process too: flags are added, and none is renamed.
    parser.add_argument("--supervised", action="store_true", help="share the port with a process that may replace it")
    parser.add_argument("--successor", action="store_true", help="begin beside the worker of the same index")
    arguments = parser.parse_args(argv)
    if not 0 <= arguments.worker < arguments.workers:
        parser.error(f"--worker is {arguments.worker}; with --workers {arguments.workers} it must be below that")
    # Read by `tokenizers`: each prompt is encoded alone, so its thread pool would only add latency.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    log.configure()
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        config = configuration.load_gateway_config(arguments.config)
        os.umask(UMASK)
        close_to_others(config.data_dir, config.database_url)
        if config.certificates is not None:
            close_file(config.certificates.key)
        worker_index = WorkerIndex(arguments.worker, arguments.workers, arguments.supervised, arguments.successor)
        file = configuration.locate(arguments.config)
        services = Services(config, read_server_secrets(config), worker_index, file=file)
    except (configuration.ConfigError, OSError, ValueError) as error:
        _log.critical("gateway.cannot_start", extra={"fields": {"reason": str(error)}})
        return 2
    return 0 if serve(config, services, create_app(services, [admin_router(services)])) else 1


if __name__ == "__main__":
    sys.exit(main())
