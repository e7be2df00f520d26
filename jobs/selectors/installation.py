"""What this installation has to offer, as its rows say: pools, nodes, runtimes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.db import connection
from django.db.models import Count, Max, QuerySet, Sum
from django.utils import timezone

from jobs.models import WORKER_LOCKS, ClusterNode, Runtime, Worker
from jobs.spec import Context, Pool, Spec
from tenants.models import Tenant

FACTS = """
SELECT (SELECT coalesce(json_agg(slug), '[]') FROM jobs_runtime WHERE enabled),
       (SELECT coalesce(json_agg(json_build_array(slot_type, slots, on_one, memory_mib)), '[]')
        FROM (SELECT slot_type, sum(slots) AS slots, max(slots) AS on_one,
              CASE WHEN bool_and(memory_mib IS NOT NULL) THEN max(memory_mib) END AS memory_mib
              FROM jobs_clusternode GROUP BY 1) sizes),
       (SELECT coalesce(json_agg(json_build_array(gpu_type, "limit")), '[]') FROM tenants_quota WHERE tenant_id = %s)
"""
"""Runtimes, pools and a tenant's limits at once: each submit asks for them."""


def nodes() -> QuerySet[ClusterNode]:
    """Every node as the scheduling cycle last saw it, by name."""
    return ClusterNode.objects.order_by("name")


def pools() -> dict[str, Pool]:
    """Slots per type, busy or not, down or not: what a job may ever hope for."""
    rows = ClusterNode.objects.order_by().values_list("slot_type").annotate(Sum("slots"), Max("slots"))
    return {slot_type: Pool(slots, on_one) for slot_type, slots, on_one in rows}


def workers_alive(silence_s: float) -> int:
    """Worker processes that live (they hold their lock) and looked at due jobs within the last silence_s seconds."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM jobs_worker w WHERE seen_at > clock_timestamp() - make_interval(secs => %s)"
            " AND EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = %s"
            " AND objid = w.id AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))",
            [silence_s, WORKER_LOCKS],
        )
        return int(cursor.fetchone()[0])


def runtimes() -> QuerySet[Runtime]:
    """The frameworks that jobs of this installation may name."""
    return Runtime.objects.filter(enabled=True).order_by("slug")


def data_root() -> Path:
    """The folder below which the data of jobs lies."""
    return Path(getattr(settings, "LUTHIER_DATA_ROOT", settings.LUTHIER_DATA / "datasets"))


def spec_context(tenant: Tenant, spec: Spec) -> Context:
    """What jobs.spec.check may know of this installation and tenant."""
    with connection.cursor() as cursor:
        cursor.execute(FACTS, [tenant.pk])
        known, sizes, limits = cursor.fetchone()
    found = _existing_data(spec)
    missing = found is not None and any(mount.path not in found for mount in spec.data)
    return Context(
        cluster=settings.LUTHIER_CLUSTER,
        runtimes=frozenset(known),
        pools={slot_type: Pool(*size) for slot_type, *size in sizes},
        limits=dict(limits),
        priorities=frozenset(tenant.priorities),
        data_paths=found,
        data_folders=_data_folders() if missing else (),
    )


def _existing_data(spec: Spec) -> frozenset[str] | None:
    """Which of the spec's paths exist; its own rules keep them below the root. None: not to be seen from here."""
    root = data_root()
    if settings.LUTHIER_CLUSTER == "kubernetes" or not spec.data:
        return None
    return frozenset(mount.path for mount in spec.data if _is_folder(root / mount.path))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # closed to us, or no name that a disk takes
        return False


def _data_folders() -> tuple[str, ...] | None:
    """Names of the folders in the data root, sorted; hidden ones are not meant for jobs. None: it cannot be read."""
    try:
        return tuple(
            sorted(
                entry.name for entry in data_root().iterdir() if entry.name[0] != "." and _is_folder(entry)
            )
        )
    except FileNotFoundError:
        return ()
    except OSError:
        return None


FRESH = timedelta(seconds=15)
"""A worker that looked at due jobs within this time works; the same limit as /readyz."""


@dataclass(frozen=True, slots=True)
class Working:
    """Celery workers that looked lately, of all that have a row, and when the last one looked."""

    workers: int
    known: int
    seen_at: datetime | None


def working() -> Working:
    rows = Worker.objects.aggregate(known=Count("pk"), seen=Max("seen_at"))
    fresh = Worker.objects.filter(seen_at__gt=timezone.now() - FRESH).count()
    return Working(fresh, rows["known"], rows["seen"])
