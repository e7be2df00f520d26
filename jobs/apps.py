from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Let shares end with memberships and roles: the package below knows nothing of shares."""
        from django.db.models.signals import post_delete

        from tenants.signals import rights_lost

        post_delete.connect(_end_shares, sender="tenants.Membership", dispatch_uid="jobs.services.sharing")
        rights_lost.connect(_end_lost_shares, dispatch_uid="jobs.services.sharing")


def _end_shares(**signal: object) -> None:
    from jobs.services.sharing import end_with_membership  # late: few processes end memberships

    end_with_membership(**signal)  # type: ignore[arg-type]  # as Django sends a deletion


def _end_lost_shares(**signal: object) -> None:
    from jobs.services.sharing import end_with_rights  # late, as above

    end_with_rights(**signal)  # type: ignore[arg-type]  # as tenants.signals sends it
