"""``python -m learner_agent [fork] launcher|shipper``, or ``python <path>/learner_agent launcher [-- argv …]``."""

from __future__ import annotations

import os
import sys

if __package__ in (None, ""):
    # Run as a directory: Python has put the package itself on the path, where settings.py would shadow other modules.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    sys.path.insert(0, os.path.dirname(here))

USAGE = "usage: learner_agent launcher [-- argv …] | shipper | fork launcher | fork shipper | sandbox"


def main(arguments: list[str]) -> int:
    from learner_agent.sandbox.entry import SandboxFailed
    from learner_agent.settings import BadSettings

    try:
        if arguments[:1] == ["launcher"]:
            # Import only this half: the libraries of the other one may be absent here.
            from learner_agent.launcher import main as launcher_main

            return launcher_main(arguments[2:] if arguments[1:2] == ["--"] else arguments[1:])
        if arguments == ["shipper"]:
            from learner_agent.shipper import main as shipper_main

            return shipper_main()
        if arguments == ["sandbox"]:
            from learner_agent.sandbox.probe import main as probe_main

            return probe_main()
        if arguments in (["fork", "launcher"], ["fork", "shipper"]):
            return fork(arguments[1])
    except SandboxFailed as error:
        sys.stderr.write("sandbox_failed: nothing runs without it: %s\n" % error)
        return os.EX_CONFIG
    except BadSettings as error:
        sys.stderr.write("learner_agent: cannot start\n%s\n" % error)
        return os.EX_CONFIG
    sys.stderr.write(USAGE + "\n")
    return 64


def fork(half: str) -> int:
    """Load one half, and fork processes of it until the node daemon hangs up."""
    from learner_agent import fork_server

    if half == "launcher":
        import learner_agent.launcher  # noqa: F401 (loaded before the forks)
    else:
        from learner_agent.shipper import preload

        preload()
    arguments = fork_server.serve()
    if arguments is None:
        return os.EX_OK
    try:
        code = main(arguments)
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1
    return fork_server.end(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
