"""An installation imports nothing that only tests and checks bring along (`make up` installs neither)."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import pkgutil, re, sys
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path

def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()

lock = Path("requirements/runtime.txt").read_text()
locked = {normal(name) for name in re.findall(r"^([A-Za-z0-9._-]+)==", lock, re.M)}
owned = packages_distributions().items()
foreign = {module for module, owners in owned if not {normal(owner) for owner in owners} & locked}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in foreign:
            raise ModuleNotFoundError(f"{name} is not in requirements/runtime.txt")

sys.meta_path.insert(0, Refuse())

import django
django.setup()
for name in (
    "celery.bin.worker", "celery.concurrency.thread", "channels_redis.pubsub", "kombu.transport.redis", "psycopg2",
    "sentry_sdk", "uvicorn.loops.auto", "uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.auto",
):
    import_module(name)
for name in ("tenants", "jobs", "gpu_scheduler", "learner_agent", "portal", "examples.catalog"):
    package = import_module(name)
    for module in pkgutil.walk_packages(getattr(package, "__path__", []), f"{name}."):
        if not module.name.endswith("__main__") and module.name != "portal.settings.test":
            import_module(module.name)
"""


def test_every_module_of_an_installation_imports_from_the_runtime_lock_alone(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR")}
    env = kept | {"DJANGO_SETTINGS_MODULE": "portal.settings.base", "LUTHIER_DATA": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
