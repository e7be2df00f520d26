"""How many wrong codes of an app a user may enter, at the sign-in and by REST together: they are few enough to guess.

Who spends it knows the password; passkeys and recovery codes do not depend on it
(docs/adr/0073-two-factor-authentication.md).
"""

from __future__ import annotations

from portal import budgets
from tenants.models import User

WRONG_A_MINUTE, WRONG_AN_HOUR = 5, 20
HOUR_S = 3600


def spend(user: User) -> bool:
    """Count one more, before it is checked: of many at once only the budget's are. False above the budget."""
    return budgets.within(_minute(user), WRONG_A_MINUTE) and budgets.within(
        _hour(user), WRONG_AN_HOUR, window_s=HOUR_S
    )


def give_back(user: User) -> None:
    """What was counted was right."""
    budgets.give_back(_minute(user))
    budgets.give_back(_hour(user))


def _minute(user: User) -> str:
    return f"code:{user.pk}"


def _hour(user: User) -> str:
    return f"code-hour:{user.pk}"
