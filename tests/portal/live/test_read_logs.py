"""What a viewer of a log receives at its end."""

from __future__ import annotations

import json

from jobs.selectors.log_lines import Hole
from jobs.selectors.logs import Head, LogPage
from portal.live.frames import ReadRequest
from portal.live.protocol import parse_channel
from portal.live.read_logs import _batch


def test_a_log_that_ends_in_lines_that_were_not_kept_is_said_to_have_ended() -> None:
    """A full log: without a line to carry it, the word would never come, and the viewer would wait for good."""
    channel = parse_channel("job:abcdefghjkmn:logs:1:0")
    assert channel is not None
    found = LogPage([], next=9, head=Head(9, 100, sealed=True), holes=[Hole(6, 9, 50)])
    page = _batch(ReadRequest(channel, 5, (None, False, 0.0)), found)
    answered = [json.loads(frame.text) for frame in page.frames]
    assert [(one.get("gap"), one.get("sealed")) for one in answered] == [
        ({"from": 6, "to": 9, "lost": True}, None),
        (None, True),
    ]
    assert (answered[-1]["from"], answered[-1]["to"], page.head) == (10, 9, 9)
