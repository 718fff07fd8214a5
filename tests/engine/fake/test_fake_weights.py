"""The fake's weights: they come as fast as they are told to, through host memory, and never beyond what there is."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.fake.runner import FakeRunner, build_fake_runner
from engine.fake.weights import FakeWeights
from engine.protocol.config import EngineConfig, FakeConfig, FakeFaults, ModelConfig

MIB = 1 << 20
NAMES = ["a", "b", "c", "d"]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def new(room: int | None, host: int = 0, names: list[str] = NAMES, **fake: Any) -> tuple[FakeWeights, Clock]:
    """Room for so many models on the device, and in host memory. 10 ms from there, 100 ms more from disk."""
    clock = Clock()
    config = FakeConfig(weights_bytes=MIB, weights_host_ms=10.0, weights_disk_ms=100.0, **fake)
    weights = FakeWeights(config, clock, None if room is None else room * MIB, host * MIB)
    for name in names:
        weights.know(name)
    return weights, clock


def test_from_disk_once_and_then_from_host_memory() -> None:
    weights, clock = new(room=1, host=2)
    assert (weights.weights_location("a"), weights.load_seconds("a"), weights.free_bytes()) == ("disk", 0.11, MIB)
    weights.begin_load("a")
    assert (weights.weights_location("a"), weights.free_bytes()) == ("disk", 0)
    clock.now += 0.05
    assert round(weights.load_seconds("a"), 6) == 0.06
    assert list(weights.poll_weights()) == []
    clock.now += 0.0601
    (move,) = weights.poll_weights()
    assert (move.model, move.source, round(move.seconds, 6), move.error) == ("a", "disk", 0.11, "")
    assert (weights.weights_location("a"), weights.load_seconds("a")) == ("device", 0.0)
    weights.evict_weights("a")
    assert (weights.weights_location("a"), weights.load_seconds("a"), weights.free_bytes()) == ("host", 0.01, MIB)
    weights.begin_load("a")
    clock.now += 0.0101
    assert next(iter(weights.poll_weights())).source == "host"


def test_one_after_another_and_what_is_dropped_on_its_way_does_not_come() -> None:
    weights, clock = new(room=2)
    weights.begin_load("a")
    weights.begin_load("b")
    assert round(weights.load_seconds("b"), 6) == 0.22
    assert round(weights.load_seconds("c"), 6) == 0.33
    weights.evict_weights("a")
    assert weights.free_bytes() == MIB
    clock.now += 0.2201
    assert [move.model for move in weights.poll_weights()] == ["b"]
    assert weights.weights_location("a") == "disk"


def test_host_memory_keeps_who_was_used_last() -> None:
    weights, clock = new(room=1, host=2)
    for name in "abc":
        weights.begin_load(name)
        clock.now += 1
        assert list(weights.poll_weights())
        weights.evict_weights(name)
    assert [weights.weights_location(name) for name in NAMES] == ["disk", "host", "host", "disk"]
    weights.prefetch_weights("d")
    assert weights.weights_location("d") == "disk"
    assert round(weights.load_seconds("d"), 6) == 0.11, "it is read already"
    clock.now += 0.1001
    assert list(weights.poll_weights()) == []
    assert [weights.weights_location(name) for name in NAMES] == ["disk", "disk", "host", "host"]
    weights.check_integrity()


def test_without_host_memory_nothing_is_prefetched() -> None:
    weights, clock = new(room=1)
    weights.prefetch_weights("a")
    clock.now += 1
    assert (list(weights.poll_weights()), weights.weights_location("a")) == ([], "disk")


def test_a_model_that_is_made_to_fail_never_comes() -> None:
    weights, clock = new(room=1, names=["bad-one", "good"], faults=FakeFaults(weights_error_model="bad"))
    weights.put("bad-one")
    assert weights.weights_location("bad-one") == "disk"
    weights.begin_load("bad-one")
    clock.now += 1
    (move,) = weights.poll_weights()
    assert move.error == "its weights were made to fail"
    assert (weights.weights_location("bad-one"), weights.free_bytes()) == ("disk", MIB)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2),
    st.lists(st.tuples(st.sampled_from(["begin", "drop", "prefetch", "poll"]), st.sampled_from(NAMES)), max_size=40),
    st.sampled_from([0.0, 0.004, 0.05]),
)
def test_whatever_is_asked_the_books_are_right(host: int, asked: list[tuple[str, str]], pause_s: float) -> None:
    weights, clock = new(room=2, host=host)
    coming: dict[str, float] = {}
    for what, name in asked:
        clock.now += pause_s
        if what == "begin":
            if name in coming or weights.weights_location(name) == "device" or weights.free_bytes() < MIB:
                continue
            coming[name] = clock.now + weights.load_seconds(name)
            weights.begin_load(name)
        elif what == "drop":
            weights.evict_weights(name)
            coming.pop(name, None)
            assert weights.weights_location(name) != "device"
        elif what == "prefetch":
            weights.prefetch_weights(name)
        else:
            came = {move.model for move in weights.poll_weights()}
            # Within what sums of such seconds lose.
            assert {own for own, due in coming.items() if due < clock.now - 1e-9} <= came, "when it was said"
            assert came <= {own for own, due in coming.items() if due <= clock.now + 1e-9}, "and not before"
            for own in came:
                del coming[own]
        weights.check_integrity()
        assert all(weights.weights_location(own) != "device" for own in coming)
        assert sum(weights.weights_location(own) == "host" for own in NAMES) <= host


def fake(names: list[str], **changes: Any) -> FakeRunner:
    models = tuple(ModelConfig(name=name, pinned=name.startswith("pinned")) for name in names)
    return build_fake_runner(EngineConfig(models=models, **changes))


def test_at_the_start_pinned_models_are_there_and_then_the_first() -> None:
    runner = fake(["a", "b", "pinned", "c"], weights_bytes=2 * MIB, fake=FakeConfig(weights_bytes=MIB))
    assert [name for name in runner.models if runner.weights.weights_location(name) == "device"] == ["a", "pinned"]
    assert {info.weights_bytes for info in runner.models.values()} == {MIB}
    endless = fake(["a", "b", "c"])
    assert {endless.weights.weights_location(name) for name in endless.models} == {"device"}
    assert endless.weights.bytes_max is None
