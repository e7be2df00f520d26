"""What the platform says of jobs whose gangs do not run in the end, and whether there was room for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_scheduler.clusters.kubernetes import manifests
from gpu_scheduler.clusters.kubernetes.client import Object
from tools.kube import fake

EVENTS = 6
SAID = f"""
SELECT j.id, j.learners, j.slots, j.name, j.state, j.intent, j.settled, j.attempt, j.reason_code, j.reason_message,
  extract(epoch FROM j.next_reconcile_at - now())::float AS due_in_s,
  extract(epoch FROM j.start_after - now())::float AS starts_after_s,
  j.lease_owner, (SELECT name FROM jobs_worker WHERE id::text = j.lease_owner) AS worker,
  extract(epoch FROM j.lease_until - now())::float AS lease_ends_in_s, j.fail_streak,
  ARRAY(SELECT concat_ws(' ', n, code, from_state, to_state, reason, message) FROM jobs_jobevent e
    WHERE e.job_id = j.id ORDER BY n DESC LIMIT {EVENTS}) AS newest_first
FROM jobs_job j WHERE j.deleted_at IS NULL ORDER BY j.created_at
"""
PASSES = """
SELECT extract(epoch FROM t.next_at - now())::float, extract(epoch FROM now() - t.done_at)::float, l.owner, l.problem
FROM jobs_periodictask t LEFT JOIN jobs_schedulinglease l USING (name) WHERE t.name = 'cycle'
"""


@dataclass(frozen=True)
class LeftOut:
    """A job of which `missing` of its learners' pods do not run. said: columns of its row, and its newest events."""

    missing: int
    learners: int
    gpus: int
    said: Mapping[str, Any]

    def take(self, free: dict[str, int]) -> bool:
        """Whether all its learners fit on what is free: node -> GPUs; then they take it, the fullest nodes first. Only
        for one that has no pods."""
        if sum(gpus // self.gpus for gpus in free.values()) < self.learners:
            return False
        left = self.learners
        for gpus, name in sorted((gpus, name) for name, gpus in free.items()):
            here = min(left, gpus // self.gpus)
            free[name] -= here * self.gpus
            left -= here
        return True


def left_out(cursor: Any, running: Iterable[Object]) -> list[LeftOut]:
    """The jobs that do not have all their learners among these pods. cursor: of the platform's database."""
    run = Counter(pod["metadata"]["labels"][manifests.JOB] for pod in running)
    cursor.execute(SAID)
    names = [column.name for column in cursor.description]
    found = []
    for job, learners, gpus, *said in cursor.fetchall():
        if run[job] < learners:
            named = dict(zip(names[3:], said, strict=True))
            found.append(LeftOut(learners - run[job], learners, gpus, {"job": job, **named}))
    if found:
        cursor.execute(PASSES)
        print(f"passes: next in s, last ended s ago, holder, problem: {cursor.fetchone()}", flush=True)
    return found


def free_gpus(nodes: Mapping[str, int], pods: Iterable[Object]) -> dict[str, int]:
    """Of the GPUs of these nodes, what no pod has."""
    free = dict(nodes)
    for pod in pods:
        for container in pod["spec"]["containers"] if "nodeName" in pod["spec"] else ():
            requests = container.get("resources", {}).get("requests", {})
            free[pod["spec"]["nodeName"]] -= int(requests.get(fake.GPU, 0))
    return free


def without_room(found: Iterable[LeftOut], free: Mapping[str, int]) -> int:
    """Prints what is known of each of these jobs. Returns how many of their pods do not run because the gang fits
    nowhere, beside those before it that fit; the others were forgotten, or are stuck."""
    pods, left = 0, dict(free)
    shares = dict(sorted(Counter(free.values()).items()))
    for each in found:
        fits = each.missing < each.learners or each.take(left)
        pods += 0 if fits else each.missing
        print(
            f"{each.missing} of {each.learners} × {each.gpus} GPUs do not run, {'room' if fits else 'no room'}"
            f" (free GPUs -> nodes: {shares})",
            *(f"  {name}: {value}" for name, value in each.said.items()),
            sep="\n",
            flush=True,
        )
    return pods
