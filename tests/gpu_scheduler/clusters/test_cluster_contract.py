"""The contract of gpu_scheduler.clusters.base, sentence by sentence, on every driver."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from gpu_scheduler.clusters.base import (
    ENDED,
    Absences,
    ClusterBusy,
    ClusterError,
    LaunchRefused,
    LearnerPhase,
    RefusalCode,
)
from tests.gpu_scheduler.clusters.harness import (
    Harness,
    all_ended,
    all_in,
    eventually,
    launch,
    remove,
)
from tests.gpu_scheduler.clusters.node_daemon import wait_for

RUNNING = all_in(LearnerPhase.RUNNING)


def test_nodes_are_listed_by_name(harness: Harness) -> None:
    shown = [(node.name, node.slot_type, node.slots, node.ready) for node in harness.cluster.nodes()]
    assert shown == [("node-a", "cpu", 4, True), ("node-b", "cpu", 4, True)]


def test_nothing_exists_before_the_first_launch(harness: Harness) -> None:
    assert harness.cluster.observe().gangs == {}
    assert harness.cluster.observe(["job-x-1"]).gangs == {}


def test_a_launched_gang_is_shown_at_once_and_then_runs(harness: Harness) -> None:
    harness.cluster.launch(launch("job-x-1", "runs", "runs", nodes=("node-a", "node-b")))
    shown = harness.cluster.observe().gangs["job-x-1"]
    assert [(learner.rank, learner.node) for learner in shown.learners] == [(0, "node-a"), (1, "node-b")]
    assert not shown.stopping
    eventually(harness, "job-x-1", RUNNING)


def test_a_second_launch_changes_nothing(harness: Harness) -> None:
    asked = launch("job-x-1", "runs")
    harness.cluster.launch(asked)
    first = eventually(harness, "job-x-1", RUNNING)
    harness.cluster.launch(asked)
    assert harness.cluster.observe().gangs["job-x-1"] == first


def test_launching_from_many_threads_at_once_makes_one_gang(harness: Harness) -> None:
    asked = launch("job-x-1", "runs", "runs")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: harness.cluster.launch(asked), range(8)))
    seen = eventually(harness, "job-x-1", RUNNING)
    assert len({learner.uid for learner in seen.learners}) == 2


@pytest.mark.parametrize(
    ("code", "phase"), [(0, LearnerPhase.SUCCEEDED), (3, LearnerPhase.FAILED), (255, LearnerPhase.FAILED)]
)
def test_the_programs_exit_code_is_shown(harness: Harness, code: int, phase: LearnerPhase) -> None:
    harness.cluster.launch(launch("job-x-1", f"exits:{code}"))
    (learner,) = eventually(harness, "job-x-1", all_ended).learners
    assert (learner.phase, learner.exit_code) == (phase, code)


def test_learners_end_one_by_one(harness: Harness) -> None:
    harness.cluster.launch(launch("job-x-1", "exits:1", "runs"))
    seen = eventually(harness, "job-x-1", lambda report: report.learners[0].phase in ENDED)
    assert not all_ended(seen)
    assert seen.learners[1].phase not in ENDED


def test_stop_never_blocks_and_ends_every_learner(harness: Harness) -> None:
    harness.cluster.launch(launch("job-x-1", "runs", "runs"))
    eventually(harness, "job-x-1", RUNNING)
    harness.cluster.stop("job-x-1", grace_s=10)
    assert harness.cluster.observe().gangs["job-x-1"].stopping
    assert eventually(harness, "job-x-1", all_ended).stopping


def test_a_learner_that_ignores_the_stop_is_killed_after_the_grace(harness: Harness) -> None:
    harness.cluster.launch(launch("job-x-1", "stubborn"))
    harness.programs_run("job-x-1")
    harness.cluster.stop("job-x-1", grace_s=0.5)
    harness.settle()
    (learner,) = eventually(harness, "job-x-1", all_ended).learners
    assert learner.phase is LearnerPhase.FAILED
    assert learner.exit_code in (137, None)


def test_a_second_stop_never_lengthens_the_grace(harness: Harness) -> None:
    harness.cluster.launch(launch("job-x-1", "stubborn"))
    harness.programs_run("job-x-1")
    harness.cluster.stop("job-x-1", grace_s=0.5)
    harness.cluster.stop("job-x-1", grace_s=600)
    eventually(harness, "job-x-1", all_ended)


def test_a_shorter_second_grace_shortens_the_first(harness: Harness) -> None:
    harness.cluster.launch(launch("job-x-1", "stubborn"))
    harness.programs_run("job-x-1")
    harness.cluster.stop("job-x-1", grace_s=600)
    harness.settle()
    assert not all_ended(harness.cluster.observe().gangs["job-x-1"])
    harness.cluster.stop("job-x-1", grace_s=0.1)
    eventually(harness, "job-x-1", all_ended)


def test_stop_and_remove_of_an_unknown_name_are_success(harness: Harness) -> None:
    harness.cluster.stop("job-unknown-1", grace_s=1)
    harness.cluster.remove("job-unknown-1")


def test_remove_ends_what_runs_and_frees_its_slots(harness: Harness) -> None:
    asked = launch("job-x-1", "runs", "stubborn", slots=2)
    harness.cluster.launch(asked)
    eventually(harness, "job-x-1", RUNNING)
    remove(harness, "job-x-1")
    assert harness.cluster.observe().gangs == {}
    harness.cluster.launch(launch("job-y-1", "runs", slots=4))
    eventually(harness, "job-y-1", RUNNING)
    harness.cluster.remove("job-y-1")


def test_remove_with_uids_leaves_others_of_the_same_name(harness: Harness) -> None:
    harness.cluster.launch(launch("job-x-1", "runs", "runs"))
    first, second = eventually(harness, "job-x-1", RUNNING).learners
    remove(harness, "job-x-1", uids=["some-older-learner"])
    assert harness.cluster.observe().gangs["job-x-1"].learners == (first, second)
    remove(harness, "job-x-1", uids=[first.uid])
    assert harness.cluster.observe().gangs["job-x-1"].learners == (second,)
    remove(harness, "job-x-1", uids=[second.uid])
    assert harness.cluster.observe().gangs == {}


def test_a_relaunched_name_gets_new_uids(harness: Harness) -> None:
    asked = launch("job-x-1", "exits:0")
    harness.cluster.launch(asked)
    (before,) = eventually(harness, "job-x-1", all_ended).learners
    remove(harness, "job-x-1")
    harness.cluster.launch(asked)
    (after,) = eventually(harness, "job-x-1", all_ended).learners
    assert before.uid != after.uid


def test_observe_of_some_names_leaves_out_the_others(harness: Harness) -> None:
    for name in ("job-x-1", "job-y-1"):
        harness.cluster.launch(launch(name, "runs"))
    assert list(harness.cluster.observe().gangs) == ["job-x-1", "job-y-1"]
    assert list(harness.cluster.observe(["job-y-1", "job-z-1"]).gangs) == ["job-y-1"]


def test_a_gang_that_does_not_fit_leaves_nothing_behind(harness: Harness) -> None:
    with pytest.raises(ClusterBusy, match="node-a"):
        harness.cluster.launch(launch("job-x-1", "runs", "runs", slots=3))
    assert harness.cluster.observe().gangs == {}


def test_a_gang_for_a_node_that_is_not_there_is_refused_as_lost(harness: Harness) -> None:
    with pytest.raises(LaunchRefused, match="node-q") as refused:
        harness.cluster.launch(launch("job-x-1", "runs", nodes=("node-q",)))
    assert refused.value.code == "node_lost"
    assert harness.cluster.observe().gangs == {}


def test_a_gang_whose_node_has_other_devices_by_now_is_refused_as_lost(harness: Harness) -> None:
    with pytest.raises(LaunchRefused, match=r"node-a has no h100, it has cpu") as refused:
        harness.cluster.launch(replace(launch("job-x-1", "runs"), slot_type="h100"))
    assert refused.value.code == "node_lost"
    assert harness.cluster.observe().gangs == {}


def test_a_cluster_that_does_not_answer_is_busy_and_never_empty(harness: Harness) -> None:
    harness.cluster.launch(launch("job-x-1", "runs"))
    with harness.unanswered():
        harness.cache_expires()
        for call in (
            harness.cluster.nodes,
            harness.cluster.observe,
            lambda: harness.cluster.launch(launch("job-y-1", "runs")),
            lambda: harness.cluster.stop("job-x-1", grace_s=1),
            lambda: harness.cluster.remove("job-x-1"),
        ):
            with pytest.raises(ClusterBusy):
                call()
    assert issubclass(ClusterBusy, ClusterError)
    assert list(harness.cluster.observe().gangs) == ["job-x-1"]


def test_a_name_that_was_requested_and_does_not_exist_is_gone_after_at_most_a_few_looks(
    harness: Harness,
) -> None:
    harness.cluster.launch(launch("job-x-1", "runs"))
    absences = Absences()

    def is_gone() -> bool:
        found = harness.cluster.observe(["job-x-1", "job-y-1"])
        assert list(found.gangs) == ["job-x-1"]
        assert not absences.is_gone("job-x-1", found)
        return absences.is_gone("job-y-1", found)

    wait_for(is_gone)


def test_what_this_process_removed_is_not_found_at_once(harness: Harness) -> None:
    harness.cluster.launch(launch("job-x-1", "exits:0"))
    eventually(harness, "job-x-1", all_in(LearnerPhase.SUCCEEDED))
    remove(harness, "job-x-1")
    assert harness.cluster.observe(["job-x-1"]).not_found == {"job-x-1"}


def test_an_observation_is_complete_and_later_ones_are_not_older(harness: Harness) -> None:
    first = harness.cluster.observe()
    harness.settle()
    second = harness.cluster.observe()
    assert first.complete
    assert second.seen_at >= first.seen_at


def test_a_watch_reports_a_launch_an_end_and_a_removal(harness: Harness) -> None:
    seen: list[set[str]] = []
    watch = harness.cluster.watch(seen.append)

    def reported() -> bool:
        harness.settle()
        return any("job-x-1" in names for names in seen)

    harness.cluster.launch(launch("job-x-1", "exits:0"))
    wait_for(reported)
    eventually(harness, "job-x-1", all_ended)
    wait_for(reported)
    seen.clear()
    harness.cluster.remove("job-x-1")
    wait_for(reported)
    watch.close()
    watch.close()
    seen.clear()
    harness.cluster.launch(launch("job-x-2", "runs"))
    harness.settle()
    assert not any("job-x-2" in names for names in seen)


def test_what_this_process_did_is_shown_at_once_also_while_it_watches(harness: Harness) -> None:
    watch = harness.cluster.watch(lambda names: None)
    for number in range(1, 6):
        name = f"job-x-{number}"
        harness.cluster.launch(launch(name, "runs"))
        assert list(harness.cluster.observe([name]).gangs) == [name]
        harness.cluster.stop(name, grace_s=0)
        assert harness.cluster.observe([name]).gangs[name].stopping
        remove(harness, name)
        assert not harness.cluster.observe([name]).gangs
        assert not harness.cluster.observe().gangs
    watch.close()


def test_images_are_launched_or_refused_as_the_capabilities_say(harness: Harness) -> None:
    asked = replace(launch("job-x-1", "runs"), runtime=None, image="registry.example/train:1")
    if harness.cluster.capabilities.images:
        harness.cluster.launch(asked)
        assert list(harness.cluster.observe().gangs) == ["job-x-1"]
    else:
        with pytest.raises(LaunchRefused) as refused:
            harness.cluster.launch(asked)
        assert refused.value.code is RefusalCode.IMAGE_ERROR


def test_a_nodes_rack_and_block_are_named_where_they_are_known(harness: Harness) -> None:
    shown = {node.name: (node.rack, node.block) for node in harness.cluster.nodes()}
    assert (shown["node-a"], shown["node-b"]) == (("r1", "b1"), ("", ""))


def test_only_slot_types_that_the_capabilities_count_are_on_the_nodes(harness: Harness) -> None:
    known = harness.cluster.capabilities.slot_types
    assert known is None or known >= {node.slot_type for node in harness.cluster.nodes()}
