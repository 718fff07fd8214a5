"""The quality gate: each measure at its limit, beyond it and without a value; and the report in its frames."""

from __future__ import annotations

import math

import msgspec
import pytest

from engine.protocol.codec import FrameReader, decode_from_engine, decode_to_engine, encode
from engine.protocol.config import EngineConfigError, QualityLimits, parse_engine_config
from engine.protocol.frames import LoadModel, ModelInfo, Models
from engine.protocol.quality import ModelQuality, find_quality_fault

LIMITS = QualityLimits(mean_kl_max=0.05, top1_min=0.9, layer_error_max=0.2)
GOOD = ModelQuality(20_000, 0.05, 0.9, 11.2, 11.0, 7, 0.2, 3, 1_790_000_000.5)


def test_a_model_at_its_limits_passes() -> None:
    assert find_quality_fault(GOOD, LIMITS) is None


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"mean_kl": 0.0512}, "mean_kl is 0.0512 nats; its limit is quality.mean_kl_max, 0.05"),
        ({"top1": 0.8991}, "top1 is 0.8991; its limit is quality.top1_min, 0.9"),
        ({"worst_layer_error": 0.25}, "the error of layer 7 is 0.25; its limit is quality.layer_error_max, 0.2"),
        ({"mean_kl": math.nan}, "mean_kl is nan nats; its limit is quality.mean_kl_max, 0.05"),
        ({"top1": math.nan}, "top1 is nan; its limit is quality.top1_min, 0.9"),
        ({"worst_layer_error": math.inf}, "the error of layer 7 is inf; its limit is quality.layer_error_max, 0.2"),
        ({"mean_kl": 1.0, "top1": 0.0}, "mean_kl is 1 nats; its limit is quality.mean_kl_max, 0.05"),
    ],
)
def test_the_first_measure_beyond_its_limit_is_named(changes: dict[str, float], fault: str) -> None:
    assert find_quality_fault(msgspec.structs.replace(GOOD, **changes), LIMITS) == fault


def test_a_report_survives_and_an_engine_without_one_is_read() -> None:
    info = ModelInfo("m", "d", 10, 20, 16, 5, 7, True, "int4 g128 (awq)", "fp8", quality=GOOD)
    (body,) = FrameReader().feed(encode(Models([info])))
    assert decode_from_engine(body) == Models([info])
    tag, [fields], refused = msgspec.msgpack.decode(body)
    shorter = decode_from_engine(msgspec.msgpack.encode([tag, [fields[:8]], refused]))
    assert shorter == Models([ModelInfo("m", "d", 10, 20, 16, 5, 7, True)])
    assert isinstance(shorter, Models)
    [old] = shorter.models
    assert (old.weights_format, old.kv_format, old.quality) == ("", "", None)


def test_a_load_of_a_gateway_without_formats_is_read() -> None:
    frame = LoadModel("m", "/m", "bfloat16", None, True, "fp8", "fp8")
    (body,) = FrameReader().feed(encode(frame))
    assert decode_to_engine(body) == frame
    shorter = msgspec.msgpack.encode(msgspec.msgpack.decode(body)[:-4])
    assert decode_to_engine(shorter) == LoadModel("m", "/m", "bfloat16", None, True, "none", "auto")


def test_the_limits_are_read_from_the_section() -> None:
    models = '"models": [{"name": "m", "quantize": "fp8", "kv_dtype": "fp8"}]'
    read = parse_engine_config(f'{{{models}, "quality": {{"top1_min": 0.99}}}}'.encode())
    assert read.quality == QualityLimits(top1_min=0.99)
    assert (read.models[0].quantize, read.models[0].kv_dtype) == ("fp8", "fp8")
    with pytest.raises(EngineConfigError, match=r"top1_min"):
        parse_engine_config(f'{{{models}, "quality": {{"top1_min": 1.5}}}}'.encode())
