"""Scheduling policies, by the name that selects them in LUTHIER_SCHEDULER_POLICY.

To add a policy: write a ``Policy`` (``policies.base``) in a module of its own and list it in ``POLICIES``. The settings
read this module in every process, so it imports none of the policies.
"""

from __future__ import annotations

POLICIES: dict[str, str] = {
    "fair_share": "gpu_scheduler.policies.fair_share.FairShare",
    "fair_share_history": "gpu_scheduler.policies.history.FairShareHistory",
    "fifo": "gpu_scheduler.policies.fifo.Fifo",
    "fifo_backfill": "gpu_scheduler.policies.fifo.FifoBackfill",
}
"""Name -> the class, which is called without arguments."""


class BadPolicy(ValueError):
    """The setting names a policy that does not exist, or cannot be read."""


def names_in(setting: str) -> tuple[str, dict[str, str]]:
    """The policies of a setting: a name, and those that replace it for single slot types, as "NAME,TYPE:NAME".

    Raises BadPolicy.
    """
    default, *parts = [part.strip() for part in setting.split(",")]
    pools: dict[str, str] = {}
    for part in parts:
        slot_type, colon, name = part.partition(":")
        if not colon or not slot_type or slot_type in pools:
            raise BadPolicy(f'"{part}" is not <slot type>:<policy>, once per type')
        pools[slot_type] = name
    for name in (default, *pools.values()):
        if name not in POLICIES:
            raise BadPolicy(f'"{name}" is not a scheduling policy; known: {", ".join(sorted(POLICIES))}')
    return default, pools
