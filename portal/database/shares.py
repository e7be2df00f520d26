"""How the threads of a web process share its connections to PostgreSQL: what each kind may hold at once.

All the threads together are what ``LUTHIER_WEB_CONNECTIONS`` allows. Each kind has threads of its own, because none may
wait for another; requests get what the others leave.
"""

from django.conf import settings

PROBES = 3
"""Health probes and /metrics: a supervisor restarts a server that does not answer them."""
STREAMS = 8
"""Downloads and logs; each returns its connection after every block, so many more may be open."""
LEARNERS = 4
OFFERS = 2
"""What learners offer to upload is slow to compare, and their lines may not wait for it."""
LIVE_READERS = 2
"""Read for all viewers that are up to date …"""
LIVE_SIDE_READERS = 2
"""… and for connects, access checks and viewers that catch up."""
REQUESTS: int = settings.LUTHIER_WEB_CONNECTIONS - (
    PROBES + STREAMS + LEARNERS + OFFERS + LIVE_READERS + LIVE_SIDE_READERS
)
