"""The environment, read once, typed and judged: every problem at once, each with the variable's name.

A wrong value ends the process with exit code 78 (EX_CONFIG of sysexits.h) before anything has started.
docs/adr/0019-quick-imports.md says why no library does this.
"""

import dataclasses
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

from portal.settings import single_sign_on, values
from portal.settings.plain_connections import plain_connections

PREFIX = "LUTHIER_"
OWNER_URL = "LUTHIER_OWNER_DATABASE_URL"
READ_ELSEWHERE = re.compile("LUTHIER_(URL|TOKEN|WAIT_FOR|PROCESS_MARK|LONG|PICTURES|TEST_.*)")
"""Variables of REST clients, of processes that `up` starts, and of the tests."""
BASE_DIR = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Environment:
    """Every variable that this installation listens to: its type, what reads its text, its default.

    An empty variable counts as absent.
    """

    debug: Annotated[bool, values.yes_or_no] = False
    # postgresql://…; none = the embedded server
    database_url: Annotated[str | None, values.database] = None
    # as the role that owns the tables, for `prepare` alone; none = the role of DATABASE_URL owns them
    luthier_owner_database_url: Annotated[str | None, values.database] = None
    # none = the embedded server
    redis_url: Annotated[str | None, values.broker] = None
    secret_key: Annotated[str | None, values.secret] = None
    secret_key_file: Annotated[Path | None, values.file] = None
    # comma-separated, newest first; encrypt the secrets of tenants and users
    luthier_secrets_keys: Annotated[tuple[str, ...], values.secrets_keys] = ()
    # one key per line, newest first; none = secrets_keys in the data folder, made for the first secret
    luthier_secrets_keys_file: Annotated[Path | None, values.file] = None
    # comma-separated; empty = loopback and the public URL's host
    allowed_hosts: Annotated[tuple[str, ...], values.hosts] = ()
    # smtp://user:password@host:port, smtps://…; none = no mail is sent
    email_url: Annotated[str | None, values.url("smtp", "smtps")] = None
    # the sender of mails; none = luthier@ and the public URL's host
    email_from: Annotated[str | None, values.mail_address] = None
    # https://…, to which workers send the audit log as JSON lines by POST; none = it stays here
    luthier_audit_url: Annotated[str | None, values.collector] = None
    # what these requests have as Authorization: Bearer …, or what the other system asks for
    luthier_audit_authorization: Annotated[str | None, values.header] = None
    sentry_dsn: Annotated[str | None, values.url("https", "http")] = None

    # with it, `Authorization: Bearer` reads /metrics; none = /metrics is off
    luthier_metrics_token: Annotated[str | None, values.secret] = None

    luthier_data: Annotated[Path, values.data_folder] = BASE_DIR / ".luthier"
    # a folder that a node daemon of its own shares with web processes and workers: its socket and its key; none = both
    # belong to the data folder
    luthier_node_dir: Annotated[Path | None, values.folder] = None
    # a folder, or s3://bucket/prefix with AWS_* as usual; none = blobs in the data folder
    luthier_blobs: Annotated[str | None, values.blob_store] = None
    # hours that bytes are kept after nothing refers to them any more; longer than a backup's copy takes
    luthier_blob_retention_h: Annotated[float, values.number(0, 8784)] = 1
    # none = this machine's loopback, at the port of `up`
    luthier_public_url: Annotated[str | None, values.url("http", "https")] = None
    # as learners reach the server; none = from the public URL
    luthier_ingest_url: Annotated[str | None, values.url("ws", "wss")] = None
    # connections of clients to one web process at most, fewer if the system allows fewer open files
    luthier_connections: Annotated[int, values.whole_number(16)] = 8192
    # those of one address that are not websockets; trusted proxies are exempt
    luthier_connections_per_address: Annotated[int, values.whole_number(8)] = 512
    # addresses and networks, with commas; X-Forwarded-For and X-Forwarded-Proto of all others are ignored
    luthier_trusted_proxies: Annotated[tuple[values.Network, ...], values.networks] = ()
    # hosts, *.names, addresses and networks, with commas, whose way from here only the platform's machines share: their
    # addresses without TLS are not warned of
    luthier_private_hosts: Annotated[tuple[str, ...], values.private_hosts] = ()
    # mailto:… or https://…, for /.well-known/security.txt; none = it does not exist
    luthier_security_contact: Annotated[str | None, values.contact] = None
    # the OpenID provider by which people sign in, as its discovery document names it; none = passwords only
    luthier_oidc_issuer: Annotated[str | None, values.oidc_issuer] = None
    luthier_oidc_client_id: Annotated[str | None, str] = None
    luthier_oidc_client_secret: Annotated[str | None, str] = None
    luthier_oidc_client_secret_file: Annotated[Path | None, values.file] = None
    # what the login page calls it
    luthier_oidc_name: Annotated[str, values.label] = "single sign-on"
    # apart by spaces; what the provider needs for the claims
    luthier_oidc_scopes: Annotated[tuple[str, ...], values.oidc_scopes] = ("openid", "profile", "email")
    # apart by spaces; ways of signing in at the provider (acr) of which it has to confirm one; none = any
    luthier_oidc_acr: Annotated[tuple[str, ...], values.words] = ()
    # seconds since the person proved who they are at the provider, which asks them again then; none = it decides
    luthier_oidc_max_age_s: Annotated[int | None, values.whole_number(60)] = None
    # the claim with the groups of a person, which a mapping turns into roles
    luthier_oidc_groups_claim: Annotated[str, values.label] = "groups"
    # an identity whose e-mail address the provider has verified signs in as the user who has this address
    luthier_oidc_link_by_email: Annotated[bool, values.yes_or_no] = False
    # an identity that is not linked gets a user of its own
    luthier_oidc_create_users: Annotated[bool, values.yes_or_no] = False
    # whether passwords sign people in; without them single sign-on does
    luthier_password_sign_in: Annotated[bool, values.yes_or_no] = True
    # a file of the SHA-1 of leaked passwords, one per line in ascending order; no password of it can be set
    luthier_breached_passwords: Annotated[Path | None, Path] = None
    # who signs in with a password has to have a second factor; without, those who have set one up are asked for it
    luthier_two_factor_required: Annotated[bool, values.yes_or_no] = False
    # after single sign-on as well: by default the provider's second factor is relied on
    luthier_two_factor_after_sso: Annotated[bool, values.yes_or_no] = False
    # days after which a browser's session that is not used ends; 14 after its sign-in it ends anyway
    luthier_session_idle_days: Annotated[float, values.number(0.01, 14)] = 7
    luthier_cluster: Annotated[str, values.cluster] = "local"
    # name of a policy; then, after commas, <slot type>:<policy> for single pools
    luthier_scheduler_policy: Annotated[str, values.scheduler_policy] = "fair_share"
    # jobs that a user may submit within a minute; as many specs validated; a quarter as many uploads
    luthier_submissions_per_minute: Annotated[int, values.whole_number(1)] = 10_000
    # seconds until a frozen worker's job may be taken over
    luthier_lease_s: Annotated[float, values.number(1, 600)] = 10
    # seconds until a gang that is not complete on its cluster releases its slots and is placed again
    luthier_deploy_deadline_s: Annotated[float, values.number(10, 86_400)] = 600
    # seconds for which nothing of a learner's uploads may arrive, although it sends heartbeats
    luthier_storing_stall_s: Annotated[float, values.number(60, 86_400)] = 1800
    # seconds for which a node that failed a gang is used only if no others fit
    luthier_avoid_node_s: Annotated[float, values.number(0, 86_400)] = 1800
    # connections to PostgreSQL of one web process at most; 21 are for learners, viewers, streams and probes
    luthier_web_connections: Annotated[int, values.whole_number(25)] = 69
    # seconds between two looks at due jobs
    luthier_tick_s: Annotated[float, values.number(0.02, 60)] = 1
    # days a deleted job is kept before its purge
    luthier_retention_days: Annotated[float, values.number(0, 36_500)] = 90
    # kind:days, kind:size or kind:days:size, with commas, such as logs:90d,checkpoints:30d:500Gi; what tenants
    # without a rule of their own follow; none = everything is kept
    luthier_retention_rules: Annotated[values.Rules, values.retention_rules] = dataclasses.field(
        default_factory=dict
    )
    # bytes of log kept per job
    luthier_log_job_max_bytes: Annotated[int, values.whole_number(1024)] = 2 * 1024**3
    # free space of the data folder's disk below which no job starts: 10Gi; none = 2Gi, or 2 % of the disk if less
    luthier_min_free_disk: Annotated[int | None, values.amount] = None
    # sum of limits over a type's capacity
    luthier_overcommit_max: Annotated[float, values.number(1, 100)] = 1.25
    # whether programs on the local cluster are confined to what is theirs: auto (where the kernel can), required or off
    luthier_local_sandbox: Annotated[str, values.sandbox] = "auto"
    # lets a second tenant onto a local cluster that does not isolate their programs
    luthier_tenants_trust_each_other: Annotated[bool, values.yes_or_no] = False
    # apart by colons; what each program reads and writes besides its own
    luthier_program_reads: Annotated[str, values.paths] = ""
    luthier_program_writes: Annotated[str, values.paths] = ""
    local_nodes: Annotated[str, values.nodes] = "auto"
    # none = the service account of the pod that a process runs in, or the user's own configuration
    kubeconfig: Annotated[Path | None, values.file] = None
    # marks this installation's objects on a Kubernetes cluster
    kube_installation: Annotated[str | None, values.kube_name] = None
    # has the learner agent in /agent
    kube_agent_image: Annotated[str | None, str] = None
    # image of a framework, with {runtime} for its name; none = jobs name their own image
    kube_runtime_image: Annotated[str | None, values.kube_runtime_image] = None
    # patterns of the images that jobs may run where a tenant has none of its own, with commas; none = no images
    kube_allowed_images: Annotated[tuple[str, ...], values.image_patterns] = ()
    # resources of which learners get their GPUs, with commas; SLOT_TYPE= in front of one for a single slot type
    kube_gpu_resource: Annotated[str, values.kube_gpu_resources] = "nvidia.com/gpu"
    # runtime class of learners' pods on GPU nodes, with commas; SLOT_TYPE= in front of one for a single slot type
    kube_runtime_class: Annotated[str, values.kube_runtime_classes] = ""
    # labels of nodes, with commas; the first that a node has names its rack, or its block; none = those that Kueue's
    # documentation, Google and Amazon use
    kube_rack_label: Annotated[str, values.kube_labels] = ""
    kube_block_label: Annotated[str, values.kube_labels] = ""
    # a claim in each tenant's namespace whose volume has the data sets, in a folder per tenant; none = no data sets
    kube_data_claim: Annotated[str, values.kube_object_name] = ""
    # taints that learners' pods tolerate, as `kubectl taint` writes them, with commas
    kube_tolerations: Annotated[str, values.kube_tolerations] = ""
    # of learners' pods; none = the cluster's default
    kube_priority_class: Annotated[str, values.kube_object_name] = ""
    # Secrets with registries' passwords in each tenant's namespace, with commas
    kube_pull_secrets: Annotated[str, values.kube_object_names] = ""
    kube_namespace_prefix: Annotated[str, values.name_prefix] = "luthier-"
    # the platform's own account, which tenant_provision lets into the tenants' namespaces
    kube_service_account: Annotated[str, values.kube_account] = "luthier/luthier"
    # all that learners may connect to besides their gang; none = the address in LUTHIER_INGEST_URL
    kube_ingest_peers: Annotated[str | None, values.kube_peers] = None
    kube_dns_peers: Annotated[str, values.kube_peers] = "kube-system:53"
    # of an administrator, for tenant_provision only
    kube_provision_kubeconfig: Annotated[Path | None, values.file] = None
    kube_provision_context: Annotated[str | None, str] = None


def read_environment(options: Mapping[str, str] | None = None, wrong: Sequence[str] = ()) -> Environment:
    """The environment as typed values; ends the process with one line per problem when any is wrong.

    options: variable -> the option that has set it and is named in its place. wrong: problems that were found before.
    """
    read: dict[str, Any] = {}
    problems = [*wrong]
    for field, annotation in Environment.__annotations__.items():
        name = field.upper()
        text = os.environ.get(name, "")
        if not text:
            continue
        (reader,) = annotation.__metadata__
        try:
            read[field] = reader(text)
        except ValueError as error:
            problems.append(f"{(options or {}).get(name, name)}: {error}")
    environment = Environment(**read)
    problems += [
        f"{name}: not set: the {environment.luthier_cluster} cluster needs it (docs/operations.md)"
        for name in values.required_settings(environment.luthier_cluster)
        if not os.environ.get(name)
    ]
    problems += values.store_problems(environment.luthier_blobs, os.environ)
    problems += values.owner_problems(environment.database_url, environment.luthier_owner_database_url)
    problems += single_sign_on.problems(os.environ)
    if not environment.luthier_password_sign_in and not os.environ.get(single_sign_on.ISSUER):
        problems.append(
            f"LUTHIER_PASSWORD_SIGN_IN: without passwords no one could sign in: set {single_sign_on.ISSUER}, too"
        )
    if problems:
        refuse(problems)
    return environment


def without_settings(variables: Mapping[str, str]) -> dict[str, str]:
    """These variables less the platform's settings and the store's credentials, for processes that read neither, so
    that their environments, and those of their children, hold no secret."""
    known = {field.upper() for field in Environment.__annotations__}
    return {
        name: text for name, text in variables.items() if name not in known and not name.startswith("AWS_")
    }


def refuse_at_start(environment: Environment) -> None:
    """End the start of an installation for what a single process that restarts does without."""
    if problem := _breached_passwords(environment):
        refuse([problem])


def warnings(environment: Environment, variables: Mapping[str, str]) -> list[str]:
    """What is valid, and perhaps not what was meant: one sentence for each, with what to do."""
    found = ineffective_variables(variables) + plain_connections(environment, variables)
    if problem := _breached_passwords(environment):
        found.append(f"{problem}. Until it can be read, no password can be set.")
    return found


def _breached_passwords(environment: Environment) -> str:
    try:
        values.breached_passwords(environment.luthier_breached_passwords)
    except ValueError as error:
        return f"LUTHIER_BREACHED_PASSWORDS: {error}"
    return ""


def ineffective_variables(variables: Mapping[str, str]) -> list[str]:
    """One sentence for each variable that is set and changes nothing, such as a misspelled one."""
    from difflib import get_close_matches  # only a misspelled variable needs it

    known = {field.upper() for field in Environment.__annotations__}
    found = []
    for name in sorted(name for name, text in variables.items() if text):
        if name.startswith(PREFIX) and name not in known and not READ_ELSEWHERE.fullmatch(name):
            ends = [one.removeprefix(PREFIX) for one in known if one.startswith(PREFIX)]
            near = get_close_matches(name.removeprefix(PREFIX), ends, n=1)
            hint = f" Did you mean {PREFIX}{near[0]}?" if near else ""
            found.append(f"{name}: unknown variable, ignored.{hint}")
    return found


def refuse(problems: list[str]) -> NoReturn:
    """Say what is wrong with the configuration and end with EX_CONFIG."""
    lines = [
        "Luthier cannot start because its configuration is invalid:",
        *(f"  {problem}" for problem in problems),
    ]
    sys.stderr.write("\n".join(lines) + "\n")
    raise SystemExit(os.EX_CONFIG)
