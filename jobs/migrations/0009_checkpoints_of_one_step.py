"""A program may save the same step again, with other bytes: that is a checkpoint of its own."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("jobs", "0008_learner_phase_moments")]

    operations = [migrations.RemoveConstraint("checkpoint", "checkpoint_step_once")]
