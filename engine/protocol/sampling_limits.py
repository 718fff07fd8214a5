"""Limits of a request's sampling fields, checked by gateway and engine."""

from __future__ import annotations

import math

from engine.protocol.frames import Sampling

PENALTY_MAX = 2.0
REPETITION_PENALTY_MAX = 10.0
LOGIT_BIAS_MAX = 100.0
LOGIT_BIAS_IDS_MAX = 1024
LOGPROBS_MAX = 20
# A device's packed step stores them as int32.
TOP_K_MAX = 2**31 - 1
CHOICE_MAX = 2**31 - 1


def find_fault(sampling: Sampling, max_tokens: int, vocab_size: int | None) -> str | None:
    """A sentence that names the first field outside its limits, and the limits; None if all fields are valid. NaN is
    outside every limit."""
    s = sampling
    checks = (
        ("temperature", s.temperature, 0 <= s.temperature < math.inf, "a number from 0"),
        ("top_p", s.top_p, 0 < s.top_p <= 1, "over 0 and at most 1"),
        ("top_k", s.top_k, 0 <= s.top_k <= TOP_K_MAX, f"0 to {TOP_K_MAX}"),
        ("choice", s.choice, abs(s.choice) <= CHOICE_MAX, f"±{CHOICE_MAX} at most"),
        ("min_p", s.min_p, 0 <= s.min_p <= 1, "0 to 1"),
        ("presence_penalty", s.presence_penalty, abs(s.presence_penalty) <= PENALTY_MAX, f"±{PENALTY_MAX:g} at most"),
        (
            "frequency_penalty",
            s.frequency_penalty,
            abs(s.frequency_penalty) <= PENALTY_MAX,
            f"±{PENALTY_MAX:g} at most",
        ),
        (
            "repetition_penalty",
            s.repetition_penalty,
            0 < s.repetition_penalty <= REPETITION_PENALTY_MAX,
            f"over 0 and at most {REPETITION_PENALTY_MAX:g}",
        ),
        ("min_tokens", s.min_tokens, 0 <= s.min_tokens <= max_tokens, f"0 to max_tokens, {max_tokens},"),
        ("logprobs", s.logprobs, -1 <= s.logprobs <= LOGPROBS_MAX, f"-1 to {LOGPROBS_MAX}"),
        ("prompt_logprobs", s.prompt_logprobs, -1 <= s.prompt_logprobs <= LOGPROBS_MAX, f"-1 to {LOGPROBS_MAX}"),
    )
    for name, value, good, limit in checks:
        if not good:
            return f"{name} is {value}; {limit} is needed"
    return _bias_fault(sampling.logit_bias, vocab_size) if sampling.logit_bias else None


def _bias_fault(biases: dict[int, float], vocab_size: int | None) -> str | None:
    if len(biases) > LOGIT_BIAS_IDS_MAX:
        return f"logit_bias has {len(biases)} ids; {LOGIT_BIAS_IDS_MAX} at most are possible"
    if vocab_size is not None and (min(biases) < 0 or max(biases) >= vocab_size):
        return f"logit_bias has an id outside the vocabulary of {vocab_size}"
    for index, bias in biases.items():
        if not abs(bias) <= LOGIT_BIAS_MAX:
            return f"logit_bias of id {index} is {bias}; ±{LOGIT_BIAS_MAX:g} at most is needed"
    return None
