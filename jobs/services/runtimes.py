"""Runtimes that administrators add, change and remove without a restart; new jobs may name them at once.

On the local cluster a runtime is a list of requirements on a Python version, on Kubernetes an image. Runtimes of the
source tree may be renamed and disabled only. Each change leaves an audit entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from jobs import clusters
from jobs.errors import RuntimeInUse, RuntimeOfTree
from jobs.models import Job, Runtime
from jobs.spec.definition import MAX_REQUIREMENTS, PYTHON_VERSIONS
from jobs.spec.requirement import REQUIREMENT_HELP, requirement_fault
from jobs.states import ACTIVE
from tenants import access, audit, checks
from tenants.errors import FieldsInvalid, NameTaken, NotFound, VersionChanged, problem
from tenants.images import MAX_REFERENCE, read_image
from tenants.services.editing import content_etag

MAX_SLUG = 40
TEXTS = {"title": 80, "description": 300, "image": MAX_REFERENCE}
CONTENT = ("requirements", "python", "image")
"""What a job runs in; fixed for runtimes of the source tree."""

Problems = list[dict[str, Any]]


def runtime_add(*, user: access.Person, values: Mapping[str, Any]) -> Runtime:
    """Add a runtime: slug, title, requirements, python, and description or image. Raises AdminOnly, FieldsInvalid or
    NameTaken."""
    access.require_admin(user)
    return add(user, values)


def version(runtime: Runtime) -> str:
    """The ETag of a runtime: of all that can be changed."""
    return content_etag(
        "f", [getattr(runtime, name) for name in (*TEXTS, "requirements", "python", "enabled")]
    )


def runtime_change(
    *, user: access.Person, slug: str, changes: Mapping[str, Any], if_match: frozenset[str] | None = None
) -> Runtime:
    """Change anything but the slug; enable or disable it. Attempts that run keep what they have, later ones get the new
    content. Raises AdminOnly, NotFound, VersionChanged, FieldsInvalid or RuntimeOfTree."""
    access.require_admin(user)
    with transaction.atomic():
        runtime = _locked(slug)
        if if_match is not None and (now := version(runtime)) not in if_match:
            raise VersionChanged(etag=now)
        if _is_of_tree(runtime) and any(name in changes for name in CONTENT):
            raise RuntimeOfTree
        wanted = {name: getattr(runtime, name) for name in (*TEXTS, *CONTENT)} | dict(changes)
        _refuse(_problems(wanted) if not _is_of_tree(runtime) else _text_problems(wanted))
        different = {name: value for name, value in changes.items() if getattr(runtime, name) != value}
        details = {name: {"from": getattr(runtime, name), "to": value} for name, value in different.items()}
        if different:
            Runtime.objects.filter(pk=slug).update(**different)
            runtime.refresh_from_db()
            audit.record(actor=user, action="runtime.change", target=slug, details=details)
    return runtime


def runtime_remove(*, user: access.Person, slug: str) -> None:
    """Remove a runtime that no unfinished job uses. Raises AdminOnly, NotFound, RuntimeInUse or RuntimeOfTree."""
    access.require_admin(user)
    remove(user, slug)


@transaction.atomic
def add(actor: access.Person | None, values: Mapping[str, Any]) -> Runtime:
    """The same for an operator at the shell, who needs no role."""
    slug = str(values.get("slug", ""))
    wanted = {"requirements": [], "python": "", "description": "", "image": "", "title": slug} | dict(values)
    _refuse([*filter(None, [slug_fault(slug)]), *_problems(wanted)])
    runtime, made = Runtime.objects.get_or_create(slug=slug, defaults=wanted)
    if not made:
        raise NameTaken(f"The runtime {slug} already exists.", path="slug", got=slug)
    audit.record(
        actor=actor, action="runtime.create", target=slug, details={name: wanted[name] for name in CONTENT}
    )
    return runtime


@transaction.atomic
def remove(actor: access.Person | None, slug: str) -> None:
    """The same for an operator at the shell, who needs no role."""
    runtime = _locked(slug)
    if _is_of_tree(runtime):
        raise RuntimeOfTree
    users = Job.objects.filter(framework=slug, deleted_at=None, state__in=ACTIVE).count()
    if users:
        raise RuntimeInUse(
            f"{users} unfinished job{' uses' if users == 1 else 's use'} the runtime {slug}. Disable it, so that no new"
            " job does, and remove it later.",
            jobs=users,
        )
    runtime.delete()
    audit.record(actor=actor, action="runtime.remove", target=slug)


def _locked(slug: str) -> Runtime:
    runtime = Runtime.objects.select_for_update().filter(pk=slug).first()
    if runtime is None:
        raise NotFound
    return runtime


def _is_of_tree(runtime: Runtime) -> bool:
    return runtime.requirements is None and not runtime.image


def _refuse(problems: Problems) -> None:
    if problems:
        raise FieldsInvalid(errors=problems)


def slug_fault(slug: str) -> dict[str, Any] | None:
    """What is wrong with a runtime's name, which is part of folder names."""
    if wrong := checks.slug("slug", slug, MAX_SLUG):
        return wrong
    if "_" not in slug and not slug.endswith("-"):
        return None
    return problem("slug", "not_a_slug", "must be lowercase letters and digits with inner dashes", slug)


def entry_fault(text: str, path: str = "requirements") -> dict[str, Any] | None:
    """What is wrong with one requirement of a runtime."""
    fault = requirement_fault(text) if text.strip() else "is empty"
    return problem(path, "bad_requirement", fault, text, REQUIREMENT_HELP) if fault else None


def _text_problems(values: Mapping[str, Any]) -> Problems:
    longest = {name: most for name, most in TEXTS.items() if name == "title" or values[name]}
    return [*filter(None, (checks.text(name, values[name], most) for name, most in longest.items()))]


def _problems(values: Mapping[str, Any]) -> Problems:
    """Everything wrong with a runtime's content on the current cluster."""
    found = _text_problems(values)
    capabilities = clusters.capabilities()
    python, requirements, image = values["python"], values["requirements"] or [], values["image"]
    if image and not capabilities.images:
        found.append(problem("image", "image_not_allowed", "this cluster runs no container images", image))
    elif image:
        try:
            read_image(image)
        except ValueError as error:
            found.append(problem("image", "image_not_allowed", str(error), image))
    if len(requirements) > MAX_REQUIREMENTS:
        found.append(
            problem("requirements", "too_many", f"must be at most {MAX_REQUIREMENTS}", len(requirements))
        )
    entries = (entry_fault(text, f"requirements[{index}]") for index, text in enumerate(requirements))
    found += filter(None, entries)
    if not image and capabilities.pythons is None:
        message = "is required: on this cluster a runtime is a container image"
        found.append(problem("image", "required", message))
    elif not image:
        found += filter(None, [python_fault(python)])
    elif requirements or python:
        found.append(
            problem("image", "exactly_one", "give an image, or requirements and python, not both", image)
        )
    return found


def python_fault(python: str) -> dict[str, Any] | None:
    """What is wrong with a runtime's version of Python, where there are such versions."""
    pythons = clusters.capabilities().pythons
    here = pythons() if python and pythons else ()
    if not python or pythons is None or python in here:
        return None
    code, known = (
        ("python_not_found", here) if python in PYTHON_VERSIONS else ("not_a_choice", PYTHON_VERSIONS)
    )
    allowed = ", ".join(known)
    return problem("python", code, f"this installation has no Python {python}", python, allowed)
