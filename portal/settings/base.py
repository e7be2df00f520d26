"""Django's settings, every one that may differ between installations from the environment (see `env`)."""

from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from portal.settings.email import email_settings
from portal.settings.embedded import layout
from portal.settings.env import BASE_DIR, read_environment
from portal.settings.secret import secret_key, secrets_keys
from portal.settings.single_sign_on import providers
from portal.settings.values import database_from_url

ENV = read_environment()
EMBEDDED = layout(ENV.luthier_data, ENV.luthier_node_dir)

# --- the installation ---------------------------------------------------------------------------
LUTHIER_DATA = EMBEDDED.data
LUTHIER_BLOBS = ENV.luthier_blobs
LUTHIER_BLOB_RETENTION_H = ENV.luthier_blob_retention_h
LUTHIER_PUBLIC_URL = ENV.luthier_public_url or "http://127.0.0.1:8000"
PUBLIC = urlsplit(LUTHIER_PUBLIC_URL)
HTTPS = PUBLIC.scheme == "https"
LUTHIER_INGEST_URL = ENV.luthier_ingest_url or f"{'wss' if HTTPS else 'ws'}://{PUBLIC.netloc}"
LUTHIER_CLUSTER = ENV.luthier_cluster
LUTHIER_NODE_SOCKET = EMBEDDED.node_socket
LUTHIER_NODE_KEY = EMBEDDED.node_key
LOCAL_NODES = ENV.local_nodes
LUTHIER_TENANTS_TRUST_EACH_OTHER = ENV.luthier_tenants_trust_each_other
KUBECONFIG = ENV.kubeconfig
KUBE_NAMESPACE_PREFIX = ENV.kube_namespace_prefix
KUBE_INSTALLATION = ENV.kube_installation
KUBE_AGENT_IMAGE = ENV.kube_agent_image
KUBE_RUNTIME_IMAGE = ENV.kube_runtime_image
KUBE_ALLOWED_IMAGES = ENV.kube_allowed_images
KUBE_GPU_RESOURCE = ENV.kube_gpu_resource
KUBE_RUNTIME_CLASS = ENV.kube_runtime_class
KUBE_RACK_LABEL = ENV.kube_rack_label
KUBE_BLOCK_LABEL = ENV.kube_block_label
KUBE_DATA_CLAIM = ENV.kube_data_claim
KUBE_TOLERATIONS = ENV.kube_tolerations
KUBE_PRIORITY_CLASS = ENV.kube_priority_class
KUBE_PULL_SECRETS = ENV.kube_pull_secrets
KUBE_SERVICE_ACCOUNT = ENV.kube_service_account
KUBE_INGEST_PEERS = ENV.kube_ingest_peers
KUBE_DNS_PEERS = ENV.kube_dns_peers
KUBE_PROVISION_KUBECONFIG = ENV.kube_provision_kubeconfig
KUBE_PROVISION_CONTEXT = ENV.kube_provision_context
LUTHIER_SCHEDULER_POLICY = ENV.luthier_scheduler_policy
LUTHIER_LEASE_S = ENV.luthier_lease_s
LUTHIER_DEPLOY_DEADLINE_S = ENV.luthier_deploy_deadline_s
LUTHIER_STORING_STALL_S = ENV.luthier_storing_stall_s
LUTHIER_AVOID_NODE_S = ENV.luthier_avoid_node_s
LUTHIER_WEB_CONNECTIONS = ENV.luthier_web_connections
LUTHIER_CONNECTIONS = ENV.luthier_connections
LUTHIER_CONNECTIONS_PER_ADDRESS = ENV.luthier_connections_per_address
LUTHIER_SECURITY_CONTACT = ENV.luthier_security_contact
LUTHIER_TRUSTED_PROXIES = ENV.luthier_trusted_proxies
LUTHIER_SUBMISSIONS_PER_MINUTE = ENV.luthier_submissions_per_minute
LUTHIER_TICK_S = ENV.luthier_tick_s
LUTHIER_RETENTION_DAYS = ENV.luthier_retention_days
LUTHIER_RETENTION_RULES = ENV.luthier_retention_rules
LUTHIER_LOG_JOB_MAX_BYTES = ENV.luthier_log_job_max_bytes
SENTRY_DSN = ENV.sentry_dsn
LUTHIER_METRICS_TOKEN = ENV.luthier_metrics_token
LUTHIER_MIN_FREE_DISK = ENV.luthier_min_free_disk
LUTHIER_OVERCOMMIT_MAX = ENV.luthier_overcommit_max
DATABASE_URL = ENV.database_url or EMBEDDED.database_url
LUTHIER_OWNER_DATABASE_URL = ENV.luthier_owner_database_url
REDIS_URL = ENV.redis_url or EMBEDDED.redis_url

# --- Django -------------------------------------------------------------------------------------
DEBUG = ENV.debug
SECRET_KEY = secret_key(ENV, EMBEDDED.secret_key)
LUTHIER_SECRETS_KEYS = secrets_keys(ENV, EMBEDDED.secrets_keys)
ALLOWED_HOSTS = list(ENV.allowed_hosts) or sorted(
    {"127.0.0.1", "localhost", "[::1]", PUBLIC.hostname or "localhost"}
)
ROOT_URLCONF = "portal.urls"
ASGI_APPLICATION = "portal.asgi.application"
AUTH_USER_MODEL = "tenants.User"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "portal",  # first: its commands take the place of Django's of the same name
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "portal.allauth_apps.Account",
    "portal.allauth_apps.SocialAccount",
    "axes",
    "channels",
    "drf_spectacular",
    "guardian",
    "knox",
    "rest_framework",
    "tenants",
    "jobs",
]

MIDDLEWARE = [
    "portal.middleware.PlainApiMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "portal.middleware.ContentSecurityPolicyMiddleware",
    "portal.streaming.StaticFilesMiddleware",
    "portal.middleware.SourceAddressMiddleware",
    "portal.middleware.EndedSessionMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "portal.middleware.SessionUseMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "portal.middleware.NoNulMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "portal.middleware.FetchedFormMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "axes.middleware.AxesMiddleware",
    "portal.middleware.WrongMethodMiddleware",
]

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "builtins": ["django.templatetags.static", "portal.templatetags.ui"],
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "portal.pages.shell.shell",
            ],
        },
    }
]

# --- the database: the only source of truth -----------------------------------------------------
DATABASES = {"default": database_from_url(DATABASE_URL)}
DATABASES["default"] |= {
    # A request returns its connection to portal.database.connection_pool when it ends.
    "CONN_MAX_AGE": 0,
    "CONN_HEALTH_CHECKS": True,
    "DISABLE_SERVER_SIDE_CURSORS": True,  # they belong to a session; see the test of a pool in transaction mode
    "OPTIONS": {
        "connect_timeout": 5,
        "options": "-c lock_timeout=3s -c statement_timeout=10s -c idle_in_transaction_session_timeout=60s",
        "application_name": "luthier",
    }
    | dict(DATABASES["default"]["OPTIONS"]),  # type: ignore[call-overload]  # the parser returns a dict of anything
}

# --- hints: Valkey may be flushed, restarted or away at any time --------------------------------
BROKER_URL = REDIS_URL.replace("unix://", "redis+socket://", 1)
CHANNEL_LAYERS: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [REDIS_URL], "prefix": "luthier"},
    }
}

CACHES: dict[str, dict[str, Any]] = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "shared": {  # by all web processes, for portal.budgets
        "BACKEND": "portal.counting_cache.CountingCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": "luthier",
        "OPTIONS": {"socket_timeout": 0.5, "socket_connect_timeout": 0.5},  # seconds
    },
}

# --- people -------------------------------------------------------------------------------------
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",  # first: it refuses a locked-out name before a password is tried
    "tenants.backends.OneTimeBackend",
    "tenants.backends.PeopleBackend",
    "guardian.backends.ObjectPermissionBackend",
]
# Memory cost makes guessing expensive even on GPUs; a million rounds of PBKDF2 would make each log-in expensive.
# Hashes of the second kind are still accepted, and replaced at the next log-in.
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.ScryptPasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
PASSWORD_MIN_CHARS = 12
LUTHIER_BREACHED_PASSWORDS = ENV.luthier_breached_passwords
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": PASSWORD_MIN_CHARS},
    },
    {"NAME": "tenants.password_rules.Common"},
    {"NAME": "tenants.password_rules.OwnWords"},
    {"NAME": "tenants.password_rules.Breached"},
]
LOGIN_URL = "/login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login"
ANONYMOUS_USER_NAME = None  # django-guardian: strangers own nothing, so they need no row
# Per address, whatever names it tries: a limit per name would let anybody lock out anybody (docs/adr/0054-budgets.md).
AXES_FAILURE_LIMIT = 20
AXES_COOLOFF_TIME = timedelta(minutes=5)
AXES_LOCKOUT_PARAMETERS = ["ip_address"]
AXES_CLIENT_IP_CALLABLE = "portal.budgets.budget_address"
AXES_RESET_ON_SUCCESS = False  # who has an account would clear the count with it
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False  # the wait that the page names is the wait
AXES_ENABLED = True
AXES_VERBOSE = False
AXES_ENABLE_ADMIN = False
AXES_LOCKOUT_CALLABLE = "portal.pages.auth.locked_out"
AXES_USERNAME_CALLABLE = "portal.login_names.counted"
AXES_SENSITIVE_PARAMETERS = ["username", "ip_address", "code", "passkey", "next", "csrfmiddlewaretoken"]
AXES_DISABLE_ACCESS_LOG = True  # sign-ins are in the audit log, which has a rule for how long

# Single sign-on: django-allauth speaks OpenID Connect, portal.pages.single_sign_on decides whose account it is.
LUTHIER_OIDC_ISSUER = ENV.luthier_oidc_issuer
LUTHIER_OIDC_NAME = ENV.luthier_oidc_name
LUTHIER_OIDC_ACR = ENV.luthier_oidc_acr
LUTHIER_OIDC_MAX_AGE_S = ENV.luthier_oidc_max_age_s
LUTHIER_OIDC_GROUPS_CLAIM = ENV.luthier_oidc_groups_claim
LUTHIER_OIDC_LINK_BY_EMAIL = ENV.luthier_oidc_link_by_email
LUTHIER_OIDC_CREATE_USERS = ENV.luthier_oidc_create_users
SOCIALACCOUNT_PROVIDERS = providers(ENV)
SOCIALACCOUNT_ADAPTER = "portal.single_sign_on.Adapter"
SOCIALACCOUNT_REQUESTS_TIMEOUT = 5  # seconds
SOCIALACCOUNT_STORE_TOKENS = False
MIGRATION_MODULES = {app: f"portal.allauth_tables.migrations.{app}" for app in ("account", "socialaccount")}
ACCOUNT_EMAIL_VERIFICATION = "none"  # an admin gives users their addresses

LUTHIER_PASSWORD_SIGN_IN = ENV.luthier_password_sign_in
LUTHIER_TWO_FACTOR_REQUIRED = ENV.luthier_two_factor_required
LUTHIER_TWO_FACTOR_AFTER_SSO = ENV.luthier_two_factor_after_sso

# --- REST ---------------------------------------------------------------------------------------
KNOX_TOKEN_MODEL = "tenants.Token"  # noqa: S105
REST_KNOX = {
    "AUTH_HEADER_PREFIX": "Bearer",
    "TOKEN_PREFIX": "lut_",
    "TOKEN_TTL": timedelta(days=90),
    "AUTO_REFRESH": False,
}
REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "Luthier",
    "DESCRIPTION": "Queue, place, run, watch, halt and resume training jobs on a shared GPU cluster. "
    "Paths follow the platform's address, which the guides call $LUTHIER_URL.",
    "VERSION": "1.0.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "COMPONENT_SPLIT_REQUEST": True,
    "POSTPROCESSING_HOOKS": [],  # choices stay where they are used, instead of under names like State39fEnum
}

# --- pages and static files ---------------------------------------------------------------------
LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False
STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "portal.static_files.BundleStorage"},
}
# Straight from the sources, so that neither a start, a test nor an image needs collectstatic.
WHITENOISE_USE_FINDERS = True
WHITENOISE_ALLOW_ALL_ORIGINS = False  # no other site loads them
WHITENOISE_IMMUTABLE_FILE_TEST = (
    r"/dist/.*-[0-9A-Z]{8}\.(?:js|css|svg|woff2)(?:\.map)?$"  # the hash in its name
)
FILE_UPLOAD_HANDLERS = [
    "django.core.files.uploadhandler.MemoryFileUploadHandler",
    "portal.arrivals.ArrivedFile",
]
DATA_UPLOAD_MAX_MEMORY_SIZE = 1024 * 1024  # bytes; uploads of code stream to disk and have their own bound
# Without scripts the quota matrix posts 12 fields per tenant and type and 8 per tenant, changed or not.
DATA_UPLOAD_MAX_NUMBER_FIELDS = 20_000

# --- transport ----------------------------------------------------------------------------------
SECURE_SSL_REDIRECT = HTTPS
SECURE_REDIRECT_EXEMPT = [
    r"^(healthz|readyz|metrics)$",  # for programs beside it, past the proxy that ends TLS
    r"^agent/v1/",  # learners are let in or refused: portal.middleware
]
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = HTTPS
SECURE_HSTS_PRELOAD = (
    False  # a list in browsers that is hard to leave; for the owner of the domain to request
)
SILENCED_SYSTEM_CHECKS = ["security.W021"]  # asks for the preload list
SECURE_REFERRER_POLICY = "same-origin"
SESSION_ENGINE = "tenants.sessions"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
# Of a name that begins so, browsers take no cookie from another host of the domain, nor one that http would send.
COOKIE_PREFIX = "__Host-" if HTTPS else ""
SESSION_COOKIE_NAME = f"{COOKIE_PREFIX}luthier"
CSRF_COOKIE_NAME = f"{COOKIE_PREFIX}csrftoken"
MESSAGE_STORAGE = "portal.pages.message_storage.MessageStorage"
SESSION_COOKIE_AGE = 14 * 24 * 3600  # seconds
LUTHIER_SESSION_IDLE_DAYS = ENV.luthier_session_idle_days
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
CSRF_TRUSTED_ORIGINS = [f"{PUBLIC.scheme}://{PUBLIC.netloc}"]
CSRF_FAILURE_VIEW = "portal.pages.errors.old_form"
X_FRAME_OPTIONS = "DENY"

# --- e-mail and logging -------------------------------------------------------------------------
globals().update(email_settings(ENV.email_url))
LUTHIER_AUDIT_URL = ENV.luthier_audit_url
LUTHIER_AUDIT_AUTHORIZATION = ENV.luthier_audit_authorization
DEFAULT_FROM_EMAIL = ENV.email_from or f"luthier@{PUBLIC.hostname or 'localhost'}"
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"()": "portal.log_format.FieldFormatter"}},
    "filters": {
        "no_probes": {"()": "portal.log_format.NoProbes"},
        "who_asked": {"()": "portal.log_format.WhoAsked"},
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["console"], "level": "INFO"},
    "loggers": {
        "django.request": {"filters": ["no_probes", "who_asked"]},
        "django.server": {"level": "WARNING"},
        "uvicorn.access": {"level": "WARNING"},
        "axes": {"level": "WARNING"},
        "fido2": {"level": "WARNING"},  # who signed in is in the audit log
        # A line per hint would be a line per job and second.
        "celery.app.trace": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},
    },
}
