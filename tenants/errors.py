"""Errors about people, tenants and quotas, and the base class of all service errors.

The docstring is the default message.
portal.api.errors is the only place where one of these becomes a status code.
"""

from __future__ import annotations

from typing import Any, ClassVar


class ServiceError(Exception):
    """The request failed."""

    code: ClassVar[str] = "failed"

    def __init__(self, message: str = "", **details: Any) -> None:
        super().__init__(message or " ".join((type(self).__doc__ or "").split()))
        self.details = details
        """Plain JSON for the answer's body, beside code and message."""

    @property
    def message(self) -> str:
        return str(self)


class TenantError(ServiceError):
    """The change could not be made."""

    code = "tenant_error"


class NotFound(TenantError):
    """There is no such object, or it is not visible to you."""

    code = "not_found"


class NotAllowed(TenantError):
    """Your role in this tenant does not allow this."""

    code = "not_allowed"


class AdminOnly(TenantError):
    """Only a platform admin can do this."""

    code = "not_allowed"


class FieldsInvalid(TenantError):
    """Some fields are invalid."""  # details["errors"]: path, code, message, got, allowed each

    code = "invalid"


class TenantsNotIsolated(TenantError):
    """The cluster does not isolate the programs of different tenants from each other."""

    code = "tenants_not_isolated"


class NameTaken(TenantError):
    """This name is already in use: choose another."""

    code = "name_taken"

    def __init__(self, message: str, *, path: str, got: str) -> None:
        super().__init__(message, errors=[problem(path, self.code, message, got)])


class AlreadyMember(TenantError):
    """This user is already a member. Change the role instead."""  # details: errors

    code = "already_member"


class LastManager(TenantError):
    """A tenant needs at least one manager. Make another member a manager first."""

    code = "last_manager"


class LastAdmin(TenantError):
    """The installation needs at least one platform admin who can sign in. Make another user a platform admin first, and
    let them sign in."""

    code = "last_admin"


class IdentityUnknown(TenantError):
    """No user here is linked to your account at the identity provider. Ask a platform admin to link it."""

    code = "not_allowed"  # details: subject


class AccountClosed(TenantError):
    """Your account here is disabled. Ask a platform admin."""

    code = "not_allowed"  # details: username


class UserDisabled(TenantError):
    """The link keeps the identity of a disabled user out. Enable the user first."""

    code = "user_disabled"


class SingleSignOnOff(TenantError):
    """This installation has no single sign-on. An operator sets it up with LUTHIER_OIDC_ISSUER."""

    code = "single_sign_on_off"


class TooManyPasswords(TenantError):
    """Too many wrong passwords. Try again later; of a session of yours, signing in again helps, too."""

    code = "too_many_requests"


class TooManyCodes(TenantError):
    """Too many wrong codes. Try again later, or enter a recovery code."""

    code = "too_many_requests"


class PasswordsOff(TenantError):
    """This installation has no passwords: everyone signs in by the identity provider."""

    code = "passwords_off"


class TwoFactorRequired(TenantError):
    """This installation requires two-factor authentication. Add another authenticator app or passkey first."""

    code = "two_factor_required"


class ProofRequired(TenantError):
    """Confirm that it is you: open /me/confirm in this browser, then send the request again."""

    code = "proof_required"


class PasskeyRefused(TenantError):
    """The passkey was not accepted. Try again."""

    code = "passkey_refused"


class PasskeyCopied(PasskeyRefused):
    """This passkey's use count went back, as if it was copied. Sign in another way, then remove it on your profile."""


class PasskeyTooLate(PasskeyRefused):
    """This took too long or was done before. Start again."""


class PasskeysUnavailable(TenantError):
    """Passkeys do not work at this address."""  # the message says why, and where they do

    code = "passkeys_unavailable"


class OwnRoleRaised(TenantError):
    """You can't raise your own role. Ask another manager or a platform admin."""

    code = "not_allowed"


class LimitChanged(TenantError):
    """A limit is no longer what you saw. Read the quotas again, then repeat the change."""  # details: errors

    code = "limit_changed"


class VersionChanged(TenantError):
    """This has changed since you read it. Read it again, then repeat the change."""  # details: etag

    code = "version_changed"


class SecretsUnavailable(TenantError):
    """Secrets cannot be encrypted or decrypted now. An operator must look at the installation's secrets keys."""

    code = "secrets_unavailable"


class Overcommitted(TenantError):
    """The limits would sum to more than this installation may allocate."""  # details: errors

    code = "overcommitted"


def problem(path: str, code: str, message: str, got: object = None, allowed: object = None) -> dict[str, Any]:
    """One entry of details["errors"]. Those of a job spec have more fields: jobs.spec.problems.Problem."""
    shown = None if got is None else str(got)[:200]
    return {"path": path, "code": code, "message": message, "got": shown, "allowed": allowed}
