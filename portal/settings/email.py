"""Django's e-mail settings from one URL."""

from urllib.parse import unquote, urlsplit


def email_settings(url: str | None) -> dict[str, object]:
    """smtp://user:password@host:587 starts TLS, smtps://…:465 speaks it from the first byte; none prints mails."""
    if url is None:
        return {"EMAIL_BACKEND": "django.core.mail.backends.console.EmailBackend"}
    parts = urlsplit(url)
    direct = parts.scheme == "smtps"
    return {
        "EMAIL_BACKEND": "django.core.mail.backends.smtp.EmailBackend",
        "EMAIL_HOST": parts.hostname,
        "EMAIL_PORT": parts.port or (465 if direct else 587),
        "EMAIL_HOST_USER": unquote(parts.username or ""),
        "EMAIL_HOST_PASSWORD": unquote(parts.password or ""),
        "EMAIL_USE_SSL": direct,
        "EMAIL_USE_TLS": not direct and bool(parts.username),
        "EMAIL_TIMEOUT": 10,
    }
