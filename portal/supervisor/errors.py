"""What can keep an installation from starting; the message is written for the person at the terminal."""


class SupervisorError(Exception):
    """The installation cannot be started or watched."""


class CannotStart(SupervisorError):
    """A part cannot be started; the message says what to change."""
