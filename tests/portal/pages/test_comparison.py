"""What differs between jobs, as text: pure functions on jobs as REST shows them."""

from __future__ import annotations

from typing import Any

import pytest

from portal.pages import comparison


def job(name: str = "digits", ident: str = "0000000000a1", **more: Any) -> dict[str, Any]:
    progress = {"step": 300, "total": 1000, "percent": 30.0}
    return {
        "id": ident,
        "name": name,
        "owner": "alice",
        "phase": "Running",
        "state": "PROCESSING",
        "reason": {"code": "", "message": "", "numbers": {}},
        "progress": progress,
        "metrics": {},
        "spec": {"name": name, "command": "python main.py", "resources": {"learners": 1, "gpus": 0}},
        "gpus": 0,
        "slots": 2,
        "learners": 1,
        "elastic": None,
        "slot_type": "cpu",
        "gpu_type": None,
        "slot_seconds": 0.0,
        "restarts_used": 0,
    } | more


def test_only_jobs_of_one_name_get_the_end_of_their_id() -> None:
    three = [job("a", "0000000000a1"), job("b", "0000000000b1"), job("a", "0000000000a2")]
    assert comparison.labels(three) == ["a 0000a1", "b", "a 0000a2"]


def test_losses_come_first_then_what_most_jobs_report() -> None:
    first = job(metrics={"lr": {}, "loss": {}, "acc": {}})
    second = job(metrics={"acc": {}, "val/loss": {}})
    assert comparison.metric_names([first, second]) == ["loss", "val/loss", "acc", "lr"]


def test_newest_metrics_say_how_far_they_are_from_the_baseline() -> None:
    jobs = [job(metrics={"loss": {"last": value}}) for value in (0.5, 0.25, "NaN", 0.5)] + [job()]
    [row] = comparison.newest(jobs, ["loss"], base=0)
    assert [cell.text for cell in row.cells] == ["0.5", "0.25", "NaN", "0.5", "—"]
    assert [cell.change for cell in row.cells] == ["", "−0.25 (−50%)", "", "", ""]
    assert [cell.differs for cell in row.cells] == [False, True, True, False, True]
    [other] = comparison.newest(jobs, ["loss"], base=1)
    assert other.cells[0].change == "+0.25 (+100%)"


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (0, 2, "+2"),  # no share of nothing
        (-2.0, -1.0, "+1 (+50%)"),  # of the size of what it was
        (1, 1, ""),
        (None, 1, ""),
        (1e308, -1e308, ""),  # further apart than a number can say
    ],
)
def test_a_change_is_said_where_it_is_a_number(before: Any, after: Any, change: str) -> None:
    assert comparison.change(before, after) == change


def test_fields_of_specs_are_compared_by_path_whatever_only_one_has() -> None:
    spec = {"name": "b", "command": "python main.py", "resources": {"learners": 2, "gpus": 0}}
    rows = comparison.spec_rows([job(), job("b", spec=spec | {"env": {"LR": "1"}})], base=0)
    assert {row.title: [cell.text for cell in row.cells] for row in rows if row.differs} == {
        "resources.learners": ["1", "2"],
        "env.LR": ["—", "1"],
    }
    assert "name" not in {row.title for row in rows}


def test_the_changes_of_a_spec_are_lines_of_yaml() -> None:
    lines = comparison.spec_diff(job(), job(spec=job()["spec"] | {"command": "python other.py"}))
    assert [(line.kind, line.text) for line in lines if line.kind in ("added", "removed")] == [
        ("removed", "-command: python main.py"),
        ("added", "+command: python other.py"),
    ]
    assert comparison.spec_diff(job(), job("other", spec=job("other")["spec"])) == []


def test_the_outcome_has_hours_of_the_devices_that_all_jobs_use() -> None:
    gpu = job(gpus=1, slot_seconds=7200.0)
    titles = [row.title for row in comparison.outcome([gpu, gpu], [0.0, 61.0], base=0)]
    assert "GPU-hours" in titles
    rows = {row.title: row for row in comparison.outcome([gpu, job()], [0.0, 61.0], base=0)}
    assert [cell.text for cell in rows["Device-hours"].cells] == ["2.0", "—"]
    assert rows["Ran for"].cells[0].text == "—"
    assert rows["Step"].cells[1].text == "300 / 1,000"
