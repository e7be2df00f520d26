"""The job spec ``luthier/v1``: read, check, normalize, print. Pure Python: no Django, no I/O, no clock.

``parse`` answers what a spec means; ``check`` whether this installation can serve it.
"""

from jobs.spec.context import Context, Findings, TypeCapacity, check
from jobs.spec.definition import API_VERSION, json_schema
from jobs.spec.model import CheckpointRules, Code, Mount, ResourceRequest, Spec
from jobs.spec.parsing import parse
from jobs.spec.printing import in_order, to_yaml
from jobs.spec.problems import Problem, SpecError
from jobs.spec.sound import Sound, sound_part

__all__ = [
    "API_VERSION",
    "CheckpointRules",
    "Code",
    "Context",
    "Findings",
    "Mount",
    "Problem",
    "ResourceRequest",
    "Sound",
    "Spec",
    "SpecError",
    "TypeCapacity",
    "check",
    "in_order",
    "json_schema",
    "parse",
    "sound_part",
    "to_yaml",
]
