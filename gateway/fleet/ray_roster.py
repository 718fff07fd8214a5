"""The engines that the ray driver finds. Not written yet."""

from __future__ import annotations

from gateway.config.file import Config
from gateway.fleet.roster import Roster


def build_ray_roster(config: Config) -> Roster:
    raise NotImplementedError
