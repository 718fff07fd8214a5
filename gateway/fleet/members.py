"""The engines of the roster as one `Engine`, without its texts: the connected engines, their models and adapters, and
the changes that apply to all of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from billing.timeouts import within_timeout
from engine.protocol.frames import Heartbeat, ModelInfo, RaisedTargets, Snapshot, StatusReport
from gateway.engines.engine import (
    AdapterFailed,
    EngineRequest,
    EngineUnavailable,
    OnConnect,
    OnModels,
    TokenStream,
)
from gateway.errors import NotFound
from gateway.fleet.choice import EngineChooser
from gateway.fleet.confirmations import Confirmations
from gateway.fleet.member import Member
from gateway.fleet.roster import EngineAddress, Roster

# Between two polls of the members, for changes without an event.
WAIT_S = 0.25
STATUS_S_MAX = 2.0
# The most seconds for which the connection of an engine that left the roster remains open until the ledger has the
# texts that ended on it.
CONFIRM_S_MAX = 10.0

BuildMember = Callable[[EngineAddress, "MemberGroup"], Member]
OnRefused = Callable[[Mapping[str, str]], None]

_log = logging.getLogger(__name__)


class MemberGroup(ABC):
    """Implements `Engine` without `submit`. `members` are by name."""

    reports_prompts = True

    def __init__(
        self, roster: Roster, build_member: BuildMember, chooser: EngineChooser, *, on_refused: OnRefused
    ) -> None:
        """`on_refused` receives the models that no engine can serve, and why."""
        self.on_connect: OnConnect | None = None
        self.on_models: OnModels | None = None
        self.members: dict[str, Member] = {}
        self.only_member: Member | None = None  # None: there is no engine, or more than one
        self.chooser = chooser
        self.confirmations = Confirmations()
        self._roster = roster
        self._build_member = build_member
        self._on_refused = on_refused
        self._models: dict[str, ModelInfo] = {}
        self._models_of: tuple[bool, ...] = ()  # which members were ready when `_models` was computed
        self._follower: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()  # a member became ready, or its served models changed
        self._closed = False

    @abstractmethod
    def submit(self, request: EngineRequest) -> TokenStream: ...

    # ---- Engine: state

    @property
    def ready(self) -> bool:
        if (only := self.only_member) is not None:
            return only.engine.ready
        return any(member.engine.ready for member in self.members.values())

    @property
    def stuck(self) -> bool:
        """No engine makes progress."""
        ready = [member for member in self.members.values() if member.engine.ready]
        return bool(ready) and all(member.engine.stuck for member in ready)

    @property
    def epoch(self) -> str:
        """The epoch of the first engine by name that was ever connected."""
        return next((member.engine.epoch for member in self.members.values() if member.engine.epoch), "")

    @property
    def models(self) -> Mapping[str, ModelInfo]:
        """The models of all ready engines; while no engine is ready, of all engines. A model that several engines have
        has the properties that the first of them reports, or the first of them that pools vectors."""
        if (only := self.only_member) is not None:
            return only.engine.models
        members = self.members.values()
        ready = tuple([member.engine.ready for member in members])
        if ready != self._models_of:
            self._models_of, self._models = ready, {}
            for member in self._ready_members() or list(members):
                for name, info in member.engine.models.items():
                    if not self._models.setdefault(name, info).vector_width and info.vector_width:
                        self._models[name] = info
        return self._models

    @property
    def refused(self) -> Mapping[str, str]:
        return self._refused_everywhere(lambda member: member.engine.refused)

    @property
    def last_heartbeat(self) -> Heartbeat | None:
        """The sum of all engines'."""
        beats = [beat for member in self.members.values() if (beat := member.engine.last_heartbeat) is not None]
        if len(beats) <= 1:
            return beats[0] if beats else None
        return Heartbeat(
            step=sum([beat.step for beat in beats]),
            busy=any(beat.busy for beat in beats),
            running=sum([beat.running for beat in beats]),
            waiting=sum([beat.waiting for beat in beats]),
            draining=all(beat.draining for beat in beats),
        )

    async def start(self) -> None:
        """Follow the roster in the background. Returns once the members of its first list connect."""
        listed = asyncio.Event()

        def follow(engines: Sequence[EngineAddress]) -> None:
            self._follow_engines(engines)
            listed.set()

        self._follower = asyncio.create_task(self._roster.follow_engines(follow), name="roster")
        waiting = asyncio.create_task(listed.wait())
        await asyncio.wait([waiting, self._follower], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._follower.done():
            self._follower.result()  # a roster follows until it is cancelled: this raises

    async def close(self) -> None:
        """Running texts end as LOST."""
        self._closed = True
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
        for member in self.members.values():
            await member.model_loader.close()
            await member.engine.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait_ready(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not self.ready:
                    await self._wait_change()
        except TimeoutError:
            raise EngineUnavailable(f"no engine is ready within {timeout_s:g} s") from None

    # ---- Engine: models and adapters

    async def ensure(self, digest: str, model: str) -> None:
        """Returns once an engine that serves the model has the adapter. Raises AdapterFailed, EngineUnavailable."""
        serving = [member for member in self._ready_members() if model in member.engine.models]
        if any(member.loader.has_adapter(digest) for member in serving):
            return
        failure: Exception = EngineUnavailable("no engine is ready")
        for member in serving:
            try:
                await member.loader.ensure(digest, model)
                return
            except (AdapterFailed, EngineUnavailable, OSError, ValueError) as error:
                failure = error
        raise failure

    def forget_adapter(self, digest: str) -> None:
        """An engine refused the adapter as unknown: it is registered again before its next request."""
        for member in self.members.values():
            member.loader.forget_adapter(digest)

    async def on_change(self) -> None:
        """The registry changed. Raises EngineUnavailable."""
        await _all_of([member.loader.on_change() for member in self._ready_members()])

    def follow_models(self) -> None:
        """The database's models changed."""
        for member in self._ready_members():
            member.model_loader.follow()

    def draining_models(self) -> frozenset[str]:
        """The models that this process is unloading from an engine."""
        return frozenset().union(*[member.model_loader.draining() for member in self.members.values()])

    async def load_adapter(
        self, digest: str, model: str, path: str | Path, *, pinned: bool = False, sources: Sequence[str] = ()
    ) -> None:
        members = self._required_members()
        await _all_of(
            [member.engine.load_adapter(digest, model, path, pinned=pinned, sources=sources) for member in members]
        )

    async def unload_adapter(self, digest: str) -> None:
        """Unload from every engine. Raises AdapterFailed, EngineUnavailable, also when an engine of the roster is not
        connected: it may use the adapter's files."""
        if any(not member.engine.ready for member in self.members.values()):
            raise EngineUnavailable("an engine is not connected")
        await _all_of([member.loader.unload_adapter(digest) for member in self._required_members()])

    async def load_model(
        self,
        name: str,
        path: str | Path,
        *,
        dtype: str = "float32",
        quantize: str = "none",
        kv_dtype: str = "auto",
        context_tokens: int | None = None,
        pinned: bool = False,
        digest: str = "",
        sources: Sequence[str] = (),
    ) -> str:
        """On every ready engine; an engine that refuses the model does not serve it. Each engine on another host
        receives the digest and the sources that this gateway has for it. Raises ModelFailed if all refuse."""
        members = self._required_members()
        answers = await asyncio.gather(
            *[
                member.load_model(
                    name,
                    path,
                    dtype=dtype,
                    quantize=quantize,
                    kv_dtype=kv_dtype,
                    context_tokens=context_tokens,
                    pinned=pinned,
                )
                for member in members
            ],
            return_exceptions=True,
        )
        not_pinned: str = _first_success(members, answers, name)
        return not_pinned

    async def unload_model(self, name: str) -> None:
        members = self._required_members()
        answers = await asyncio.gather(
            *[member.engine.unload_model(name) for member in members], return_exceptions=True
        )
        _first_success(members, answers, name)

    # ---- Engine: reports

    async def status(self) -> StatusReport:
        """The status of the first engine that answers. Raises EngineUnavailable."""
        for report in await self.reports():
            return report
        raise EngineUnavailable("no engine answers")

    async def reports(self) -> list[StatusReport]:
        return list((await self.reports_by_name()).values())

    async def reports_by_name(self) -> dict[str, StatusReport]:
        """The reports of all engines that answer within STATUS_S_MAX."""
        members = sorted(self._ready_members(), key=lambda member: member.name)
        answers = await asyncio.gather(
            *[within_timeout(STATUS_S_MAX, member.engine.status()) for member in members], return_exceptions=True
        )
        found = zip(members, answers, strict=True)
        return {member.name: answer for member, answer in found if isinstance(answer, StatusReport)}

    async def watch(self, preempted: int | None = None) -> Snapshot:
        """Watch the first ready engine by name. Raises EngineUnavailable."""
        return await self.members[self.first_ready()].engine.watch(preempted)

    def weights_wait_s(self, model: str) -> float | None:
        """Seconds until the model's weights are resident, as predicted by the engine that has them soonest; 0: they are
        resident. None: no engine has reported its load."""
        loads = [
            beat.load
            for member in self.members.values()
            if model in member.engine.models and (beat := member.engine.last_heartbeat) is not None
        ]
        return min([load.models.get(model, 0.0) for load in loads if load is not None], default=None)

    # ---- members

    @property
    def roster_stale_s(self) -> float | None:
        """Seconds since the source of the roster last answered; None: it answers."""
        since = self._roster.stale_since
        return None if since is None else time.monotonic() - since

    def first_ready(self) -> str:
        """The first ready engine by name. Raises EngineUnavailable."""
        for name in sorted(name for name, member in self.members.items() if member.engine.ready):
            return name
        raise EngineUnavailable("no engine is ready")

    def member_named(self, name: str) -> Member:
        """Raises NotFound, which names the engines."""
        member = self.members.get(name)
        if member is None:
            known = ", ".join(sorted(self.members)) or "none"
            raise NotFound(f"There is no engine {name!r}. The engines of this gateway: {known}.", param="name")
        return member

    def note_connected(self, member: Member, raised: Mapping[str, RaisedTargets]) -> None:
        """Of Member."""
        self._close_older(member)
        self.chooser.add_member(member)
        self._spawn(self._announce_connected(raised))

    def note_ready(self) -> None:
        """Called by Member: an engine has become ready."""
        self._changed.set()

    def note_models(self) -> None:
        """Called by Member: the models that an engine serves have changed."""
        self._models_of = ()
        self.note_refused()
        if self.on_models is not None:
            self.on_models(self.models)

    def note_refused(self) -> None:
        """Called by Member: the models that an engine refuses have changed. It causes no round of loads and unloads: a
        round is what finds refusals."""
        self._on_refused(self._refused_everywhere(lambda member: member.refused))
        self._changed.set()

    def _close_older(self, member: Member) -> None:
        """An engine process serves the newest connection of a gateway alone: texts of an older one, at another address,
        would never end. They continue over the new one."""
        for older in self.members.values():
            if older is not member and older.engine.epoch and older.engine.epoch == member.engine.epoch:
                fields = {"engine": older.name, "address": older.address.address, "newer": member.address.address}
                _log.warning("engine.connected_twice", extra={"fields": fields})
                self._spawn(older.engine.close())

    async def _announce_connected(self, raised: Mapping[str, RaisedTargets]) -> None:
        if self.on_connect is not None:
            await self.on_connect(raised)

    def _follow_engines(self, engines: Sequence[EngineAddress]) -> None:
        """The roster's list, at the start and at each change."""
        listed = {address.name: address for address in engines}
        for name, member in list(self.members.items()):
            if listed.get(name) != member.address:
                member.drains_here = True
                self._spawn(self._close_idle(member))
        for name, address in listed.items():
            known = self.members.get(name)
            if known is not None and known.address == address:
                known.drains_here = False
            elif known is None:
                self._add_member(address)
            else:  # at another address: the old connection drains under another key
                self.members[f"{name}@{known.address.shown_address}"] = self.members.pop(name)
                self._add_member(address)
        self._note_members()

    def _note_members(self) -> None:
        """`members` has changed."""
        self.only_member = next(iter(self.members.values())) if len(self.members) == 1 else None

    def _add_member(self, address: EngineAddress) -> None:
        member = self.members[address.name] = self._build_member(address, self)
        self._spawn(member.engine.start())
        _log.info("engine.listed", extra={"fields": {"engine": address.name, "address": address.address}})

    async def _close_idle(self, member: Member) -> None:
        """Close the connection of an engine that left the roster, once it has no text of this gateway. The engine then
        counts its unconfirmed tokens as lost."""
        while member.drains_here and member.engine.ready and member.streams:
            await self._wait_change()
        deadline = time.monotonic() + CONFIRM_S_MAX
        while member.drains_here and member.engine.ready and member.unconfirmed and time.monotonic() < deadline:
            await self._wait_change()
        if not member.drains_here:
            return
        self.members = {name: other for name, other in self.members.items() if other is not member}
        self._note_members()
        self.chooser.remove_member(member)
        self._models_of = ()
        await member.model_loader.close()
        await member.engine.close()
        _log.info("engine.unlisted", extra={"fields": {"engine": member.name}})

    def _ready_members(self) -> list[Member]:
        return [member for member in self.members.values() if member.engine.ready]

    def _required_members(self) -> list[Member]:
        """Raises EngineUnavailable if no engine is ready."""
        if members := self._ready_members():
            return members
        raise EngineUnavailable("no engine is ready")

    def _refused_everywhere(self, refused: Callable[[Member], Mapping[str, str]]) -> dict[str, str]:
        """The models that every engine refuses."""
        members = [member for member in self.members.values() if member.engine.ready] or list(self.members.values())
        if not members:
            return {}
        first, *others = [refused(member) for member in members]
        return {name: why for name, why in first.items() if all(name in other for other in others)}

    # ---- private

    async def _wait_change(self, timeout_s: float = WAIT_S) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("fleet.failed", exc_info=error)


async def _all_of(changes: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all of them; then raise the first failure."""
    for answer in await asyncio.gather(*changes, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer


def _first_success(members: Sequence[Member], answers: Sequence[Any], model: str) -> Any:
    """The first answer that is no failure; failures beside it are logged. Raises the first failure if all failed."""
    failures = [(member, answer) for member, answer in zip(members, answers, strict=True) if _is_failure(answer)]
    if len(failures) == len(answers):
        raise failures[0][1]
    for member, failure in failures:
        fields = {"engine": member.name, "model": model, "reason": str(failure)}
        _log.warning("model.not_everywhere", extra={"fields": fields})
    return next(answer for answer in answers if not _is_failure(answer))


def _is_failure(answer: object) -> bool:
    return isinstance(answer, BaseException)
