"""The learner agent: two small processes beside a training program.

The launcher runs the program and writes what it prints, reports and saves into a spool directory; it needs the
standard library only (Python 3.8 or newer) and holds no secret. The shipper reads the spool, owns the secret and
the socket, and carries the wish to halt back. Programs import ``learner_agent.training``. This room knows no
Django and nothing of the rooms above it; the server takes ``learner_agent.wire`` from it and nothing else.
"""

VERSION = "1.0"
