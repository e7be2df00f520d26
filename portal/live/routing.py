"""The routes of websockets."""

from __future__ import annotations

from typing import Any

from channels.routing import URLRouter
from django.urls import path, re_path

from portal.live.learner_consumer import LearnerConsumer
from portal.live.live_consumer import LiveConsumer, NoSuchSocket

# Django's types expect views in a path, not Channels' ASGI applications.
live: Any = LiveConsumer.as_asgi()
learner: Any = LearnerConsumer.as_asgi()
nothing: Any = NoSuchSocket.as_asgi()

websocket_application = URLRouter(
    [path("ws/v1/live", live), path("ws/agent/v1", learner), re_path(r"", nothing)]
)
