"""Registrations and removals in progress, by name: the gateways that wait for each, the thread that checks files, and
the threads that fetch files which are not on this host. Used by `adapter_changes` and `model_changes`."""

from __future__ import annotations

import functools
import logging
import queue
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from engine.protocol.inbox import Inbox, LoopCall

# Changes of one kind that may wait; further ones are answered "failed".
CHANGES_MAX = 4096
# Downloads of one kind at a time. A further one waits; checks of files that are here do not wait for downloads.
FETCHES_MAX = 4
# For people; programs use the answer's code.
BEING_LOADED, BEING_UNLOADED = "it is being loaded", "it is being unloaded"

_log = logging.getLogger(__name__)
Request = TypeVar("Request")
Checked = TypeVar("Checked")


class FileFinder(Protocol[Request]):
    """Finds the files of a request."""

    def find(self, request: Request) -> Request | None:
        """The request with the directory that this engine reads; None: it must be fetched. Raises ValueError,
        OSError."""
        ...

    def fetch(self, request: Request) -> Request:
        """Find the files after a download, on a separate thread. Raises ValueError, OSError."""
        ...


class FileChecks(Generic[Request, Checked]):
    """A name is being checked, or retires, or neither. For the loop's thread only, except `check`."""

    def __init__(
        self,
        kind: str,
        check: Callable[[Request], Checked],
        checked: Callable[[Request, Checked | None, str], None],
        inbox: Inbox,
        finder: FileFinder[Request] | None = None,
    ) -> None:
        """`kind`: "adapters" or "models". `check(request)` runs on one thread for all requests; afterwards
        `checked(request, result, "")`, or `checked(request, None, reason)`, runs between two steps. Both get the
        request as `finder` found it; None: requests are checked as they are."""
        self.too_many = f"{CHANGES_MAX} changes of {kind} wait already"
        self._kind = kind
        self._check = check
        self._checked = checked
        self._inbox = inbox
        # By name, the gateways to answer; a gateway that requested it twice is listed twice.
        self._loading: dict[str, list[int]] = {}
        self._retiring: dict[str, list[int]] = {}
        self._waiting = 0  # gateways in both
        self._finder = finder
        # With whether the request was fetched.
        self._files: queue.SimpleQueue[tuple[Request, bool]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._absent: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._fetching: list[threading.Thread] = []

    def full(self) -> bool:
        return self._waiting >= CHANGES_MAX

    def is_loading(self, name: str) -> bool:
        return name in self._loading

    def loading(self) -> int:
        return len(self._loading)

    def is_retiring(self, name: str) -> bool:
        return name in self._retiring

    def retiring(self) -> tuple[str, ...]:
        return tuple(self._retiring)

    def begin_check(self, name: str, gateway: int, request: Request) -> None:
        """Check the files, unless a check of them is in flight."""
        self._waiting += 1
        if name in self._loading:
            self._loading[name].append(gateway)
            return
        self._loading[name] = [gateway]
        self._files.put((request, False))
        if self._thread is None:
            self._thread = threading.Thread(target=self._check_files, name=f"{self._kind}-files", daemon=True)
            self._thread.start()

    def retire(self, name: str, gateway: int) -> None:
        self._waiting += 1
        self._retiring.setdefault(name, []).append(gateway)

    def take_waiting(self, name: str) -> list[int]:
        """The change has ended: returns the gateways to answer."""
        gateways = self._loading.pop(name, None) or self._retiring.pop(name, [])
        self._waiting -= len(gateways)
        return gateways

    def _check_files(self) -> None:
        while True:
            request, fetched = self._files.get()
            found, message = None, ""
            try:
                if self._finder is not None and not fetched:
                    located = self._finder.find(request)
                    if located is None:
                        self._begin_fetch(request)
                        continue
                    request = located
                found = self._check(request)
            except Exception as error:  # noqa: BLE001 - the thread's edge: one check fails alone
                message = self._reason(error)
            self._inbox.put(LoopCall(functools.partial(self._checked, request, found, message)))

    def _begin_fetch(self, request: Request) -> None:
        self._absent.put(request)
        if len(self._fetching) < FETCHES_MAX:
            thread = threading.Thread(target=self._fetch_files, name=f"{self._kind}-fetch", daemon=True)
            self._fetching.append(thread)
            thread.start()

    def _fetch_files(self) -> None:
        assert self._finder is not None
        while True:
            request = self._absent.get()
            try:
                self._files.put((self._finder.fetch(request), True))
            except Exception as error:  # noqa: BLE001 - the thread's edge: one download fails alone
                self._inbox.put(LoopCall(functools.partial(self._checked, request, None, self._reason(error))))

    def _reason(self, error: Exception) -> str:
        """The reason of a refusal, for the gateway. An exception that no check or download is expected to raise is
        logged."""
        if isinstance(error, ValueError | OSError):
            return str(error) or type(error).__name__
        _log.error("files.check_failed", exc_info=error, extra={"fields": {"kind": self._kind}})
        return f"{type(error).__name__}: {error}"
