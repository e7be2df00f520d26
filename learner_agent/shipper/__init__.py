"""The shipper sends what a program prints, reports and saves to the server, and passes a request to halt on.

Its only state is the spool, so it may be killed and started again at any time. It never gives up while the attempt is
live, and exits when the server has confirmed everything.
"""

from learner_agent.shipper.run import main, preload

__all__ = ["main", "preload"]
