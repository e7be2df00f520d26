"""The contract, as requests to the API server. Keeps nothing but a cache, so any number of processes may use a cluster.

A stop is a deletion with a grace period, because nothing else sends SIGTERM. A finalizer keeps the pod with its exit
code until ``remove`` takes the finalizer away, once no process of it is left.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass

from gpu_scheduler.clusters.base import (
    ABSENCE_S,
    DNS_LABEL,
    Capabilities,
    ClusterBusy,
    ClusterError,
    GangBlocked,
    GangSpec,
    LaunchRefused,
    Observation,
    OnChange,
    ProvisionOutdated,
    RefusalCode,
    Removal,
    Watch,
)
from gpu_scheduler.clusters.kubernetes import manifests, reports, resources, settings
from gpu_scheduler.clusters.kubernetes.client import (
    Api,
    Conflict,
    NoPermission,
    NotFound,
    Object,
    RequestRejected,
)
from gpu_scheduler.clusters.kubernetes.settings import KubernetesSettings
from gpu_scheduler.clusters.kubernetes.view import View
from gpu_scheduler.clusters.kubernetes.watching import NODES, PODS, Watcher
from gpu_scheduler.model import Node

SERVICES, POLICIES = "/api/v1/services", "networkpolicies"
CAPABILITIES = Capabilities(
    images=True,
    node_local_data=False,
    shared_memory=True,
    multi_node=True,
    deploy_deadline=True,
    required_settings=settings.REQUIRED,
    remedy="Check KUBECONFIG, and `kubectl get --raw /readyz`. Forbidden: `manage.py tenant_provision --all`.",
)
AT_ONCE = 16
"""Objects that a process creates at the same time. In a namespace with a ResourceQuota the API server decides on all
that wait at once, and then on those that came meanwhile: one after the other each would wait for its own decision."""
NOT_YET = ("is being terminated", "being deleted")
"""In the message of a rejected request: it may be accepted later."""
OUT_OF_QUOTA = re.compile(r"exceeded quota: ([^,]+), requested: (.*), used: ")
NO_CLASS = "no PriorityClass"
"""In the messages of requests that are accepted once an administrator has provisioned the tenant again."""


class KubernetesCluster:
    """See ``clusters.base.Cluster``."""

    name = "kubernetes"
    capabilities = CAPABILITIES

    def __init__(
        self, settings: KubernetesSettings, api: Api | None = None, watcher: Watcher | None = None
    ) -> None:
        self._settings = settings
        self._api = api or Api(settings.kubeconfig)
        self._watcher = watcher or Watcher(self._api, settings)
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="create")
        self._gone: dict[str, float] = {}
        """Gangs without pods, as this process knows for certain, and since when (time.monotonic)."""
        self._gone_lock = threading.Lock()

    @classmethod
    def connect(cls, settings: Mapping[str, str]) -> KubernetesCluster:
        return cls(KubernetesSettings.read(settings))

    def close(self) -> None:
        """End its threads and connections."""
        self._watcher.close()
        self._threads.shutdown()
        self._api.close()

    # The contract

    def nodes(self) -> list[Node]:
        return self._view().scheduler_nodes()

    def launch(self, spec: GangSpec) -> None:
        launch = _Launch(self._api, self._settings, self._watcher, self._threads, spec)
        service, is_new = self._begin(launch)
        if _is_marked(service, manifests.REFUSED) or reports.is_deleted(service):
            if self.remove(spec.name) is Removal.TERMINATING:
                raise launch.is_being_removed()
            self._forget_gone(spec.name)  # another process may launch it
            service, is_new = self._begin(launch)
            if _is_marked(service, manifests.REFUSED):  # another process was refused meanwhile
                raise launch.is_being_removed()
        self._forget_gone(spec.name)
        if _is_marked(service, manifests.PARTLY_REMOVED):
            return
        there = frozenset[str]() if is_new else self._pod_names(spec.name)
        try:
            launch.create_rest(service, there)
        except RequestRejected as error:
            with suppress(NoPermission):
                if launch.pod_names() <= self._pod_names(spec.name):
                    return  # another process has created the others at the same time
                self._mark([service], manifests.REFUSED)
                self.remove(spec.name)
                self._forget_gone(spec.name)  # another process may launch it
            raise launch.refused(error) from error

    def observe(self, names: Sequence[str] | None = None) -> Observation:
        if (cached := self._watcher.observation(names)) is not None:
            return cached
        seen_at = time.monotonic()
        found = {report.name: report for report in self._list(names).gangs(names)}
        gangs = {name: found[name] for name in sorted(found)}
        missing = frozenset(names or ()) - gangs.keys()
        # For any other name one list is no proof: it may come from a cache in front of the API server.
        return Observation(gangs, seen_at, not_found=missing.intersection(self._known_gone()))

    def stop(self, name: str, *, grace_s: float) -> None:
        for pod in self._pods_of(name):
            with suppress(NotFound, Conflict):  # it has ended, and another process has removed it
                self._delete(pod, grace_s=manifests.grace(grace_s))

    def remove(self, name: str, *, uids: Sequence[str] | None = None) -> Removal:
        pods = self._pods_of(name)
        chosen = [pod for pod in pods if uids is None or pod["metadata"]["uid"] in uids]
        others = len(pods) > len(chosen)
        if others and not chosen:
            return Removal.GONE
        services = self._api.get(SERVICES, labelSelector=manifests.selector(self._settings, name))["items"]
        if others:
            self._mark(services, manifests.PARTLY_REMOVED)
        left = [pod for pod in chosen if not self._remove_pod(pod)]
        if left:
            return Removal.TERMINATING
        if not others:
            for service in services:
                self._remove_objects(service)
            if pods:
                self._note_gone(name)
        return Removal.GONE

    def watch(self, on_change: OnChange) -> Watch:
        return self._watcher.watch(on_change)

    def probe(self) -> None:
        for path in (NODES, PODS):
            self._watcher.probe(path)

    def traces(self) -> frozenset[str]:
        """Of gangs that have a Service and no pod. The Services are read first: a launch makes its pods after them."""
        services = self._api.get(SERVICES, labelSelector=manifests.selector(self._settings))["items"]
        names = {str(service["metadata"]["labels"].get(manifests.GANG)) for service in services}
        return frozenset(names - self.observe().gangs.keys())

    # How it works

    def _begin(self, launch: _Launch) -> tuple[Object, bool]:
        """The gang's Service, and whether it was made now. Most gangs are new, so it is asked for only where it cannot
        be made."""
        launch.require_name()
        try:
            launch.require_data()
            launch.require_room(self._view())
            return launch.create_service()
        except (LaunchRefused, ClusterBusy, NoPermission) as refused:  # GangBlocked is one, too
            # What was launched before holds the room that it needs, whatever has become of its nodes.
            try:
                service = launch.existing()
            except ClusterBusy:
                if isinstance(refused, LaunchRefused):
                    raise  # it may have been launched before, and then runs
                raise refused from None
            if service is not None:
                return service, False
            if isinstance(refused, LaunchRefused):  # for good, where otherwise another process may launch it
                self._note_gone(launch.spec.name)
            raise

    def _view(self) -> View:
        return self._watcher.view() or self._list(None)

    def _list(self, gangs: Sequence[str] | None) -> View:
        """A fresh view. gangs: only their pods, so that a look at one gang is cheap on a large cluster, whose nodes
        may be as old as what the cache shows."""
        query, nodes = {}, None
        if gangs is not None:
            ours = manifests.selector(self._settings)
            query["labelSelector"] = f"{ours},{manifests.GANG} in ({','.join(sorted(gangs))})"
            nodes = self._watcher.nodes()
        pods = self._watcher.listed_pods(**query)
        view = View.of(self._watcher.listed(NODES) if nodes is None else nodes, [], self._settings)
        for pod in pods:
            view.put(pod)
        return view

    def _pods_of(self, gang: str) -> list[Object]:
        """In every namespace: its name does not say whose it is. Never from the cache."""
        return self._watcher.listed(PODS, labelSelector=manifests.selector(self._settings, gang))

    def _pod_names(self, gang: str) -> frozenset[str]:
        return frozenset(pod["metadata"]["name"] for pod in self._pods_of(gang))

    def _note_gone(self, gang: str) -> None:
        with self._gone_lock:
            self._gone[gang] = time.monotonic()

    def _forget_gone(self, gang: str) -> None:
        with self._gone_lock:
            self._gone.pop(gang, None)

    def _known_gone(self) -> frozenset[str]:
        with self._gone_lock:
            now = time.monotonic()
            self._gone = {name: at for name, at in self._gone.items() if now - at <= ABSENCE_S}
            return frozenset(self._gone)

    def _delete(self, pod: Object, *, grace_s: int) -> Object:
        deleted = self._api.delete(_path(pod, "pods"), uid=pod["metadata"]["uid"], grace_s=grace_s)
        self._watcher.wrote(deleted)
        return deleted

    def _remove_pod(self, pod: Object) -> bool:
        """True: it is gone. Otherwise it is being ended."""
        try:
            if not reports.has_ended(pod) and not self._has_lost_its_node(pod):
                pod = self._delete(pod, grace_s=1)
                if not reports.has_ended(pod):
                    return False
            self._delete(pod, grace_s=0)
            change = {"metadata": {"uid": pod["metadata"]["uid"], "finalizers": None}}
            self._api.patch(_path(pod, "pods"), change)
        except NotFound:
            pass  # another process has removed it
        except Conflict:  # as above, or someone changes it at this moment
            uids = {
                each["metadata"]["uid"] for each in self._pods_of(pod["metadata"]["labels"][manifests.GANG])
            }
            if pod["metadata"]["uid"] in uids:
                return False
        self._watcher.removed(pod)
        return True

    def _has_lost_its_node(self, pod: Object) -> bool:
        """True if no kubelet can confirm its end any more. Asked only from the second call on."""
        if not reports.is_deleted(pod):
            return False
        try:
            node = self._api.get(f"{NODES}/{pod['spec'].get('nodeName', '')}")
        except NotFound:
            return True
        return not resources.is_ready(node)

    def _mark(self, services: Sequence[Object], annotation: str) -> None:
        for service in services:
            change = {"metadata": {"annotations": {annotation: "true"}}}
            with suppress(NotFound):
                self._api.patch(_path(service, "services"), change)

    def _remove_objects(self, service: Object) -> None:
        """What it owns would follow it only a while later, and a new launch must not meet that."""
        metadata = service["metadata"]
        for kind in ("secrets", POLICIES):
            with suppress(NotFound):
                self._api.request("DELETE", f"{_collection(metadata['namespace'], kind)}/{metadata['name']}")
        with suppress(NotFound, Conflict):
            self._api.delete(_path(service, "services"), uid=metadata["uid"])


@dataclass(frozen=True, slots=True)
class _Launch:
    """The requests of one launch, in an order that a repeated or concurrent launch can follow."""

    api: Api
    settings: KubernetesSettings
    watcher: Watcher
    threads: Executor
    spec: GangSpec

    @property
    def _namespace(self) -> str:
        return self.settings.namespace(self.spec.tenant)

    def require_name(self) -> None:
        if not DNS_LABEL.fullmatch(self.spec.name):
            raise LaunchRefused(f"{self.spec.name[:80]!r} cannot be the name of a Kubernetes object.")

    def existing(self) -> Object | None:
        """The Service of a gang that was launched before."""
        try:
            return self.api.get(f"{_collection(self._namespace, 'services')}/{self.spec.name}")
        except NotFound:
            return None
        except NoPermission as error:  # the platform's Role is in the namespaces of provisioned tenants only
            raise self._not_provisioned() from error

    def require_data(self) -> None:
        """Raises LaunchRefused if the job asks for data sets where there are none."""
        if self.spec.data and not self.settings.data_claim:
            message = (
                f"This cluster has no data sets ({', '.join(self.spec.data)}): KUBE_DATA_CLAIM is not set."
            )
            raise LaunchRefused(message, code=RefusalCode.DATA_ERROR)

    def require_room(self, view: View) -> None:
        """Raises LaunchRefused and ClusterBusy: a pod that does not fit would wait and keep the rest of its gang."""
        spec, gpus = self.spec, self.settings.gpu_resources()
        free: dict[str, resources.Amount] = {}
        for learner in spec.learners:
            node = view.nodes.get(learner.node)
            if node is None or not resources.is_ready(node):
                message = f"Node {learner.node} does not exist or is not ready."
                raise LaunchRefused(message, code=RefusalCode.NODE_LOST)
            if (kind := resources.slot_type_of(node, gpus)) != spec.slot_type:
                message = f"Node {learner.node} has no {spec.slot_type}, it has {kind}."
                raise LaunchRefused(message, code=RefusalCode.NODE_LOST)
            before = free.get(learner.node) or view.free(learner.node)
            needed = resources.needed_by(self._pod(learner.rank, {}), gpus.of(kind))
            if lacks := before.lacks(needed):
                message = f"Node {learner.node} cannot take {spec.name} yet: {lacks}."
                raise GangBlocked(message, node=learner.node)
            free[learner.node] = before - needed

    def create_service(self) -> tuple[Object, bool]:
        """The Service, and whether it was not there before."""
        try:
            return self._create("services", manifests.service(self.spec, self.settings)), True
        except Conflict:  # at the same time, by another process
            service = self.existing()
            if service is None:
                raise self.is_being_removed() from None
            return service, False
        except RequestRejected as error:
            raise self.refused(error) from error

    def is_being_removed(self) -> GangBlocked:
        return GangBlocked(f"What there is of {self.spec.name} is being removed.")

    def refused(self, error: RequestRejected) -> ClusterError:
        """Why a request to create something failed. A namespace that someone deletes loses the platform's Role before
        it says itself that it is being terminated."""
        if isinstance(error, NoPermission | NotFound):
            return self._not_provisioned()
        text = str(error)
        if NO_CLASS in text:
            return self._outdated(f"the cluster has no PriorityClass {self.settings.opportunistic_class}")
        if full := OUT_OF_QUOTA.search(text):
            resources = ", ".join(each.partition("=")[0] for each in full[2].split(","))
            return self._outdated(
                f"ResourceQuota {full[1]} of namespace {self._namespace} has no room for {resources}"
            )
        return GangBlocked(text) if any(each in text for each in NOT_YET) else LaunchRefused(text)

    def _outdated(self, what: str) -> ProvisionOutdated:
        return ProvisionOutdated(
            f"{what[0].upper()}{what[1:]}, though the platform's limits allow the job. If limits, cohorts or settings"
            f" have changed, an administrator must run: manage.py tenant_provision {self.spec.tenant}"
        )

    def _not_provisioned(self) -> LaunchRefused:
        tenant = self.spec.tenant
        return LaunchRefused(
            f"Tenant {tenant} is not provisioned on the cluster: namespace {self._namespace} is missing, or the"
            f" platform may not use it. An administrator must run: manage.py tenant_provision {tenant}"
        )

    def pod_names(self) -> frozenset[str]:
        return frozenset(manifests.pod_name(self.spec.name, learner.rank) for learner in self.spec.learners)

    def create_rest(self, service: Object, there: frozenset[str]) -> None:
        """Everything that the Service owns, as far as it is missing. there: names of pods that are not: a quota that is
        full refuses a pod before the API server sees that it exists already."""
        if reports.is_deleted(service):
            raise self.is_being_removed()
        owner = manifests.owner(service)
        pods = [("pods", self._pod(learner.rank, owner)) for learner in self.spec.learners]
        needed = [("secrets", manifests.secret(self.spec, self.settings, owner))]
        if len(pods) > 1:
            needed.append((POLICIES, manifests.policy(self.spec, self.settings, owner)))
        self._create_all(needed)  # first: without its Secret a kubelet lets a pod wait
        self._create_all([each for each in pods if each[1]["metadata"]["name"] not in there])

    def _create_all(self, objects: Sequence[tuple[str, Object]]) -> None:
        """At the same time; raises the first one's error once all have ended, so that what follows meets them all."""
        if len(objects) == 1:
            self._create_once(*objects[0])
            return
        under_way = [self.threads.submit(self._create_once, *each) for each in objects]
        wait(under_way)
        for each in under_way:
            each.result()

    def _create_once(self, kind: str, manifest: Object) -> None:
        with suppress(Conflict):
            self._create(kind, manifest)

    def _create(self, kind: str, manifest: Object) -> Object:
        created = self.api.create(_collection(self._namespace, kind), manifest)
        if kind == "pods":
            self.watcher.wrote(created)
        return created

    def _pod(self, rank: int, owner: Object) -> Object:
        return manifests.pod(self.spec, rank, self.settings, self._image(), owner)

    def _image(self) -> str:
        if self.spec.image is not None:
            return self.spec.image
        image = self.settings.image_of(self.spec.runtime or "")
        if not image:
            message = (
                f"This cluster has no image for framework {self.spec.runtime}: KUBE_RUNTIME_IMAGE is not set."
            )
            raise LaunchRefused(message, code=RefusalCode.IMAGE_ERROR)
        return image


def _is_marked(service: Object, annotation: str) -> bool:
    return annotation in service["metadata"].get("annotations", {})


def _path(found: Object, kind: str) -> str:
    metadata = found["metadata"]
    return f"{_collection(metadata['namespace'], kind)}/{metadata['name']}"


def _collection(namespace: str, kind: str) -> str:
    group = "/apis/networking.k8s.io/v1" if kind == POLICIES else "/api/v1"
    return f"{group}/namespaces/{namespace}/{kind}"
