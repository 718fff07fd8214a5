"""The engines that the kubernetes driver finds. Not written yet."""

from __future__ import annotations

from gateway.config.file import Config
from gateway.fleet.roster import Roster


def build_kubernetes_roster(config: Config) -> Roster:
    raise NotImplementedError
