"""The names of nodes, slot types, gangs and runtimes: DNS labels, which may also be part of a path."""

from __future__ import annotations

import re

LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
LABEL_RULE = "may contain only lowercase letters, digits and inner dashes, at most 63"
"""What people read of a name that does not match."""
