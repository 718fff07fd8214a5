"""Frames as bytes: a 4-byte big-endian length and a msgpack array, whose first element is the frame's tag."""

from __future__ import annotations

import struct

import msgspec

from engine.protocol.frames import FromEngine, ToEngine

# A prompt of a million ids is about 5 MB of msgpack.
FRAME_BYTES_MAX = 16 * 1024 * 1024
HEADER = struct.Struct(">I")


class ProtocolError(Exception):
    """The peer sent bytes that are no valid frame. The stream is closed."""


_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine = msgspec.msgpack.Decoder(FromEngine)


def encode(frame: ToEngine | FromEngine) -> bytes:
    """The frame after its 4-byte big-endian length. Raises ProtocolError above FRAME_BYTES_MAX."""
    buffer = bytearray(HEADER.size)
    _encoder.encode_into(frame, buffer, HEADER.size)
    length = len(buffer) - HEADER.size
    if length > FRAME_BYTES_MAX:
        raise ProtocolError(f"a frame of {length} bytes is over the limit of {FRAME_BYTES_MAX}")
    HEADER.pack_into(buffer, 0, length)
    return bytes(buffer)


class FrameReader:
    """Splits a byte stream into frame bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Append `data`; return the bodies completed by it. Raises ProtocolError above FRAME_BYTES_MAX."""
        self._buffer += data
        bodies: list[bytes] = []
        at = 0
        while len(self._buffer) - at >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer, at)
            if length > FRAME_BYTES_MAX:
                raise ProtocolError(f"a frame of {length} bytes is over the limit of {FRAME_BYTES_MAX}")
            if len(self._buffer) - at - HEADER.size < length:
                break
            at += HEADER.size
            bodies.append(bytes(self._buffer[at : at + length]))
            at += length
        if at:
            del self._buffer[:at]
        return bodies


def decode_to_engine(body: bytes) -> ToEngine:
    """Raises ProtocolError when the body is not a frame that a gateway may send."""
    try:
        frame: ToEngine = _to_engine.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"not a frame: {error}") from error
    return frame


def decode_from_engine(body: bytes) -> FromEngine:
    """Raises ProtocolError when the body is not a frame that an engine may send."""
    try:
        frame: FromEngine = _from_engine.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"not a frame: {error}") from error
    return frame
