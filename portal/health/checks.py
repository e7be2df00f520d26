"""Health checks of the database, the workers, the scheduler, the cluster and the store of files, for /readyz and
`manage.py doctor`."""

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TypeVar

from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from gpu_scheduler.clusters.base import CanBeProbed, ClusterError
from jobs import clusters
from jobs.blobs.health import OVERDUE_S, health
from jobs.disk import disks
from jobs.humanize import filesize
from jobs.selectors.installation import (
    last_pass,
    nodes_ready,
    pass_limit_s,
    unknown_gangs,
    workers_alive,
)
from portal.health.deadline import run_together

T = TypeVar("T")

ANSWER_S = 2.0
"""Timeout of each check; load balancers and people do not wait for one that hangs."""
FRESH_S, FAILING_FRESH_S = 1.0, 0.2
"""Results are shared by requests for this long, and while something fails, less: the end of a start shows at once."""
PROBED_S = 1.8
"""The same for the two questions of one check, so that it ends within ANSWER_S."""
WORKER_SILENCE_S = 15  # a worker reports every LUTHIER_TICK_S
LOOPBACK = {4: ip_network("127.0.0.0/8"), 6: ip_network("::1/128")}
NO_NODE = ("no node is ready", "Check LOCAL_NODES, or the cluster's nodes.")
"""Reason and remedy."""


@dataclass(frozen=True)
class HealthCheck:
    """The result of one check. reason: why the component does not work, empty if it works. warnings: do not fail it."""

    name: str
    found: str
    reason: str = ""
    remedy: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        return not self.reason


_sharing = threading.Lock()
_shared: tuple[float, datetime, list[HealthCheck]] | None = None


def shared_checks() -> tuple[datetime, list[HealthCheck]]:
    """run_checks, and when they began, for callers who can come in any number: those that come together wait for the
    same result."""
    global _shared
    with _sharing:
        if _shared is None or time.monotonic() - _shared[0] >= _shared_for_s(_shared[2]):
            began, found = timezone.now(), run_checks()
            _shared = (time.monotonic(), began, found)
        return _shared[1:]


def _shared_for_s(found: list[HealthCheck]) -> float:
    return FRESH_S if all(check.ready for check in found) else FAILING_FRESH_S


def run_checks() -> list[HealthCheck]:
    """Check the components that a job needs concurrently, each within ANSWER_S.

    Without the database the state of the workers and of the scheduler is unknown.
    """
    answers = run_together(
        {
            "database": _closing_connection(database),
            "workers": _closing_connection(workers),
            "scheduler": _closing_connection(scheduler),
            "cluster": cluster,
            "blobs": _closing_connection(blob_store),
            "disk": disk,
        },
        within_s=ANSWER_S,
    )
    return [answers.get(name) or silent() for name, silent in SILENT.items()]


def _closing_connection(question: Callable[[], T]) -> Callable[[], T]:
    """Close the connection of the check's thread, which ends with the check."""

    def ask() -> T:
        try:
            return question()
        finally:
            connection.close()

    return ask


def _unknown(name: str, why: str) -> HealthCheck:
    """Of a check that asks the database, while that does not answer."""
    return HealthCheck(name, "unknown", why, "See database.")


SILENT: dict[str, Callable[[], HealthCheck]] = {
    "database": lambda: HealthCheck(
        "database",
        "no response",
        f"the database did not respond within {ANSWER_S:.0f} s",
        "Check whether PostgreSQL hangs or its machine is overloaded: logs/postgres.log in the data folder.",
    ),
    "workers": lambda: _unknown("workers", f"the database did not respond within {ANSWER_S:.0f} s"),
    "scheduler": lambda: _unknown("scheduler", f"the database did not respond within {ANSWER_S:.0f} s"),
    "cluster": lambda: HealthCheck(
        "cluster",
        "no response",
        f"the {settings.LUTHIER_CLUSTER} cluster did not respond within {ANSWER_S:.0f} s",
        clusters.capabilities().remedy,
    ),
    "blobs": lambda: HealthCheck(
        "blobs", "unknown", warnings=(f"The database did not respond within {ANSWER_S:.0f} s.",)
    ),
    "disk": lambda: HealthCheck(
        "disk",
        "no response",
        f"the disk of the data folder did not respond within {ANSWER_S:.0f} s",
        "Check the disk, or the network file system, that LUTHIER_DATA is on.",
    ),
}


def database() -> HealthCheck:
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT current_setting('server_version'), current_setting('transaction_read_only')"
            )
            shown, read_only = cursor.fetchone()
            version = shown.split()[0]
        waiting = pending_migrations()
    except DatabaseError as error:
        remedy = "Start it with `manage.py up`, or correct DATABASE_URL."
        return HealthCheck(
            "database", "no response", f"the database is not responding: {first_line(error)}", remedy
        )
    if read_only == "on":
        remedy = "Point DATABASE_URL at the primary, or make the database writable again."
        return HealthCheck("database", f"PostgreSQL {version}", "the database is read-only", remedy)
    if waiting:
        remedy = "Run `manage.py migrate`; `manage.py up` does so itself."
        return HealthCheck(
            "database", f"PostgreSQL {version}", f"{waiting} migrations have not been applied", remedy
        )
    return HealthCheck("database", f"PostgreSQL {version}")


def workers() -> HealthCheck:
    """Workers report to the database, so that this check also works without the broker."""
    warnings: tuple[str, ...] = ()
    silence_s = max(WORKER_SILENCE_S, 5 * settings.LUTHIER_TICK_S)
    try:
        alive, unknown = workers_alive(silence_s), unknown_gangs()
    except DatabaseError as error:
        return _unknown("workers", f"the database is not responding: {first_line(error)}")
    if unknown:
        text = (
            f"Learners of {len(unknown)} attempts run that this database does not know ({', '.join(unknown[:3])}):"
            " it may be an older copy or the wrong one. They are left alone for 15 minutes, then stopped."
        )
        warnings = (text,)
    if not alive:
        remedy = "See logs/worker-1.log in the data folder, or start `celery -A portal.celery worker`."
        return HealthCheck("workers", "0 alive", f"no worker was seen in the last {silence_s:.0f} s", remedy)
    return HealthCheck("workers", f"{alive} alive", warnings=warnings)


def scheduler() -> HealthCheck:
    """Workers that live are not enough: jobs start only while passes of the scheduling cycle complete."""
    try:
        last = last_pass()
    except DatabaseError as error:
        return _unknown("scheduler", f"the database is not responding: {first_line(error)}")
    remedy = (
        "See the logs of scheduler and workers (logs/scheduler.log, logs/worker-1.log in the data folder)."
    )
    if last.age_s is None:
        why = "no scheduling pass has completed yet" + (f": {last.problem}" if last.problem else "")
        return HealthCheck("scheduler", "no pass yet", why, remedy)
    found = f"last pass {last.age_s:.0f} s ago"
    if not last.is_overdue:
        return HealthCheck("scheduler", found)
    why = f"no scheduling pass has completed for {last.age_s:.0f} s (limit {pass_limit_s():.0f} s), so no job starts"
    if last.problem:
        why += f": {last.problem}"
    elif last.holder:
        why += f"; the pass under way is that of {last.holder}"
    return HealthCheck("scheduler", found, why, remedy)


def cluster() -> HealthCheck:
    try:
        driver = clusters.current()
        if isinstance(driver, CanBeProbed):
            return _probed(driver)
        nodes = driver.nodes()
        isolation = clusters.isolation()
    except ClusterError as error:
        remedy = clusters.capabilities().remedy
        return HealthCheck(
            "cluster", "no response", f"the {settings.LUTHIER_CLUSTER} cluster: {error}", remedy
        )
    ready = sum(node.ready for node in nodes)
    found = f"{settings.LUTHIER_CLUSTER}, {ready} of {len(nodes)} nodes ready"
    if not ready:
        return HealthCheck("cluster", found, *NO_NODE)
    warnings = proxies_that_programs_are()
    if isolation is None:
        return HealthCheck("cluster", found, warnings=warnings)
    if isolation.holds:
        return HealthCheck("cluster", f"{found}; {isolation.text}", warnings=warnings)
    return HealthCheck(
        "cluster", found, warnings=(f"{isolation.text[:1].upper()}{isolation.text[1:]}.", *warnings)
    )


def proxies_that_programs_are() -> tuple[str, ...]:
    """Programs that a daemon of this machine starts share its network, so each is a proxy that is trusted here."""
    if not clusters.capabilities().node_daemon:
        return ()
    here = [str(each) for each in settings.LUTHIER_TRUSTED_PROXIES if _has_this_machine(each)]
    if not here:
        return ()
    return (
        f"LUTHIER_TRUSTED_PROXIES names this machine ({', '.join(here)}), on which programs of jobs run: each can"
        " choose the address that budgets, limits and the audit log see. Give the proxy an address of its own.",
    )


def _has_this_machine(network: IPv4Network | IPv6Network) -> bool:
    """Whether a program here can come from an address of the network: by loopback, or from the address by which this
    machine reaches the network, which is also that of its connections to itself there."""
    if network.overlaps(LOOPBACK[network.version]):
        return True
    family = socket.AF_INET if network.version == 4 else socket.AF_INET6
    inside = network[1] if network.num_addresses > 2 else network[0]  # the first may be that of a broadcast
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as unsent:
            unsent.connect((str(inside), 9))
            return ip_address(unsent.getsockname()[0]) in network
    except OSError:
        return False  # no way there


def _probed(driver: CanBeProbed) -> HealthCheck:
    """Of a cluster that may be too large to list its nodes for each caller: whether it responds, and the nodes that the
    scheduler saw last."""
    answers: dict[str, HealthCheck | None] = run_together(
        {"probe": driver.probe, "nodes": _closing_connection(_nodes_of_last_pass)}, within_s=PROBED_S
    )
    if "probe" not in answers:
        return SILENT["cluster"]()
    found = answers.get("nodes")
    return found or HealthCheck("cluster", f"{settings.LUTHIER_CLUSTER} responds; its nodes are unknown")


def _nodes_of_last_pass() -> HealthCheck | None:
    """None: unknown, because no pass has completed in time, or the database does not say."""
    try:
        (ready, known), last = nodes_ready(settings.LUTHIER_CLUSTER), last_pass()
    except DatabaseError:
        return None
    if last.age_s is None or last.is_overdue:
        return None
    found = f"{settings.LUTHIER_CLUSTER} responds; {ready} of {known} nodes ready {last.age_s:.0f} s ago"
    return HealthCheck("cluster", found, *(() if ready else NO_NODE))


def blob_store() -> HealthCheck:
    """Never fails: jobs run without it, and their files wait. The workers check it; this reads what they found."""
    try:
        found = health()
    except DatabaseError as error:
        return HealthCheck("blobs", "unknown", warnings=(f"The database: {first_line(error)}.",))
    if found.checked_at is None:
        return HealthCheck("blobs", "not checked yet")
    age_s = (timezone.now() - found.checked_at).total_seconds()
    if age_s > OVERDUE_S:
        return HealthCheck("blobs", f"last checked {age_s:.0f} s ago; unknown since")
    if found.problem:
        state = "full" if found.full else "away" if found.away else "slow"
        return HealthCheck("blobs", state, warnings=(found.sentence,))
    return HealthCheck("blobs", "responding")


def disk() -> HealthCheck:
    """A full disk is a warning: jobs that run continue, and pages work; nothing new starts."""
    try:
        found = disks()
    except OSError as error:
        remedy = "Check the folders that LUTHIER_DATA and LUTHIER_BLOBS name."
        return HealthCheck("disk", "", f"free space is unknown: {first_line(error)}", remedy)
    warnings = tuple(
        f"{each.folder}: {each.text}. No job starts until there is room: delete jobs, set retention rules,"
        " or enlarge the disk."
        for each in found
        if each.is_full
    )
    return HealthCheck("disk", f"{filesize(min(each.free for each in found))} free", warnings=warnings)


def pending_migrations() -> int:
    executor = MigrationExecutor(connection)
    return len(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
