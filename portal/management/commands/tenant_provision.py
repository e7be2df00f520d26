"""Give tenants their namespaces on the Kubernetes cluster: isolation, limits and the platform's permissions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser

from gpu_scheduler.clusters.base import ClusterError
from gpu_scheduler.clusters.kubernetes.client import Api
from gpu_scheduler.clusters.kubernetes.provisioning import Change, Provisioner
from gpu_scheduler.clusters.kubernetes.settings import KubernetesSettings, ProvisionSettings
from gpu_scheduler.clusters.kubernetes.tenancy import TenantLimits
from jobs.clusters import DriverSettings
from portal.management.database_command import DatabaseCommand
from tenants.models import Quota, Tenant

INSTALLATION = "(installation)"
"""Printed in place of a tenant's name, in front of changes that all tenants share."""


class Command(DatabaseCommand):
    help = (
        "Create the namespaces of tenants on the Kubernetes cluster, and repair what is different from what they"
        " need. Uses KUBE_PROVISION_KUBECONFIG, an administrator's identity. Run it again after changes of"
        " limits and cohorts."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("slugs", nargs="*", metavar="SLUG", help="tenants by their names in URLs")
        parser.add_argument("--all", action="store_true", help="every tenant")
        parser.add_argument("--dry-run", action="store_true", help="show what would change, change nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        tenants = _chosen(options["slugs"], everyone=options["all"])
        provisioner = _connect(dry_run=options["dry_run"])
        failed = self._provision(provisioner, tenants)
        if failed:
            raise CommandError(f"Not provisioned: {', '.join(failed)}.")
        would = " would be" if options["dry_run"] else ""
        self.stdout.write(f"{len(tenants)} tenants{would} provisioned, {self._changes} changes.")

    def _provision(self, provisioner: Provisioner, tenants: list[TenantLimits]) -> list[str]:
        """Every tenant, so that one that fails keeps no other waiting. Returns those that failed."""
        self._changes = 0
        try:
            self._report(INSTALLATION, provisioner.installation())
        except ClusterError as error:
            raise CommandError(str(error)) from error
        failed = []
        for tenant in tenants:
            try:
                self._report(tenant.slug, provisioner.tenant(tenant))
                for name in provisioner.foreign_policies(tenant):
                    self.stderr.write(
                        f"{tenant.slug}: NetworkPolicy {name} is not from this command. Policies add up, so it can"
                        " only allow more: check it."
                    )
            except ClusterError as error:
                self.stderr.write(f"{tenant.slug}: {error}")
                failed.append(tenant.slug)
        return failed

    def _report(self, owner: str, changes: Iterable[Change]) -> None:
        for change in changes:
            self._changes += 1
            self.stdout.write(f"{owner}: {change.verb} {change.kind} {change.name}")


def _chosen(slugs: list[str], *, everyone: bool) -> list[TenantLimits]:
    """With the most that each may hold. Raises CommandError that names every tenant which does not exist."""
    if bool(slugs) == everyone:
        raise CommandError("Name the tenants, or use --all for every tenant.")
    tenants = Tenant.objects.order_by("slug")
    if slugs:
        tenants = tenants.filter(slug__in=slugs)
    found: dict[str, dict[str, int]] = {slug: {} for slug in tenants.values_list("slug", flat=True)}
    if unknown := sorted(set(slugs) - found.keys()):
        raise CommandError(f"No such tenants: {', '.join(unknown)}.")
    lent: Counter[tuple[str, str]] = Counter()
    quotas = list(Quota.objects.select_related("tenant"))
    for quota in quotas:
        lent[quota.tenant.cohort, quota.gpu_type] += _lends(quota)
    for quota in quotas:
        if quota.tenant.slug in found:
            found[quota.tenant.slug][quota.gpu_type] = quota.limit + _borrows(quota, lent)
    return [TenantLimits(slug, slots) for slug, slots in found.items()]


def _lends(quota: Quota) -> int:
    return quota.limit if quota.lending_limit is None else min(quota.limit, quota.lending_limit)


def _borrows(quota: Quota, lent: Mapping[tuple[str, str], int]) -> int:
    """How many slots beyond its limit a tenant can hold while the others of its cohort use nothing."""
    if not quota.tenant.cohort:
        return 0
    of_others = lent[quota.tenant.cohort, quota.gpu_type] - _lends(quota)
    return of_others if quota.borrowing_limit is None else min(of_others, quota.borrowing_limit)


def _connect(*, dry_run: bool) -> Provisioner:
    given = DriverSettings()
    problems = []
    for read in (KubernetesSettings.read, ProvisionSettings.read):
        try:
            read(given)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise CommandError("\n".join(problems))
    provision = ProvisionSettings.read(given)
    try:
        api = Api(provision.kubeconfig, provision.context)
    except ValueError as error:
        raise CommandError(str(error).replace("KUBECONFIG", "KUBE_PROVISION_KUBECONFIG", 1)) from error
    return Provisioner(api, KubernetesSettings.read(given), provision, dry_run=dry_run)
