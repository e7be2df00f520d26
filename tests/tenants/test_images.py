"""What an image reference stands for, and which patterns match it: as container runtimes read it."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenants.images import REFERENCE, is_allowed, read_image, read_patterns, wrong_pattern

DIGEST = "sha256:" + "0123456789abcdef" * 4
OTHER = "sha256:" + "f" * 64


def allows(image: str, *patterns: str) -> bool:
    return is_allowed(read_image(image), patterns)


@pytest.mark.parametrize(
    ("written", "full"),
    [
        ("python:3.12", "docker.io/library/python:3.12"),
        ("python", "docker.io/library/python:latest"),
        ("team/img:1", "docker.io/team/img:1"),
        ("docker.io/python:3", "docker.io/library/python:3"),
        ("index.docker.io/team/img:1", "docker.io/team/img:1"),
        ("localhost/img:1", "localhost/img:1"),
        ("registry:5000/img:1", "registry:5000/img:1"),
        ("registry.example/a/b/c:V1", "registry.example/a/b/c:V1"),
        (f"registry.example/a:1@{DIGEST}", f"registry.example/a@{DIGEST}"),
    ],
)
def test_a_reference_is_completed_as_container_runtimes_do(written: str, full: str) -> None:
    assert str(read_image(written)) == full
    assert str(read_image(full)) == full


@pytest.mark.parametrize(
    "image",
    [
        "",
        "Registry.example/a:1",
        "registry.example/Team/a:1",
        "registry.example/a:1\n",
        "registry.example/a:1 ",
        "registry.example//a:1",
        "registry.example/../b/a:1",
        "registry.example./a:1",
        "registry..example/a:1",
        "regis_try.example/a:1",
        "-registry.example/a:1",
        "registry.example:123456/a:1",
        "https://registry.example/a:1",
        "user@registry.example/a:1",
        "registry.example/a@sha256:abc",
        f"registry.example/a@{DIGEST.upper()}",
        f"registry.example/a@{DIGEST}\n",
        f"registry.example/a@sha512:{'0' * 128}",
        "registry.example/a:",
        "registry.example/a:1:2",
        "registry.example/\u0430:1",
        "a" * 256,
    ],
)
def test_what_is_no_reference_is_refused(image: str) -> None:
    with pytest.raises(ValueError, match="lowercase image reference"):
        read_image(image)


@pytest.mark.parametrize(
    ("pattern", "matched", "not_matched"),
    [
        (
            "registry.example/team/img",
            ["registry.example/team/img:1", f"registry.example/team/img@{DIGEST}"],
            [
                "team/img:1",
                "registry.example/team/img2:1",
                "registry.example/team/img/below:1",
                "registry.example/other/team/img:1",
                "registry.example.evil/team/img:1",
                "evil-registry.example/team/img:1",
                "evil/registry.example/team/img:1",
                "registry.example:5000/team/img:1",
                "registryXexample/team/img:1".lower(),
            ],
        ),
        ("registry.example/team/*", ["registry.example/team/a:1"], ["registry.example/team/a/b:1"]),
        (
            "registry.example/team/**",
            ["registry.example/team/a:1", "registry.example/team/a/b/c:1"],
            ["registry.example/team:1", "registry.example/team2/a:1"],
        ),
        ("registry.example/*/train-*", ["registry.example/a/train-x:1"], ["registry.example/a/b/train-x:1"]),
        (
            "registry.example/img:1.*",
            ["registry.example/img:1.2"],
            ["registry.example/img:2", f"registry.example/img@{DIGEST}", f"registry.example/img:1.2@{OTHER}"],
        ),
        (
            f"registry.example/img@{DIGEST}",
            [f"registry.example/img@{DIGEST}", f"registry.example/img:any@{DIGEST}"],
            ["registry.example/img:1", f"registry.example/img@{OTHER}"],
        ),
        ("docker.io/library/python:3", ["python:3", "docker.io/python:3"], ["python:3.1", "team/python:3"]),
        ("*", ["python:3", f"registry.example/a@{DIGEST}"], []),
    ],
)
def test_a_pattern_matches_whole_parts_and_nothing_else(
    pattern: str, matched: list[str], not_matched: list[str]
) -> None:
    assert wrong_pattern(pattern) == ""
    assert [image for image in matched if not allows(image, pattern)] == []
    assert [image for image in not_matched if allows(image, pattern)] == []


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("python", "docker.io/library/python"),
        ("team/*", "docker.io/team/*"),
        ("docker.io/python", "docker.io/library/"),
        ("docker.io/*", "docker.io/library/"),
        ("index.docker.io/library/python", "must begin with docker.io"),
        (f"registry.example/a:1@{DIGEST}", "not both"),
        *(
            (wrong, "must be a registry and a repository")
            for wrong in (
                "",
                "**",
                "*.example/a",
                "*/a",
                "Registry.example/a",
                "registry.example/",
                "registry.example//a",
                "registry.example/**/a",
                "registry.example/a**",
                "registry.example/[a-z]",
                "registry.example/a?",
                "registry.example/a:",
                "registry.example/a@sha256:*",
                "registry.example/a\n",
                " registry.example/a",
            )
        ),
    ],
)
def test_a_wrong_pattern_is_refused_with_what_to_write_and_matches_nothing(pattern: str, said: str) -> None:
    assert said in wrong_pattern(pattern)
    assert not allows("registry.example/a:1", pattern)


def test_patterns_of_the_environment_are_read_with_all_that_is_wrong() -> None:
    assert read_patterns(" registry.example/a/** ,*") == ("registry.example/a/**", "*")
    with pytest.raises(ValueError, match=r"'python' must begin.*'a b' must be"):
        read_patterns("python, registry.example/a, a b")


def is_reference(text: str) -> bool:
    """Whether the grammar of job specs takes it, and its registry is a host's name (`a_.b` would not be)."""
    try:
        read_image(text)
    except ValueError as error:
        return bool(re.fullmatch(REFERENCE, text)) and "cannot be a registry" not in str(error)
    return True


PARTS = st.text("ab0._-", min_size=1, max_size=5)
REFERENCES = st.builds(
    "{}{}{}".format,
    st.sampled_from(
        ["", "registry.example/team/", "registry.example/", "localhost:5000/", "docker.io/", "a/"]
    ),
    st.lists(PARTS, min_size=1, max_size=3).map("/".join),
    st.sampled_from(["", ":1", ":V1.2", f"@{DIGEST}", f":1@{DIGEST}"]),
).filter(is_reference)
TRICKS = st.text("ab0.-_/:@*\n \u0430A", max_size=12)


@given(REFERENCES)
@example("registry.example/team/img:1@" + DIGEST)
def test_a_completed_reference_means_itself_and_is_matched_by_its_own_name_only(text: str) -> None:
    image = read_image(text)
    assert read_image(str(image)) == image
    name = str(image).removesuffix(f"@{image.digest}" if image.digest else f":{image.tag}")
    assert is_allowed(image, [name])
    assert is_allowed(image, [str(image)])
    assert not is_allowed(image, [f"{name}x", f"{name}/**", f"x.{name}"])


@given(REFERENCES, TRICKS, TRICKS)
@example("evil.example/a:1", "", "@registry.example/team/x:1")
@example("registry.example/team/x:1", "evil.example/", "")
@example("registry.example/team/x:1", "", "/../../evil")
@example("registry.example/team/x:1", "R", "")
def test_no_way_of_writing_leaves_the_folder_that_is_allowed(text: str, before: str, after: str) -> None:
    """Whatever surrounds a reference: if it is allowed, container runtimes look in the allowed folder."""
    try:
        image = read_image(before + text + after)
    except ValueError:
        return
    if is_allowed(image, ["registry.example/team/**"]):
        assert str(image).startswith("registry.example/team/")
        assert (before + text + after).startswith("registry.example/team/")
        assert ".." not in str(image).split("/")
