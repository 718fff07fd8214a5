"""The hash chain of the audit log: each line's hash is over its canonical JSON and the hash before it, so that a line
that is altered, deleted or moved breaks every later hash. Signed checkpoints prove how far the chain once reached: they
reveal a cut tail.

Writers append under the lock of the row `audit_head`, so positions have no gap on any database. A line of a process of
an older version has no hash; `chain_unhashed` adds it later. The contents of a line (`before`, `after`) are hashed with
a separate salt: an erasure deletes contents and salt, and the chain still holds.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from billing.clock import SECOND, database_now
from gateway.config.server_secrets import ServerSecrets
from gateway.tables import audit_chain, audit_checkpoints, audit_head, audit_log, erasures

SALT_BYTES = 16
READ_ROWS = 1000
# A process of an older version may commit a line after lines whose ids are up to LATE_IDS_MAX higher.
LATE_IDS_MAX = 1000
# A checkpoint is made when one of the two is reached.
CHECKPOINT_S = 3600
CHECKPOINT_LINES = 1000
_PURPOSE = b"laneway: checkpoints of the audit log, format 1"
# In this order in the canonical JSON's object, which is sorted; a new column of the log is not added to it.
_HASHED = ("id", "at", "actor", "action", "object_id", "request_id", "tenant_id")

_LOCK_HEAD = sa.select(audit_head).with_for_update()


class AuditCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The chain's hash at a position. `at` in microseconds UTC; `signer`: the Ed25519 public key, hex. `pruned`: lines
    up to here may be deleted. `pruned_to`: lines up to there were deleted at that moment."""

    position: int
    pruned: bool
    pruned_to: int
    hash: str
    at: int
    signer: str
    signature: str

    @property
    def signed(self) -> bytes:
        """The signed bytes."""
        return f"{self.position} {int(self.pruned)} {self.pruned_to} {self.hash} {self.at}".encode()

    def is_signed(self) -> bool:
        """Whether the signature is that of `signer`."""
        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.signer))
            key.verify(bytes.fromhex(self.signature), self.signed)
        except (InvalidSignature, ValueError):
            return False
        return True


class AuditFinding(msgspec.Struct, frozen=True):
    """The first place where the chain does not hold. `entry_id` None: there is no such line any more."""

    position: int
    entry_id: int | None
    reason: str


class VerifiedChain(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `verify_chain`. `pruned_to`: lines up to this position were deleted by retention. `unhashed`: lines
    of an older version that are not in the chain yet. `foreign`: checkpoints of a secret that is not known, whose
    hashes were compared and whose signers were not."""

    lines: int
    position: int
    pruned_to: int
    erased: int
    unhashed: int
    checkpoints: int
    foreign: int
    finding: AuditFinding | None


class CheckpointSigner:
    """Signs with a key derived from the current server secret, and knows the keys of both secrets of a rotation."""

    def __init__(self, secrets: ServerSecrets) -> None:
        keys = [Ed25519PrivateKey.from_private_bytes(seed) for seed in secrets.derive_keys(_PURPOSE)]
        self._key = keys[0]
        self.known = [key.public_key().public_bytes_raw().hex() for key in keys]

    def sign(
        self, *, position: int, hash_: str, at: int, pruned: bool = False, pruned_to: int | None = None
    ) -> AuditCheckpoint:
        """`pruned_to` None: `position`."""
        made = AuditCheckpoint(
            position=position,
            pruned=pruned,
            pruned_to=position if pruned_to is None else pruned_to,
            hash=hash_,
            at=at,
            signer=self.known[0],
            signature="",
        )
        return msgspec.structs.replace(made, signature=self._key.sign(made.signed).hex())


def canonical(value: object) -> bytes:
    """JSON with sorted keys and no white space, the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def lock_head(connection: sa.Connection) -> sa.Row[Any]:
    """Lock the chain's end until the transaction ends."""
    return connection.execute(_LOCK_HEAD).one()


def append_to_chain(connection: sa.Connection, head: sa.Row[Any], lines: Sequence[sa.Row[Any]]) -> None:
    """Add lines of the audit log after `head`, from `lock_head`."""
    position, newest = head.position, head.hash
    rows = []
    for line in lines:
        salt = os.urandom(SALT_BYTES)
        content = _content(salt, line)
        position, newest = position + 1, _hash(newest, position + 1, line, content)
        rows.append({"position": position, "entry_id": line.id, "salt": salt, "content": content, "hash": newest})
    if rows:
        connection.execute(sa.insert(audit_chain), rows)
        connection.execute(sa.update(audit_head).values(position=position, hash=newest))


def chain_unhashed(connection: sa.Connection, limit: int = READ_ROWS) -> int:
    """Add at most `limit` lines without a hash to the chain, by their ids. Returns their number."""
    head = lock_head(connection)
    lines = connection.execute(_unhashed(head.chained_to).order_by(audit_log.c.id).limit(limit)).all()
    append_to_chain(connection, head, lines)
    if len(lines) < limit:
        newest = connection.execute(sa.select(sa.func.coalesce(sa.func.max(audit_log.c.id), 0))).scalar_one()
        chained_to = max(head.chained_to, int(newest) - LATE_IDS_MAX)
        if chained_to > head.chained_to:
            connection.execute(sa.update(audit_head).values(chained_to=chained_to))
    return len(lines)


def make_checkpoint(
    connection: sa.Connection, signer: CheckpointSigner, *, at_once: bool = False
) -> AuditCheckpoint | None:
    """Sign the chain's end and store the checkpoint, if it is due or `at_once`; None: nothing was added to the chain
    since the last one, or it is not due."""
    head, now = lock_head(connection), database_now(connection)
    query = sa.select(audit_checkpoints).where(~audit_checkpoints.c.pruned)
    last = connection.execute(query.order_by(audit_checkpoints.c.position.desc()).limit(1)).one_or_none()
    position, at = (0, 0) if last is None else (last.position, last.at)
    is_due = at_once or head.position - position >= CHECKPOINT_LINES or now - at >= CHECKPOINT_S * SECOND
    if head.position <= position or not is_due:
        return None
    made = signer.sign(position=head.position, hash_=head.hash, at=now, pruned_to=pruned_to(connection))
    connection.execute(sa.insert(audit_checkpoints).values(msgspec.structs.asdict(made)))
    return made


def prune(connection: sa.Connection, signer: CheckpointSigner, before: int, limit: int = READ_ROWS) -> int:
    """Delete at most `limit` of the oldest lines, all of a moment earlier than `before` (microseconds UTC), behind a
    signed checkpoint. Returns their number."""
    head, start = lock_head(connection), pruned_to(connection)
    join = audit_chain.join(audit_log, audit_log.c.id == audit_chain.c.entry_id)
    query = sa.select(audit_chain, *[audit_log.c.at])
    # The last line is not deleted: SQLite would give its id to the next line.
    query = query.select_from(join).where(audit_chain.c.position > start, audit_chain.c.position < head.position)
    oldest = connection.execute(query.order_by(audit_chain.c.position).limit(limit))
    old = list(itertools.takewhile(lambda row: row.at < before, oldest))
    if not old:
        return 0
    upto = old[-1]
    made = signer.sign(position=upto.position, pruned=True, hash_=upto.hash, at=database_now(connection))
    connection.execute(sa.insert(audit_checkpoints).values(msgspec.structs.asdict(made)))
    connection.execute(sa.delete(audit_log).where(audit_log.c.id.in_([row.entry_id for row in old])))
    connection.execute(sa.delete(audit_chain).where(audit_chain.c.position <= upto.position))
    return len(old)


def pruned_to(connection: sa.Connection) -> int:
    query = sa.select(sa.func.coalesce(sa.func.max(audit_checkpoints.c.position), 0)).where(audit_checkpoints.c.pruned)
    return int(connection.execute(query).scalar_one())


def erase_contents(connection: sa.Connection, tenant_id: str) -> None:
    """Delete what changed (`before`, `after`) from the lines of an erased tenant. Lines without a hash are added to the
    chain before."""
    while chain_unhashed(connection):
        pass
    of_tenant = sa.select(audit_log.c.id).where(audit_log.c.tenant_id == tenant_id)
    connection.execute(sa.update(audit_chain).where(audit_chain.c.entry_id.in_(of_tenant)).values(salt=None))
    nothing = {"before": sa.null(), "after": sa.null()}
    connection.execute(sa.update(audit_log).where(audit_log.c.tenant_id == tenant_id).values(nothing))


def verify_chain(
    connection: sa.Connection, known: Sequence[str], more: Sequence[AuditCheckpoint] = ()
) -> VerifiedChain:
    """Compare every line with the chain, and the chain with its checkpoints and `more` of them, kept elsewhere.
    `known`: the signers of this deployment; none: signatures are not required. Call it in one unchanging view."""
    stored = [AuditCheckpoint(**row._mapping) for row in connection.execute(sa.select(audit_checkpoints))]
    checkpoints = sorted({*stored, *more}, key=lambda checkpoint: checkpoint.position)
    head = connection.execute(sa.select(audit_head)).one()
    start = max((c for c in checkpoints if c.pruned), key=lambda c: c.position, default=None)
    pruned = 0 if start is None else start.position
    position, newest = pruned, "0" * 64 if start is None else start.hash
    lines = erased = 0
    finding = _bad_signature(checkpoints, known, pruned)
    hashes = {position: newest}
    wanted = {checkpoint.position for checkpoint in checkpoints}
    if finding is None:
        erased_tenants = set(connection.execute(sa.select(erasures.c.tenant_id)).scalars())
        for row in _chain(connection, position):
            finding = _compare(row, position, newest, erased_tenants)
            if finding is not None:
                break
            position, newest = row.position, row.hash
            lines, erased = lines + 1, erased + (row.salt is None)
            if position in wanted:
                hashes[position] = newest
    if finding is None:
        finding = _end_of(checkpoints, hashes, pruned, position, newest, head)
    unhashed = connection.execute(sa.select(sa.func.count()).select_from(_unhashed(0).subquery())).scalar_one()
    return VerifiedChain(
        lines=lines,
        position=position,
        pruned_to=pruned,
        erased=erased,
        unhashed=int(unhashed),
        checkpoints=len(checkpoints),
        foreign=sum(bool(known) and checkpoint.signer not in known for checkpoint in checkpoints),
        finding=finding,
    )


def _bad_signature(checkpoints: Sequence[AuditCheckpoint], known: Sequence[str], start: int) -> AuditFinding | None:
    """`start`: the position up to which lines are deleted."""
    for checkpoint in checkpoints:
        if not checkpoint.is_signed():
            return AuditFinding(checkpoint.position, None, "the checkpoint's signature does not match")
    if not known or not checkpoints:
        return None
    own = max((made for made in checkpoints if made.signer in known), key=lambda made: made.position, default=None)
    newest = checkpoints[-1].position
    if own is None or own.position < newest:
        return AuditFinding(newest, None, "the newest checkpoint is not signed with this server's secret")
    # A secret that was dropped may have signed the deletion; then the newest checkpoint of this secret records it.
    allowed = max(made.pruned_to for made in checkpoints if made.signer in known)
    if start > allowed:
        return AuditFinding(allowed + 1, None, "lines were deleted, and this server's secret has not signed it")
    return None


def _compare(row: sa.Row[Any], position: int, newest: str, erased_tenants: set[str]) -> AuditFinding | None:
    if row.position != position + 1:
        return AuditFinding(position + 1, None, "the entry is missing: it was deleted")
    if row.id is None:
        return AuditFinding(row.position, row.entry_id, "the entry is missing: it was deleted")
    if row.salt is None and row.tenant_id not in erased_tenants:
        return AuditFinding(row.position, row.entry_id, "its contents are missing, and its tenant was never erased")
    if row.salt is not None and _content(row.salt, row) != row.content:
        return AuditFinding(row.position, row.entry_id, "the entry was altered: before or after")
    if _hash(newest, row.position, row, row.content) != row.hash:
        return AuditFinding(row.position, row.entry_id, "the entry was altered or moved")
    return None


def _end_of(
    checkpoints: Sequence[AuditCheckpoint],
    hashes: dict[int, str],
    pruned: int,
    position: int,
    newest: str,
    head: sa.Row[Any],
) -> AuditFinding | None:
    for checkpoint in checkpoints:
        if checkpoint.position > position:
            return AuditFinding(
                position + 1, None, f"the tail was cut: a checkpoint signed position {checkpoint.position}"
            )
        if checkpoint.position >= pruned and hashes.get(checkpoint.position) != checkpoint.hash:
            return AuditFinding(checkpoint.position, None, "the chain differs from its checkpoint: it was written anew")
    if (head.position, head.hash) != (position, newest):
        return AuditFinding(position + 1, None, f"the tail was cut: the chain's end is position {head.position}")
    return None


def _chain(connection: sa.Connection, after: int) -> Iterator[sa.Row[Any]]:
    columns = [audit_log.c[name] for name in (*_HASHED, "before", "after")]
    join = audit_chain.outerjoin(audit_log, audit_log.c.id == audit_chain.c.entry_id)
    query = sa.select(audit_chain, *columns).select_from(join).order_by(audit_chain.c.position).limit(READ_ROWS)
    while rows := connection.execute(query.where(audit_chain.c.position > after)).all():
        yield from rows
        after = rows[-1].position


def _unhashed(after: int) -> sa.Select[Any]:
    chained = sa.select(audit_chain.c.entry_id).where(audit_chain.c.entry_id == audit_log.c.id)
    return sa.select(audit_log).where(audit_log.c.id > after, ~chained.exists())


def _content(salt: bytes, line: sa.Row[Any]) -> str:
    # A line is hashed as it is read, because the database may return a value in another form than it was written.
    return hmac.digest(salt, canonical({"before": line.before, "after": line.after}), "sha256").hex()


def _hash(before: str, position: int, line: sa.Row[Any], content: str) -> str:
    fields = {name: getattr(line, name) for name in _HASHED}
    return hashlib.sha256(
        canonical({**fields, "content": content, "position": position, "previous": before})
    ).hexdigest()
