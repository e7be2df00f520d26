"""simulate(scenario) -> what a policy would have done with a workload: plan() run over invented or recorded jobs.

The policy, plan() and world.apply() are those of production. Only three things are replaced: the clock (time moves from
event to event), the executor (what a start, a save and a lost node cost is in the scenario) and the workload.
"""

from gpu_scheduler.simulation.engine import simulate
from gpu_scheduler.simulation.scenario import (
    Costs,
    NodeFailure,
    Outcome,
    Rate,
    RunEnd,
    RunRecord,
    Scenario,
    SimulatedJob,
    learners_held,
)

__all__ = [
    "Costs",
    "NodeFailure",
    "Outcome",
    "Rate",
    "RunEnd",
    "RunRecord",
    "Scenario",
    "SimulatedJob",
    "learners_held",
    "simulate",
]
