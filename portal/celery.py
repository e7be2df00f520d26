"""The Celery application. Messages are hints: a lost, duplicate or late one only affects latency."""

import os

from celery import Celery
from celery.signals import worker_init, worker_ready
from kombu.transport import TRANSPORT_ALIASES

from portal.interpreter import settle
from portal.migrations_gate import wait_until_prepared
from portal.settings.env import refuse

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.base")

POOLED_CONNECTIONS = 4
"""As many as a worker has threads for tasks."""

TRANSPORT_ALIASES["redis"] = (
    "portal.broker:Transport"  # a setting for it would not apply to a Unix socket's address
)

app = Celery("luthier")
app.config_from_object("portal.settings.celery", namespace="")
app.autodiscover_tasks(["jobs"])


@worker_init.connect
def allow_blocking_reads(**_: object) -> None:
    """Workers may block for seconds; other processes only publish and must not hang on a half-open connection."""
    app.conf.broker_transport_options = {**app.conf.broker_transport_options, "socket_timeout": 5}


@worker_init.connect
def keep_connections(**_: object) -> None:
    """Celery closes a thread's connection before and after each task, and a hint's task is short: with a fresh process
    of PostgreSQL for each, that costs more than all that the task does."""
    from portal.database import connection_pool  # Celery has read Django's settings by now

    connection_pool.set_size(POOLED_CONNECTIONS)


@worker_init.connect
def require_cluster_settings(**_: object) -> None:
    """End with exit code 78 and what to change: a worker that cannot reach its cluster would start no job, silently."""
    from jobs import clusters  # needs Django's settings, which Celery has read by now

    if problem := clusters.configuration_problem():
        refuse([problem])


@worker_init.connect
def wait_for_tables(**_: object) -> None:
    from portal.migrations_wait import wait_for_migrations  # needs Django's settings

    wait_until_prepared()
    wait_for_migrations()


@worker_ready.connect
def settle_interpreter(**_: object) -> None:
    """Threads that bring jobs on share it, and each waits for a turn after each statement."""
    settle()
