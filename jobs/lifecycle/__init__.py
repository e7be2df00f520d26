"""The lifecycle manager: decides in the dark, acts in the light, and alone writes Job.state.

``decision`` is pure. ``reconcile`` brings one job one step further, ``cycle`` starts what waits, ``reap`` removes what
nobody owns. Only jobs.tasks enters here.
"""
