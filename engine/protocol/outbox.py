"""What one round of the worker's loop has for each gateway: its frames in order, handed on together.

It must never know what a frame says, but that an ending is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.protocol.frames import Finished, FromEngine, Refused, encode
from engine.protocol.server import OutgoingFrames


@dataclass(slots=True)
class _GatewayFrames:
    frames: list[bytes] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)  # the handles whose ending is among them


class Outbox:
    """For the loop's thread; `send` hands a round to the I/O thread."""

    def __init__(self, send: Callable[[list[OutgoingFrames]], None]) -> None:
        self._send = send
        self._mail: dict[int, _GatewayFrames] = {}  # by gateway

    def add_frame(self, gateway: int, frame: FromEngine) -> None:
        self._for(gateway).frames.append(encode(frame))

    def add_ending(self, gateway: int, ending: Finished | Refused) -> None:
        """The last frame of its handle."""
        mail = self._for(gateway)
        mail.frames.append(encode(ending))
        mail.ended.append(ending.handle)

    def drop_gateway(self, gateway: int) -> None:
        """Discard the frames for a gateway that disconnected."""
        self._mail.pop(gateway, None)

    def post(self) -> None:
        """All gateways at once."""
        if self._mail:
            batch = [OutgoingFrames(gateway, b"".join(mail.frames), mail.ended) for gateway, mail in self._mail.items()]
            self._mail = {}
            self._send(batch)

    def _for(self, gateway: int) -> _GatewayFrames:
        mail = self._mail.get(gateway)
        if mail is None:
            mail = self._mail[gateway] = _GatewayFrames()
        return mail
