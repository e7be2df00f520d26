"""Values of secrets never reach the log, however the program's output is cut into reads."""

from __future__ import annotations

import itertools
import random

import pytest

from learner_agent.masking import Mask, masks

TOKEN = b"tok-abcabd-123"


def masked(values: list[bytes], *pieces: bytes) -> bytes:
    mask = Mask(values)
    return b"".join([*map(mask.feed, pieces), mask.flush()])


@pytest.mark.parametrize(
    "text",
    [
        b"key=" + TOKEN + b"\n",
        TOKEN,
        TOKEN + TOKEN,
        b"tok-abc" + TOKEN + b"tok-ab",
        b"tok-abcabtok-abcabd-123tok",
    ],
)
def test_a_value_is_masked_at_every_split_into_three_reads(text: bytes) -> None:
    whole = text.replace(TOKEN, b"***")
    for first, second in itertools.combinations_with_replacement(range(len(text) + 1), 2):
        assert masked([TOKEN], text[:first], text[first:second], text[second:]) == whole


def test_a_value_is_masked_when_it_comes_byte_by_byte() -> None:
    text = b"a" + TOKEN + b"b" + TOKEN[:-1] + b"c\n"
    assert masked([TOKEN], *(bytes([each]) for each in text)) == b"a***b" + TOKEN[:-1] + b"c\n"


def test_overlapping_values_leave_no_part_of_either() -> None:
    for pieces in ([b"abcdefghij"], [b"abcdef", b"ghij"], [b"abcde", b"fg", b"hij"]):
        assert masked([b"abcdef", b"efghij"], *pieces) == b"***"


def test_a_value_inside_another_is_masked_with_it() -> None:
    assert masked([b"secret", b"my-secret-key"], b"my-secret-key secret my-secret") == b"*** *** my-***"


def test_a_value_that_repeats_itself_takes_no_growing_memory() -> None:
    mask = Mask([b"aaaaaa"])
    shown = b"".join(mask.feed(b"a" * 1000) for _ in range(100))
    assert shown == b"***"
    assert len(mask._held) < 6
    assert mask.feed(b"b") + mask.flush() == b"b"


def test_every_cut_of_random_output_gives_the_same_bytes() -> None:
    """Against the plain definition: the union of all occurrences, each run of overlapping ones shown as stars."""
    dice = random.Random(7)
    for _ in range(300):
        values = [bytes(dice.choices(b"ab", k=dice.randint(2, 5))) for _ in range(dice.randint(1, 3))]
        text = bytes(dice.choices(b"ab\n", k=dice.randint(0, 40)))
        cuts = sorted(dice.choices(range(len(text) + 1), k=dice.randint(0, 6)))
        pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
        assert masked(values, *pieces) == plainly(values, text), (values, text, pieces)


def plainly(values: list[bytes], text: bytes) -> bytes:
    spans = sorted(
        (at, at + len(value)) for value in values for at in range(len(text)) if text.startswith(value, at)
    )
    shown, at = b"", 0
    for start, end in spans:
        if start >= at:
            shown += text[at:start] + b"***"
        at = max(at, end)
    return shown + text[at:]


def test_without_secrets_every_byte_passes_at_once() -> None:
    data = bytes(range(256)) * 10
    assert Mask([]).feed(data) == data


def test_what_cannot_be_a_value_is_shown_at_once() -> None:
    mask = Mask([TOKEN])
    assert mask.feed(b"step 1 loss 0.5\n") == b"step 1 loss 0.5\n"
    assert mask.feed(b"step 2 t") == b"step 2 "


def test_each_line_of_a_value_with_several_lines_is_masked() -> None:
    env = {"LUTHIER_SECRET_NAMES": "PEM", "PEM": "-----BEGIN-----\nMIIEvQ==x\n--\n"}
    text = b"> MIIEvQ==x\r\n-----BEGIN-----\nMIIEvQ==x\n--\nend\n"
    assert masked(masks(env), text) == b"> ***\r\n***\nend\n"


def test_the_newline_at_a_values_end_is_not_masked() -> None:
    env = {"LUTHIER_SECRET_NAMES": "A B", "A": "line1\nline22\n", "B": " abc\n \n"}
    assert masked(masks(env), b"x line1\nline22\ny\n") == b"x ***\ny\n"
    assert masked(masks(env), b"x abc\n \ny\n") == b"x***y\n", "too short without its spaces"


def test_only_the_listed_variables_are_masked() -> None:
    assert masks({"LUTHIER_SECRET_NAMES": "A B", "A": "value-a", "C": "value-c"}) == [b"value-a"]
