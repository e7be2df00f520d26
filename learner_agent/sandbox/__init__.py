"""What a training program may reach on the machine that it shares with other jobs and with the platform.

    entry       what the node daemon asks for, and how the launcher, the shipper and the program enter it
    namespaces  mounts of its own: everything read-only but the learner's folders, a private /dev/shm and /tmp
    granting    what is granted around places that the platform keeps to itself
    hiding      folders with sockets of services that trust the platform's user, and what is left of them
    landlock    which files may be opened, and that no process outside can be signaled
    seccomp     system calls that would reach past both
    privileges  no rights of the superuser, and none to be gained
    probe       whether all of this works on this machine: it is tried, not looked up
    kernel      system calls that Python has no names for

None of it needs a privilege. Standard library only, Python 3.8 or newer: the launcher runs it with the job's Python.
docs/adr/0052-isolation-on-the-local-cluster.md has the reasons.
"""
