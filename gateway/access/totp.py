"""One-time passwords (TOTP, RFC 6238) of admin keys that sign in to the console: SHA-1, six digits, 30 seconds, as
authenticator apps have them.

The keys of a rotation share one secret, which is encrypted in the database. A code is accepted once. Recovery codes are
stored as SHA-256, and each works once. The admin API by key needs no code.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b32encode
from typing import Literal
from urllib.parse import quote

import sqlalchemy as sa

from billing import revision
from billing.clock import SECOND, database_now
from billing.errors import AlreadyExists, RowNotFound
from gateway.access import audit_log
from gateway.access.callers import Caller
from gateway.access.sealed_values import SealedValues
from gateway.config.server_secrets import ServerSecrets
from gateway.tables import key_totp

STEP_S = 30
DIGITS = 6
STEPS_AROUND = 1  # a code of the step before or after is accepted: clocks differ
SECRET_BYTES = 20  # RFC 4226, section 4: 160 bits
RECOVERY_CODES = 10
RECOVERY_BYTES = 10
CODE_CHARS_MAX = 40
# After WRONG_MAX wrong codes in a row no code is accepted for REFUSED_S. A thief of the key has 60 guesses an hour, and
# three codes in a million are right: that takes 230 days on average, and each guess is in the log.
WRONG_MAX = 5
REFUSED_S = 300

CodeResult = Literal["accepted", "wrong", "refused"]


def code_at(secret: bytes, counter: int) -> str:
    """The code of one time step (RFC 4226, section 5.3)."""
    digest = hmac.new(secret, counter.to_bytes(8, "big"), hashlib.sha1).digest()
    offset = digest[-1] & 15
    number = int.from_bytes(digest[offset : offset + 4], "big") & 0x7FFFFFFF
    return f"{number % 10**DIGITS:0{DIGITS}}"


class KeyTotp:
    """Functions over a connection of a write transaction, but for `is_required`."""

    def __init__(self, server_secrets: ServerSecrets) -> None:
        self._seal = SealedValues(server_secrets, "TOTP secrets, format 1")

    def is_required(self, connection: sa.Connection, caller: Caller) -> bool:
        """Whether a sign-in with this key needs a code."""
        row = _row(connection, caller)
        return row is not None and row.confirmed_at is not None

    def enrol(self, connection: sa.Connection, caller: Caller, request_id: str) -> tuple[str, str]:
        """A new secret in base32, and its URI for an app. No code is required before `confirm`. Raises AlreadyExists
        for a key that has a confirmed secret."""
        revision.lock(connection)
        if self.is_required(connection, caller):
            raise AlreadyExists("this key has a one-time password already: remove it first")
        secret = secrets.token_bytes(SECRET_BYTES)
        connection.execute(sa.delete(key_totp).where(key_totp.c.key_id == caller.first_key_id))
        values = {
            "key_id": caller.first_key_id,
            "secret": self._seal.seal(secret, caller.first_key_id),
            "created_at": database_now(connection),
            "confirmed_at": None,
            "last_counter": 0,
            "recovery_hashes": [],
            "wrong_codes": 0,
            "refused_until": 0,
        }
        connection.execute(sa.insert(key_totp).values(values))
        _record(connection, "totp.enrol", caller, request_id)
        shown = b32encode(secret).decode()
        label = quote(f"Laneway:{caller.key_id}")
        return shown, f"otpauth://totp/{label}?secret={shown}&issuer=Laneway&digits={DIGITS}&period={STEP_S}"

    def confirm(
        self, connection: sa.Connection, caller: Caller, code: str, request_id: str
    ) -> tuple[CodeResult, list[str]]:
        """From an accepted code on, sign-ins need a code. Returns the recovery codes, which are not stored. Raises
        RowNotFound without a secret, AlreadyExists for a confirmed one."""
        if self.is_required(connection, caller):
            raise AlreadyExists("this key's one-time password is confirmed already")
        result = self.check(connection, caller, code, request_id)
        if result != "accepted":
            return result, []
        codes = [b32encode(secrets.token_bytes(RECOVERY_BYTES)).decode().lower() for _ in range(RECOVERY_CODES)]
        _change(
            connection,
            caller,
            confirmed_at=database_now(connection),
            recovery_hashes=[_hash(recovery) for recovery in codes],
        )
        _record(connection, "totp.confirm", caller, request_id)
        return result, codes

    def check(self, connection: sa.Connection, caller: Caller, code: str, request_id: str) -> CodeResult:
        """Check a code or a recovery code, and note it, so that it is not accepted again. "refused": too many wrong
        codes were entered before. Raises RowNotFound; ValueUnreadable."""
        revision.lock(connection)  # before any row, as every write that the audit log records
        row = _row(connection, caller, for_update=True)
        if row is None:
            raise RowNotFound("this key has no one-time password")
        now = database_now(connection)
        if now < row.refused_until:
            return "refused"
        code = "".join(code.split()).lower()
        secret = self._seal.unseal(bytes(row.secret), caller.first_key_id)
        current = now // (STEP_S * SECOND)
        for counter in range(current - STEPS_AROUND, current + STEPS_AROUND + 1):
            if counter > row.last_counter and hmac.compare_digest(code_at(secret, counter).encode(), code.encode()):
                _change(connection, caller, last_counter=counter, wrong_codes=0)
                return "accepted"
        if _hash(code) in row.recovery_hashes:
            left = [one for one in row.recovery_hashes if one != _hash(code)]
            _change(connection, caller, recovery_hashes=left, wrong_codes=0)
            _record(connection, "totp.recovery", caller, request_id, left=len(left))
            return "accepted"
        wrong = row.wrong_codes + 1
        refused = {"wrong_codes": 0, "refused_until": now + REFUSED_S * SECOND} if wrong >= WRONG_MAX else {}
        _change(connection, caller, **{"wrong_codes": wrong, **refused})
        return "wrong"

    def remove(self, connection: sa.Connection, caller: Caller, code: str, request_id: str) -> CodeResult:
        """Remove the secret, after an accepted code. Raises RowNotFound."""
        if (result := self.check(connection, caller, code, request_id)) == "accepted":
            connection.execute(sa.delete(key_totp).where(key_totp.c.key_id == caller.first_key_id))
            _record(connection, "totp.remove", caller, request_id)
        return result


def _row(connection: sa.Connection, caller: Caller, *, for_update: bool = False) -> sa.Row[tuple[object, ...]] | None:
    query = sa.select(key_totp).where(key_totp.c.key_id == caller.first_key_id)
    return connection.execute(query.with_for_update() if for_update else query).one_or_none()


def _change(connection: sa.Connection, caller: Caller, **values: object) -> None:
    connection.execute(sa.update(key_totp).where(key_totp.c.key_id == caller.first_key_id).values(values))


def _hash(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def _record(connection: sa.Connection, action: str, caller: Caller, request_id: str, **after: int) -> None:
    audit_log.add_audit_line(
        connection,
        actor=caller.key_id,
        action=action,
        object_id=caller.key_id,
        tenant_id=caller.tenant_id,
        after=after or None,
        request_id=request_id,
    )
