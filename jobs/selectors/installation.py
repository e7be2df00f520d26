"""What this installation has to offer, as its rows say: pools, nodes, runtimes."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings
from django.db import connection
from django.db.models import QuerySet

from jobs.models import WORKER_LOCKS, ClusterNode, Runtime
from jobs.spec import Context, Pool, Spec
from tenants.models import Tenant


def nodes() -> QuerySet[ClusterNode]:
    """Every node as the scheduling cycle last saw it, by name."""
    return ClusterNode.objects.order_by("name")


def pools() -> dict[str, Pool]:
    """Slots per type, busy or not, down or not: what a job may ever hope for."""
    found: dict[str, Pool] = {}
    for node in nodes():
        known = found.get(node.slot_type, Pool(0, 0))
        found[node.slot_type] = Pool(known.slots + node.slots, max(known.slots_per_node, node.slots))
    return found


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
    return Context(
        cluster=settings.LUTHIER_CLUSTER,
        runtimes=frozenset(runtimes().values_list("slug", flat=True)),
        pools=pools(),
        limits=dict(tenant.quotas.values_list("gpu_type", "limit")),
        priorities=frozenset(tenant.priorities),
        data_paths=_existing_data(spec),
    )


def _existing_data(spec: Spec) -> frozenset[str] | None:
    """Which of the spec's paths exist; its own rules keep them below the root. None: not to be seen from here."""
    root = data_root()
    if settings.LUTHIER_CLUSTER == "kubernetes" or not spec.data:
        return None
    return frozenset(mount.path for mount in spec.data if (root / mount.path).is_dir())
