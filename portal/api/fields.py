"""Serializers and fields that refuse what they do not know, instead of dropping or bending it."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.serialization import strip_underscores
from portal.api.validation import meant

LARGEST = 2**63 - 1


class StrictSerializer(serializers.Serializer[Any]):
    """A body or a query string of which every name is known; read-only and mistyped names are refused, not ignored."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        strip_underscores(cls)

    def to_internal_value(self, data: Any) -> Any:
        unknown = self._unknown(data)
        try:
            value = super().to_internal_value(data)
        except serializers.ValidationError as error:
            raise serializers.ValidationError({**unknown, **_as_dict(error.detail)}) from error
        if unknown:
            raise serializers.ValidationError(unknown)
        return value

    def _unknown(self, data: Any) -> dict[str, list[str]]:
        if not hasattr(data, "keys"):
            return {}
        known = [name for name, field in self.fields.items() if not field.read_only]
        return {
            str(name): [serializers.ErrorDetail(_hint(str(name), known), code="unknown_field")]
            for name in data
            if name not in known
        }


class StrictCharField(serializers.CharField):
    """A JSON string, not a number or a truth value in its place. NUL is refused."""

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class StrictIntegerField(serializers.IntegerField):
    """A JSON whole number that a row can hold; not a string, a float or a truth value."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("max_value", LARGEST)
        options.setdefault("min_value", 0)
        super().__init__(**options)

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return int(data)


class StrictBooleanField(serializers.BooleanField):
    """true or false, and nothing that resembles them."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


class PagedQuery(StrictSerializer):
    """The query of a list: where to go on, and how many rows at once."""

    cursor = serializers.CharField(required=False, max_length=2000, help_text="`next` of the page before")
    page_size = serializers.IntegerField(
        required=False, default=50, min_value=1, max_value=200, help_text="1 to 200"
    )


class ShortListQuery(StrictSerializer):
    """The query of a list that is short by nature: all at once, unless pages are asked for."""

    cursor = serializers.CharField(required=False, max_length=2000, help_text="`next` of the page before")
    page_size = serializers.IntegerField(
        required=False, min_value=1, max_value=200, help_text="1 to 200; all when left out"
    )


class NoQuery(StrictSerializer):
    """An operation without query parameters; whatever is given is refused."""


def _as_dict(detail: Any) -> dict[str, Any]:
    return detail if isinstance(detail, dict) else {"non_field_errors": detail}


def _hint(name: str, known: list[str]) -> str:
    if near := meant(name, known):
        return f"Unknown field{near}"
    return f"Unknown or read-only field. Allowed: {', '.join(known) or 'none'}."
