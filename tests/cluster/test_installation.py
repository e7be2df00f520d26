"""The platform itself as pods beside its learners, installed with the commands of docs/kubernetes.md."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPRedirectHandler, Request, build_opener

import pytest

from tests.browser.programs import TRAINER
from tests.cluster.conftest import require_own_cluster
from tests.cluster.folders import new_folder
from tests.cluster.installation import CLAIM, METRICS_TOKEN, NAMESPACE, Installation, installed
from tests.cluster.permissions import granted, used_permissions
from tests.cluster.pods import spec
from tests.platform import Client, wait_for
from tools.kube import binaries, nodes
from tools.kube.client import ApiError
from tools.kube.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
NOT_ALWAYS_USED = {
    ("namespace", "get", "services"),  # when a gang is launched that was launched before
    ("namespace", "patch", "services"),  # when a part of a gang is removed
    ("cluster", "get", "nodes"),  # when a pod is still being ended at the second look
}
HOST = "luthier.example"
READS_DATA = """\
import os
folder = os.environ["DATA_DIR"]
with open(f"{folder}/digits/train") as file:
    content = file.read()
try:
    open(f"{folder}/digits/test", "w")
except OSError as error:
    print(content, os.listdir(folder), error.errno, flush=True)
"""
FIRST_SAVES = TRAINER.replace("training.report(", "training.rank() or training.report(").replace(
    "def save(step):\n", "def save(step):\n    if training.rank():\n        return\n"
)
"""Its learners do not wait for each other: of the one that is ahead, a save of the other would lose steps."""


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """On a cluster of its own, whose audit log has nothing but its calls."""
    require_own_cluster()
    if why := nodes.missing():
        pytest.skip(why)
    cluster = Cluster(new_folder("install"), binaries.build(), tied=True, real_nodes=2, gpus=2, enforced=True)
    cluster.start()
    try:
        with installed(cluster, tmp_path_factory.mktemp("install")) as found:
            yield found
    finally:
        cluster.stop()


@pytest.fixture
def alice(installation: Installation) -> Client:
    return installation.client("alice")


class Browser:
    """A person behind the Ingress: pages over TLS, cookies kept, no redirect followed."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self.cookies: dict[str, str] = {}

    def open(self, path: str, **form: str) -> tuple[int, str]:
        """Status, and the page's text or where it leads."""
        data = urlencode(form).encode() if form else None
        request = Request(f"{self._installation.url()}{path}", data=data)
        request.add_header("Host", HOST)
        request.add_header("X-Forwarded-Proto", "https")
        request.add_header("Referer", f"https://{HOST}{path}")
        request.add_header("Cookie", "; ".join(f"{name}={value}" for name, value in self.cookies.items()))
        try:
            answer = build_opener(_NoRedirects).open(request, timeout=30)
        except HTTPError as error:
            answer = error
        with answer:
            for header in answer.headers.get_all("Set-Cookie") or []:
                self.cookies |= {name: each.value for name, each in SimpleCookie(header).items()}
            return answer.status, answer.headers.get("Location") or answer.read().decode()


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def test_a_person_signs_in_through_either_web_pod(installation: Installation) -> None:
    browser = Browser(installation)
    status, page = browser.open("/login")
    assert status == 200
    [token] = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)[:1]
    form = {"username": "alice", "password": installation.users["alice"]["password"]}
    assert browser.open("/login", csrfmiddlewaretoken=token, **form)[0] == 302
    assert "__Host-luthier" in browser.cookies
    status, page = browser.open("/t/vision-lab/jobs")
    assert (status, "vision-lab" in page) == (200, True)


def test_the_administrator_of_the_page_exists_and_every_process_is_ready(installation: Installation) -> None:
    names = installation.manage(
        "shell",
        "-c",
        '"from tenants.models import User; print([u.username for u in User.objects.filter(is_superuser=True)])"',
    )
    assert "'admin'" in names
    expected = {"web": 2, "worker": 2, "scheduler": 1}
    assert {name: len(installation.pods(name)) for name in expected} == expected
    wait_for(lambda: Browser(installation).open("/readyz")[0] == 200, within_s=60, what="readiness")


def test_metrics_have_what_the_autoscaler_asks_for(installation: Installation) -> None:
    request = Request(f"{installation.url()}/metrics", headers={"Authorization": f"Bearer {METRICS_TOKEN}"})
    with build_opener().open(request, timeout=30) as answer:
        text = answer.read().decode()
    [metric] = re.findall(
        r"metric: \{name: (\w+)\}", (installation.folder / "deploy/kubernetes/workers.yaml").read_text()
    )
    assert re.search(rf"^{metric} \d", text, re.MULTILINE)


def test_a_job_trains_halts_resumes_and_does_not_notice_that_every_process_is_replaced(
    installation: Installation, alice: Client, tmp_path: Path
) -> None:
    share_data(installation, tmp_path)
    gang = {
        "placement": "spread",
        "resources": {"learners": 2},
        "data": [{"name": "digits", "path": "digits"}],
    }
    program = READS_DATA + FIRST_SAVES
    job = alice.submit(spec("lasting", program, command="python3 main.py 100000 0.1", **gang))["id"]
    alice.wait_step(job, 30, within_s=180)
    alice.post(f"/jobs/{job}/halt")
    assert alice.wait_state(job, "HALTED", within_s=120)["last_halt"]["steps_lost"] == 0
    first = alice.raw_log(job, attempt=1, learner=1).decode().splitlines()[0]
    assert first == f"1 2 3 ['digits'] {errno.EROFS}", (
        "the tenant's own data set, and nothing else, read-only"
    )
    alice.post(f"/jobs/{job}/resume")
    wait_for(lambda: trains(alice, job), within_s=180, what="the second attempt")
    before, events = alice.job(job), events_of(alice, job)
    old = {name: uids(installation, name) for name in ("web", "worker", "scheduler")}

    installation.kubectl("rollout", "restart", *(f"deployment/{name}" for name in old))
    for name in old:
        installation.kubectl("rollout", "status", f"deployment/{name}", "--timeout=5m")
    wait_for(
        lambda: all(not uids(installation, name) & old[name] for name in old),
        within_s=60,
        what="new pods only",
    )
    step = before["progress"]["step"]
    wait_for(lambda: alice.job(job)["progress"]["step"] > step + 20, within_s=120, what="more steps")
    after = alice.job(job)
    assert (after["state"], after["attempt"]) == ("PROCESSING", 2)
    new = events_of(alice, job)[len(events) :]
    assert [event for event in new if event["code"] not in ("CHECKPOINT_STORED",)] == []
    for learner in (0, 1):
        steps = [
            int(n)
            for n in re.findall(r"(?m)^step (\d+) ", alice.raw_log(job, attempt=2, learner=learner).decode())
        ]
        assert steps == list(range(steps[0], steps[-1] + 1)), "each line once, none lost"
    alice.post(f"/jobs/{job}/cancel")
    alice.wait_state(job, "CANCELED", within_s=120)
    left = installation.cluster.admin.get("/api/v1/pods", labelSelector=f"luthier.dev/job={job}")
    assert left["items"] == []


def test_an_eviction_takes_one_of_each_kind_and_no_second(installation: Installation) -> None:
    admin = installation.cluster.admin
    for kind in ("web", "worker"):
        first, second = (pod["metadata"]["name"] for pod in installation.pods(kind)[:2])
        evict(admin, first)
        with pytest.raises(ApiError, match="disruption budget"):
            evict(admin, second)
        wait_for(lambda kind=kind: len(installation.pods(kind)) == 2, within_s=120, what=f"a second {kind}")


def test_the_platform_was_allowed_all_that_it_did_and_no_more(installation: Installation) -> None:
    used, refused = used_permissions(installation.cluster.audited())
    assert used <= granted()
    assert granted() - used <= NOT_ALWAYS_USED
    assert refused <= granted(), "only before the installation was provisioned"


def share_data(installation: Installation, folder: Path) -> None:
    """A volume with a data set of each of two tenants, and the claim of one."""
    folder.chmod(0o755)
    for tenant in ("vision-lab", "nlp-research"):
        (folder / tenant / "digits").mkdir(parents=True)
        (folder / tenant / "digits" / "train").write_text("1 2 3" if tenant == "vision-lab" else "not theirs")
    size, namespace = {"storage": "1Mi"}, "luthier-vision-lab"
    volume = {
        "accessModes": ["ReadOnlyMany"],
        "capacity": size,
        "hostPath": {"path": str(folder)},
        "storageClassName": "",
        "claimRef": {"namespace": namespace, "name": CLAIM},
    }
    claim = {"accessModes": ["ReadOnlyMany"], "resources": {"requests": size}, "storageClassName": ""}
    admin = installation.cluster.admin
    admin.create("/api/v1/persistentvolumes", {"metadata": {"name": "data-sets"}, "spec": volume})
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    admin.create(path, {"metadata": {"name": CLAIM}, "spec": claim})


def trains(client: Client, job: str) -> bool:
    found = client.job(job)
    return found["state"] == "PROCESSING" and found["attempt"] == 2 and bool(found["progress"]["step"])


def events_of(client: Client, job: str) -> list[dict[str, str]]:
    return list(client.get(f"/jobs/{job}/events", page_size=200)["items"])


def uids(installation: Installation, name: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in installation.pods(name)}


def evict(admin: object, name: str) -> None:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    admin.create(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction", eviction)  # type: ignore[attr-defined]
