"""The ASGI application: HTTP by Django, websockets by Channels."""

import os
from importlib.util import find_spec
from typing import Any

from channels.routing import ProtocolTypeRouter
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.base")

protocols: dict[str, Any] = {"http": get_asgi_application()}
if find_spec("portal.live") and find_spec("portal.live.routing"):
    from portal.live.routing import websocket_application

    protocols["websocket"] = websocket_application
application = ProtocolTypeRouter(protocols)
