"""A router's state of one engine: its last heartbeat, and the requests that this gateway sent to it since."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine.protocol.snapshot_parts import EngineLoad

# A load older than this counts with pessimism: a second for each further second. Heartbeats arrive every second.
STALE_S = 3.0
# The wait of an engine before its first heartbeat: it is ranked after all others.
UNKNOWN_S = 3600.0
# The wait of an engine of a protocol version without loads, so that a fleet in an upgrade uses it too, and what each
# unfinished request of this gateway adds to either wait.
UNREPORTED_S = 0.5
UNKNOWN_REQUEST_S = 0.1
# Seconds of one prompt token where an engine has not measured it.
PREFILL_TOKEN_S = 100e-6
# Hysteresis: a load of an adapter or of weights also costs the engine (bytes, pages, an eviction), so it counts again
# for all but the highest tier, within these bounds. Without it adapters move for a millisecond's advantage.
ADAPTER_COST_MIN_S, ADAPTER_COST_MAX_S = 0.005, 0.25
WEIGHTS_COST_MAX_S = 2.0


# Of a model on an engine: digest or name, kv_identity, tokens_per_page. Engines with equal ones name pages alike.
PagesIdentity = tuple[str, str, int]


class Placement(msgspec.Struct, gc=False):
    """One request that was submitted to an engine, until its first output or its ending."""

    engine: int  # RoutedEngine.number; 0: the engine was not connected
    rank: int
    seconds: float  # of its prefill; 0 once the first output arrived
    beat: int  # the engine's heartbeats when it was submitted: the next one includes it
    unfinished: bool = True


class RoutedEngine:
    __slots__ = (
        "absent_models",
        "adapter_load_s",
        "adapters",
        "beat",
        "bit",
        "draining",
        "fresh_until",
        "hashed",
        "known",
        "loading",
        "model_loads",
        "models",
        "name",
        "number",
        "token_default_s",
        "tokens_s",
        "unfinished",
        "waits",
    )  # fmt: skip

    def __init__(self, name: str, number: int, hashed: int, ranks: int) -> None:
        self.name = name
        self.number = number  # of its connection
        self.hashed = hashed
        self.models: dict[str, PagesIdentity] = {}
        self.bit = 0  # in the page index's masks
        self.draining = False
        self.known = False  # a heartbeat had a load
        self.waits = [UNKNOWN_S] * ranks  # by rank: the reported wait, and the work sent since
        self.fresh_until = float("inf")
        self.beat = 0
        self.tokens_s: dict[str, float] = {}  # by model
        self.token_default_s = PREFILL_TOKEN_S
        self.adapters: frozenset[str] = frozenset()
        self.adapter_load_s = 0.0
        self.absent_models: Mapping[str, float] = {}  # → seconds until their weights are resident
        self.loading: dict[str, float] = {}  # adapters that this gateway's requests load → when they will be resident
        self.model_loads: dict[str, float] = {}  # likewise weights
        self.unfinished = 0

    # ---- reports

    def set_load(self, load: EngineLoad | None, draining: bool, now: float, ranks: Mapping[str, int]) -> None:
        self.draining = draining
        self.beat += 1
        if load is None:
            self._set_unknown()
            return
        self.known = True
        worst = max(load.waits.values(), default=0.0)
        for tier, rank in ranks.items():
            self.waits[rank] = load.waits.get(tier, worst)
        self.fresh_until = now + STALE_S  # then each second adds one to its wait
        self.tokens_s = load.prefill_token_s
        self.token_default_s = max(load.prefill_token_s.values(), default=PREFILL_TOKEN_S)
        self.adapters = frozenset(load.adapters)
        self.adapter_load_s = load.adapter_load_s
        self.absent_models = load.models
        if self.loading:
            self.loading = {digest: at for digest, at in self.loading.items() if at > now}
        if self.model_loads:
            self.model_loads = {model: at for model, at in self.model_loads.items() if at > now}

    def _set_unknown(self) -> None:
        self.known = False
        self.waits = [UNREPORTED_S + self.unfinished * UNKNOWN_REQUEST_S] * len(self.waits)
        self.fresh_until = float("inf")

    def token_s(self, model: str) -> float:
        """Seconds of one more prompt token."""
        return self.tokens_s.get(model, self.token_default_s)

    # ---- loads

    def weights_wait(self, model: str, rank: int, now: float) -> tuple[float, float]:
        """For a model whose weights are not resident: the seconds until they are, and the additional cost."""
        seconds = self.absent_models[model]
        if model in self.model_loads:
            return max(0.0, self.model_loads[model] - now), 0.0
        return seconds, min(seconds, WEIGHTS_COST_MAX_S) if rank else 0.0

    def adapter_wait(self, adapter: str, rank: int, now: float) -> tuple[float, float]:
        """The same for an adapter that is not resident."""
        if adapter in self.loading:
            return max(0.0, self.loading[adapter] - now), 0.0
        seconds = self.adapter_load_s
        return seconds, min(max(seconds, ADAPTER_COST_MIN_S), ADAPTER_COST_MAX_S) if rank else 0.0

    # ---- what this gateway sent

    def note_submitted(self, model: str, adapter: str | None, rank: int, uncached: int, now: float) -> Placement:
        seconds = uncached * self.token_s(model) if self.known else UNKNOWN_REQUEST_S
        placement = Placement(self.number, rank, seconds, self.beat)
        self.unfinished += 1
        self._lengthen(rank, placement.seconds)
        if adapter is not None and adapter not in self.adapters and adapter not in self.loading:
            self.loading[adapter] = now + self.adapter_load_s
        if model in self.absent_models and model not in self.model_loads:
            self.model_loads[model] = now + self.absent_models[model]
        return placement

    def note_first_output(self, placement: Placement) -> None:
        if self.known:
            self._forget_prefill(placement)

    def note_ended(self, placement: Placement) -> None:
        self._forget_prefill(placement)
        if placement.unfinished and placement.engine == self.number:
            placement.unfinished = False
            self.unfinished -= 1

    def _lengthen(self, rank: int, seconds: float) -> None:
        """Requests of a tier wait for requests of its own rank and of higher tiers."""
        for index in range(rank, len(self.waits)):
            self.waits[index] += seconds

    def _forget_prefill(self, placement: Placement) -> None:
        """The reported wait includes requests that were submitted before the last heartbeat."""
        if placement.seconds and placement.engine == self.number and placement.beat == self.beat:
            self._lengthen(placement.rank, -placement.seconds)
        placement.seconds = 0.0
