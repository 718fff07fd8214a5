"""How often the background jobs of a gateway process run."""

from __future__ import annotations

from typing import NamedTuple

from gateway.config.file import Config

DELETE_RESPONSES_S = 30.0  # between two deletions of expired, keyless and orphaned stored responses
DELETE_REPLAYS_S = 10.0  # between two deletions of replays that are older than replays.KEEP_S


class JobIntervals(NamedTuple):
    """Seconds between two rounds of each background job."""

    expire_holds_s: float
    deliver_webhooks_s: float
    sweep_adapters_s: float
    make_slabs_s: float
    delete_replays_s: float = DELETE_REPLAYS_S
    delete_responses_s: float = DELETE_RESPONSES_S

    @classmethod
    def of(cls, config: Config) -> JobIntervals:
        return cls(config.lease.expire_s, config.webhooks.poll_s, config.adapters.upkeep_s, config.adapters.upkeep_s)
