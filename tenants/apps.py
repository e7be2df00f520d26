from django.apps import AppConfig
from django.conf import settings


class TenantsConfig(AppConfig):
    name = "tenants"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Let each login keep in its session where it came from."""
        from django.contrib.auth.signals import user_logged_in

        from tenants.sessions import note_beginning

        user_logged_in.connect(note_beginning, dispatch_uid="tenants.sessions")
        if settings.LUTHIER_BREACHED_PASSWORDS is not None:
            from tenants.password_rules import keep_list

            keep_list()
