#!/usr/bin/env python
"""The one entry point: `manage.py up` starts the platform, `manage.py help` lists the rest.

Every command takes `--data DIR`, so that what was started with it is found again.
"""

import argparse
import os
import sys
from pathlib import Path


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.base")
    if sys.argv[1:2] == ["up"]:
        # The supervisor needs no Django: without it the start is a second quicker and 50 MB smaller.
        from portal.supervisor.up import main as up

        sys.exit(up(sys.argv[2:]))
    arguments = use_data_folder(sys.argv)
    from django.core.management import execute_from_command_line

    execute_from_command_line(arguments)


def use_data_folder(arguments: list[str]) -> list[str]:
    """Take --data out and set LUTHIER_DATA: the settings need it before Django reads any option of a command."""
    parser = argparse.ArgumentParser(prog="manage.py", add_help=False, allow_abbrev=False)
    parser.add_argument("--data", metavar="DIR")
    known, rest = parser.parse_known_args(arguments[1:])
    if known.data == "":  # an unset variable of a shell: taken as a path it would be the current folder
        parser.error("--data: is empty; name a folder, or leave the option out for .luthier")
    if known.data:
        os.environ["LUTHIER_DATA"] = str(Path(known.data).expanduser().resolve())
    return [arguments[0], *rest]


if __name__ == "__main__":
    main()
