"""The ASGI application: HTTP by Django, websockets by Channels."""

import logging
import os
from typing import Any

import django
from channels.routing import ProtocolTypeRouter
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from portal.migrations_gate import wait_until_prepared
from portal.settings.env import warnings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.base")
django.setup(set_prefix=False)  # before anything that needs the models

from django.conf import settings  # noqa: E402

for warning in warnings(settings.ENV, os.environ):
    logging.getLogger("portal.settings").warning(warning)

from portal.asgi_handler import ThreadedHandler  # noqa: E402
from portal.database import connection_pool  # noqa: E402
from portal.forwarded import ForwardedProto  # noqa: E402
from portal.interpreter import settle  # noqa: E402
from portal.live.routing import websocket_application  # noqa: E402

POOLED_CONNECTIONS = 16
connection_pool.set_size(POOLED_CONNECTIONS)
by_protocol: Any = ProtocolTypeRouter({"http": ThreadedHandler(), "websocket": websocket_application})
# The client is the last address that none of these proxies has.
known_clients = ProxyHeadersMiddleware(
    by_protocol, [str(network) for network in settings.LUTHIER_TRUSTED_PROXIES]
)
# Outermost: it looks at who is connected, which the one above replaces.
application = ForwardedProto(known_clients, settings.LUTHIER_TRUSTED_PROXIES)

settle()

wait_until_prepared()
