"""Speaks OpenID Connect with the provider of [oidc]: its metadata and keys, the exchange of codes and refresh tokens,
and the claims of ID tokens, logout tokens and the userinfo endpoint.

No token, code or secret is in a log line or in an error's message. Nothing here knows sessions or rows. Importing this
module takes 0.3 s, so it is imported only where a provider is configured.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.oidc.core import CodeIDToken
from httpx2 import HTTPError, InvalidURL, Response
from joserfc import jws, jwt
from joserfc.errors import ClaimError, JoseError, MissingClaimError
from joserfc.jwk import Key, KeySet

from gateway.access.people import PROVIDER_SID_CHARS_MAX, SUBJECT_CHARS_MAX, Identity
from gateway.access.provider_answers import (
    LOGOUT_TOKEN_S,
    SKEW_S,
    TOKEN_CHARS_MAX,
    ProviderTokens,
    ProviderUnreachable,
    SignedLogout,
    SignedSignInRefused,
    SignInRefused,
    TokensRefused,
)
from gateway.config.sign_in import OidcSection, is_safe

# Signatures that only the provider can make. `none` and HMAC are never accepted.
ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519",
)  # fmt: skip
METADATA_S = 3600.0  # metadata and keys are read again after this time
# At the start of a sign-in after this time: a person must not be sent to a provider that is unreachable.
FRESH_S = 2.0
# A token with an unknown key causes one more read of the keys, at most once in this time: a flood of forged tokens
# causes no flood of requests.
KEYS_AGAIN_S = 60.0
FAILED_S = 2.0  # after a failure no request is sent to the provider for this time
GROUPS_MAX = 10_000
LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"
_WRONG_CLAIM = {
    "iss": "was issued by another provider (iss)",
    "aud": "is for another client (aud)",
    "azp": "is for another client (azp)",
    "nonce": "belongs to another sign-in (nonce)",
    "exp": "has expired (exp)",
    "iat": "is dated in the future (iat); compare the clocks of this host and of the provider",
    "nbf": "is not valid yet (nbf)",
    "at_hash": "belongs to another access token (at_hash)",
    "sub": "names another person (sub)",
}

_log = logging.getLogger(__name__)


class ProviderMetadata(msgspec.Struct, frozen=True):
    """The fields that Laneway reads of a provider's metadata (OpenID Connect Discovery 1.0)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False


class OidcProvider:
    """The provider of one configuration. The client secret is read when it is needed, so a new one needs no restart."""

    def __init__(self, section: OidcSection, clock: Callable[[], float] = time.monotonic) -> None:
        self.section = section
        self._clock = clock
        self._reading = asyncio.Lock()
        self._metadata: ProviderMetadata | None = None
        self._keys: list[Key] = []
        self._read_at = 0.0
        self._keys_again_at = -KEYS_AGAIN_S  # the last read of the keys for an unknown one
        self._failure: ProviderUnreachable | None = None
        self._failed_at = 0.0
        self._tls: ssl.SSLContext | None = None

    @property
    def shown_name(self) -> str:
        return f"{self.section.name} ({self.section.issuer})"

    async def authorization_url(self, state: str, nonce: str, verifier: str) -> str:
        """The provider's URL to which the gateway redirects a browser for a sign-in. Raises ProviderUnreachable."""
        metadata = await self._read_metadata(FRESH_S)
        async with self._client(metadata) as client:
            url, _ = client.create_authorization_url(
                metadata.authorization_endpoint, state=state, nonce=nonce, code_verifier=verifier
            )
        return str(url)

    async def exchange_code(
        self, code: str, *, verifier: str, nonce: str, issuer: str | None
    ) -> tuple[Identity, ProviderTokens]:
        """The identity of a person who signed in. `issuer`: the parameter `iss` of the provider's answer (RFC 9207).
        Raises SignInRefused, ProviderUnreachable."""
        metadata = await self._read_metadata()
        if issuer is None and metadata.authorization_response_iss_parameter_supported:
            raise SignInRefused("The provider's answer does not name its issuer (iss).")
        if issuer is not None and issuer != metadata.issuer:
            raise SignInRefused("The answer is from another provider (iss).")
        token = await self._fetch(metadata, code=code, code_verifier=verifier)
        if "id_token" not in token:
            raise SignInRefused("The provider sent no ID token.")
        claims = await self._id_claims(token, nonce)
        tokens = _tokens(token, None)
        try:
            return await self._identity(metadata, claims, tokens), tokens
        except SignInRefused as error:
            raise SignedSignInRefused(str(error)) from None

    async def check_again(
        self, tokens: ProviderTokens, subject: str, on_renewed: Callable[[ProviderTokens], Awaitable[None]]
    ) -> tuple[Identity, ProviderTokens]:
        """The current identity of the person of these tokens: by a refresh, else by the userinfo endpoint.
        `on_renewed`: called at once with a new refresh token, since the rest of the check may fail. Raises
        TokensRefused, SignInRefused, ProviderUnreachable."""
        metadata = await self._read_metadata()
        claims: Mapping[str, Any] = {}
        if tokens.refresh is not None:
            token = await self._fetch(metadata, refresh_token=tokens.refresh)
            used, tokens = tokens.refresh, _tokens(token, tokens.refresh)
            if tokens.refresh != used:
                await on_renewed(tokens)
            if "id_token" in token:
                claims = await self._id_claims(token, None)
                if claims["sub"] != subject:
                    raise SignInRefused("The ID token names another person (sub).")
        elif metadata.userinfo_endpoint is None:
            raise TokensRefused("The provider gave no refresh token, and has no userinfo endpoint.")
        identity = await self._identity(metadata, {**claims, "sub": subject}, tokens, again=True)
        return identity, tokens

    async def read_logout_token(self, token: str) -> SignedLogout:
        """OpenID Connect Back-Channel Logout 1.0, section 2.6. Raises SignInRefused, ProviderUnreachable."""
        found = await self._verified(token, "logout token")
        claims = found.claims
        _validate(_LogoutToken(claims, found.header, self._options(), self._params()), "logout token")
        if "nonce" in claims or not isinstance(claims.get("events"), dict) or LOGOUT_EVENT not in claims["events"]:
            raise SignInRefused("The token is no logout token.")
        if claims["iat"] < time.time() - LOGOUT_TOKEN_S:
            raise SignInRefused(f"The logout token is older than {LOGOUT_TOKEN_S} s (iat).")
        subject, sid, token_id = (claims.get(name) for name in ("sub", "sid", "jti"))
        if not isinstance(token_id, str) or not all(isinstance(text, str | None) for text in (subject, sid)):
            raise SignInRefused("The logout token's jti, sub or sid is missing or no text.")
        _check_sid(sid)
        if subject is None and sid is None:
            raise SignInRefused("The logout token names neither a person (sub) nor a session (sid).")
        return SignedLogout(token_id, subject, sid)

    # ---- the identity

    async def _identity(
        self, metadata: ProviderMetadata, claims: Mapping[str, Any], tokens: ProviderTokens, *, again: bool = False
    ) -> Identity:
        """The identity from the ID token, and from the userinfo endpoint if the ID token lacks claims, or `again`."""
        claim = self.section.groups_claim
        if metadata.userinfo_endpoint is not None and (again or claim not in claims):
            found = await self._userinfo(metadata, metadata.userinfo_endpoint, tokens, str(claims["sub"]))
            claims = {**claims, **found}
        groups = claims.get(claim, ())
        if again and claim not in claims:
            raise TokensRefused(f"The provider says no {claim!r} when it is asked again.")
        if isinstance(groups, str):
            groups = (groups,)
        if not isinstance(groups, list | tuple) or not all(isinstance(group, str) for group in groups):
            raise SignInRefused(f"The claim {claim!r} is no list of texts.")
        if len(groups) > GROUPS_MAX:
            raise SignInRefused(f"The claim {claim!r} has {len(groups)} groups; the limit is {GROUPS_MAX}.")
        subject = str(claims["sub"])
        if not 1 <= len(subject) <= SUBJECT_CHARS_MAX or not subject.isprintable():
            raise SignInRefused(f"The subject (sub) is not 1 to {SUBJECT_CHARS_MAX} printable characters.")
        provider_sid = _text(claims, "sid")
        _check_sid(provider_sid)
        return Identity(
            issuer=metadata.issuer,
            subject=subject,
            name=_text(claims, "name") or _text(claims, "preferred_username"),
            email=_text(claims, "email"),
            groups=tuple(groups),
            provider_sid=provider_sid,
        )

    async def _userinfo(
        self, metadata: ProviderMetadata, endpoint: str, tokens: ProviderTokens, subject: str
    ) -> Mapping[str, Any]:
        """Raises TokensRefused, SignInRefused, ProviderUnreachable."""
        headers = {"authorization": f"Bearer {tokens.access}", "accept": "application/json"}
        async with self._asking(), self._client(metadata) as client:
            answer = await client.request("GET", endpoint, headers=headers, withhold_token=True)
        if answer.status_code in (400, 401, 403):
            raise TokensRefused("The provider does not accept the session's access token any more.")
        found = self._json(answer, "userinfo endpoint")
        if found.get("sub") != subject:
            raise SignInRefused("The userinfo endpoint names another person (sub).")
        return found

    async def _id_claims(self, token: Mapping[str, Any], nonce: str | None) -> Mapping[str, Any]:
        """The claims of a valid ID token (OpenID Connect Core 1.0, section 3.1.3.7). Raises SignInRefused,
        ProviderUnreachable."""
        found = await self._verified(str(token["id_token"]), "ID token")
        params = {**self._params(), "nonce": nonce, "access_token": token.get("access_token")}
        _validate(CodeIDToken(found.claims, found.header, self._options(), params), "ID token")
        return found.claims

    def _options(self) -> Any:
        return {
            "iss": {"essential": True, "value": self.section.issuer},
            "aud": {"essential": True, "value": self.section.client_id},
        }

    def _params(self) -> dict[str, Any]:
        return {"client_id": self.section.client_id}

    async def _verified(self, token: str, what: str) -> jwt.Token:
        """The token, whose signature is the provider's. Raises SignInRefused, ProviderUnreachable."""
        if len(token) > TOKEN_CHARS_MAX:
            raise SignInRefused(f"The {what} is over the limit of {TOKEN_CHARS_MAX} characters.")
        try:
            header = jws.extract_compact(token.encode()).headers()
        except (JoseError, ValueError, UnicodeEncodeError) as error:
            raise SignInRefused(f"The {what} is no signed token.") from error
        if header.get("alg") not in ALGORITHMS:
            raise SignInRefused(f"The {what} is signed with {str(header.get('alg'))[:20]!r}, which is not accepted.")
        await self._read_metadata()
        if (found := _decoded(token, header, self._keys)) is None and await self._read_keys_again():
            found = _decoded(token, header, self._keys)
        if found is None:
            raise SignInRefused(f"The {what} is not signed with a key of the provider.")
        return found

    # ---- requests

    async def _read_metadata(self, age_s_max: float = METADATA_S) -> ProviderMetadata:
        """ProviderMetadata and keys, from the cache for `age_s_max`. Raises ProviderUnreachable."""
        async with self._reading:
            if self._metadata is not None and self._clock() - self._read_at < age_s_max:
                return self._metadata
            if self._failure is not None and self._clock() - self._failed_at < FAILED_S:
                raise ProviderUnreachable(str(self._failure))
            try:
                url = f"{self.section.issuer.rstrip('/')}/.well-known/openid-configuration"
                metadata = self._checked_metadata(await self._get(url, "metadata"))
                self._keys = await self._get_keys(metadata)
            except ProviderUnreachable as error:
                self._failure, self._failed_at = error, self._clock()
                raise
            self._metadata, self._read_at, self._failure = metadata, self._clock(), None
            return metadata

    async def _read_keys_again(self) -> bool:
        """Read the keys for a token whose key is unknown. False: they were read again a short time ago."""
        async with self._reading:
            if self._metadata is None or self._clock() - self._keys_again_at < KEYS_AGAIN_S:
                return False
            self._keys_again_at = self._clock()
            self._keys = await self._get_keys(self._metadata)
            _log.info("oidc.keys_read_again", extra={"fields": {"issuer": self.section.issuer}})
            return True

    async def _get_keys(self, metadata: ProviderMetadata) -> list[Key]:
        found = await self._get(metadata.jwks_uri, "keys")
        listed = found.get("keys")
        keys: list[Key] = []
        for one in listed if isinstance(listed, list) else ():
            # A provider may publish keys of types that joserfc does not know, beside the keys in use.
            with contextlib.suppress(JoseError, ValueError, KeyError, TypeError, AttributeError):
                if one.get("kty") != "oct" and one.get("use", "sig") == "sig":
                    keys += KeySet.import_key_set({"keys": [one]}).keys
        return keys

    def _checked_metadata(self, found: dict[str, Any]) -> ProviderMetadata:
        try:
            metadata = msgspec.convert(found, ProviderMetadata)
        except msgspec.ValidationError as error:
            raise self._unreachable(f"its metadata is not valid: {error}") from error
        if metadata.issuer != self.section.issuer:
            raise self._unreachable(f"its metadata is of the issuer {metadata.issuer[:300]!r}")
        # An https provider must not send Laneway to http services of this host.
        scheme = urlsplit(self.section.issuer).scheme
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"):
            url = getattr(metadata, name)
            if url is not None and not (is_safe(url) and urlsplit(url).scheme in (scheme, "https")):
                raise self._unreachable(f"its {name} is not https")
        return metadata

    async def _get(self, url: str, what: str) -> dict[str, Any]:
        async with self._asking(), self._client(None) as client:
            return self._json(await client.request("GET", url, withhold_token=True), what)

    async def _fetch(self, metadata: ProviderMetadata, **grant: Any) -> Mapping[str, Any]:
        """One request to the token endpoint, by a code or a refresh token. Raises TokensRefused, SignInRefused,
        ProviderUnreachable."""
        refresh = grant.pop("refresh_token", None)
        async with self._asking(), self._client(metadata) as client:
            try:
                if refresh is None:
                    token = await client.fetch_token(metadata.token_endpoint, **grant)
                else:
                    client.token = {"refresh_token": refresh}
                    token = await client.refresh_token(metadata.token_endpoint, refresh_token=refresh)
            except OAuthError as error:
                code = str(error.error)[:60]
                if code in ("invalid_client", "unauthorized_client"):
                    raise self._unreachable(f"it refuses Laneway's client_id or client secret ({code})") from None
                kind = TokensRefused if refresh is not None else SignInRefused
                raise kind(f"The provider refused the sign-in: {code}.") from None
        if not isinstance(token.get("access_token"), str):
            raise SignInRefused("The provider sent no access token.")
        return dict(token)

    @contextlib.asynccontextmanager
    async def _client(self, metadata: ProviderMetadata | None) -> AsyncIterator[AsyncOAuth2Client]:
        section = self.section
        secret = None
        if metadata is not None and section.client_secret_file:
            secret = await asyncio.to_thread(self._read_secret)
        if self._tls is None:
            # Reading the host's authorities takes 50 ms.
            cafile = section.authority_file or None
            self._tls = await asyncio.to_thread(lambda: ssl.create_default_context(cafile=cafile))
        async with AsyncOAuth2Client(
            client_id=section.client_id,
            client_secret=secret,
            token_endpoint_auth_method=_auth_method(metadata, secret),
            scope=" ".join(section.scopes),
            redirect_uri=section.redirect_uri,
            code_challenge_method="S256",
            timeout=section.timeout_s,
            follow_redirects=False,
            verify=self._tls,
        ) as client:
            yield client

    def _read_secret(self) -> str:
        try:
            return Path(self.section.client_secret_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            raise self._unreachable(f"oidc.client_secret_file cannot be read: {why}") from None

    @contextlib.asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        """Names the cause of a failed request, without the request's contents. Raises ProviderUnreachable."""
        try:
            async with asyncio.timeout(self.section.timeout_s):
                yield
        except TimeoutError:
            raise self._unreachable(f"no answer within {self.section.timeout_s:g} s") from None
        except ssl.SSLError as error:
            raise self._unreachable(f"TLS failed ({error.reason})") from None
        except (HTTPError, InvalidURL, OSError, ValueError) as error:
            raise self._unreachable(f"the request failed ({type(error).__name__})") from None

    def _json(self, answer: Response, what: str) -> dict[str, Any]:
        if answer.status_code != 200:
            raise self._unreachable(f"its {what} answered {answer.status_code}")
        try:
            found = msgspec.json.decode(answer.content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            found = None
        if not isinstance(found, dict):
            raise self._unreachable(f"its {what} is no JSON object")
        return found

    def _unreachable(self, why: str) -> ProviderUnreachable:
        return ProviderUnreachable(f"{self.shown_name} cannot be used for a sign-in now: {why}.")


class _LogoutToken(CodeIDToken):  # type: ignore[misc]  # authlib has no types
    """Has the claims of an ID token except for `sub` and the claims of a sign-in."""

    ESSENTIAL_CLAIMS = ("iss", "aud", "iat", "exp", "jti")


def _decoded(token: str, header: Mapping[str, Any], keys: list[Key]) -> jwt.Token | None:
    """The token, if one of the keys signed it. A token without a key's name (kid) may be any key's."""
    named = header.get("kid")
    for key in keys:
        if named is None or key.kid == named:
            with contextlib.suppress(JoseError, ValueError):
                return jwt.decode(token, key, algorithms=ALGORITHMS)
    return None


def _validate(claims: CodeIDToken, what: str) -> None:
    """The claims of a token whose signature is the provider's. Raises SignedSignInRefused."""
    try:
        claims.validate(leeway=SKEW_S)
    except ClaimError as error:
        reason = _WRONG_CLAIM.get(error.claim, f"has a wrong claim {error.claim!r}")
        if isinstance(error, MissingClaimError):
            reason = f"lacks the claim {error.claim!r}"
        raise SignedSignInRefused(f"The {what} {reason}.") from None


def _auth_method(metadata: ProviderMetadata | None, secret: str | None) -> str:
    """How the client authenticates at the token endpoint."""
    if secret is None:
        return "none"
    methods = () if metadata is None else metadata.token_endpoint_auth_methods_supported
    only_post = "client_secret_basic" not in methods and "client_secret_post" in methods
    return "client_secret_post" if only_post else "client_secret_basic"


def _tokens(token: Mapping[str, Any], refresh: str | None) -> ProviderTokens:
    """`refresh`: the refresh token in use, which remains valid unless the answer has a new one."""
    lasts = token.get("expires_in")
    expires_at = time.time() + float(lasts) if isinstance(lasts, int | float) else 0.0
    given = token.get("refresh_token")
    return ProviderTokens(str(token["access_token"]), given if isinstance(given, str) else refresh, expires_at)


def _check_sid(sid: str | None) -> None:
    """Raises SignInRefused."""
    if sid is not None and not (len(sid) <= PROVIDER_SID_CHARS_MAX and sid.isprintable()):
        limit = PROVIDER_SID_CHARS_MAX
        raise SignInRefused(f"The provider's session (sid) is not at most {limit} printable characters.")


def _text(claims: Mapping[str, Any], name: str) -> str | None:
    value = claims.get(name)
    return value if isinstance(value, str) and value else None
