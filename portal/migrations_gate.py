"""Where a process of an embedded installation waits for today's tables.

Loading our code takes a process longer than making the tables takes `manage.py prepare`. So `manage.py up` starts them
side by side, and each stops here, loaded, until the database is ready for it.
"""

import os
import time
from pathlib import Path

GATE = "LUTHIER_WAIT_FOR"
POLL_S = 0.02


def wait_until_prepared() -> None:
    """Return when the file named by LUTHIER_WAIT_FOR exists; at once when none is named.

    Without a limit, because a migration may rightly take minutes: who waits here ends with `up`, or by its signal.
    """
    path = os.environ.get(GATE)
    while path and not Path(path).exists():
        time.sleep(POLL_S)
