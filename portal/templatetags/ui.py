"""Small pieces of markup that every template uses; a built-in library, so no template loads it."""

from __future__ import annotations

import math
import re
from datetime import datetime
from functools import cache
from typing import Any

from django import template
from django.conf import settings
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from jobs import humanize
from portal.pages import form_once
from portal.pages.badges import phase_badge

register = template.Library()

LEAST_HOURS = 0.01
"""Less is said as less than this."""

ACTION_LABELS = {
    "checkpoint.download": "Downloaded a checkpoint",
    "code.download": "Downloaded code",
    "groups.change": "Changed the mapping of groups",
    "images.change": "Changed allowed images",
    "job.cancel": "Canceled a job",
    "job.delete": "Deleted a job",
    "job.edit": "Changed a job",
    "job.halt": "Halted a job",
    "job.checkpoint": "Asked a job to save",
    "job.list": "Viewed the list of jobs",
    "job.read": "Viewed a job",
    "job.resume": "Resumed a job",
    "job.share": "Shared a job",
    "job.unshare": "Unshared a job",
    "log.download": "Downloaded a log",
    "login.failure": "Failed to sign in",
    "login.one_time": "Presented a one-time password",
    "login.success": "Signed in",
    "logout.success": "Signed out",
    "member.accept": "Accepted a membership",
    "member.add": "Added a member",
    "member.change": "Changed a role",
    "member.remove": "Removed a member",
    "metrics.download": "Downloaded metrics",
    "passkey.add": "Added a passkey",
    "passkey.remove": "Removed a passkey",
    "passkey.rename": "Renamed a passkey",
    "password.change": "Changed their password",
    "password.failure": "Gave a wrong password",
    "password.set": "Set a password by a one-time password",
    "project.change": "Changed projects",
    "quota.set": "Changed a quota",
    "result.download": "Downloaded results",
    "retention.audit": "Shortened the audit log",
    "retention.change": "Changed retention rules",
    "retention.remove": "Removed data by retention",
    "runtime.change": "Changed a runtime",
    "runtime.create": "Added a runtime",
    "runtime.remove": "Removed a runtime",
    "secret.create": "Set a new secret",
    "secret.delete": "Deleted a secret",
    "secret.list": "Viewed the list of secrets",
    "secret.reencrypt": "Encrypted secrets with another key",
    "secret.replace": "Replaced a secret",
    "service_account.create": "Created a service account",
    "service_account.remove": "Closed a service account",
    "session.confirm": "Confirmed who they are",
    "session.end": "Ended sessions",
    "staff.edit": "Edited a record in the former database admin",
    "storage.change": "Changed the storage limit",
    "tenant.change": "Changed a tenant",
    "tenant.create": "Created a tenant",
    "tenant.read": "Viewed a tenant",
    "tenant.resume": "Reopened a tenant",
    "tenant.suspend": "Suspended a tenant",
    "token.create": "Created a token",
    "token.revoke": "Revoked a token",
    "two_factor.codes": "Made new recovery codes",
    "two_factor.disable": "Turned two-factor authentication off",
    "two_factor.enable": "Turned two-factor authentication on",
    "two_factor.remove": "Removed an authenticator app",
    "two_factor.reset": "Reset a user's two-factor authentication",
    "user.change": "Changed a user",
    "user.create": "Created a user",
    "user.disable": "Disabled a user",
    "user.enable": "Enabled a user",
    "user.link": "Linked an identity to a user",
    "user.reset": "Reset a password",
    "user.unlink": "Unlinked an identity from a user",
    "view.change": "Changed a shared view",
    "view.delete": "Deleted a shared view",
    "view.share": "Shared a view",
    "view.unshare": "Stopped sharing a view",
}
"""What the audit log's actions are called."""


@cache
def known_icons() -> frozenset[str]:
    """Names in the sprite: static/src/icons.txt."""
    return frozenset((settings.BASE_DIR / "static" / "src" / "icons.txt").read_text().split())


@register.simple_tag
def icon(name: str, classes: str = "") -> SafeString:
    """A 16 px icon from the sprite; decoration only, so the text beside it must say the same."""
    if name not in known_icons():
        raise template.TemplateSyntaxError(f"icon {name!r} is not in static/src/icons.txt")
    return format_html(
        '<svg class="icon {}" aria-hidden="true"><use href="{}#{}"/></svg>',
        classes,
        static("dist/icons.svg"),
        name,
    )


@register.simple_tag
def form_key() -> SafeString:
    """The key by which a form acts once. No browser may restore an older one into a new page."""
    return format_html(
        '<input type="hidden" name="{}" value="{}" autocomplete="off">', form_once.FIELD, form_once.new_key()
    )


@register.simple_tag
def badge(phase: str, *, still: bool = False) -> SafeString:
    """The badge of a display phase: color family, icon and word. still: of the past, so nothing turns."""
    family, name = phase_badge(phase)
    spin = " spin" if phase == "Processing" and not still else ""
    return format_html('<span class="badge {}{}">{}{}</span>', family, spin, icon(name), phase)


@register.filter
def action_label(action: str) -> str:
    """An action of the audit log in words; the action itself where it has none yet."""
    return ACTION_LABELS.get(action, action)


@register.filter
def duration(seconds: Any) -> str:
    """1 h 31 min, 4 min 12 s, 38 s, 1.8 s; an em dash for nothing."""
    return "—" if seconds is None or seconds == "" else humanize.duration(float(seconds))


@register.filter
def in_days(count: float) -> str:
    """today, tomorrow, in 3 days."""
    return "today" if count < 1 else "tomorrow" if count == 1 else f"in {count} days"


@register.filter
def whole_seconds(seconds: float) -> int:
    """Full seconds, for what the page's clock counts on."""
    return int(seconds)


def span(low: float, high: float) -> str:
    """A range of seconds to come: 25–40 min, 1.5–3 h, 8 min, under 1 min; no finer than anybody could know."""
    if high < 60:
        return "under 1 min"
    unit, word = (60, "min") if high < 5400 else (3600, "h") if high < 129_600 else (86400, "d")
    first, last = (_short(max(0.0, seconds) / unit, minutes=unit == 60) for seconds in (low, high))
    return f"{last} {word}" if first == last else f"{first}–{last} {word}"


def _short(count: float, *, minutes: bool) -> str:
    """Minutes in fives above ten; hours and days in halves below ten."""
    step = (5 if count > 10 else 1) if minutes else (1 if count >= 10 else 0.5)
    return f"{math.floor(count / step + 0.5) * step:g}"


def foreseen(estimate: dict[str, Any] | None, now: datetime) -> str:
    """How far off an estimate's start is; nothing without an estimate."""
    if not estimate or not estimate["from"]:
        return ""
    low, high = ((datetime.fromisoformat(estimate[end]) - now).total_seconds() for end in ("from", "to"))
    return span(low, high)


def approximately(span: str) -> str:
    """≈25–40 min; nothing without a span, and under 1 min as it is."""
    return f"≈{span}" if span and not span.startswith("under") else span


@register.simple_tag
def ago(at: datetime | str | None) -> SafeString:
    """A <time> that says how long ago in words and the exact UTC instant in its title; one timer keeps all fresh."""
    if not at:
        return SafeString("—")
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    past = humanize.past((timezone.now() - moment).total_seconds())
    exact = moment.astimezone(timezone.get_default_timezone())
    return format_html(
        '<time datetime="{}" title="{} UTC" data-ago>{}</time>',
        exact.isoformat(timespec="milliseconds"),
        exact.strftime("%Y-%m-%d %H:%M:%S"),
        past,
    )


@register.filter
def thousands(number: Any) -> str:
    """21000 becomes 21,000; an em dash for nothing."""
    return "—" if number is None or number == "" else f"{number:,}"


@register.filter
def step_label(step: int | None) -> str:
    """step 21,000; a checkpoint may come without its step."""
    return "step unknown" if step is None else f"step {step:,}"


@register.filter
def filesize(count: Any) -> str:
    """Bytes as 12.3 MiB; an em dash for nothing."""
    return "—" if count is None or count == "" else humanize.filesize(count)


def metric(value: Any) -> str:
    """Four significant digits, thousands in full, 3.486e-5; NaN and infinities as they are. format.ts says the same."""
    if isinstance(value, (int, float)):
        short = f"{value:.4g}"
        if 1000 <= abs(float(short)) < 1e15:
            return f"{value:,.0f}"
        return re.sub(r"e([+-])0", r"e\1", short)
    return "—" if value is None or value == "" else str(value)


@register.filter
def newest(metrics: dict[str, Any], name: str) -> str:
    """The newest value of one of a job's metrics, as tiles and the heads of charts show it."""
    return metric(metrics.get(name, {}).get("last"))


@register.filter
def hours(count: Any) -> str:
    """GPU-hours with one decimal, below one with two, for a short job is use too; an em dash for none."""
    if not count:
        return "—"
    if count < LEAST_HOURS:
        return f"< {LEAST_HOURS}"
    return f"{count:,.1f}" if round(count, 2) >= 1 else f"{count:.2f}"


@register.filter
def percent(part: Any, whole: Any) -> str:
    """part of whole in full percent; an em dash when there is no whole."""
    return f"{100 * float(part) / float(whole):,.0f}%" if whole else "—"


@register.filter
def devices(count: int, kind: str | None) -> str:
    """4 CPUs, 1 h100 GPU; kind: a slot type, or none for any GPU."""
    return humanize.devices(count, kind or "")


@register.filter
def signed(count: int) -> str:
    """+8, −8, ±0 with the typographic minus."""
    return f"+{count:,}" if count > 0 else f"−{-count:,}" if count else "±0"


@register.filter
def minus(left: int, right: int) -> int:
    """What is left; templates cannot subtract."""
    return left - right


@register.simple_tag(takes_context=True)
def search_attributes(context: template.Context, *texts: str) -> SafeString:
    """Attributes of a row that components/find.html narrows by these texts; hidden if ?q= is in none of them."""
    text = " ".join(texts).lower()
    sought = context["request"].GET.get("q", "").strip().lower()
    return format_html(' data-search-text="{}"{}', text, "" if sought in text else " hidden")


@register.filter
def get_item(mapping: Any, key: Any) -> Any:
    """The value of a key, empty if there is none; templates cannot index by a variable."""
    return mapping.get(key, "") if mapping else ""
