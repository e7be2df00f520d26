"""What the pages' pictures show beside the demo's people: more tenants, limits, jobs in every state, a month of use.

Run with the settings of a started platform. It writes only jobs on which the platform does
not act: ended ones, and waiting ones that no limit lets start.
"""

from __future__ import annotations

import os
import uuid
from datetime import timedelta
from random import Random


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.base")
    import django

    django.setup()
    from django.utils import timezone

    from jobs.models import Attempt, Job, Progress
    from jobs.states import State
    from tenants.models import QuotaChange, Tenant, User
    from tenants.roles import Role
    from tests import factories

    dice = Random(7)
    lab = Tenant.objects.get(slug="vision-lab")
    people = [
        User.objects.get(username="alice"),
        *(factories.member(lab, name, first_name=name.title()) for name in ("erin", "frank")),
    ]
    robotics = factories.tenant("robotics", quotas={"cpu": 4, "a100": 2}, name="robotics")
    factories.member(robotics, "karl", Role.MANAGER)
    speech = factories.tenant("speech", quotas={"cpu": 2}, name="speech", state="suspended")
    factories.member(speech, "peggy", Role.MANAGER)
    now = timezone.now()
    names = ("clip-b32", "vit-b16-imagenet", "mae-vit-s16", "unet-cells-3d", "dino-vitl", "mask2former-coco")
    ends = (State.COMPLETED, State.COMPLETED, State.COMPLETED, State.FAILED, State.CANCELED)
    for day in range(20):
        for _ in range(3):
            state, gpu = dice.choice(ends), dice.random() < 0.7
            ended = now - timedelta(days=day, hours=dice.random() * 5)
            opened = ended - timedelta(hours=1 + dice.random() * 9)
            slots = dice.choice((1, 2, 4))
            failed = state == State.FAILED
            job = factories.job(
                of=lab, owner=dice.choice(people), state=state, name=f"{dice.choice(names)}-{dice.choice('abc')}",
                slots=slots, gpus=slots if gpu else 0, gpu_type="a100" if gpu else "", attempt=0, settled=True,
                next_reconcile_at=None, tags=[dice.choice(("sweep", "baseline", "nightly"))], created_at=opened,
                queued_at=opened, slot_seconds=(ended - opened).total_seconds() * slots,
                reason_code="PROGRAM_FAILED" if failed else "",
                reason_message="The program of learner 0 ended with exit code 1." if failed else "",
            )  # fmt: skip
            Attempt.objects.create(
                job=job, tenant=lab, n=1, cluster="local", slot_type="a100" if gpu else "cpu", slots=slots,
                learners=1, nodes=["node-a"], held=False, opened_at=opened, closed_at=ended, outcome=state.value,
            )  # fmt: skip
            Job.objects.filter(pk=job.pk).update(finished_at=ended)
            metrics = {"loss": {"last": round(0.2 + dice.random(), 4), "step": 1000}}
            Progress.objects.filter(job=job).update(step=1000, total=1000, metrics=metrics)
    admin = User.objects.get(username="admin")
    for days, kind, old, new, used, why in (
        (9, "a100", 6, 8, None, "MLPerf benchmark week"),
        (4, "cpu", 16, 12, 9, "The campaign is finished, 4 go back"),
        (1, "a100", 8, 6, 7, "Revert: benchmark week is over"),
    ):
        QuotaChange.objects.create(
            tenant=lab, gpu_type=kind, old_limit=old, new_limit=new, used_then=used, reason=why, actor=admin,
            change_set=uuid.uuid4(), at=now - timedelta(days=days),
        )  # fmt: skip


if __name__ == "__main__":
    main()
