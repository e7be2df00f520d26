from django.apps import AppConfig
from django.conf import settings


class PortalConfig(AppConfig):
    name = "portal"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Load the Celery application, so that a hint sent from any process goes to our broker."""
        from portal import celery  # noqa: F401
        from portal.reporting import start_reporting

        start_reporting(settings.SENTRY_DSN)
