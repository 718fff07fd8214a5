"""Registers and forgets adapters beside the steps: a thread checks files, all else happens between two steps.

It counts the requests that use each adapter. Placing weights in the arena is the scheduler's.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from engine.contents.fetcher import ContentFetcher, WantedContent
from engine.loop.file_checks import BEING_LOADED, BEING_UNLOADED, FileChecks
from engine.protocol.frames import AdapterState, LoadAdapter, UnloadAdapter
from engine.protocol.inbox import Inbox
from engine.step import Runner

_log = logging.getLogger(__name__)
Answer = Callable[[int, AdapterState], None]


class AdapterChanges:
    """Used only by the loop's thread, except the checking of files, which runs on a separate thread."""

    def __init__(
        self,
        runner: Runner,
        evict: Callable[[str], None],
        reads: Callable[[str], bool],
        pin: Callable[[str, bool], str],
        inbox: Inbox,
        answer: Answer,
        fetcher: ContentFetcher | None = None,
    ) -> None:
        """`evict(digest)` evicts an unused adapter from the arena; `reads(digest)`: whether a step in flight uses it;
        `pin(digest, pinned)` returns why it is impossible, or ""; `answer(gateway, state)` sends the answer.
        `fetcher` finds adapters that are not at their path; None: the path alone."""
        self._runner = runner
        self._evict = evict
        self._reads = reads
        self._pin = pin
        self._uses: collections.Counter[str] = collections.Counter()  # requests in flight
        self._models: dict[str, set[str]] = {}  # registered digest → the models that it was registered for
        self._answer = answer
        self._fetcher = fetcher
        finder = None if fetcher is None else _AdapterFinder(fetcher)
        self._changes = FileChecks("adapters", self._check, self._loaded, inbox, finder)

    def load_adapter(self, gateway: int, frame: LoadAdapter) -> None:
        """Answer "loaded": at once for a registered adapter, otherwise once its files are checked."""
        digest, changes = frame.digest, self._changes
        if changes.full():
            self._answer(gateway, AdapterState(digest, "failed", changes.too_many))
        elif changes.is_retiring(digest):
            self._answer(gateway, AdapterState(digest, "failed", BEING_UNLOADED))
        elif not changes.is_loading(digest) and self._runner.adapters.is_known(digest, frame.model):
            self._answer(gateway, self._pinned(frame))
        else:
            changes.begin_check(digest, gateway, frame)

    def unload(self, gateway: int, frame: UnloadAdapter) -> None:
        """Refuse requests for the adapter from now on. It is forgotten, and the gateway gets "unloaded", once no
        request and no step uses it; at once if it is unknown."""
        digest, changes = frame.digest, self._changes
        if changes.full():
            self._answer(gateway, AdapterState(digest, "failed", changes.too_many))
        elif changes.is_loading(digest):
            self._answer(gateway, AdapterState(digest, "failed", BEING_LOADED))
        else:
            changes.retire(digest, gateway)
            self._forget_unused(digest)

    def forget_model(self, model: str) -> None:
        """Forget the model's adapters, except those that another model uses too. No request and no step uses them."""
        for digest in [digest for digest, models in self._models.items() if model in models]:
            self._models[digest].discard(model)
            if not self._models[digest]:
                assert not self._uses[digest], f"{digest} is in use"
                self._forget_adapter(digest)

    def refuses(self, digest: str) -> bool:
        """Whether the adapter is being unloaded, so that further requests are refused."""
        return self._changes.is_retiring(digest)

    def note_use(self, digest: str) -> None:
        """A request that uses the adapter was queued."""
        self._uses[digest] += 1

    def note_release(self, digest: str) -> None:
        """Note that a request with the adapter has ended."""
        self._uses[digest] -= 1
        assert self._uses[digest] >= 0
        if not self._uses[digest]:
            del self._uses[digest]
            self._forget_unused(digest)

    def note_step_completed(self) -> None:
        """The completed step may have been the last to read an adapter whose requests had ended before."""
        for digest in self._changes.retiring():
            self._forget_unused(digest)

    def _forget_unused(self, digest: str) -> None:
        if self._changes.is_retiring(digest) and not self._uses[digest] and not self._reads(digest):
            self._forget_adapter(digest)
            self._settle(digest, "unloaded")

    def _forget_adapter(self, digest: str) -> None:
        self._evict(digest)
        self._runner.unload_adapter(digest)
        self._models.pop(digest, None)
        self._release_files(digest)

    def _release_files(self, digest: str) -> None:
        if self._fetcher is not None:
            self._fetcher.release("adapters", digest, digest)

    def _settle(self, digest: str, state: Literal["loaded", "unloaded", "failed"], why: str = "") -> None:
        for gateway in self._changes.take_waiting(digest):
            self._answer(gateway, AdapterState(digest, state, why))

    def _check(self, frame: LoadAdapter) -> None:
        self._runner.load_adapter(frame.digest, frame.model, frame.path)

    def _loaded(self, frame: LoadAdapter, _: None, message: str) -> None:
        if not message and not self._runner.adapters.is_known(frame.digest, frame.model):
            message = f"model {frame.model!r} was unloaded meanwhile"
        _log.info("adapter.read", extra={"fields": {"digest": frame.digest, "error": message}})
        state = AdapterState(frame.digest, "failed", message) if message else self._pinned(frame)
        if message and frame.digest not in self._models:
            self._release_files(frame.digest)
        self._settle(frame.digest, state.state, state.message)

    def _pinned(self, frame: LoadAdapter) -> AdapterState:
        """Set `pinned` of a registered adapter as the frame says. If pinning is impossible, the adapter is served all
        the same."""
        self._models.setdefault(frame.digest, set()).add(frame.model)
        why = self._pin(frame.digest, frame.pinned)
        if why:
            _log.warning("adapter.not_pinned", extra={"fields": {"digest": frame.digest, "reason": why}})
        return AdapterState(frame.digest, "loaded", why)


class _AdapterFinder:
    """Implements `FileFinder`."""

    def __init__(self, fetcher: ContentFetcher) -> None:
        self._fetcher = fetcher

    def find(self, request: LoadAdapter) -> LoadAdapter | None:
        if not request.sources:
            return request
        found = self._fetcher.find(_wanted_content(request))
        return None if found is None else _at(request, found)

    def fetch(self, request: LoadAdapter) -> LoadAdapter:
        return _at(request, self._fetcher.fetch(_wanted_content(request)))


def _wanted_content(frame: LoadAdapter) -> WantedContent:
    return WantedContent("adapters", frame.digest, frame.path, tuple(frame.sources), frame.digest)


def _at(frame: LoadAdapter, directory: Path) -> LoadAdapter:
    return msgspec.structs.replace(frame, path=str(directory))
