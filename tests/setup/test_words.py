"""The check of words finds homemade terms inside names and prose, and lets good English pass."""

import pytest

from tools.words import findings


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("class JobSeen:", "job seen"),
        ("def wish_halt(self) -> None:", "wish"),
        ("    again_s: float", "again s"),
        ("# Somebody asked for something else.", "somebody"),
        ('"Nobody raises his own role."', "nobody"),
        (".log-keeper { color: red }", "keeper"),
        ("the normalised spec", "normalised"),
    ],
)
def test_a_banned_word_is_found_in_names_and_in_prose(line: str, word: str) -> None:
    assert word in [found for found, _ in findings(line)]


@pytest.mark.parametrize(
    "line",
    [
        "standard output",
        "the head of the queue",
        "FAIR stands for nothing here",
        "back and forth",
        "a teller",
        "heading",
    ],
)
def test_good_english_passes(line: str) -> None:
    assert findings(line) == []
