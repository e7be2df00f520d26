"""The job spec ``luthier/v1``: read, check, normalise, print. Pure Python: no Django, no I/O, no clock.

``parse`` answers what a spec means; ``check`` whether this installation can serve it.
"""

from jobs.spec.context import Context, Findings, Pool, check
from jobs.spec.definition import API_VERSION, json_schema
from jobs.spec.model import Checkpoint, Code, Mount, Resources, Spec
from jobs.spec.parsing import parse
from jobs.spec.printing import to_yaml
from jobs.spec.problems import Problem, SpecError

__all__ = [
    "API_VERSION",
    "Checkpoint",
    "Code",
    "Context",
    "Findings",
    "Mount",
    "Pool",
    "Problem",
    "Resources",
    "Spec",
    "SpecError",
    "check",
    "json_schema",
    "parse",
    "to_yaml",
]
