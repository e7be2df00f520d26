"""Celery's settings; the reasons are in docs/adr/0006-messages-are-hints.md."""

import ssl
from typing import Any

from django.conf import settings
from kombu import Queue
from kombu.utils.url import parse_url

from portal.settings.queues import JOBS, PASSES


def broker_tls(url: str) -> dict[str, Any] | None:
    """What Celery has to know to check the certificate: rediss:// alone makes a connection with TLS, unchecked."""
    if not url.startswith("rediss://"):
        return None
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED} | parse_url(url).get("ssl", {})


broker_url = settings.BROKER_URL
broker_use_ssl = broker_tls(broker_url)

task_acks_late = False  # a lost hint costs one tick; a redelivered one costs more
task_ignore_result = True
result_backend = None
task_default_queue = JOBS
task_queues = [
    Queue(name, routing_key=name) for name in (JOBS, PASSES)
]  # a worker without -Q does the work of both
task_routes = {"jobs.tasks.run_cycle": {"queue": PASSES}}
task_default_delivery_mode = "transient"
task_publish_retry = False
task_serializer = "json"
accept_content = ["json"]
worker_prefetch_multiplier = 1
worker_send_task_events = False
worker_hijack_root_logger = False
worker_enable_remote_control = False
broker_connection_retry_on_startup = True
broker_connection_max_retries = None  # forever: the ticker works meanwhile
broker_connection_timeout = 2
broker_transport_options = {
    "visibility_timeout": 60,  # seconds
    "socket_timeout": 0.2,  # of publishers; portal.celery gives workers more
    "socket_connect_timeout": 0.2,
    "health_check_interval": 10,
    "max_retries": 0,
}
timezone = "UTC"
