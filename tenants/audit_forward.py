"""Sends the audit log to another system, such as one that collects logs: by POST, as JSON lines.

Entries go in the order of the chain. An id is given before its entry is committed, so asking for what comes after an
id would pass over what is committed late; a place in the chain is not. How far it has come is in the result of the last
run, so an entry that was sent before a crash is sent again, and nothing is left out. What the other system refuses
is tried again until it takes it. docs/adr/0126-the-audit-log-leaves-the-platform.md
"""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
import time
from collections.abc import Callable
from itertools import islice
from typing import Any
from urllib.parse import SplitResult, urlsplit

from django.conf import settings
from django.db import connection as database

from tenants import audit
from tenants.cut_off import CutOff
from tenants.pauses import pause_after

logger = logging.getLogger(__name__)

EVERY_S = 5.0
BATCH, BATCH_BYTES = audit.EXPORTED, 512 * 1024
"""Entries and bytes of one request; a single entry may be longer."""
SENDS_S = 10.0
"""After this long no further request is begun; the next run continues."""
STEP_S, LONGEST_S = 5.0, 20.0
"""How long each wait for the other system may take, and a request in all."""
RUN_S = SENDS_S + LONGEST_S

Result = dict[str, Any]
Entry = dict[str, Any]


class Refused(Exception):
    """The other system has answered, and has not taken what was sent."""


FAULTS = (OSError, http.client.HTTPException, Refused)
"""ssl.SSLError and timeouts are OSErrors."""


def send_new(before: Result, encode: Callable[[Entry], bytes]) -> Result:
    """Send what is new. before: the last result. encode: an entry as one line of JSON.

    to, n: the address, and the place in the chain up to which it has everything; another address gets all of it.
    failures: runs in a row that failed. problem: what went wrong; empty: nothing. next_in_s: None: as usual.
    """
    to = settings.LUTHIER_AUDIT_URL
    if to is None:
        return before | {"failures": 0, "problem": "", "next_in_s": None}
    if before.get("to") != to:
        before = {}
    result: Result = {"to": to, "n": int(before.get("n", 0)), "failures": 0, "problem": "", "next_in_s": None}
    until = time.monotonic() + SENDS_S
    try:
        while batch := _batch(result["n"], encode):
            body, n = batch
            _post(urlsplit(to), body)
            result["n"] = n
            if time.monotonic() >= until:
                result["next_in_s"] = 0.0
                break
    except FAULTS as fault:
        failures = int(before.get("failures", 0)) + 1
        pause_s = pause_after(failures)
        result |= {"failures": failures, "problem": _text(fault), "next_in_s": pause_s}
        logger.warning("the audit log was not sent", extra={"error": _text(fault), "pause_s": pause_s})
    return result


def waiting(after: int) -> tuple[int, float]:
    """How many entries behind this place in the chain there are to send, and the age of the oldest in seconds."""
    with database.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(e.at)), 0) FROM tenants_auditseal s"
            " JOIN tenants_auditentry e ON e.id = s.entry_id WHERE s.n > %s",
            [after],
        )
        count, age_s = cursor.fetchone()
    return int(count), float(age_s)


def _batch(after: int, encode: Callable[[Entry], bytes]) -> tuple[bytes, int] | None:
    """The next lines, and the place in the chain of the last; None: there are none."""
    lines: list[bytes] = []
    size, n = 0, after
    for entry in islice(audit.sealed(after=after), BATCH):
        line = encode(entry) + b"\n"
        if lines and size + len(line) > BATCH_BYTES:
            break
        lines.append(line)
        size, n = size + len(line), entry["seal"]["n"]
    return (b"".join(lines), n) if lines else None


def _post(to: SplitResult, body: bytes) -> None:
    """Raises one of FAULTS unless it was taken. Follows no redirect: what is said here is for this address alone."""
    encrypted = to.scheme == "https"
    kind = http.client.HTTPSConnection if encrypted else http.client.HTTPConnection
    connection = kind(to.hostname or "", to.port)
    plain = socket.create_connection((connection.host, connection.port), timeout=STEP_S)
    over = CutOff(plain, LONGEST_S)
    try:
        connection.sock = plain
        if encrypted:
            connection.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=to.hostname)
        headers = {"Content-Type": "application/x-ndjson", "User-Agent": "luthier"}
        if settings.LUTHIER_AUDIT_AUTHORIZATION:
            headers["Authorization"] = settings.LUTHIER_AUDIT_AUTHORIZATION
        where = f"{to.path or '/'}?{to.query}" if to.query else to.path or "/"
        connection.request("POST", where, body, headers)
        status = connection.getresponse().status
    finally:
        over.cancel()
        connection.close()
    if not 200 <= status < 300:
        raise Refused(f"it answered with {status}")


def _text(fault: Exception) -> str:
    text = str(fault) if isinstance(fault, Refused) else f"{type(fault).__name__}: {fault}"
    return "".join(letter if letter.isprintable() else " " for letter in text)[:200]
