"""The Django application portal: what each process does once it has loaded the settings."""

import os
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks

from portal.settings.plain_connections import plain_connections


class PortalConfig(AppConfig):
    name = "portal"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Load the Celery application, so that a hint sent from any process goes to our broker."""
        from portal import celery  # noqa: F401

        start_reporting(settings.SENTRY_DSN)
        checks.register(connections_without_tls, checks.Tags.security, deploy=True)


def connections_without_tls(**options: Any) -> list[checks.CheckMessage]:
    """For `manage.py check --deploy`: each address of another host that is reached without TLS."""
    found = plain_connections(settings.ENV, os.environ)
    return [checks.Info(text, id="portal.I001") for text in found]


def start_reporting(dsn: str | None) -> bool:
    """Report unexpected errors of requests and tasks, without personal or job data. Returns whether reporting is on.

    Without SENTRY_DSN the SDK is not imported.
    """
    if dsn is None:
        return False
    import sentry_sdk

    sentry_sdk.init(
        dsn=dsn,
        send_default_pii=False,
        include_local_variables=False,  # they hold specs, tokens and log lines
        max_request_body_size="never",
        traces_sample_rate=0,
    )
    return True
