"""What the cluster of this installation offers, for parts of the portal that must not know which cluster it is."""

import time

from django.conf import settings

from gpu_scheduler.clusters import registry
from gpu_scheduler.clusters.base import Cluster, ClusterBusy

WAIT_S = 30
POLL_S = 0.2


def connect() -> Cluster:
    """The configured cluster. Raises ClusterError when its settings are wrong."""
    return registry.connect(
        settings.LUTHIER_CLUSTER, {"LUTHIER_NODE_SOCKET": str(settings.LUTHIER_NODE_SOCKET)}
    )


def capacity_by_type(wait_s: float = WAIT_S) -> dict[str, int]:
    """Slots per type over all nodes. Waits for a cluster that is still starting; raises ClusterBusy after wait_s."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            nodes = connect().nodes()
            break
        except ClusterBusy:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)
    capacity: dict[str, int] = {}
    for node in nodes:
        capacity[node.slot_type] = capacity.get(node.slot_type, 0) + node.slots
    return capacity
