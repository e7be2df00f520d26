"""/staff/: Django's admin for what has no page of its own: people, runtimes, and read-only looks at the rest.

For platform admins only. Anybody else who is signed in finds nothing there; no one is asked for a password here.
"""

from __future__ import annotations

from typing import Any

from axes.models import AccessAttempt, AccessFailureLog
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponseBase
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
from unfold.sites import UnfoldAdminSite

from jobs.models import Attempt, Job, JobEvent, Runtime, Worker
from tenants import access
from tenants.models import AuditEntry, Membership, Quota, QuotaChange, Tenant, User


class StaffSite(UnfoldAdminSite):
    """The admin behind the portal's own login."""

    site_url = "/admin-console/"

    def has_permission(self, request: HttpRequest) -> bool:
        return access.is_platform_admin(request.user)

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        """Every view of the site passes here; a signed-in stranger gets the answer of a missing page."""
        inner = super().admin_view(view, cacheable)

        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            _refuse_strangers(request)
            answer: HttpResponseBase = inner(request, *args, **kwargs)
            return answer

        return guarded

    def login(self, request: HttpRequest, extra_context: Any = None) -> HttpResponseBase:
        """One login for all: its lockout and its texts are the portal's."""
        _refuse_strangers(request)
        return redirect_to_login(request.GET.get("next", "/staff/"))

    def catch_all_view(self, request: HttpRequest, url: str) -> HttpResponseBase:
        raise Http404


def _refuse_strangers(request: HttpRequest) -> None:
    if request.user.is_authenticated and not access.is_platform_admin(request.user):
        raise Http404


site = StaffSite(name="admin")


class NeverDeleted(ModelAdmin):
    """What others refer to is switched off, not removed."""

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ReadOnly(NeverDeleted):
    """To look at. What may be changed has a page that checks it and writes it down."""

    show_full_result_count = False
    list_per_page = 50

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.admin_site.has_permission(request)


class PersonForm(UserChangeForm):
    """Keeps the installation from losing its last platform admin."""

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        was_admin = User.objects.filter(pk=self.instance.pk, is_active=True, is_superuser=True).exists()
        stays = cleaned.get("is_active") and cleaned.get("is_superuser")
        others = User.objects.filter(is_active=True, is_superuser=True).exclude(pk=self.instance.pk)
        if was_admin and not stays and not others.exists():
            raise ValidationError("This is the last platform admin. Make another user one first.")
        return cleaned


@admin.register(User, site=site)
class PersonAdmin(UserAdmin, NeverDeleted):
    """People and service accounts. Roles in tenants are the business of the admin console."""

    form = PersonForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ("username", "email", "is_active", "is_superuser", "is_service_account", "last_login")
    list_filter = ("is_active", "is_superuser", "is_service_account")
    readonly_fields = ("last_login", "date_joined", "is_service_account")
    filter_horizontal = ()
    fieldsets = (
        (None, {"fields": ("username", "password", "email", "first_name", "last_name")}),
        ("Platform", {"fields": ("is_active", "is_superuser", "is_service_account")}),
        ("Dates", {"fields": ("last_login", "date_joined")}),
    )

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        obj.is_staff = obj.is_superuser  # Django's own word for who may see its admin
        super().save_model(request, obj, form, change)


CHECKED = ("requirements", "python")


@admin.register(Runtime, site=site)
class RuntimeAdmin(NeverDeleted):
    """What jobs may name as framework; disabled ones take no new job."""

    list_display = ("slug", "title", "image", "enabled")
    list_filter = ("enabled",)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        # Packages are checked where they are changed: on the console's page of runtimes.
        return ("slug", *CHECKED) if obj else CHECKED


@admin.register(Job, site=site)
class JobAdmin(ReadOnly):
    """A job's row. Its state is moved by the lifecycle alone, its intent by the API and the portal."""

    list_display = ("id", "name", "tenant", "owner", "state", "intent", "attempt", "created_at")
    list_filter = ("state", "intent", "tenant")
    list_select_related = ("tenant", "owner")
    search_fields = ("id", "name")
    ordering = ("-id",)


@admin.register(JobEvent, site=site)
class JobEventAdmin(ReadOnly):
    list_display = ("job", "n", "at", "code", "from_state", "to_state", "reason", "source")
    list_filter = ("code", "source")
    search_fields = ("job__id",)
    ordering = ("-id",)


@admin.register(Attempt, site=site)
class AttemptAdmin(ReadOnly):
    list_display = ("job", "n", "cluster", "slot_type", "held", "opened_at", "closed_at", "outcome")
    list_filter = ("held", "cluster", "outcome")
    search_fields = ("job__id",)
    ordering = ("-id",)


@admin.register(Tenant, site=site)
class TenantAdmin(ReadOnly):
    list_display = ("slug", "name", "state", "jobs_limit", "jobs_used", "created_at")


@admin.register(Membership, site=site)
class MembershipAdmin(ReadOnly):
    list_display = ("user", "tenant", "role", "created_at")
    list_filter = ("role", "tenant")
    list_select_related = ("user", "tenant")


@admin.register(Quota, site=site)
class QuotaAdmin(ReadOnly):
    list_display = ("tenant", "gpu_type", "limit", "used")
    list_filter = ("gpu_type",)
    list_select_related = ("tenant",)


@admin.register(QuotaChange, site=site)
class QuotaChangeAdmin(ReadOnly):
    list_display = ("at", "tenant", "gpu_type", "old_limit", "new_limit", "actor", "reason")
    list_filter = ("gpu_type", "tenant")
    list_select_related = ("tenant", "actor")
    ordering = ("-id",)


@admin.register(AuditEntry, site=site)
class AuditEntryAdmin(ReadOnly):
    list_display = ("at", "actor", "action", "tenant", "target", "reason", "request_id")
    list_filter = ("action", "tenant")
    search_fields = ("target", "request_id")
    list_select_related = ("tenant", "actor")
    ordering = ("-id",)


@admin.register(Worker, site=site)
class WorkerAdmin(ReadOnly):
    list_display = ("name", "started_at", "seen_at")


@admin.register(LogEntry, site=site)
class LogEntryAdmin(ReadOnly):
    """What was changed in here."""

    list_display = ("action_time", "user", "content_type", "object_repr", "action_flag")
    list_select_related = ("user", "content_type")


@admin.register(AccessAttempt, AccessFailureLog, site=site)
class AttemptedLoginAdmin(ReadOnly):
    """Wrong passwords, for admins who look into a lockout."""

    list_display = ("username", "ip_address", "attempt_time")
