"""Settings of the test suite: real PostgreSQL on a private socket, messages in memory, a quick hasher.

The servers are started by tests/conftest.py in the process that runs pytest; its children (pytest-xdist) inherit the
addresses through the environment that is set here.
"""

import os
import tempfile
from pathlib import Path

from portal.settings.embedded import layout

os.environ.setdefault("LUTHIER_TEST_DATA", str(Path(tempfile.gettempdir()) / f"luthier-test-{os.getpid()}"))
_TEST = layout(Path(os.environ["LUTHIER_TEST_DATA"]))
os.environ.setdefault("DATABASE_URL", _TEST.database_url)
os.environ.setdefault("REDIS_URL", _TEST.redis_url)
# Each process of pytest-xdist has a database of its own, so it needs files of its own: a sweep knows its rows alone.
os.environ["LUTHIER_DATA"] = str(
    Path(os.environ["LUTHIER_TEST_DATA"], os.environ.get("PYTEST_XDIST_WORKER", ""))
)
os.environ.setdefault("LUTHIER_CLUSTER", "memory")
os.environ.setdefault("LUTHIER_BLOB_RETENTION_H", "0")
os.environ.setdefault("SECRET_KEY", "only-for-tests-" + "x" * 50)

from portal.settings.base import *  # noqa: E402, F403
from portal.settings.base import DATABASES  # noqa: E402

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
BROKER_URL = "memory://"
CACHES = {  # both in one storage, which cache.clear() empties
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "shared": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "KEY_PREFIX": "shared"},
}
CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
DATABASES["default"]["TEST"] = {"NAME": "test_luthier"}
AXES_ENABLED = False
LUTHIER_SECURITY_CONTACT = "mailto:security@example.org"
