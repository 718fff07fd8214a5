"""A client of a gateway's /v1/files and /v1/batches, for `laneway batches submit`."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import msgspec

POLL_S = 5.0
TIMEOUT_S = 60.0
UNENDED = ("validating", "in_progress", "finalizing", "cancelling")
ERROR_CHARS_MAX = 500
RETRIES_MAX = 12  # of one call, while the gateway does not answer, refuses by a rate limit, or answers 5xx
RETRY_S = 5.0  # without a Retry-After
RETRY_S_MAX = 300.0
TOO_MANY_REQUESTS = 429
QUOTA_TYPE = "insufficient_quota"
SERVER_ERRORS_FROM = 500  # HTTP status
PART_SUFFIX = ".part"  # of a download that has not ended

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


class _Line(msgspec.Struct, frozen=True):
    url: str


def first_endpoint(file: Path) -> str:
    """The `url` of the first line of an input file. Raises BatchFailed, OSError."""
    with file.open("rb") as lines:
        for line in lines:
            text = line.removeprefix(codecs.BOM_UTF8).strip()
            if text:
                break
        else:
            raise BatchFailed(f"{file} has no line")
    try:
        return msgspec.json.decode(text, type=_Line).url
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BatchFailed(f"The first line of {file} has no endpoint: {error}. Name it with --endpoint.") from None


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

        def upload() -> _File:
            with file.open("rb") as content:
                form: Any = {"data": {"purpose": "batch"}, "files": {"file": (file.name, content)}}
                return self._call("POST", "/files", _File, **form)

        uploaded = self._retried(upload, is_idempotent=False)
        body = {"input_file_id": uploaded.id, "endpoint": endpoint, "completion_window": window}
        headers = {"Idempotency-Key": f"submit-{uploaded.id}"}  # a retry gets the batch of an attempt without an answer
        return self._retried(lambda: self._call("POST", "/batches", SubmittedBatch, json=body, headers=headers))

    def follow_batch(self, batch: SubmittedBatch) -> Iterator[SubmittedBatch]:
        """The batch as it is every POLL_S seconds, until it has ended. Raises BatchFailed."""
        path = f"/batches/{batch.id}"
        while True:
            yield batch
            if batch.status not in UNENDED:
                return
            time.sleep(POLL_S)
            try:
                batch = self._retried(lambda: self._call("GET", path, SubmittedBatch))
            except _Unavailable as error:
                raise BatchFailed(f"{error} The batch {batch.id} may still run.") from None

    def download(self, file_id: str | None, to: Path) -> None:
        """Write a file of the batch, if there is one. `to` exists only with the whole content. Raises BatchFailed,
        OSError."""
        if file_id is not None:
            self._retried(lambda: self._download_once(file_id, to))

    def _download_once(self, file_id: str, to: Path) -> None:
        part = to.with_name(to.name + PART_SUFFIX)
        try:
            with self._http.stream("GET", f"/files/{file_id}/content") as answer:
                if not answer.is_success:
                    answer.read()
                    raise _refusal(answer)
                with part.open("wb") as out:
                    for chunk in answer.iter_bytes():
                        out.write(chunk)
        except httpx2.HTTPError as error:
            raise _Unavailable(f"The download of {file_id} failed: {error or type(error).__name__}.") from error
        part.replace(to)

    def _retried(self, call: Callable[[], Answer], *, is_idempotent: bool = True) -> Answer:
        """The answer of a call, after at most RETRIES_MAX retries. A call that is not idempotent is retried only if the
        gateway refused it. Raises BatchFailed."""
        for _ in range(RETRIES_MAX):
            try:
                return call()
            except _Unavailable as error:
                if not (is_idempotent or error.was_refused):
                    raise
                time.sleep(error.retry_s)
        return call()

    def _call(self, method: str, path: str, kind: type[Answer], **sent: Any) -> Answer:
        try:
            answer = self._http.request(method, path, **sent)
        except httpx2.HTTPError as error:
            raise _Unavailable(f"The gateway at {self._http.base_url} does not answer: {error}.") from error
        if not answer.is_success:
            raise _refusal(answer)
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.DecodeError as error:
            raise BatchFailed(f"{self._http.base_url} is no Laneway: {error}.") from None


class _Unavailable(BatchFailed):
    """The same call may succeed after `retry_s` seconds. `was_refused`: by a status, so it had no effect."""

    def __init__(self, message: str, retry_s: float = RETRY_S, *, was_refused: bool = False) -> None:
        super().__init__(message)
        self.retry_s = retry_s
        self.was_refused = was_refused


def _refusal(answer: httpx2.Response) -> BatchFailed:
    """`_Unavailable` for a rate limit and for an error of the server; not for a budget or a quota that is used up."""
    is_rate_limit = answer.status_code == TOO_MANY_REQUESTS and _error_of(answer).get("type") != QUOTA_TYPE
    if not is_rate_limit and answer.status_code < SERVER_ERRORS_FROM:
        return BatchFailed(_reason(answer))
    try:
        retry_s = float(answer.headers.get("retry-after", RETRY_S))
    except ValueError:  # a date
        retry_s = RETRY_S
    return _Unavailable(_reason(answer), min(max(retry_s, 0.0), RETRY_S_MAX), was_refused=True)


def _error_of(answer: httpx2.Response) -> dict[str, Any]:
    """The `error` of a refusal; empty if the body is of another form, such as a proxy's."""
    try:
        error = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _reason(answer: httpx2.Response) -> str:
    message = _error_of(answer).get("message")
    return str(message or f"The gateway answered with the status {answer.status_code}.")[:ERROR_CHARS_MAX]
