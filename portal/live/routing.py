"""The map of websockets."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from channels.routing import URLRouter
from django.urls import path, re_path

from portal.live.live_consumer import LiveConsumer, NoSuchSocket

live: Any = LiveConsumer.as_asgi()
nothing: Any = NoSuchSocket.as_asgi()
routes: list[Any] = [path("ws/v1/live", live)]
if find_spec("portal.live.learner_consumer"):
    learner: Any = import_module("portal.live.learner_consumer")
    routes.append(path("ws/agent/v1", learner.LearnerConsumer.as_asgi()))
routes.append(re_path(r"", nothing))

websocket_application = URLRouter(routes)
