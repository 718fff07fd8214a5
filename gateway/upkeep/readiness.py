"""Whether this gateway process can serve requests now: for /health/ready, and for the supervisor on the worker's
socket."""

from __future__ import annotations

from collections.abc import Callable, Collection

from billing.ledger.leases import Leases
from gateway import errors
from gateway.fleet.members import MemberGroup
from gateway.host.stop_state import StopState
from gateway.host.workers import WorkerState
from gateway.upkeep.revision_watch import RevisionWatch
from gateway.views.engines import EngineCounts, count_engines, engine_fault, why_no_engine_serves
from gateway.views.token_ages import describe_silent, silent_models

PARTS = ("gateway", "engine", "database", "lease", "journal")  # that can have a problem


class Readiness:
    """One per gateway process."""

    def __init__(
        self,
        *,
        engine: MemberGroup,
        watch: RevisionWatch,
        leases: Leases,
        stopping: StopState,
        unrecordable: Callable[[], str | None],
        storage_fault: Callable[[], str],
        open_models: Callable[[], Collection[str]],
    ) -> None:
        """`open_models`: the base models that every tenant may call. `unrecordable`: why the usage of one more request
        could not be recorded; None: it can be. `storage_fault`: the same in words that anyone may read."""
        self._engine = engine
        self._watch = watch
        self._leases = leases
        self._stopping = stopping
        self._unrecordable = unrecordable
        self._storage_fault = storage_fault
        self._open_models = open_models

    def problems(self) -> dict[str, str]:
        """Why requests cannot be served now, by part. Empty: they can be."""
        problems: dict[str, str] = {}
        if self._stopping.hides:
            problems["gateway"] = "the gateway stops: it serves what it still receives, and wants no new connections"
        if (no_engine := why_no_engine_serves(self._engine)) is not None:
            problems["engine"] = no_engine
        if not self._watch.fresh:
            problems["database"] = (
                "the gateway has not read the revision for over a second, so it cannot know of revoked keys"
            )
        elif fault := self._leases.write_fault:
            problems["database"] = f"{fault}, so no budget can be held"
        elif not self._leases.held:
            problems["lease"] = "the lease of this gateway has expired, so it may not hold budgets"
        if (why := self._unrecordable()) is not None:
            problems["journal"] = why
        return problems

    def engines(self) -> EngineCounts:
        return count_engines(self._engine)

    def public_cause(self, code: str) -> str:
        """The part that an operator must repair before requests are no longer refused with this code, in words for any
        reader; "": unknown."""
        if code == errors.DatabaseDown.code:
            return self._leases.write_fault or self._storage_fault()
        if code == errors.EngineDown.code:
            return engine_fault(self._engine)
        return ""

    def silent_models(self) -> dict[str, str]:
        """The models that owe a token, with a sentence each. Names that only some tenants may know are hidden."""
        silent = silent_models(self._engine)
        return describe_silent(silent, self._open_models()) if silent else {}

    def worker_state(self, *, number: int, pid: int, requests: int) -> WorkerState:
        """The answer of the worker's socket. `requests`: the number of running requests."""
        return WorkerState(
            number=number,
            pid=pid,
            phase=self._stopping.phase,
            seconds=round(self._stopping.seconds, 1),
            requests=requests,
            problems=self.problems(),
        )
