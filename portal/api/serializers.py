"""The Job of the API as the OpenAPI document describes it; jobs.selectors.serializers.job_view makes it."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.serialization import ReadSerializer, TimestampField
from jobs.states import Intent, State

STATES = [state.value for state in State]
INTENTS = [intent.value for intent in Intent]
BASES = ["progress", "time_limit", "history"]
PRIORITIES = ["low", "normal", "high", "urgent"]


class ReasonSerializer(ReadSerializer):
    code = serializers.CharField(allow_blank=True)
    message = serializers.CharField(allow_blank=True)
    numbers = serializers.DictField(help_text="the numbers behind the message, by code")


class FirstEstimateSerializer(ReadSerializer):
    to = TimestampField(allow_null=True)
    at = TimestampField(help_text="when it was told")

    def get_fields(self) -> dict[str, Any]:
        return {"from": TimestampField(allow_null=True), **super().get_fields()}


class EstimateSerializer(ReadSerializer):
    """When a waiting job is expected to start if nothing else comes: p50 to p90."""

    to = TimestampField(allow_null=True, help_text="nine times of ten it has started by then")
    basis = serializers.ListField(
        child=serializers.ChoiceField(BASES), help_text="how the ends it waits for are known"
    )
    message = serializers.CharField(
        allow_blank=True, help_text="what it rests on, or why there is no estimate"
    )
    at = TimestampField(allow_null=True, help_text="when it last changed")
    first = FirstEstimateSerializer(allow_null=True, help_text="what was told first since it queued")
    started_at = TimestampField(allow_null=True, help_text="when it got its devices, to judge `first` by")

    def get_fields(self) -> dict[str, Any]:
        soonest = TimestampField(allow_null=True, help_text="as likely before as after; null: no estimate")
        return {"from": soonest, **super().get_fields()}


class ProgressSerializer(ReadSerializer):
    step = serializers.IntegerField(allow_null=True)
    total = serializers.IntegerField(allow_null=True)
    percent = serializers.FloatField(allow_null=True)


class PaceSerializer(ReadSerializer):
    """At the pace of all attempts together; null while it does not run or is unknown."""

    seconds_left = serializers.FloatField(allow_null=True)
    steps_per_second = serializers.FloatField(allow_null=True)


class NewestCheckpointSerializer(ReadSerializer):
    n = serializers.IntegerField()
    step = serializers.IntegerField(allow_null=True)
    at = TimestampField()


class JobSerializer(ReadSerializer):
    id = serializers.CharField()
    name = serializers.CharField()
    tenant = serializers.CharField()
    owner = serializers.CharField()
    state = serializers.ChoiceField(STATES)
    phase = serializers.CharField(help_text="what a person reads: Halting, Resuming, …")
    intent = serializers.ChoiceField(INTENTS)
    reason = ReasonSerializer()
    estimate = EstimateSerializer(
        allow_null=True, help_text="null for a job that does not wait and was told none"
    )
    attempt = serializers.IntegerField()
    restarts_used = serializers.IntegerField()
    max_restarts = serializers.IntegerField()
    spec = serializers.DictField()
    framework = serializers.CharField()
    learners = serializers.IntegerField()
    gpus = serializers.IntegerField(help_text="per learner; 0: a CPU job")
    gpu_type = serializers.CharField(allow_null=True, help_text="as asked; null: any")
    slot_type = serializers.CharField(
        allow_null=True, help_text="of its newest attempt; null before the first"
    )
    slots = serializers.IntegerField(help_text="per learner")
    priority = serializers.ChoiceField(PRIORITIES)
    tags = serializers.ListField(child=serializers.CharField())
    progress = ProgressSerializer()
    pace = PaceSerializer()
    metrics = serializers.DictField(help_text='name: {"last": number or "NaN", "step": n}')
    checkpoint = NewestCheckpointSerializer(allow_null=True)
    last_halt = serializers.DictField(allow_null=True, help_text="the receipt of the last halt")
    gpu_seconds = serializers.FloatField()
    slot_seconds = serializers.FloatField()
    cloned_from = serializers.CharField(allow_null=True)
    created_at = TimestampField()
    queued_at = TimestampField()
    started_at = TimestampField(allow_null=True)
    finished_at = TimestampField(allow_null=True)
    allowed_actions = serializers.ListField(child=serializers.CharField())
    etag = serializers.CharField()


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

JOB_EXAMPLE: dict[str, Any] = {
    "id": "3f9k2m7qx4ta",
    "name": "digits",
    "tenant": "vision-lab",
    "owner": "alice",
    "state": "PROCESSING",
    "phase": "Processing",
    "intent": "RUN",
    "reason": {"code": "", "message": "", "numbers": {}},
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
    "gpus": 0,
    "gpu_type": None,
    "slot_type": "cpu",
    "slots": 1,
    "priority": "normal",
    "tags": [],
    "progress": {
        "step": 4,
        "total": 10,
        "percent": 40.0,
    },
    "pace": {"seconds_left": 8.1, "steps_per_second": 0.74},
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
    "allowed_actions": ["halt", "cancel", "clone"],
    "etag": '"5"',
}
