"""The ASGI application: HTTP by Django, websockets by Channels."""

import gc
import os
import sys

import django
from channels.routing import ProtocolTypeRouter

from portal.migrations_gate import wait_until_prepared

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.base")
django.setup(set_prefix=False)  # before anything that needs the models

from portal.asgi_handler import ThreadedHandler  # noqa: E402
from portal.database import connection_pool  # noqa: E402
from portal.live.routing import websocket_application  # noqa: E402

CONNECTIONS_KEPT = 16
connection_pool.keep(CONNECTIONS_KEPT)
application = ProtocolTypeRouter({"http": ThreadedHandler(), "websocket": websocket_application})

# Reading loud logs makes hundreds of thousands of short-lived objects a second. What exists now stays for ever and need
# not be walked again and again; measured: a third less CPU per line.
gc.collect()
gc.freeze()
gc.set_threshold(50_000, 20, 50)

# The threads that store and read take the interpreter in turns with the loop that serves the sockets. With Python's
# 5 ms a commit of seven statements could wait 35 ms for its turns while the loop is busy.
sys.setswitchinterval(0.001)

wait_until_prepared()
