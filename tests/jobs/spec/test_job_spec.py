"""What a valid job spec means, and that it survives being printed and read again."""

from __future__ import annotations

import json

import pytest

from gpu_scheduler.model import Level, Range, Topology
from jobs.spec import SpecError, parse, to_yaml

FULL = r"""
apiVersion: luthier/v1
name: mnist-cnn
tags: [vision, baseline]
framework: pytorch              # a runtime of this installation
code: {files: {train.py: "import os\nprint(os.getcwd())\n", lib/model.py: ""}}
command: python train.py --epochs 5
resources: {learners: 2, gpus: 1, gpu_type: a100, cpus: 2, memory: 4Gi}
placement: spread
priority: high
data: [{name: mnist, path: sets/mnist}]
checkpoint: {every: 10m, keep: 3, grace: 60s}
keep: ["*.pt", "lightning_logs/**"]
metrics:
  - {pattern: 'step=(?P<step>\d+) loss=(?P<loss>\S+)'}
env: {LR: "0.1"}
max_restarts: 3
time_limit: 12h
"""
LEAST = {
    "apiVersion": "luthier/v1",
    "name": "least",
    "framework": "plain",
    "code": {"files": {"train.py": "print(1)\n"}},
    "command": "python train.py",
}


def spec_with(**changes: object) -> dict[str, object]:
    """The least spec with keys added or replaced; a value of None removes the key."""
    return {key: value for key, value in (LEAST | changes).items() if value is not None}


def codes(source: object, content_type: str | None = None) -> dict[str, str]:
    """path -> code of everything wrong with a spec; empty when it is valid."""
    try:
        parse(source, content_type)  # type: ignore[arg-type]
    except SpecError as error:
        return {problem.path: problem.code for problem in error.problems}
    return {}


def test_full_spec_is_read_field_by_field() -> None:
    spec = parse(FULL, "application/yaml")
    assert (spec.name, spec.tags, spec.framework) == ("mnist-cnn", ("vision", "baseline"), "pytorch")
    assert spec.code
    assert dict(spec.code.files)["lib/model.py"] == ""
    assert (spec.resources.learners, spec.resources.gpus, spec.resources.gpu_type) == (Range(2, 2), 1, "a100")
    assert (spec.resources.memory_mib, spec.placement, spec.priority) == (4096, "spread", "high")
    assert (spec.data[0].name, spec.data[0].path) == ("mnist", "sets/mnist")
    assert (spec.checkpoint.every_s, spec.checkpoint.keep, spec.checkpoint.grace_s) == (600, 3, 60)
    assert spec.keep == ("*.pt", "lightning_logs/**")
    assert spec.metrics == (r"step=(?P<step>\d+) loss=(?P<loss>\S+)",)
    assert (spec.env, spec.max_restarts, spec.time_limit_s) == ((("LR", "0.1"),), 3, 43_200)


def test_least_spec_gets_every_default() -> None:
    normalized = parse(LEAST).normalized
    assert normalized["resources"] == {"learners": 1, "gpus": 0, "cpus": 1, "memory": "4Gi"}
    assert normalized["checkpoint"] == {"every": "10m", "keep": 3, "grace": "60s"}
    assert (normalized["placement"], normalized["priority"]) == ("pack", "normal")
    assert (normalized["max_restarts"], normalized["env"], normalized["tags"]) == (0, {}, [])
    assert normalized["keep"] == []
    assert "time_limit" not in normalized


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("level", Level)
def test_a_topology_is_one_level_required_or_preferred(level: Level, required: bool) -> None:
    assert "topology" not in parse(LEAST).normalized
    written = {"required" if required else "preferred": level.value}
    spec = parse(spec_with(topology=written))
    assert spec.topology == Topology(level, required) == Topology.read(str(spec.topology))
    assert spec.normalized["topology"] == written


def test_a_job_is_opportunistic_only_if_it_says_so() -> None:
    assert not parse(spec_with()).opportunistic
    assert "opportunistic" not in parse(spec_with(opportunistic=False)).normalized
    spec = parse(spec_with(opportunistic=True))
    assert spec.opportunistic
    assert parse(to_yaml(spec)) == spec


@pytest.mark.parametrize("distributed", [True, False])
def test_whether_a_job_is_distributed_follows_its_learners_unless_it_is_said(distributed: bool) -> None:
    assert "distributed" not in parse(LEAST).normalized, "a clone may change the number of learners"
    spec = parse(spec_with(distributed=distributed))
    assert spec.distributed is distributed
    assert parse(spec.normalized) == parse(to_yaml(spec)) == spec
    assert codes(spec_with(distributed="yes")) == {"distributed": "wrong_type"}


def test_partly_given_mappings_keep_the_other_defaults() -> None:
    spec = parse(spec_with(resources={"gpus": 2}, checkpoint={"keep": 9}))
    assert (spec.resources.learners, spec.resources.memory_mib) == (Range(1, 1), 4096)
    assert (spec.checkpoint.keep, spec.checkpoint.every_s) == (9, 600)


@pytest.mark.parametrize("source", [FULL, LEAST, spec_with(command=["python", "train.py", "a b\nc"])])
def test_printed_and_normalized_specs_read_back_equal(source: object) -> None:
    spec = parse(source)  # type: ignore[arg-type]
    assert parse(to_yaml(spec), "application/yaml") == spec
    assert parse(json.dumps(spec.normalized), "application/json") == spec
    assert parse(spec.normalized).normalized == spec.normalized


def test_yaml_and_json_of_one_spec_are_equal() -> None:
    assert parse(json.dumps(LEAST)) == parse(to_yaml(LEAST)) == parse(json.dumps(LEAST).encode())


def test_the_step_of_a_programs_own_checkpoint_may_come_from_its_file_names() -> None:
    assert "step" not in parse(LEAST).normalized["checkpoint"]
    rule = r"ckpt-(?P<step>\d+)\.pt$"
    spec = parse(spec_with(checkpoint={"step": rule}))
    assert (spec.checkpoint.step, spec.checkpoint.keep) == (rule, 3)
    assert parse(to_yaml(spec)) == parse(spec.normalized) == spec


def test_an_elastic_job_has_ranges_of_learners_and_of_batches() -> None:
    resources = {"learners": {"min": 2, "max": 8}, "batch": {"min": 64, "max": 64}, "gpus": 4}
    spec = parse(spec_with(resources=resources))
    assert (spec.resources.learners, spec.resources.batch, spec.asked) == (Range(2, 8), Range(64, 64), 8)
    assert spec.normalized["resources"] == resources | {"cpus": 1, "memory": "4Gi"}
    assert parse(to_yaml(spec)) == parse(spec.normalized) == spec
    own_batch = parse(spec_with(resources={"learners": {"min": 1, "max": 2}}))
    assert "batch" not in own_batch.normalized["resources"]
    assert parse(LEAST).normalized["resources"]["learners"] == 1


def test_code_is_printed_as_a_block() -> None:
    assert "  files:\n    train.py: |\n      import os\n" in to_yaml(parse(FULL))


def test_yaml_comes_in_the_order_of_the_format_whatever_the_order_it_was_kept_in() -> None:
    kept = {
        "env": {"B": "1", "A": "2"},
        "resources": {"memory": "1Gi", "learners": 2},
        "name": "x",
        "apiVersion": "luthier/v1",
    }
    lines = to_yaml(kept).splitlines()
    assert lines[:2] == ["apiVersion: luthier/v1", "name: x"]
    assert lines.index("  B: '1'") < lines.index("  A: '2'"), "the names in env are the user's own"
    assert lines.index("  learners: 2") < lines.index("  memory: 1Gi")


def test_words_of_old_yaml_stay_text() -> None:
    text = to_yaml(LEAST) + "tags: [no, on, off, yes, y]\n"
    assert parse(text).tags == ("no", "on", "off", "yes", "y")


def test_environment_numbers_keep_their_digits_and_are_warned_about() -> None:
    spec = parse(to_yaml(LEAST) + "env: {LR: 1e-3, BIG: 0100, FLAG: true, WHEN: 2024-01-01, TEXT: '1'}\n")
    assert dict(spec.env) == {"LR": "1e-3", "BIG": "0100", "FLAG": "true", "WHEN": "2024-01-01", "TEXT": "1"}
    assert [problem.path for problem in spec.warnings] == ["env.LR", "env.BIG", "env.FLAG"]


def test_environment_numbers_of_json_keep_their_digits() -> None:
    text = json.dumps(LEAST)[:-1] + ', "env": {"LR": 1.50, "N": 3}}'
    assert dict(parse(text).env) == {"LR": "1.50", "N": "3"}


def test_a_number_without_fraction_is_whole_however_it_is_written() -> None:
    spec = parse(spec_with(resources={"learners": 2.0, "gpus": 0.0, "cpus": 1.0}, max_restarts=3.0))
    assert spec == parse(spec_with(resources={"learners": 2, "gpus": 0, "cpus": 1}, max_restarts=3))
    assert json.dumps(spec.normalized["resources"]).startswith('{"learners": 2, "gpus": 0,')
    assert codes(json.dumps(spec_with(resources={"learners": 2.5}))) == {"resources.learners": "wrong_type"}
    refused = codes(spec_with(resources={"gpus": 1.0, "gpu_type": "cpu"}))
    assert refused == codes(spec_with(resources={"gpus": 1, "gpu_type": "cpu"})) != {}


def test_job_without_gpus_takes_cpu_slots() -> None:
    spec = parse(spec_with(resources={"cpus": 3, "gpu_type": "cpu"}))
    assert (spec.slots_per_learner, spec.slot_type, spec.resources.gpu_type) == (3, "cpu", None)


def test_job_with_gpus_takes_any_type_unless_one_is_named() -> None:
    spec = parse(spec_with(resources={"gpus": 2}))
    assert (spec.slots_per_learner, spec.slot_type) == (2, None)


def test_trailing_line_break_of_a_block_command_is_dropped() -> None:
    text = to_yaml(spec_with(command=None)) + "command: |\n  python train.py\n"
    assert parse(text).command == "python train.py"


def test_a_command_of_several_lines_is_kept_as_a_script_whatever_editor_wrote_it() -> None:
    script = "set -x\npython prepare.py\npython train.py"
    for written in (script, script.replace("\n", "\r\n") + "\r\n"):
        spec = parse(spec_with(command=written))
        assert spec.command == script
        assert parse(to_yaml(spec)) == parse(json.dumps(spec.normalized)) == spec
    assert "command: |-\n  set -x\n  python prepare.py\n" in to_yaml(spec)


def test_code_is_optional_with_an_image_only() -> None:
    image = {"framework": None, "code": None, "image": "registry.example/team/img:1.2"}
    assert codes(spec_with(**image)) == {}
    assert codes(spec_with(code=None)) == {"code": "required"}


def test_latest_tag_is_warned_about() -> None:
    spec = parse(spec_with(framework=None, image="registry.example:5000/team/img:latest"))
    assert [problem.code for problem in spec.warnings] == ["image_latest"]


def test_checkpoints_rarer_than_the_time_limit_are_warned_about() -> None:
    spec = parse(spec_with(time_limit="5m", checkpoint={"every": "10m"}))
    assert [problem.code for problem in spec.warnings] == ["checkpoint_after_limit"]


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("python train.py --steps 5", ""),
        ("python -u ./train.py", ""),
        (["python3", "train.py"], ""),
        ("python trian.py --steps 5", "trian.py"),
        ("python trian.py\n", "trian.py"),  # a block of YAML
        (["python", "-u", "src/train.py"], "src/train.py"),
        ("python -m train", ""),
        ("cd src && python main.py", ""),  # a shell decides what it runs
        ("python $PROGRAM.py", ""),
        ("python /opt/main.py", ""),
        ("bash main.sh", ""),
        ("python", ""),
    ],
)
def test_a_program_that_the_code_does_not_have_is_warned_about(
    command: str | list[str], missing: str
) -> None:
    code = {"files": {"train.py": "print(1)"}}
    warnings = parse(spec_with(command=command, code=code)).warnings
    assert [(one.path, one.code, one.got) for one in warnings] == (
        [("command", "program_not_in_code", missing)] if missing else []
    )


def test_a_program_may_come_from_elsewhere() -> None:
    code = {"files": {"setup.txt": ""}}
    assert not parse(spec_with(command="python main.py", code=code, setup=["git clone x ."])).warnings
    assert not parse(spec_with(command="python main.py", code={"upload": "6g31dskzvw77"})).warnings


def test_setup_commands_are_kept_in_order_and_have_bounds() -> None:
    spec = parse(spec_with(setup=["pip install tqdm", "python prepare.py\nls"]))
    assert spec.setup == ("pip install tqdm", "python prepare.py\nls")
    assert parse(to_yaml(spec)) == spec
    assert "setup" not in parse(spec_with(setup=[])).normalized
    assert codes(spec_with(setup=["  "])) == {"setup[0]": "bad_format"}
    assert codes(spec_with(setup="ls")) == {"setup": "wrong_type"}
    assert codes(spec_with(setup=["ls"] * 11)) == {"setup": "too_many"}
