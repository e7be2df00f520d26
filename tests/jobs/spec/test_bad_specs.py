"""Every wrong field is named, with a code, what was got and what would be right; all at once."""

from __future__ import annotations

import pytest

from jobs.spec import SpecError, parse, to_yaml

from .test_job_spec import LEAST, codes, spec_with

ELASTIC = {"learners": {"min": 1, "max": 4}}
RANGES = [
    ("resources", {"learners": 0}, "resources.learners", "out_of_range"),
    ("resources", {"learners": -1}, "resources.learners", "out_of_range"),
    ("resources", {"learners": 10**6}, "resources.learners", "out_of_range"),
    ("resources", {"learners": 1.5}, "resources.learners", "wrong_type"),
    ("resources", {"learners": "two"}, "resources.learners", "wrong_type"),
    ("resources", {"learners": True}, "resources.learners", "wrong_type"),
    ("resources", {"learners": None}, "resources.learners", "wrong_type"),
    ("resources", {"gpus": -1}, "resources.gpus", "out_of_range"),
    ("resources", {"gpus": 1000}, "resources.gpus", "out_of_range"),
    ("resources", {"cpus": float("nan")}, "resources.cpus", "number_not_finite"),
    ("resources", {"cpus": 0}, "resources.cpus", "out_of_range"),
    ("resources", {"memory": "1Tb"}, "resources.memory", "bad_unit"),
    ("resources", {"memory": 4}, "resources.memory", "bad_unit"),
    ("resources", {"memory": "1Mi"}, "resources.memory", "out_of_range"),
    ("resources", {"gpu_type": "A100!"}, "resources.gpu_type", "bad_format"),
    ("resources", {"gpu_type": "a100"}, "resources.gpu_type", "gpu_type_without_gpus"),
    ("resources", {"gpus": 1, "gpu_type": "cpu"}, "resources.gpu_type", "gpu_type_without_gpus"),
    ("resources", {"learners": "1-4"}, "resources.learners", "wrong_type"),
    ("resources", {"learners": {"min": 1}}, "resources.learners.max", "required"),
    ("resources", {"learners": {"min": 0, "max": 2}}, "resources.learners.min", "out_of_range"),
    ("resources", {"learners": {"min": 1, "max": 2, "step": 1}}, "resources.learners.step", "unknown_field"),
    ("resources", {"learners": {"min": 2, "max": 2}}, "resources.learners.max", "out_of_range"),
    ("resources", {"learners": {"min": 3, "max": 2}}, "resources.learners.max", "out_of_range"),
    ("resources", {"batch": {"min": 1, "max": 8}}, "resources.batch", "batch_without_range"),
    ("resources", ELASTIC | {"batch": {"min": 8, "max": 4}}, "resources.batch.max", "out_of_range"),
    ("resources", ELASTIC | {"batch": {"min": 1, "max": 3}}, "resources.batch.max", "out_of_range"),
    ("resources", [], "resources", "wrong_type"),
    ("placement", "packed", "placement", "not_a_choice"),
    ("opportunistic", "yes", "opportunistic", "wrong_type"),
    ("topology", {}, "topology", "exactly_one"),
    ("topology", {"required": "rack", "preferred": "rack"}, "topology", "exactly_one"),
    ("topology", {"required": "row"}, "topology.required", "not_a_choice"),
    ("topology", "rack", "topology", "wrong_type"),
    ("priority", "hihg", "priority", "not_a_choice"),
    ("priority", ["high"], "priority", "not_a_choice"),
    ("max_restarts", 10**6, "max_restarts", "out_of_range"),
    ("max_restarts", -1, "max_restarts", "out_of_range"),
    ("time_limit", "0s", "time_limit", "out_of_range"),
    ("time_limit", 0, "time_limit", "bad_unit"),
    ("time_limit", "91d", "time_limit", "out_of_range"),
    ("checkpoint", {"grace": "1000000000s"}, "checkpoint.grace", "out_of_range"),
    ("checkpoint", {"keep": 0}, "checkpoint.keep", "out_of_range"),
    ("checkpoint", {"every": "ten minutes"}, "checkpoint.every", "bad_unit"),
    ("keep", "*.pt", "keep", "wrong_type"),
    ("keep", ["/etc/*"], "keep[0]", "unsafe_path"),
    ("keep", ["*.pt", "../**"], "keep[1]", "unsafe_path"),
    ("keep", ["a/**/../b"], "keep[0]", "unsafe_path"),
    ("keep", [""], "keep[0]", "too_short"),
    ("keep", [7], "keep[0]", "wrong_type"),
    ("keep", ["*.pt", "*.pt"], "keep[1]", "duplicate"),
    ("checkpoint", {"step": r"ckpt-(\d+)"}, "checkpoint.step", "regex_no_step"),
    ("checkpoint", {"step": r"ckpt-(?P<step>\d+"}, "checkpoint.step", "regex_syntax"),
    ("checkpoint", {"step": r"(?P<step>(\d+)+)x"}, "checkpoint.step", "regex_unsafe"),
    ("checkpoint", {"step": ""}, "checkpoint.step", "too_short"),
    ("checkpoint", {"step": 7}, "checkpoint.step", "wrong_type"),
    ("apiVersion", "luthier/v2", "apiVersion", "wrong_value"),
    ("name", "", "name", "too_short"),
    ("name", " padded", "name", "bad_format"),
    ("name", "two\nlines", "name", "bad_format"),
    ("name", "right\u202eleft", "name", "bad_format"),
    ("name", "x" * 101, "name", "too_long"),
    ("name", 7, "name", "wrong_type"),
    ("name", "nul\x00", "name", "nul_forbidden"),
    ("name", "half\ud800", "name", "lone_surrogate"),
    ("tags", ["a", "a"], "tags[1]", "duplicate"),
    ("tags", ["two words"], "tags[0]", "bad_format"),
    ("tags", [f"t{n}" for n in range(21)], "tags", "too_many"),
    ("tags", "vision", "tags", "wrong_type"),
    ("framework", "PyTorch", "framework", "bad_format"),
    ("command", "", "command", "too_short"),
    ("command", "  ", "command", "bad_format"),
    ("command", "a\x00b", "command", "nul_forbidden"),
    ("command", [], "command", "too_few"),
    ("command", [""], "command[0]", "too_short"),
    ("command", ["a", 1], "command[1]", "wrong_type"),
    ("command", {"run": "a"}, "command", "wrong_type"),
    ("code", {}, "code", "exactly_one"),
    ("code", {"files": {"a": ""}, "upload": "abc"}, "code", "exactly_one"),
    ("code", {"files": {}}, "code.files", "too_few"),
    ("code", {"files": {"../a": ""}}, 'code.files["../a"]', "unsafe_path"),
    ("code", {"files": {"/a": ""}}, 'code.files["/a"]', "unsafe_path"),
    ("code", {"files": {"a//b": ""}}, 'code.files["a//b"]', "unsafe_path"),
    ("code", {"files": {"a\\b": ""}}, 'code.files["a\\b"]', "unsafe_path"),
    ("code", {"files": {"a": "", "A": ""}}, "code.files.A", "duplicate"),
    ("code", {"files": {"a/b": "", "a": ""}}, 'code.files["a/b"]', "duplicate"),
    ("code", {"files": {"a": 1}}, "code.files.a", "wrong_type"),
    ("code", {"files": {"a": "x" * 600_000}}, "code.files", "code_too_large"),
    ("code", {"upload": "../x"}, "code.upload", "bad_format"),
    ("data", [{"name": "a", "path": "../b"}], "data[0].path", "unsafe_path"),
    ("data", [{"name": "a", "path": "/proc"}], "data[0].path", "unsafe_path"),
    ("data", [{"name": "a", "path": "/"}], "data[0].path", "unsafe_path"),
    ("data", [{"name": "..", "path": "b"}], "data[0].name", "bad_format"),
    ("data", [{"name": "a", "path": "b"}, {"name": "A", "path": "c"}], "data[1].name", "duplicate"),
    ("data", [{"name": "a"}], "data[0].path", "required"),
    ("data", [{"name": "a", "path": "b", "mode": "rw"}], "data[0].mode", "unknown_field"),
    ("env", {"LD_PRELOAD": "x"}, "env.LD_PRELOAD", "env_reserved"),
    ("env", {"KUBERNETES_PORT": "x"}, "env.KUBERNETES_PORT", "env_reserved"),
    ("env", {"FFDL_X": "x"}, "env.FFDL_X", "env_reserved"),
    ("env", {"LUTHIER_RANK": "x"}, "env.LUTHIER_RANK", "env_reserved"),
    ("env", {"CHECKPOINT_DIR": "x"}, "env.CHECKPOINT_DIR", "env_reserved"),
    ("env", {"CUDA_VISIBLE_DEVICES": "0"}, "env.CUDA_VISIBLE_DEVICES", "env_reserved"),
    ("env", {"1A": "x"}, "env.1A", "bad_name"),
    ("env", {"A-B": "x"}, 'env["A-B"]', "bad_name"),
    ("env", {"A": None}, "env.A", "wrong_type"),
    ("env", {"A": ["x"]}, "env.A", "wrong_type"),
    ("env", {"A": "x" * 20_000, "B": "x" * 20_000}, "env", "env_too_large"),
    ("leraners", 2, "leraners", "unknown_field"),
    ("tenant", "other", "tenant", "unknown_field"),
]


@pytest.mark.parametrize(("key", "value", "path", "code"), RANGES, ids=lambda part: str(part)[:40])
def test_wrong_value_is_refused_at_its_field(key: str, value: object, path: str, code: str) -> None:
    found = codes(spec_with() | {key: value})
    assert found == {path: code}


IMAGES = [
    "Registry/x:1",
    "evil.example/x",
    "a" * 300 + ":1",
    "x:1@md5:0",
    "http://x/y:1",
    "x y:1",
    "x:\u0661",
]


@pytest.mark.parametrize("image", IMAGES)
def test_bad_image_is_refused(image: str) -> None:
    assert codes(spec_with(framework=None, image=image)) == {"image": "image_not_allowed"}


def test_framework_and_image_exclude_each_other() -> None:
    assert codes(spec_with(image="a:1")) == {"image": "exactly_one"}
    assert codes(spec_with(framework=None)) == {"framework": "required"}


def test_every_problem_is_reported_at_once_in_document_order() -> None:
    text = "apiVersion: luthier/v1\nname: ''\nleraners: 2\nframework: plain\n"
    text += "code: {files: {a: ''}}\ncommand: x\nresources: {gpus: 99}\n"
    with pytest.raises(SpecError) as caught:
        parse(text)
    found = [(problem.path, problem.line, problem.column) for problem in caught.value.problems]
    assert found == [("name", 2, 7), ("leraners", 3, 11), ("resources.gpus", 7, 19)]


def test_misspelt_key_gets_the_nearest_name() -> None:
    with pytest.raises(SpecError, match="Did you mean `learners`"):
        parse(spec_with(resources={"leraners": 2}))
    with pytest.raises(SpecError, match=r"Did you mean `resources\.learners`"):
        parse(spec_with(leraners=2))
    with pytest.raises(SpecError, match="Did you mean high"):
        parse(spec_with(priority="hihg"))


@pytest.mark.parametrize(
    ("typed", "meant"), [("nmae", "name"), ("iamge", "image"), ("tgas", "tags"), ("evn", "env")]
)
def test_two_swapped_letters_are_one_slip(typed: str, meant: str) -> None:
    """`nmae` shares as many letters with `image`, and `name` is in the document already: it is still nearer."""
    with pytest.raises(SpecError, match=f"Did you mean `{meant}`"):
        parse(spec_with(**{typed: "x"}))


LIMITS = [
    (3600, "3600s"), ("1h30m", "90m"), ("10min", "10m"), ("2 days", "2d"), ("3 hrs", "3h"), ("5Secs", "5s"),
    ("100ms", "shortest unit is s: write 1s"), ("90000 ms", "write 90s"), ("1w", "mean 7d"), ("2 weeks", "mean 14d"),
    (" 1h", "space around it: write 1h"), ("1month", "a whole number with s, m, h or d"),
]  # fmt: skip


def test_units_come_with_their_remedy() -> None:
    for value, remedy in [
        ("1Tb", "1Ti"),
        ("4GB", "4Gi"),
        ("4096", "4096Mi"),
        ("1.5Gi", "1536Mi"),
        ("4Gi ", "write 4Gi"),
    ]:
        with pytest.raises(SpecError, match=remedy):
            parse(spec_with(resources={"memory": value}))
    for limit, remedy in LIMITS:
        with pytest.raises(SpecError, match=remedy):
            parse(spec_with(time_limit=limit))


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        (["ok", "two words"], "tags[1]: `two words` is not valid: write letters, digits and"),
        (["ok", "ok"], "tags[1]: `ok` is given twice"),
        (["t" * 51], f"tags[0]: `{'t' * 51}` has 51 characters"),
    ],
)
def test_an_error_of_a_tag_names_the_tag(tags: list[str], said: str) -> None:
    """A form shows all of them in one field: the number of an entry alone finds nothing there."""
    with pytest.raises(SpecError) as caught:
        parse(spec_with(tags=tags))
    assert str(caught.value).startswith(said)


def test_at_most_fifty_problems_are_reported_and_the_rest_is_counted() -> None:
    with pytest.raises(SpecError) as caught:
        parse(spec_with(env={f"LD_{n}": "x" for n in range(80)}))
    assert len(caught.value.problems) == 50
    assert "30 more" in caught.value.problems[-1].message


def test_got_is_short_and_escaped() -> None:
    with pytest.raises(SpecError) as caught:
        parse(spec_with(priority="\x1b[31m" + "x" * 500))
    (problem,) = caught.value.problems
    assert problem.got is not None
    assert len(problem.got) <= 200
    assert "\x1b" not in problem.got


def test_ffdl_manifest_is_recognized() -> None:
    manifest = {
        "name": "x",
        "learners": 1,
        "gpus": 0,
        "framework": {"name": "tensorflow", "command": "python"},
    }
    assert codes(manifest) == {"": "ffdl_manifest"}


def test_problem_as_list_has_the_shape_of_the_api() -> None:
    with pytest.raises(SpecError) as caught:
        parse(to_yaml(LEAST) + "priority: x\n")
    (entry,) = caught.value.as_list()
    assert set(entry) == {"path", "code", "message", "got", "allowed", "line", "column", "near"}
    assert (entry["path"], entry["got"], entry["allowed"]) == ("priority", "x", "low, normal, high, urgent")


def test_what_contradicts_an_opportunistic_job_is_said_at_once() -> None:
    wrong = spec_with(opportunistic=True, priority="urgent", resources=ELASTIC, checkpoint={"grace": "301s"})
    assert isinstance(wrong, dict)
    with pytest.raises(SpecError) as caught:
        parse(wrong)
    found = [(problem.path, problem.code, problem.message) for problem in caught.value.problems]
    assert found == [
        (
            "opportunistic",
            "not_opportunistic",
            "An urgent job stops others, an opportunistic one is stopped for others: remove opportunistic, or choose"
            " another priority",
        ),
        (
            "opportunistic",
            "not_opportunistic",
            "An opportunistic job has one size: remove opportunistic, or give the number of its learners, such as"
            " learners: 1",
        ),
        (
            "checkpoint.grace",
            "not_opportunistic",
            "Other jobs wait while an opportunistic one saves: give 5m or less, or remove opportunistic",
        ),
    ]
    assert codes(wrong | {"opportunistic": False}) == {}


@pytest.mark.parametrize(
    ("grace", "found"),
    [
        ("5m", {}),
        ("300s", {}),
        ("1h", {"checkpoint.grace": "not_opportunistic"}),
        ("2h", {"checkpoint.grace": "out_of_range"}),
        ("soon", {"checkpoint.grace": "bad_unit"}),
        (60, {"checkpoint.grace": "bad_unit"}),
    ],
)
def test_an_opportunistic_job_saves_within_minutes(grace: object, found: dict[str, str]) -> None:
    assert codes(spec_with(opportunistic=True, checkpoint={"grace": grace})) == found
