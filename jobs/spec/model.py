"""A valid job spec as frozen values. Units: seconds, MiB, whole slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_scheduler.model import Level, Range, Topology, slot_type_of
from jobs.spec import quantities
from jobs.spec.definition import API_VERSION, DEFAULTS
from jobs.spec.problems import Problem


@dataclass(frozen=True, slots=True)
class Code:
    """Exactly one of the two: files as (path, text) in order, or the id of an upload."""

    files: tuple[tuple[str, str], ...] = ()
    upload: str | None = None


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """Per learner, but for learners themselves and batch, the samples in a step over all of them; None: the program's
    own."""

    learners: Range
    gpus: int
    gpu_type: str | None
    cpus: int
    memory_mib: int
    batch: Range | None = None


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of the data root, seen as $DATA_DIR/<name>."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class CheckpointRules:
    """How often to save, how many to keep, how long a halt waits.

    step: a regular expression with a group ``step`` for the file names of checkpoints without a manifest.
    """

    every_s: int
    keep: int
    grace_s: int
    step: str | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """One training job. Only ``parse`` makes these, so a Spec is valid by construction.

    distributed: None if omitted: it follows the number of learners, which a clone may change.
    """

    name: str
    tags: tuple[str, ...]
    framework: str | None
    image: str | None
    code: Code | None
    requirements: tuple[str, ...]
    requirements_file: str | None
    python: str | None
    setup: tuple[str, ...]
    command: str | tuple[str, ...]
    resources: ResourceRequest
    distributed: bool | None
    placement: str
    topology: Topology | None
    priority: str
    opportunistic: bool
    project: str | None
    data: tuple[Mount, ...]
    checkpoint: CheckpointRules
    keep: tuple[str, ...]
    metrics: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    secrets: tuple[tuple[str, str], ...]
    max_restarts: int
    time_limit_s: int | None
    warnings: tuple[Problem, ...] = field(default=(), compare=False)

    @property
    def slots_per_learner(self) -> int:
        """GPUs per learner; CPU slots for a job without GPUs."""
        return self.resources.gpus or self.resources.cpus

    @property
    def asked(self) -> int:
        """Slots over all its learners, the fewest with which it can run."""
        return self.slots_per_learner * self.resources.learners.min

    @property
    def slot_type(self) -> str | None:
        """GPU type, None for any, ``cpu`` for a job without GPUs."""
        return slot_type_of(self.resources.gpus, self.resources.gpu_type)

    @property
    def normalized(self) -> dict[str, Any]:
        """Return the spec as plain JSON values: every default filled, units canonical, absent keys left out.

        Parsing it again gives an equal Spec.
        """
        whole = {
            "apiVersion": API_VERSION,
            "name": self.name,
            "tags": list(self.tags),
            "framework": self.framework,
            "image": self.image,
            "code": _code_dict(self.code),
            "requirements": _requirements_value(self),
            "python": self.python,
            "setup": list(self.setup) or None,
            "command": self.command if isinstance(self.command, str) else list(self.command),
            "resources": _resources_dict(self.resources),
            "distributed": self.distributed,
            "placement": self.placement,
            "topology": _topology_dict(self.topology),
            "priority": self.priority,
            "opportunistic": self.opportunistic
            or None,  # a version before this field can read all other specs
            "project": self.project,
            "data": [{"name": mount.name, "path": mount.path} for mount in self.data],
            "checkpoint": _checkpoint_dict(self.checkpoint),
            "keep": list(self.keep),
            "metrics": [{"pattern": pattern} for pattern in self.metrics],
            "env": dict(self.env),
            "secrets": dict(self.secrets) or None,
            "max_restarts": self.max_restarts,
            "time_limit": None if self.time_limit_s is None else quantities.print_duration(self.time_limit_s),
        }
        return {key: value for key, value in whole.items() if value is not None}


def build(value: Mapping[str, Any], warnings: tuple[Problem, ...]) -> Spec:
    """Make a Spec of a value that passed every check, filling defaults."""
    checkpoint = DEFAULTS["checkpoint"] | dict(value.get("checkpoint", {}))
    command = value["command"]
    time_limit = value.get("time_limit")
    requirements = value.get("requirements", ())
    return Spec(
        name=value["name"],
        tags=tuple(value.get("tags", ())),
        framework=value.get("framework"),
        image=value.get("image"),
        code=_build_code(value.get("code")),
        requirements=tuple(requirements) if not isinstance(requirements, Mapping) else (),
        requirements_file=requirements["file"] if isinstance(requirements, Mapping) else None,
        python=value.get("python"),
        setup=tuple(value.get("setup", ())),
        command=_lines(command) if isinstance(command, str) else tuple(command),
        resources=_build_resources(DEFAULTS["resources"] | dict(value.get("resources", {}))),
        distributed=value.get("distributed"),
        placement=value.get("placement", DEFAULTS["placement"]),
        topology=_build_topology(value.get("topology", {})),
        priority=value.get("priority", DEFAULTS["priority"]),
        opportunistic=value.get("opportunistic", DEFAULTS["opportunistic"]),
        project=value.get("project"),
        data=tuple(Mount(mount["name"], mount["path"]) for mount in value.get("data", ())),
        checkpoint=CheckpointRules(
            every_s=quantities.parse_duration(checkpoint["every"]),
            keep=int(checkpoint["keep"]),
            grace_s=quantities.parse_duration(checkpoint["grace"]),
            step=checkpoint.get("step"),
        ),
        keep=tuple(value.get("keep", DEFAULTS["keep"])),
        metrics=tuple(rule["pattern"] for rule in value.get("metrics", ())),
        env=tuple((name, written(text)) for name, text in value.get("env", {}).items()),
        secrets=tuple(value.get("secrets", {}).items()),
        max_restarts=int(value.get("max_restarts", DEFAULTS["max_restarts"])),
        time_limit_s=None if time_limit is None else quantities.parse_duration(time_limit),
        warnings=warnings,
    )


def _lines(command: str) -> str:
    """A shell takes a carriage return, as editors of some systems and HTML forms write it, for part of a word."""
    return command.replace("\r\n", "\n").rstrip("\r\n")


def written(value: Any) -> str:
    """Return an environment value as text: a number as it was written, true and false in lower case."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(getattr(value, "text", value))


def _build_code(code: Mapping[str, Any] | None) -> Code | None:
    if code is None:
        return None
    return Code(files=tuple(code.get("files", {}).items()), upload=code.get("upload"))


def _build_resources(resources: Mapping[str, Any]) -> ResourceRequest:
    gpus = int(resources["gpus"])
    return ResourceRequest(
        learners=size_of(resources["learners"]),
        gpus=gpus,
        gpu_type=resources.get("gpu_type") if gpus else None,
        cpus=int(resources["cpus"]),
        memory_mib=quantities.parse_memory(resources["memory"]),
        batch=size_of(resources["batch"]) if "batch" in resources else None,
    )


def size_of(value: int | Mapping[str, int]) -> Range:
    """A number, or a range of numbers, of a valid spec."""
    if isinstance(value, Mapping):
        return Range(int(value["min"]), int(value["max"]))
    return Range.fixed(int(value))


def _size_value(size: Range) -> int | dict[str, int]:
    return size.min if size.is_fixed else _range_value(size)


def _range_value(ends: Range) -> dict[str, int]:
    return {"min": ends.min, "max": ends.max}


def _build_topology(topology: Mapping[str, str]) -> Topology | None:
    return next((Topology(Level(level), kind == "required") for kind, level in topology.items()), None)


def _topology_dict(topology: Topology | None) -> dict[str, str] | None:
    if topology is None:
        return None
    return {"required" if topology.required else "preferred": topology.level.value}


def _requirements_value(spec: Spec) -> list[str] | dict[str, str] | None:
    return {"file": spec.requirements_file} if spec.requirements_file else list(spec.requirements) or None


def _code_dict(code: Code | None) -> dict[str, Any] | None:
    if code is None:
        return None
    return {"upload": code.upload} if code.upload else {"files": dict(code.files)}


def _checkpoint_dict(rules: CheckpointRules) -> dict[str, Any]:
    whole = {
        "every": quantities.print_duration(rules.every_s),
        "keep": rules.keep,
        "grace": quantities.print_duration(rules.grace_s),
        "step": rules.step,
    }
    return {key: value for key, value in whole.items() if value is not None}


def _resources_dict(resources: ResourceRequest) -> dict[str, Any]:
    whole = {
        "learners": _size_value(resources.learners),
        "batch": None if resources.batch is None else _range_value(resources.batch),
        "gpus": resources.gpus,
        "gpu_type": resources.gpu_type,
        "cpus": resources.cpus,
        "memory": quantities.print_memory(resources.memory_mib),
    }
    return {key: value for key, value in whole.items() if value is not None}
