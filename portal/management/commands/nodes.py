"""`manage.py nodes`: the local cluster's node daemon with this installation's settings, in the foreground.

`manage.py up` starts the daemon itself; this is for those who run each service on its own. It needs neither database
nor broker, nor the platform's secrets: give it a data folder of its own and LUTHIER_NODE_DIR, so that no program is
beside the platform's files.
"""

import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from portal.settings.base import ENV
from portal.settings.embedded import layout
from portal.settings.env import without_settings
from portal.supervisor.errors import CannotStart
from portal.supervisor.folders import make_folders, make_node_key
from portal.supervisor.plan import node_command


class Command(BaseCommand):
    help = "Run the local cluster's node daemon in the foreground."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        where = layout(settings.LUTHIER_DATA, ENV.luthier_node_dir)
        try:
            make_folders(where)
            make_node_key(where)
        except CannotStart as error:
            raise CommandError(str(error)) from error
        sys.stdout.flush()
        command = node_command(where, settings.LOCAL_NODES, ENV)
        # It takes this process's place, so that signals reach the daemon.
        os.execve(command[0], command, without_settings(os.environ))  # noqa: S606 # no shell, and our own command
