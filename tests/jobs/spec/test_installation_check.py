"""A valid spec against an installation: what is missing is named with what there is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpu_scheduler.model import Level
from jobs.spec import Context, SpecError, TypeCapacity, check, parse, sound_part
from jobs.spec.context import IMAGES_UNSUPPORTED
from tests.jobs.spec.test_job_spec import spec_with

HERE = Context(
    images=False,
    runtimes=frozenset({"plain", "sklearn", "pytorch"}),
    pools={"cpu": TypeCapacity(8, 4, 65_536), "a100": TypeCapacity(16, 8, 524_288)},
    limits={"cpu": 8, "a100": 4},
    priorities=frozenset({"low", "normal"}),
    data_paths=frozenset({"mnist"}),
)


def found(context: Context = HERE, **changes: object) -> dict[str, str]:
    return {problem.path: problem.code for problem in check(parse(spec_with(**changes)), context).errors}


def test_job_that_fits_has_no_findings() -> None:
    findings = check(parse(spec_with(data=[{"name": "m", "path": "mnist"}])), HERE)
    assert findings.errors == findings.warnings == ()


def test_what_no_domain_of_the_required_level_could_ever_hold_is_refused_with_what_one_does() -> None:
    racks = replace(HERE, domains={Level.RACK: 3, Level.BLOCK: 4})
    asked = {"resources": {"learners": 4, "gpus": 4}, "topology": {"required": "rack"}}
    (problem,) = check(parse(spec_with(**asked)), racks).errors
    assert (problem.path, problem.code, problem.got) == ("topology.required", "exceeds_cluster", "rack")
    assert problem.allowed == "at most 3 learners, block"
    assert problem.message == (
        "No rack of this cluster could ever hold 4 such learners, the largest holds 3: request fewer learners, a block,"
        " or say preferred instead of required"
    )
    small = replace(HERE, domains={Level.RACK: 3, Level.BLOCK: 3})
    (problem,) = check(parse(spec_with(**asked)), small).errors
    assert problem.allowed == "at most 3 learners", "no block is large enough either"
    assert "request fewer learners, or say preferred" in problem.message
    asked["resources"]["learners"] = 3
    assert found(racks, **asked) == {}


def test_image_on_the_local_cluster_is_refused_with_its_sentence() -> None:
    image = parse(spec_with(framework=None, image="x:1"))
    (problem,) = check(image, HERE).errors
    assert (problem.path, problem.code, problem.message) == (
        "image",
        "image_not_allowed",
        IMAGES_UNSUPPORTED,
    )
    assert check(image, replace(HERE, images=True, image_patterns=("docker.io/library/x",))).errors == ()


def test_image_outside_the_allowed_patterns_is_refused_with_them_and_with_who_can_allow_it() -> None:
    context = replace(HERE, images=True, image_patterns=("registry.example/*",))
    (problem,) = check(parse(spec_with(framework=None, image="x:1")), context).errors
    assert (problem.path, problem.code, problem.allowed) == (
        "image",
        "image_not_allowed",
        "registry.example/*",
    )
    assert problem.message == (
        "Image docker.io/library/x:1 is not allowed for this tenant. A platform admin can allow it on the tenant's"
        " page in the admin console."
    )
    (problem,) = check(parse(spec_with(framework=None, image="x:1")), replace(HERE, images=True)).errors
    assert problem.allowed == "none"


def test_a_frameworks_image_is_compared_too_and_the_installations_own_is_not() -> None:
    context = replace(HERE, images=True, runtime_images={"pytorch": "evil.example/x:1"})
    (problem,) = check(parse(spec_with(framework="pytorch")), context).errors
    assert (problem.path, problem.code, problem.got) == ("framework", "image_not_allowed", "evil.example/x:1")
    assert check(parse(spec_with(framework="pytorch")), replace(context, image_patterns=("*",))).errors == ()
    assert check(parse(spec_with(framework="sklearn")), context).errors == ()
    unreadable = replace(context, runtime_images={"pytorch": "Evil.example/x:1"}, image_patterns=("*",))
    (problem,) = check(parse(spec_with(framework="pytorch")), unreadable).errors
    assert "must be a lowercase image reference" in problem.message


def test_of_a_framework_and_an_image_each_is_judged_by_itself() -> None:
    """Whichever its author removes, as it is one too many, the other is not refused only then."""
    images = {"pytorch": "evil.example/x:1"}

    def beside(allowed: str) -> set[str]:
        with pytest.raises(SpecError) as refused:
            parse(spec_with(framework="pytorch", image="x:1", code=None))
        sound = sound_part(refused.value)
        assert sound is not None
        here = replace(HERE, images=True, runtime_images=images, image_patterns=(allowed,))
        found = sound.judged(check(sound.spec, here).errors)
        assert {problem.code for problem in found} <= {"image_not_allowed"}
        return {problem.path for problem in found}

    assert beside("docker.io/library/x") == {"framework"}
    assert beside("evil.example/*") == {"image"}
    assert beside("none.example/*") == {"framework", "image"}
    assert beside("*") == set()


def test_unknown_runtime_gets_the_nearest_name() -> None:
    (problem,) = check(parse(spec_with(framework="pytorhc")), HERE).errors
    assert problem.code == "runtime_not_found"
    assert "Did you mean pytorch" in problem.message


def test_more_than_the_cluster_has_is_refused_with_the_most() -> None:
    assert found(resources={"gpus": 9, "gpu_type": "a100"}) == {"resources.gpus": "exceeds_cluster"}
    assert found(resources={"gpus": 8, "learners": 3}) == {"resources.learners": "exceeds_cluster"}
    elastic = {"gpus": 8, "learners": {"min": 3, "max": 4}}
    assert found(resources=elastic) == {"resources.learners.min": "exceeds_cluster"}
    assert found(resources={"gpus": 8, "learners": {"min": 2, "max": 4}}) == {}, "it may never have them all"
    assert found(resources={"cpus": 5}) == {"resources.cpus": "exceeds_cluster"}
    assert found(resources={"memory": "65Gi"}) == {"resources.memory": "exceeds_cluster"}
    assert found(resources={"gpus": 1, "gpu_type": "h100"}) == {"resources.gpu_type": "gpu_type_not_found"}


def test_memory_that_no_node_of_the_type_has_is_refused_with_the_most_and_an_unknown_one_never() -> None:
    laptop = replace(HERE, pools={"cpu": TypeCapacity(4, 4, 24_105)})
    (problem,) = check(parse(spec_with(resources={"memory": "8Ti"})), laptop).errors
    assert (problem.path, problem.code) == ("resources.memory", "exceeds_cluster")
    assert problem.message == "No node has that much: the largest has 23.5 GiB"
    assert (problem.got, problem.allowed) == ("8Ti", "at most 24105Mi")
    assert found(laptop, resources={"memory": "24105Mi"}) == {}
    small = replace(HERE, pools={"cpu": TypeCapacity(4, 4, 2_048)})
    assert found(small) == {}, "who says nothing of memory runs there"
    assert found(small, resources={"memory": "5Gi"}) == {"resources.memory": "exceeds_cluster"}
    on_gpus = {"gpus": 1, "gpu_type": "a100", "memory": "512Gi"}
    assert found(resources=on_gpus) == found(resources={"gpus": 1, "memory": "512Gi"}) == {}
    mixed = replace(HERE, pools={"a100": TypeCapacity(16, 8, 1_024), "v100": TypeCapacity(4, 4)})
    assert found(mixed, resources={"gpus": 1, "memory": "8Ti"}) == {}


def test_gpus_on_a_cluster_without_any_are_refused() -> None:
    laptop = replace(HERE, pools={"cpu": TypeCapacity(4, 4)})
    (problem,) = check(parse(spec_with(resources={"gpus": 1})), laptop).errors
    assert (problem.path, problem.code) == ("resources.gpus", "exceeds_cluster")
    assert "set gpus to 0" in problem.message


def test_learner_wider_than_each_node_is_not_saved_by_the_sum() -> None:
    mixed = replace(HERE, pools={"a100": TypeCapacity(16, 2), "v100": TypeCapacity(4, 4)})
    assert found(mixed, resources={"gpus": 4, "learners": 1}) == {}
    assert found(mixed, resources={"gpus": 4, "learners": 2}) == {"resources.learners": "exceeds_cluster"}


def test_priority_beyond_the_tenant_is_refused() -> None:
    assert found(priority="urgent") == {"priority": "priority_not_allowed"}


def test_missing_data_is_refused_unless_the_root_cannot_be_seen() -> None:
    data = [{"name": "c", "path": "cifar"}]
    assert found(data=data) == {"data[0].path": "data_not_found"}
    assert found(replace(HERE, data_paths=None), data=data) == {}


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        ((), "is empty; an operator of this installation must add data sets there"),
        (None, "cannot be read; an operator of this installation must give the platform's user read access"),
        (("imagenet", "mnist"), "holds imagenet, mnist"),
        (tuple(f"d{n:02}" for n in range(12)), "d09 and 2 more"),
    ],
)
def test_missing_data_is_answered_with_the_folders_that_exist(
    folders: tuple[str, ...] | None, said: str
) -> None:
    asked = parse(spec_with(data=[{"name": "c", "path": "cifar"}]))
    (problem,) = check(asked, replace(HERE, data_folders=folders)).errors
    assert problem.message.endswith(said)


def test_more_than_the_quota_waits_and_is_warned_about() -> None:
    findings = check(parse(spec_with(resources={"gpus": 8, "gpu_type": "a100"})), HERE)
    assert findings.errors == ()
    (problem,) = findings.warnings
    assert problem.code == "above_quota"
    assert problem.message.startswith("requests 8 a100 GPUs; the tenant's quota is ")


def test_without_any_quota_of_the_type_the_warning_says_so() -> None:
    (problem,) = check(parse(spec_with()), replace(HERE, limits={})).warnings
    assert problem.message == (
        "requests 1 CPU; the tenant has no quota for them, so the job waits until the quota is raised"
    )


def test_an_opportunistic_job_is_held_to_no_quota_and_to_no_projects_limit() -> None:
    large = spec_with(resources={"gpus": 8, "gpu_type": "a100"}, opportunistic=True, project="vision")
    divided = replace(HERE, projects={"vision": {"a100": 2}})
    findings = check(parse(large), divided)
    assert findings.errors == findings.warnings == ()
    assert check(parse(large), replace(divided, limits={"a100": 0})).warnings == ()
    (problem,) = check(parse(large), replace(divided, limits={"cpu": 8})).warnings
    assert problem.code == "above_quota", "without a quota of the type it waits"
    (problem,) = check(parse(large), replace(divided, gang_limits={"a100": 4})).errors
    assert problem.code == "exceeds_gang_limit"
    assert found(divided, **(large | {"opportunistic": False})) == {"resources.gpus": "exceeds_project_limit"}


def test_a_job_of_any_type_is_refused_when_no_type_allows_it_by_all_limits() -> None:
    """By each limit alone, one type does: a100 for the user, h100 for the job."""
    both = replace(
        HERE,
        pools={"a100": TypeCapacity(16, 8), "h100": TypeCapacity(16, 8)},
        gang_limits={"a100": 2},
        user_limits={"h100": 3},
    )
    (problem,) = check(parse(spec_with(resources={"gpus": 4})), both).errors
    assert (problem.path, problem.code, problem.allowed) == (
        "resources.gpus",
        "exceeds_user_limit",
        "at most 3",
    )
    assert "requests 4 GPUs in all; one user's job in this tenant can have 3 at once" in problem.message
    assert check(parse(spec_with(resources={"gpus": 3})), both).errors == ()
    assert check(parse(spec_with(resources={"gpus": 4})), replace(both, gang_limits={})).errors == ()
    divided = replace(both, user_limits={}, projects={"vision": {"h100": 3}})
    (problem,) = check(parse(spec_with(resources={"gpus": 4}, project="vision")), divided).errors
    assert (problem.code, problem.allowed) == ("exceeds_project_limit", "at most 3")
    assert (
        "one user's job of project vision in this tenant can have 3 at once. Request fewer, name"
        in problem.message
    )
    assert check(parse(spec_with(resources={"gpus": 3}, project="vision")), divided).errors == ()


@pytest.mark.parametrize(
    ("changes", "beside"),
    [
        ({"leraners": 2, "framework": "torch"}, {"framework": "runtime_not_found"}),
        ({"name": "", "priority": "urgent"}, {"priority": "priority_not_allowed"}),
        ({"max_restarts": -1, "resources": {"gpus": 9}}, {"resources.gpus": "exceeds_cluster"}),
        (
            {"env": {"PATH": "x"}, "data": [{"name": "m", "path": "absent"}]},
            {"data[0].path": "data_not_found"},
        ),
        (
            {"apiVersion": None, "command": None, "secrets": {"K": "absent"}},
            {"secrets.K": "secret_not_found"},
        ),
        ({"code": None, "priority": "urgent"}, {"priority": "priority_not_allowed"}),
        ({"python": "3.12", "priority": "urgent"}, {"priority": "priority_not_allowed"}),
        (
            {"resources": {"gpus": 1, "gpu_type": "h900", "memory": "4GB"}},
            {"resources.gpu_type": "gpu_type_not_found"},
        ),
        (
            {"resources": {"gpus": 9, "memroy": "4Gi", "learners": 0, "batch": {"min": 1, "max": 2}}},
            {"resources.gpus": "exceeds_cluster"},
        ),
        ({"resources": {"gpus": 9, "gpu_type": "A 100"}}, {"resources.gpus": "exceeds_cluster"}),
        ({"resources": {"gpus": "two", "gpu_type": "h900"}}, {"resources.gpu_type": "gpu_type_not_found"}),
        ({"resources": {"gpus": 1, "cpus": 0, "memory": "9Ti"}}, {}),
        ({"resources": {"gpus": 1, "cpus": 0, "memory": "7Ti"}}, {"resources.memory": "exceeds_cluster"}),
        (
            {"topology": {"required": "rak"}, "resources": {"learners": 9, "gpus": 8}},
            {"resources.learners": "exceeds_cluster"},
        ),
        (
            {"framework": "torch", "python": "3.13"},
            {"framework": "runtime_not_found", "python": "python_not_found"},
        ),
        ({"framework": "Torch 2", "python": "3.13"}, {"python": "python_not_found"}),
        (
            {"framework": "torch", "image": "x:1", "code": None},
            {"framework": "runtime_not_found", "image": "image_not_allowed"},
        ),
        ({"project": "?", "resources": {"gpus": 9}}, {"resources.gpus": "exceeds_cluster"}),
        (
            {"opportunistic": "yes", "resources": {"gpu_type": "h900", "gpus": 1}, "project": "none"},
            {"resources.gpu_type": "gpu_type_not_found", "project": "project_not_found"},
        ),
        ({"resources": 4, "project": "none"}, {"project": "project_not_found"}),
        ({"resources": {"acelerators": 2}, "project": "none"}, {"project": "project_not_found"}),
    ],
)
def test_what_the_installation_lacks_is_found_beside_the_errors_of_the_spec(
    changes: dict[str, object], beside: dict[str, str]
) -> None:
    with pytest.raises(SpecError) as refused:
        parse(spec_with(**changes))
    sound = sound_part(refused.value)
    assert sound is not None
    here = replace(HERE, secrets=frozenset(), pythons=frozenset({"3.12"}), projects={})
    found = sound.judged(check(sound.spec, here).errors)
    assert {problem.path: problem.code for problem in found} == beside


@pytest.mark.parametrize(
    "changes",
    [
        {"resources": {"gpus": "two", "cpus": 500}},
        {"resources": {"gpus": "two", "learners": 500, "gpu_type": "a100"}},
        {"resources": {"acelerators": 2, "cpus": 500}},
        {"resources": {"memory": "4GB", "cpus": 500}, "gpus": 1},
        {"resources": {"learners": 0, "gpus": 2}, "topology": {"required": "rack"}},
        {"resources": {"learners": 500, "cpus": 0}},
        {"framework": None},
        {"code": None, "requirements": {"file": "needs.txt"}},
    ],
)
def test_nothing_is_found_that_an_assumed_field_may_have_caused(changes: dict[str, object]) -> None:
    with pytest.raises(SpecError) as refused:
        parse(spec_with(**changes))
    sound = sound_part(refused.value)
    limited = replace(HERE, gang_limits={"a100": 1, "cpu": 1}, projects={}, domains=dict.fromkeys(Level, 0))
    assert sound is None or sound.judged(check(sound.spec, limited).errors) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"time_limt": "1h"},
        {"time limit": "1h"},
        {"time_limit": "1h", "projct": "vision", "resources": {"gpus": 1}},
        {"time_limit": "1h", "oportunistic": True, "resources": {"gpus": 1}},
        {"time_limit": "1h", "resorces": {"gpus": 1}},
        {"time_limit": "1h", "gpus": 1},
    ],
)
def test_nothing_is_found_about_the_default_of_a_field_whose_name_is_misspelled(
    changes: dict[str, object],
) -> None:
    strict = replace(
        HERE,
        pools={"a100": TypeCapacity(16, 8)},
        projects={"default": {"a100": 0, "cpu": 0}, "vision": {}},
        max_time_s=3_600,
    )
    fits = {"resources": {"gpus": 1}, "project": "vision"} if "time_limit" not in changes else {}
    with pytest.raises(SpecError) as refused:
        parse(spec_with(**fits, **changes))
    assert [problem.code for problem in refused.value.problems] == ["unknown_field"]
    sound = sound_part(refused.value)
    assert sound is not None
    assert sound.judged(check(sound.spec, strict).errors) == ()


@pytest.mark.parametrize("wrong", [{"project": "?"}, {"opportunistic": "yes"}, {"projct": "vision"}])
def test_no_limit_of_a_project_is_said_where_it_is_not_known_which_counts(wrong: dict[str, str]) -> None:
    limited = replace(HERE, projects={"default": {"a100": 1}}, gang_limits={"a100": 4})

    def codes(gpus: int) -> list[str]:
        with pytest.raises(SpecError) as refused:
            parse(spec_with(resources={"gpus": gpus}, **wrong))
        sound = sound_part(refused.value)
        assert sound is not None
        return [problem.code for problem in sound.judged(check(sound.spec, limited).errors)]

    assert codes(4) == []
    assert codes(5) == ["exceeds_gang_limit"]


@pytest.mark.parametrize("requirements", [["upper"], {"file": "needs.txt"}])
def test_that_packages_cannot_be_added_is_said_beside_wrong_code(requirements: object) -> None:
    with pytest.raises(SpecError) as refused:
        parse(spec_with(code={"upload": "?"}, requirements=requirements))
    assert [problem.path for problem in refused.value.problems] == ["code.upload"]
    sound = sound_part(refused.value)
    assert sound is not None
    (problem,) = sound.judged(check(sound.spec, replace(HERE, packages=False)).errors)
    assert (problem.path, problem.code) == ("requirements", "packages_unsupported")


def test_a_json_document_with_a_key_twice_is_judged_no_further() -> None:
    """It is not known which mapping has it, and of the other the value counts that came last."""
    text = json.dumps(spec_with(priority="urgent", env={"priority": "1"}))
    text = text.replace('{"priority": "1"}', '{"priority": "1", "priority": "2"}')
    with pytest.raises(SpecError) as refused:
        parse(text)
    assert [problem.code for problem in refused.value.problems] == ["duplicate_key"]
    assert sound_part(refused.value) is None


@pytest.mark.parametrize("source", ["[]", "{", "framework: {name: x}\ngpus: 1\n"])
def test_a_document_that_is_no_spec_is_judged_no_further(source: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse(source)
    assert sound_part(refused.value) is None
