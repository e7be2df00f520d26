#!/usr/bin/env python
"""The one entry point: `manage.py up` starts the platform, `manage.py help` lists the rest."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.base")
    if sys.argv[1:2] == ["up"]:
        # The supervisor needs no Django: without it the start is a second quicker and 50 MB smaller.
        from portal.supervisor.up import main as up

        sys.exit(up(sys.argv[2:]))
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
