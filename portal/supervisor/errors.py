"""What can keep an installation from starting; the message is written for the person at the terminal."""

import os


class SupervisorError(Exception):
    """The installation cannot be started or watched."""


class CannotStart(SupervisorError):
    """A part cannot be started; the message says what to change."""

    exit_code = 1


class BadFolder(CannotStart):
    """A folder that this installation was given cannot be used: its setting is wrong."""

    exit_code = os.EX_CONFIG
