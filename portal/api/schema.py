"""The OpenAPI document, and the page that shows it without scripts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe
from drf_spectacular.generators import SchemaGenerator

from jobs.serialization import ReadSerializer, json_bytes
from portal.api.operations import Call, operation


@cache
def document() -> dict[str, Any]:
    """Generated once per process: it depends only on the code."""
    made = SchemaGenerator(urlconf="portal.urls").get_schema(request=None, public=True)
    paths = {path: item for path, item in made["paths"].items() if path.startswith("/api/v1/")}
    whole: dict[str, Any] = json.loads(json_bytes(made | {"paths": paths}))
    return whole


@cache
def document_bytes() -> bytes:
    return json_bytes(document())


class OpenApiSerializer(ReadSerializer):
    """OpenAPI 3."""


@operation(Out=OpenApiSerializer)
def openapi(call: Call) -> HttpResponse:
    """This document."""
    return HttpResponse(document_bytes(), content_type="application/vnd.oai.openapi+json")


@require_safe
@login_required
def docs(request: HttpRequest) -> HttpResponse:
    """The document as a page: operations by group, with parameters and examples."""
    context = {"groups": _groups(), "description": document()["info"]["description"]}
    return render(request, "api/docs.html", context)


@cache
def _groups() -> list[dict[str, Any]]:
    by_tag: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in _operations():
        by_tag[each["tag"]].append(each)
    return [{"name": name, "operations": operations} for name, operations in by_tag.items()]


def _operations() -> Iterator[dict[str, Any]]:
    for path, methods in document()["paths"].items():
        for method, each in methods.items():
            status, response = next(iter(sorted(each["responses"].items())))
            request_type, request_example = _example(each.get("requestBody", {}).get("content", {}))
            yield {
                "id": each["operationId"],
                "tag": each["tags"][0],
                "method": method.upper(),
                "path": path,
                "summary": each.get("summary", ""),
                "description": each.get("description", ""),
                "parameters": each.get("parameters", []),
                "request_example": request_example,
                "request_type": request_type,
                "response_example": _example(response.get("content", {}))[1],
                "status": status,
                "fails": [code for code in sorted(each["responses"]) if code >= "400"],
            }


def _example(content: dict[str, Any]) -> tuple[str, str]:
    """Media type and text of the first example of a body; both empty when there is none."""
    for kind, body in content.items():
        for example in body.get("examples", {}).values():
            value = example["value"]
            return kind, value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return "", ""
