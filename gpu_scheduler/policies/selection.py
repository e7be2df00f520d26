"""The policy that a setting selects."""

from __future__ import annotations

from importlib import import_module

from gpu_scheduler.policies import POLICIES, names_in
from gpu_scheduler.policies.base import Policy
from gpu_scheduler.policies.per_pool import PerPool


def policy_from(setting: str) -> Policy:
    """One policy, or several behind one if single pools have their own. Raises BadPolicy."""
    default, pools = names_in(setting)
    if not pools:
        return _made(default)
    return PerPool(_made(default), {slot_type: _made(name) for slot_type, name in pools.items()})


def _made(name: str) -> Policy:
    module, _, cls = POLICIES[name].rpartition(".")
    policy: Policy = getattr(import_module(module), cls)()
    return policy
