"""The checks of `manage.py doctor`: those of /readyz, and what only a person on the machine can fix."""

import json
import os
import stat
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import redis
from django.conf import settings
from django.db import DatabaseError

from gpu_scheduler.clusters.kubernetes.settings import without_store
from jobs import blobs
from jobs.clusters import DriverSettings
from jobs.humanize import duration
from jobs.selectors.installation import audit_sending, mail_problem
from portal.health.checks import HealthCheck, first_line, run_checks
from portal.settings.env import BASE_DIR, warnings
from portal.settings.values import required_settings
from tenants import audit_chain, audit_forward, keyring, outbox, sealed_rows
from tenants.errors import SecretsUnavailable
from tenants.services.users import admins_locked_out

ASK_S = 2
LATE_S = 600
"""What has waited for so long to leave is worth a warning."""


def examine() -> list[HealthCheck]:
    """Every check, in the order in which to fix them."""
    shared = {check.name: check for check in run_checks()}
    known = shared.pop("blobs")
    return [
        python(),
        variables(),
        data_folder(),
        keys(),
        bundles(),
        *shared.values(),
        blob_store(known.warnings),
        secrets_keys(),
        broker(),
        web(),
        single_sign_on(),
        sign_in(),
        mail(),
        audit_log(),
    ]


def python() -> HealthCheck:
    version = ".".join(map(str, sys.version_info[:3]))
    if not (BASE_DIR / ".venv" / ".locked").exists() and Path(sys.prefix) == BASE_DIR / ".venv":
        return HealthCheck(
            "python", version, "the environment was not installed from the locks", "Run `make env`."
        )
    return HealthCheck("python", version)


def variables() -> HealthCheck:
    """The environment is already known to be valid; what it sets without effect is a warning."""
    return HealthCheck("variables", "valid", warnings=tuple(warnings(settings.ENV, os.environ)))


def data_folder() -> HealthCheck:
    folder = settings.LUTHIER_DATA
    if not folder.is_dir():
        return HealthCheck(
            "data", "", f"{folder} does not exist", "Start `manage.py up` once, or set LUTHIER_DATA."
        )
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        return HealthCheck(
            "data", "", f"{folder} is open to others (mode {mode:o})", f"Run `chmod 700 {folder}`."
        )
    return HealthCheck("data", str(folder))


def keys() -> HealthCheck:
    """The passwords of the embedded servers; libpq ignores a password file that others may read."""
    found = sorted(settings.EMBEDDED.keys.glob("*"))
    if open_ones := [path for path in (settings.EMBEDDED.keys, *found) if others_may_read(path)]:
        remedy = f"Run `chmod -R go= {settings.EMBEDDED.keys}`, and restart `manage.py up`."
        return HealthCheck("keys", "", f"others may read {', '.join(map(str, open_ones))}", remedy)
    return HealthCheck("keys", f"{len(found)}, private" if found else "none made yet")


def others_may_read(path: Path) -> bool:
    return path.exists() and bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


def blob_store(warnings: tuple[str, ...]) -> HealthCheck:
    """Ask it now; warnings: what the workers found, and since when."""
    place = settings.LUTHIER_BLOBS or str(settings.LUTHIER_DATA / "blobs")
    try:
        blobs.check()
    except (blobs.StoreUnavailable, OSError) as error:
        remedy = "Correct LUTHIER_BLOBS and AWS_…, or make room: code, checkpoints and results go there."
        return HealthCheck("blobs", "", f"{place}: {first_line(error)}", remedy, warnings)
    has_peers = "KUBE_INSTALLATION" in required_settings(settings.LUTHIER_CLUSTER)
    if has_peers and (missing := without_store(DriverSettings())):
        remedy = "Set KUBE_INGEST_PEERS, then run `manage.py tenant_provision --all`."
        return HealthCheck("blobs", "", missing, remedy)
    return HealthCheck("blobs", place, warnings=warnings)


def bundles() -> HealthCheck:
    if not any((BASE_DIR / "static" / "dist").glob("*.js")):
        return HealthCheck("pages", "", "the front end has not been built", "Run `make front-end`.")
    return HealthCheck("pages", "front end built")


def secrets_keys() -> HealthCheck:
    """Whether every stored secret can be decrypted; jobs that use one that cannot wait."""
    try:
        lost, keys = sealed_rows.unreadable(), len(keyring.key_ids())
    except SecretsUnavailable as error:
        return HealthCheck(
            "secrets", "", first_line(error), f"Correct {settings.LUTHIER_SECRETS_KEYS.place}."
        )
    except DatabaseError as error:
        return HealthCheck("secrets", "", first_line(error), "See the database check.")
    if lost:
        remedy = (
            f"Put the missing key back into {settings.LUTHIER_SECRETS_KEYS.place}; see `manage.py secrets`."
        )
        return HealthCheck("secrets", "", f"{lost} cannot be decrypted: a key is missing", remedy)
    return HealthCheck("secrets", f"{keys} key{'' if keys == 1 else 's'}" if keys else "none stored")


def broker() -> HealthCheck:
    """The broker is not required; without it everything is slower."""
    try:
        client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=ASK_S, socket_connect_timeout=ASK_S)
        version = client.info("server").get("redis_version", "?")
        client.close()
    except redis.RedisError as error:
        remedy = "The platform works without it, only slower. `manage.py up` starts it, or correct REDIS_URL."
        return HealthCheck("broker", "no response", f"Valkey is not responding: {first_line(error)}", remedy)
    return HealthCheck("broker", f"responding (Redis-compatible {version})")


def web() -> HealthCheck:
    url = running_url()
    try:
        with urlopen(f"{url}/healthz", timeout=ASK_S) as answer:  # noqa: S310 (http or https by settings)
            return HealthCheck("web", f"{url} answers {answer.status}")
    except (URLError, OSError) as error:
        return HealthCheck(
            "web", "no response", f"{url} is not responding: {first_line(error)}", "Start `manage.py up`."
        )


NO_AUTH_TIME = (
    "the provider does not list the claim auth_time: without it no one can confirm by it that it is them, and admins"
    " who end sessions or change users sign in with a one-time password before: `manage.py admin NAME --reset`"
)


def single_sign_on() -> HealthCheck:
    """Whether the provider's discovery document can be read and is that of the issuer."""
    name, issuer = "single sign-on", settings.LUTHIER_OIDC_ISSUER
    if issuer is None:
        return HealthCheck(name, "off: people sign in with passwords")
    address = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    try:
        with urlopen(address, timeout=ASK_S) as answer:  # noqa: S310 (http or https by settings)
            document = json.load(answer)
    except (OSError, ValueError) as error:
        meanwhile = "Passwords work" if settings.LUTHIER_PASSWORD_SIGN_IN else "One-time passwords work"
        remedy = f"{meanwhile} meanwhile. Correct LUTHIER_OIDC_ISSUER, or ask who runs the provider."
        return HealthCheck(name, "", f"{address}: {first_line(error)}", remedy)
    named = document.get("issuer") if isinstance(document, dict) else None
    if named != issuer:
        return HealthCheck(
            name,
            "",
            f"{address} names another issuer: {str(named)[:200]}",
            "Set LUTHIER_OIDC_ISSUER to it, to the character, if it is the right provider.",
        )
    methods = document.get("code_challenge_methods_supported")
    pkce = isinstance(methods, list) and "S256" in methods
    warnings: tuple[str, ...] = () if pkce else ("the provider does not say that it supports PKCE with S256",)
    claims = document.get("claims_supported")
    if not settings.LUTHIER_PASSWORD_SIGN_IN and isinstance(claims, list) and "auth_time" not in claims:
        warnings += (NO_AUTH_TIME,)
    return HealthCheck(name, issuer, warnings=warnings)


def sign_in() -> HealthCheck:
    """By what people sign in, and whether a platform admin can."""
    factor = "with a second factor" if settings.LUTHIER_TWO_FACTOR_REQUIRED else "second factor optional"
    if settings.LUTHIER_PASSWORD_SIGN_IN:
        return HealthCheck("sign-in", f"passwords, {factor}")
    try:
        locked_out = admins_locked_out()
    except DatabaseError as error:
        return HealthCheck("sign-in", "", first_line(error), "See the database check.")
    if locked_out:
        remedy = "Run `manage.py admin NAME --reset`, and sign in with the one-time password that it prints."
        return HealthCheck("sign-in", "", "passwords are off and no platform admin can sign in", remedy)
    return HealthCheck("sign-in", "without passwords")


def mail() -> HealthCheck:
    """Whether security notices leave. They are on users' profiles in any case, so this only warns."""
    if not settings.LUTHIER_SENDS_MAIL:
        return HealthCheck("mail", "off: security notices are on users' profiles only")
    try:
        (count, age_s), why = outbox.waiting(), mail_problem()
    except DatabaseError as error:
        return HealthCheck("mail", "", first_line(error), "See the database check.")
    found = f"{settings.EMAIL_HOST}, {count} waiting"
    if age_s < LATE_S:
        return HealthCheck("mail", found)
    text = f"security notices have waited for {duration(age_s)}: {why or 'see the logs of workers'}."
    return HealthCheck(
        "mail", found, warnings=(f"{text} Correct EMAIL_URL, EMAIL_FROM or the user's address.",)
    )


def audit_log() -> HealthCheck:
    """Whether the audit log leaves for another system. Nothing of it is lost here, so this only warns."""
    to = settings.LUTHIER_AUDIT_URL
    try:
        sending = audit_sending()
        if sending is None:
            return HealthCheck("audit log", "kept here only")
        count, age_s = audit_forward.waiting(sending.place)
        head = audit_chain.head()
    except DatabaseError as error:
        return HealthCheck("audit log", "", first_line(error), "See the database check.")
    warned = []
    if sending.place > head:
        warned.append(
            f"seal {sending.place} of the audit log was sent, and its chain ends at {head}: seals were removed."
            " Compare what the other system has; new entries are not sent before the chain is as long again."
        )
    if age_s >= LATE_S:
        why = sending.problem or "see the logs of workers"
        remedy = "Correct LUTHIER_AUDIT_URL, LUTHIER_AUDIT_AUTHORIZATION or the system that it names."
        warned.append(f"entries of the audit log have waited for {duration(age_s)}: {why}. {remedy}")
    if sending.lacked_s is not None and sending.lacked_s < LATE_S:
        warned.append(
            "a worker runs without LUTHIER_AUDIT_URL, and another had it within three days: set it for all of them."
            " Where it was unset on purpose, retention begins to remove what was not sent after these days."
        )
    where = urlsplit(to).hostname if to else "an address that other processes have"
    return HealthCheck("audit log", f"{where}, {count} to send", warnings=tuple(warned))


def running_url() -> str:
    """The URL that `up` wrote, otherwise the one in the settings."""
    try:
        return (settings.LUTHIER_DATA / "run" / "url").read_text().strip()
    except OSError:
        return settings.LUTHIER_PUBLIC_URL
