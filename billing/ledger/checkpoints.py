"""Checkpoints: tokens of a request in flight that its caller can already read from the database.

A checkpoint is written in the transaction that makes the tokens readable. If the gateway dies, the Auditor settles the
request's hold with them: the caller pays for the tokens that can be read, and the others are lost.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.ledger.messages import GATEWAY_DEAD, Expire, Settlement

DELETED_AT_ONCE = 500

_holds = tables.holds
_checkpoints = tables.checkpoints
_usage = tables.usage


class Checkpoint(msgspec.Struct, frozen=True):
    """The usage of a request so far. `prompt_tokens` includes `cached_tokens`. `engines`: as in Settlement; it may also
    count tokens after the `completion_tokens`, which the caller cannot read yet."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    engines: dict[str, int] = {}


def record_checkpoint(connection: sa.Connection, checkpoint: Checkpoint) -> bool:
    """Replace the request's checkpoint. False: the hold has ended without its gateway, so no more tokens may become
    readable; the caller rolls back or writes none. The hold remains locked until the transaction ends."""
    hold = sa.select(_holds.c.state, _holds.c.ending).where(_holds.c.request_id == checkpoint.request_id)
    row = connection.execute(hold.with_for_update(read=True)).one_or_none()
    if row is None or row.state not in ("held", "settled") or row.ending == GATEWAY_DEAD:
        return False
    values = msgspec.structs.asdict(checkpoint) | {"engines": msgspec.json.encode(checkpoint.engines).decode()}
    which = _checkpoints.c.request_id == checkpoint.request_id
    if not connection.execute(sa.update(_checkpoints).where(which).values(values)).rowcount:
        connection.execute(sa.insert(_checkpoints).values(values))
    return True


def usage_so_far(connection: sa.Connection, request_id: str) -> Checkpoint | None:
    """The billed usage of a request; while its hold is open, its checkpoint. None: it has neither."""
    columns = (_usage.c.prompt_tokens, _usage.c.cached_tokens, _usage.c.completion_tokens)
    billed = sa.select(_usage.c.request_id, *columns).where(_usage.c.request_id == request_id)
    if (row := connection.execute(billed).one_or_none()) is not None:
        return Checkpoint(*row)
    found = _read(connection, [request_id])
    return found[0] if found else None


def endings_of_dead(connection: sa.Connection, request_ids: Sequence[str]) -> list[Settlement | Expire]:
    """Endings of the holds of dead gateways: settled with their checkpoints, or expired."""
    found = {checkpoint.request_id: checkpoint for checkpoint in _read(connection, request_ids)}
    return [_settlement(found[id_]) if id_ in found else Expire(id_) for id_ in request_ids]


def delete_ended(connection: sa.Connection) -> int:
    """Delete up to DELETED_AT_ONCE checkpoints of requests whose hold has ended. Returns their number."""
    open_ = sa.exists().where(_holds.c.request_id == _checkpoints.c.request_id, _holds.c.state == "held")
    ids = list(connection.execute(sa.select(_checkpoints.c.request_id).where(~open_).limit(DELETED_AT_ONCE)).scalars())
    if ids:
        connection.execute(sa.delete(_checkpoints).where(_checkpoints.c.request_id.in_(ids)))
    return len(ids)


def _read(connection: sa.Connection, request_ids: Sequence[str]) -> list[Checkpoint]:
    query = sa.select(_checkpoints).where(_checkpoints.c.request_id.in_(request_ids))
    rows = [row._asdict() for row in connection.execute(query)]
    return [Checkpoint(**row | {"engines": msgspec.json.decode(row["engines"] or "{}")}) for row in rows]


def _settlement(checkpoint: Checkpoint) -> Settlement:
    return Settlement(
        request_id=checkpoint.request_id,
        prompt_tokens=checkpoint.prompt_tokens,
        cached_tokens=checkpoint.cached_tokens,
        completion_tokens=checkpoint.completion_tokens,
        made_tokens=checkpoint.completion_tokens,
        ending=GATEWAY_DEAD,
        engines=_first_tokens(checkpoint.engines, checkpoint.completion_tokens),
    )


def _first_tokens(engines: dict[str, int], tokens: int) -> dict[str, int]:
    """The engines of the first `tokens` of these; empty if they are fewer."""
    first: dict[str, int] = {}
    for epoch, made in engines.items():
        first[epoch] = min(made, tokens)
        tokens -= first[epoch]
    return {} if tokens else first
