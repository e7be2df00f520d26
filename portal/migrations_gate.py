"""Processes of an embedded installation wait here until the migrations have been applied.

Loading the code takes longer than `manage.py prepare` takes to migrate the database. So `manage.py up` starts all
processes at once, and each waits here, loaded, until the database is ready.
"""

import os
import time
from pathlib import Path

GATE = "LUTHIER_WAIT_FOR"
POLL_S = 0.02


def wait_until_prepared() -> None:
    """Return when the file named by LUTHIER_WAIT_FOR exists; at once when none is named.

    No timeout, because a migration may take minutes: the process ends with `up` or by its signal.
    """
    path = os.environ.get(GATE)
    while path and not Path(path).exists():
        time.sleep(POLL_S)
