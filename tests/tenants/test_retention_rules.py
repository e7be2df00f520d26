"""The syntax of the installation's retention rules."""

from __future__ import annotations

import pytest

from tenants.retention import Kind, Rule, read_rules


def test_rules_are_days_a_size_or_both_of_each_kind() -> None:
    assert read_rules("logs:90d, checkpoints:30d:500Gi,results:1048576") == {
        Kind.LOGS: Rule(days=90),
        Kind.CHECKPOINTS: Rule(days=30, bytes=500 * 2**30),
        Kind.RESULTS: Rule(bytes=2**20),
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("log:90d", "'log:90d' names no kind of data"),
        ("logs", "'logs' must have days such as 90d"),
        ("logs:90d:30d", "'logs:90d:30d' must have days"),
        ("logs:0d", "days must be 1 to"),
        ("audit:3d", "days must be 30 to"),
        ("sessions:1Gi", "removed by age alone"),
        ("logs:1d,logs:2d", "logs is named twice"),
        ("log:1d,logs:x", "'logs:x' must have"),
    ],
)
def test_a_wrong_rule_is_named_with_what_it_may_be(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read_rules(text)
