"""Object stores by URL, through obstore: S3, Google Cloud Storage, Azure and a directory.

Credentials, region and endpoint are read from the process's environment, and are never part of a URL. Messages of the
library may quote an answer with an access key in it, so they reach no log and no caller.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

SCHEMES = ("s3", "gs", "az", "file")
CONNECT_S, REQUEST_S, RETRIES, RETRY_S = 5, 60, 3, 30
# The environment's word for an endpoint without TLS, such as a MinIO of this host.
ALLOW_HTTP = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP")


class ObjectStoreUnusable(Exception):
    """No store can be made of the URL. The message has no credentials."""


def plain_url(url: str) -> str:
    """The URL without user, password, query and fragment, for messages."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def check_url(url: str) -> None:
    """Raises ValueError for a URL that no store is made of."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError("it is no URL") from None
    if parts.scheme not in SCHEMES:
        raise ValueError(f"it must begin with {', '.join(f'{scheme}://' for scheme in SCHEMES)}")
    if "@" in parts.netloc or parts.query:
        raise ValueError("it must have no user, password or query; credentials belong in the environment")
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
        raise ValueError("a directory is written as file:///path")
    if parts.scheme != "file" and not parts.netloc:
        raise ValueError("it names no bucket")


def open_object_store(url: str) -> Any:
    """obstore's store whose paths begin at the URL. Raises ObjectStoreUnusable."""
    try:
        check_url(url)
    except ValueError as error:
        raise ObjectStoreUnusable(str(error)) from None
    try:
        from obstore.exceptions import BaseError
        from obstore.store import LocalStore, from_url
    except ImportError:
        raise ObjectStoreUnusable("obstore is not installed; install laneway[fleet]") from None
    parts = urlsplit(url)
    try:
        if parts.scheme == "file":
            if not os.path.isdir(parts.path):
                raise ObjectStoreUnusable("there is no such directory")
            return LocalStore(prefix=parts.path)
        return from_url(
            plain_url(url),
            client_options={
                "connect_timeout": timedelta(seconds=CONNECT_S),
                "timeout": timedelta(seconds=REQUEST_S),
                "allow_http": any(os.environ.get(name, "").lower() in ("1", "true") for name in ALLOW_HTTP),
            },
            retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)},
        )
    except (BaseError, ValueError, OSError) as error:
        raise ObjectStoreUnusable(f"no store can be opened ({type(error).__name__})") from None


def object_errors() -> tuple[type[Exception], ...]:
    """The exceptions of obstore's functions for a failed request."""
    from obstore.exceptions import BaseError

    return (BaseError, OSError)


def why_failed(error: Exception) -> str:
    """The kind of failure, without the library's message."""
    if isinstance(error, FileNotFoundError):
        return "not found"
    return f"the object store answered {type(error).__name__}"


def is_passing(error: Exception) -> bool:
    """Whether the same request may succeed soon: the store was not reached, or failed."""
    from obstore.exceptions import GenericError

    return isinstance(error, GenericError)
