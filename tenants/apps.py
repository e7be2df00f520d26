from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "tenants"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Let each login keep in its session where it came from."""
        from django.contrib.auth.signals import user_logged_in

        from tenants.sessions import note_beginning

        user_logged_in.connect(note_beginning, dispatch_uid="tenants.sessions")
