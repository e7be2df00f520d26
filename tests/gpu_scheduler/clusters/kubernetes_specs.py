"""Gangs as people may write them, for property tests of the Kubernetes driver."""

from __future__ import annotations

import string

from hypothesis import strategies as st

from gpu_scheduler.clusters.base import GangSpec, LearnerSpec, gang_name
from gpu_scheduler.clusters.kubernetes.settings import KubernetesSettings
from gpu_scheduler.model import CPU_TYPE

SETTINGS = KubernetesSettings(
    installation="test",
    agent_image="test.invalid/agent:1",
    runtime_image="test.invalid/{runtime}:1",
    data_claim="data-sets",
)
OWNER = {"apiVersion": "v1", "kind": "Service", "name": "job-x-1", "uid": "0b7f"}

_ids = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=32)
_names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,30}", fullmatch=True)
_values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
_nodes = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)


@st.composite
def gang_specs(draw: st.DrawFn) -> GangSpec:
    job, attempt = draw(_ids), draw(st.integers(1, 999))
    learners = [
        LearnerSpec(rank, draw(_nodes), draw(st.dictionaries(_names, _values, max_size=5)), f"secret-{rank}")
        for rank in range(draw(st.integers(1, 4)))
    ]
    return GangSpec(
        name=gang_name(job, attempt),
        job=job,
        attempt=attempt,
        tenant="red",
        learners=learners,
        slots=draw(st.integers(1, 16)),
        slot_type=draw(st.sampled_from([CPU_TYPE, "h100", "a100"])),
        cpus=draw(st.floats(0.001, 256)),
        memory_mib=draw(st.integers(1, 2**21)),
        command=draw(st.one_of(_values, st.lists(_values, max_size=4))),
        ingest_url="wss://luthier.example",
        runtime=draw(_ids),
        grace_s=draw(st.integers(0, 86_400)),
        secrets=draw(st.dictionaries(_names, _values, max_size=3)),
        checkpoint_every_s=draw(st.one_of(st.none(), st.floats(1, 1e6))),
        distributed=draw(st.sampled_from([None, True, False])),
        data=draw(st.dictionaries(_ids, _ids.map("sets/{}".format), max_size=3)),
    )
