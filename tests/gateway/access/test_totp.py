"""One-time passwords of admin keys that sign in to the console."""

from __future__ import annotations

from base64 import b32decode
from typing import Any

import pytest
import sqlalchemy as sa

from billing.clock import SECOND, database_now
from gateway.access import keys
from gateway.access.keys import MadeKey
from gateway.access.totp import REFUSED_S, STEP_S, WRONG_MAX, code_at
from gateway.tables import audit_log, key_totp
from support.gateway.session_client import SESSION, Browser, sign_in
from support.stack import Stack

TOTP = f"{SESSION}/totp"


@pytest.mark.parametrize(
    ("moment", "code"),
    [
        (59, "94287082"), (1111111109, "07081804"), (1111111111, "14050471"), (1234567890, "89005924"),
        (2000000000, "69279037"), (20000000000, "65353130"),
    ],
)  # fmt: skip
def test_the_codes_of_rfc_6238(moment: int, code: str) -> None:
    """Appendix B has eight digits, of which six are ours."""
    assert code_at(b"12345678901234567890", moment // STEP_S) == code[-6:]


@pytest.fixture
def key(stack: Stack) -> MadeKey:
    return stack.write(lambda c: keys.create_key(c, tenant_id=None, name="with an app", kind="admin"))


class App:
    """An authenticator app, by the database's clock. `next_code` is of a later time step at each call."""

    def __init__(self, stack: Stack, key: MadeKey, browser: Browser) -> None:
        answer = browser.post(TOTP)
        assert answer.status_code == 200, answer.text
        shown = answer.json()
        assert f"secret={shown['secret']}&issuer=Laneway" in shown["uri"]
        self.stack, self.key, self.secret = stack, key, b32decode(shown["secret"])

    def next_code(self) -> str:
        """As if the codes before were of earlier time steps."""
        self.change(last_counter=0)
        return code_at(self.secret, self.stack.read(database_now) // (STEP_S * SECOND))

    def change(self, **values: Any) -> None:
        update = sa.update(key_totp).where(key_totp.c.key_id == self.key.key.shares_as).values(values)
        self.stack.write(lambda c: c.execute(update))


def enrolled(stack: Stack, key: MadeKey) -> tuple[App, list[str]]:
    browser = sign_in(stack, key)
    app = App(stack, key, browser)
    assert sign_in(stack, key), "an unconfirmed secret is not asked for"
    answer = browser.post(f"{TOTP}/confirm", json={"code": app.next_code()})
    assert answer.status_code == 200, answer.text
    return app, answer.json()["recovery_codes"]


def attempt(stack: Stack, key: MadeKey, code: str | None = None) -> tuple[int, str | None]:
    body = {"key": key.secret} | ({} if code is None else {"code": code})
    answer = Browser(stack.url).post(SESSION, json=body)
    return answer.status_code, None if answer.status_code == 200 else answer.json()["error"]["code"]


def test_a_confirmed_key_signs_in_with_a_code_that_works_once(stack: Stack, key: MadeKey) -> None:
    app, _ = enrolled(stack, key)
    assert attempt(stack, key) == (401, "totp_required")
    code = app.next_code()
    assert attempt(stack, key, f"{code[:3]} {code[3:]}") == (200, None)
    assert attempt(stack, key, code) == (401, "totp_invalid"), "a code is accepted once"
    headers = {"Authorization": f"Bearer {key.secret}"}
    assert Browser(stack.url).get("/v1/admin/tenants", headers=headers).status_code == 200, "the API needs none"


def test_a_recovery_code_works_once(stack: Stack, key: MadeKey) -> None:
    _, codes = enrolled(stack, key)
    assert len(set(codes)) == 10
    assert attempt(stack, key, codes[3].upper()) == (200, None)
    assert attempt(stack, key, codes[3]) == (401, "totp_invalid")
    assert attempt(stack, key, codes[4]) == (200, None)
    query = sa.select(audit_log).where(audit_log.c.actor == key.key.id).order_by(audit_log.c.id)
    lines = [line for line in stack.read(lambda c: list(c.execute(query))) if line.action.startswith("totp.")]
    assert [line.action for line in lines] == ["totp.enrol", "totp.confirm", "totp.recovery", "totp.recovery"]
    assert lines[-1].after == {"left": 8}
    row = stack.read(lambda c: c.execute(sa.select(key_totp).where(key_totp.c.key_id == key.key.id)).one())
    assert not any(code in str(row) for code in codes)


def test_wrong_codes_are_limited_whatever_the_address(stack: Stack, key: MadeKey) -> None:
    app, codes = enrolled(stack, key)
    right = {code_at(app.secret, stack.read(database_now) // (STEP_S * SECOND) + step) for step in range(-1, 3)}
    wrong = next(f"{number:06}" for number in range(10) if f"{number:06}" not in right)
    assert [attempt(stack, key, wrong) for _ in range(WRONG_MAX)] == [(401, "totp_invalid")] * WRONG_MAX
    refused = sa.select(audit_log.c.after).where(
        audit_log.c.actor == key.key.id, audit_log.c.action == "session.refuse"
    )
    found = stack.read(lambda c: c.execute(refused).scalars().all())
    assert found == [{"reason": "totp_invalid"}], "one line a minute for a key, and none for the request for the code"
    assert attempt(stack, key, app.next_code()) == (429, "rate_limit_exceeded"), "a right one too"
    assert attempt(stack, key, codes[0]) == (429, "rate_limit_exceeded")
    app.change(refused_until=stack.read(database_now) - REFUSED_S * SECOND)
    assert attempt(stack, key, app.next_code()) == (200, None)


def test_a_rotated_key_needs_the_same_codes(stack: Stack, key: MadeKey) -> None:
    app, _ = enrolled(stack, key)
    rotated = stack.write(lambda c: keys.rotate(c, key.key.id, overlap_s=0))
    assert attempt(stack, rotated) == (401, "totp_required")
    assert attempt(stack, rotated, app.next_code()) == (200, None)


def test_an_app_is_removed_with_a_code(stack: Stack, key: MadeKey) -> None:
    app, codes = enrolled(stack, key)
    browser = Browser(stack.url)
    answer = browser.post(SESSION, json={"key": key.secret, "code": app.next_code()})
    browser.headers["x-csrf-token"] = answer.json()["csrf_token"]
    assert browser.post(TOTP).status_code == 409, "a thief of a session cannot replace it"
    assert browser.post(f"{TOTP}/confirm", json={"code": codes[0]}).status_code == 409
    assert browser.post(f"{TOTP}/remove", json={"code": "000000x"}).json()["error"]["code"] == "totp_invalid"
    assert browser.post(f"{TOTP}/remove", json={"code": app.next_code()}).status_code == 204
    assert browser.post(f"{TOTP}/remove", json={"code": app.next_code()}).status_code == 404
    assert attempt(stack, key) == (200, None)


def test_a_change_needs_the_csrf_token(stack: Stack, key: MadeKey) -> None:
    browser = sign_in(stack, key)
    del browser.headers["x-csrf-token"]
    assert browser.post(TOTP).json()["error"]["code"] == "csrf_token_invalid"


def test_the_secret_is_encrypted(stack: Stack, key: MadeKey) -> None:
    app, codes = enrolled(stack, key)
    row = stack.read(lambda c: c.execute(sa.select(key_totp).where(key_totp.c.key_id == key.key.id)).one())
    assert app.secret not in bytes(row.secret)
    log = stack.log_file.read_text()
    assert not any(code in log for code in codes)
