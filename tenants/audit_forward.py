"""Sends the audit log to another system, such as one that collects logs: by POST, as JSON lines.

Entries go in the order of the chain. An id is given before its entry is committed, so asking for what comes after an
id would pass over what is committed late; a place in the chain is not. How far each address has come is kept after each
request, so an entry that was sent before a crash is sent again, and nothing is left out. What the other system refuses
is tried again until it takes it, and retention leaves it here until then.
docs/adr/0126-the-audit-log-leaves-the-platform.md
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import ssl
import time
from collections.abc import Callable
from itertools import islice
from typing import Any
from urllib.parse import SplitResult, urlsplit

from django.conf import settings
from django.db import connection as database

from tenants import audit, audit_chain, outgoing
from tenants.cut_off import CutOff
from tenants.pauses import pause_after

logger = logging.getLogger(__name__)

EVERY_S = 5.0
BATCH, BATCH_BYTES = audit.EXPORTED, 512 * 1024
"""Entries and bytes of one request; a single entry may be longer."""
SENDS_S = 10.0
"""After this long no further request is begun; the next run continues."""
LONGEST_S = 20.0
"""How long a request may take in all, from the question for the host's address to the answer."""
RUN_S = 2 * (SENDS_S + LONGEST_S)
"""For so long a run is one worker's: far longer than it takes, so that no other one begins where it began."""

NAMED_S = 3 * 24 * 3600.0
"""For so long after a worker last had an address, what that has not taken stays here, and is said to wait."""
COUNTED = 100_000
"""Entries that wait are counted up to here: a collector may be away for months."""

WAITING = f"""(SELECT count(*) FROM (SELECT FROM tenants_auditseal s
    WHERE s.n > {{place}} AND NOT s.removed LIMIT {COUNTED}) sealed)
  + (SELECT count(*) FROM tenants_auditentry e WHERE {audit_chain.IS_UNSEALED})"""
"""SQL: how many entries behind this place in the chain, or not in it yet, there are to send."""
OLDEST_S = f"""coalesce(extract(epoch FROM clock_timestamp() - least(
    (SELECT e.at FROM tenants_auditseal s JOIN tenants_auditentry e ON e.id = s.entry_id
     WHERE s.n > {{place}} AND NOT s.removed ORDER BY s.n LIMIT 1),
    (SELECT min(e.at) FROM tenants_auditentry e WHERE {audit_chain.IS_UNSEALED}))), 0)::float8"""
"""SQL: the age of the first of them, in seconds; 0: there is none."""

Result = dict[str, Any]
Entry = dict[str, Any]


class Refused(Exception):
    """The other system has answered, and has not taken what was sent."""


FAULTS = (OSError, http.client.HTTPException, UnicodeError, Refused)
"""ssl.SSLError and timeouts are OSErrors; UnicodeError: of a host that no name of one could be."""


def send_new(before: Result, encode: Callable[[Entry], bytes], keep: Callable[[Result], None]) -> Result:
    """Send what is new. before: the last result. encode: an entry as one line of JSON. keep: stores a result, which is
    called after each request that was taken.

    places: for each address, by its mark, the place in the chain up to which it has everything; a new address gets all
    of it. to: the mark of the one that was sent to last. named: for each address, when a worker last had it, in seconds
    since 1970 by the database. lacked_at: when a worker had none last, although others do. failures: runs in a row that
    failed and sent nothing before. problem: what went wrong; empty: nothing. next_in_s: None: as usual.
    """
    address, now_s = settings.LUTHIER_AUDIT_URL, database_s()
    named = named_by(before, now_s)
    if address is None:  # what other workers found stays as it is
        return before | {"next_in_s": None} | ({"lacked_at": now_s} if named else {})
    to = mark(address)
    places = {**before.get("places", {})}
    start = places.setdefault(to, 0)
    result: Result = before | {
        "to": to, "places": places, "named": named | {to: now_s}, "failures": 0, "problem": "", "next_in_s": None,
    }  # fmt: skip
    until = time.monotonic() + SENDS_S
    try:
        while batch := _batch(places[to], encode):
            body, n = batch
            _post(urlsplit(address), body)
            places[to] = n
            keep(result)
            if time.monotonic() >= until:
                result["next_in_s"] = 0.0
                break
    except FAULTS as fault:
        continues = before.get("to") == to and places[to] == start
        failures = (int(before.get("failures", 0)) if continues else 0) + 1
        pause_s = pause_after(failures)
        result |= {"failures": failures, "problem": _text(fault), "next_in_s": pause_s}
        logger.warning("the audit log was not sent", extra={"error": _text(fault), "pause_s": pause_s})
    return result


def mark(address: str) -> str:
    """What stands for an address in the database: its query may hold a token."""
    return hashlib.sha256(address.encode()).hexdigest()


def named_by(result: Result, now_s: float) -> dict[str, float]:
    """The marks of addresses that a worker had within NAMED_S, by the result of the last run, and when."""
    return {to: at for to, at in result.get("named", {}).items() if at > now_s - NAMED_S}


def database_s() -> float:
    """The database's time, in seconds since 1970."""
    with database.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        return float(cursor.fetchone()[0])


def waiting(after: int) -> tuple[int, float]:
    """How many entries behind this place in the chain, or not in it yet, there are to send, up to COUNTED and the new
    ones, and the age of the first in seconds."""
    with database.cursor() as cursor:
        cursor.execute(f"SELECT {WAITING}, {OLDEST_S}".format(place="%(place)s"), {"place": after})
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
    until = time.monotonic() + LONGEST_S
    encrypted = to.scheme == "https"
    kind = http.client.HTTPSConnection if encrypted else http.client.HTTPConnection
    connection = kind(to.hostname or "", to.port)
    plain = outgoing.connected(connection.host, connection.port, until)
    over = CutOff(plain, max(until - time.monotonic(), 0.0))
    try:
        connection.sock = plain
        if encrypted:
            connection.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=to.hostname)
        connection.sock.settimeout(LONGEST_S)
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
