"""The lifecycle manager: takes every job from the queue to its end, and is the only writer of Job.state.

Decide. ``decision.decide`` is a pure function: from a ``facts.JobObservation`` to one next step, a move to another
state or one act on the cluster. ``stopping`` is its part for jobs on their way out: when to ask the learners, when to
stop them through the cluster, and where the job goes then.

Observe. ``facts`` has the values, what they mean together, and which failure is certain, and whose. ``observation``
reads a job's rows, adds what the cluster shows, and yields the JobObservation; it also sees what a halt saved.

Effects. ``transitions`` writes moves, each with its event in one transaction, guarded by state, attempt and lease.
``plan_effects`` writes what the scheduler decided: a start with its slots and its next attempt, orders for running
jobs, and why each other job waits.

Loops. ``reconcile`` brings one job as far as it can go: observe, decide, act, again. ``cycle`` asks the scheduler's
``plan`` which waiting jobs start, which running ones stop, and why the rest waits; ``forecasting`` estimates starts.
``periodic`` runs the installation's periodic tasks. ``ticker``, one thread in every worker process, runs all of them
when they are due; Celery messages only make it prompt.

Who may act. ``leases`` lets one worker at a time work on a job, and registers worker processes, so that the leases of a
dead one are free at once. Any process may die at any point: every effect can be repeated, and every decision is
void if another worker has taken the job meanwhile.

docs/job_states.md has the states and who wins a race; docs/adr/0010 the leases. Only jobs.tasks imports this package.
"""
