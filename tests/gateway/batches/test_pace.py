"""How many lines run at once: as many as the engines take without a queue at the batch tier."""

from __future__ import annotations

from engine.protocol.frames import EngineLoad, Heartbeat
from gateway.batches.pace import FREE_BEATS, QUEUED_MIN, QUEUED_PART, START, LinePace


def beat(queued: int, tier: str = "batch", running: int = 1) -> Heartbeat:
    load = EngineLoad(waits={}, queued={tier: queued})
    return Heartbeat(step=1, busy=True, running=running, waiting=queued, load=load)


class Engines:
    """The newest heartbeat of each engine that is ready."""

    def __init__(self) -> None:
        self.beats: list[Heartbeat | None] = []

    def pace(self, outstanding_max: int = 1000) -> LinePace:
        return LinePace("batch", outstanding_max, lambda: self.beats)


def test_no_line_runs_without_an_engine() -> None:
    engines = Engines()
    pace = engines.pace()
    pace.adjust(0)
    assert pace.limit == 0
    engines.beats = [None]
    pace.adjust(0)
    assert pace.limit == START, "an engine that is ready takes the first lines before its first heartbeat"
    engines.beats = []
    pace.adjust(0)
    assert pace.limit == 0


def test_lines_are_added_until_some_wait() -> None:
    engines = Engines()
    pace = engines.pace(outstanding_max=100)
    limits = []
    for _ in range(12):
        engines.beats = [beat(0), beat(0)]
        pace.adjust(pace.limit or START)
        limits.append(pace.limit)
    assert limits == sorted(limits)
    assert limits[-1] == 100
    engines.beats = [beat(QUEUED_MIN), beat(QUEUED_MIN)]
    pace.adjust(100)
    assert pace.limit == 100, "a short queue is right"
    engines.beats = [beat(2 * QUEUED_MIN), beat(2 * QUEUED_MIN)]
    pace.adjust(100)
    assert pace.limit == 100 - 2 * QUEUED_MIN
    engines.beats = [beat(2 * QUEUED_MIN, running=QUEUED_MIN * QUEUED_PART), beat(0)]
    pace.adjust(pace.limit)
    assert pace.limit == 100 - 2 * QUEUED_MIN, "an engine with more running requests may have a longer queue"
    engines.beats = [beat(10_000)]
    pace.adjust(100)
    assert pace.limit == 1, "one line at least, so that a free engine is noticed"


def test_growth_is_slow_once_lines_have_waited() -> None:
    engines = Engines()
    pace = engines.pace()
    engines.beats = [None]
    pace.adjust(0)
    engines.beats = [beat(1)]
    pace.adjust(START)
    limits = []
    for _ in range(FREE_BEATS + 1):
        engines.beats = [beat(0)]
        pace.adjust(pace.limit)
        limits.append(pace.limit)
    assert limits[:-1] == [START + 1 + number for number in range(FREE_BEATS)]
    assert limits[-1] > limits[-2] + 4, "the engine stays free: the limit grows fast again"


def test_one_heartbeat_changes_the_limit_once() -> None:
    engines = Engines()
    pace = engines.pace()
    engines.beats = [beat(0)]
    for _ in range(5):
        pace.adjust(START)
    once = pace.limit
    assert START < once < 2 * START
    engines.beats = [beat(0)]
    pace.adjust(START - 1)
    assert pace.limit == once, "lines that do not run show no free capacity"


def test_other_tiers_do_not_count() -> None:
    engines = Engines()
    pace = engines.pace()
    engines.beats = [beat(500, tier="premium")]
    pace.adjust(START)
    assert pace.limit > START


def test_a_full_queue_halves_the_limit() -> None:
    engines = Engines()
    pace = engines.pace()
    engines.beats = [None]
    pace.adjust(0)
    pace.note_full()
    assert pace.limit == START // 2
    for _ in range(10):
        pace.note_full()
    assert pace.limit == 1
