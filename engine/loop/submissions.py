"""Submit frames as sequences for the scheduler, and the usage of ended sequences for their Finished frames."""

from __future__ import annotations

from engine.guided.requests import GuidedRequests
from engine.protocol.frames import EngineUsage, GuideFault, RefusalCode, Submit
from engine.scheduler.results import SKIPS_MESSAGE
from engine.step import RequestEnding, Sequence

# Limit of Submit.weight.
WEIGHT_MAX = 1000.0


class BadRequest(Exception):
    """The request cannot be served; `code` and the message go into its Refused."""

    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(message)
        self.code: RefusalCode = code


def sequence_of(gateway: int, frame: Submit, arrived_at: float) -> Sequence:
    """`arrived_at`: seconds of the monotonic clock. Raises BadRequest for a weight outside its limits, and for resumed
    ids that no unfinished text can end with; and for a vector beside anything else."""
    if not 0 < frame.weight <= WEIGHT_MAX:
        raise BadRequest("bad_request", f"weight is {frame.weight:g}; it must be over 0 and at most {WEIGHT_MAX:g}")
    resumed = frame.resumed
    if resumed:
        _check_resumed(frame)
    if frame.pooling is not None:
        _check_pooling(frame)
    prompt = len(frame.prompt_ids) - resumed
    return Sequence(
        handle=frame.handle,
        gateway=gateway,
        request_id=frame.request_id,
        model=frame.model,
        adapter=frame.adapter,
        namespace=frame.namespace,
        tier=frame.tier,
        share=frame.share,
        prompt_ids=frame.prompt_ids[:prompt] if resumed else frame.prompt_ids,
        max_tokens=frame.max_tokens,
        sampling=frame.sampling,
        stop_ids=frozenset(frame.stop_ids),
        arrived_at=arrived_at,
        weight=frame.weight,
        output_ids=frame.prompt_ids[prompt:],
        resumed=resumed,
        attempt=frame.attempt,
        pooling=frame.pooling,
    )


def _check_resumed(frame: Submit) -> None:
    """Raises BadRequest."""
    resumed, prompt = frame.resumed, len(frame.prompt_ids)
    if not 0 < resumed < prompt:
        raise BadRequest("bad_request", f"resumed is {resumed}; it must be at least 0 and less than the {prompt} ids")
    if resumed >= frame.max_tokens:
        raise BadRequest("bad_request", f"{resumed} ids are resumed, and max_tokens is {frame.max_tokens}")
    if not frozenset(frame.stop_ids).isdisjoint(frame.prompt_ids[prompt - resumed :]):
        raise BadRequest("bad_request", "a stop id is among the resumed ids: the text has ended")


def _check_pooling(frame: Submit) -> None:
    """Raises BadRequest."""
    if frame.max_tokens or frame.resumed:
        raise BadRequest("bad_request", f"max_tokens is {frame.max_tokens}; with pooling no token is drawn")
    if frame.guide is not None or frame.sampling.prompt_logprobs >= 0:
        raise BadRequest("bad_request", "with pooling there is neither a guide nor a log probability")


def usage_of(sequence: Sequence, queue_s: float) -> EngineUsage:
    first_at = sequence.first_token_at
    return EngineUsage(
        prompt_tokens=len(sequence.prompt_ids),
        cached_tokens=sequence.cached_tokens,
        completion_tokens=len(sequence.output_ids),
        queue_s=queue_s,
        ttft_s=0.0 if first_at is None else first_at - sequence.arrived_at,
        device_s=sequence.device_s,
        preemptions=sequence.preemptions,
        recomputed_tokens=sequence.recomputed_tokens,
        recomputed=sequence.recomputed,
        swapped_tokens=sequence.swapped_tokens,
        queue_device_s=sequence.queue_device_s,
    )


def guide_fault_of(ended: RequestEnding, guided: GuidedRequests) -> GuideFault | None:
    """Whether the request's grammar or its masks ended it."""
    if ended.reason != "error":
        return None
    if ended.message == SKIPS_MESSAGE:
        return "late"
    return "grammar" if guided.has_error(ended.sequence) else None
