"""Refusals of strangers in the log: bounded, and none lost without a number."""

from __future__ import annotations

import logging

import pytest

from portal import strangers
from portal.strangers import LINES, LINES_IN_ALL, Lines

logger = logging.getLogger("portal.tried")


def test_one_address_fills_no_log_and_hides_no_other() -> None:
    lines = Lines()
    assert [lines.take("10.0.0.1", 0) for _ in range(LINES)] == [0] * LINES
    assert [lines.take("10.0.0.1", 1) for _ in range(3)] == [None] * 3
    assert lines.take("10.0.0.2", 2) == 3, "the next line says how many were left out"
    assert lines.take("10.0.0.2", 3) == 0
    assert lines.take("10.0.0.1", 61) == 0, "a minute later"


def test_an_ipv6_network_has_the_lines_of_one_address() -> None:
    lines = Lines()
    assert [lines.take(f"2001:db8::{n:x}", 0) for n in range(1, LINES + 2)] == [0] * LINES + [None]


def test_many_addresses_fill_no_log_and_no_memory() -> None:
    lines = Lines()
    taken = [lines.take(f"10.0.{n // 250}.{n % 250}", 0) for n in range(10_000)]
    assert sum(each is not None for each in taken) == LINES_IN_ALL
    assert len(lines._by_address) <= LINES_IN_ALL


def test_a_line_says_who_what_and_how_many_were_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "LINES", 1)
    for address in ("10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.2"):
        strangers.warn(logger, "refused", address, code=4401)
    seen = [vars(each) for each in caplog.records if each.name == logger.name]
    assert [(each["address"], each["code"], each.get("left_out")) for each in seen] == [
        ("10.0.0.1", 4401, None),
        ("10.0.0.2", 4401, 2),
    ]
