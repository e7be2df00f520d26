"""What happens to users and memberships, for the packages above that keep rights of their own by them."""

from django.dispatch import Signal

rights_lost = Signal()
"""In the transaction that disables a user, ends the role of a platform admin, or changes the role in a tenant. sender:
None; user: a tenants.models.User as it is now; because: a sentence's end for the audit log."""
