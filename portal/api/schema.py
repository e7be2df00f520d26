"""The OpenAPI document of this API, and the page that shows it to people."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from drf_spectacular.generators import SchemaGenerator
from rest_framework import serializers

from portal.api.operations import Call, operation
from portal.api.rendering import json_bytes


@cache
def document() -> bytes:
    """Made once per process: it depends on the code alone."""
    made = SchemaGenerator(urlconf="portal.urls").get_schema(request=None, public=True)
    paths = {path: item for path, item in made["paths"].items() if path.startswith("/api/v1/")}
    return json_bytes(made | {"paths": paths})


class DocumentOut(serializers.Serializer[Any]):
    """OpenAPI 3."""


@operation(Out=DocumentOut)
def openapi(call: Call) -> HttpResponse:
    """This document."""
    return HttpResponse(document(), content_type="application/vnd.oai.openapi+json")


@login_required
def docs(request: HttpRequest) -> HttpResponse:
    """The document as a page; everything it loads is our own."""
    return render(request, "api/docs.html")
