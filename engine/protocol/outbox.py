"""The frames of one round of the engine loop, by gateway, sent together at the end of the round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.protocol.codec import encode
from engine.protocol.frames import Finished, FromEngine, Refused
from engine.protocol.server import OutgoingFrames


@dataclass(slots=True)
class _GatewayFrames:
    frames: list[bytes] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)  # handles whose ending is in `frames`


class Outbox:
    """For the loop's thread; `send` passes a round to the I/O thread."""

    def __init__(self, send: Callable[[list[OutgoingFrames]], None]) -> None:
        self._send = send
        self._pending: dict[int, _GatewayFrames] = {}  # by gateway

    def add_frame(self, gateway: int, frame: FromEngine) -> None:
        self._for(gateway).frames.append(encode(frame))

    def add_ending(self, gateway: int, ending: Finished | Refused) -> None:
        """The last frame of its handle."""
        own = self._for(gateway)
        own.frames.append(encode(ending))
        own.ended.append(ending.handle)

    def drop_gateway(self, gateway: int) -> None:
        """Discard the frames for a gateway that disconnected."""
        self._pending.pop(gateway, None)

    def post(self) -> None:
        """Send the frames of all gateways in one batch."""
        if self._pending:
            batch = [OutgoingFrames(gateway, b"".join(own.frames), own.ended) for gateway, own in self._pending.items()]
            self._pending = {}
            self._send(batch)

    def _for(self, gateway: int) -> _GatewayFrames:
        own = self._pending.get(gateway)
        if own is None:
            own = self._pending[gateway] = _GatewayFrames()
        return own
