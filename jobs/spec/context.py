"""Whether this installation can serve a valid spec."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_scheduler.model import CPU_TYPE, Level, unit
from jobs.spec import quantities
from jobs.spec.definition import DEFAULT_PROJECT, DEFAULTS, PRIORITIES
from jobs.spec.model import Spec
from jobs.spec.problems import Problem, path_text, printable
from jobs.spec.walk import nearest
from tenants.images import is_allowed, read_image

IMAGES_UNSUPPORTED = "This cluster cannot run images; name a runtime in framework instead"
PACKAGES_UNSUPPORTED = "This cluster cannot add packages to a framework: use setup, or an image that has them"
DEFAULT_MIB = quantities.parse_memory(DEFAULTS["resources"]["memory"])
"""The default memory: a spec that does not set it is not rejected where nodes are smaller."""
SECRETS_SHOWN = 20
"""The most names of secrets that an error lists."""
BY_ADMIN = "Request fewer, or ask a platform admin to raise the limit"
BY_MANAGER = (
    "Request fewer, name another project, or ask a manager of the tenant to raise the project's limit"
)
DATA_SHOWN = 10
"""The most folders of the data root that an error lists."""


@dataclass(frozen=True, slots=True)
class TypeCapacity:
    """What the cluster has of one slot type, busy or not: slots in all, and on its largest node.

    memory_mib, cpus: the most that one learner can have on a node; None if that of any node is unknown, so that nothing
    is rejected. cpus is None for type ``cpu``, whose slots are CPUs.
    """

    slots: int
    slots_per_node: int
    memory_mib: int | None = None
    cpus: float | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """What the check may know of the installation and the tenant; None or empty means not to be checked.

    images: the cluster runs container images. image_patterns: those that the tenant's jobs may run (tenants.images).
    runtime_images: of runtimes that are an image. pythons: versions of plain Python here (None: unknown).
    packages: jobs may have packages of their own, or a plain Python.
    pools: slot type -> TypeCapacity (``cpu`` among them). limits: slot type -> the tenant's quota in slots; a type
    without row has none. user_limits, gang_limits: slot type -> the most slots that one user, or one job, can have
    there, where that is limited. max_time_s: the longest time limit of a job (None: it needs none). priorities: what
    this tenant may use. data_paths: which of the spec's data paths exist below the data root (None: unknown here).
    domains: level -> the most of the job's learners that one domain of it could hold, of the level that the job
    requires and the larger ones; empty: not to be checked. data_folders: its folders, for the remedy (None: the data
    root cannot be read). secrets: the names that this submitter's jobs may be granted.
    projects: those of the tenant, each with its limits by slot type, where it has one.
    """

    images: bool = False
    image_patterns: tuple[str, ...] = ()
    runtime_images: Mapping[str, str] = field(default_factory=dict)
    runtimes: frozenset[str] = frozenset()
    pythons: frozenset[str] | None = None
    packages: bool = True
    pools: Mapping[str, TypeCapacity] = field(default_factory=dict)
    domains: Mapping[Level, int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    user_limits: Mapping[str, int] = field(default_factory=dict)
    gang_limits: Mapping[str, int] = field(default_factory=dict)
    max_time_s: int | None = None
    priorities: frozenset[str] = frozenset(PRIORITIES)
    data_paths: frozenset[str] | None = None
    data_folders: tuple[str, ...] | None = ()
    secrets: frozenset[str] | None = None
    projects: Mapping[str, Mapping[str, int]] | None = None

    def project_of(self, spec: Spec) -> str:
        """The project that the job is in; "": none."""
        if spec.project is not None:
            return spec.project
        return DEFAULT_PROJECT if self.projects and DEFAULT_PROJECT in self.projects else ""


@dataclass(frozen=True, slots=True)
class Findings:
    """errors reject the job; warnings are shown and the job may still be submitted."""

    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


def check(spec: Spec, context: Context) -> Findings:
    """Compare a valid spec with an installation. Never raises. A quota rejects nothing: it warns of a wait.
    The limits for one user, one job and the job's project reject what could not start while they are."""
    errors = (
        *_runtime_errors(spec, context),
        *_package_errors(spec, context),
        *_capacity_errors(spec, context),
        *_tenant_errors(spec, context),
        *_limit_errors(spec, context),
        *_time_errors(spec, context),
        *_secret_errors(spec, context),
    )
    return Findings(errors, tuple(_quota_warnings(spec, context)))


def _runtime_errors(spec: Spec, context: Context) -> Iterator[Problem]:
    if spec.image and not context.images:
        runtimes = _listed(context.runtimes)
        yield Problem("image", "image_not_allowed", IMAGES_UNSUPPORTED, printable(spec.image), runtimes)
    elif context.images:
        # Each by itself: a spec that names both is refused anyway, and one of them is to be removed.
        of_runtime = context.runtime_images.get(spec.framework or "")
        for image, of_framework in ((spec.image, None), (None, of_runtime)):
            if problem := image_problem(image, of_framework, context.image_patterns):
                yield problem
    if spec.framework and spec.framework not in context.runtimes:
        near = nearest(spec.framework, sorted(context.runtimes))
        hint = f". Did you mean {near}?" if near else ""
        message = f"This installation has no runtime {spec.framework}{hint}"
        allowed = _listed(context.runtimes)
        yield Problem("framework", "runtime_not_found", message, spec.framework, allowed, near=near)


def _package_errors(spec: Spec, context: Context) -> Iterator[Problem]:
    if not context.packages:
        if spec.python:
            message = "This cluster runs container images, no plain Python; name one in image, or a framework"
            yield Problem("python", "packages_unsupported", message, spec.python, _listed(context.runtimes))
        if spec.requirements or spec.requirements_file:
            yield Problem("requirements", "packages_unsupported", PACKAGES_UNSUPPORTED)
    elif spec.python and context.pythons is not None and spec.python not in context.pythons:
        message = f"This installation has no Python {spec.python}"
        yield Problem("python", "python_not_found", message, spec.python, _listed(context.pythons))


def _capacity_errors(spec: Spec, context: Context) -> Iterator[Problem]:
    if not context.pools:
        return
    field_name = "resources.gpus" if spec.resources.gpus else "resources.cpus"
    kind, each = spec.slot_type, spec.slots_per_learner
    pools = _matching_pools(spec, context)
    if not pools:
        if kind is None:
            message = "This cluster has no GPUs: set gpus to 0, or remove it"
            yield Problem(field_name, "exceeds_cluster", message, str(each), "0")
        else:
            place = "resources.gpu_type" if spec.resources.gpus else field_name
            message = f"This cluster has no devices of type {kind}"
            yield Problem(place, "gpu_type_not_found", message, kind, _listed(frozenset(context.pools)))
        return
    largest = max(pool.slots_per_node for pool in pools)
    if each > largest:
        message = f"No node has that many: the largest has {largest}"
        yield Problem(field_name, "exceeds_cluster", message, str(each), f"at most {largest}")
    elif (learners := spec.resources.learners.min) > (
        fit := max(pool.slots // each for pool in pools if pool.slots_per_node >= each)
    ):
        message = f"At most {fit} learners of {each} can run at the same time: {learners} never can"
        yield Problem(_fewest(spec), "exceeds_cluster", message, str(learners), f"at most {fit}")
    else:
        yield from _domain_errors(spec, context)
    yield from _beside_slots(spec, pools)


def _fewest(spec: Spec) -> str:
    """The path of the fewest learners with which the job can run: more is what it may get, not what it needs."""
    return "resources.learners" if spec.resources.learners.is_fixed else "resources.learners.min"


def _domain_errors(spec: Spec, context: Context) -> Iterator[Problem]:
    """More learners than any domain of the level that the job requires could ever hold."""
    if spec.topology is None or not context.domains:
        return
    level, learners = spec.topology.level, spec.resources.learners.min
    most = context.domains[level]
    if learners > most:
        enough = [each.value for each in level.larger if context.domains[each] >= learners]
        wider = f"a {' or a '.join(enough)}, " if enough else ""
        message = (
            f"No {level} of this cluster could ever hold {learners} such learners, the largest holds {most}: request"
            f" fewer learners, {wider}or say preferred instead of required"
        )
        allowed = ", ".join([f"at most {most} learners", *enough])
        yield Problem("topology.required", "exceeds_cluster", message, level.value, allowed)


def _beside_slots(spec: Spec, pools: list[TypeCapacity]) -> Iterator[Problem]:
    """What no node has for one learner, whatever else runs."""
    cpus = [pool.cpus for pool in pools if pool.cpus is not None]
    if len(cpus) == len(pools) and spec.resources.cpus > (most_cpus := max(cpus)):
        message = f"No node with such devices has that many: a learner can have at most {most_cpus:g}"
        yield Problem(
            "resources.cpus",
            "exceeds_cluster",
            message,
            str(spec.resources.cpus),
            f"at most {math.floor(most_cpus)}",
        )
    known = [pool.memory_mib for pool in pools if pool.memory_mib is not None]
    if len(known) == len(pools) and spec.resources.memory_mib > max(DEFAULT_MIB, most := max(known)):
        message = f"No node has that much: the largest has {quantities.say_memory(most)}"
        asked, have = quantities.print_memory(spec.resources.memory_mib), quantities.print_memory(most)
        yield Problem("resources.memory", "exceeds_cluster", message, asked, f"at most {have}")


def _tenant_errors(spec: Spec, context: Context) -> Iterator[Problem]:
    if spec.priority not in context.priorities:
        yield priority_problem(spec.priority, context.priorities)
    if spec.project is not None and context.projects is not None and spec.project not in context.projects:
        yield _project_problem(spec.project, sorted(context.projects))
    for index, mount in enumerate(spec.data):
        if context.data_paths is not None and mount.path not in context.data_paths:
            message = (
                f"is not a folder below this installation's data root, which {_holds(context.data_folders)}"
            )
            yield Problem(f"data[{index}].path", "data_not_found", message, printable(mount.path))


def _project_problem(project: str, known: list[str]) -> Problem:
    near = nearest(project, known)
    remedy = "Remove project" if not known else "Name one of its projects, or remove project"
    hint = f"Did you mean {near}?" if near else f"{remedy}; a manager of the tenant can add one."
    message = f"This tenant has no project {project}. {hint}"
    return Problem("project", "project_not_found", message, project, _shown(known), near=near)


def _limit_errors(spec: Spec, context: Context) -> Iterator[Problem]:
    """What the tenant allows no job, no user at once, or not the job's project, on any type that the job takes."""
    asked, project = spec.asked, "" if spec.opportunistic else context.project_of(spec)
    kinds = [spec.slot_type] if spec.slot_type else [kind for kind in context.pools if kind != CPU_TYPE]
    of_project = (context.projects or {}).get(project, {})
    limits = (
        ("exceeds_gang_limit", context.gang_limits, "a job of this tenant", BY_ADMIN),
        ("exceeds_user_limit", context.user_limits, "one user of this tenant", BY_ADMIN),
        ("exceeds_project_limit", of_project, f"project {project} of this tenant", BY_MANAGER),
    )
    exceeded = [
        (most, code, whose, remedy)
        for code, of_kind, whose, remedy in limits
        if (most := max((of_kind.get(kind, asked) for kind in kinds), default=asked)) < asked
    ]
    if not exceeded:  # each is wide enough on some type, but no type for all
        whose = (
            f"one user's job of project {project} in this tenant"
            if of_project
            else "one user's job in this tenant"
        )
        least = [
            min((of_kind.get(kind, asked), code, whose, by) for code, of_kind, _, by in limits)
            for kind in kinds
        ]
        exceeded = [each for each in [max(least, default=(asked, "", "", ""))] if each[0] < asked]
    place = f"resources.{'gpus' if spec.resources.gpus else 'cpus'}"
    for most, code, whose, remedy in exceeded:
        size = f"{asked} {unit(spec.slot_type or '', asked)}"
        message = f"requests {size} in all; {whose} can have {most} at once. {remedy}"
        path = _fewest(spec) if spec.resources.learners.min > 1 else place
        yield Problem(path, code, message, str(asked), f"at most {most}")


def _time_errors(spec: Spec, context: Context) -> Iterator[Problem]:
    longest = context.max_time_s
    if longest is not None and (spec.time_limit_s is None or spec.time_limit_s > longest):
        most = quantities.print_duration(longest)
        message = f"Jobs of this tenant need a time limit of {most} or less: set time_limit to {most}"
        got = None if spec.time_limit_s is None else quantities.print_duration(spec.time_limit_s)
        place = "time_limit"
        yield Problem(place, "exceeds_time_limit", message, got, f"at most {most}")


def _secret_errors(spec: Spec, context: Context) -> Iterator[Problem]:
    if context.secrets is None:
        return
    known = sorted(context.secrets)
    for variable, name in spec.secrets:
        if name in context.secrets:
            continue
        near = nearest(name, known)
        hint = (
            f"Did you mean {near}?" if near else "Add it to your own secrets, or ask a manager of the tenant."
        )
        message = f"Neither you nor this tenant has a secret named {name}. {hint}"
        path = path_text(("secrets", variable))
        yield Problem(path, "secret_not_found", message, name, _shown(known), near=near)


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - SECRETS_SHOWN} more" if len(names) > SECRETS_SHOWN else ""
    return (", ".join(names[:SECRETS_SHOWN]) or "none") + more


def image_problem(own: str | None, of_runtime: str | None, patterns: Sequence[str]) -> Problem | None:
    """The tenant's patterns allow neither the spec's own image nor that of its framework; None: they do, or it has
    neither. A reference that cannot be read is never allowed."""
    text = own or of_runtime
    if not text:
        return None
    try:
        image = read_image(text)
    except ValueError as error:
        full, why = text, f"is not allowed: it {error}"
    else:
        if is_allowed(image, patterns):
            return None
        full, why = str(image), "is not allowed for this tenant"
    what = "Image" if own else "The framework's image"
    remedy = "A platform admin can allow it on the tenant's page in the admin console."
    message, field_name = f"{what} {printable(full)} {why}. {remedy}", "image" if own else "framework"
    return Problem(field_name, "image_not_allowed", message, printable(text), _shown(patterns))


def priority_problem(priority: str, allowed: Collection[str]) -> Problem:
    """The tenant may not use this priority."""
    names = ", ".join(level for level in PRIORITIES if level in allowed)
    message = f"This tenant may use {names}. Ask a platform admin for another priority."
    return Problem("priority", "priority_not_allowed", message, priority, names)


def _holds(folders: tuple[str, ...] | None) -> str:
    """The content of the data root as text, with the remedy if there is none."""
    if folders is None:
        return "cannot be read; an operator of this installation must give the platform's user read access"
    if not folders:
        return "is empty; an operator of this installation must add data sets there"
    shown = ", ".join(map(printable, folders[:DATA_SHOWN]))
    return f"holds {shown}" + (f" and {len(folders) - DATA_SHOWN} more" if len(folders) > DATA_SHOWN else "")


def _quota_warnings(spec: Spec, context: Context) -> Iterator[Problem]:
    asked = spec.asked
    kinds = [spec.slot_type] if spec.slot_type else [kind for kind in context.pools if kind != CPU_TYPE]
    limit = max((context.limits.get(kind, 0) for kind in kinds if kind), default=0)
    if spec.opportunistic and not context.limits.keys().isdisjoint(kinds):
        return  # it takes nothing of them
    if asked > limit:
        what = f"{asked} {unit(spec.slot_type, asked)}" if spec.slot_type else f"{asked} GPUs of one type"
        quota = f"the tenant's quota is {limit}" if limit else "the tenant has no quota for them"
        message = f"requests {what}; {quota}, so the job waits until the quota is raised"
        place = "resources.gpus" if spec.resources.gpus else "resources.cpus"
        yield Problem(place, "above_quota", message, str(asked), f"at most {limit}" if limit else "none")


def _matching_pools(spec: Spec, context: Context) -> list[TypeCapacity]:
    kind = spec.slot_type
    if kind is not None:
        return [context.pools[kind]] if kind in context.pools else []
    return [pool for name, pool in context.pools.items() if name != CPU_TYPE]


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"
