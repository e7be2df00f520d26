"""Where messages to the next page are kept: as Django does, in a cookie of a name as safe as the session's."""

from django.conf import settings
from django.contrib.messages.storage.cookie import CookieStorage
from django.contrib.messages.storage.fallback import FallbackStorage
from django.contrib.messages.storage.session import SessionStorage


class MessageCookie(CookieStorage):
    cookie_name = f"{settings.COOKIE_PREFIX}messages"


class MessageStorage(FallbackStorage):
    """Django's default; what is too long for a cookie goes into the session."""

    storage_classes = (MessageCookie, SessionStorage)
