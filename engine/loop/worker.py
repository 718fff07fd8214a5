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
from engine.loop.gauges import read_gauges
from engine.loop.metrics import EngineMetrics
from engine.loop.model_changes import ModelChanges
from engine.loop.submissions import BadRequest, guide_fault_of, sequence_of, usage_of
from engine.loop.unsettled import UnrecordedRequests
from engine.protocol.config import ModelConfig
from engine.protocol.frames import (
    Abort,
    AdapterState,
    EngineUsage,
    Finished,
    FinishReason,
    Hello,
    LoadAdapter,
    LoadModel,
    Models,
    ModelState,
    PromptPart,
    Recorded,
    Refused,
    Snapshot,
    Status,
    StatusReport,
    Submit,
    Tokens,
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
# Of each list of digests in a StatusReport.
ADAPTERS_REPORTED_MAX = 4096

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
        `fetcher`: of adapters and models that are not at their path;
        `masks`: None: those of the guided requests, for which a draw waits `mask_wait_s` at most."""
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
        self._gateways: set[int] = set()
        self._unrecorded = UnrecordedRequests()
        self._last_token_at: dict[Sequence, float] = {}
        self._checked = False  # integrity, since the last step
        self._blocked_since: float | None = None  # since when all requests wait for loads
        self._stopping = False

    def run(self) -> None:
        """Run until a Stop. An exception is an internal error or a lost device, and ends the process: its gateways see
        their streams end, and the supervisor starts another engine."""
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
            elif not commands:
                self._scheduler.check_integrity()
                self._checked = True
            self._models.forget_unused()
            self._note_progress()
            self._outbox.post()

    def _patience(self) -> float | None:
        """Seconds to wait for a command: 0 while steps follow each other; None, without limit, once idle and
        checked."""
        if not self._busy():
            self._blocked_since = None
            if self._scheduler.has_background_loads:
                return LOAD_POLL_LATER_S
            return None if self._checked else INTEGRITY_AFTER_S
        if self._blocked_since is None:
            return 0.0
        waited_s = self._clock() - self._blocked_since
        return LOAD_POLL_S if waited_s < LOAD_LONG_S else LOAD_POLL_LATER_S

    def _busy(self) -> bool:
        """Whether there is work, which may be a step in flight of requests that have all ended."""
        return bool(self._in_flight) or self._scheduler.has_work()

    def _step(self) -> None:
        """Begin as many steps as allowed, so that the device has work while the loop handles the oldest step."""
        self._progress.busy = self._blocked_since is None
        self._checked = False
        in_flight = self._in_flight
        while in_flight.may_begin() and (step := self._scheduler.schedule(in_flight.skipped)) is not None:
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
        except Exception as error:  # noqa: BLE001 - the step's edge: its requests end, the loop goes on, it is counted
            result, failed_alone = self._failed(step, error), {}
        now = self._clock()
        seconds = now - max(flight.began, self._completed_at)  # of the device
        self._completed_at = now
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
                self._gateways.add(command.gateway)
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
                self._unrecorded.note_recorded(gateway, frame.handles)
            case LoadAdapter():
                self._changes.load_adapter(gateway, frame)
            case UnloadAdapter():
                self._changes.unload(gateway, frame)
            case LoadModel():
                self._models.load_model(gateway, frame)
            case UnloadModel():
                self._models.unload(gateway, frame)
            case Status():
                self._outbox.add_frame(gateway, self._report())
            case Watch():
                self._outbox.add_frame(gateway, self._snapshot(frame.preempted))

    def _submit(self, gateway: int, frame: Submit, at: float) -> None:
        try:
            sequence = self._sequence(gateway, frame, at)
        except BadRequest as error:
            self._refuse(gateway, Refused(frame.handle, error.code, str(error)))
            return
        except Exception as error:  # noqa: BLE001 - the request's edge: it ends alone, and is counted
            self._end_failed(gateway, frame.handle, frame.request_id, len(frame.prompt_ids), error)
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
        """Queue a request whose grammar is compiled, or that has none, or end it."""
        try:
            try:
                refusal = self._scheduler.submit(sequence)
            finally:
                self._refuse_displaced()
        except Exception as error:  # noqa: BLE001 - the request's edge: it ends alone, and is counted
            self._release(sequence)
            prompt = len(sequence.prompt_ids)
            self._end_failed(sequence.gateway, sequence.handle, sequence.request_id, prompt, error)
            return
        if refusal is not None:
            self._release(sequence)
            # It may quote the request at any length.
            message = refusal.message[:MESSAGE_CHARS_MAX]
            self._refuse(sequence.gateway, Refused(sequence.handle, refusal.code, message, refusal.retry_after_s))

    def _end_failed(self, gateway: int, handle: int, request_id: str, prompt_tokens: int, error: Exception) -> None:
        """End a request whose handling raised."""
        self._metrics.request_errors += 1
        _log.error("submit.failed", exc_info=error, extra={"fields": {"request_id": request_id}})
        message = f"internal error: {type(error).__name__}"
        self._outbox.add_ending(gateway, Finished(handle, "error", EngineUsage(prompt_tokens), message))

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
        """Raises BadRequest for what the scheduler does not check."""
        if self._stopping:
            raise BadRequest("shutting_down", "the engine is shutting down")
        if frame.epoch != self._hello.epoch:
            raise BadRequest("stale_epoch", "the request names an earlier engine process")
        if frame.adapter is not None and self._changes.refuses(frame.adapter):
            raise BadRequest("adapter_unknown", "the adapter is being unloaded")
        return sequence_of(gateway, frame, at)

    def _gateway_disconnected(self, gateway: int) -> None:
        self._gateways.discard(gateway)
        lost_before = self._metrics.tokens_lost
        self._complete_all()
        self._abort_waiting(gateway)
        for ended in self._scheduler.abort_gateway(gateway):
            self._publish_ending(ended)
        for request_id, tokens in self._unrecorded.take_unrecorded(gateway):
            self._count_lost(request_id, tokens)
        self._outbox.drop_gateway(gateway)
        lost = self._metrics.tokens_lost - lost_before
        _log.info("gateway.gone", extra={"fields": {"gateway": gateway, "tokens_lost": lost}})

    def _abort_waiting(self, gateway: int, handle: int | None = None) -> None:
        """Abort the requests that wait for their grammar: that of a handle, or all of a gateway."""
        for sequence in self._guided.take_waiting(gateway, handle):
            self._publish_ending(RequestEnding(sequence, "aborted"))

    def _stop(self, why: str) -> None:
        self._stopping = True
        _log.info("engine.stopping", extra={"fields": {"reason": why}})
        self._complete_all()
        for gateway in sorted(self._gateways):
            waiting = self._guided.take_waiting(gateway)
            ended = [*waiting, *(ended.sequence for ended in self._scheduler.abort_gateway(gateway))]
            for sequence in ended:
                self._publish_ending(RequestEnding(sequence, "error", "the engine is shutting down"))
        self._guided.stop()
        for command in self._inbox.take_commands(0.0):
            if isinstance(command, ReceivedFrame):
                self._frame(command)

    # ---- answers

    def _publish(self, step: Step, outcome: StepOutcome) -> None:
        now = self._clock()
        model = step.model
        metrics = self._metrics
        last = self._last_token_at
        frames: dict[int, Tokens] = {}  # by gateway
        cached: dict[int, dict[int, int]] = {}  # by gateway and handle
        for sequence, token in outcome.tokens:
            frame = frames.get(sequence.gateway)
            if frame is None:
                frame = frames[sequence.gateway] = Tokens(step.number, [], [])
            frame.handles.append(sequence.handle)
            frame.ids.append(token)
            pair = (model, sequence.tier)
            metrics.generation_tokens[pair] += 1
            before = last.get(sequence)
            if before is None:
                metrics.first_token[pair].observe(now - sequence.arrived_at)
                if sequence.cached_tokens:
                    cached.setdefault(sequence.gateway, {})[sequence.handle] = sequence.cached_tokens
            else:
                metrics.inter_token[pair].observe(now - before)
            last[sequence] = now
        for gateway in {sequence.gateway for sequence in outcome.logprobs}:
            own = [outcome.logprobs.get(sequence) for sequence, _ in outcome.tokens if sequence.gateway == gateway]
            frames[gateway] = Tokens(step.number, frames[gateway].handles, frames[gateway].ids, own)
        for gateway, found in cached.items():
            frames[gateway] = msgspec.structs.replace(frames[gateway], cached=found)
        for sequence, part in outcome.prompts:
            self._outbox.add_frame(sequence.gateway, PromptPart(sequence.handle, part))
        for gateway, frame in frames.items():
            self._outbox.add_frame(gateway, frame)
        for ended in outcome.ended:
            self._publish_ending(ended)

    def _publish_ending(self, ended: RequestEnding) -> None:
        sequence = ended.sequence
        usage = self._usage_of(sequence, ended.reason)
        if sequence.gateway in self._gateways:
            message, fault = ended.message[:MESSAGE_CHARS_MAX], guide_fault_of(ended, self._guided)
            self._outbox.add_ending(sequence.gateway, Finished(sequence.handle, ended.reason, usage, message, fault))
            self._unrecorded.add_unrecorded(
                sequence.gateway, sequence.handle, sequence.request_id, len(sequence.output_ids)
            )
        else:
            self._count_lost(sequence.request_id, len(sequence.output_ids))
        self._release(sequence)

    def _count_lost(self, request_id: str, tokens: int) -> None:
        """Count tokens made for a gateway that disconnected. It may still have settled them just before."""
        if tokens:
            self._metrics.tokens_lost += tokens
            _log.warning("tokens.lost", extra={"fields": {"request_id": request_id, "tokens": tokens}})

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
        self._last_token_at.pop(sequence, None)
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

    def _report(self) -> StatusReport:
        metrics, scheduler = self._metrics, self._scheduler
        metrics.observe_loads(scheduler.residency.take_loads())
        metrics.observe_model_loads(scheduler.weight_residency.take_loads())
        metrics.guided = self._guided.counts()
        resident = self._runner.adapters.resident()
        gauges = read_gauges(scheduler, len(resident))
        return StatusReport(
            epoch=self._hello.epoch,
            step=self._progress.step,
            running=scheduler.running,
            waiting=gauges.waiting,
            pages_total=gauges.pages_total,
            pages_free=gauges.pages_free,
            pages_cached=gauges.pages_cached,
            pages_adapters=gauges.pages_adapters,
            adapters_resident=resident,
            tokens_made=scheduler.results.tokens_made,
            metrics=metrics.render(gauges),
            tokens_overrun=scheduler.results.tokens_overrun,
            tokens_lost=metrics.tokens_lost,
            adapters_running=scheduler.residency.digests_in_use()[:ADAPTERS_REPORTED_MAX],
            adapters_waiting=scheduler.residency.digests_waited_for()[:ADAPTERS_REPORTED_MAX],
            adapters_step_max=scheduler.residency.sequences_max,
        )
