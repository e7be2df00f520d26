"""What this installation offers according to its rows: pools, nodes, runtimes, workers, data folders."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import Count, Max, Q, QuerySet, Sum
from django.db.models.functions import Now
from django.utils import timezone

from jobs import clusters
from jobs.models import SCHEDULER, ClusterNode, PeriodicTask, Runtime, Worker
from jobs.selectors.domains import largest_domains
from jobs.spec import Context, Spec, TypeCapacity
from tenants import audit_forward
from tenants.models import Tenant, User
from tenants.services import images, secrets

FACTS = """
SELECT (SELECT coalesce(json_agg(json_build_array(slug, image)), '[]') FROM jobs_runtime WHERE enabled),
       (SELECT coalesce(json_agg(json_build_array(slot_type, slots, on_one, memory_mib, cpus)), '[]')
        FROM (SELECT slot_type, sum(slots) AS slots, max(slots) AS on_one,
              CASE WHEN bool_and(memory_mib IS NOT NULL) THEN max(memory_mib) END AS memory_mib,
              CASE WHEN bool_and(cpus IS NOT NULL) THEN max(cpus - learner_cpus) END AS cpus
              FROM jobs_clusternode GROUP BY 1) sizes),
       (SELECT coalesce(json_agg(json_build_array(gpu_type, "limit", user_limit, gang_limit)), '[]')
        FROM tenants_quota WHERE tenant_id = %s),
       (SELECT coalesce(json_object_agg(slug, limits), '{}') FROM (
          SELECT slug, coalesce(json_object_agg(gpu_type, "limit") FILTER (WHERE "limit" IS NOT NULL), '{}') AS limits
          FROM tenants_project p LEFT JOIN tenants_projectshare s ON s.project_id = p.id
          WHERE tenant_id = %s GROUP BY slug) shares)
"""
"""Runtimes, pools, a tenant's limits and its projects in one query: every submit needs them."""


def mail_problem() -> str:
    """Why the last try to mail security notices failed; empty: it did not."""
    return str(_result("mail").get("problem", ""))


@dataclass(frozen=True, slots=True)
class AuditSending:
    """Where the audit log is sent to. place: up to which of its chain everything has arrived. problem: why the last try
    failed; empty: it did not. lacked_s: seconds since a worker ran without the address; None: none did."""

    place: int
    problem: str
    lacked_s: float | None


def audit_sending() -> AuditSending | None:
    """To the address that this process has, else to the one that a worker had last; None: nothing is sent."""
    found, now_s = _result("forward"), audit_forward.database_s()
    named, address = audit_forward.named_by(found, now_s), settings.LUTHIER_AUDIT_URL
    mark = (
        max(named, key=lambda each: named[each], default="")
        if address is None
        else audit_forward.mark(address)
    )
    if not mark:
        return None
    return AuditSending(
        place=int(found.get("places", {}).get(mark, 0)),
        problem=str(found["problem"]) if found.get("to") == mark else "",
        lacked_s=now_s - found["lacked_at"] if "lacked_at" in found else None,
    )


def audit_taken() -> int | None:
    """The place in the audit log's chain up to which every address has everything that this process has, or that a
    worker had within audit_forward.NAMED_S; None: there is none."""
    found, address = _result("forward"), settings.LUTHIER_AUDIT_URL
    marks = {*audit_forward.named_by(found, audit_forward.database_s())}
    if address is not None:
        marks.add(audit_forward.mark(address))
    return min((int(found.get("places", {}).get(mark, 0)) for mark in marks), default=None)


def _result(task: str) -> dict[str, Any]:
    """Of the last run of a periodic task; empty: it has not run."""
    row = PeriodicTask.objects.filter(name=task).first()
    return dict(row.result) if row else {}


def nodes() -> QuerySet[ClusterNode]:
    """Every node as the scheduling cycle last saw it, by name."""
    return ClusterNode.objects.order_by("name")


def nodes_ready(cluster: str) -> tuple[int, int]:
    """How many nodes of this cluster were ready as the scheduling cycle last saw it, and how many there were."""
    found = ClusterNode.objects.filter(cluster=cluster).aggregate(
        ready=Count("pk", filter=Q(ready=True)), known=Count("pk")
    )
    return found["ready"], found["known"]


def pools() -> dict[str, TypeCapacity]:
    """Slots per type, whether free, busy or down: an upper bound for any job."""
    rows = ClusterNode.objects.order_by().values_list("slot_type").annotate(Sum("slots"), Max("slots"))
    return {slot_type: TypeCapacity(slots, on_one) for slot_type, slots, on_one in rows}


def workers_alive(silence_s: float) -> int:
    """Worker processes that polled for due jobs within the last silence_s seconds."""
    return _workers().filter(seen_at__gt=Now() - timedelta(seconds=silence_s)).count()


def _workers() -> QuerySet[Worker]:
    """Those that bring jobs on."""
    return Worker.objects.exclude(name__startswith=SCHEDULER)


PASS_OVERDUE_S = 30
"""A pass is made every 5 s at the latest, and a frozen worker keeps the next one waiting for one LUTHIER_LEASE_S."""


@dataclass(frozen=True, slots=True)
class LastPass:
    """age_s: seconds since a pass of the scheduling cycle completed; None: none did yet. problem: why the newest one
    did not complete; empty if it did or is under way. holder: who makes passes now; empty: no worker."""

    age_s: float | None
    problem: str
    holder: str

    @property
    def is_overdue(self) -> bool:
        """Whether a later pass should have completed by now. False before the first."""
        return self.age_s is not None and abs(self.age_s) > pass_limit_s()

    @property
    def missed_cluster(self) -> bool:
        """Whether the newest pass did not complete because of the cluster."""
        return self.problem.startswith(clusters.NO_RESPONSE)


def pass_limit_s() -> float:
    """The longest time between two completed passes of a scheduling cycle that works."""
    return max(PASS_OVERDUE_S, 3 * float(settings.LUTHIER_LEASE_S))


def last_pass() -> LastPass:
    """The newest completed pass of the scheduling cycle, by the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT extract(epoch FROM clock_timestamp() - done_at)::float FROM jobs_periodictask"
            " WHERE name = %(name)s), problem, coalesce(w.name, owner) FROM (SELECT 1) one"
            " LEFT JOIN jobs_schedulinglease lease ON lease.name = %(name)s"
            " LEFT JOIN jobs_worker w ON w.id::text = lease.owner",
            {"name": PeriodicTask.CYCLE},
        )
        age_s, problem, holder = cursor.fetchone()
    return LastPass(age_s, problem or "", (holder or "").removeprefix(SCHEDULER))


def unknown_gangs() -> list[str]:
    """Names of the gangs on the cluster of which this database has no attempt, as of the last look for orphans."""
    found = PeriodicTask.objects.filter(name="orphans").values_list("result__unknown", flat=True).first()
    return sorted(found or {})


def runtimes() -> QuerySet[Runtime]:
    """The frameworks that a job can name."""
    return Runtime.objects.filter(enabled=True).order_by("slug")


def data_root() -> Path:
    """The folder that contains all data of jobs."""
    return Path(getattr(settings, "LUTHIER_DATA_ROOT", settings.LUTHIER_DATA / "datasets"))


def spec_context(tenant: Tenant, spec: Spec, user: User) -> Context:
    """What jobs.spec.check is allowed to know about this installation and tenant. user: whose job it would be."""
    with connection.cursor() as cursor:
        cursor.execute(FACTS, [tenant.pk, tenant.pk])
        known, sizes, limits, of_tenant = cursor.fetchone()
    found = _existing_data(spec)
    missing = found is not None and any(mount.path not in found for mount in spec.data)
    return Context(
        images=clusters.capabilities().images,
        pythons=_pythons(spec),
        packages=clusters.capabilities().pythons is not None,
        runtimes=frozenset(slug for slug, _ in known),
        image_patterns=images.effective_patterns(tenant),
        runtime_images={slug: image for slug, image in known if image},
        pools={slot_type: TypeCapacity(*size) for slot_type, *size in sizes},
        domains={} if spec.topology is None else largest_domains(spec),
        limits={kind: limit for kind, limit, _, _ in limits},
        user_limits={kind: limit for kind, _, limit, _ in limits if limit is not None},
        gang_limits={kind: limit for kind, _, _, limit in limits if limit is not None},
        max_time_s=tenant.max_time_s,
        priorities=frozenset(tenant.priorities),
        data_paths=found,
        data_folders=_data_folders() if missing else (),
        secrets=secrets.names_for(user, tenant) if spec.secrets else None,
        projects=of_tenant,
    )


def _pythons(spec: Spec) -> frozenset[str] | None:
    """Versions of plain Python here; looked for only for a job that asks for one."""
    find = clusters.capabilities().pythons
    return frozenset(find()) if spec.python and find is not None else None


def _existing_data(spec: Spec) -> frozenset[str] | None:
    """Which of the spec's paths exist; its own rules keep them below the root. None: not visible from here."""
    root = data_root()
    if not (clusters.capabilities().node_local_data and spec.data):
        return None
    return frozenset(mount.path for mount in spec.data if _is_folder(root / mount.path))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # not readable for us, or not a valid file name
        return False


def _data_folders() -> tuple[str, ...] | None:
    """Names of the folders in the data root, sorted; without hidden ones. None: the root cannot be read."""
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
"""A worker is working if it polled for due jobs within this time; the same limit as /readyz."""


@dataclass(frozen=True, slots=True)
class Working:
    """Celery workers with a recent heartbeat, all that have a row, and the newest heartbeat."""

    workers: int
    known: int
    seen_at: datetime | None


def working() -> Working:
    rows = _workers().aggregate(known=Count("pk"), seen=Max("seen_at"))
    fresh = _workers().filter(seen_at__gt=timezone.now() - FRESH).count()
    return Working(fresh, rows["known"], rows["seen"])
