"""A gateway whose people sign in at a provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from support.people.providers import CLIENT_ID, CLIENT_SECRET, MockProvider, NodeProvider
from support.stack import Stack

GROUPS = {"gpu-owners": "owner", "gpu-operators": "operator", "money": "finance", "viewers": "read_only"}
OF_ACME = "acme-admins"  # the group of the tenant acme's admins
CALLBACK = "/v1/admin/session/callback"


def start_people_stack(stack: Stack, provider: NodeProvider | MockProvider, **settings: Any) -> None:
    """Start the provider, the engine and the gateway. `settings` override those of [oidc]."""
    stack.prepare()
    section = oidc_settings(stack, provider) | settings
    mappings = [{"group": group, "role": role} for group, role in GROUPS.items()]
    mappings.append({"group": OF_ACME, "role": "tenant_admin", "tenant": "acme"})
    lines = ["", "[oidc]"]
    lines += [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in section.items()]
    for mapping in mappings:
        lines += ["[[oidc.groups]]", *(f'{name} = "{value}"' for name, value in mapping.items())]
    with stack.config_file.open("a") as file:
        file.write("\n".join(lines) + "\n")
    provider.start(stack.url)
    stack.start_engine()
    stack.start_gateway()
    stack.wait_ready()
    stack.urls.append(stack.url)


def oidc_settings(stack: Stack, provider: NodeProvider | MockProvider) -> dict[str, Any]:
    secret: Path = stack.directory / "client.secret"
    secret.write_text(CLIENT_SECRET + "\n")
    return {
        "issuer": provider.issuer,
        "name": "Example SSO",
        "client_id": CLIENT_ID,
        "client_secret_file": str(secret),
        "public_url": stack.url,
        "scopes": ["openid", "profile", "email", "groups"]
        if isinstance(provider, NodeProvider)
        else ["openid", "profile", "email"],
    }
