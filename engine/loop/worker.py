"""The engine loop: take commands, begin steps, send the answers of the oldest step; repeat. Synchronous, on the main
thread.

It turns frames into sequences and outcomes into frames. It must never schedule, compute or touch a socket itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import msgspec

from engine.contents.fetcher import ContentFetcher
from engine.guided.requests import MASK_WAIT_S, GuideRefused, build_guided_requests
from engine.loop.adapter_changes import AdapterChanges
from engine.loop.flights import StepFlights, StepMasks
from engine.loop.gateway_streams import GatewayStreams
from engine.loop.metrics import EngineMetrics
from engine.loop.model_changes import ModelChanges
from engine.loop.page_news import PageNews
from engine.loop.reports import Reports
from engine.loop.submissions import BadRequest, guide_fault_of, sequence_of, usage_of
from engine.loop.token_frames import TokenFrames
from engine.protocol.config import ModelConfig
from engine.protocol.frames import (
    Abort,
    AdapterState,
    DrainEngine,
    EngineUsage,
    Finished,
    FinishReason,
    GatewayHello,
    Hello,
    LoadAdapter,
    LoadModel,
    Models,
    ModelState,
    Reclaim,
    Recorded,
    Refused,
    Snapshot,
    Status,
    Submit,
    UnloadAdapter,
    UnloadModel,
    Watch,
)
from engine.protocol.inbox import Command, GatewayDisconnected, Inbox, LoopCall, LoopProgress, ReceivedFrame, Stop
from engine.protocol.outbox import Outbox
from engine.protocol.server import OutgoingFrames
from engine.scheduler.scheduler import RequestEnding, Scheduler, StepOutcome
from engine.step import DeviceLost, Runner, Sequence, Step, StepResult

# Seconds of idleness after which the loop checks the integrity of its data once.
INTEGRITY_AFTER_S = 1.0
# With nothing to do until a load completes: seconds between two polls, LOAD_POLL_S at first, LOAD_POLL_LATER_S
# after a wait of LOAD_LONG_S.
LOAD_POLL_S, LOAD_LONG_S, LOAD_POLL_LATER_S = 0.00025, 0.02, 0.005
MESSAGE_CHARS_MAX = 500

_log = logging.getLogger(__name__)


class EngineLoop:
    """Owns the scheduler and the runner. Everything here is for the loop's thread."""

    def __init__(
        self,
        *,
        hello: Hello,
        scheduler: Scheduler,
        runner: Runner,
        inbox: Inbox,
        progress: LoopProgress,
        send: Callable[[list[OutgoingFrames]], None],
        tell_models: Callable[[Models], None] = lambda _: None,
        configs: Iterable[ModelConfig] = (),
        targets_out_of_reach: int = 0,
        fetcher: ContentFetcher | None = None,
        masks: StepMasks | None = None,
        mask_wait_s: float = MASK_WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tell_models` sends to every stream, before later frames of `send`; `configs`: of the models in `hello`;
        `fetcher`: fetches adapters and models that are not at their path;
        `masks`: None: the masks of the guided requests, for which a draw waits `mask_wait_s` at most."""
        self._hello = hello
        self._scheduler = scheduler
        self._runner = runner
        self._inbox = inbox
        self._progress = progress
        self._outbox = Outbox(send)
        self._clock = clock
        self._metrics = EngineMetrics([model.name for model in hello.models], hello.tiers)
        self._metrics.targets_out_of_reach = targets_out_of_reach
        self._changes = AdapterChanges(
            runner,
            scheduler.remove_adapter,
            scheduler.is_adapter_in_flight,
            scheduler.pin_adapter,
            inbox,
            self._answer_change,
            fetcher,
        )
        self._tell_models = tell_models
        self._models = ModelChanges(
            runner, scheduler, hello.models, hello.refused, configs, inbox, self._answer_change, self._models_changed,
            self._forget_model, fetcher,
        )  # fmt: skip
        self._guided = build_guided_requests(
            inbox, mask_wait_s, self._models.tokenizer_of, self._queue, self._refuse_guided
        )
        self._in_flight = StepFlights(runner, clock, masks or self._guided)
        self._completed_at = 0.0  # when the last step was completed
        self._streams = GatewayStreams(self._metrics)
        self._tokens = TokenFrames(self._outbox, self._metrics, clock)
        self._page_news = PageNews(scheduler.prefix, self._outbox.add_frame, clock)
        self._reports = Reports(hello.epoch, scheduler, runner, self._guided, self._metrics, progress, clock)
        self._checked = False  # integrity, since the last step
        self._blocked_since: float | None = None  # since when all requests wait for loads
        self._stopping = False

    def run(self) -> None:
        """Run until a Stop. An exception is an internal error or a lost device, and ends the process: its gateways see
        their streams end, and the supervisor starts another engine."""
        self._reports.update_load()
        while not self._stopping:
            commands = self._inbox.take_commands(self._patience())
            for command in commands:
                self._execute_command(command)
            if self._stopping:
                pass
            elif self._busy():
                self._step()
            elif self._scheduler.has_background_loads:
                self._scheduler.poll_loads()
            elif not commands and not self._checked and self._due_at() is None:
                self._scheduler.check_integrity()
                self._checked = True
            self._models.forget_unused()
            self._note_progress()
            self._reports.note_round(active=bool(commands) or self._busy() or self._scheduler.has_background_loads)
            self._page_news.post()
            self._outbox.post()

    def _patience(self) -> float | None:
        """Seconds to wait for a command: 0 while steps follow each other; None, without limit, once idle and
        checked."""
        if not self._busy():
            self._blocked_since = None
            if self._scheduler.has_background_loads:
                return LOAD_POLL_LATER_S
            if (due_at := self._due_at()) is not None:
                return max(0.0, due_at - self._clock())
            probe_at = self._scheduler.probes.due_at()
            probe_s = None if probe_at is None else max(0.0, probe_at - self._clock())
            integrity_s = None if self._checked else INTEGRITY_AFTER_S
            return min((left_s for left_s in (probe_s, integrity_s) if left_s is not None), default=None)
        if self._blocked_since is None:
            return 0.0
        waited_s = self._clock() - self._blocked_since
        return LOAD_POLL_S if waited_s < LOAD_LONG_S else LOAD_POLL_LATER_S

    def _due_at(self) -> float | None:
        """When an idle loop next has a report to compute or to send; None: no report is due."""
        dues = (self._reports.load_due_at(), self._page_news.due_at())
        return min((at for at in dues if at is not None), default=None)

    def _busy(self) -> bool:
        """Whether there is work, which may be a step in flight of requests that have all ended, or a probe."""
        return bool(self._in_flight) or self._scheduler.has_work() or self._scheduler.probes.is_due()

    def _step(self) -> None:
        """Begin as many steps as allowed, so that the device has work while the loop handles the oldest step."""
        self._progress.busy = self._blocked_since is None
        self._checked &= not self._scheduler.has_work()  # a probe leaves nothing to check
        in_flight = self._in_flight
        while in_flight.may_begin() and (step := self._scheduler.schedule(in_flight.skipped)) is not None:
            self._progress.awaited = self._progress.awaited or (step.model, self._clock())
            in_flight.begin_step(step)
        if self._in_flight:
            self._blocked_since = None
            self._complete()
            return
        for ended in self._scheduler.take_failed():
            self._publish_ending(ended)
        if not self._scheduler.has_blocked_requests:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = self._clock()

    def _complete(self) -> None:
        """Wait for the oldest step in flight, and handle its result; the next step's ids are drawn before any frame is
        made, unless its masks are computed meanwhile."""
        flight = self._in_flight.take_oldest()
        step = flight.step
        try:
            result = flight.result()
            failed_alone = self._guided.name_errors(step, result.errors)
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 - the step's edge: its requests end, the error is counted
            result, failed_alone = self._failed(step, error), {}
        now = self._clock()
        seconds = now - max(flight.began, self._completed_at)  # of the device
        self._completed_at = now
        self._progress.awaited = None if (model := self._in_flight.oldest_model()) is None else (model, now)
        self._metrics.step.observe(seconds)
        outcome = self._scheduler.complete(step, result, seconds)
        if not (waits_for_masks := self._in_flight.begin_masks()):
            self._in_flight.draw_oldest()
        if failed_alone:
            self._note_failed(step, failed_alone, outcome)
        self._publish(step, outcome)
        if waits_for_masks:
            self._outbox.post()  # no frame waits for a mask
            self._in_flight.draw_oldest()
        self._progress.step = step.number
        self._changes.note_step_completed()

    def _complete_all(self) -> None:
        """Complete all steps in flight, so that aborted requests end at once."""
        while self._in_flight:
            self._complete()

    def _note_progress(self) -> None:
        progress, scheduler = self._progress, self._scheduler
        progress.running = scheduler.running
        progress.waiting = sum(scheduler.waiting().values())
        # An engine that only waits for a slow disk is not stuck.
        progress.busy = self._busy() and self._blocked_since is None

    def _failed(self, step: Step, error: Exception) -> StepResult:
        """The result of a step that raised."""
        self._metrics.step_errors += 1
        _log.error("step.failed", exc_info=error, extra={"fields": {"step": step.number, "chunks": len(step.chunks)}})
        message = f"the step failed: {type(error).__name__}: {error}"[:MESSAGE_CHARS_MAX]
        return StepResult([None] * len(step.chunks), dict.fromkeys(range(len(step.chunks)), message))

    def _note_failed(self, step: Step, errors: dict[int, str], outcome: StepOutcome) -> None:
        """Log the chunks that failed alone and so ended their requests; requests that had ended before are left out."""
        ended = {ended.sequence for ended in outcome.ended}
        for index, message in errors.items():
            sequence = step.chunks[index].sequence
            if sequence in ended:
                self._metrics.chunk_errors += 1
                fields = {"request_id": sequence.request_id, "error": message[:MESSAGE_CHARS_MAX]}
                _log.warning("chunk.failed", extra={"fields": fields})

    # ---- commands

    def _execute_command(self, command: Command) -> None:
        match command:
            case ReceivedFrame():
                if self._streams.accept_frame(command.gateway, command.frame):
                    self._frame(command)
            case GatewayDisconnected():
                self._gateway_disconnected(command.gateway)
            case LoopCall():
                command.function()
            case Stop():
                self._stop(command.why)

    def _frame(self, received: ReceivedFrame) -> None:
        gateway, frame = received.gateway, received.frame
        match frame:
            case Submit():
                self._submit(gateway, frame, received.at)
            case Abort():
                self._abort_waiting(gateway, frame.handle)
                ended = self._scheduler.abort(gateway, frame.handle)
                if ended is not None:
                    self._publish_ending(ended)
            case Recorded():
                self._streams.note_recorded(gateway, frame.handles)
            case LoadAdapter():
                self._changes.load_adapter(gateway, frame)
            case UnloadAdapter():
                self._changes.unload(gateway, frame)
            case LoadModel():
                self._models.load_model(gateway, frame)
            case UnloadModel():
                self._models.unload(gateway, frame)
            case Status():
                self._outbox.add_frame(gateway, self._reports.status())
            case Watch():
                self._outbox.add_frame(gateway, self._snapshot(frame.preempted))
            case GatewayHello():
                for superseded in self._streams.name_stream(gateway, frame.gateway):
                    self._end_stream(superseded, self._streams.supersede)
                (self._page_news.subscribe if frame.pages else self._page_news.unsubscribe)(gateway)
            case Reclaim():
                self._streams.reclaim(gateway, frame.attempts)
            case DrainEngine():
                self._drain(draining=frame.draining)

    def _submit(self, gateway: int, frame: Submit, at: float) -> None:
        try:
            sequence = self._sequence(gateway, frame, at)
        except BadRequest as error:
            self._refuse(gateway, Refused(frame.handle, error.code, str(error)))
            return
        except Exception as error:  # noqa: BLE001 - the request's edge: it ends alone, and is counted
            usage = EngineUsage(len(frame.prompt_ids) - frame.resumed, completion_tokens=frame.resumed)
            self._end_failed(gateway, frame.handle, frame.request_id, usage, error)
            return
        if sequence.adapter is not None:
            self._changes.note_use(sequence.adapter)
        try:
            waits = frame.guide is not None and not self._guided.add_request(sequence, frame.guide)
        except GuideRefused as refusal:
            self._refuse_guided(sequence, refusal)
            return
        if not waits:
            self._queue(sequence)

    def _queue(self, sequence: Sequence) -> None:
        """Queue a request that has no grammar or whose grammar is compiled, or end it."""
        try:
            try:
                refusal = self._scheduler.submit(sequence)
            finally:
                self._refuse_displaced()
        except Exception as error:  # noqa: BLE001 - the request's edge: it ends alone, and is counted
            self._release(sequence)
            usage = EngineUsage(len(sequence.prompt_ids), completion_tokens=sequence.resumed)
            self._end_failed(sequence.gateway, sequence.handle, sequence.request_id, usage, error)
            return
        if refusal is None:
            self._metrics.resumed += sequence.resumed > 0
        else:
            self._release(sequence)
            # It may quote the request at any length.
            message = refusal.message[:MESSAGE_CHARS_MAX]
            self._refuse(sequence.gateway, Refused(sequence.handle, refusal.code, message, refusal.retry_after_s))

    def _end_failed(self, gateway: int, handle: int, request_id: str, usage: EngineUsage, error: Exception) -> None:
        """End a request whose handling raised."""
        self._metrics.request_errors += 1
        _log.error("submit.failed", exc_info=error, extra={"fields": {"request_id": request_id}})
        message = f"internal error: {type(error).__name__}"
        self._outbox.add_ending(gateway, Finished(handle, "error", usage, message))

    def _refuse_guided(self, sequence: Sequence, refusal: GuideRefused) -> None:
        self._release(sequence)
        message = str(refusal)[:MESSAGE_CHARS_MAX]
        self._refuse(sequence.gateway, Refused(sequence.handle, refusal.code, message, refusal.retry_after_s))

    def _release(self, sequence: Sequence) -> None:
        """The request ended or was refused: it uses its adapter and its grammar no more."""
        self._guided.remove_text(sequence)
        if sequence.adapter is not None:
            self._changes.note_release(sequence.adapter)

    def _refuse_displaced(self) -> None:
        """Refuse requests that a full queue displaced for a request of a share with fewer waiting requests."""
        for sequence, refusal in self._scheduler.take_displaced():
            self._release(sequence)
            self._refuse(
                sequence.gateway, Refused(sequence.handle, refusal.code, refusal.message, refusal.retry_after_s)
            )

    def _refuse(self, gateway: int, answer: Refused) -> None:
        self._metrics.refused[answer.code] += 1
        self._outbox.add_ending(gateway, answer)

    def _sequence(self, gateway: int, frame: Submit, at: float) -> Sequence:
        """Raises BadRequest for faults that the scheduler does not check."""
        if self._stopping:
            raise BadRequest("shutting_down", "the engine is shutting down")
        if self._progress.draining:
            raise BadRequest("shutting_down", "the engine is draining")
        if frame.epoch != self._hello.epoch:
            raise BadRequest("stale_epoch", "the request names an earlier engine process")
        if frame.adapter is not None and self._changes.refuses(frame.adapter):
            raise BadRequest("adapter_unknown", "the adapter is being unloaded")
        return sequence_of(gateway, frame, at)

    def _gateway_disconnected(self, gateway: int) -> None:
        if not self._streams.end_superseded(gateway):
            self._end_stream(gateway, self._streams.forget_stream)

    def _end_stream(self, gateway: int, forget: Callable[[int], None]) -> None:
        """End all requests of a stream that was closed; `forget` counts tokens that its gateway did not record as
        lost."""
        self._streams.open.discard(gateway)
        lost_before = self._metrics.tokens_lost
        self._complete_all()
        self._abort_waiting(gateway)
        for ended in self._scheduler.abort_gateway(gateway):
            self._publish_ending(ended)
        forget(gateway)
        self._page_news.unsubscribe(gateway)
        self._outbox.drop_gateway(gateway)
        lost = self._metrics.tokens_lost - lost_before
        _log.info("gateway.gone", extra={"fields": {"gateway": gateway, "tokens_lost": lost}})

    def _abort_waiting(self, gateway: int, handle: int | None = None) -> None:
        """Abort the requests that wait for their grammar: that of a handle, or all of a gateway."""
        for sequence in self._guided.take_waiting(gateway, handle):
            self._publish_ending(RequestEnding(sequence, "aborted"))

    def _drain(self, *, draining: bool) -> None:
        """Refuse new requests from now on, resumed ones too, or serve again. Requests that were queued go on."""
        if draining != self._progress.draining:
            self._progress.draining = draining
            _log.info("engine.draining" if draining else "engine.undrained")

    def _stop(self, why: str) -> None:
        """End all requests, so that their gateways resume them on other engines."""
        self._stopping = True
        _log.info("engine.stopping", extra={"fields": {"reason": why}})
        self._complete_all()
        for gateway in sorted(self._streams.open):
            waiting = self._guided.take_waiting(gateway)
            ended = [*waiting, *(ended.sequence for ended in self._scheduler.abort_gateway(gateway))]
            for sequence in ended:
                self._publish_ending(RequestEnding(sequence, "error", "the engine is shutting down"), resumable=True)
        self._guided.stop()
        for command in self._inbox.take_commands(0.0):
            if isinstance(command, ReceivedFrame) and self._streams.accept_frame(command.gateway, command.frame):
                self._frame(command)

    # ---- answers

    def _publish(self, step: Step, outcome: StepOutcome) -> None:
        self._tokens.publish(step, outcome)
        for ended in outcome.ended:
            self._publish_ending(ended)

    def _publish_ending(self, ended: RequestEnding, *, resumable: bool = False) -> None:
        sequence = ended.sequence
        usage = self._usage_of(sequence, ended.reason)
        if self._streams.note_ending(sequence):
            message, fault = ended.message[:MESSAGE_CHARS_MAX], guide_fault_of(ended, self._guided)
            finished = Finished(sequence.handle, ended.reason, usage, message, fault, resumable)
            self._outbox.add_ending(sequence.gateway, finished)
        self._release(sequence)

    def _usage_of(self, sequence: Sequence, reason: FinishReason) -> EngineUsage:
        """Count an ended request in the metrics; returns its usage."""
        now = self._clock()
        pair = (sequence.model, sequence.tier)
        queue_s = (now if sequence.started_at is None else sequence.started_at) - sequence.arrived_at
        self._metrics.finished[sequence.model, reason] += 1
        self._metrics.request[pair].observe(now - sequence.arrived_at)
        self._metrics.queue[pair].observe(queue_s)
        if sequence.started_at is not None:
            self._metrics.prompt_tokens[pair] += len(sequence.prompt_ids)
        self._tokens.forget_sequence(sequence)
        return usage_of(sequence, queue_s)

    def _answer_change(self, gateway: int, state: AdapterState | ModelState) -> None:
        self._outbox.add_frame(gateway, msgspec.structs.replace(state, message=state.message[:MESSAGE_CHARS_MAX]))

    def _models_changed(self, models: Models) -> None:
        for model in models.models:
            self._metrics.add_model(model.name)
        self._tell_models(models)

    def _forget_model(self, model: str) -> None:
        self._changes.forget_model(model)
        self._guided.compiler.forget_compiled()
        self._metrics.remove_model(model)

    def _snapshot(self, preempted: int | None) -> Snapshot:
        # Imported late: numpy starts threads, which must begin only after the process has blocked its signals.
        from engine.loop import snapshot

        self._metrics.snapshots += 1
        return snapshot.take_snapshot(
            self._scheduler,
            self._hello.epoch,
            self._progress.step,
            self._clock(),
            preempted,
            self._runner.page_waste,
        )
