"""How far a quantised model is from its unquantised weights, as the engine measured it, and the gate over it.

The measurement itself, on the held-out text, is the engine's. No torch.
"""

from __future__ import annotations

import msgspec

from engine.protocol.config import QualityLimits


class ModelQuality(msgspec.Struct, frozen=True, array_like=True):
    """A quantised model beside the same model in 16 bits or more, on the held-out text. Measured once for each model
    digest, format and version of the kernels."""

    tokens: int  # of the held-out text
    mean_kl: float  # mean Kullback-Leibler divergence of the next token's distribution from the reference's, in nats
    top1: float  # part of the positions where both have the same likeliest token, 0 to 1
    perplexity: float
    reference_perplexity: float
    worst_layer: int
    worst_layer_error: float  # norm of that layer's error / norm of the reference layer's residual update
    kept_layers: int  # matrices that were left in 16 bits
    measured_at: float  # Unix seconds


def find_quality_fault(quality: ModelQuality, limits: QualityLimits) -> str | None:
    """The first measure beyond its limit as a sentence that names both, or None. NaN is beyond every limit."""
    if not quality.mean_kl <= limits.mean_kl_max:
        return f"mean_kl is {quality.mean_kl:.4g} nats; its limit is quality.mean_kl_max, {limits.mean_kl_max:g}"
    if not quality.top1 >= limits.top1_min:
        return f"top1 is {quality.top1:.4g}; its limit is quality.top1_min, {limits.top1_min:g}"
    if not quality.worst_layer_error <= limits.layer_error_max:
        return (
            f"the error of layer {quality.worst_layer} is {quality.worst_layer_error:.4g}; "
            f"its limit is quality.layer_error_max, {limits.layer_error_max:g}"
        )
    return None
