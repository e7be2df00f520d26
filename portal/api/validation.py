"""Errors of a body or a query by field: what was sent, what is allowed, and the closest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from rest_framework import exceptions, serializers

from tenants.errors import problem

FieldError = dict[str, Any]


class WrongFields(exceptions.ValidationError):
    """Some fields are invalid; found has one entry per error."""

    def __init__(self, detail: Any, found: list[FieldError]) -> None:
        super().__init__(detail)
        self.found = found


def checked(checker: serializers.Serializer[Any]) -> Any:
    """The validated values. Raises WrongFields with all errors."""
    if not checker.is_valid():
        found = all_wrong(checker.errors, field=checker, sent=checker.initial_data)
        raise WrongFields(checker.errors, found)
    return checker.validated_data


def all_wrong(detail: Any, path: str = "", field: Any = None, sent: Any = None) -> list[FieldError]:
    """A serializer's nested errors as a flat list. field and sent: their field and its value in the request."""
    if isinstance(detail, Mapping):
        return [one for key, inner in detail.items() for one in _inner(inner, key, path, field, sent)]
    if isinstance(detail, list) and any(isinstance(inner, Mapping | list) for inner in detail):
        return [one for n, inner in enumerate(detail) if inner for one in _inner(inner, n, path, field, sent)]
    if isinstance(detail, list):
        return [one for inner in detail for one in all_wrong(inner, path, field, sent)]
    return [_wrong(path, getattr(detail, "code", "invalid"), str(detail), field, sent)]


def _inner(inner: Any, key: str | int, path: str, field: Any, sent: Any) -> list[FieldError]:
    if key == "non_field_errors":
        return all_wrong(inner, path, field, sent)
    if isinstance(key, int):
        child = getattr(field, "child", None)
        given = sent[key] if isinstance(sent, list) and key < len(sent) else None
        return all_wrong(inner, f"{path}[{key}]", child, given)
    child = field.fields.get(key) if isinstance(field, serializers.Serializer) else None
    given = sent.get(key) if isinstance(sent, Mapping) else None
    return all_wrong(inner, f"{path}.{key}" if path else key, child, given)


def _wrong(path: str, code: str, message: str, field: Any, sent: Any) -> FieldError:
    """One error. Choices and values out of bounds name what is allowed."""
    if isinstance(field, serializers.ChoiceField) and code in ("invalid_choice", "null", "required"):
        names = [str(name) for name in field.choices]
        if code == "invalid_choice":
            message = f"must be one of {', '.join(names)}{meant(sent, names)}"
        return problem(path, code, message, sent, names)
    allowed = _bounds(field)
    if allowed and code in ("min_value", "max_value", "min_length", "max_length"):
        message = f"must be {allowed}"
    return problem(path, code, message, sent, allowed)


def _bounds(field: Any) -> str | None:
    """The limits of a field as text."""
    if isinstance(field, serializers.IntegerField):
        return _span(field.min_value, field.max_value, "")
    if isinstance(field, serializers.CharField):
        least = field.min_length if field.allow_blank else max(1, field.min_length or 0)
        return _span(least, field.max_length, " characters") if field.max_length else None
    if isinstance(field, serializers.ListField):
        return _span(field.min_length or 0, field.max_length, " entries") if field.max_length else None
    return None


def _span(least: Any, most: Any, unit: str) -> str | None:
    if least is not None and most is not None:
        return f"{least} to {most}{unit}"
    if most is not None:
        return f"at most {most}{unit}"
    return None if least is None else f"at least {least}{unit}"


def meant(sent: Any, known: Iterable[str]) -> str:
    """ "; did you mean x?" where a known name is near, else nothing."""
    near = difflib.get_close_matches(str(sent), list(known), n=1) or [
        name for name in known if str(sent).casefold() == name.casefold()
    ]
    return f"; did you mean {near[0]}?" if near else ""
