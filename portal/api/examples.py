"""Examples of a job and its spec in the OpenAPI document."""

from __future__ import annotations

from typing import Any

SPEC_YAML = """\
apiVersion: luthier/v1
name: digits
framework: sklearn
code:
  files:
    train.py: |
      from learner_agent import training
      for step in range(1, 11):
          training.report(step, total=10, loss=1 / step)
command: python train.py
resources: {learners: 1, gpus: 0, cpus: 1, memory: 1Gi}
"""

SPEC: dict[str, Any] = {
    "apiVersion": "luthier/v1",
    "name": "digits",
    "framework": "sklearn",
    "code": {"files": {"train.py": "print('hello')\n"}},
    "command": "python train.py",
    "resources": {"learners": 1, "gpus": 0, "cpus": 1, "memory": "1Gi"},
}

NO_REASON: dict[str, Any] = {
    "code": "",
    "message": "",
    "numbers": {},
    "title": None,
    "actor": None,
    "meter": None,
}

JOB_EXAMPLE: dict[str, Any] = {
    "id": "3f9k2m7qx4ta",
    "name": "digits",
    "tenant": "vision-lab",
    "owner": "alice",
    "state": "PROCESSING",
    "phase": "Processing",
    "intent": "RUN",
    "reason": NO_REASON,
    "estimate": {
        "from": None,
        "to": None,
        "basis": [],
        "message": "",
        "at": "2026-11-21T09:00:01.000Z",
        "first": {
            "from": "2026-11-21T09:00:02.000Z",
            "to": "2026-11-21T09:00:02.000Z",
            "at": "2026-11-21T09:00:01.000Z",
        },
        "started_at": "2026-11-21T09:00:01.500Z",
    },
    "attempt": 1,
    "restarts_used": 0,
    "max_restarts": 0,
    "spec": SPEC,
    "framework": "sklearn",
    "learners": 1,
    "elastic": None,
    "growth": None,
    "gpus": 0,
    "gpu_type": None,
    "slot_type": "cpu",
    "slots": 1,
    "priority": "normal",
    "project": "",
    "opportunistic": False,
    "tags": [],
    "progress": {
        "step": 4,
        "total": 10,
        "percent": 40.0,
    },
    "throughput": {"seconds_left": 8.1, "steps_per_second": 0.74},
    "metrics": {"loss": {"last": 0.25, "step": 4}},
    "checkpoint": {"n": 1, "step": 3, "at": "2026-11-21T09:00:30.000Z"},
    "last_halt": None,
    "gpu_seconds": 0.0,
    "slot_seconds": 30.0,
    "cloned_from": None,
    "created_at": "2026-11-21T09:00:00.000Z",
    "queued_at": "2026-11-21T09:00:00.000Z",
    "started_at": "2026-11-21T09:00:02.000Z",
    "finished_at": None,
    "allowed_actions": ["halt", "checkpoint", "cancel", "clone", "edit"],
    "etag": '"5"',
}
