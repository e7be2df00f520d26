"""Django-allauth's applications, without what they load for every process (docs/adr/0019-quick-imports.md).

Their own `ready` loads the providers, with them `requests`, and asks for a middleware around every request.
portal.single_sign_on does both where people sign in.
"""

from allauth.account.apps import AccountConfig
from allauth.socialaccount.apps import SocialAccountConfig


class Account(AccountConfig):
    def ready(self) -> None:
        pass


class SocialAccount(SocialAccountConfig):
    def ready(self) -> None:
        pass
