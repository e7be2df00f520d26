"""Which container images a tenant's jobs may run: references, patterns, and whether one matches the other. Pure.

What is compared is the fully qualified reference, as container runtimes resolve it: a short name is one of Docker Hub,
and a digest makes its tag meaningless. The cluster gets that same reference, so no node resolves it in another way.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass

REFERENCE = (
    r"^(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[0-9]{1,5})?/)?"
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?$"
)
"""What an image reference in a job spec may be. Without upper case in names: registries disagree on what it means."""
REFERENCE_HELP = "a lowercase image reference with a tag or digest, such as registry.example/team/image:1.2"
MAX_REFERENCE = 255
DOCKER_HUB = "docker.io"
ANY = "*"
"""The pattern of all images."""
MAX_PATTERNS, MAX_PATTERN = 100, 300
PATTERN_HELP = (
    "a registry and a repository, such as registry.example/team/*: * stands for a part of a name, /** at the end for"
    " everything below; then, if only these are allowed, :TAG or @sha256:DIGEST. * alone allows all images"
)

_REFERENCE = re.compile(REFERENCE.removeprefix("^").removesuffix("$"))
_REGISTRY = re.compile(r"[a-z0-9]+(?:-+[a-z0-9]+)*(?:\.[a-z0-9]+(?:-+[a-z0-9]+)*)*(?::[0-9]{1,5})?")
_NAME_PATTERN = re.compile(r"[a-z0-9*](?:[a-z0-9._*-]*[a-z0-9*])?")
_TAG_PATTERN = re.compile(r"[A-Za-z0-9_*][A-Za-z0-9_.*-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_BELOW = "**"


@dataclass(frozen=True, slots=True)
class Image:
    """A fully qualified reference. Exactly one of tag and digest is not empty."""

    registry: str
    path: tuple[str, ...]
    tag: str
    digest: str

    def __str__(self) -> str:
        name = "/".join((self.registry, *self.path))
        return f"{name}@{self.digest}" if self.digest else f"{name}:{self.tag}"


def read_image(text: str) -> Image:
    """The fully qualified reference that this one stands for. Raises ValueError."""
    if len(text) > MAX_REFERENCE or not _REFERENCE.fullmatch(text):
        raise ValueError(f"must be {REFERENCE_HELP}")
    name, _, digest = text.partition("@")
    registry, path, tag = _split(name)
    if registry and not _REGISTRY.fullmatch(registry):
        raise ValueError(f"must be {REFERENCE_HELP}: {registry} cannot be a registry")
    if registry in ("", f"index.{DOCKER_HUB}"):
        registry = DOCKER_HUB
    if registry == DOCKER_HUB and len(path) == 1:
        path = ("library", *path)
    return Image(registry, path, "" if digest else tag or "latest", digest)


def is_allowed(image: Image, patterns: Iterable[str]) -> bool:
    """Whether a pattern matches the image. A wrong pattern matches none."""
    return any(not wrong_pattern(each) and _matches(image, each) for each in patterns)


def wrong_pattern(text: str) -> str:
    """What is wrong with a pattern, as a sentence's end; empty: nothing."""
    if text == ANY:
        return ""
    name, at, digest = text.partition("@")
    registry, path, tag = _split(name)
    parts = path[:-1] if path[-1:] == (_BELOW,) else path
    if (
        len(text) > MAX_PATTERN
        or not _REGISTRY.fullmatch(registry or path[0])
        or not all(_NAME_PATTERN.fullmatch(part) and _BELOW not in part for part in parts)
        or (name.endswith(":") or (tag and not _TAG_PATTERN.fullmatch(tag)))
        or (at and not _DIGEST.fullmatch(digest))
    ):
        return f"must be {PATTERN_HELP}"
    if not registry:
        return (
            f"must begin with a registry, such as {DOCKER_HUB}/{'library/' if len(path) == 1 else ''}{text}"
        )
    if registry == f"index.{DOCKER_HUB}":
        return f"must begin with {DOCKER_HUB}, which is the same registry"
    if registry == DOCKER_HUB and len(path) == 1 and path != (_BELOW,):
        return f"must begin with {DOCKER_HUB}/library/, where images without an organization are"
    if at and tag:
        return "must have a tag or a digest, not both: a digest makes the tag meaningless"
    return ""


def read_patterns(text: str) -> tuple[str, ...]:
    """Patterns with commas between them. Raises ValueError with all that is wrong."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if wrong := [f"{each[:80]!r} {problem}" for each in found if (problem := wrong_pattern(each))]:
        raise ValueError("; ".join(wrong))
    return found


def _split(name: str) -> tuple[str, tuple[str, ...], str]:
    """Registry (empty: none), path and tag of a reference or pattern without its digest.

    The rule is Docker's: what precedes the first slash is a registry if it has a dot or a port, or is localhost.
    """
    first, slash, rest = name.partition("/")
    registry = first if slash and (set(".:") & set(first) or first == "localhost") else ""
    path = rest if registry else name
    *parts, last = path.split("/")
    last, _, tag = last.partition(":")
    return registry, (*parts, last), tag


def _matches(image: Image, pattern: str) -> bool:
    if pattern == ANY:
        return True
    name, _, digest = pattern.partition("@")
    registry, path, tag = _split(name)
    if registry != image.registry or (digest and digest != image.digest):
        return False
    if tag and not (image.tag and _fits(image.tag, tag)):
        return False
    below = path[-1] == _BELOW
    parts = path[:-1] if below else path
    deep_enough = len(image.path) > len(parts) if below else len(image.path) == len(parts)
    return deep_enough and all(map(_fits, image.path, parts))


def _fits(text: str, pattern: str) -> bool:
    """Whether one part of a name is like its pattern, in which * alone has a meaning (see wrong_pattern)."""
    return fnmatch.fnmatchcase(text, pattern)
