"""Types of django-rest-knox's models, which ships none."""

from datetime import datetime, timedelta
from typing import Any, ClassVar, Self, TypeVar

from django.db import models

_T = TypeVar("_T", bound=AbstractAuthToken)

class AuthTokenManager(models.Manager[_T]):
    def create(  # type: ignore[override]
        self, user: Any, expiry: timedelta | None = ..., prefix: str | None = ..., **fields: Any
    ) -> tuple[_T, str]: ...

class AbstractAuthToken(models.Model):
    digest: models.CharField[str, str]
    token_key: models.CharField[str, str]
    user: models.ForeignKey[Any, Any]
    created: models.DateTimeField[datetime, datetime]
    expiry: models.DateTimeField[datetime | None, datetime | None]
    objects: ClassVar[AuthTokenManager[Self]]

    class Meta:
        abstract = True

def get_token_model() -> type[AbstractAuthToken]: ...
