"""The section [files] of `laneway.toml`, which explains each setting."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from engine.contents.object_stores import check_url
from engine.protocol.config import ConfigSection as Section
from gateway.config.allowance import LIMIT_MAX

TENANT_BYTES_MAX = 2**50  # the largest quota of a tenant's bytes
EXPIRES_S_MIN, EXPIRES_S_MAX = 3600, 30 * 24 * 3600  # of a file's `expires_after`


class FilesSection(Section, frozen=True, kw_only=True):
    """Where the contents of files are stored, uploads to one gateway process, and quotas of one tenant."""

    store: Annotated[str, Meta(max_length=1024)] = ""  # URL of a folder; empty: <data_dir>/files
    file_bytes_max: Annotated[int, Meta(ge=1024, le=LIMIT_MAX)] = 200 * 1024 * 1024
    tenant_files_max: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = 10_000
    tenant_bytes_max: Annotated[int, Meta(ge=1024, le=TENANT_BYTES_MAX)] = 20 * 1024**3
    expires_s: Annotated[int, Meta(ge=EXPIRES_S_MIN, le=EXPIRES_S_MAX)] = EXPIRES_S_MAX
    uploads_max: Annotated[int, Meta(ge=1, le=1024)] = 8
    uploads_per_tenant_max: Annotated[int, Meta(ge=1, le=1024)] = 4
    upload_idle_s: Annotated[float, Meta(ge=1, le=600)] = 30.0
    upload_s_max: Annotated[float, Meta(ge=1, le=86_400)] = 3600.0
    upkeep_s: Annotated[float, Meta(ge=0.1, le=3600)] = 60.0  # between two searches for contents to remove

    def __post_init__(self) -> None:
        if self.store:
            try:
                check_url(self.store)
            except ValueError as error:
                raise ValueError(f"store: {error}") from error
