"""The admission rules, in the order in which a job is tested: what the cluster has at all, what the tenant is allowed
to use, and what is free on the nodes now and not reserved for jobs ahead in the queue."""

from __future__ import annotations

from gpu_scheduler.checks.base import Check
from gpu_scheduler.checks.cluster import MatchingPool, NodeSize
from gpu_scheduler.checks.job import MaxGang, MaxTime
from gpu_scheduler.checks.nodes import Capacity, Idle, NodeCpus, NodeMemory, WholeGang
from gpu_scheduler.checks.project import ProjectMax, ProjectRoom
from gpu_scheduler.checks.quota import CohortRoom, HasQuota, MaxQuota, QuotaRoom
from gpu_scheduler.checks.reservation import Unreserved
from gpu_scheduler.checks.tenant import ActiveTenant, GpuBudget, JobsLimit
from gpu_scheduler.checks.topology import OneDomain, TopologySize
from gpu_scheduler.checks.user import UserJobs, UserMax, UserRoom

CHECKS: tuple[Check, ...] = (
    MatchingPool(),
    NodeSize(),
    TopologySize(),
    MaxQuota(),
    MaxGang(),
    MaxTime(),
    UserMax(),
    ProjectMax(),
    ActiveTenant(),
    GpuBudget(),
    UserRoom(),
    UserJobs(),
    ProjectRoom(),
    QuotaRoom(),
    CohortRoom(),
    JobsLimit(),
    Unreserved(),
    Capacity(),
    WholeGang(),
    NodeCpus(),
    NodeMemory(),
    OneDomain(),
)
OPPORTUNISTIC_CHECKS: tuple[Check, ...] = (
    MatchingPool(),
    NodeSize(),
    TopologySize(),
    HasQuota(),
    MaxGang(),
    MaxTime(),
    UserMax(),
    ActiveTenant(),
    UserRoom(),
    UserJobs(),
    Idle(),
    WholeGang(),
    NodeCpus(),
    NodeMemory(),
    OneDomain(),
)
"""Those of an opportunistic job: it counts against no quota, no budget, no project and no limit of its tenant's live
jobs. What it may have beside its user's other jobs is what that user's limits leave."""
