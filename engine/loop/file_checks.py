"""Registrations and removals in progress, by name: the gateways that wait for each, and the thread that checks files.
Used by `adapter_changes` and `model_changes`."""

from __future__ import annotations

import functools
import logging
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from engine.protocol.inbox import Inbox, LoopCall

# Changes of one kind that may wait; further ones are answered "failed".
CHANGES_MAX = 4096
# For people; programs use the answer's code.
BEING_LOADED, BEING_UNLOADED = "it is being loaded", "it is being unloaded"

_log = logging.getLogger(__name__)
Request = TypeVar("Request")
Checked = TypeVar("Checked")


class FileChecks(Generic[Request, Checked]):
    """A name is being checked, or retires, or neither. For the loop's thread only, except `check`."""

    def __init__(
        self,
        kind: str,
        check: Callable[[Request], Checked],
        checked: Callable[[Request, Checked | None, str], None],
        inbox: Inbox,
    ) -> None:
        """`kind`: "adapters" or "models". `check(request)` runs on one thread for all requests; afterwards
        `checked(request, result, "")`, or `checked(request, None, reason)`, runs between two steps."""
        self.too_many = f"{CHANGES_MAX} changes of {kind} wait already"
        self._kind = kind
        self._check = check
        self._checked = checked
        self._inbox = inbox
        # By name, the gateways to answer; a gateway that requested it twice is listed twice.
        self._loading: dict[str, list[int]] = {}
        self._retiring: dict[str, list[int]] = {}
        self._waiting = 0  # gateways in both
        self._files: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

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
        self._files.put(request)
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
            request = self._files.get()
            found, message = None, ""
            try:
                found = self._check(request)
            except (ValueError, OSError) as error:
                message = str(error) or type(error).__name__
            except Exception as error:  # noqa: BLE001 - the thread's edge: one check fails alone, and is logged
                _log.exception("files.check_failed", extra={"fields": {"kind": self._kind}})
                message = f"{type(error).__name__}: {error}"
            self._inbox.put(LoopCall(functools.partial(self._checked, request, found, message)))
