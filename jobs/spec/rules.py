"""Rules that a schema cannot say: over several fields, over names, over sizes."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any

from gpu_scheduler.model import CPU_TYPE
from jobs.spec.definition import (
    MAX_CODE_BYTES,
    MAX_ENV_BYTES,
    MAX_METRIC_RULES,
    MAX_OPPORTUNISTIC_GRACE,
    MAX_PATTERN_CHARS,
    RUNTIME_KEYS,
)
from jobs.spec.key_like import VALUE as KEY
from jobs.spec.paths import folded, path_fault
from jobs.spec.problems import Path, Problem
from jobs.spec.quantities import UnitError, parse_duration
from jobs.spec.regexes import pattern_fault, step_pattern_fault
from jobs.spec.requirement import REQUIREMENT_HELP, requirement_fault, requirements_of
from jobs.spec.walk import Walk

RESERVED_ENV = (
    "DATA_DIR", "MODEL_DIR", "RESULT_DIR", "CHECKPOINT_DIR", "LOG_DIR", "JOB_STATE_DIR",
    "TRAINING_ID", "TRAINING_COMMAND", "LEARNER_ID", "NUM_LEARNERS", "GPU_COUNT", "LEARNER_NAME_PREFIX",
    "RESUME_FROM", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
    "GROUP_RANK", "NODE_RANK", "NNODES", "TF_CONFIG", "MPI_HOSTFILE",
    "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID",
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "PATH", "HOME", "LD_*", "DYLD_*", "KUBERNETES_*",
    "FFDL_*", "LUTHIER_*",
)  # fmt: skip
"""Names and prefixes that the platform sets itself, or that would change what runs as the program."""

FFDL_KEYS = frozenset({"data_stores", "learners", "gpus", "memory", "cpus", "evaluation_metrics"})


def rule_faults(value: Mapping[str, Any], walk: Walk) -> Iterator[Problem]:
    """Yield every broken rule. Parts of the wrong type are skipped: the schema has reported them."""
    yield from _runtime_faults(value, walk)
    yield from _requirement_faults(value, walk)
    yield from _command_faults(value.get("command"), walk)
    yield from _code_faults(value.get("code"), walk)
    yield from _resource_faults(value.get("resources"), walk)
    yield from _opportunistic_faults(value, walk)
    yield from _env_faults(value.get("env"), walk)
    yield from _secret_faults(value.get("secrets"), value.get("env"), walk)
    yield from _data_faults(value.get("data"), walk)
    yield from _checkpoint_faults(value.get("checkpoint"), walk)
    yield from _keep_faults(value.get("keep"), walk)
    yield from _metric_faults(value.get("metrics"), walk)


def foreign_manifest(value: Mapping[str, Any], walk: Walk) -> Problem | None:
    """Recognize an FfDL manifest, which would otherwise give a page of unknown fields."""
    if "apiVersion" in value or not isinstance(value.get("framework"), Mapping):
        return None
    if not FFDL_KEYS & value.keys():
        return None
    message = (
        "this is an FfDL manifest, not a luthier/v1 job: framework.command becomes command, framework.name "
        "becomes framework, learners, gpus, cpus and memory move into resources"
    )
    return walk.problem((), "ffdl_manifest", message, allowed="apiVersion: luthier/v1")


def is_reserved(name: str) -> bool:
    """Say whether the platform keeps this variable for itself."""
    return any(fnmatch.fnmatchcase(name.upper(), pattern) for pattern in RESERVED_ENV)


def _runtime_faults(value: Mapping[str, Any], walk: Walk) -> Iterator[Problem]:
    named = [key for key in RUNTIME_KEYS if key in value]
    one = "exactly one of framework, python and image"
    if not named:
        yield walk.problem(("framework",), "required", f"is required: give {one}", allowed=one)
    elif len(named) > 1:
        yield walk.problem((named[-1],), "exactly_one", f"Give {one}, not {' and '.join(named)}", allowed=one)
    if "image" not in value and "code" not in value:
        message = "is required: a framework needs code to run, as code.files or code.upload"
        yield walk.problem(("code",), "required", message, allowed="code.files or code.upload")
    image = value.get("image")
    if isinstance(image, str) and image and ":" not in image.rsplit("/", 1)[-1]:
        message = "has neither tag nor digest, so what runs could change: add one, such as :1.2"
        yield walk.problem(("image",), "image_not_allowed", message, image, "an image with tag or digest")


def _requirement_faults(value: Mapping[str, Any], walk: Walk) -> Iterator[Problem]:
    asked = value.get("requirements")
    if asked and "image" in value:
        message = "An image has its own packages: build them into the image, or install them in setup"
        yield walk.problem(("requirements",), "packages_unsupported", message)
    for index, text in enumerate(asked if isinstance(asked, list | tuple) else ()):
        fault = requirement_fault(text) if isinstance(text, str) and text.strip() else None
        if fault:
            yield walk.problem(("requirements", index), "bad_requirement", fault, text, REQUIREMENT_HELP)
    file = asked.get("file") if isinstance(asked, Mapping) else None
    if not isinstance(file, str) or not file:
        return
    place: Path = ("requirements", "file")
    if fault := path_fault(file):
        yield walk.problem(place, "unsafe_path", fault, file, "a relative path such as requirements.txt")
        return
    code = value.get("code")
    files = code.get("files") if isinstance(code, Mapping) else None
    if isinstance(files, Mapping):
        if file not in files:
            yield walk.problem(
                place, "requirements_not_found", "is not among the code files", file, ", ".join(files)
            )
        elif isinstance(files[file], str):
            for fault in requirements_of(files[file]).faults:
                yield walk.problem(place, "bad_requirement", fault, file, REQUIREMENT_HELP)


def _command_faults(command: Any, walk: Walk) -> Iterator[Problem]:
    if isinstance(command, list | tuple) and command and command[0] == "":
        yield walk.problem(("command", 0), "too_short", "is empty: name the program to run")


def _code_faults(code: Any, walk: Walk) -> Iterator[Problem]:
    files = code.get("files") if isinstance(code, Mapping) else None
    if not isinstance(files, Mapping):
        return
    taken: dict[str, str] = {}
    for name in files:
        path: Path = ("code", "files", name)
        fault = path_fault(name) if isinstance(name, str) else None
        if fault:
            yield walk.problem(path, "unsafe_path", fault, name, "a relative path such as src/train.py")
        elif isinstance(name, str):
            clash = taken.setdefault(folded(name), name)
            if clash != name:
                yield walk.problem(path, "duplicate", f"differs from {clash} only in case or form", name)
    for name in files:
        parent = _file_above(name, taken) if isinstance(name, str) else None
        if parent:
            message = f"is inside {parent}, which is a file"
            yield walk.problem(("code", "files", name), "duplicate", message, name)
    total = sum(_bytes(text) for text in files.values() if isinstance(text, str))
    if total > MAX_CODE_BYTES:
        message = f"has {total} bytes: upload an archive and name it in code.upload"
        yield walk.problem(
            ("code", "files"), "code_too_large", message, total, f"at most {MAX_CODE_BYTES} bytes"
        )


def _file_above(name: str, taken: Mapping[str, str]) -> str | None:
    parts = folded(name).split("/")
    above = ("/".join(parts[:count]) for count in range(1, len(parts)))
    return next((taken[path] for path in above if path in taken), None)


def _resource_faults(resources: Any, walk: Walk) -> Iterator[Problem]:
    if not isinstance(resources, Mapping):
        return
    kind, gpus = resources.get("gpu_type"), resources.get("gpus", 0)
    if isinstance(kind, str) and kind != CPU_TYPE and gpus == 0 and not isinstance(gpus, bool):
        message = f"requests GPUs of type {kind}, but gpus is 0: set gpus to 1 or more, or remove gpu_type"
        yield walk.problem(("resources", "gpu_type"), "gpu_type_without_gpus", message, kind)
    if kind == CPU_TYPE and isinstance(gpus, int | float) and gpus > 0:
        message = "The type cpu is not a GPU type: set gpus to 0 and use cpus instead"
        yield walk.problem(("resources", "gpu_type"), "gpu_type_without_gpus", message, kind)
    yield from _elastic_faults(resources.get("learners"), resources.get("batch"), walk)


def _elastic_faults(learners: Any, batch: Any, walk: Walk) -> Iterator[Problem]:
    fewest, most = _ends(learners)
    smallest, largest = _ends(batch)
    if fewest is not None and most is not None and fewest >= most:
        message = f"must be above min, which is {fewest}; a job of one size has a number instead: learners: {fewest}"
        yield walk.problem(("resources", "learners", "max"), "out_of_range", message, most, f"above {fewest}")
    if batch is not None and not isinstance(learners, Mapping):
        message = "is for elastic jobs: give learners min and max, or remove batch and set it in the program"
        yield walk.problem(("resources", "batch"), "batch_without_range", message)
    elif smallest is not None and largest is not None:
        least = max(smallest, most or 1)
        if largest < least:
            what = f"min, which is {smallest}" if least == smallest else f"the most learners, {most}"
            message = f"must be at least {what}"
            place = ("resources", "batch", "max")
            yield walk.problem(place, "out_of_range", message, largest, f"{least} or more")


def _opportunistic_faults(value: Mapping[str, Any], walk: Walk) -> Iterator[Problem]:
    if value.get("opportunistic") is not True:
        return
    place, code = ("opportunistic",), "not_opportunistic"
    if value.get("priority") == "urgent":
        message = (
            "An urgent job stops others, an opportunistic one is stopped for others: remove opportunistic, or choose"
            " another priority"
        )
        yield walk.problem(place, code, message, True, "false with priority urgent")
    resources = value.get("resources")
    learners = resources.get("learners") if isinstance(resources, Mapping) else None
    if isinstance(learners, Mapping):
        fewest, _ = _ends(learners)
        message = (
            "An opportunistic job has one size: remove opportunistic, or give the number of its learners, such as"
            f" learners: {fewest or 1}"
        )
        yield walk.problem(place, code, message, True, "false with a range of learners")
    checkpoint = value.get("checkpoint")
    grace = checkpoint.get("grace") if isinstance(checkpoint, Mapping) else None
    if isinstance(grace, str) and _is_longer(grace, MAX_OPPORTUNISTIC_GRACE):
        message = (
            f"Other jobs wait while an opportunistic one saves: give {MAX_OPPORTUNISTIC_GRACE} or less, or remove"
            " opportunistic"
        )
        yield walk.problem(("checkpoint", "grace"), code, message, grace, f"1s to {MAX_OPPORTUNISTIC_GRACE}")


def _is_longer(duration: str, limit: str) -> bool:
    try:
        return parse_duration(duration) > parse_duration(limit)
    except UnitError:  # the schema has reported it
        return False


def _ends(value: Any) -> tuple[int | None, int | None]:
    """min and max of a range, as far as they are whole numbers."""
    if not isinstance(value, Mapping):
        return None, None
    ends = (value.get("min"), value.get("max"))
    low, high = (end if isinstance(end, int) and not isinstance(end, bool) else None for end in ends)
    return low, high


def _env_faults(env: Any, walk: Walk) -> Iterator[Problem]:
    if not isinstance(env, Mapping):
        return
    for name in env:
        if isinstance(name, str) and is_reserved(name):
            message = "is reserved: use another name, or set it in the command"
            yield walk.problem(("env", name), "env_reserved", message, name)
    total = sum(_bytes(str(name)) + _bytes(str(text)) + 2 for name, text in env.items())
    if total > MAX_ENV_BYTES:
        allowed = f"at most {MAX_ENV_BYTES} bytes of names and values"
        yield walk.problem(
            ("env",), "env_too_large", f"has {total} bytes: put them in a file", total, allowed
        )


def _secret_faults(granted: Any, env: Any, walk: Walk) -> Iterator[Problem]:
    for name, secret in granted.items() if isinstance(granted, Mapping) else ():
        if not isinstance(name, str):
            continue
        if isinstance(secret, str) and KEY.search(secret):
            message = "looks like a key itself: store it as a secret, and write the name of that secret here"
            yield walk.problem(("secrets", name), "bad_format", message)  # its value is not repeated
        if is_reserved(name):
            yield walk.problem(("secrets", name), "env_reserved", "is reserved: use another name", name)
        elif isinstance(env, Mapping) and name in env:
            message = "is set in env, too: remove one of the two"
            yield walk.problem(("secrets", name), "duplicate", message, name)


def _data_faults(data: Any, walk: Walk) -> Iterator[Problem]:
    names: set[str] = set()
    for index, mount in enumerate(data if isinstance(data, list | tuple) else ()):
        if not isinstance(mount, Mapping):
            continue
        name, path = mount.get("name"), mount.get("path")
        fault = path_fault(path) if isinstance(path, str) and path else None
        if fault:
            place: Path = ("data", index, "path")
            yield walk.problem(place, "unsafe_path", fault, path, "a path below the data root")
        if isinstance(name, str):
            if folded(name) in names:
                yield walk.problem(("data", index, "name"), "duplicate", "is given twice", name)
            names.add(folded(name))


def _keep_faults(keep: Any, walk: Walk) -> Iterator[Problem]:
    for index, glob in enumerate(keep if isinstance(keep, list | tuple) else ()):
        fault = path_fault(glob) if isinstance(glob, str) and glob else None
        if fault:
            yield walk.problem(("keep", index), "unsafe_path", fault, glob, "a glob such as out/*.pt")


def _checkpoint_faults(checkpoint: Any, walk: Walk) -> Iterator[Problem]:
    pattern = checkpoint.get("step") if isinstance(checkpoint, Mapping) else None
    if isinstance(pattern, str) and 0 < len(pattern) <= MAX_PATTERN_CHARS:
        fault = step_pattern_fault(pattern)
        if fault:
            yield walk.problem(("checkpoint", "step"), *fault, pattern, "a group (?P<step>…)")


def _metric_faults(metrics: Any, walk: Walk) -> Iterator[Problem]:
    found = metrics if isinstance(metrics, list | tuple) else ()
    for index, rule in enumerate(found[:MAX_METRIC_RULES]):  # more are refused by their number
        pattern = rule.get("pattern") if isinstance(rule, Mapping) else None
        if not isinstance(pattern, str) or not 0 < len(pattern) <= MAX_PATTERN_CHARS:
            continue
        fault = pattern_fault(pattern)
        if fault:
            allowed = "named groups, no repeat inside a repeat"
            yield walk.problem(("metrics", index, "pattern"), *fault, pattern, allowed)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
