"""The names of the queues of Celery's messages, by the work that a worker does which takes from them."""

JOBS = "luthier"
"""Jobs to bring on."""
PASSES = "luthier.passes"
"""Requested scheduling passes. A worker without this queue makes only those that no other worker makes."""
