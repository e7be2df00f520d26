"""Django's e-mail settings from one URL."""

from urllib.parse import unquote, urlsplit


def email_settings(url: str | None) -> dict[str, object]:
    """smtp://user:password@host:587 starts TLS, smtps://…:465 speaks it from the first byte; none sends no mail."""
    if url is None:
        return {"LUTHIER_SENDS_MAIL": False, "EMAIL_BACKEND": "django.core.mail.backends.dummy.EmailBackend"}
    parts = urlsplit(url)
    direct = parts.scheme == "smtps"
    return {
        "LUTHIER_SENDS_MAIL": True,
        "EMAIL_BACKEND": "tenants.smtp.EmailBackend",
        "EMAIL_HOST": parts.hostname,
        "EMAIL_PORT": parts.port or (465 if direct else 587),
        "EMAIL_HOST_USER": unquote(parts.username or ""),
        "EMAIL_HOST_PASSWORD": unquote(parts.password or ""),
        "EMAIL_USE_SSL": direct,
        "EMAIL_USE_TLS": not direct and bool(parts.username),
        "EMAIL_TIMEOUT": 5,  # seconds for each step; tenants.smtp bounds their sum
    }
