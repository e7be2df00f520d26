"""The mapping of the identity provider's groups to roles in tenants, for platform admins."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.serialization import ReadSerializer
from portal.api import permissions
from portal.api.fields import ROLES, StrictCharField, StrictSerializer
from portal.api.operations import Call, operation
from tenants.services import groups
from tenants.services.groups import GROUP_CHARS, LINES_MAX, Rule


class GroupRuleSerializer(ReadSerializer):
    tenant = serializers.CharField()
    role = serializers.ChoiceField(ROLES)
    group = serializers.CharField(help_text="its name at the provider")


class GroupMappingSerializer(ReadSerializer):
    rules = GroupRuleSerializer(many=True)
    etag = serializers.CharField()


class GroupRuleRequest(StrictSerializer):
    """Texts, which the service checks all at once."""

    tenant = StrictCharField(allow_blank=True)
    role = StrictCharField(allow_blank=True, help_text=", ".join(ROLES))
    group = StrictCharField(
        allow_blank=True,
        trim_whitespace=False,
        help_text=f"its name at the provider, at most {GROUP_CHARS} characters",
    )


class GroupMappingRequest(StrictSerializer):
    rules = serializers.ListField(child=GroupRuleRequest(), help_text=f"all of them, at most {LINES_MAX}")


class GroupPreviewRequest(StrictSerializer):
    rules = serializers.ListField(
        child=GroupRuleRequest(), required=False, help_text="default: the mapping as it is"
    )


class RoleEffectSerializer(ReadSerializer):
    username = serializers.CharField()
    tenant = serializers.CharField()
    before = serializers.ChoiceField(ROLES, allow_null=True, help_text="the role now; null: no member")
    after = serializers.ChoiceField(ROLES, allow_null=True, help_text="the role then; null: no member")


class GroupPreviewSerializer(ReadSerializer):
    effects = RoleEffectSerializer(many=True)


RULES_EXAMPLE = [{"tenant": "vision-lab", "role": "researcher", "group": "ml-users"}]
MAPPING_EXAMPLE = {"rules": RULES_EXAMPLE, "etag": '"0f1f7b3e6a534b7a"'}


@operation(Out=GroupMappingSerializer, response_example=MAPPING_EXAMPLE, fails=(403,))
def group_mapping_get(call: Call) -> dict[str, Any]:
    """Which groups at the identity provider give which roles in tenants; platform admins only."""
    return _shown(groups.rules(user=call.user))


@operation(
    authorize=permissions.for_admins,
    In=GroupMappingRequest,
    Out=GroupMappingSerializer,
    request_example={"rules": RULES_EXAMPLE},
    response_example=MAPPING_EXAMPLE,
    fails=(409,),
    needs_version=True,
)
def group_mapping_set(call: Call) -> dict[str, Any]:
    """Replace the whole mapping; platform admins only. Preview it first: memberships, and the tokens limited to them,
    end with their group.

    `If-Match` is required, so that no admin overwrites unseen what another has changed; `*` replaces whatever is there.
    The mapping counts at the next sign-in of each person. Of several roles in a tenant the highest counts. Memberships
    that were made or changed by hand stay as they are. 409 `single_sign_on_off` without a provider.
    """
    wanted = groups.rules_of(call.data["rules"])
    return _shown(groups.rules_set(user=call.user, wanted=wanted, if_match=call.if_match))


@operation(
    authorize=permissions.for_admins,
    In=GroupPreviewRequest,
    Out=GroupPreviewSerializer,
    request_example={"rules": RULES_EXAMPLE},
    response_example={
        "effects": [{"username": "erin", "tenant": "vision-lab", "before": None, "after": "researcher"}]
    },
)
def group_mapping_preview(call: Call) -> dict[str, Any]:
    """Who would gain, change and lose which role with these rules at their next sign-in; platform admins only.

    It goes by the groups of each person's last sign-in. Nothing is changed. Without rules, what the mapping as it is
    will change.
    """
    wanted = groups.rules_of(call.data["rules"]) if "rules" in call.data else None
    return GroupPreviewSerializer.render({"effects": groups.effects(user=call.user, wanted=wanted)})


def _shown(rules: list[Rule]) -> dict[str, Any]:
    return GroupMappingSerializer.render({"rules": rules, "etag": groups.version(rules)})
