"""What /metrics shows: facts of the database, shared by all requests for a few seconds, and this process's counters.

Every web process shows the same facts; a query takes one of them (`max by`), not their sum. Each counter says of which
process it is, so a scrape through a load balancer finds several counters rather than one that goes backward.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from jobs.counters import REGISTRY
from jobs.disk import disks
from jobs.selectors.monitoring import Fact, Row, read_facts
from portal.health.deadline import run_together

FRESH_S = 5.0
DISKS_S = 1.0
ANSWER_S = 3.0
"""A database that does not answer costs a scrape this long; the scrape itself succeeds, and says so."""

Reading = dict[Fact, list[Row]]


class Facts(Collector):
    """Read at most every FRESH_S, by one request at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: tuple[float, Reading] | None = None

    def collect(self) -> Iterator[Metric]:
        """Facts that could not be read are left out: an old value would look like a present one."""
        found = self._current()
        up = GaugeMetricFamily("luthier_database_up", "1 if the database answered this scrape, else 0.")
        up.add_metric([], float(found is not None))
        yield up
        for fact, rows in (found or {}).items():
            family = GaugeMetricFamily(fact.name, fact.help, labels=fact.labels)
            for *labels, value in rows:
                family.add_metric(labels, float(value))
            yield family

    def _current(self) -> Reading | None:
        with self._lock:
            if self._read is None or time.monotonic() - self._read[0] >= FRESH_S:
                reading = _in_time()
                self._read = None if reading is None else (time.monotonic(), reading)
            return self._read[1] if self._read else None


def _in_time() -> Reading | None:
    try:
        return run_together({"metrics": _read}, within_s=ANSWER_S).get("metrics")
    except DatabaseError:
        return None


def _read() -> Reading:
    """In a thread that ends with it."""
    try:
        return read_facts()
    finally:
        connection.close()


class Disks(Collector):
    """The disks of the folders that this process has, as it sees them: in pods each has one of its own."""

    def collect(self) -> Iterator[Metric]:
        """Nothing of a disk that does not respond."""
        free = GaugeMetricFamily(
            "luthier_disk_free_bytes", "Free on the disk of a folder.", labels=["folder", "process"]
        )
        required = GaugeMetricFamily(
            "luthier_disk_required_bytes",
            "What must be free there: with less, no job starts.",
            labels=["folder", "process"],
        )
        try:
            found = run_together({"metrics of disks": disks}, within_s=DISKS_S).get("metrics of disks", [])
        except OSError:
            found = []
        for each in found:
            labels = ["data" if each.folder == settings.LUTHIER_DATA else "blobs", _process()]
            free.add_metric(labels, each.free)
            required.add_metric(labels, each.minimum)
        return iter((free, required))


def _process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


class OfThisProcess(Collector):
    """The counters of jobs.counters, with the process's host and pid as a label."""

    def collect(self) -> Iterator[Metric]:
        process = _process()
        for metric in REGISTRY.collect():
            named = Metric(metric.name, metric.documentation, metric.type)
            for sample in metric.samples:
                if not sample.name.endswith("_created"):
                    named.add_sample(sample.name, sample.labels | {"process": process}, sample.value)
            yield named
