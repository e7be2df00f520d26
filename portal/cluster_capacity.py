"""The capacity of this installation's cluster, for code that must not know which driver it uses."""

import time

from gpu_scheduler.clusters.base import ClusterBusy
from jobs import clusters

WAIT_S = 30
POLL_S = 0.2


def capacity_by_type(wait_s: float = WAIT_S) -> dict[str, int]:
    """Slots per type over all nodes. Waits for a cluster that is still starting; raises ClusterBusy after wait_s."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            nodes = clusters.current().nodes()
            break
        except ClusterBusy:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)
    capacity: dict[str, int] = {}
    for node in nodes:
        capacity[node.slot_type] = capacity.get(node.slot_type, 0) + node.slots
    return capacity
