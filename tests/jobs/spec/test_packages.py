"""A job's packages in its spec: what may be required, of which Python, and what an installation lacks."""

from __future__ import annotations

import pytest

from jobs.spec import Context, SpecError, check, parse, to_yaml
from jobs.spec.requirement import requirement_fault, requirements_of
from tests.jobs.spec.test_job_spec import codes, spec_with


def test_requirements_are_a_list_or_a_file_of_the_code() -> None:
    spec = parse(
        spec_with(requirements=["tqdm==4.66.1", "numpy>=1.26,<3; python_version >= '3.10'", "a[b,c]~=1.0"])
    )
    assert spec.requirements == ("tqdm==4.66.1", "numpy>=1.26,<3; python_version >= '3.10'", "a[b,c]~=1.0")
    assert parse(to_yaml(spec)) == spec
    files = {"files": {"a.py": "", "requirements.txt": "# some\ntqdm\n\nnumpy>=1 # why\n"}}
    spec = parse(spec_with(code=files, requirements={"file": "requirements.txt"}))
    assert (spec.requirements, spec.requirements_file) == ((), "requirements.txt")
    assert parse(to_yaml(spec)) == spec
    assert spec.normalized["requirements"] == {"file": "requirements.txt"}


@pytest.mark.parametrize(
    "text",
    [
        "--index-url=http://evil", "-r other.txt", "-e .", "./local", "/etc/passwd", "a.whl/../x", "git+https://host/x",
        "x @ https://host/x-1.0.tar.gz", "x @ file:///etc/passwd", "x=1", "x\n--pre", "x; y == 'z'", "${HOME}",
        "x; python_version > '${HOME}'", "two words",
    ],
)  # fmt: skip
def test_what_is_no_name_with_versions_is_refused_and_named(text: str) -> None:
    assert requirement_fault(text)
    assert codes(spec_with(requirements=["tqdm", text])) == {"requirements[1]": "bad_requirement"}


def test_every_bad_line_of_a_file_is_named() -> None:
    found = requirements_of("tqdm\n-r other.txt\nx==1 --hash=sha256:00\nnumpy \\\n./y\n")
    assert found.lines == ("tqdm",)
    assert [fault.split(":")[0] for fault in found.faults] == [
        "line 2 is an option of pip; only requirements are supported here",
        "line 3 has a hash or continues in the next line; write a name with versions only",
        "line 4 has a hash or continues in the next line; write a name with versions only",
        "line 5 is a path or an address; install it in setup",
    ]


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"requirements": {"file": "absent.txt"}}, {"requirements.file": "requirements_not_found"}),
        ({"requirements": {"file": "../x"}}, {"requirements.file": "unsafe_path"}),
        ({"requirements": {}}, {"requirements.file": "required"}),
        ({"requirements": "tqdm"}, {"requirements": "wrong_type"}),
        ({"requirements": [""]}, {"requirements[0]": "too_short"}),
        ({"python": "3.12"}, {"python": "exactly_one"}),
        ({"python": "3.9", "framework": None}, {"python": "not_a_choice"}),
        ({"python": 3.12, "framework": None}, {"python": "not_a_choice"}),
        (
            {"image": "a:1", "framework": None, "requirements": ["x"]},
            {"requirements": "packages_unsupported"},
        ),
        ({"python": "3.12", "framework": None, "code": None}, {"code": "required"}),
    ],
)
def test_what_contradicts_is_named(changes: dict[str, object], wrong: dict[str, str]) -> None:
    assert codes(spec_with(**changes)) == wrong


@pytest.mark.parametrize("version", ["3.10", "3.12"])
def test_a_python_without_quotes_is_refused_with_how_to_write_it(version: str) -> None:
    text = f"apiVersion: luthier/v1\nname: a\npython: {version}\ncommand: x\ncode: {{files: {{a: b}}}}\n"
    with pytest.raises(SpecError) as caught:
        parse(text, "application/yaml")
    (problem,) = caught.value.problems
    assert (problem.path, problem.near) == ("python", version)
    assert f'put it in quotes, "{version}"' in problem.message


def test_a_python_that_the_installation_lacks_is_refused_with_those_there_are() -> None:
    spec = parse(spec_with(framework=None, python="3.13"))
    assert spec.normalized["python"] == "3.13"
    context = Context(pythons=frozenset({"3.11", "3.12"}))
    (error,) = check(spec, context).errors
    assert (error.path, error.code, error.allowed) == ("python", "python_not_found", "3.11, 3.12")
    assert check(spec, Context(pythons=frozenset({"3.13"}))).errors == ()


def test_a_cluster_of_images_refuses_packages_and_plain_pythons_in_a_sentence() -> None:
    context = Context(packages=False, images=True, runtimes=frozenset({"plain"}))
    (error,) = check(parse(spec_with(requirements=["tqdm"])), context).errors
    assert (error.path, error.code) == ("requirements", "packages_unsupported")
    assert "use setup, or an image that has them" in error.message
    (error,) = check(parse(spec_with(framework=None, python="3.12")), context).errors
    assert (error.path, error.code) == ("python", "packages_unsupported")


def test_a_spec_with_many_faults_names_them_all() -> None:
    with pytest.raises(SpecError) as caught:
        parse(spec_with(requirements=["-r x", "./y"], setup=[" "], python="3.12"))
    assert {problem.path for problem in caught.value.problems} == {
        "requirements[0]", "requirements[1]", "setup[0]", "python",
    }  # fmt: skip
