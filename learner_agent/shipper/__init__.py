"""The shipper: what a program prints, reports and saves goes to the server, and the wish to halt comes back.

It keeps no state but the spool, so it may be killed and started again at any time. It never gives up while the
attempt lives, and it ends when the server has confirmed everything.
"""

from learner_agent.shipper.run import main

__all__ = ["main"]
