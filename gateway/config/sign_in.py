"""The section [oidc] of laneway.toml: the OpenID Connect provider at which people sign in to the console, and the role
of each of its groups.

laneway.toml explains each setting. Nothing here connects to the provider.
"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from msgspec import Meta

from engine.protocol.config import ConfigSection as Section

TENANT_ADMIN = "tenant_admin"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
Url = Annotated[str, Meta(max_length=300)]


class GroupSection(Section, frozen=True, kw_only=True):
    """A group of the provider's, and the role of its members."""

    group: Annotated[str, Meta(min_length=1, max_length=300)]
    role: Literal["owner", "operator", "finance", "tenant_admin", "read_only"]
    tenant: Annotated[str, Meta(min_length=1, max_length=64)] | None = None  # slug, of a tenant_admin

    def __post_init__(self) -> None:
        if (self.role == TENANT_ADMIN) != (self.tenant is not None):
            needs = "needs a tenant" if self.tenant is None else "has no tenant: it concerns all of them"
            raise ValueError(f"the role {self.role} of the group {self.group!r} {needs}")


class OidcSection(Section, frozen=True, kw_only=True):
    """The provider, Laneway's registration there, and how long a session is valid. An empty `issuer`: only admin keys
    sign in."""

    issuer: Url = ""
    name: Annotated[str, Meta(min_length=1, max_length=60)] = "single sign-on"  # on the button of the sign-in page
    client_id: Annotated[str, Meta(max_length=300)] = ""
    client_secret_file: str = ""  # empty: a public client, which PKCE alone protects
    public_url: Url = ""  # of the gateways, as browsers see it
    authority_file: str = ""  # of the provider's certificate; empty: the host's authorities
    scopes: Annotated[tuple[Annotated[str, Meta(pattern=r"^[\x21-\x7e]{1,100}$")], ...], Meta(max_length=32)] = (
        "openid", "profile", "email",
    )  # fmt: skip
    groups_claim: Annotated[str, Meta(min_length=1, max_length=200)] = "groups"
    groups: Annotated[tuple[GroupSection, ...], Meta(max_length=256)] = ()
    recheck_s: Annotated[float, Meta(ge=1, le=86_400)] = 900.0  # between two checks of a session at the provider
    unreachable_s: Annotated[float, Meta(ge=0, le=604_800)] = 3600.0  # a session outlives its last check by this more
    session_s: Annotated[float, Meta(ge=60, le=604_800)] = 43_200.0
    timeout_s: Annotated[float, Meta(ge=0.1, le=60)] = 5.0  # of one request to the provider

    def __post_init__(self) -> None:
        if not self.issuer:
            return
        for field in ("issuer", "public_url"):
            _check_url(field, getattr(self, field))
        if not self.client_id:
            raise ValueError("client_id must be set too: the provider gives it when Laneway is registered")
        if not self.groups:
            raise ValueError("groups must name at least one group: without one nobody can sign in")
        if "openid" not in self.scopes:
            raise ValueError(f"scopes is {list(self.scopes)}; it must contain 'openid'")
        names = [mapping.group for mapping in self.groups]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"groups: the group {name!r} occurs {names.count(name)} times")

    @property
    def redirect_uri(self) -> str:
        """Where the provider sends a browser after the sign-in. The client's registration must have the same URL."""
        return f"{self.public_url.rstrip('/')}/v1/admin/session/callback"


def is_safe(url: str) -> bool:
    """Whether `url` is https, or http on this host's loopback interface."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    return host is not None and (parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK))


def _check_url(field: str, url: str) -> None:
    """Raises ValueError."""
    parts = urlsplit(url) if is_safe(url) else SplitResult("", "", "", "", "")
    if not parts.scheme or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(
            f"{field} is {url!r}; it must be an https:// URL without a query (http:// on the loopback interface alone)"
        )
