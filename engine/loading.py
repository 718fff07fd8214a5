"""Adapters becoming known and forgotten, beside the steps: files are checked on a thread, all else between two steps.

It knows who waits for which change, and how many requests use an adapter. It must never place weights in the arena:
when and where is the scheduler's.
"""

from __future__ import annotations

import collections
import functools
import logging
import queue
import threading
from collections.abc import Callable
from typing import Literal

from engine.inbox import Call, Inbox
from engine.protocol import AdapterState, LoadAdapter, UnloadAdapter
from engine.step import Runner

# Loads and unloads that wait; more are answered "failed".
CHANGES_MAX = 4096

_log = logging.getLogger(__name__)
Answer = Callable[[int, AdapterState], None]


class AdapterChanges:
    """For the loop's thread only, except the checking of files, which it does on a thread of its own."""

    def __init__(
        self,
        runner: Runner,
        evict: Callable[[str], None],
        reads: Callable[[str], bool],
        pin: Callable[[str, bool], str],
        inbox: Inbox,
        answer: Answer,
    ) -> None:
        """`evict(digest)` takes one that nothing uses out of the arena; `reads(digest)`: a step in flight uses it;
        `pin(digest, pinned)` says why that cannot be, or ""; `answer(gateway, state)` sends."""
        self._runner = runner
        self._evict = evict
        self._reads = reads
        self._pin = pin
        self._uses: collections.Counter[str] = collections.Counter()  # requests in flight
        self._inbox = inbox
        self._answer = answer
        # By digest, the gateways to answer; one that asked twice is there twice.
        self._loading: dict[str, list[int]] = {}
        self._retiring: dict[str, list[int]] = {}
        self._waiting = 0  # of both, together
        self._files: queue.SimpleQueue[LoadAdapter] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def load(self, gateway: int, frame: LoadAdapter) -> None:
        """Answers "loaded" at once when it is known, else when its files were checked."""
        digest = frame.digest
        if self._waiting >= CHANGES_MAX:
            self._answer(gateway, AdapterState(digest, "failed", f"{CHANGES_MAX} changes of adapters wait already"))
        elif digest in self._loading:
            self._loading[digest].append(gateway)
            self._waiting += 1
        elif digest in self._retiring:
            self._answer(gateway, AdapterState(digest, "failed", "it is being unloaded"))
        elif self._runner.adapters.known(digest, frame.model):
            self._answer(gateway, self._pinned(frame))
        else:
            self._loading[digest] = [gateway]
            self._waiting += 1
            self._read(frame)

    def unload(self, gateway: int, frame: UnloadAdapter) -> None:
        """From now on requests for it are refused; forgotten, and answered "unloaded", once no request and no step uses
        it. One that is unknown is "unloaded" at once."""
        digest = frame.digest
        if self._waiting >= CHANGES_MAX:
            self._answer(gateway, AdapterState(digest, "failed", f"{CHANGES_MAX} changes of adapters wait already"))
        elif digest in self._loading:
            self._answer(gateway, AdapterState(digest, "failed", "it is being loaded"))
        else:
            self._retiring.setdefault(digest, []).append(gateway)
            self._waiting += 1
            self._forget_unused(digest)

    def refuses(self, digest: str) -> bool:
        """It is being unloaded, and takes no further request."""
        return digest in self._retiring

    def used(self, digest: str) -> None:
        """By a request that was queued."""
        self._uses[digest] += 1

    def released(self, digest: str) -> None:
        """That request has ended."""
        self._uses[digest] -= 1
        assert self._uses[digest] >= 0
        if not self._uses[digest]:
            del self._uses[digest]
            self._forget_unused(digest)

    def step_completed(self) -> None:
        """It may have been the last that read an adapter, for a request that had ended before."""
        for digest in tuple(self._retiring):
            self._forget_unused(digest)

    def _forget_unused(self, digest: str) -> None:
        if digest in self._retiring and not self._uses[digest] and not self._reads(digest):
            self._evict(digest)
            self._runner.unload_adapter(digest)
            self._settle(self._retiring, digest, "unloaded")

    def _settle(
        self, changes: dict[str, list[int]], digest: str, state: Literal["loaded", "unloaded", "failed"], why: str = ""
    ) -> None:
        for gateway in changes.pop(digest, ()):
            self._waiting -= 1
            self._answer(gateway, AdapterState(digest, state, why))

    def _read(self, frame: LoadAdapter) -> None:
        self._files.put(frame)
        if self._thread is None:
            self._thread = threading.Thread(target=self._read_files, name="adapter-files", daemon=True)
            self._thread.start()

    def _read_files(self) -> None:
        while True:
            frame = self._files.get()
            message = ""
            try:
                self._runner.load_adapter(frame.digest, frame.model, frame.path)
            except (ValueError, OSError) as error:
                message = str(error) or type(error).__name__
            except Exception as error:  # noqa: BLE001 - the thread's edge: one adapter fails alone, and loudly
                _log.exception("adapter.load_failed", extra={"fields": {"digest": frame.digest}})
                message = f"{type(error).__name__}: {error}"
            self._inbox.put(Call(functools.partial(self._loaded, frame, message)))

    def _loaded(self, frame: LoadAdapter, message: str) -> None:
        _log.info("adapter.read", extra={"fields": {"digest": frame.digest, "error": message}})
        state = AdapterState(frame.digest, "failed", message) if message else self._pinned(frame)
        self._settle(self._loading, frame.digest, state.state, state.message)

    def _pinned(self, frame: LoadAdapter) -> AdapterState:
        """It is known, and pinned from now on as the frame says. Where that cannot be it serves all the same."""
        why = self._pin(frame.digest, frame.pinned)
        if why:
            _log.warning("adapter.not_pinned", extra={"fields": {"digest": frame.digest, "reason": why}})
        return AdapterState(frame.digest, "loaded", why)
