"""The learner agent: two small processes beside each training program.

The launcher runs the program and writes what it prints, reports and saves into a spool directory; it needs the
standard library only (Python 3.8 or newer) and holds no secret. The shipper reads the spool, holds the secret and the
socket, and passes a request to halt on. Programs import ``learner_agent.training``. This package does not import Django
or any package above it; the server imports ``learner_agent.wire`` and ``wire_fields`` and nothing else of it.
"""
