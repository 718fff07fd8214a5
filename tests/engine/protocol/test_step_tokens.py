"""The rule of a step's token limits: a token for every running request, and a minimum of prefill."""

from __future__ import annotations

import pytest

from engine.protocol.config import EngineConfigError, check_step_tokens, parse_engine_config


def test_limits_that_fill_the_step_have_no_fault() -> None:
    assert check_step_tokens(36, 64, 100) is None


@pytest.mark.parametrize(
    ("limits", "fault"),
    [
        ((1, 33, 32), "prefill_tokens_min is 33; its limit is step_tokens_max, 32"),
        ((37, 64, 100), "sequences_max is 37; its limit is step_tokens_max - prefill_tokens_min, 36"),
    ],
)
def test_a_fault_names_the_setting_and_its_limit(limits: tuple[int, int, int], fault: str) -> None:
    assert check_step_tokens(*limits) == fault


def test_the_engine_configuration_is_refused_with_the_same_sentence() -> None:
    text = b'{"models": [{"name": "a"}], "sequences_max": 37, "step_tokens_max": 100}'
    with pytest.raises(EngineConfigError, match="sequences_max is 37; its limit is step_tokens_max - prefill_tok"):
        parse_engine_config(text)
