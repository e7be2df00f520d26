"""How many bytes the database keeps per byte that programs print now and then, with and without compaction.

Jobs print a line of some 60 bytes every five seconds, each in a commit of its own, through the real ingest. Their rows
alternate in the table, as those of running jobs do. Without compaction nothing else happens; with it, the sweep and a
VACUUM run while the jobs print, as in an installation, and once more after the jobs have ended. Bytes are those of the
tables of chunks and of the index of levels, with their indexes and TOAST.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import zlib
from pathlib import Path

from bench.record import record
from tests.servers import Servers

STEP_MS = 5_000
SWEEP_ROUNDS = 120
"""Lines of each job between two sweeps: ten minutes."""


def line(n: int) -> bytes:
    return b"step %6d  loss %.4f  lr 3.0e-04  %.1f samples/s  eta 02:%02d:%02d\n" % (
        n, 2 / (1 + n / 50), 410 + n % 37 / 7, n // 60 % 60, n % 60,
    )  # fmt: skip


def measure(jobs: int, lines: int) -> dict[str, float]:
    from django.db import connection

    from jobs.ingest.store import commit
    from jobs.lifecycle.log_compaction import compact
    from jobs.models import Job, Learner, LogChunk
    from jobs.selectors import log_index, logs
    from jobs.states import State
    from jobs.tokens import Grant, grant_of
    from learner_agent.wire import Data
    from tests import factories

    def kept() -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_total_relation_size('jobs_logchunk') + pg_total_relation_size('jobs_logindex')"
            )
            return int(cursor.fetchone()[0])

    def vacuum() -> None:
        with connection.cursor() as cursor:
            cursor.execute("VACUUM jobs_logchunk")

    def grant(job: Job) -> Grant:
        found = grant_of(factories.secret(job, 1, 0))
        assert found
        return found

    def printed(sweeps: bool) -> list[Job]:
        running = [factories.job(state=State.PROCESSING) for _ in range(jobs)]
        grants, at = [grant(job) for job in running], 0
        for n in range(lines):
            text = line(n)
            frame = Data(
                at, text, 1_700_000_000_000 + n * STEP_MS + n % 7, [(len(text), 0)], zlib.crc32(text)
            )
            commit([(who, frame) for who in grants])
            at += len(text)
            if sweeps and n % SWEEP_ROUNDS == 0:
                compact({})
                vacuum()
        Learner.objects.filter(job__in=running).update(log_sealed=True)
        return running

    def clear() -> None:
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE jobs_logchunk, jobs_logindex")

    size = jobs * sum(len(line(n)) for n in range(lines))
    printed(sweeps=False)
    vacuum()
    figures = {
        "jobs": jobs,
        "lines_per_job": lines,
        "printed_mb": size / 1e6,
        "rows_before": LogChunk.objects.count(),
        "bytes_per_byte_before": kept() / size,
    }
    clear()
    ended = printed(sweeps=True)
    compact({})
    for job in ended:
        stream = (job.pk, 1, 0)
        log_index.levels(stream, logs.heads([stream])[stream])
    vacuum()
    return figures | {
        "rows_after": LogChunk.objects.count(),
        "bytes_per_byte_after": kept() / size,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--jobs", type=int, default=20)
    arguments.add_argument(
        "--lines", type=int, default=5760, help="per job; 5760 are a working day's eight hours"
    )
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DJANGO_SETTINGS_MODULE"] = "portal.settings.test"
        os.environ["LUTHIER_TEST_DATA"] = folder
        servers = Servers(Path(folder))
        try:
            servers.start()
            import django
            from django.core.management import call_command

            django.setup()
            call_command("migrate", verbosity=0)
            figures = measure(options.jobs, options.lines)
        finally:
            servers.stop()
    record(
        "quiet_logs",
        figures,
        command=f"python -m bench.quiet_logs --jobs {options.jobs} --lines {options.lines}",
        targets={"bytes_per_byte_after": "≤ 1.3"},
    )


if __name__ == "__main__":
    main()
