"""Models that make tokens: the age of each model's last token, and the models that owe one, as the engines' heartbeats
have them. An engine that hangs in a step still sends heartbeats.

The data are in the memory of `gateway.fleet`; this module sends no request to an engine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from engine.protocol.snapshot_parts import TokenAge
from gateway.fleet.member import Member
from gateway.fleet.members import MemberGroup

# Replaces the name of a model that only some tenants may call, in texts that anyone may read.
RESTRICTED = "a restricted model"


class SilentModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that owes a token to a probe or a step (engine.probe_after_s). `age_s`: since its last token."""

    age_s: float
    error: str


def token_ages(member: Member) -> Mapping[str, TokenAge]:
    """Token ages by model whose weights are resident; empty for an engine that is not connected, or of an earlier
    build."""
    beat = member.engine.last_heartbeat
    return {} if beat is None or beat.tokens is None else beat.tokens


def silent_models(fleet: MemberGroup) -> dict[str, SilentModel]:
    """The models that owe a token in an engine, and make tokens in no other one."""
    found: dict[str, SilentModel] = {}
    speaking: set[str] = set()
    for member in fleet.members.values():
        for model, age in token_ages(member).items():
            if age.silent:
                found[model] = SilentModel(age_s=age.age_s, error=age.error)
            else:
                speaking.add(model)
    return {model: silent for model, silent in sorted(found.items()) if model not in speaking}


def describe_silent(models: Mapping[str, SilentModel], shown: Collection[str] | None = None) -> dict[str, str]:
    """A sentence by model, with the error of its last probe. `shown`: the models whose names anyone may read; the
    sentences then have no error, which may quote paths. None: all models."""
    sentences = {}
    for model, silent in models.items():
        sentence = f"it owes a token: its last one was {silent.age_s:.0f} s ago"
        if shown is None:
            sentences[model] = f"{sentence}: {silent.error}" if silent.error else sentence
        else:
            sentences[model if model in shown else RESTRICTED] = sentence
    return sentences


def makes_no_token(members: Iterable[Member]) -> bool:
    """Whether each of these engines has resident models, and each of these models owes a token."""
    ages = [token_ages(member) for member in members]
    return bool(ages) and all(own and all(age.silent for age in own.values()) for own in ages)


class TokenAgeCollector(Collector):
    """The gauges of each engine's resident models, read whenever the metrics are shown."""

    def __init__(self, fleet: MemberGroup) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        labels = ["engine", "model"]
        text = "Seconds since a resident model's last token, or since its weights became resident"
        age_s = GaugeMetricFamily("laneway_engine_last_token_age_seconds", text, labels=labels)
        text = "1 while a resident model owes a token for longer than engine.probe_after_s"
        silent = GaugeMetricFamily("laneway_engine_model_silent", text, labels=labels)
        for name, member in sorted(self._fleet.members.items()):
            for model, age in token_ages(member).items():
                age_s.add_metric([name, model], round(age.age_s, 3))
                silent.add_metric([name, model], float(age.silent))
        yield from (age_s, silent)
