"""The Django application portal: what each process does once it has loaded the settings."""

from django.apps import AppConfig
from django.conf import settings


class PortalConfig(AppConfig):
    name = "portal"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Load the Celery application, so that a hint sent from any process goes to our broker."""
        from portal import celery  # noqa: F401

        start_reporting(settings.SENTRY_DSN)


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
