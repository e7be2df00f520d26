"""What a submission of these tests needs."""

from __future__ import annotations

import pytest

from jobs.models import Runtime


@pytest.fixture
def sklearn(db: None) -> None:
    """The runtime that the specs of the tests name."""
    Runtime.objects.get_or_create(slug="sklearn", defaults={"title": "scikit-learn"})
