"""The Celery application. Messages are hints: lost, doubled or late ones change nothing but latency."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.base")

app = Celery("luthier")
app.config_from_object("portal.settings.celery", namespace="")
app.autodiscover_tasks(["jobs"])
