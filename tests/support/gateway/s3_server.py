"""An S3 server on this host: moto's, a separate program, because its dependencies conflict with the product's."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import certifi

from support.ports import free_port
from support.services import missing_service

BUCKET = "laneway-test"
START_S_MAX = 60.0


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """A server with the empty bucket BUCKET. The environment in which obstore finds it."""
    program = os.environ.get("LANEWAY_TEST_S3") or shutil.which("moto_server")
    if program is None:
        missing_service("an S3 server", "there is no moto_server in the path (pip install 'moto[server,s3]')")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [program, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _make_bucket(url)
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "secret-of-the-test",
            "AWS_REGION": "us-east-1",
            # tests/conftest.py hides the system's authorities; obstore's client does not start without any.
            "SSL_CERT_FILE": certifi.where(),
        }
    finally:
        process.terminate()
        process.wait()


def _make_bucket(url: str) -> None:
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            request = urllib.request.Request(f"{url}/{BUCKET}", method="PUT")
            urllib.request.urlopen(request, timeout=10).close()
            return
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
