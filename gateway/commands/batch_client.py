"""A client of a gateway's /v1/files and /v1/batches, for `laneway batches submit`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import msgspec

POLL_S = 1.0
TIMEOUT_S = 60.0
UNENDED = ("validating", "in_progress", "finalizing", "cancelling")
ERROR_CHARS_MAX = 500
RETRIES_MAX = 60  # of a poll, a second apart, while the gateway does not answer
RETRIED_FROM = 500  # HTTP status

Answer = TypeVar("Answer")


class BatchFailed(Exception):
    """The gateway refused a call, or did not answer. The message is one sentence."""


class SubmittedCounts(msgspec.Struct, frozen=True):
    """Lines of a batch."""

    total: int
    completed: int
    failed: int

    @property
    def ended_lines(self) -> int:
        return self.completed + self.failed


class SubmittedBatch(msgspec.Struct, frozen=True):
    """A batch as the gateway answers it."""

    id: str
    status: str
    request_counts: SubmittedCounts
    output_file_id: str | None
    error_file_id: str | None

    @property
    def is_complete(self) -> bool:
        """Each line succeeded."""
        return self.status == "completed" and not self.request_counts.failed


class _File(msgspec.Struct, frozen=True):
    id: str


class BatchClient:
    """Use it in a `with` block. `key`: a live API key."""

    def __init__(self, url: str, key: str) -> None:
        base = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {key}"}
        try:
            self._http = httpx2.Client(base_url=f"{base}/v1", headers=headers, timeout=TIMEOUT_S)
        except (httpx2.InvalidURL, ValueError) as error:
            raise BatchFailed(f"{url!r} is no URL: {error}") from None

    def __enter__(self) -> BatchClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def create_batch(self, file: Path, endpoint: str, window: str) -> SubmittedBatch:
        """Upload a file and create a batch of it. Raises BatchFailed, OSError."""
        with file.open("rb") as content:
            form: Any = {"data": {"purpose": "batch"}, "files": {"file": (file.name, content)}}
            uploaded = self._call("POST", "/files", _File, **form)
        body = {"input_file_id": uploaded.id, "endpoint": endpoint, "completion_window": window}
        return self._call("POST", "/batches", SubmittedBatch, json=body)

    def follow_batch(self, batch: SubmittedBatch) -> Iterator[SubmittedBatch]:
        """The batch as it is each second, until it has ended. Raises BatchFailed."""
        failures = 0
        while True:
            yield batch
            if batch.status not in UNENDED:
                return
            time.sleep(POLL_S)
            try:
                batch = self._call("GET", f"/batches/{batch.id}", SubmittedBatch)
                failures = 0
            except _Unavailable as error:  # the batch runs meanwhile
                failures += 1
                if failures > RETRIES_MAX:
                    raise BatchFailed(f"{error} The batch {batch.id} may still run.") from None

    def download(self, file_id: str | None, to: Path) -> None:
        """Write a file of the batch, if there is one. Raises BatchFailed, OSError."""
        if file_id is None:
            return
        try:
            with self._http.stream("GET", f"/files/{file_id}/content") as answer:
                if not answer.is_success:
                    answer.read()
                    raise BatchFailed(_reason(answer))
                with to.open("wb") as out:
                    for part in answer.iter_bytes():
                        out.write(part)
        except httpx2.HTTPError as error:
            raise BatchFailed(f"The download of {file_id} failed: {error or type(error).__name__}.") from error

    def _call(self, method: str, path: str, kind: type[Answer], **sent: Any) -> Answer:
        try:
            answer = self._http.request(method, path, **sent)
        except httpx2.HTTPError as error:
            raise _Unavailable(f"The gateway at {self._http.base_url} does not answer: {error}.") from error
        if answer.status_code >= RETRIED_FROM:
            raise _Unavailable(_reason(answer))
        if not answer.is_success:
            raise BatchFailed(_reason(answer))
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.DecodeError as error:
            raise BatchFailed(f"{self._http.base_url} is no Laneway: {error}.") from None


class _Unavailable(BatchFailed):
    """The same call may succeed later."""


def _reason(answer: httpx2.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])[:ERROR_CHARS_MAX]
    except (ValueError, KeyError, TypeError):
        return f"The gateway answered with the status {answer.status_code}."
