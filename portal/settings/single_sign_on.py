"""The OpenID provider by which people sign in: LUTHIER_OIDC_…, as django-allauth wants it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portal.settings.env import Environment

ISSUER, CLIENT_ID = "LUTHIER_OIDC_ISSUER", "LUTHIER_OIDC_CLIENT_ID"
SECRET, SECRET_FILE = "LUTHIER_OIDC_CLIENT_SECRET", "LUTHIER_OIDC_CLIENT_SECRET_FILE"  # their names


def problems(variables: Mapping[str, str]) -> list[str]:
    """What keeps the provider from being used: a variable that is not set, or a file without a secret."""
    return missing(variables) or _unreadable(variables.get(SECRET_FILE))


def missing(variables: Mapping[str, str]) -> list[str]:
    """What of the three that belong together is not set while another one is."""
    secret = SECRET if variables.get(SECRET) or not variables.get(SECRET_FILE) else SECRET_FILE
    needed = (ISSUER, CLIENT_ID, secret)
    given = [name for name in needed if variables.get(name)]
    return [f"{name}: not set: {given[0]} needs it" for name in needed if given and name not in given]


def providers(environment: Environment) -> dict[str, Any]:
    """Django-allauth's SOCIALACCOUNT_PROVIDERS: the one provider, or none."""
    if environment.luthier_oidc_issuer is None:
        return {}
    app = {
        "provider_id": "openid_connect",
        "name": environment.luthier_oidc_name,
        "client_id": environment.luthier_oidc_client_id,
        "secret": environment.luthier_oidc_client_secret
        or _read(environment.luthier_oidc_client_secret_file),
        "settings": {
            "server_url": environment.luthier_oidc_issuer.rstrip("/"),
            "scope": environment.luthier_oidc_scopes,
            "oauth_pkce_enabled": True,
        },
    }
    return {"openid_connect": {"APPS": [app]}}


def _unreadable(path: str | None) -> list[str]:
    try:
        empty = bool(path) and not _read(Path(str(path)))
    except (OSError, ValueError) as error:
        return [f"{SECRET_FILE}: cannot be read: {path}: {type(error).__name__}"]
    return [f"{SECRET_FILE}: is empty: {path}: write the client's secret to it"] if empty else []


def _read(path: Path | None) -> str:
    return path.read_text().strip() if path else ""
