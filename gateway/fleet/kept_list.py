"""The last list of engines in a file, so that a gateway that starts while the list's source is down has one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gateway.config.private_files import make_private, write_private
from gateway.fleet.roster import EngineAddress

_log = logging.getLogger(__name__)


def read_kept_list(file: Path) -> tuple[EngineAddress, ...] | None:
    """None: there is no usable file."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=tuple[EngineAddress, ...])
    except (OSError, msgspec.DecodeError):
        return None


def keep_list(file: Path, engines: Sequence[EngineAddress]) -> None:
    """A file that cannot be written is logged: it is needed only at a start without the source."""
    try:
        make_private(file.parent)
        write_private(file, msgspec.json.encode(engines).decode(), replace=True)
    except OSError as error:
        _log.warning("roster.not_kept", extra={"fields": {"file": str(file), "reason": error.strerror}})
