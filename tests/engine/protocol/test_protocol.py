"""Frames: what goes in comes out, however the bytes are cut; and nothing else does."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol.codec import (
    FRAME_BYTES_MAX,
    HEADER,
    FrameReader,
    ProtocolError,
    decode_from_engine,
    decode_to_engine,
    encode,
)
from engine.protocol.frames import (
    Abort,
    EngineUsage,
    Finished,
    Guide,
    Hello,
    LoadAdapter,
    ModelInfo,
    Refused,
    Sampling,
    Submit,
    ToEngine,
    Tokens,
)
from engine.protocol.guide_limits import GRAMMAR_CHARS_MAX, MARKER_IDS_MAX, find_guide_fault

handles = st.integers(0, 2**63)
ids = st.lists(st.integers(0, 2**31), max_size=50)
submits = st.builds(
    Submit,
    handle=handles,
    request_id=st.text(max_size=20),
    epoch=st.text(max_size=20),
    model=st.text(max_size=20),
    adapter=st.none() | st.text(max_size=64),
    namespace=st.text(max_size=20),
    tier=st.text(max_size=20),
    share=st.text(max_size=20),
    prompt_ids=ids,
    max_tokens=st.integers(-5, 2**40),
    sampling=st.builds(Sampling, temperature=st.floats(0, 2), seed=st.integers(0, 2**63)),
    stop_ids=ids,
    guide=st.none() | st.builds(Guide, grammar=st.none() | st.text(max_size=20), reasoning_end_ids=ids),
)
to_engine = submits | st.builds(Abort, handle=handles) | st.builds(LoadAdapter, st.text(), st.text(), st.text())


@given(st.lists(to_engine, max_size=5), st.lists(st.integers(1, 40), min_size=1))
def test_frames_survive_any_cut(frames: list[ToEngine], cuts: list[int]) -> None:
    data = b"".join(map(encode, frames))
    reader = FrameReader()
    bodies: list[bytes] = []
    at = 0
    while at < len(data):
        size = cuts[at % len(cuts)]
        bodies += reader.feed(data[at : at + size])
        at += size
    assert [decode_to_engine(body) for body in bodies] == frames


@pytest.mark.parametrize(
    "frame",
    [
        Hello(1, "epoch", [ModelInfo("m", "d", 10, 20, 16, 5)], ["premium"]),
        Tokens(7, [1, 2], [3, 4]),
        Tokens(7, [1, 2], [3, 4], cached={2: 96}),
        Finished(1, "stop", EngineUsage(3, 1, 2, 0.5, 0.6, 0.1, 1, 4)),
        Finished(1, "stop", EngineUsage(3, queue_s=0.5, queue_device_s={"premium": 0.4})),
        Refused(2, "queue_full", "no", 1.5),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_the_engine_s_frames_survive(frame: Hello | Tokens | Finished | Refused) -> None:
    (body,) = FrameReader().feed(encode(frame))
    assert decode_from_engine(body) == frame


def test_a_submit_without_a_guide_is_read_as_before_and_one_with_a_guide_survives() -> None:
    plain = Submit(1, "r", "e", "m", None, "n", "t", "s", [1], 1, Sampling(), [2])
    guide = Guide("start: /a/", [3], [4, 5], True, 6)
    for frame in (plain, msgspec.structs.replace(plain, guide=guide)):
        (body,) = FrameReader().feed(encode(frame))
        assert decode_to_engine(body) == frame
    shorter = msgspec.msgpack.encode(msgspec.msgpack.decode(msgspec.msgpack.encode(plain))[:-1])
    assert decode_to_engine(shorter) == plain


@pytest.mark.parametrize(
    ("guide", "fault"),
    [
        (Guide(), None),
        (Guide("x", [1], [2, 3], False, 0), None),
        (Guide(""), "grammar"),
        (Guide("x" * (GRAMMAR_CHARS_MAX + 1)), "grammar"),
        (Guide(reasoning_end_ids=[100]), "reasoning_end_ids"),
        (Guide(reasoning_start_ids=[-1], reasoning_end_ids=[1]), "reasoning_start_ids"),
        (Guide(reasoning_end_ids=[1] * (MARKER_IDS_MAX + 1)), "reasoning_end_ids"),
        (Guide(reasoning_start_ids=[1]), "needs reasoning_end_ids"),
        (Guide(reasoning_open=True), "needs reasoning_end_ids"),
        (Guide(reasoning_max=1), "needs reasoning_end_ids"),
        (Guide(reasoning_end_ids=[1], reasoning_max=-1), "reasoning_max"),
    ],
)
def test_the_limits_of_a_guide(guide: Guide, fault: str | None) -> None:
    found = find_guide_fault(guide, 100)
    assert (found is None) if fault is None else (found is not None and fault in found)


def test_a_length_over_the_limit_is_refused_before_its_bytes_come() -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        FrameReader().feed(HEADER.pack(FRAME_BYTES_MAX + 1))


def test_a_frame_over_the_limit_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        encode(Submit(1, "r", "e", "m", None, "n", "t", "s", [2**20] * 4_000_000, 1, Sampling(), []))


@given(st.binary(max_size=60))
def test_random_bytes_are_a_frame_or_a_protocol_error(body: bytes) -> None:
    for decode in (decode_to_engine, decode_from_engine):
        try:
            frame = decode(body)
        except ProtocolError:
            continue
        assert FrameReader().feed(encode(frame))


@pytest.mark.parametrize("frame", [Tokens(1, [1], [2]), Finished(1, "stop", EngineUsage())])
def test_a_gateway_cannot_send_what_is_the_engine_s(frame: Tokens | Finished) -> None:
    with pytest.raises(ProtocolError):
        decode_to_engine(encode(frame)[HEADER.size :])


def test_fields_that_a_newer_peer_appends_are_ignored() -> None:
    # An array longer than the struct: how a later version adds a field at the end without a new version number.
    body = encode(Abort(5))[HEADER.size :]
    longer = bytes([body[0] + 1]) + body[1:] + b"\xc0"
    assert decode_to_engine(longer) == Abort(5)
