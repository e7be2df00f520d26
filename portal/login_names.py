"""Names that logins try, as django-axes counts them: people type passwords into the field of the name, so it is not
stored as typed."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

from django.http import HttpRequest
from django.utils.crypto import salted_hmac


def counted(request: HttpRequest, credentials: Mapping[str, str] | None = None) -> str | None:
    """AXES_USERNAME_CALLABLE: of the name that is tried; None if there is none."""
    name = (credentials or request.POST).get("username")
    return None if name is None else hashed(name)


def hashed(name: str) -> str:
    """64 hexadecimal digits, the same for each form of a name that the login form takes for one; without the
    installation's key no name is found by trying."""
    plain = unicodedata.normalize("NFKC", name.strip())
    return salted_hmac("portal.login_names", plain, algorithm="sha256").hexdigest()
