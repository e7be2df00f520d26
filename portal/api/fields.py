"""Serializers and fields that refuse unknown names and wrong types instead of dropping or converting them."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.serialization import strip_underscores
from portal.api.validation import meant

LARGEST = 2**63 - 1


class StrictSerializer(serializers.Serializer[Any]):
    """A body or a query string; unknown, read-only and misspelled names are refused, not ignored."""

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
    """A JSON string; numbers, booleans and NUL characters are refused."""

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
    if near := meant(name, known):
        return f"Unknown field{near}"
    return f"Unknown or read-only field. Allowed: {', '.join(known) or 'none'}."
