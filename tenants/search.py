"""Search of long tables by a GIN index on terms of a row, without extensions of the database.

A row's terms are the parts of one to three characters of its texts (n-grams, in upper case), and marks: its tenant, a
person, words that are found as a whole. The index narrows by what is sought and by the tenants that the viewer may read
together, before any row is compared: a search whose matches are another tenant's reads nothing of them.

What is found often needs no index: the page is full after a few rows in its own order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db.models import (
    BooleanField,
    ExpressionWrapper,
    F,
    Func,
    IntegerField,
    Q,
    QuerySet,
    TextField,
    Value,
)
from django.db.models.expressions import Combinable

GRAM = 3
NEWEST, OFTEN = 500, 5
"""With so many matches among so many of the newest rows, a page is full soon."""
MOST = 5_000
"""Beyond so many matches, rows are compared in the order of the page, too."""

TERMS = ArrayField(TextField())


def terms(*texts: str, tenant: str, person: str, words: str = "") -> Func:
    """The expression of an index, and of a search by it; all by the names of fields."""
    return _terms(1, F(tenant), F(person), F(words) if words else _array([]), *(F(text) for text in texts))


def _terms(shortest: int, *of: Combinable) -> Func:
    size = Value(shortest, output_field=IntegerField())
    return Func(size, *of, function="search_terms", output_field=TERMS)


def marks(kind: str, values: Iterable[object]) -> list[str]:
    """Marks of this kind ("tenant", "person" or "word"), as terms have them."""
    return [f"{kind}:{value}" for value in values]


def find(
    rows: QuerySet[Any],
    by: Func,
    q: str,
    *,
    matches: Q,
    text_matches: Q,
    tenants: Sequence[int] | None,
    also: Sequence[str] = (),
) -> list[Any] | None:
    """Primary keys of all rows that match; None if they are so many that rows are better compared one by one.

    rows: what the viewer may read. matches: the condition; text_matches: the part of it that looks for q within the
    texts of the terms `by`. tenants: ids of the tenants that the rows belong to, None for all; also: marks that match.
    """
    is_match = ExpressionWrapper(matches, output_field=BooleanField())
    newest = rows.order_by("-pk").values_list(is_match, flat=True)[:NEWEST]
    if sum(map(bool, newest)) >= OFTEN:  # null where a column is
        return None
    narrowed = rows.order_by().alias(terms=by)
    if tenants is not None:
        narrowed = narrowed.filter(terms__overlap=_array(marks("tenant", tenants)))
    none = Value(None, output_field=IntegerField())
    sought = _terms(min(GRAM, len(q)), none, none, _array([]), Value(q, output_field=TextField()))
    found = set(_some(narrowed.filter(text_matches, terms__contains=sought)))
    if also:
        found.update(_some(narrowed.filter(terms__overlap=_array(also))))
    return sorted(found) if len(found) <= MOST else None


def _array(values: Sequence[str]) -> Value:
    return Value(list(values), output_field=TERMS)


def _some(rows: QuerySet[Any]) -> Iterable[Any]:
    return rows.values_list("pk", flat=True)[: MOST + 1]
