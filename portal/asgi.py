"""The ASGI application: HTTP by Django, websockets by Channels."""

import os

from channels.routing import ProtocolTypeRouter
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.base")
http = get_asgi_application()  # before anything that needs the models

from portal.live.routing import websocket_application  # noqa: E402

application = ProtocolTypeRouter({"http": http, "websocket": websocket_application})
