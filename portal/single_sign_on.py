"""OpenID Connect, the protocol: django-allauth's, with the checks of a token that it leaves out.

Loaded where people sign in and nowhere else: it brings `requests` and `jwt` (docs/adr/0019-quick-imports.md).

What comes out is an Identity, which portal.pages.single_sign_on turns into a session or a refusal. Django-allauth's own
accounts, pages and sessions are not used.
"""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import asdict, dataclass
from threading import BoundedSemaphore
from typing import Any

import jwt
from allauth.core import context
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter, get_adapter
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialLogin, SocialToken
from allauth.socialaccount.providers import registry
from allauth.socialaccount.providers.base.constants import AuthError, AuthProcess
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from requests import JSONDecodeError, RequestException

from portal.provider_connections import BoundedAdapter
from tenants.services.identities import PROVIDER, Identity

CALLBACK = "/login/sso/callback"
ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
"""With a key that only the provider has. None, and the shared secret of HS256, prove nothing here."""
RSA_BITS_MIN = 2048
SKEW_S = 60
"""By how much the clocks of the two machines may differ."""
AT_ONCE = 8
"""Requests of one web process that wait for the provider: one that hangs takes no more threads."""

ODD = (KeyError, ValueError, AttributeError, TypeError, OverflowError, RecursionError)
"""What JSON that is valid, but not what the protocol says, leads to in django-allauth and here."""

_free = BoundedSemaphore(AT_ONCE)


@dataclass(frozen=True)
class Found:
    """Who the provider says that this is, where they wanted to go, and when it asked them, in seconds since 1970 and
    not after now; None: it has not said. again: as in begin."""

    identity: Identity
    next_url: str
    asked_at: float | None
    again: Asked | None


class Refused(Exception):
    """No identity came of it. Text: why, for the log; it repeats nothing that the provider sent."""

    reason = "refused"


class Unreachable(Refused):
    reason = "provider_unreachable"


class Busy(Refused):
    reason = "provider_slow"


class Canceled(Refused):
    reason = "canceled"


class StateLost(Refused):
    reason = "state_lost"


class ClocksDiffer(Refused):
    reason = "clocks_differ"


class TokenInvalid(OAuth2Error):
    """The provider's token is not what it has to be. Text: what is wrong, without the token."""


@dataclass(frozen=True)
class Asked:
    """A user who is signed in, and confirms that it is them. user: their id; at: since when, in seconds since 1970."""

    user: int
    at: float


def begin(request: HttpRequest, next_url: str, *, again: Asked | None = None) -> HttpResponseBase:
    """The redirect to the provider, with state, nonce and PKCE kept in this browser's session. Raises Refused.

    again: let it ask who this is, also of a person whom it knows.
    """
    nonce = secrets.token_urlsafe(16)
    asked = {"nonce": nonce}
    if settings.LUTHIER_OIDC_ACR:
        asked["acr_values"] = " ".join(settings.LUTHIER_OIDC_ACR)
    if settings.LUTHIER_OIDC_MAX_AGE_S is not None:
        asked["max_age"] = str(settings.LUTHIER_OIDC_MAX_AGE_S)
    if again:  # max_age also obliges the provider to say when it did (OpenID Connect Core, 3.1.2.1)
        asked |= {"prompt": "login", "max_age": "0"}

    def go() -> HttpResponseBase:
        provider: Any = get_adapter().get_provider(request, PROVIDER)
        response: HttpResponseBase = provider.redirect(
            request,
            AuthProcess.LOGIN,
            next_url,
            nonce=nonce,
            again=asdict(again) if again else None,
            auth_params=asked,
            scope=None,
        )
        return response

    return _guarded(request, go)


def finish(request: HttpRequest) -> Found:
    """What came of what was begun. Raises Refused."""

    def go() -> HttpResponseBase:
        view = OAuth2CallbackView.adapter_view(Protocol(request, PROVIDER))
        response: HttpResponseBase = view(request)
        return response

    response = _guarded(request, go)
    assert isinstance(response, _Found), "the adapter answers every callback"
    return response.found


def _guarded(request: HttpRequest, go: Any) -> HttpResponseBase:
    if not _free.acquire(blocking=False):
        raise Busy
    try:
        with context.request_context(request):
            response: HttpResponseBase = go()
    except (RequestException, OAuth2Error, *ODD) as error:
        raise _refusal(error) from error
    finally:
        _free.release()
    if isinstance(response, _Failed):
        raise response.refusal
    return response


def _refusal(error: BaseException) -> Refused:
    """What to say. An answer of the provider may hold a token or a code, so its text goes nowhere."""
    if isinstance(error, JSONDecodeError):
        return Refused("an answer of the provider is not JSON")
    if isinstance(error, RequestException):
        return Unreachable(type(error).__name__)
    if isinstance(error.__cause__, jwt.ImmatureSignatureError | jwt.ExpiredSignatureError):
        return ClocksDiffer(type(error.__cause__).__name__)
    if isinstance(error, TokenInvalid):
        return Refused(str(error))
    if isinstance(error, ODD):
        return Refused(f"an answer of the provider is not as the protocol says: {type(error).__name__}")
    return Refused("the provider did not exchange the code for a token")


class _Found(HttpResponse):
    """Ends django-allauth's flow with a verified identity."""

    def __init__(self, found: Found) -> None:
        super().__init__()
        self.found = found


class _Failed(HttpResponse):
    """Ends django-allauth's flow with a refusal."""

    def __init__(self, refusal: Refused) -> None:
        super().__init__()
        self.refusal = refusal


class Protocol(OpenIDConnectOAuth2Adapter):
    """The provider's documents and tokens, each verified."""

    @property
    def openid_config(self) -> dict[str, Any]:
        """The discovery document; one of another issuer is refused (OpenID Connect Discovery, 4.3)."""
        found: dict[str, Any] = super().openid_config
        if found.get("issuer") != settings.LUTHIER_OIDC_ISSUER:
            raise TokenInvalid("the discovery document names another issuer than LUTHIER_OIDC_ISSUER")
        return found

    def get_callback_url(self, request: HttpRequest, app: SocialApp) -> str:
        """From the setting: a request's Host may be any that ALLOWED_HOSTS lets in."""
        return str(settings.LUTHIER_PUBLIC_URL) + CALLBACK

    def complete_login(
        self, request: HttpRequest, app: SocialApp, token: SocialToken, **more: Any
    ) -> SocialLogin:
        """The claims of the ID token, completed by those of userinfo if it is about the same person."""
        claims = self._decode_id_token(app, more["response"].get("id_token") or "")
        asked_at = _asked_at(claims)
        if "userinfo_endpoint" in self.openid_config:
            info = self._fetch_user_info(token.token)
            if info.get("sub") != claims["sub"]:
                raise TokenInvalid("userinfo is about another person than the ID token")
            # Of two documents, one might say whose address it is and the other that it is verified.
            pair = ("email", "email_verified")
            of = claims if all(name in claims for name in pair) else info
            claims = info | claims | {name: of.get(name) for name in pair}
        identity = Identity.from_claims(claims)
        account = SocialAccount(provider=PROVIDER, uid=identity.uid, extra_data=identity.stored)
        login = SocialLogin(account=account, provider=self.get_provider())
        login.identity, login.nonce, login.asked_at = identity, claims.get("nonce"), asked_at  # for Adapter
        return login

    def _decode_id_token(self, app: SocialApp, id_token: str) -> dict[str, Any]:
        """Its claims. Signature and times are verified, too: TLS alone would let a proxy in between sign people in."""
        try:
            header = jwt.get_unverified_header(id_token)
            if header.get("alg") not in ALGORITHMS:
                raise TokenInvalid("the ID token is not signed with a key of the provider")
            claims: dict[str, Any] = jwt.decode(
                id_token,
                self._key(header.get("kid")),
                algorithms=[header["alg"]],
                issuer=settings.LUTHIER_OIDC_ISSUER,
                audience=app.client_id,
                leeway=SKEW_S,
                options={"require": ["iss", "sub", "aud", "exp", "iat"]},
            )
        except jwt.PyJWTError as error:
            raise TokenInvalid(f"the ID token is not valid: {type(error).__name__}") from error
        if claims.get("azp", app.client_id) != app.client_id:
            raise TokenInvalid("the ID token is for another client")
        _require_strength(claims)
        return claims

    def _key(self, kid: str | None) -> jwt.PyJWK:
        """The key that signed, read now: a provider that rotates its keys needs nothing done here."""
        with get_adapter().get_requests_session() as session:
            response = session.get(self.openid_config["jwks_uri"])
            response.raise_for_status()
            keys = jwt.PyJWKSet.from_dict(response.json()).keys
        fitting = [key for key in keys if key.key_id == kid and key.public_key_use in (None, "sig")]
        if len(fitting) != 1:
            raise TokenInvalid("the ID token is signed with a key that the provider does not publish")
        if isinstance(fitting[0].key, RSAPublicKey) and fitting[0].key.key_size < RSA_BITS_MIN:
            raise TokenInvalid(f"the provider's RSA key has fewer than {RSA_BITS_MIN} bits")
        return fitting[0]


def _require_strength(claims: dict[str, Any]) -> None:
    """That the person has signed in at the provider as the settings ask, and recently enough.

    The provider was asked for both, and may do less: the request passed through the browser.
    """
    if settings.LUTHIER_OIDC_ACR and claims.get("acr") not in settings.LUTHIER_OIDC_ACR:
        raise TokenInvalid("the sign-in at the provider was none of LUTHIER_OIDC_ACR")
    longest, at = settings.LUTHIER_OIDC_MAX_AGE_S, _asked_at(claims)
    if longest is not None and (at is None or time.time() - at > longest + SKEW_S):
        raise TokenInvalid("the sign-in at the provider is older than LUTHIER_OIDC_MAX_AGE_S")


def _asked_at(claims: dict[str, Any]) -> float | None:
    at = claims.get("auth_time")
    if not isinstance(at, int | float) or isinstance(at, bool) or not math.isfinite(at):
        return None
    return min(float(at), time.time())


class Provider(OpenIDConnectProvider):
    """The provider of the settings."""

    oauth2_adapter_class = Protocol


class Adapter(DefaultSocialAccountAdapter):
    """Where django-allauth hands over: instead of signing in, with what it found."""

    def generate_state_param(self, state: dict[str, Any]) -> str:
        """What the provider sends back, of 128 random bits."""
        return secrets.token_urlsafe(16)

    def get_requests_session(self) -> Any:
        """One that follows no redirect: it would carry the client's secret wherever it points. No connection of it
        lasts for long."""
        session: Any = super().get_requests_session()
        session.get_redirect_target = lambda response: None
        for scheme in ("https://", "http://"):
            session.mount(scheme, BoundedAdapter())
        return session

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        found: Any = sociallogin
        if found.nonce is None or found.nonce != found.state.get("nonce"):
            raise ImmediateHttpResponse(_Failed(Refused("the ID token answers another login")))
        again = found.state.get("again")
        to = found.state.get("next") or ""
        result = Found(found.identity, to, found.asked_at, Asked(**again) if again else None)
        raise ImmediateHttpResponse(_Found(result))

    def on_authentication_error(
        self,
        request: HttpRequest,
        provider: Any,
        error: Any = None,
        exception: BaseException | None = None,
        extra_context: Any = None,
    ) -> None:
        if error == AuthError.CANCELLED:
            failed: Refused = Canceled()
        elif exception is not None:
            failed = _refusal(exception)
        elif "state_id" in (extra_context or {}):
            failed = StateLost()
        else:
            failed = Refused("the provider answered with an error")
        raise ImmediateHttpResponse(_Failed(failed))


registry.register(Provider)
