"""Serializers and fields that refuse unknown names and wrong types instead of dropping or converting them.

The errors of a body or a query are listed by field: what was sent, what is allowed, and the closest valid name.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from rest_framework import exceptions, serializers

from jobs.serialization import strip_underscores
from tenants.errors import problem
from tenants.models import Tenant
from tenants.roles import Role

ROLES = [role.value for role in Role]
TENANT_STATES = Tenant.State.values

LARGEST = 2**63 - 1
FieldError = dict[str, Any]


class StrictSerializer(serializers.Serializer[Any]):
    """A body or a query string; unknown, read-only and misspelled names are refused, not ignored."""

    repeats_values = True
    """Whether an error shows what was sent; not where it may be a secret."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        strip_underscores(cls)

    def to_internal_value(self, data: Any) -> Any:
        unknown = self.wrong_names(data)
        try:
            value = super().to_internal_value(data)
        except serializers.ValidationError as error:
            raise serializers.ValidationError({**unknown, **_as_dict(error.detail)}) from error
        if unknown:
            raise serializers.ValidationError(unknown)
        return value

    def wrong_rows(self, sent: Any, wrong: Set[str]) -> list[FieldError]:
        """What the database says of a body that is refused anyway; a valid one is judged by its service. wrong: paths
        that have an error already, whose values may be anything."""
        return []

    def wrong_names(self, data: Any) -> dict[str, list[serializers.ErrorDetail]]:
        """Errors by name, of names that the body should not have, or lacks."""
        if not hasattr(data, "keys"):
            return {}
        known = [name for name, field in self.fields.items() if not field.read_only]
        return {
            str(name): [serializers.ErrorDetail(_hint(str(name), known), code="unknown_field")]
            for name in data
            if name not in known
        }


@dataclass(frozen=True)
class Follows:
    """A field's validator by a check that a service makes, too: so its error is listed with those of the other fields.

    check: value -> an entry of details["errors"], or None.
    """

    check: Callable[[str], Mapping[str, Any] | None]

    def __call__(self, value: str) -> None:
        if wrong := self.check(value):
            raise serializers.ValidationError(wrong["message"], code=wrong["code"])


class StrictCharField(serializers.CharField):
    """A JSON string; numbers, booleans and NUL characters are refused.

    It has one error at most, as many services limit the length that the field does, too; the field's own comes first.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.validators.sort(key=lambda rule: isinstance(rule, Follows))

    def run_validators(self, value: Any) -> None:
        try:
            super().run_validators(value)
        except serializers.ValidationError as error:
            raise serializers.ValidationError(list(error.detail)[:1]) from error

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class StrictIntegerField(serializers.IntegerField):
    """A JSON integer that fits a database column; strings, floats and booleans are refused."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("max_value", LARGEST)
        options.setdefault("min_value", 0)
        super().__init__(**options)

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return int(data)


class StrictNumberField(serializers.FloatField):
    """A JSON number, not below 0; strings and booleans are refused."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("min_value", 0)
        super().__init__(**options)

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float) or not math.isfinite(data):
            self.fail("invalid")
        return float(data)


class StrictBooleanField(serializers.BooleanField):
    """true or false; nothing else is converted."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


class PagedQuery(StrictSerializer):
    """The query of a list: the cursor and the page size."""

    cursor = serializers.CharField(required=False, max_length=2000, help_text="`next` of the page before")
    page_size = serializers.IntegerField(
        required=False, default=50, min_value=1, max_value=200, help_text="1 to 200"
    )


class ShortListQuery(StrictSerializer):
    """The query of a short list, returned whole unless a page size is given."""

    cursor = serializers.CharField(required=False, max_length=2000, help_text="`next` of the page before")
    page_size = serializers.IntegerField(
        required=False, min_value=1, max_value=200, help_text="1 to 200; default: all"
    )


class NoQuery(StrictSerializer):
    """No query parameters; any that is given is refused."""


def _as_dict(detail: Any) -> dict[str, Any]:
    return detail if isinstance(detail, dict) else {"non_field_errors": detail}


def _hint(name: str, known: list[str]) -> str:
    if near := did_you_mean(name, known):
        return f"Unknown field{near}"
    return f"Unknown or read-only field. Allowed: {', '.join(known) or 'none'}."


class WrongFields(exceptions.ValidationError):
    """Some fields are invalid; found has one entry per error."""

    def __init__(self, detail: Any, found: list[FieldError]) -> None:
        super().__init__(detail)
        self.found = found


def checked(checker: serializers.Serializer[Any], repeated: Iterable[str] = ()) -> Any:
    """The validated values. Raises WrongFields with all errors. repeated: names of which there were several values."""
    is_valid = checker.is_valid()
    found = [problem(name, "repeated", "Given more than once.") for name in repeated]
    if not is_valid:
        sent = checker.initial_data if getattr(checker, "repeats_values", True) else None
        found += all_wrong(checker.errors, field=checker, sent=sent)
        if isinstance(checker, StrictSerializer):
            found += checker.wrong_rows(checker.initial_data, {each["path"] for each in found})
    if found:
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
            message = f"must be one of {', '.join(names)}{did_you_mean(sent, names)}"
        return problem(path, code, message, sent, names)
    rules = [rule for rule in getattr(field, "validators", ()) if isinstance(rule, Follows)]
    for found in [rule.check(sent.strip()) for rule in rules if isinstance(sent, str)]:
        if found and found["code"] == code:
            return problem(path, code, message, sent, found["allowed"])
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


def did_you_mean(sent: Any, known: Iterable[str]) -> str:
    """ "; did you mean x?" where a known name is near, else nothing."""
    near = difflib.get_close_matches(str(sent), list(known), n=1) or [
        name for name in known if str(sent).casefold() == name.casefold()
    ]
    return f"; did you mean {near[0]}?" if near else ""
