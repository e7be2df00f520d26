"""Health checks of the database, the workers and the cluster, for /readyz and `manage.py doctor`."""

from collections.abc import Callable
from dataclasses import dataclass

from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from gpu_scheduler.clusters.base import ClusterError
from jobs import clusters
from jobs.selectors.installation import workers_alive
from portal.health.deadline import run_together

ANSWER_S = 2.0
"""Timeout of each check; load balancers and people do not wait for one that hangs."""
WORKER_SILENCE_S = 15  # a worker reports every LUTHIER_TICK_S


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


def run_checks() -> list[HealthCheck]:
    """Check the three components that a job needs concurrently, each within ANSWER_S.

    Without the database the state of the workers is unknown.
    """
    answers = run_together(
        {
            "database": _closing_connection(database),
            "workers": _closing_connection(workers),
            "cluster": cluster,
        },
        within_s=ANSWER_S,
    )
    return [answers.get(name) or silent() for name, silent in SILENT.items()]


def _closing_connection(question: Callable[[], HealthCheck]) -> Callable[[], HealthCheck]:
    """Close the connection of the check's thread, which ends with the check."""

    def ask() -> HealthCheck:
        try:
            return question()
        finally:
            connection.close()

    return ask


SILENT: dict[str, Callable[[], HealthCheck]] = {
    "database": lambda: HealthCheck(
        "database",
        "no response",
        f"the database did not respond within {ANSWER_S:.0f} s",
        "Check whether PostgreSQL hangs or its machine is overloaded: logs/postgres.log in the data folder.",
    ),
    "workers": lambda: HealthCheck(
        "workers", "unknown", f"the database did not respond within {ANSWER_S:.0f} s", "See database."
    ),
    "cluster": lambda: HealthCheck(
        "cluster",
        "no response",
        f"the {settings.LUTHIER_CLUSTER} cluster did not respond within {ANSWER_S:.0f} s",
        clusters.capabilities().remedy,
    ),
}


def database() -> HealthCheck:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SHOW server_version")
            version = cursor.fetchone()[0].split()[0]
        waiting = pending_migrations()
    except DatabaseError as error:
        remedy = "Start it with `manage.py up`, or correct DATABASE_URL."
        return HealthCheck(
            "database", "no response", f"the database is not responding: {first_line(error)}", remedy
        )
    if waiting:
        remedy = "Run `manage.py migrate`; `manage.py up` does so itself."
        return HealthCheck(
            "database", f"PostgreSQL {version}", f"{waiting} migrations have not been applied", remedy
        )
    return HealthCheck("database", f"PostgreSQL {version}")


def workers() -> HealthCheck:
    """Workers report to the database, so that this check also works without the broker."""
    silence_s = max(WORKER_SILENCE_S, 5 * settings.LUTHIER_TICK_S)
    try:
        alive = workers_alive(silence_s)
    except DatabaseError as error:
        return HealthCheck(
            "workers", "unknown", f"the database is not responding: {first_line(error)}", "See database."
        )
    if not alive:
        remedy = "See logs/worker-1.log in the data folder, or start `celery -A portal.celery worker`."
        return HealthCheck("workers", "0 alive", f"no worker was seen in the last {silence_s:.0f} s", remedy)
    return HealthCheck("workers", f"{alive} alive")


def cluster() -> HealthCheck:
    try:
        nodes = clusters.current().nodes()
    except ClusterError as error:
        remedy = clusters.capabilities().remedy
        return HealthCheck(
            "cluster", "no response", f"the {settings.LUTHIER_CLUSTER} cluster: {error}", remedy
        )
    usable = [node for node in nodes if node.ready]
    found = f"{settings.LUTHIER_CLUSTER}, {len(usable)} of {len(nodes)} nodes ready"
    if not usable:
        return HealthCheck("cluster", found, "no node is ready", "Check LOCAL_NODES, or the cluster's nodes.")
    return HealthCheck("cluster", found)


def pending_migrations() -> int:
    executor = MigrationExecutor(connection)
    return len(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
