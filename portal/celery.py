"""The Celery application. Messages are hints: lost, doubled or late ones change nothing but latency."""

import os

from celery import Celery
from celery.signals import worker_init

from portal.migrations_gate import wait_until_prepared

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.base")

app = Celery("luthier")
app.config_from_object("portal.settings.celery", namespace="")
app.autodiscover_tasks(["jobs"])


@worker_init.connect
def wait_for_messages(**_: object) -> None:
    """A worker may listen for seconds; everybody else only publishes and must not hang on a half-open broker."""
    app.conf.broker_transport_options = {**app.conf.broker_transport_options, "socket_timeout": 5}


@worker_init.connect
def wait_for_tables(**_: object) -> None:
    wait_until_prepared()
