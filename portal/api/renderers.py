"""Every response is JSON, whatever the Accept header says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer

from jobs.serialization import json_bytes


class JsonRenderer(BaseRenderer):
    media_type = "application/json"
    format = "json"

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        return b"" if data is None else json_bytes(data)


class AlwaysJson(DefaultContentNegotiation):
    """Always the JSON renderer; operations with another format read the Accept header themselves."""

    def select_renderer(
        self, request: Any, renderers: Any, format_suffix: str | None = None
    ) -> tuple[Any, str]:
        return renderers[0], renderers[0].media_type
