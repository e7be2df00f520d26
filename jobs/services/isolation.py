"""Whether one more tenant may use this installation: programs of different tenants must not reach each other."""

from __future__ import annotations

from django.conf import settings

from gpu_scheduler.clusters.base import ClusterError
from jobs import clusters
from tenants.errors import TenantsNotIsolated
from tenants.models import Tenant


def require_isolation_for_one_more() -> None:
    """Raises TenantsNotIsolated if there is a tenant already and the cluster does not keep their programs apart.

    A cluster that does not say whether it does counts as one that does not.
    """
    if settings.LUTHIER_TENANTS_TRUST_EACH_OTHER or not Tenant.objects.exists():
        return
    try:
        found = clusters.isolation()
    except ClusterError as error:
        raise TenantsNotIsolated(
            f"It is not known whether the cluster isolates the programs of tenants: {error} Try again."
        ) from error
    if found is not None and not found.holds:
        raise TenantsNotIsolated(
            f"On this cluster {found.text}. A program of one tenant could read what belongs to another. Set"
            " LUTHIER_LOCAL_SANDBOX=auto where the kernel has Landlock; or, if they trust each other,"
            " set LUTHIER_TENANTS_TRUST_EACH_OTHER=yes and restart the platform."
        )
