"""The possible answers of an OpenID Connect provider: tokens for a session, a logout, a refusal, or nothing."""

from __future__ import annotations

import msgspec

SKEW_S = 60  # clocks may differ by this much
TOKEN_CHARS_MAX = 64 * 1024
CHECK_REQUESTS_MAX = 5  # of one check of a session: metadata, keys, refresh, keys again, userinfo
LOGOUT_TOKEN_S = 3600  # an older logout token is refused


class ProviderUnreachable(Exception):
    """The provider did not answer, or not as OpenID Connect demands; the message names it and the cause."""


class SignInRefused(Exception):
    """The provider refused, or its answer is not accepted. The message is shown to the person. `reason`: in the metric;
    anyone can cause this one without an account at the provider."""

    reason = "not_signed"


class SignedSignInRefused(SignInRefused):
    """The provider has signed an ID token, and the sign-in is refused: the audit log has a line of it."""

    reason = "invalid_token"


class SignInStateUsed(SignedSignInRefused):
    reason = "state_used"


class TokensRefused(SignInRefused):
    """The provider does not accept the tokens of a session any more: the session ends."""


class ProviderTokens(msgspec.Struct, frozen=True):
    """The tokens with which a session is checked at the provider. `expires_at`: of the access token, Unix seconds; 0:
    unknown."""

    access: str
    refresh: str | None
    expires_at: float


class SignedLogout(msgspec.Struct, frozen=True):
    """The contents of a valid logout token: `subject`, `provider_sid` or both are given."""

    token_id: str
    subject: str | None
    provider_sid: str | None
